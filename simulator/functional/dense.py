"""Kernels of what has no memory: projections, norms, activations, sums, rotations, tables."""

from collections.abc import Mapping
from typing import Any

import torch

from simulator.functional.named import Named, product, side_by_side
from simulator.functional.numbers import NormNumbers, Unmeant
from simulator.functional.tile import Tile

Values = Mapping[str, Named]
#: Dimensions a merge made, whose elements are outputs of their own.
MERGED = ("qkv_rows", "gate_up")


def contract(given: Values, at: Tile) -> dict[str, Named]:
    """The sum of products over the reduced dimensions, plus a bias."""
    factors = [v for n, v in given.items() if not _is_bias(n)]
    dims = tuple(d.name for d in at.op.dims if d.name not in at.op.reduced)
    out = product(factors, dims)
    if out.dims != dims:
        raise Unmeant(f"{at.op.name} gives {dims} out of {[v.dims for v in factors]}")
    for bias in (v for n, v in given.items() if _is_bias(n) and at.first):
        out = Named(dims, out.data + bias.over(dims))
    return parts(out, at)


def parts(out: Named, at: Tile) -> dict[str, Named]:
    """The outputs of a contraction, of a merged one each its rows."""
    names = at.op.outputs
    if len(names) == 1:
        return {names[0]: out}
    merged = next((d for d in MERGED if d in out.dims), "")
    if not merged:
        raise Unmeant(f"{at.op.name} gives {len(names)} outputs")
    made, start = {}, 0
    for name in names:
        inner = [d for d in at.tensors[name].dims if d.name not in out.dims]
        size = inner[0].size if inner else 1
        part = out.cut(merged, start, start + size)
        made[name] = part.split(merged, {inner[0].name: size} if inner else {})
        start += size
    return made


def _is_bias(name: str) -> bool:
    return name.startswith("b.")


def norm(given: Values, at: Tile) -> dict[str, Named]:
    """Root mean square or layer norm over the sequential dimensions."""
    (source,) = at.flowing(given).values()
    over, numbers = at.op.sequential, at.numbers.norms.get(at.op.name)
    if numbers is None:
        raise Unmeant(f"no numbers of the norm {at.op.name}")
    if over[-1] not in source.dims:  # the front of a row that holds more (a latent with its rotary key)
        last = source.dims[-1]
        front = source.cut(last, 0, at.op.size(over[-1]))
        source = Named((*source.dims[:-1], over[-1]), front.data)
    data = _normal(source.data, [source.dims.index(d) for d in over], numbers)
    for name, weight in at.weights(given).items():
        there = weight.over(source.dims)
        data = data + there if _is_bias(name) else data * (there + numbers.offset)
    return {at.op.outputs[0]: Named(source.dims, data)}


def _normal(data: Any, axes: list[int], numbers: NormNumbers) -> Any:
    if numbers.centred:
        data = data - data.mean(axes, keepdim=True)
    squares = data * data
    spread = squares.sum(axes, keepdim=True) if numbers.summed else squares.mean(axes, keepdim=True)
    return data * torch.rsqrt(spread + numbers.eps)


def activate(given: Values, at: Tile) -> dict[str, Named]:
    """The activation of a feed-forward part, of one tensor or of gate and up."""
    if at.numbers.act is None:
        raise Unmeant(f"no activation for {at.op.name}")
    values = list(given.values())
    dims = values[0].dims
    return {at.op.outputs[0]: Named(dims, at.numbers.act(*(v.over(dims) for v in values)))}


def sigmoid(given: Values, at: Tile) -> dict[str, Named]:
    (source,) = given.values()
    return {at.op.outputs[0]: Named(source.dims, torch.sigmoid(source.data))}


def gated(given: Values, at: Tile) -> dict[str, Named]:
    """sigmoid(gate) * value."""
    gate, value = given.values()
    return {at.op.outputs[0]: Named(value.dims, torch.sigmoid(gate.over(value.dims)) * value.data)}


def add(given: Values, at: Tile) -> dict[str, Named]:
    """The sum."""
    first, *more = given.values()
    data = first.data
    for value in more:
        data = data + value.over(first.dims)
    return {at.op.outputs[0]: Named(first.dims, data)}


def embed(given: Values, at: Tile) -> dict[str, Named]:
    """Rows of a table by id."""
    ids, table = given.values()
    row = tuple(d for d in table.dims if d != "vocab")
    data = table.over(("vocab", *row))[ids.data.long()] * at.numbers.scale
    return {at.op.outputs[0]: Named((*ids.dims, *row), data)}


def soft_cap(given: Values, at: Tile) -> dict[str, Named]:
    (source,) = given.values()
    cap = at.numbers.softcap
    return {at.op.outputs[0]: Named(source.dims, cap * torch.tanh(source.data / cap))}


def argmax(given: Values, at: Tile) -> dict[str, Named]:
    (source,) = given.values()
    axis = source.dims.index(at.op.reduced[0])
    left = tuple(d for d in source.dims if d != at.op.reduced[0])
    return {at.op.outputs[0]: Named(left, source.data.argmax(axis))}


def rotate(given: Values, at: Tile) -> dict[str, Named]:
    """Rotary embedding of a row, or of its last part; what is not rotated is an output of its own (MLA)."""
    (source,) = given.values()
    rope, names = at.numbers.rope, at.op.outputs
    if rope is None:
        raise Unmeant(f"no rotary table for {at.op.name}")
    row, width = source.dims[-1], at.tensors[names[-1]].dims[-1]
    if len(names) == 2:
        front = source.size(row) - width.size
        rest = source.cut(row, 0, front)
        turned = _turned(source.cut(row, front, front + width.size), at)
        first = at.tensors[names[0]].dims[-1].name
        return {
            names[0]: Named((*rest.dims[:-1], first), rest.data),
            names[1]: Named((*turned.dims[:-1], width.name), turned.data),
        }
    size = source.size(row)
    turned = _turned(source.cut(row, size - width.size, size), at)
    return {names[0]: Named((*turned.dims[:-1], width.name), turned.data)}


def _turned(source: Named, at: Tile) -> Named:
    """The first `rotated` elements of the last dimension turned by the position of their token."""
    rope = at.numbers.rope
    assert rope is not None
    width = rope.cos.shape[-1]
    cos, sin = (Named(("tokens", source.dims[-1]), table[at.positions]) for table in (rope.cos, rope.sin))
    x, rest = source.data[..., :width], source.data[..., width:]
    half = (
        torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        if rope.paired
        else torch.cat((-x[..., width // 2 :], x[..., : width // 2]), -1)
    )
    turned = x * cos.over(source.dims) + half * sin.over(source.dims)
    return Named(source.dims, torch.cat((turned, rest), -1))


def beside(given: Values, dim: str) -> Named:
    """Values one after another along their last dimension, which is called `dim`."""
    renamed = [Named((*v.dims[:-1], dim), v.data) for v in given.values()]
    longest = max(renamed, key=lambda v: len(v.dims))
    return side_by_side([Named(longest.dims, v.over(longest.dims)) for v in renamed], dim)
