"""The nodes of a capture as steps: what each operator does to axes, and what it costs.

What an operator does that is not known here is collected in the flow, so that all of it is refused together.
"""

from collections.abc import Callable
from typing import Final

from compiler.frontend.capture import costs
from compiler.frontend.capture.axes import Atoms, Axes, Axis
from compiler.frontend.capture.chosen import CHOSEN, INDEX
from compiler.frontend.capture.fused import PART
from compiler.frontend.capture.ir import Capture, Ref
from compiler.frontend.capture.loops import SCAN
from compiler.frontend.capture.places import one_place, shifts
from compiler.frontend.capture.seen import Call, Origin, Seen
from compiler.frontend.capture.steps import Flow, Kind, Unsupported
from compiler.frontend.capture.views import join, view

Rule = Callable[[Flow, Call], str | None]


def walk_capture(capture: Capture, data: frozenset[str], fixed: bool = False) -> Flow:
    """The steps of `capture`. `data`: the inputs that carry activations; the others are tables of positions.

    fixed: the traced tokens are all that a sequence ever has (patches of an image).
    """
    flow = Flow(Atoms(capture.tokens, capture.memory))
    for value in capture.inputs:
        origin = Origin.DATA if value.name in data else Origin.TABLE
        flow.seen[value.name] = Seen(flow.axes(value.shape), (value.name,), origin)
    for value in capture.weights:
        axes = tuple(flow.atoms.axis(size) for size in value.shape)
        flow.seen[value.name] = Seen(axes, (value.name,), Origin.WEIGHT)
    for value in capture.buffers:
        axes = tuple(flow.atoms.axis(size) for size in value.shape)
        flow.seen[value.name] = Seen(axes, (value.name,), Origin.TABLE)
    flow.streams = {capture.inputs[0].name}
    flow.edge = not capture.label.startswith("layer")
    flow.fixed = fixed
    for node in capture.nodes:
        _step(flow, Call(node))
    return flow


def _step(flow: Flow, call: Call) -> None:
    if call.name in costs.CHECKS or not call.node.outputs:
        return None
    if call.name in costs.CREATIONS:
        for value in call.node.outputs:
            flow.seen[value.name] = Seen(flow.axes(value.shape), (), Origin.TABLE)
        return None
    if call.name != "aten.embedding" and flow.origin(call.refs()) is not Origin.DATA:
        return _constant(flow, call)
    if call.name in ("aten.cat", "aten.concat", "aten.concatenate") and _permutes(flow, call):
        return None
    placed = one_place(flow, call)
    if not placed and (shifts(flow, call) or view(flow, call)):
        return None
    rule = RULES.get(call.name)
    why = placed or ("is not known" if rule is None else rule(flow, call))
    if why is None:
        return None
    flow.unsupported.append(Unsupported(call.node, why))
    for value in call.node.outputs:
        flow.seen[value.name] = Seen(flow.axes(value.shape), (value.name,), Origin.DATA)
    return None


def _constant(flow: Flow, call: Call) -> None:
    """A value of weights and positions only, computed ahead of time: who reads it reads the weights."""
    if view(flow, call):
        return
    names = call.refs()
    for value in call.node.outputs:
        flow.seen[value.name] = Seen(flow.axes(value.shape), flow.roots(names), flow.origin(names))
    if call.name == "rdutune.position_bias":
        flow.biases.add(call.out)


def _permutes(flow: Flow, call: Call) -> bool:
    """A concatenation of all the cuts of one axis, some of them changed: the place of the elements, at no cost."""
    axes = join(flow, call)
    if axes is None:
        return False
    dim = call.number(1, "dim") % len(axes)
    parts = [flow.seen[name].axes[dim] for name in call.refs()]
    if not any(flow.atoms.leaves(axes[dim]) in flow.atoms.wholes(part) for part in parts):
        return False
    if len(flow.roots(call.refs())) == 1:  # all cuts of one tensor: only their order changes
        return False
    flow.add(Kind.MAP, call, (axes,), flow.atoms.flat(axes))
    return True


def aligned(flow: Flow, names: tuple[str, ...], shape: tuple[int, ...]) -> Axes:
    """The axes of an element-wise result: those of the operands that are not broadcast, identified with each other."""
    parts = [flow.seen[name] for name in names]
    parts = sorted(parts, key=lambda part: -part.origin)
    out: list[Axis] = []
    for place, size in enumerate(shape):
        found: Axis | None = None
        for part in parts:
            at = place - len(shape) + len(part.axes)
            if at < 0 or flow.atoms.extent(part.axes[at]) != size:
                continue
            if found is None and (part.origin is not Origin.TABLE or size == 1):
                found = part.axes[at]
            elif found is not None and part.origin is Origin.WEIGHT and flow.atoms.tokens in flow.atoms.leaves(found):
                continue  # a row of the weight for every token: the tokens of all sequences share it
            elif found is not None and part.origin is not Origin.TABLE:
                flow.atoms.unify(found, part.axes[at])
        out.append(flow.axis(size) if found is None else found)
    return tuple(out)


def _elementwise(flow: Flow, call: Call) -> None:
    names = call.refs()
    axes = aligned(flow, names, call.shape)
    points = flow.atoms.flat(axes)
    step = flow.add(Kind.MAP, call, (axes,) * len(call.node.outputs), points)
    step.work = costs.ELEMENTWISE[call.name] * flow.atoms.extent(points)
    if call.node.outputs[0].dtype.startswith("complex"):  # a complex product is four products and two sums
        step.work *= 6 if call.name == "aten.mul" else 2
    roots = [set(flow.seen[name].roots) for name in names]
    step.residual = call.name == "aten.add" and len(names) == 2 and any(r and r <= flow.streams for r in roots)
    if step.residual:
        flow.streams.add(call.out)


def _linear(flow: Flow, call: Call) -> str | None:
    x, weight = flow.seen[call.must(0, "input")], flow.seen[call.must(1, "weight")]
    return _product(flow, call, (*x.axes[:-1], weight.axes[0]), (x.axes[-1], weight.axes[1]))


def _part(flow: Flow, call: Call) -> str | None:
    """A part of a fused projection: the axes of its output that are not tokens are the rows of its weight."""
    x, weight = flow.seen[call.must(0)], flow.seen[call.must(1)]
    if not flow.atoms.unify(x.axes[-1], weight.axes[-1]):
        return "contracts axes whose parts do not match"
    rows = iter(weight.axes[:-1])
    axes = tuple(
        flow.axis(size) if size in (1, flow.atoms.size(flow.atoms.tokens)) else next(rows) for size in call.shape
    )
    if call.ref(2) is not None:
        for one, other in zip(flow.seen[call.must(2)].axes, weight.axes[:-1], strict=True):
            flow.atoms.unify(one, other)
    flow.add(Kind.CONTRACT, call, (axes,), flow.atoms.flat(axes), reduced=x.axes[-1], flops=2)
    return None


def _matmul(flow: Flow, call: Call) -> str | None:
    return _matrices(flow, call, call.must(0, "self"), call.must(1, "other"))


def _addmm(flow: Flow, call: Call) -> str | None:
    return _matrices(flow, call, call.must(1, "mat1"), call.must(2, "mat2"))


def _matrices(flow: Flow, call: Call, left: str, right: str) -> str | None:
    a, b = flow.seen[left].axes, flow.seen[right].axes
    if len(a) < 2 or len(b) < 2:
        return "is a product with a vector"
    lead: list[Axis] = []
    width = max(len(a), len(b)) - 2
    for place in range(width):
        one = a[place - width + len(a) - 2] if place >= width - len(a) + 2 else ()
        other = b[place - width + len(b) - 2] if place >= width - len(b) + 2 else ()
        if one and other:
            flow.atoms.unify(one, other)
        lead.append(one or other)
    return _product(flow, call, (*lead, a[-2], b[-1]), (a[-1], b[-2]))


def _product(flow: Flow, call: Call, axes: Axes, contracted: tuple[Axis, Axis]) -> str | None:
    if not flow.atoms.unify(*contracted):
        return "contracts axes whose parts do not match"
    reduced = flow.atoms.leaves(contracted[0])
    if flow.atoms.tokens in reduced:
        return "contracts the tokens outside an attention operator"
    points = flow.atoms.flat(axes)
    if points.count(flow.atoms.tokens) > 1:
        return "multiplies tokens with tokens outside an attention operator"
    for name in call.refs():
        if len(flow.seen[name].axes) == 1:  # a bias
            flow.atoms.unify(flow.seen[name].axes[0], axes[-1])
    flow.add(Kind.CONTRACT, call, (axes,), points, reduced=contracted[0], flops=2)
    return None


def _einsum(flow: Flow, call: Call) -> str | None:
    equation, items = call.get(0, "equation"), call.get(1, "tensors")
    if not isinstance(equation, str) or not isinstance(items, tuple) or "." in equation or "->" not in equation:
        return "has an equation that is not followed"
    inputs, output = equation.replace(" ", "").split("->")
    table: dict[str, Axis] = {}
    for letters, item in zip(inputs.split(","), items, strict=True):
        if not isinstance(item, Ref):
            return "has an operand that is no tensor"
        for letter, axis in zip(letters, flow.seen[item.name].axes, strict=True):
            if table.setdefault(letter, axis) != axis:
                flow.atoms.unify(table[letter], axis)
    axes = tuple(table[letter] for letter in output)
    gone = tuple(atom for letter in table if letter not in output for atom in table[letter])
    points = flow.atoms.flat(axes)
    if flow.atoms.tokens in flow.atoms.leaves(gone) or points.count(flow.atoms.tokens) > 1:
        return "multiplies tokens with tokens outside an attention operator"
    flow.add(Kind.CONTRACT if gone else Kind.MAP, call, (axes,), points, reduced=gone, flops=2)
    return None


def _along(flow: Flow, call: Call) -> str | None:
    """Softmax, running sums, sorts: along one dimension."""
    x = flow.seen[call.must(0, "self")].axes
    place = 2 if call.name == "aten.topk" else 1
    dim = call.number(place, "dim", -1) % len(x)
    if flow.atoms.tokens in flow.atoms.leaves(x[dim]) and call.name not in costs.SCANS:
        return "goes along the tokens outside a semantic operator"
    kind = Kind.SORT if call.name in costs.SORTS else Kind.SCAN if call.name in costs.SCANS else Kind.REDUCE
    flops = costs.ALONG.get(call.name) or costs.SORTS.get(call.name) or 1
    axes = x if call.shape == tuple(flow.atoms.extent(axis) for axis in x) else None
    if axes is None:
        axes = (*x[:dim], flow.atoms.axis(call.shape[dim]), *x[dim + 1 :])
    flow.add(kind, call, (axes,) * len(call.node.outputs), flow.atoms.flat(x), sequential=x[dim], flops=flops)
    return None


def _reduce(flow: Flow, call: Call) -> str | None:
    x = flow.seen[call.must(0, "self")].axes
    place = 2 if call.name in ("aten.norm", "aten.linalg_vector_norm") else 1
    given = call.get(place, "dim")
    dims = (given,) if isinstance(given, int) else given if isinstance(given, tuple) and given else tuple(range(len(x)))
    at = {dim % len(x) for dim in dims if isinstance(dim, int)}
    gone = tuple(atom for place in sorted(at) for atom in x[place])
    if flow.atoms.tokens in flow.atoms.leaves(gone):
        if not (flow.fixed and flow.atoms.leaves(gone) == (flow.atoms.tokens,)):
            return "reduces over the tokens outside a semantic operator"
        gone = flow.atoms.axis(flow.atoms.size(flow.atoms.tokens))  # those of one sequence
    kept = tuple(() if place in at else axis for place, axis in enumerate(x))
    if len(call.shape) != len(x):
        kept = tuple(axis for place, axis in enumerate(x) if place not in at)
    axes = (kept,) * len(call.node.outputs)
    flow.add(Kind.REDUCE, call, axes, flow.atoms.flat(kept), reduced=gone, flops=costs.REDUCTIONS[call.name])
    return None


def _norm(flow: Flow, call: Call) -> None:
    x = flow.seen[call.must(0, "input")].axes
    shape, over = call.get(1, "normalized_shape"), 1
    if isinstance(shape, tuple):
        over = len(shape)
    for name in call.refs()[1:]:
        for one, other in zip(reversed(flow.seen[name].axes), reversed(x), strict=False):
            flow.atoms.unify(one, other)
    along = tuple(atom for axis in x[len(x) - over :] for atom in axis)
    rest = tuple(flow.axes(value.shape) for value in call.node.outputs[1:])
    step = flow.add(Kind.NORM, call, (x, *rest), flow.atoms.flat(x), sequential=along, flops=costs.NORMS[call.name])
    step.flops += len(step.weights)


def _embedding(flow: Flow, call: Call) -> None:
    table, index = flow.seen[call.must(0, "weight")].axes, flow.seen[call.must(1, "indices")].axes
    axes = (*index, table[1])
    flow.add(Kind.GATHER, call, (axes,), flow.atoms.flat(axes), flops=0)


def _gather(flow: Flow, call: Call) -> None:
    axes = aligned(flow, call.refs()[:1], call.shape) if call.shape else ()
    flow.add(Kind.GATHER, call, (axes,), flow.atoms.flat(axes), flops=0)


def _scatter(flow: Flow, call: Call) -> None:
    axes = flow.seen[call.must(0, "self")].axes
    flow.add(Kind.SCATTER, call, (axes,), flow.atoms.flat(axes), flops=0)


def _attention(flow: Flow, call: Call) -> str | None:
    q, k, v = (flow.seen[call.must(place)].axes for place in range(3))
    tokens, memory = (flow.atoms.tokens,), (flow.atoms.memory,)
    rows = [flow.atoms.leaves(side[-2]) for side in (q, k, v)]
    if rows not in ([tokens, tokens, tokens], [tokens, memory, memory]):
        return "attends to something else than the tokens of this sequence"
    own = call.name == "rdutune.attention"
    mask, chosen = call.ref(9 if own else 3), call.ref(10) if own else None
    if mask is not None and flow.seen[mask].origin is not Origin.TABLE and mask not in flow.biases:
        return "adds to the scores what depends on weights or activations"
    if chosen is not None and flow.seen[chosen].origin is Origin.DATA:
        indices = {value for step in flow.steps if step.kind is Kind.INDEX for value in step.outputs}
        if not indices.issuperset(flow.seen[chosen].roots):
            return "attends to keys that something else than an indexer chooses"
    heads = q[-3]
    axes = ((), tokens, heads, v[-1]) if own else ((), heads, tokens, v[-1])
    flow.add(Kind.ATTENTION, call, (axes,), flow.atoms.flat(axes))
    return None


def _indexer(flow: Flow, call: Call) -> None:
    q, k, weights = (flow.seen[call.must(place)].axes for place in range(3))
    flow.atoms.unify(q[-1], k[-1])
    flow.atoms.unify(q[-2], weights[-1])
    axes = ((), (flow.atoms.tokens,), flow.atoms.axis(call.shape[-1]))
    flow.add(Kind.INDEX, call, (axes,) * len(call.node.outputs), flow.atoms.flat(axes))


def _chosen(flow: Flow, call: Call) -> None:
    axes = ((), (flow.atoms.tokens,), flow.atoms.axis(call.shape[-1]))
    flow.add(Kind.INDEX, call, (axes,), flow.atoms.flat(axes))


def _experts(flow: Flow, call: Call) -> None:
    x = flow.seen[call.must(0)].axes
    flow.add(Kind.EXPERTS, call, (x,), flow.atoms.flat(x))


def _recurrence(flow: Flow, call: Call) -> None:
    place = 2 if call.name in costs.DELTAS else 0
    axes = flow.seen[call.must(place)].axes
    for name in call.refs() if call.name == SCAN else ():
        for one, other in zip(reversed(axes), reversed(flow.seen[name].axes), strict=False):
            flow.atoms.unify(one, other)
    flow.add(Kind.RECURRENCE, call, (axes,), flow.atoms.flat(axes))


def _conv(flow: Flow, call: Call) -> str | None:
    """Convolutions along the tokens (x (1, channels, tokens), weight (out, in / groups, kernel)) or over an image."""
    x, weight = flow.seen[call.must(0)].axes, flow.seen[call.must(1)].axes
    if len(call.shape) == 4 and len(weight) == 4:
        return _image(flow, call, x, weight)
    if len(call.shape) != 3:
        return "is no convolution along the tokens"
    if call.name == "rdutune.causal_conv":
        flow.atoms.unify(weight[0], x[1])
        axes: Axes = x
    else:
        depthwise = len(weight) == 3 and flow.atoms.extent(weight[1]) == 1
        if depthwise and flow.atoms.extent(weight[0]) == flow.atoms.extent(x[1]):
            flow.atoms.unify(weight[0], x[1])
        elif not flow.atoms.unify(weight[1], _of_group(flow, x[1], weight)):
            return "has groups of channels whose parts do not match"
        axes = (x[0], weight[0], _along_tokens(flow, x[2], call.shape[2]))
    kernel = weight[-1]
    reduced = (*kernel, *(weight[1] if len(weight) == 3 else ()))
    rows = flow.atoms.leaves(axes[2]) if flow.atoms.tokens in flow.atoms.leaves(x[2]) else ()
    points = tuple(flow.atoms.tokens if atom in rows else atom for atom in flow.atoms.flat(axes))
    flow.add(Kind.CONV, call, (axes,), points, reduced=reduced, flops=2)
    return None


def _of_group(flow: Flow, channels: Axis, weight: Axes) -> Axis:
    """The channels that one output of a convolution reads: all of them, or those of its group.

    Groups are the slowest part of both, so input and output have the same ones.
    """
    inside = flow.atoms.extent(weight[1])
    groups = flow.atoms.extent(channels) // inside
    parts = flow.atoms.regroup((channels,), (groups, inside)) if groups > 1 else None
    if parts is None:
        return channels
    whole = flow.atoms.regroup((weight[0],), (groups, flow.atoms.extent(weight[0]) // groups))
    return parts[1] if whole is not None and flow.atoms.unify(whole[0], parts[0]) else channels


def _along_tokens(flow: Flow, axis: Axis, size: int) -> Axis:
    """What a convolution makes of an axis: the tokens where it has their number (frames of a sound are more)."""
    tokens = flow.atoms.size(flow.atoms.tokens)
    return flow.axis(size) if size == tokens != flow.atoms.extent(axis) else flow.atoms.extend(axis, size)


def _image(flow: Flow, call: Call, x: Axes, weight: Axes) -> str | None:
    """A convolution over an image: x (1, channels, height, width), weight (out, channels, kernel, kernel)."""
    if not flow.atoms.unify(weight[1], x[1]):
        return "has groups of channels"
    axes = (x[0], weight[0], *(flow.atoms.axis(size) for size in call.shape[2:]))
    flow.add(Kind.CONV, call, (axes,), flow.atoms.flat(axes), reduced=(*weight[1], *weight[2], *weight[3]), flops=2)
    return None


_TABLE: Final[tuple[tuple[frozenset[str], Rule], ...]] = (
    (frozenset(costs.ELEMENTWISE), _elementwise),
    (frozenset(costs.NORMS), _norm),
    (frozenset(costs.REDUCTIONS), _reduce),
    (frozenset({*costs.ALONG, *costs.SORTS, *costs.SCANS}), _along),
    (costs.GATHERS, _gather),
    (costs.SCATTERS, _scatter),
    (frozenset({"aten.linear"}), _linear),
    (frozenset({PART}), _part),
    (frozenset({"aten.matmul", "aten.mm", "aten.bmm"}), _matmul),
    (frozenset({"aten.addmm", "aten.baddbmm"}), _addmm),
    (frozenset({"aten.einsum"}), _einsum),
    (frozenset({"aten.embedding"}), _embedding),
    (frozenset({"aten.conv1d", "aten.conv2d", "aten.convolution", "rdutune.causal_conv"}), _conv),
    (frozenset({"rdutune.attention", "aten.scaled_dot_product_attention"}), _attention),
    (frozenset({"rdutune.experts"}), _experts),
    (frozenset({INDEX}), _indexer),
    (frozenset({CHOSEN}), _chosen),
    (frozenset({SCAN, "rdutune.ssm_scan", "rdutune.selective_scan"}) | costs.DELTAS, _recurrence),
)
RULES: Final[dict[str, Rule]] = {name: rule for names, rule in _TABLE for name in names}
