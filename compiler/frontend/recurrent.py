"""The ops of a mixer without a softmax: from the block input `x` to `attn.y`, with the residual connection.

The recurrence is one op, `mixer.scan`, over (tokens, heads, k_dim, v_dim): a token updates the state of its sequence
and reads it, in prefill as in decode. Decode reads the states as block inputs and gives new ones; prefill gives them.
Channels of a convolution are written as the heads they belong to, one op each for query, key and value, because a
socket that has some heads has their channels: `mixer.conv_q`, `mixer.conv_k`, ... with a state of its own.

Where several heads share a key there are `groups` of `heads` (one group: no such dimension).
"""

from dataclasses import dataclass, field

from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.flops import (
    ACTIVATION_FLOPS,
    DECAY_FLOPS,
    DELTA_FLOPS,
    GATE_FLOPS,
    LINEAR_FLOPS,
    MAMBA_FLOPS,
    SIGMOID_FLOPS,
    SKIP_FLOPS,
)
from compiler.frontend.linear import (
    GatedDeltaNet,
    KimiDelta,
    LightningAttention,
    LinearMixer,
    Mamba2,
    MambaOne,
    ShortConv,
)
from compiler.frontend.parts import Norm
from compiler.ir.dtype import DType
from compiler.ir.graph import Op, Pattern, Phase, Role

#: The unit length of queries and keys: square, add, multiply by the root.
_UNIT = Norm(scale=False)


def linear_sizes(mixer: LinearMixer) -> dict[str, int]:
    """Sizes of the dimensions of a mixer."""
    if isinstance(mixer, LightningAttention):
        return {"heads": mixer.heads, "k_dim": mixer.head_dim, "v_dim": mixer.head_dim}
    sizes = {"kernel": mixer.kernel} | ({"taps": mixer.kernel - 1} if mixer.kernel > 1 else {})
    if isinstance(mixer, ShortConv):
        return sizes | {"channels": mixer.channels}
    if isinstance(mixer, MambaOne):
        return sizes | {"channels": mixer.channels, "k_dim": mixer.k_dim, "rank": mixer.rank}
    if isinstance(mixer, KimiDelta):
        return sizes | {"heads": mixer.heads, "k_dim": mixer.head_dim, "v_dim": mixer.head_dim, "rank": mixer.rank}
    groups = mixer.key_heads if isinstance(mixer, GatedDeltaNet) else mixer.groups
    sizes |= {"heads": mixer.heads, "k_dim": mixer.k_dim, "v_dim": mixer.v_dim}
    return sizes | ({"groups": groups, "heads": mixer.heads // groups} if 1 < groups < mixer.heads else {})


def add_linear(
    b: BlockBuilder, mixer: LinearMixer, phase: Phase, source: str, out: str = "attn.out"
) -> tuple[str, ...]:
    """Append the ops of `mixer` on `source`; they end in `out`. Returns the states among the block's outputs."""
    parts = _Parts(b, phase, source, out)
    if isinstance(mixer, GatedDeltaNet):
        _gated_delta(parts, mixer)
    elif isinstance(mixer, KimiDelta):
        _kimi_delta(parts)
    elif isinstance(mixer, LightningAttention):
        _lightning(parts)
    elif isinstance(mixer, Mamba2):
        _mamba2(parts, mixer)
    elif isinstance(mixer, MambaOne):
        _mamba(parts, mixer)
    else:
        _short_conv(parts, mixer)
    return tuple(parts.states)


@dataclass(slots=True)
class _Parts:
    """The steps that these mixers share. `states` collects the states given; tensors are called `mixer.NAME`."""

    b: BlockBuilder
    phase: Phase
    source: str
    out: str
    states: list[str] = field(default_factory=list)

    def weight(self, role: str, words: str) -> str:
        """A small weight, whose role names the whole tensor in the checkpoint."""
        return self.b.weight(f"w.{role}", words, self.b.names.module(role))

    def project(self, name: str, words: str, out: str, source: str = "", bias: bool = False) -> None:
        weight = Weight(self.b.names.module(f"mixer.{name}"), bias)
        self.b.project(f"mixer.{name}", (source or self.source,), f"mixer.{out}", words, weight)

    def enter(self, part: str, words: str, bias: bool = False) -> None:
        """A part of the input projection."""
        self.project(f"in_proj_{part}", f"tokens {words} <- hidden", part, bias=bias)

    def act(self, name: str, source: str, out: str, words: str) -> None:
        self.b.pointwise(f"mixer.{name}", (f"mixer.{source}",), f"mixer.{out}", f"tokens {words}", ACTIVATION_FLOPS)

    def convolve(self, part: str, words: str, bias: bool = False, act: bool = True) -> None:
        """A causal convolution of `mixer.PART` along the tokens of a sequence, each channel its own, and its silu.

        The rows that the next tokens need are its state.
        """
        b, name, module = self.b, f"mixer.conv_{part}", self.b.names.module(f"mixer.conv_{part}")
        inputs = [f"mixer.{part}", b.weight(f"w.{name}", f"{words} kernel", f"{module}.weight")]
        if bias:
            inputs.append(b.weight(f"b.{name}", words, f"{module}.bias"))
        made = f"{name}_out" if act else f"mixer.{part}_mixed"
        kept = self._state(f"{name}_state", f"batch {words} taps", DType.BF16, inputs) if "taps" in b.sizes else ()
        op = Op(
            name,
            Pattern.CONTRACT,
            b.dims(f"tokens {words} kernel"),
            tuple(inputs),
            (made, *kept),
            reduced=("kernel",),
            flops_per_point=2,
        )
        self._emit(op, f"tokens {words}", f"batch {words} taps", DType.BF16)
        if act:
            self.act(f"conv_act_{part}", f"conv_{part}_out", f"{part}_mixed", words)

    def scan(self, words: tuple[str, str], inputs: tuple[str, ...], flops: int) -> None:
        """The recurrence. words: dimensions of a state, and those of them that a token reads out (not `k_dim`)."""
        b, (held, read) = self.b, words
        names = [f"mixer.{name}" if not name.startswith("w.") else name for name in inputs]
        kept = self._state("mixer.state", f"batch {held}", DType.FP32, names)
        op = Op(
            "mixer.scan",
            Pattern.SCAN,
            b.dims(f"tokens {held}"),
            tuple(names),
            ("mixer.mixed", *kept),
            reduced=("k_dim",),
            sequential=("tokens",),
            flops_per_point=flops,
        )
        self._emit(op, f"tokens {read}", f"batch {held}", DType.FP32)

    def _state(self, name: str, words: str, dtype: DType, inputs: list[str]) -> tuple[str]:
        """In decode the state enters and is read; its successor is given."""
        if self.phase is Phase.DECODE:
            inputs.append(self.b.enter(name, words, Role.STATE, dtype))
        self.states.append(f"{name}_new")
        return (f"{name}_new",)

    def _emit(self, op: Op, words: str, state_words: str, dtype: DType) -> None:
        if len(op.outputs) == 1:
            self.b.emit(op, words)
        else:
            self.b.emit_with_state(op, words, state_words, dtype)

    def gate(self, source: str, words: str, flops: int, out: str = "mixer.gated") -> None:
        """Multiply with the output gate `mixer.z` behind its activation (`flops`)."""
        self.b.pointwise("mixer.out_gate", (source, "mixer.z"), out, f"tokens {words}", flops + GATE_FLOPS)

    def leave(self, source: str, words: str, bias: bool = False) -> None:
        weight = Weight(self.b.names.module("mixer.out_proj"), bias)
        self.b.project("mixer.out_proj", (source,), self.out, f"tokens hidden <- {words}", weight)


def _heads(b: BlockBuilder) -> tuple[str, str]:
    """The dimensions that count heads, and those that count keys."""
    return ("groups heads", "groups k_dim") if "groups" in b.sizes else ("heads", "k_dim")


def _gated_delta(p: _Parts, mixer: GatedDeltaNet) -> None:
    """Input projections, convolutions, unit queries and keys, gates of a head, delta rule, norm, output gate."""
    heads, key = _heads(p.b)
    key = "heads k_dim" if mixer.key_heads == mixer.heads else key
    words = {"q": key, "k": key, "v": f"{heads} v_dim"}
    for part in (*words, "z"):
        p.enter(part, words.get(part, f"{heads} v_dim"))
    p.enter("beta", heads)
    p.enter("decay", heads)
    for part, dims in words.items():
        p.convolve(part, dims)
    _unit(p, key)
    _delta_gates(p, heads, heads)
    _delta_rule(p, heads)


def _kimi_delta(p: _Parts) -> None:
    """As the gated delta net; the decay is one a key channel, and it and the output gate come through a low rank."""
    words = {"q": "heads k_dim", "k": "heads k_dim", "v": "heads v_dim"}
    for part, dims in words.items():
        p.enter(part, dims)
    for part, dims in words.items():
        p.convolve(part, dims)
    p.enter("decay_a", "rank")
    p.project("decay_proj", "tokens heads k_dim <- rank", "decay", "mixer.decay_a")
    p.enter("beta", "heads")
    p.enter("z_a", "rank")
    p.project("z_proj", "tokens heads v_dim <- rank", "z", "mixer.z_a")
    _unit(p, "heads k_dim")
    _delta_gates(p, "heads k_dim", "heads")
    _delta_rule(p, "heads")


def _unit(p: _Parts, words: str) -> None:
    for part in ("q", "k"):
        p.b.norm(f"mixer.{part}_norm", f"mixer.{part}_mixed", f"mixer.{part}_unit", f"tokens {words}", _UNIT)


def _delta_gates(p: _Parts, decay: str, heads: str) -> None:
    """g = exp(-exp(A) softplus(a + bias)), with dimensions `decay`; b = sigmoid(b), one a head."""
    rate, bias = p.weight("mixer.rate", heads), p.weight("mixer.step_bias", decay)
    inputs, flops = ("mixer.decay", rate, bias), 1 + ACTIVATION_FLOPS + DECAY_FLOPS
    p.b.pointwise("mixer.gates", inputs, "mixer.decayed", f"tokens {decay}", flops)
    p.b.pointwise("mixer.strength", ("mixer.beta",), "mixer.strengths", f"tokens {heads}", SIGMOID_FLOPS)


def _delta_rule(p: _Parts, heads: str) -> None:
    inputs = ("q_unit", "k_unit", "v_mixed", "decayed", "strengths")
    p.scan((f"{heads} k_dim v_dim", f"{heads} v_dim"), inputs, DELTA_FLOPS)
    p.b.norm("mixer.out_norm", "mixer.mixed", "mixer.normed_out", f"tokens {heads} v_dim")
    p.gate("mixer.normed_out", f"{heads} v_dim", ACTIVATION_FLOPS)
    p.leave("mixer.gated", f"{heads} v_dim")


def _lightning(p: _Parts) -> None:
    """Activated q, k, v; a decay that is fixed a head; a norm over all heads; a sigmoid gate."""
    words = {"q": "heads k_dim", "k": "heads k_dim", "v": "heads v_dim"}
    for part, dims in words.items():
        p.enter(part, dims)
        p.act(f"act_{part}", part, f"{part}_mixed", dims)
    p.enter("z", "heads v_dim")
    p.scan(("heads k_dim v_dim", "heads v_dim"), ("q_mixed", "k_mixed", "v_mixed"), LINEAR_FLOPS)
    p.b.norm("mixer.out_norm", "mixer.mixed", "mixer.normed_out", "tokens heads v_dim", over=2)
    p.gate("mixer.normed_out", "heads v_dim", SIGMOID_FLOPS)
    p.leave("mixer.gated", "heads v_dim")


def _mamba2(p: _Parts, mixer: Mamba2) -> None:
    """Projections of gate, x, B, C and step; convolutions; state space; skip; gate; a norm over each group."""
    heads, key = _heads(p.b)
    key = "heads k_dim" if 1 < mixer.groups == mixer.heads else key
    value = f"{heads} v_dim"
    for part, dims in {"z": value, "x": value, "b": key, "c": key, "dt": heads}.items():
        p.enter(part, dims, mixer.bias)
    for part, dims in {"x": value, "b": key, "c": key}.items():
        p.convolve(part, dims, mixer.conv_bias)
    rate, bias = p.weight("mixer.rate", heads), p.weight("mixer.step_bias", heads)
    gates = Op(
        "mixer.gates",
        Pattern.MAP,
        p.b.dims(f"tokens {heads}"),
        ("mixer.dt", rate, bias),
        ("mixer.step", "mixer.decayed"),
        flops_per_point=1 + ACTIVATION_FLOPS + DECAY_FLOPS,
    )
    p.b.emit(gates, f"tokens {heads}", f"tokens {heads}")
    p.b.pointwise("mixer.steps", ("mixer.x_mixed", "mixer.step"), "mixer.stepped", f"tokens {value}")
    p.scan((f"{heads} k_dim v_dim", value), ("c_mixed", "b_mixed", "stepped", "decayed"), LINEAR_FLOPS)
    _skip(p, value, heads)
    p.gate("mixer.skipped", value, ACTIVATION_FLOPS)
    if mixer.norm:
        _group_norm(p, value, per_group="groups" in p.b.sizes, per_head=1 < mixer.groups == mixer.heads)
    p.leave("mixer.normed_out" if mixer.norm else "mixer.gated", value, mixer.out_bias)


def _skip(p: _Parts, words: str, heads: str) -> None:
    skip = p.weight("mixer.skip", heads)
    inputs = ("mixer.mixed", "mixer.x_mixed", skip)
    p.b.pointwise("mixer.skip", inputs, "mixer.skipped", f"tokens {words}", SKIP_FLOPS)


def _group_norm(p: _Parts, words: str, per_group: bool, per_head: bool) -> None:
    """A norm over the channels of each group, with a scale a channel."""
    module, over = p.b.names.module("mixer.out_norm"), ("v_dim",) if per_head else ("heads", "v_dim")
    scale = p.b.weight("w.mixer.out_norm", words, f"{module}.weight")
    norm = Op(
        "mixer.out_norm",
        Pattern.REDUCE,
        p.b.dims(f"tokens {words}"),
        ("mixer.gated", scale),
        ("mixer.normed_out",),
        sequential=over if per_group or per_head else tuple(words.split()),
        flops_per_point=Norm().flops_per_point,
    )
    p.b.emit(norm, f"tokens {words}")


def _mamba(p: _Parts, mixer: MambaOne) -> None:
    """x and its gate; convolution; step, B and C out of x; selective scan; skip; gate."""
    p.enter("x", "channels", mixer.bias)
    p.enter("z", "channels", mixer.bias)
    p.convolve("x", "channels", mixer.conv_bias)
    made = {"dt_a": "rank", "b": "k_dim", "c": "k_dim"}
    for part, dims in made.items():
        p.project(f"x_proj_{part}", f"tokens {dims} <- channels", part, "mixer.x_mixed")
    last = {part: part for part in made}
    for part, dims in made.items() if mixer.norms else ():
        p.b.norm(f"mixer.{part}_norm", f"mixer.{part}", f"mixer.{part}_normed", f"tokens {dims}")
        last[part] = f"{part}_normed"
    p.project("step_proj", "tokens channels <- rank", "dt", f"mixer.{last['dt_a']}", bias=True)
    p.act("gates", "dt", "step", "channels")
    rate = p.weight("mixer.rate", "channels k_dim")
    inputs = (last["c"], last["b"], "x_mixed", "step", rate)
    p.scan(("channels k_dim", "channels"), inputs, MAMBA_FLOPS)
    _skip(p, "channels", "channels")
    p.gate("mixer.skipped", "channels", ACTIVATION_FLOPS)
    p.leave("mixer.gated", "channels", mixer.bias)


def _short_conv(p: _Parts, mixer: ShortConv) -> None:
    """y = C conv(B x): two gates around a convolution without activation."""
    for part in ("b", "z", "x"):
        p.enter(part, "channels", mixer.bias)
    p.b.pointwise("mixer.gates", ("mixer.b", "mixer.x"), "mixer.u", "tokens channels")
    p.convolve("u", "channels", mixer.bias, act=False)
    p.gate("mixer.u_mixed", "channels", 0)
    p.leave("mixer.gated", "channels", mixer.bias)
