"""Digits of the socket number: what they are, how splits get them, what the verifier refuses, and chains of sums.

The chains are contractions and additions on small whole numbers: every socket computes what its splits say, and the
exact sum must come out on each of them.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compiler.frontend.spec import Attention, Dense, Layer, MoE
from compiler.ir.actions import Shard
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Dim, Graph, Op, Pattern, Phase, Role, Tensor
from compiler.ir.mesh import Collective, CollectiveKind, Layout, MeshAxis, Split, groups, merged
from compiler.ir.schedule import Schedule
from compiler.passes.mesh import NoArrangement, arrange
from compiler.passes.shard import shard_block
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import Target
from compiler.verify import CompilerFault, verify_mesh

Make = Callable[..., Graph]
A = MeshAxis


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ((A(2, 1), A(2, 2)), (A(4, 1),)),
        ((A(2, 4), A(2, 1)), (A(2, 1), A(2, 4))),
        ((A(3, 2), A(2, 1), A(2, 6)), (A(12, 1),)),
        ((), ()),
    ],
)
def test_digits_side_by_side_are_one(axes: tuple[MeshAxis, ...], expected: tuple[MeshAxis, ...]) -> None:
    assert merged(axes) == expected
    assert sorted(map(sorted, groups(axes, 12))) == sorted(map(sorted, groups(expected, 12)))


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ((A(2, 1),), ((0, 1), (2, 3), (4, 5), (6, 7))),
        ((A(2, 4),), ((0, 4), (1, 5), (2, 6), (3, 7))),
        ((A(2, 4), A(2, 1)), ((0, 1, 4, 5), (2, 3, 6, 7))),
        ((A(2, 1), A(2, 4)), ((0, 4, 1, 5), (2, 6, 3, 7))),  # in the order of the digits as they are given
    ],
)
def test_groups_of_eight_sockets(axes: tuple[MeshAxis, ...], expected: tuple[tuple[int, ...], ...]) -> None:
    assert groups(axes, 8) == expected


@pytest.mark.parametrize(
    ("whole", "local", "spans"),
    [
        (8, 2, ((0, 2), (2, 4), (4, 6), (6, 8))),
        (7, 2, ((0, 2), (2, 4), (4, 6), (6, 7))),
        (5, 3, ((0, 3), (3, 5), (5, 5), (5, 5))),  # padded: nothing is left for the last sockets
    ],
)
def test_spans_of_a_split(whole: int, local: int, spans: tuple[tuple[int, int], ...]) -> None:
    assert tuple(Split("n", A(4, 1), whole, local).span(s) for s in range(4)) == spans


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Split("n", A(2, 1), 8, 3), "2 shards of 3 of 8"),
        (lambda: Layout((Split("n", A(2, 1), 8, 4),), (A(4, 1),)), "overlap"),
        (lambda: Layout(partial=(A(2, 1), A(2, 2))), "not merged"),
        (lambda: A(2, 0), "stride 0"),
    ],
)
def test_nonsense_cannot_be_made(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()


#: what meets, what is added, sockets -> strides
ARRANGED = [
    ([("op", (("a", 8),))], [], 8, {("a", 8): 1}),
    ([("op", (("a", 4), ("b", 2)))], [], 8, {("a", 4): 1, ("b", 2): 4}),
    ([("p", (("a", 2), ("b", 4))), ("q", (("b", 4), ("c", 2)))], [], 8, {("a", 2): 1, ("b", 4): 2, ("c", 2): 1}),
    ([("op", (("a", 2), ("b", 3)))], [], 12, {("a", 2): 1, ("b", 3): 2}),
    # c could have 1, but is added to b, which has 2
    ([("p", (("a", 2), ("b", 4))), ("q", (("c", 4), ("d", 2)))], [(("b", 4), ("c", 4))], 8,
     {("a", 2): 4, ("b", 4): 1, ("c", 4): 1, ("d", 2): 4}),
]  # fmt: skip


@pytest.mark.parametrize(("meetings", "sums", "sockets", "strides"), ARRANGED)
def test_arrangements(meetings: list, sums: list, sockets: int, strides: dict) -> None:  # type: ignore[type-arg]
    assert {key: axis.stride for key, axis in arrange(meetings, sums, sockets).items()} == strides


@pytest.mark.parametrize(
    ("meetings", "sockets"),
    [
        ([("op", (("a", 4), ("b", 2)))], 12),  # 8 does not divide 12
        ([("p", (("a", 2), ("b", 4))), ("q", (("b", 4), ("c", 2))), ("r", (("a", 2), ("c", 2)))], 8),
    ],
)
def test_what_cannot_be_arranged_names_all_that_meets(meetings: list, sockets: int) -> None:  # type: ignore[type-arg]
    with pytest.raises(NoArrangement) as found:
        arrange(meetings, [], sockets)
    assert set(found.value.keys) == {key for _, met in meetings for key in met}


def test_experts_spread_in_two_ways_are_refused(graph: Make) -> None:
    """Was accepted: of the experts' slots that one socket had half the next op looked for on another."""
    block = graph("moe").block["gqa_moe"]
    actions = (Shard(block.kind, "ffn", "experts", 4), Shard(block.kind, "ffn.experts_down", "experts", 2))
    (refusal,) = shard_block(block, actions, 4)[1]
    assert str(refusal[1]).startswith(
        "SHARD_MESH gqa_moe ffn.experts_down: experts are spread 4 and 2 ways: their slots are never on one socket"
    )


def test_six_sockets_have_no_digits_for_two_and_two(graph: Make) -> None:
    block = graph(layers=(Layer(Attention(6, 2, 4), Dense(12)),), hidden=12).block["gqa_dense"]
    refusals = shard_block(block, tuple(Shard(block.kind, "attn", d, 2) for d in ("kv_heads", "q_group")), 6)[1]
    assert {d.code for _, d in refusals} == {"SHARD_MESH"}
    assert "kv_heads 2 ways, q_group 2 ways" in refusals[0][1].rule and refusals[0][1].levers


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize(
    ("lender", "borrower", "accepted"),
    [(2, 2, True), (4, 4, True), (1, 4, True), (4, 1, False), (2, 4, False), (4, 2, False)],
)
def test_a_borrowed_cache_is_read_as_it_is_stored(
    graph: Make, target: Target, phase: Phase, lender: int, borrower: int, accepted: bool
) -> None:
    """Was accepted: rows that lie on other sockets were read as if they were here. A whole cache may be read in slices."""
    own = Attention(4, 2, 64)
    g = graph(layers=(Layer(own, Dense(768)), Layer(replace(own, borrows=True), Dense(768))), phase=phase)
    kinds = [b.kind for b in g.blocks if "attn.k_cache" in b.tensor]
    pairs = zip(kinds, (lender, borrower), strict=True)
    schedule = Schedule(tuple(Shard(kind, "attn", "kv_heads", ways) for kind, ways in pairs if ways > 1))
    result = compile_schedule(g, schedule, target)
    assert isinstance(result, Program) == accepted
    if not isinstance(result, Program):
        assert {d.code for d in result} == {"SHARD_MESH"}
        assert f"{kinds[1]} attn.k_cache: {kinds[0]} stores it split along kv_heads {lender} ways" in str(result[0])


def moe(graph: Make) -> Block:
    layers = (Layer(Attention(8, 2, 4), MoE(16, 2, 16, shared_width=16)),)
    return graph(layers=layers, hidden=16).block["gqa_moe"]


def test_sums_over_other_sockets_are_completed_before_they_are_added(graph: Make) -> None:
    """4 of 8 sockets each: the shared expert's sum is over digit 1, and experts over the same unless ffn takes it."""
    block = moe(graph)
    alike = (Shard(block.kind, "ffn", "shared_ffn", 4), Shard(block.kind, "ffn", "experts", 4))
    local, refusals = shard_block(block, alike, 8)
    assert not refusals
    assert [op.name for op in local.ops if op.collective] == ["ffn.sum.all_reduce"]
    assert local.op["ffn.sum.all_reduce"].collective == Collective(CollectiveKind.ALL_REDUCE, (A(4, 1),))
    assert local.tensor["ffn.experts_mid"].layout == Layout(apart=A(4, 1))
    local, refusals = shard_block(block, (*alike, Shard(block.kind, "ffn.experts_down", "hidden", 2)), 8)
    assert not refusals
    assert local.tensor["ffn.out"].layout.partial == local.tensor["ffn.shared_out"].layout.partial == (A(4, 1),)
    assert local.tensor["ffn.experts_out"].layout.splits == (Split("hidden", A(2, 4), 16, 8),)


#: What a fault of the sharder would look like: (tensor or op, what is changed, what the verifier says).
FAULTS = [
    ("ffn.shared_mid", {"layout": Layout()}, "splits"),
    ("ffn.shared_out", {"layout": Layout(partial=(A(4, 2),))}, "writes ffn.shared_out"),
    ("ffn.shared_out", {"layout": Layout()}, "writes ffn.shared_out"),
    ("ffn.experts_mid", {"layout": Layout()}, "writes ffn.experts_mid"),
    ("ffn.sum@all_reduce", {"layout": Layout(partial=(A(4, 1),))}, "leaves"),
    ("ffn.sum.all_reduce", {"collective": Collective(CollectiveKind.ALL_REDUCE, (A(4, 2),))}, "adds up"),
    ("ffn.sum.all_reduce", {"collective": Collective(CollectiveKind.ALL_GATHER, (A(4, 1),), ("hidden",))}, "gathers"),
    ("ffn.shared_act", {"splits": (Split("shared_ffn", A(4, 2), 16, 4),)}, "reads ffn.shared_gate, split as"),
    ("ffn.shared_act", {"splits": (Split("shared_ffn", A(8, 1), 16, 2),)}, "splits"),
    ("ffn.add_shared", {"linear": False}, "reads the partial sum"),
    ("y", {"layout": Layout(partial=(A(4, 1),))}, "enters or leaves"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "complaint"), FAULTS)
def test_the_verifier_finds_a_wrong_layout(graph: Make, name: str, change: dict, complaint: str) -> None:  # type: ignore[type-arg]
    block = moe(graph)
    local, _ = shard_block(
        block, (Shard(block.kind, "ffn", "shared_ffn", 4), Shard(block.kind, "ffn", "experts", 4)), 8
    )
    verify_mesh(local)
    ops = tuple(replace(o, **change) if o.name == name else o for o in local.ops)
    tensors = tuple(replace(t, **change) if t.name == name else t for t in local.tensors)
    with pytest.raises(CompilerFault, match=complaint):
        verify_mesh(replace(local, ops=ops, tensors=tensors))


def chain(widths: tuple[int, ...], sides: tuple[int, ...]) -> Block:
    """x: d0 -> d1 -> ... -> last; `sides` are widths of detours from the dimension before the last, added at the end."""
    tokens = Dim("tokens", 2)
    dims = [Dim(f"d{i}", w) for i, w in enumerate(widths)]
    tensors, ops, inner = [Tensor("x", (tokens, dims[0]), DType.BF16, Role.INPUT)], [], Role.ACTIVATION

    def contract(name: str, source: str, old: Dim, new: Dim) -> str:
        weight = Tensor(f"w.{name}", (new, old), DType.BF16, Role.WEIGHT, name)
        tensors.extend((weight, Tensor(name, (tokens, new), DType.BF16, inner)))
        points = (tokens, new, old)
        ops.append(Op(f"{name}.op", Pattern.CONTRACT, points, (source, weight.name), (name,), (old.name,), 2))
        return name

    last = before = "x"
    for i, (old, new) in enumerate(pairwise(dims)):
        before, last = last, contract(f"t{i}", last, old, new)
    for i, width in enumerate(sides):
        middle = contract(f"m{i}", before, dims[-2], Dim(f"s{i}", width))
        side = contract(f"n{i}", middle, Dim(f"s{i}", width), dims[-1])
        tensors.append(Tensor(f"a{i}", (tokens, dims[-1]), DType.BF16, inner))
        ops.append(Op(f"a{i}.op", Pattern.MAP, (tokens, dims[-1]), (last, side), (f"a{i}",), linear=True))
        last = f"a{i}"
    return Block("chain", tuple(ops), tuple(tensors), ("x",), (last,))


def test_a_weight_that_two_ops_split_otherwise_is_stored_whole() -> None:
    """Was stored as its last reader splits it."""
    a, b, tokens = Dim("a", 6), Dim("b", 4), Dim("tokens", 2)
    w = Tensor("w", (b, a), DType.BF16, Role.WEIGHT, "w")
    values = [Tensor(n, (tokens, d), DType.BF16, Role.ACTIVATION) for n, d in (("x", a), ("p", b), ("q", b), ("s", b))]
    ops = [Op(f"{n}.op", Pattern.CONTRACT, (tokens, b, a), ("x", "w"), (n,), ("a",), 2) for n in ("p", "q")]
    add = Op("s.op", Pattern.MAP, (tokens, b), ("p", "q"), ("s",), linear=True)
    block = Block("chain", (*ops, add), (w, *values), ("x",), ("s",))
    alike = (Shard("chain", "p.op", "b", 2), Shard("chain", "q.op", "b", 2))
    local, _ = shard_block(block, alike, 4)
    assert local.tensor["w"].layout.splits == (Split("b", A(2, 1), 4, 2),)
    same_sums(block, local)
    local, _ = shard_block(block, (alike[0], Shard("chain", "q.op", "a", 2)), 4)
    assert local.tensor["w"].layout == Layout() and local.op["q.op"].splits == (Split("a", A(2, 1), 6, 3),)
    same_sums(block, local)


def compute(block: Block, given: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Every socket's values, each op on the slices its splits name; padding is zero."""
    held: list[dict[str, np.ndarray]] = [
        {n: slices(v, block.tensor[n].dims, block.tensor[n].layout.splits, s) for n, v in given.items()}
        for s in range(block.sockets)
    ]
    for op in block.ops:
        out = block.tensor[op.outputs[0]]
        if op.collective:
            for members in groups(op.collective.axes, block.sockets):
                parts = [held[s][op.inputs[0]] for s in members]
                axis = [d.name for d in out.dims].index(op.collective.dims[0]) if op.collective.dims else 0
                value = sum(parts) if not op.collective.dims else np.concatenate(parts, axis)
                value = value[tuple(slice(d.size) for d in out.dims)]
                for s in members:
                    held[s][out.name] = value
            continue
        for s in range(block.sockets):
            values = [slices(held[s][n], block.tensor[n].dims, op.splits, s, op) for n in op.inputs]
            held[s][out.name] = values[0] + values[1] if op.pattern is Pattern.MAP else values[0] @ values[1].T
    return held


def slices(
    value: np.ndarray, dims: tuple[Dim, ...], splits: tuple[Split, ...], s: int, op: Op | None = None
) -> np.ndarray:
    """The part of `value` that splits give socket `s`; of what is split already (as long as the op's dim) all."""
    for axis, dim in enumerate(dims):
        split = next((x for x in splits if x.dim == dim.name), None)
        if split and value.shape[axis] > split.local and (op is None or dim.size > op.size(dim.name)):
            first, end = split.span(s)
            value = np.moveaxis(np.moveaxis(value, axis, 0)[first:end], 0, axis)
            pad = [(0, split.local - (end - first)) if i == axis else (0, 0) for i in range(value.ndim)]
            value = np.pad(value, pad)
    return value


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_chains_of_sums_come_out_on_every_socket(data: st.DataObject) -> None:
    sizes = st.integers(4, 13)
    widths = tuple(data.draw(st.lists(sizes, min_size=2, max_size=4), label="widths"))
    block = chain(widths, tuple(data.draw(st.lists(sizes, max_size=3), label="sides")))
    sockets = data.draw(st.sampled_from((4, 6, 8, 12)), label="sockets")
    pairs = [(op.name, d.name) for op in block.ops for d in op.dims[1:]]
    picked = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=6, unique=True), label="shards")
    ways = st.sampled_from([w for w in (2, 3, 4) if sockets % w == 0])
    actions = tuple(Shard("chain", op, dim, data.draw(ways, label=f"{op} {dim}"), 1) for op, dim in picked)
    local, refusals = shard_block(block, actions, sockets)
    assume(not refusals)
    same_sums(block, local)


@pytest.mark.parametrize("sockets", [4, 8, 12])
def test_sums_that_cannot_be_over_the_same_sockets(sockets: int) -> None:
    """m0 goes from d1 to s0, both split, so that they take different digits; t1 sums over d1 and n0 over s0."""
    block = chain((4, 4, 4), (4,))
    picked = (("t1.op", "d1"), ("m0.op", "d1"), ("m0.op", "s0"), ("n0.op", "s0"))
    local, refusals = shard_block(block, tuple(Shard("chain", op, dim, 2) for op, dim in picked), sockets)
    assert not refusals
    found = {op.name: op.collective.axes for op in local.ops if op.collective}
    assert found == {"m0.all_reduce": (A(2, 1),), "t1.all_reduce": (A(2, 1),), "n0.all_reduce": (A(2, 2),)}
    same_sums(block, local)


def same_sums(block: Block, local: Block) -> None:
    verify_mesh(local)
    widths = [d.size for t in block.tensors for d in t.dims]
    rng = np.random.default_rng(sum(widths))
    names = ("x", *(t.name for t in block.weights))
    given = {n: rng.integers(-9, 9, [d.size for d in block.tensor[n].dims]) for n in names}
    (want,) = compute(block, given)
    for held in compute(local, given):
        np.testing.assert_array_equal(held[local.outputs[0]], want[block.outputs[0]])
