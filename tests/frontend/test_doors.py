"""The two doors, spec and capture, give the same graph; a module nobody described gives the work torch counts."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from agent.presets import PRESETS, preset
from compiler.frontend import build, load_model
from compiler.frontend.capture.ir import Captured
from compiler.frontend.capture.lower import lower
from compiler.frontend.compare import differences, signature
from compiler.ir.graph import Graph, Pattern, Phase, Role, Workload
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import load_target
from tests.frontend.small import SMALL

NOVEL = Path(__file__).with_name("novel_module.py")

#: Published configs of every type both doors read.
BOTH = (
    "Meta-Llama-3.1-8B",
    "Mistral-7B-v0.1",
    "Qwen2.5-7B",
    "Qwen3-8B",
    "Mixtral-8x7B-v0.1",
    "Qwen3-30B-A3B",
    "deepseek-v2-lite",
    "DeepSeek-V2-236B",
    "DeepSeek-V3",
    "gpt-oss-20b",
)


#: Small instances (tests/frontend/small.py) of which both doors make the same graph, op for op.
SAME = (
    "gpt_neox",
    "gpt_neox serial",
    "phimoe",
    "olmo2",
    "olmoe",
    "starcoder2",
    "starcoder2 plain",
    "stablelm",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe plain",
    "minimax_m2",
    "ernie4_5",
    "ernie4_5_moe",
    "ernie4_5_moe biased",
    "mistral",
    "seed_oss",
    "smollm3",
    "exaone4",
    "exaone4 full",
)
#: Those of which they make the same work, and what else the traced graph has.
SAME_WORK = {
    "gpt2": "names of the position table; the activation is written out",
    "gpt2 wide": "names of the position table; the activation is written out",
    "gptj": "the activation is written out: 15 operations, not 8",
    "phi": "the activation is written out: 15 operations, not 8",
    "phi norms": "the activation is written out: 15 operations, not 8",
    "bloom": "names of the norm behind the embedding; the activation is written out",
    "falcon 7b": "no dimension for the one key head",
    "phi3": "names of the dimensions of sliced heads",
    "gemma": "an op for the multiplier of the embedding",
    "gemma2": "ops for multipliers; the soft cap of the logits",
    "gemma3": "an op for the multiplier of the embedding",
    "olmo": "ops that clip queries, keys and values",
    "cohere": "an op for the multiplier of the logits",
    "cohere norms": "an op for the multiplier of the logits",
    "cohere2": "an op for the multiplier of the logits",
    "granite": "ops for multipliers",
    "granitemoe": "ops for multipliers",
    "llama4": "queries are normalised after they are rotated",
    "llama4 interleaved": "queries are normalised after they are rotated",
    "llama4 listed": "complex rotation",
    "hunyuan_v1_dense": "queries are normalised after they are rotated",
    "hunyuan_v1_moe": "queries are normalised after they are rotated",
}


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Captured]:
    """Captures by MODEL, each traced once."""
    pytest.importorskip("transformers")
    from compiler.frontend.capture.trace import capture

    store = tmp_path_factory.mktemp("captures")
    return lambda model: capture(model, store)


#: What is counted of a graph, beside the sums: the items of its signature of these words.
SEMANTIC = ("attention", "scan", "convolution", "norm", "top-k")


def work(graph: Graph) -> dict[str, Any]:
    """Parameters, FLOPs of the contractions, bytes of caches and states; the contractions, the semantic operators."""
    items = signature(graph)
    contracts = [
        op.flops * graph.repeats[b.kind] for b in graph.blocks for op in b.ops if op.pattern is Pattern.CONTRACT
    ]
    return {
        "parameters": graph.weight_elements,
        "flops": sum(contracts),
        "stored": graph.kv_nbytes,
        "contracts": Counter({item: n for item, n in items.items() if item[0] == "contract"}),
        "semantic": Counter({item: n for item, n in items.items() if item[0] in SEMANTIC}),
    }


def agree(folder: str, traced: Callable[[str], Captured], same: bool = True) -> None:
    """Both doors: the same work in both phases and storage choices; where `same`, the same graph."""
    captured, spec = traced(folder), load_model(folder)
    for phase, weights in itertools.product(Phase, ("auto", "bf16", "fp8")):
        workload = Workload(phase, 3, 300, 1, weights)
        made, built = lower(captured, workload), build(spec, workload)
        assert differences(made, built) == ()
        ours = work(made)
        assert ours == work(built)
        assert ours["parameters"] == captured.params == spec.params
        assert ours["flops"] > 2 * 3 and ours["stored"] and ours["contracts"] and ours["semantic"]
        assert (made.id == built.id) is same
        if same:
            assert (made.sequence, made.flops, made.weight_nbytes) == (built.sequence, built.flops, built.weight_nbytes)


@pytest.fixture
def small(tmp_path: Path) -> Callable[[str], str]:
    """The folder of a small instance."""

    def write(name: str) -> str:
        (tmp_path / "config.json").write_text(json.dumps(SMALL[name]))
        return str(tmp_path)

    return write


@pytest.mark.parametrize("name", BOTH)
def test_spec_and_capture_agree(name: str, model_dir: Callable[[str], Path], traced: Callable[[str], Captured]) -> None:
    agree(str(model_dir(name)), traced)


@pytest.mark.parametrize("name", SAME)
def test_small_instances_are_the_same_graph(
    name: str, small: Callable[[str], str], traced: Callable[[str], Captured]
) -> None:
    agree(small(name), traced)


@pytest.mark.parametrize("name", SAME_WORK)
def test_small_instances_are_the_same_work(
    name: str, small: Callable[[str], str], traced: Callable[[str], Captured]
) -> None:
    """Should one of these become the same graph, it belongs in SAME."""
    agree(small(name), traced, same=False)


def test_how_many_families_both_doors_read_alike() -> None:
    assert len({SMALL[name]["model_type"] for name in SAME}) == 16
    assert len({SMALL[name]["model_type"] for name in (*SAME, *SAME_WORK)}) == 33


@pytest.mark.parametrize("sockets", (1, 8))
@pytest.mark.parametrize("name", ("Meta-Llama-3.1-8B", "Mixtral-8x7B-v0.1", "deepseek-v2-lite", "gpt-oss-20b"))
def test_every_preset_compiles(
    name: str, sockets: int, model_dir: Callable[[str], Path], traced: Callable[[str], Captured]
) -> None:
    captured, target = traced(str(model_dir(name))), load_target("sn40l")
    for phase in Phase:
        graph = lower(captured, Workload(phase, 4, 512, sockets, "bf16"))
        _compiles(graph, target)


def _compiles(graph: Graph, target: Any) -> None:
    for name in PRESETS:
        assert isinstance(compile_schedule(graph, preset(name, graph, target), target), Program)


def _novel() -> Any:
    """The module of `novel_module.py`, with numbers."""
    spec = spec_from_file_location("novel_module", NOVEL)
    assert spec is not None and spec.loader is not None
    python = module_from_spec(spec)
    spec.loader.exec_module(python)
    return python.Model()


def test_a_novel_block_has_the_flops_torch_counts(traced: Callable[[str], Captured]) -> None:
    """A gated MLP with a depthwise convolution and grouped attention."""
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    captured, model = traced(f"{NOVEL}:make"), _novel()
    graph = lower(captured, Workload(Phase.PREFILL, 2, 16, 1))
    # the fused CPU kernel of attention is not counted by torch
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(2, 16, dtype=torch.long))
    counted = sum(
        op.flops * graph.repeats[block.kind]
        for block in graph.blocks
        for op in block.ops
        if op.pattern is Pattern.CONTRACT
    )
    head = graph.block["head"].op["head.lm_head"]
    assert counted + head.flops * 15 == counter.get_total_flops()  # the graph's head sees last tokens only
    assert graph.weight_elements == sum(p.numel() for p in model.parameters())


def test_a_novel_block_decodes_with_its_states(traced: Callable[[str], Captured]) -> None:
    pytest.importorskip("torch")
    captured = traced(f"{NOVEL}:make")
    graph = lower(captured, Workload(Phase.DECODE, 2, 32, 1))
    block = graph.blocks[1]
    assert {"attn.q_proj", "attn.kv_append", "ffn.gate_proj", "mixer.conv", "ffn.act", "ffn.down_proj"} <= set(block.op)
    state = block.tensor["mixer.conv_state"]
    assert (state.role, [d.size for d in state.dims]) == (Role.STATE, [2, 80, 3])
    assert signature(graph)[("convolution", (80 * 4 + 80, 4))] == 3
    for sockets in (1, 8):
        for phase in Phase:
            _compiles(lower(captured, Workload(phase, 4, 64, sockets)), load_target("sn40l"))


def test_experts_that_a_class_puts_together_from_matrices(
    tmp_path: Path, small: Callable[[str], str], traced: Callable[[str], Captured]
) -> None:
    """DBRX keeps gate, up and down of all experts as one matrix each; clipping keeps its fused projection whole."""
    captured = traced(small("dbrx"))
    graph = lower(captured, Workload(Phase.DECODE, 3, 300, 1))
    assert graph.weight_elements == captured.params
    keys = {t.name: t.key.rpartition(".")[2] for t in graph.block["gqa_moe"].weights if "experts" in t.name}
    assert keys == {"w.ffn.experts_gate": "w1", "w.ffn.experts_up": "v1", "w.ffn.experts_down": "w2"}
