"""From a capture to the graph: by hand-written captures, and through the tracer against the spec door."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hand_captures import HIDDEN, T, Writer, grouped_attention, latent_attention

from agent.presets import PRESETS, preset
from compiler.errors import InputError
from compiler.frontend import build, load_model
from compiler.frontend.capture.axes import Atoms
from compiler.frontend.capture.ir import Captured, Ref
from compiler.frontend.capture.lower import lower
from compiler.frontend.compare import differences, signature
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Graph, Pattern, Phase, Role, Workload
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import load_target

DECODE = Workload(Phase.DECODE, 2, 32, 1)
PREFILL = Workload(Phase.PREFILL, 2, 32, 1)

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


def _layer(captured: Captured, workload: Workload = DECODE) -> Block:
    return lower(captured, workload).blocks[0]


def _dims(block: Block, op: str) -> list[tuple[str, int]]:
    return [(dim.name, dim.size) for dim in block.op[op].dims]


# the algebra of axes


def test_a_view_splits_an_atom_and_the_reverse_view_gives_it_back() -> None:
    atoms = Atoms(T)
    rows = atoms.axis(48)
    split = atoms.regroup(((), (atoms.tokens,), rows), (1, T, 6, 8))
    assert split is not None and [atoms.extent(axis) for axis in split] == [1, T, 6, 8]
    back = atoms.regroup(split, (T, 48))
    assert back is not None and atoms.leaves(back[1]) == atoms.leaves(rows)


def test_identified_axes_split_alike() -> None:
    atoms = Atoms(T)
    a, b = atoms.axis(48), atoms.axis(48)
    assert atoms.unify(a, b)
    atoms.split(atoms.leaves(a)[0], (6, 8))
    assert atoms.leaves(a) == atoms.leaves(b) and len(atoms.leaves(b)) == 2


def test_boundaries_that_cross_an_atom_are_not_followed() -> None:
    atoms = Atoms(T)
    assert atoms.regroup((atoms.axis(6), atoms.axis(4)), (4, 6)) is None
    assert not atoms.unify(atoms.axis(6), atoms.axis(4))


def test_the_cuts_of_an_axis_joined_in_any_order_are_the_axis() -> None:
    atoms = Atoms(T)
    whole = atoms.axis(8)
    low, high = atoms.cut(whole, 0, 4), atoms.cut(whole, 4, 4)
    assert atoms.join((high, low), 8) == whole
    assert atoms.join((low, atoms.axis(4)), 8) != whole


# hand-written captures


def test_projections_of_an_attention_get_its_heads() -> None:
    block = _layer(grouped_attention())
    assert _dims(block, "attn.q_proj") == [
        ("tokens", 2),
        ("kv_heads", 2),
        ("q_group", 3),
        ("head_dim", 8),
        ("hidden", HIDDEN),
    ]
    assert _dims(block, "attn.k_proj") == [("tokens", 2), ("kv_heads", 2), ("head_dim", 8), ("hidden", HIDDEN)]
    assert block.op["attn.o_proj"].reduced == ("kv_heads", "q_group", "head_dim")
    assert block.inputs == ("x", "attn.k_cache", "attn.v_cache")
    assert block.outputs == ("y", "attn.k_new", "attn.v_new")


@pytest.mark.parametrize("workload", (DECODE, PREFILL))
def test_flops_by_hand(workload: Workload) -> None:
    block = _layer(grouped_attention(), workload)
    flops = sum(op.flops for op in block.ops if op.pattern is Pattern.CONTRACT)
    assert flops == workload.tokens * (2 * HIDDEN * (48 + 16 + 16 + 48) + 2 * 2 * 6 * 8 * 32)


def test_a_window_bounds_the_cache() -> None:
    assert _layer(grouped_attention(window=8)).tensor["attn.k_cache"].elements == 2 * 8 * 2 * 8
    assert _layer(grouped_attention(window=64)).tensor["attn.k_cache"].elements == 2 * 32 * 2 * 8


def test_keys_and_values_of_a_latent_are_cached_as_the_latent() -> None:
    block = _layer(latent_attention())
    assert [d.size for d in block.tensor["attn.latent_cache"].dims] == [2, 32, 18]
    assert _dims(block, "attn.kv_b_proj")[2:] == [("heads", 4), ("kv_b", 18), ("kv_lora", 12)]
    assert lower(latent_attention(), DECODE).sequence == ("mla", "mla")


def test_a_latent_whose_expansion_has_a_bias_is_not_cached() -> None:
    block = _layer(latent_attention(bias=True))
    assert [d.size for d in block.tensor["attn.k_cache"].dims] == [2, 32, 4, 14]
    assert [d.size for d in block.tensor["attn.v_cache"].dims] == [2, 32, 4, 10]


def test_fused_projections_are_taken_apart() -> None:
    w = Writer()
    x = w.norm("normed", Ref("x"))
    qkv = w.linear("qkv", x, 80, HIDDEN, bias=True)
    cut = [
        w.call("aten.slice.Tensor", n, (1, T, b - a), qkv, 2, a, b)
        for n, a, b in (("a", 0, 48), ("b", 48, 64), ("c", 64, 80))
    ]
    q, k, v = (w.heads(n, part, heads, 8) for n, part, heads in zip("qkv", cut, (6, 2, 2), strict=True))
    mixed = w.attention("mixed", q, k, v, (6, 8))
    fused = lower(w.model(w.add("y", Ref("x"), w.linear("o_proj", mixed, HIDDEN, 48))), DECODE)
    plain = lower(grouped_attention(), DECODE)
    assert fused.weight_elements == plain.weight_elements + 2 * 80
    assert fused.blocks[0].op.keys() == plain.blocks[0].op.keys()
    assert fused.flops == plain.flops


def test_a_square_matrix_has_two_dimensions() -> None:
    w = Writer()
    block = _layer(w.model(w.add("y", Ref("x"), w.linear("mix", Ref("x"), HIDDEN, HIDDEN))))
    op = next(op for op in block.ops if op.pattern is Pattern.CONTRACT)
    assert op.points == 2 * HIDDEN * HIDDEN
    assert op.name == "layer.mix.linear"


def test_unknown_operators_are_refused_together() -> None:
    w = Writer()
    a = w.call("aten.fft_rfft.default", "a", (1, T, HIDDEN), Ref("x"), module="mixer.fft")
    b = w.call("mine.odd.default", "b", (1, T, HIDDEN), a, module="mixer.odd")
    with pytest.raises(InputError) as error:
        lower(w.model(w.add("y", Ref("x"), b)), DECODE)
    for part in ("2 operators", "aten.fft_rfft.default in mixer.fft (model.py:7)", "mine.odd.default in mixer.odd"):
        assert part in str(error.value)


def test_a_written_out_norm_is_one_op() -> None:
    w = Writer()
    square = w.call("aten.pow.Tensor_Scalar", "square", (1, T, HIDDEN), Ref("x"), 2)
    mean = w.call("aten.mean.dim", "mean", (1, T, 1), square, (-1,), True)
    root = w.call("aten.rsqrt.default", "root", (1, T, 1), w.call("aten.add.Tensor", "eps", (1, T, 1), mean, 1e-6))
    scaled = w.call("aten.mul.Tensor", "scaled", (1, T, HIDDEN), Ref("x"), root)
    normed = w.call("aten.mul.Tensor", "normed", (1, T, HIDDEN), scaled, w.weight("scale", HIDDEN))
    block = _layer(w.model(w.add("y", Ref("x"), w.linear("mix", normed, HIDDEN, HIDDEN))))
    assert [op.pattern for op in block.ops] == [Pattern.REDUCE, Pattern.CONTRACT, Pattern.MAP]
    assert block.ops[0].flops_per_point == 4


def test_storage_is_as_traced_or_as_chosen() -> None:
    for choice, dtype in (("auto", DType.BF16), ("bf16", DType.BF16), ("fp8", DType.FP8)):
        block = _layer(grouped_attention(), replace(DECODE, weights=choice))
        assert block.tensor["w.attn.q_proj"].dtype is dtype
        assert block.tensor["w.attn.norm"].dtype is DType.BF16
    with pytest.raises(InputError, match="int3"):
        lower(grouped_attention(), replace(DECODE, weights="int3"))


def test_two_graphs_that_differ_say_where() -> None:
    a, b = lower(grouped_attention(), DECODE), lower(grouped_attention(window=8), DECODE)
    assert differences(a, a) == ()
    said = "\n".join(differences(a, b))
    assert "attention (kv heads, group, key dim, value dim, context) (2, 3, 8, 8, 8): 0 against 2" in said
    assert "stored" in said and "parameters" not in said


# through the tracer


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


def test_a_novel_block_has_the_flops_torch_counts(traced: Callable[[str], Captured]) -> None:
    """A gated MLP with a depthwise convolution and grouped attention."""
    torch = pytest.importorskip("torch")
    from novel_module import BATCH, TOKENS, make, model
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    file = Path(__file__).with_name("novel_module.py")
    captured = traced(f"{file}:{make.__name__}")
    graph = lower(captured, Workload(Phase.PREFILL, BATCH, TOKENS, 1))
    # the fused CPU kernel of attention is not counted by torch
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model()(torch.zeros(BATCH, TOKENS, dtype=torch.long))
    counted = sum(
        op.flops * graph.repeats[block.kind]
        for block in graph.blocks
        for op in block.ops
        if op.pattern is Pattern.CONTRACT
    )
    head = graph.block["head"].op["head.lm_head"]
    assert counted + head.flops * (TOKENS - 1) == counter.get_total_flops()  # the graph's head sees last tokens only
    assert graph.weight_elements == sum(p.numel() for p in model().parameters())


def test_a_novel_block_decodes_with_its_states(traced: Callable[[str], Captured]) -> None:
    pytest.importorskip("torch")
    captured = traced(f"{Path(__file__).with_name('novel_module.py')}:make")
    graph = lower(captured, DECODE)
    block = graph.blocks[1]
    assert {"attn.q_proj", "attn.kv_append", "ffn.gate_proj", "mixer.conv", "ffn.act", "ffn.down_proj"} <= set(block.op)
    state = block.tensor["mixer.conv_state"]
    assert (state.role, [d.size for d in state.dims]) == (Role.STATE, [2, 80, 3])
    assert signature(graph)[("convolution", (80 * 4 + 80, 4))] == 3
    for sockets in (1, 8):
        for phase in Phase:
            _compiles(lower(captured, Workload(phase, 4, 64, sockets)), load_target("sn40l"))
