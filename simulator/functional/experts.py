"""Kernels of routed experts: which ones a token takes, their work expert by expert and tile by tile, the sum."""

from collections.abc import Mapping
from typing import Any

import torch

from simulator.functional.dense import parts
from simulator.functional.named import Named, product
from simulator.functional.numbers import Gates, Unmeant
from simulator.functional.tile import Tile

Values = Mapping[str, Named]
#: Routes are (tokens, slots, pair): the number of an expert, and its gate.
ROUTES = ("tokens", "slots", "pair")


def choose(given: Values, at: Tile) -> dict[str, Named]:
    """The experts of each token and their gates."""
    (logits,) = at.flowing(given).values()
    gates = at.numbers.gates
    if gates is None:
        raise Unmeant(f"no router numbers for {at.op.name}")
    index, weight = routed(logits.over(("tokens", "experts")), gates, *at.weights(given).values())
    return {at.op.outputs[0]: Named(ROUTES, torch.stack((index.to(weight.dtype), weight), -1))}


def routed(logits: Any, gates: Gates, *added: Named) -> tuple[Any, Any]:
    """(tokens, slots) experts and gates out of (tokens, experts) scores."""
    if gates.function == "chosen":
        top, index = torch.topk(logits, gates.top_k)
        return index, torch.softmax(top, -1)
    points = torch.sigmoid(logits) if gates.function == "sigmoid" else torch.softmax(logits, -1)
    chosen = points if gates.correction is None else points + gates.correction
    for own in added:
        chosen = chosen + own.data
    if gates.groups > 1:
        chosen = _in_best_groups(chosen, gates)
    index = torch.topk(chosen, gates.top_k).indices
    weight = points.gather(-1, index)
    if gates.normalise:
        weight = weight / (weight.sum(-1, keepdim=True) + gates.epsilon)
    return index, weight * gates.scale


def _in_best_groups(points: Any, gates: Gates) -> Any:
    """Scores, those outside the best groups 0 (DeepSeek-V3 report, section 2.1.2)."""
    grouped = points.reshape(len(points), gates.groups, -1)
    worth = grouped.topk(2, -1).values.sum(-1) if gates.pairs else grouped.amax(-1)
    best = torch.topk(worth, gates.top_groups).indices
    keep = torch.zeros_like(worth).scatter_(1, best, 1.0).bool()
    return grouped.masked_fill(
        ~keep[..., None], 0.0 if gates.pairs or gates.function == "softmax" else -torch.inf
    ).flatten(1)


def project(given: Values, at: Tile) -> dict[str, Named]:
    """Each token through the weights of its experts, those that this socket has; nothing for the others."""
    flowing = at.flowing(given)
    routes = next(v for v in flowing.values() if v.dims == ROUTES)
    source = next(v for v in flowing.values() if v.dims != ROUTES)
    weight = next(v for n, v in given.items() if n.startswith("w."))
    bias = next((v for n, v in given.items() if n.startswith("b.")), None)
    index = routes.data[..., 0].long() - at.start("experts")
    kept = tuple(d for d in weight.dims if d not in ("experts", *at.op.reduced))
    out = torch.zeros(*index.shape, *(weight.size(d) for d in kept))
    for expert in torch.unique(index).tolist():
        if not 0 <= expert < weight.size("experts"):
            continue
        tokens, slots = torch.nonzero(index == expert, as_tuple=True)
        for begin in range(0, len(tokens), at.expert_rows):  # a loop tile of the expert
            t, s = tokens[begin : begin + at.expert_rows], slots[begin : begin + at.expert_rows]
            rows = source.over(("tokens", *(("slots",) if "slots" in source.dims else ()), *at.op.reduced))
            picked = Named(("rows", *at.op.reduced), rows[t, s] if "slots" in source.dims else rows[t])
            matrix = Named(weight.dims, weight.data).cut("experts", expert, expert + 1).split("experts", {})
            made = product((picked, matrix), ("rows", *kept)).data
            if bias is not None and at.first:
                made = made + bias.cut("experts", expert, expert + 1).split("experts", {}).over(kept)
            out[t, s] = made
    return parts(Named(("tokens", "slots", *kept), out), at)


def combine(given: Values, at: Tile) -> dict[str, Named]:
    """The sum of what the experts give, weighed by their gates."""
    routes = next(v for v in given.values() if v.dims == ROUTES)
    made = next(v for v in given.values() if v.dims != ROUTES)
    gates = Named(("tokens", "slots"), routes.data[..., 1])
    return {at.op.outputs[0]: product((made, gates), tuple(d for d in made.dims if d != "slots"))}
