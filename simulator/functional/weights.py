"""A socket's share of a weight: of the model's own tensors, put together as a rewrite has them, then sliced."""

from collections.abc import Callable
from typing import Any

import torch

from compiler.ir.graph import Tensor
from compiler.ir.mesh import Split
from simulator.functional.named import Named, side_by_side

#: Weights that merges make, out of the ones they replace: the dimension that has their rows side by side.
MERGED = {
    "attn.qkv_proj": (("attn.q_proj", "attn.k_proj", "attn.v_proj"), "qkv_rows", "q_group"),
    "ffn.gate_up_proj": (("ffn.gate_proj", "ffn.up_proj"), "gate_up", ""),
    "ffn.shared_gate_up_proj": (("ffn.shared_gate_proj", "ffn.shared_up_proj"), "gate_up", ""),
    "ffn.experts_gate_up": (("ffn.experts_gate", "ffn.experts_up"), "gate_up", ""),
}
#: Weights that mla_absorb takes out of kv_b_proj, (heads, nope + v_dim, kv_lora).
ABSORBED = ("attn.k_absorb", "attn.v_absorb")


def whole(tensor: Tensor, own: Callable[[str], Named]) -> Named:
    """The whole of `tensor`. own: a weight of the model's graph by name."""
    prefix, _, role = tensor.name.partition(".")
    if role in MERGED:
        names, dim, inner = MERGED[role]
        rows = []
        for name in names:
            part = own(f"{prefix}.{name}")
            if inner and inner in part.dims:
                rows.append(Named(tuple(dim if d == inner else d for d in part.dims), part.data))
            else:
                at = next((i for i, d in enumerate(part.dims) if d not in ("experts", "kv_heads")), len(part.dims))
                rows.append(Named((*part.dims[:at], dim, *part.dims[at:]), part.data.unsqueeze(at)))
        return side_by_side(rows, dim)
    if role in ABSORBED:
        both = own("w.attn.kv_b_proj")
        name, split = tensor.dims[1].name, tensor.layout.split(tensor.dims[1].name)
        count, size = split.whole if split else tensor.dims[1].size, both.size("kv_b")
        start = 0 if role == ABSORBED[0] else size - count
        part = both.cut("kv_b", start, start + count)
        return Named(tuple(name if d == "kv_b" else d for d in part.dims), part.data)
    return own(tensor.name)


def share(value: Named, splits: tuple[Split, ...], socket: int) -> Named:
    """What `socket` holds of a whole value; padding is zero."""
    for split in splits:
        if split.dim in value.dims:
            value = cut(value, split, socket)
    return value


def cut(value: Named, split: Split, socket: int) -> Named:
    """The socket's elements along one split, filled up to its local size."""
    first, last = split.span(socket)
    part = value.cut(split.dim, first, last)
    return filled(part, split.dim, split.local)


def filled(value: Named, dim: str, size: int, with_: float = 0.0) -> Named:
    """`value` with further elements along `dim`, up to `size`."""
    missing = size - value.size(dim)
    if not missing:
        return value
    at = value.dims.index(dim)
    shape: list[Any] = list(value.data.shape)
    shape[at] = missing
    return Named(value.dims, torch.cat((value.data, torch.full(shape, with_, dtype=value.data.dtype)), at))
