"""The ops of cross attention: a decoder's tokens read the encoder's output, whose keys and values are cached once."""

from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.core import add_core
from compiler.frontend.spec import Attention, Layer
from compiler.ir.graph import Op, Pattern, Phase, Role

_QUERY = "tokens kv_heads q_group head_dim"


def add_cross(b: BlockBuilder, layer: Layer, phase: Phase) -> tuple[str, ...]:
    """Append the cross attention of `layer`, from `attn.y` to `cross.y`; returns the cache tensors given.

    Prefill projects the encoder's output `memory` and caches the rows; decode reads them.
    """
    assert layer.cross is not None
    source = "attn.y"
    if layer.pre_norm:
        b.norm("cross.norm", source, "cross.normed", "tokens hidden", layer.norm)
        source = "cross.normed"
    query = Weight(b.names.module("cross.q_proj"), layer.cross.q_bias)
    row = "batch context_cross kv_heads head_dim"
    caches = ("cross.k_cache", "cross.v_cache")
    if phase is Phase.DECODE:
        for cache in caches:
            b.enter(cache, row, Role.KV_CACHE)
        b.project("cross.q_proj", (source,), "cross.q", f"{_QUERY} <- hidden", query)
    else:
        b.enter("memory", "batch context_cross hidden")
        b.project("cross.q_proj", (source,), "cross.q", f"{_QUERY} <- hidden", query)
        _rows(b, layer.cross, row, caches)
    add_core(
        b,
        ("kv_heads q_group", "head_dim", "head_dim"),
        (("cross.q", caches[0]), caches[1:], ()),
        part="cross",
        context="context_cross",
    )
    out = Weight(b.names.module("cross.o_proj"), layer.cross.o_bias)
    b.project("cross.o_proj", ("cross.mixed",), "cross.out", "tokens hidden <- kv_heads q_group head_dim", out)
    b.pointwise(
        "cross.residual", ("attn.y", "cross.out"), "cross.sum" if layer.sum_norm else "cross.y", "tokens hidden"
    )
    if layer.sum_norm:
        b.norm("cross.sum_norm", "cross.sum", "cross.y", "tokens hidden", layer.norm)
    return () if phase is Phase.DECODE else caches


def _rows(b: BlockBuilder, cross: Attention, row: str, caches: tuple[str, str]) -> None:
    for name, bias in (("k", cross.k_bias), ("v", cross.v_bias)):
        weight = Weight(b.names.module(f"cross.{name}_proj"), bias)
        b.project(f"cross.{name}_proj", ("memory",), f"cross.{name}", f"{row} <- hidden", weight)
    points, made = b.dims(row), ("cross.k", "cross.v")
    append = Op("cross.kv_append", Pattern.SCATTER, points, made, caches, flops_per_point=0)
    b.emit(append, row, row, role=Role.KV_CACHE)
