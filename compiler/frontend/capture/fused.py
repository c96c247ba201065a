"""Fused projections taken apart: one matrix whose rows are query, key and value, or gate and up.

Legal because a product with rows side by side is the products side by side; the compiler's merge rewrites put them
together again where that is better. A part's weight has the key of the whole and the number of the part.
"""

from dataclasses import dataclass, replace
from math import prod

from compiler.frontend.capture.costs import ACTIVATIONS, aten
from compiler.frontend.capture.ir import Argument, Capture, Node, Ref, Value
from compiler.frontend.capture.seen import Call

#: A projection and the places of its input, weight and bias.
_PROJECTIONS = {"aten.linear": (0, 1, 2), "aten.addmm": (1, 2, 0), "aten.mm": (0, 1, 2)}
_ATTENTIONS = frozenset({"rdutune.attention", "aten.scaled_dot_product_attention"})
_CHANGES = frozenset(aten("view reshape _unsafe_view transpose permute unsqueeze squeeze contiguous clone _to_copy"))
_CUTS = frozenset(aten("split split_with_sizes chunk unbind select slice index"))
_ENDS = frozenset({*_PROJECTIONS, "aten.matmul", "aten.bmm", "aten.conv1d", "aten.embedding"})

#: The target of a part of a projection: input, weight, bias; its output is the part as it was cut out.
PART = "rdutune.part"


@dataclass(frozen=True, slots=True)
class _Sinks:
    """Where a part of a projection goes: arguments of attentions, projections, and whether through an activation."""

    attention: frozenset[int]
    projections: frozenset[int]
    activated: bool
    other: bool


def taken_apart(capture: Capture) -> Capture:
    """`capture` with its fused projections as one `rdutune.part` node a part."""
    users: dict[str, list[Node]] = {}
    for node in capture.nodes:
        for name in Call(node).refs():
            users.setdefault(name, []).append(node)
    for node in capture.nodes:
        if Call(node).name not in _PROJECTIONS:
            continue
        chain, cuts = _cuts(node, users)
        parts = [value for cut in cuts for value in cut.outputs]
        whole = prod(node.outputs[0].shape)
        if len(parts) < 2 or sum(prod(part.shape) for part in parts) != whole or not _fused(parts, users):
            continue
        return taken_apart(_apart(capture, node, (*chain, *cuts), parts))
    return capture


def _cuts(node: Node, users: dict[str, list[Node]]) -> tuple[list[Node], list[Node]]:
    """(the views of a projection's output, the nodes that cut them); nothing where anything else reads it."""
    chain: list[Node] = []
    cuts: list[Node] = []
    todo = [node.outputs[0].name]
    while todo:
        for user in users.get(todo.pop(), []):
            whole = prod(user.outputs[0].shape) == prod(node.outputs[0].shape)
            if Call(user).name in _CUTS and not whole:
                cuts.append(user)
            elif Call(user).name in _CHANGES | _CUTS:
                chain.append(user)
                todo.append(Call(user).out)
            else:
                return [], []
    return chain, cuts


def _fused(parts: list[Value], users: dict[str, list[Node]]) -> bool:
    """Whether the parts are the query, key and value of an attention, or gate and up of a gated activation."""
    found = [_sinks(part.name, users) for part in parts]
    if any(sinks.other for sinks in found):
        return False
    if all(sinks.attention and not sinks.projections for sinks in found):
        return frozenset[int]().union(*(sinks.attention for sinks in found)) == {0, 1, 2}
    same = {sinks.projections for sinks in found}
    gated = len(same) == 1 and len(found[0].projections) == 1 and not any(sinks.attention for sinks in found)
    return len(parts) == 2 and gated and [sinks.activated for sinks in found].count(True) == 1


def _sinks(name: str, users: dict[str, list[Node]]) -> _Sinks:
    """Follow a part to the first operators that contract it. The activation must come before parts meet."""
    places: set[int] = set()
    ends: set[int] = set()
    activated = other = False
    todo, seen = [(name, True)], {name}
    while todo:
        value, alone = todo.pop()
        for user in users.get(value, []):
            call = Call(user)
            if call.name in _ATTENTIONS:
                places.update(place for place in range(3) if call.ref(place) == value)
            elif call.name in _ENDS:
                ends.add(id(user))
            elif call.name.startswith("rdutune.") and call.name != "rdutune.rms_norm":
                other = True
            else:
                activated = activated or (alone and call.name in ACTIVATIONS)
                single = alone and all(ref in seen for ref in call.refs())
                for out in user.outputs:
                    if out.name not in seen:
                        seen.add(out.name)
                        todo.append((out.name, single))
        other = other or (value not in users)
    return _Sinks(frozenset(places), frozenset(ends), activated, other)


def _apart(capture: Capture, node: Node, gone: tuple[Node, ...], parts: list[Value]) -> Capture:
    x, w, b = _PROJECTIONS[Call(node).name]
    call = Call(node)
    bias = call.ref(b) if b < len(node.args) else None
    old = {value.name: value for value in capture.weights}
    new: list[Value] = []
    made: list[Node] = []
    inner = old[call.must(w)].shape[0 if b == 0 or call.name == "aten.mm" else 1]
    lead = prod(node.outputs[0].shape[:-1])
    for number, part in enumerate(parts):
        rows = _rows(part.shape, lead)
        args: list[Argument] = [Ref(call.must(x))]
        for name, shape in ((call.must(w), (*rows, inner)), *(((bias, rows),) if bias is not None else ())):
            key, origin = f"{old[name].key}[{number}]", old[name].published(number)
            value = replace(old[name], name=f"{name}[{number}]", shape=shape, key=key, parts=(origin,))
            new.append(value)
            args.append(Ref(value.name))
        made.append(replace(node, target=f"{PART}.default", args=tuple(args), kwargs=(), outputs=(part,)))
    dropped = {id(item) for item in gone}
    nodes: list[Node] = []
    for item in capture.nodes:
        if item is node:
            nodes.extend(made)
        elif id(item) not in dropped:
            nodes.append(item)
    used = {name for item in nodes for name in Call(item).refs()}
    weights = tuple(value for value in (*capture.weights, *new) if value.name in used)
    return replace(capture, nodes=tuple(nodes), weights=weights)


def _rows(shape: tuple[int, ...], lead: int) -> tuple[int, ...]:
    """The sizes of a part that are rows of the weight: all but the tokens and single elements."""
    return tuple(size for size in shape if size not in (1, lead))
