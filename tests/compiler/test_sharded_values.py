"""What the sockets compute together equals what one socket computes, on real numbers.

A small interpreter runs a block's ops on float64 tensors with named dimensions, once whole and once on every simulated
socket. Contractions are einsums, norms and softmax are themselves, element-wise maps are given by name; a collective
sums or concatenates what its sockets hold. A missing or misplaced collective gives other numbers.
"""

from collections.abc import Callable
from itertools import product

import pytest
import torch

from compiler.ir.actions import Shard
from compiler.ir.graph import Block, Graph, Op, Role
from compiler.ir.mesh import CollectiveKind
from compiler.ir.text import parse_schedule
from compiler.passes.shard import shard_block

Make = Callable[..., Graph]
Values = dict[str, torch.Tensor]
Place = dict[str, int]  # which part of each split dimension a socket holds


def names(block: Block, tensor: str) -> list[str]:
    return [d.name for d in block.tensor[tensor].dims]


def einsum(block: Block, op: Op, values: Values, operands: list[str]) -> torch.Tensor:
    """Product over the op's dimensions; `batch` of a cache is the token of a decode step."""
    letters = {
        d: chr(97 + i)
        for i, d in enumerate(dict.fromkeys(n for t in (*operands, *op.outputs) for n in names(block, t)))
    }
    letters["batch"] = letters.get("tokens", "")
    terms = ["".join(letters[n] for n in names(block, t)) for t in operands]
    return torch.einsum(
        f"{','.join(terms)}->{''.join(letters[n] for n in names(block, op.outputs[0]))}", *(values[t] for t in operands)
    )


def execute(block: Block, op: Op, v: Values) -> dict[str, torch.Tensor]:
    data = [
        i
        for i in op.inputs
        if block.tensor[i].role is not Role.KV_CACHE or any(n == "context" for n in names(block, i))
    ]
    kind = op.name.split(".")[1]
    if kind == "norm":
        return {op.outputs[0]: v[data[0]] / v[data[0]].norm(dim=-1, keepdim=True) * v[data[1]]}
    if kind == "softmax":
        return {op.outputs[0]: torch.softmax(v[data[0]], dim=-1)}
    if kind == "residual":
        return {op.outputs[0]: v[data[0]] + v[data[1]]}
    if kind == "act":
        return {op.outputs[0]: torch.nn.functional.silu(v[data[0]]) * v[data[1]]}
    if kind in ("q_rope", "k_rope"):
        return {op.outputs[0]: v[data[0]].flip(-1)}  # mixes a row from end to end, as rotation does
    if kind == "kv_append":
        return {o: v[i] for o, i in zip(op.outputs, op.inputs, strict=True)}
    return {op.outputs[0]: einsum(block, op, v, data)}


def cut(tensor: torch.Tensor, block: Block, name: str, sizes: dict[str, int], place: Place) -> torch.Tensor:
    """The part of a whole tensor that a socket holds or reads."""
    for axis, dim in enumerate(names(block, name)):
        local = sizes.get(dim, tensor.shape[axis])
        if local < tensor.shape[axis]:
            tensor = tensor.narrow(axis, place[dim] * local, local)
    return tensor


def on_sockets(block: Block, splits: dict[str, int], inputs: Values, weights: Values) -> list[Values]:
    """Every socket's values after the block. splits: ways of each split dimension; a socket is one part of each."""
    places = [dict(zip(splits, at, strict=True)) for at in product(*(range(w) for w in splits.values()))]
    held: list[Values] = []
    for place in places:
        mine = {}
        for name, whole in {**inputs, **weights}.items():
            if name in block.tensor:
                mine[name] = cut(whole, block, name, {d.name: d.size for d in block.tensor[name].dims}, place)
        held.append(mine)
    for op in block.ops:
        if op.collective is None:
            for place, mine in zip(places, held, strict=True):
                sizes = {d.name: d.size for d in op.dims}
                view = {i: cut(mine[i], block, i, sizes, place) for i in op.inputs}
                mine.update(execute(block, op, view))
            continue
        source, result = op.inputs[0], op.outputs[0]
        before = [mine[source] for mine in held]
        for place, mine in zip(places, held, strict=True):
            mine[result] = collect(block, op, before, places, place)
    return held


def collect(block: Block, op: Op, before: list[torch.Tensor], places: list[Place], place: Place) -> torch.Tensor:
    assert op.collective is not None
    if op.collective.kind is CollectiveKind.ALL_REDUCE:
        return torch.stack(before).sum(0) / (len(before) / op.collective.ways)
    source, result = block.tensor[op.inputs[0]], block.tensor[op.outputs[0]]
    (axis,) = [i for i, (a, b) in enumerate(zip(source.dims, result.dims, strict=True)) if a != b]
    dim = source.dims[axis].name
    parts = {p[dim]: t for t, p in zip(before, places, strict=True) if all(p[k] == place[k] for k in p if k != dim)}
    return torch.cat([parts[i] for i in sorted(parts)], dim=axis)


@pytest.mark.parametrize(
    "text",
    [
        "shard gqa_dense attn kv_heads ways=4\nshard gqa_dense ffn ffn ways=4",
        "shard gqa_dense attn kv_heads ways=2",
        "shard gqa_dense attn.q_proj kv_heads ways=4",
        "shard gqa_dense attn.o_proj kv_heads ways=4",
        "shard gqa_dense attn q_group ways=2",
        "shard gqa_dense attn.k_proj head_dim ways=2",
        "shard gqa_dense attn.values head_dim ways=2",
        "shard gqa_dense attn head_dim ways=2",
        "shard gqa_dense ffn hidden ways=4",
        "shard gqa_dense ffn.gate_proj ffn ways=4",
        "shard gqa_dense ffn.down_proj ffn ways=2",
        "shard gqa_dense ffn.act ffn ways=2\nshard gqa_dense ffn.down_proj hidden ways=4",
        "shard gqa_dense attn kv_heads ways=2\nshard gqa_dense attn.q_proj q_group ways=2\n"
        "shard gqa_dense attn.o_proj q_group ways=2",
    ],
)  # fmt: skip
def test_sockets_together_compute_what_one_computes(graph: Make, text: str) -> None:
    block = graph(batch=3, context=5).block["gqa_dense"]
    actions = tuple(a for a in parse_schedule(text).actions if isinstance(a, Shard))
    splits: dict[str, int] = {}
    for a in actions:
        assert splits.setdefault(a.dim, int(a.ways)) == a.ways  # type: ignore[arg-type]
    local, refusals = shard_block(block, actions, 4)
    assert not refusals
    generator = torch.Generator().manual_seed(0)

    def random(name: str) -> torch.Tensor:
        shape = [d.size for d in block.tensor[name].dims]
        return torch.randn(shape, generator=generator, dtype=torch.float64) * 0.1

    weights = {t.name: random(t.name) for t in block.weights}
    inputs = {name: random(name) for name in block.inputs}
    (whole,) = on_sockets(block, {}, inputs, weights)
    out = next(n for n in local.outputs if local.tensor[n].role is not Role.KV_CACHE)
    for mine in on_sockets(local, splits, inputs, weights):
        torch.testing.assert_close(mine[out], whole["y"], rtol=1e-9, atol=1e-9)
