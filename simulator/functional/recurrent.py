"""Kernels of mixers without a softmax: convolutions, gates, and recurrences token by token."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import silu, softplus

from compiler.ir.graph import Role
from simulator.functional.named import Named
from simulator.functional.numbers import Unmeant
from simulator.functional.tile import Tile

Values = Mapping[str, Named]


def _state(given: Values, at: Tile, name: str) -> Named:
    """The state before the tile: that which enters (decode), or the one the tiles before left."""
    for own, value in given.items():
        if at.tensors[own].role is Role.STATE:
            return value
    return at.now[name]


def convolve(given: Values, at: Tile) -> dict[str, Named]:
    """A causal convolution of each channel along the tokens of its sequence; the last inputs are the next state."""
    source = next(v for n, v in at.flowing(given).items() if at.tensors[n].role is not Role.STATE)
    weight = next(v for n, v in given.items() if n.startswith("w."))
    bias = next((v for n, v in given.items() if n.startswith("b.")), None)
    channels = tuple(d for d in weight.dims if d != "kernel")
    out_name, state_name = at.op.outputs
    state = _state(given, at, state_name)
    rows, taps = source.over(("tokens", *channels)), state.over(("batch", *channels, "taps")).clone()
    kernel, made = weight.over((*channels, "kernel")), torch.empty_like(rows)
    for t in range(len(rows)):
        b = int(at.sequences[t])
        window = torch.cat((taps[b], rows[t][..., None]), -1)
        made[t] = (window * kernel).sum(-1)
        taps[b] = window[..., 1:]
    if bias is not None:
        made = made + bias.over(("tokens", *channels))
    return {out_name: Named(("tokens", *channels), made), state_name: Named(("batch", *channels, "taps"), taps)}


def conv_act(given: Values, at: Tile) -> dict[str, Named]:
    (source,) = given.values()
    return {at.op.outputs[0]: Named(source.dims, silu(source.data))}


def gates(given: Values, at: Tile) -> dict[str, Named]:
    """step = softplus(dt + bias), decay = exp(-exp(A) step); of a delta rule the decay alone."""
    (source,) = at.flowing(given).values()
    rate, bias = (at.weights(given)[f"w.mixer.{n}"] for n in ("rate", "step_bias"))
    step = softplus(source.data + bias.over(source.dims))
    if "mixer.step" in at.op.outputs:
        step = step.clamp(*at.numbers.step_limits)
    decay = torch.exp(-torch.exp(rate.over(source.dims)) * step)
    made = {"mixer.step": Named(source.dims, step), "mixer.decayed": Named(source.dims, decay)}
    return {n: made[n] for n in at.op.outputs}


def steps(given: Values, at: Tile) -> dict[str, Named]:
    x, step = given.values()
    return {at.op.outputs[0]: Named(x.dims, x.data * step.over(x.dims))}


def skip(given: Values, at: Tile) -> dict[str, Named]:
    """Output plus D times the input."""
    mixed, x, weight = given.values()
    return {at.op.outputs[0]: Named(mixed.dims, mixed.data + x.over(mixed.dims) * weight.over(mixed.dims))}


def out_gate(given: Values, at: Tile) -> dict[str, Named]:
    source, gate = given.values()
    return {at.op.outputs[0]: Named(source.dims, source.data * silu(gate.over(source.dims)))}


def scan(given: Values, at: Tile) -> dict[str, Named]:
    """The recurrence: the delta rule (Gated Delta Networks, equation 10) or a decayed sum (Mamba-2, equation 16)."""
    names = [n.split("@")[0] for n in given]
    value = dict(zip(names, given.values(), strict=True))
    out_name, state_name = at.op.outputs
    state = _state(given, at, state_name)
    heads = tuple(d for d in state.dims if d not in ("batch", "k_dim", "v_dim"))
    held = state.over(("batch", *heads, "k_dim", "v_dim")).clone()

    def rows(name: str, last: str) -> Any:
        return value[f"mixer.{name}"].over(("tokens", *heads, *((last,) if last else ())))

    delta = "mixer.strengths" in value
    if not delta and "mixer.stepped" not in value:
        raise Unmeant(f"{at.op.name} of {names}")
    query, key, new = (
        (rows("q_unit", "k_dim") * at.op.size("k_dim") ** -0.5, rows("k_unit", "k_dim"), rows("v_mixed", "v_dim"))
        if delta
        else (rows("c_mixed", "k_dim"), rows("b_mixed", "k_dim"), rows("stepped", "v_dim"))
    )
    per_key = "k_dim" in value["mixer.decayed"].dims
    decay = rows("decayed", "k_dim" if per_key else "")[..., None] if per_key else rows("decayed", "")[..., None, None]
    made = torch.empty(len(at.positions), *held.shape[1:-2], held.shape[-1])
    for t in range(len(at.positions)):
        b = int(at.sequences[t])
        s = held[b] * decay[t]
        v = new[t]
        if delta:
            v = (v - (s * key[t][..., None]).sum(-2)) * rows("strengths", "")[t][..., None]
        s = s + key[t][..., None] * v[..., None, :]
        made[t] = (s * query[t][..., None]).sum(-2)
        held[b] = s
    return {
        out_name: Named(("tokens", *heads, "v_dim"), made),
        state_name: Named(("batch", *heads, "k_dim", "v_dim"), held),
    }
