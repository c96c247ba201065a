"""The graph: what is ill formed is refused, runs of layers, and an identity of what is computed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.frontend.spec import Attention, Dense, LatentAttention, Layer, MoE
from compiler.ir.dtype import DType
from compiler.ir.graph import (
    Block,
    Dim,
    Graph,
    Op,
    Pattern,
    Phase,
    Role,
    Routing,
    Tensor,
    Workload,
)
from compiler.ir.mesh import Collective, CollectiveKind, MeshAxis

Make = Callable[..., Graph]
T, H, F = Dim("tokens", 2), Dim("hidden", 8), Dim("ffn", 12)
X = Tensor("x", (T, H), DType.BF16, Role.ACTIVATION)
W = Tensor("w", (F, H), DType.BF16, Role.WEIGHT, "w.weight")
MID = Tensor("mid", (T, F), DType.BF16, Role.ACTIVATION)
Y = Tensor("y", (T, F), DType.BF16, Role.ACTIVATION)
UP = Op("up", Pattern.CONTRACT, (T, F, H), ("x", "w"), ("mid",), ("hidden",), 2)
ACT = Op("act", Pattern.MAP, (T, F), ("mid",), ("y",))


def block(**changes: Any) -> Block:
    values: dict[str, Any] = {"ops": (UP, ACT), "tensors": (X, W, MID, Y), "inputs": ("x",), "outputs": ("y",)}
    return Block("b", **{**values, **changes})


def test_a_well_formed_block() -> None:
    b = block()
    assert b.op["up"].flops == 2 * 2 * 12 * 8 and b.weights == (W,) and b.tensor["y"].nbytes == 2 * 12 * 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tensors": (X, W, MID, Y, Y)}, "a tensor name twice"),
        ({"ops": (UP, ACT, replace(ACT, outputs=("x",)))}, "an op name twice"),
        ({"ops": (ACT, UP)}, "op act reads mid before it is produced"),
        ({"ops": (UP, replace(ACT, inputs=("midd",)))}, "reads midd before"),
        ({"ops": (UP, replace(ACT, outputs=("z",)))}, "writes unknown tensor z"),
        ({"ops": (UP, ACT, replace(ACT, name="again"))}, "y is written twice"),
        ({"ops": (UP, replace(ACT, outputs=("x",)))}, "x is written twice or is an input"),
        ({"tensors": (X, replace(W, dims=(F, Dim("hidden", 7))), MID, Y)}, "op up has hidden=8, tensor w has 7"),
        ({"tensors": (X, W, MID, replace(Y, dims=(T, Dim("ffn", 24))))}, "op act has ffn=12, tensor y has 24"),
        ({"outputs": ("y", "z")}, "an output nobody writes"),
    ],
)
def test_ill_formed_blocks_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^block b: .*{says}"):
        block(**changes)


def test_a_socket_may_read_a_slice_but_never_more_than_there_is_nor_write_one() -> None:
    wide, narrow = Dim("ffn", 24), Dim("ffn", 6)
    block(sockets=2, tensors=(X, replace(W, dims=(wide, H)), MID, Y))
    for tensors in ((X, replace(W, dims=(narrow, H)), MID, Y), (X, W, MID, replace(Y, dims=(T, wide)))):
        with pytest.raises(ValueError, match="has ffn=12"):
            block(sockets=2, tensors=tensors)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Dim("a", 0), "size 0"),
        (lambda: Dim("a b", 1), "'a b'"),
        (lambda: replace(X, dims=(T, T)), "a dimension twice"),
        (lambda: replace(W, key=""), "checkpoint key"),
        (lambda: replace(X, key="x"), "checkpoint key"),
        (lambda: Routing(4, 0), "top-0 of 4"),
        (lambda: Routing(4, 5), "top-5 of 4"),
        (lambda: Routing(6, 2, 4), "over 4 sockets"),
        (lambda: Collective(CollectiveKind.ALL_REDUCE, (MeshAxis(1, 1),)), "1 ways"),
        (lambda: Collective(CollectiveKind.ALL_REDUCE, ()), "over"),
        (lambda: Collective(CollectiveKind.ALL_GATHER, (MeshAxis(2, 1),)), "over"),
        (lambda: replace(UP, dims=(T, H, H)), "a dimension twice"),
        (lambda: replace(UP, reduced=("heads",)), "outside the iteration space"),
        (lambda: replace(UP, sequential=("heads",)), "outside the iteration space"),
        (lambda: replace(UP, outputs=()), "no output"),
        (lambda: Workload(Phase.DECODE, 0, 1, 1), "at least 1"),
        (lambda: Graph("m", "t", (block(),), ("b", "c"), Workload(Phase.DECODE, 1, 1, 1)), "differ"),
        (lambda: Graph("m", "t", (block(), block()), ("b",), Workload(Phase.DECODE, 1, 1, 1)), "differ"),
    ],
)
def test_nonsense_cannot_be_constructed(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize(
    ("dtype", "elements", "nbytes"),
    [
        (DType.BF16, 3, 6),
        (DType.FP8, 3, 3),
        (DType.FP8_BLOCK, 128 * 128, 128 * 128 + 4),  # one FP32 scale a block
        (DType.FP8_BLOCK, 1, 2),
        (DType.MXFP4, 32, 17),  # 32 nibbles and a scale
        (DType.MXFP4, 33, 18),
    ],
)
def test_bytes_of_a_type(dtype: DType, elements: int, nbytes: int) -> None:
    assert dtype.nbytes(elements) == nbytes


# -- runs


def layers(sequence: str) -> Graph:
    blocks = tuple(Block(kind, (), (), (), ()) for kind in dict.fromkeys(sequence))
    return Graph("m", "t", blocks, tuple(sequence), Workload(Phase.DECODE, 1, 1, 1))


@pytest.mark.parametrize(
    ("sequence", "runs"),
    [
        ("a", "a*1"),
        ("aaaa", "a*4"),
        ("abababab", "ab*4"),  # gpt-oss: window and full attention in turn
        ("ababa", "ab*2 a*1"),
        ("adddd", "a*1 d*4"),  # DeepSeek: dense layers, then experts
        ("aaadddd", "a*3 d*4"),
        ("aaabaaabaaab", "aaab*3"),  # Qwen3-Next: every fourth layer is full attention
        ("aabb", "a*2 b*2"),
        ("aaaaaba", "a*5 b*1 a*1"),
        ("abcdeabcde", "a*1 b*1 c*1 d*1 e*1 a*1 b*1 c*1 d*1 e*1"),  # periods are at most 4
    ],
)
def test_runs(sequence: str, runs: str) -> None:
    assert " ".join(f"{''.join(body)}*{times}" for body, times in layers(sequence).runs) == runs


@given(st.text("abc", min_size=1, max_size=24))
def test_runs_spell_the_sequence(sequence: str) -> None:
    assert "".join("".join(body) * times for body, times in layers(sequence).runs) == sequence


def test_runs_of_models(graph: Make) -> None:
    assert graph("alternating").runs[1] == (("swa_moe", "gqa_moe"), 3)
    assert graph("mla").runs[1:3] == ((("mla_dense",), 1), (("mla_moe",), 2))


# -- identity

GQA, FFN = Attention(kv_heads=4, q_group=2, head_dim=64), Dense(768)
MLA = LatentAttention(heads=8, q_lora=96, kv_lora=128, nope=32, rope=16, v_dim=48)
EXPERTS = MoE(experts=16, top_k=2, width=192, shared_width=384)


def of(graph: Make, mixer: Any, ffn: Any = FFN, count: int = 3, **values: Any) -> str:
    return graph(layers=(Layer(mixer, ffn),) * count, **values).id


def test_the_name_of_a_model_is_not_part_of_its_identity(graph: Make) -> None:
    g = graph()
    assert replace(g, model="other", model_type="other").id == g.id == graph().id


def test_any_size_is_part_of_the_identity(graph: Make) -> None:
    ids = [
        of(graph, GQA),
        of(graph, GQA, count=4),
        *(of(graph, replace(GQA, **{name: 8})) for name in ("kv_heads", "q_group", "head_dim")),
        of(graph, replace(GQA, sinks=True)),
        of(graph, replace(GQA, qk_norm=True)),
        of(graph, GQA, Dense(640)),
        of(graph, GQA, Dense(768, gated=False)),
        of(graph, GQA, EXPERTS),
        *(of(graph, GQA, replace(EXPERTS, **{n: 8})) for n in ("experts", "top_k", "width", "shared_width")),
        of(graph, MLA),
        *(of(graph, replace(MLA, **{n: 64})) for n in ("heads", "q_lora", "kv_lora", "nope", "rope", "v_dim")),
        of(graph, GQA, hidden=256),
        of(graph, GQA, vocab=999),
        of(graph, GQA, batch=2),
        of(graph, GQA, context=512),
        of(graph, GQA, sockets=8),
        of(graph, GQA, weights="fp8"),
        of(graph, GQA, phase=Phase.PREFILL),
    ]
    assert len(set(ids)) == len(ids)


def test_the_order_of_layers_is_part_of_the_identity(graph: Make) -> None:
    a, b = Layer(GQA, FFN), Layer(GQA, EXPERTS)
    assert len({graph(layers=order).id for order in ((a, a, b), (a, b, b), (b, a, a), (a, b, a))}) == 4


def test_sums_over_a_model_by_hand(graph: Make) -> None:
    """512 hidden, 8 query and 4 key-value heads of 64, 768 wide, 3 layers; 1000 words, embedding and head apart."""
    layer = 512 * 512 * 2 + 2 * 512 * 256 + 3 * 512 * 768 + 2 * 512
    g = graph(batch=2)
    assert g.weight_elements == 3 * layer + 2 * 1000 * 512 + 512
    assert g.weight_nbytes == 2 * g.weight_elements
    assert graph(batch=2, tied=True).weight_elements == g.weight_elements - 1000 * 512
    assert g.kv_nbytes == 3 * 2 * 256 * 2 * 4 * 64 * 2
