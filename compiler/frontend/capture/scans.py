"""The ops of recurrences and causal convolutions: a state is read and written whole in decode, given in prefill."""

from typing import Final

from compiler.frontend.capture.costs import DELTAS
from compiler.frontend.capture.emit import Emitter
from compiler.frontend.capture.ir import TRACED_TOKENS, Argument
from compiler.frontend.capture.loops import SCAN
from compiler.frontend.capture.steps import Step
from compiler.frontend.flops import DELTA_FLOPS, LINEAR_FLOPS, MAMBA_FLOPS
from compiler.frontend.quant import WeightKind
from compiler.ir.dtype import DType
from compiler.ir.graph import Op, Pattern, Role

#: Operations at a point of the state.
SCAN_FLOPS: Final = {
    "gated_delta": DELTA_FLOPS,
    "kda": DELTA_FLOPS,
    "linear_attention": LINEAR_FLOPS,
    "ssm_scan": LINEAR_FLOPS,
    "selective_scan": MAMBA_FLOPS,
}


def recurrence(e: Emitter, step: Step) -> None:
    """One scan over tokens, heads, k_dim and v_dim."""
    flow, call = e.layer.flow, step.call
    name = call.name.split(".")[1]
    out = flow.seen[step.outputs[0]].axes
    if call.name in DELTAS:
        parts = (out[-2], flow.seen[call.must(1)].axes[-1], out[-1])
    elif call.name == SCAN:
        parts = (tuple(atom for axis in out for atom in flow.atoms.leaves(axis) if atom != flow.atoms.tokens), (), ())
    elif name == "ssm_scan":
        parts = (out[-2], flow.seen[call.must(3)].axes[-1], out[-1])
    else:
        parts = (out[1], flow.seen[call.must(2)].axes[-1], ())
    space = " ".join(e.words(part) for part in parts if part)
    state = f"batch {space}"
    inputs = list(e.read(*step.sources))
    states = call.number(3) if call.name == SCAN else 1
    if e.decode:
        inputs += [e.builder.enter(word, state, Role.STATE, DType.FP32) for word in _states(step, "state", states)]
    inputs.extend(e.weight(value, step.name, WeightKind.PLAIN) for value in step.weights)
    new = _states(step, "state_new", states)
    result = e.output(step)
    points, flops = e.builder.dims(f"tokens {space}"), call.number(2) if call.name == SCAN else SCAN_FLOPS[name]
    op = Op(step.name, Pattern.SCAN, points, tuple(inputs), (result, *new), (), flops, ("tokens",))
    e.builder.emit(op, e.value_words(step.outputs[0]), *(state for _ in new))
    e.retyped |= dict.fromkeys(new, (Role.STATE, DType.FP32))
    e.tensor[step.outputs[0]] = (result,)
    e.outputs.extend(new)


def _states(step: Step, suffix: str, count: int) -> tuple[str, ...]:
    """`mixer.state`, `mixer.state_2`, ...; a second scan of a layer has states of its own."""
    first = f"mixer.{suffix}" if step.name == "mixer.scan" else f"{step.name}.{suffix}"
    return (first, *(f"{first}_{number}" for number in range(2, count + 1)))


def shift(e: Emitter, step: Step) -> None:
    """The token before each token; in decode it is kept from the step before, and the own one for the next."""
    flow = e.layer.flow
    axes = flow.seen[step.outputs[0]].axes
    space = e.words(tuple(atom for axis in axes for atom in flow.atoms.leaves(axis) if atom != flow.atoms.tokens))
    state, new, result = f"batch {space}", f"{step.name}_state_new", e.output(step)
    inputs = list(e.read(*step.sources))
    if e.decode:
        inputs.append(e.builder.enter(f"{step.name}_state", state, Role.STATE))
    points = e.builder.dims(f"tokens {space}")
    op = Op(step.name, Pattern.GATHER, points, tuple(inputs), (result, new), flops_per_point=0)
    e.builder.emit(op, e.value_words(step.outputs[0]), state)
    e.retyped[new] = (Role.STATE, DType.BF16)
    e.tensor[step.outputs[0]] = (result,)
    e.outputs.append(new)


def convolution(e: Emitter, step: Step) -> None:
    """A convolution along the tokens; in decode it reads the last `kernel - 1` rows of each channel."""
    flow, b = e.layer.flow, e.builder
    if e.decode and _ahead(step):
        raise e.refuse(step, "a convolution reads tokens that come later, so there is no decoding", "phase prefill")
    points = e.names.words(step.points)
    reduced = e.names.words(step.reduced, taken=points)
    weight = next(value for value in step.weights if len(e.weight_value(value).shape) > 1)
    source = step.call.must(0)
    kernel, channels = e.weight_value(weight).shape[-1], e.words(flow.seen[source].axes[1])
    inputs = list(e.read(*step.sources))
    out, words = [e.output(step)], [" ".join(points)]
    if kernel > 1:
        past = "past" if e.names.sizes.get("past", kernel - 1) == kernel - 1 else f"past_{kernel - 1}"
        e.names.sizes[past] = kernel - 1
        state = f"batch {channels} {past}"
        if e.decode:
            inputs.append(b.enter(f"{step.name}_state", state, Role.STATE))
        out.append(f"{step.name}_state_new")
        words.append(state)
    inputs.extend(e.weights(step))
    op = Op(
        step.name, Pattern.CONTRACT, b.dims(" ".join(points + reduced)), tuple(inputs), tuple(out), tuple(reduced), 2
    )
    b.emit(op, *words)
    if kernel > 1:
        e.retyped[out[1]] = (Role.STATE, DType.BF16)
        e.outputs.append(out[1])
    e.tensor[step.outputs[0]] = (out[0],)


def _ahead(step: Step) -> bool:
    """Whether a convolution gives a token what later ones say: padded on both sides, and as long as its input."""
    call = step.call
    if call.name == "rdutune.causal_conv":
        return False
    padding: Argument = call.get(4, "padding", 0)
    pad = padding[0] if isinstance(padding, tuple) and padding else padding
    return isinstance(pad, int) and pad > 0 and call.node.outputs[0].shape[2] == TRACED_TOKENS
