"""The two doors, spec and capture, give the same graph; a module nobody described gives the work torch counts."""

import itertools
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


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Captured]:
    """Captures by MODEL, each traced once."""
    pytest.importorskip("transformers")
    from compiler.frontend.capture.trace import capture

    store = tmp_path_factory.mktemp("captures")
    return lambda model: capture(model, store)


@pytest.mark.parametrize("name", BOTH)
def test_spec_and_capture_agree(name: str, model_dir: Callable[[str], Path], traced: Callable[[str], Captured]) -> None:
    folder = str(model_dir(name))
    captured, spec = traced(folder), load_model(folder)
    for phase, weights in itertools.product(Phase, ("bf16", "fp8")):
        workload = Workload(phase, 3, 300, 1, weights)
        made, built = lower(captured, workload), build(spec, workload)
        assert differences(made, built) == ()
        assert made.sequence == built.sequence
        if weights == "bf16":
            assert made.id == built.id  # not only the same work: the same graph
    assert made.weight_elements == captured.params


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
