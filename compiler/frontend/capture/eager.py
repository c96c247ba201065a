"""Attention written out as two products around a softmax, put back together as one operator.

Only where what is added to the scores depends on positions alone: a learned bias is not a mask. A module that masks its
scores attends to earlier tokens only; one that does not attends to all.
"""

from dataclasses import dataclass, replace

from compiler.frontend.capture.costs import ELEMENTWISE
from compiler.frontend.capture.ir import Capture, Node, Ref
from compiler.frontend.capture.seen import Call

#: Products of two tensors, and the places of their operands.
_PRODUCTS = {"aten.matmul": (0, 1), "aten.bmm": (0, 1), "aten.baddbmm": (1, 2)}
_SOFTMAX = frozenset({"aten.softmax", "aten._softmax"})
SAME = frozenset({"aten._to_copy", "aten.clone", "aten.view", "aten.expand", "aten.reshape", "aten.dropout"})


@dataclass(frozen=True, slots=True)
class _Found:
    """An attention: the two products, and whether scores are masked in between."""

    scores: Node
    values: Node
    masked: bool


def joined(capture: Capture) -> Capture:
    """`capture` with every written-out attention as one `aten.scaled_dot_product_attention`."""
    made = {value.name: node for node in capture.nodes for value in node.outputs}
    moves = moving(capture)
    nodes: list[Node] = []
    for node in capture.nodes:
        found = _attention(node, made, (moves, capture.tokens))
        nodes.extend([node] if found is None else _operator(found, made))
    return replace(capture, nodes=tuple(nodes)) if len(nodes) > len(capture.nodes) else capture


def moving(capture: Capture) -> set[str]:
    """The values that depend on activations or weights."""
    found = {value.name for value in (*capture.inputs[:1], *capture.weights)}
    for node in capture.nodes:
        if found.intersection(Call(node).refs()):
            found.update(value.name for value in node.outputs)
    return found


def _attention(node: Node, made: dict[str, Node], known: tuple[set[str], int]) -> _Found | None:
    """The attention whose second product is `node`. known: the values that move, the number of tokens."""
    moving, tokens = known
    places = _PRODUCTS.get(Call(node).name)
    if places is None or Call(node).ref(places[0]) is None:
        return None
    inner = through(Call(node).must(places[0]), made, moving, SAME)
    softmax = made.get(inner[0])
    if softmax is None or Call(softmax).name not in _SOFTMAX or not _square(softmax, tokens):
        return None
    before, masked = through(Call(softmax).must(0), made, moving, SAME | frozenset(ELEMENTWISE))
    scores = made.get(before)
    if scores is None or Call(scores).name not in _PRODUCTS or not _square(scores, tokens):
        return None
    return _Found(scores, node, masked or Call(scores).name == "aten.baddbmm")


def through(name: str, made: dict[str, Node], moving: set[str], allowed: frozenset[str]) -> tuple[str, bool]:
    """Back through operators with one moving operand; and whether any of them reads a table of tokens by tokens."""
    masked = False
    while (node := made.get(name)) is not None and Call(node).name in allowed:
        refs = Call(node).refs()
        inner = [ref for ref in refs if ref in moving]
        if len(inner) != 1:
            break
        masked = masked or any(ref not in moving for ref in refs)
        name = inner[0]
    return name, masked


def _square(node: Node, tokens: int) -> bool:
    return node.outputs[0].shape[-2:] == (tokens, tokens)


def _operator(found: _Found, made: dict[str, Node]) -> list[Node]:
    """The attention as nodes: keys turned back, a batch in front where there is none, and away again."""
    first, second = _PRODUCTS[Call(found.scores).name], _PRODUCTS[Call(found.values).name]
    out = found.values.outputs[0]
    flat = len(out.shape) == 3
    nodes: list[Node] = []

    def add(target: str, suffix: str, shape: tuple[int, ...], *args: object) -> Ref:
        value = replace(out, name=f"{out.name}.{suffix}", shape=shape)
        nodes.append(replace(found.values, target=target, args=args, kwargs=(), outputs=(value,)))  # type: ignore[arg-type]
        return Ref(value.name)

    def shape_of(name: str) -> tuple[int, ...]:
        return next((v.shape for v in made[name].outputs if v.name == name), ()) if name in made else ()

    names = [Call(found.scores).must(place) for place in first] + [Call(found.values).must(second[1])]
    sides: list[Ref] = []
    for suffix, name in zip("qkv", names, strict=True):
        shape, ref = shape_of(name), Ref(name)
        if suffix == "k":
            shape = (*shape[:-2], shape[-1], shape[-2])
            ref = add("aten.transpose.int", "kt", shape, ref, -2, -1)
        sides.append(add("aten.unsqueeze.default", suffix, (1, *shape), ref, 0) if flat else ref)
    attend = "aten.scaled_dot_product_attention.default"
    shape = (1, *out.shape) if flat else out.shape
    core = add(attend, "core", shape, *sides, None, 0.0, found.masked)
    last = "aten.squeeze.dim" if flat else "aten.alias.default"
    nodes.append(replace(found.values, target=last, args=(core, 0) if flat else (core,), kwargs=(), outputs=(out,)))
    return nodes
