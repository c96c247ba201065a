"""Kernels of attention: the cache and who sees which of its rows, softmax in one pass or in several, latent rows."""

from collections.abc import Mapping
from typing import Any

import torch

from compiler.ir.graph import Phase
from simulator.functional.dense import beside
from simulator.functional.named import Named, product
from simulator.functional.tile import Tile
from simulator.functional.weights import filled

Values = Mapping[str, Named]
#: What a row holds that nobody has written: read by mistake, it is seen in every result.
UNWRITTEN = 1.0e4


def append(given: Values, at: Tile) -> dict[str, Named]:
    """New rows: in decode as they are, in prefill at the place of their tokens in the cache."""
    rows = list(given.values())
    if len(at.op.outputs) == 1 and len(rows) == 2:  # a latent and the rotary key that all heads share
        rows = [beside(given, "latent_dim")]
    made = {}
    for name, row in zip(at.op.outputs, rows, strict=True):
        made[name] = row if at.phase is Phase.DECODE else _placed(name, row, at)
    return made


def _placed(name: str, row: Named, at: Tile) -> Named:
    """The cache `name` with the tile's rows written into it."""
    cache = at.now[name]
    flat = _flat(cache)
    inner = tuple(d for d in flat.dims if d not in ("batch", "rows"))
    data = flat.over(("batch", "rows", *inner)).clone()
    token, place = torch.nonzero(at.positions[:, None] == _numbers(cache, at), as_tuple=True)
    data[at.sequences[token], place] = row.over(("tokens", *inner))[token]
    return _unflat(Named(("batch", "rows", *inner), data), cache)


def _flat(cache: Named) -> Named:
    """The rows of a cache in one dimension, split or not."""
    if "splits" in cache.dims:
        return cache.joined(("splits", "context"), "rows")
    return Named(tuple("rows" if d == "context" else d for d in cache.dims), cache.data)


def _unflat(flat: Named, cache: Named) -> Named:
    sizes: dict[str, int] = {d: cache.size(d) for d in ("splits", "context") if d in cache.dims}
    return flat.split("rows", sizes)


def _numbers(cache: Named, at: Tile) -> Any:
    """Which row of its sequence each flat row of `cache` is, on this socket."""
    split = torch.arange(at.start("splits"), at.start("splits") + cache.size("splits"))
    row = torch.arange(at.start("context"), at.start("context") + cache.size("context"))
    return (split[:, None] * at.whole("context", cache.size("context")) + row).reshape(-1)


def _with_new(cache: Named, new: Named | None, at: Tile) -> Named:
    """Flat rows of a cache; in decode the last one is the token's own."""
    flat = _flat(cache)
    if new is None:
        return flat
    inner = tuple(d for d in flat.dims if d not in ("batch", "rows"))
    data = flat.over(("batch", "rows", *inner)).clone()
    for own in torch.nonzero(_numbers(cache, at) == at.rows - 1).flatten():
        data[at.sequences, own] = new.over(("tokens", *inner))
    return Named(("batch", "rows", *inner), data)


def expand(given: Values, at: Tile) -> dict[str, Named]:
    """Keys and values of all heads out of latents (DeepSeek-V2 report, equations 9 to 11)."""
    ((_, weight),) = at.weights(given).items()
    flowing = at.flowing(given)
    key_name, value_name = at.op.outputs
    lora, start = weight.size("kv_lora"), at.start("kv_lora")
    behind = at.whole("kv_lora", lora)
    if at.phase is Phase.DECODE:
        cache, *new = flowing.values()
        rows = _with_new(cache, new[0] if new else None, at)
        latent = Named((*rows.dims[:-1], "kv_lora"), rows.data[..., start : start + lora])
        shared = Named((*rows.dims[:-1], "rope"), rows.data[..., behind:])
    else:
        latent, shared = flowing.values()
    both = product((latent, weight), (*latent.dims[:-1], "heads", "kv_b"))
    nope = both.size("kv_b") - at.tensors[value_name].dims[-1].size
    lead = both.dims[:-1]
    turned = shared.over((*lead, "rope")).expand(*both.data.shape[:-1], -1) * at.first  # not summed: from one socket
    made = {
        key_name: Named((*lead, "qk_dim"), torch.cat((both.data[..., :nope], turned), -1)),
        value_name: Named((*lead, "v_dim"), both.data[..., nope:]),
    }
    if at.phase is Phase.DECODE:
        return {n: _unflat(v, cache) for n, v in made.items()}
    return {n: _placed(n, v, at) for n, v in made.items()}


def _seen(number: Any, at: Tile) -> Any:
    """(tokens, rows): which rows, of these numbers in their sequence, each token of the tile attends to."""
    if at.phase is Phase.DECODE:
        return (number < at.rows).expand(len(at.positions), len(number))
    seen = (number <= at.positions[:, None]) & (number < at.rows)
    return seen if at.numbers.window is None else seen & (number > at.positions[:, None] - at.numbers.window)


def _queries(flowing: Values, at: Tile) -> Named:
    query = {n: v for n, v in flowing.items() if n.startswith("attn.q")}
    if len(query) == 1:
        return next(iter(query.values()))
    return beside(query, "latent_dim")


def _rows(flowing: Values, prefixes: tuple[str, ...], at: Tile) -> Named:
    """(tokens, rows, ..., element): the rows that the tile's tokens may read, their own among them."""
    found = {n: v for n, v in flowing.items() if n.startswith(prefixes)}
    cache = next(v for n, v in found.items() if "context" in v.dims)
    new = next((v for v in found.values() if "context" not in v.dims), None)
    flat = _with_new(cache, new, at)
    inner = tuple(d for d in flat.dims if d not in ("batch", "rows"))
    return Named(("tokens", "rows", *inner), flat.over(("batch", "rows", *inner))[at.sequences])


def _keys(flowing: Values, at: Tile) -> Named:
    return _rows(flowing, ("attn.k",) if any(n.startswith("attn.k") for n in flowing) else ("attn.latent",), at)


def _values(flowing: Values, at: Tile, width: int) -> Named:
    """Rows of values; of latents, the part that is no rotary key."""
    own = any(n.startswith("attn.v") for n in flowing)
    rows = _rows(flowing, ("attn.v",) if own else ("attn.latent",), at)
    start = at.start("kv_lora")
    return rows if own else Named((*rows.dims[:-1], "kv_lora"), rows.data[..., start : start + width])


def _dotted(query: Named, keys: Named, at: Tile) -> Named:
    """Scaled scores, (tokens, heads ..., rows); of a split key the share of this socket."""
    element, size = keys.dims[-1], keys.size(keys.dims[-1])
    query = Named((*query.dims[:-1], element), query.data)
    if query.size(element) != size:
        first = min(at.start(element), query.size(element))
        query = filled(query.cut(element, first, min(first + size, query.size(element))), element, size)
    query = Named((*query.dims[:-1], "element"), query.data)
    keys = Named((*keys.dims[:-1], "element"), keys.data)
    out = product((query, keys), (*query.dims[:-1], "rows"))
    return Named(out.dims, out.data * at.numbers.score_scale)


def _capped(table: Named, at: Tile) -> Named:
    """Scores through the soft cap, which is part of the softmax: partial sums of scores are none yet."""
    cap = at.numbers.softcap
    return Named(table.dims, cap * torch.tanh(table.data / cap)) if cap else table


def scores(given: Values, at: Tile) -> dict[str, Named]:
    flowing = at.flowing(given)
    out = _dotted(_queries(flowing, at), _keys(flowing, at), at)
    return {at.op.outputs[0]: Named((*out.dims[:-1], "context"), out.data)}


def softmax(given: Values, at: Tile) -> dict[str, Named]:
    """Over the rows that a token sees; a sink takes part in the sum only."""
    table = _capped(next(iter(at.flowing(given).values())), at)
    seen = Named(("tokens", "context"), _seen(torch.arange(table.size("context")), at))
    data = table.data.masked_fill(~seen.over(table.dims), -torch.inf)
    for sink in at.weights(given).values():
        column = sink.over(table.dims).expand(*data.shape[:-1], 1)
        return {at.op.outputs[0]: Named(table.dims, torch.softmax(torch.cat((data, column), -1), -1)[..., :-1])}
    return {at.op.outputs[0]: Named(table.dims, torch.softmax(data, -1))}


def values(given: Values, at: Tile) -> dict[str, Named]:
    flowing = at.flowing(given)
    (name,) = at.op.outputs
    (last,) = at.tensors[name].dims[-1:]
    probs = next(v for n, v in flowing.items() if n.startswith("attn.probs"))
    probs = Named((*probs.dims[:-1], "rows"), probs.data)
    rows = _values({n: v for n, v in flowing.items() if not n.startswith("attn.probs")}, at, last.size)
    out = product((probs, rows), (*probs.dims[:-1], rows.dims[-1]))
    return {name: Named((*out.dims[:-1], last.name), out.data)}


def core(given: Values, at: Tile) -> dict[str, Named]:
    """Softmax in one pass, `step` rows at a time, with a running maximum and sum; one pass for each split."""
    flowing, (name,) = at.flowing(given), at.op.outputs
    out = at.tensors[name]
    split = "splits" in [d.name for d in at.op.dims]
    width = out.dims[-1].size - 2 * split
    keys, rows = _keys(flowing, at), _values(flowing, at, width)
    table = _capped(_dotted(_queries(flowing, at), keys, at), at)
    count = at.op.size("splits")
    length = table.size("rows") // count
    first = at.start("splits") * length
    seen = _seen(torch.arange(first, first + table.size("rows")), at)
    sinks = list(at.weights(given).values())
    made = []
    for n in range(count):
        sink = sinks[0].over(table.dims) if sinks and at.start("splits") + n == 0 else None
        span = (n * length, (n + 1) * length)
        made.append(_streamed(table.cut("rows", *span), rows.cut("rows", *span), seen[:, slice(*span)], sink, at.step))
    if not split:
        total = made[0]
        return {name: Named((*total.dims[:-1], out.dims[-1].name), total.data[..., :-2] / total.data[..., -1:])}
    dims = ("splits", *made[0].dims[:-1], "partial")
    return {name: Named(dims, torch.stack([m.data for m in made]))}


def _streamed(table: Named, rows: Named, seen: Any, sink: Any, step: int) -> Named:
    """(..., element + 2): weighed values not yet divided, the maximum, the sum."""
    lead = table.dims[:-1]
    mask = Named(("tokens", "rows"), seen).over(table.dims)
    shape = table.data.shape[:-1]
    top = torch.full((*shape, 1), -torch.inf) if sink is None else sink.expand(*shape, 1).clone()
    total = torch.zeros(*shape, 1) if sink is None else torch.ones(*shape, 1)
    mixed = torch.zeros(*shape, rows.data.shape[-1])
    for begin in range(0, table.size("rows"), step):
        end = min(begin + step, table.size("rows"))
        part = table.data[..., begin:end].masked_fill(~mask[..., begin:end], -torch.inf)
        above = torch.maximum(top, part.amax(-1, keepdim=True))
        safe = above.masked_fill(above == -torch.inf, 0.0)
        weights, shrink = torch.exp(part - safe), torch.exp(top - safe)
        added = product((Named((*lead, "rows"), weights), rows.cut("rows", begin, end)), (*lead, rows.dims[-1]))
        mixed = mixed * shrink + added.data
        total = total * shrink + weights.sum(-1, keepdim=True)
        top = above
    return Named((*lead, "partial"), torch.cat((mixed, top, total), -1))


def reduce_splits(given: Values, at: Tile) -> dict[str, Named]:
    """One softmax out of partial ones, each with its maximum and sum."""
    (partial,) = given.values()
    (name,) = at.op.outputs
    dims = ("splits", *(d for d in partial.dims if d != "splits"))
    data = partial.over(dims)
    mixed, top, total = data[..., :-2], data[..., -2:-1], data[..., -1:]
    weight = torch.exp(top - top.amax(0, keepdim=True))
    out = (mixed * weight).sum(0) / (total * weight).sum(0)
    return {name: Named((*dims[1:-1], at.tensors[name].dims[-1].name), out)}
