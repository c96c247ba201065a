"""What surrounds the layers: the model exported with one node for every layer, then cut into before and after."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from compiler.errors import InputError
from compiler.frontend.capture.between import Between, between
from compiler.frontend.capture.export import Program, uses
from compiler.frontend.capture.ir import Capture, Node, Ref, Value
from compiler.frontend.capture.record import Call, containers

LAYER = "rdutune.layer.default"


def _stub(layer: Any, calls: list[tuple[int, Call]]) -> Any:
    """A module without parameters that answers like `layer` did: the attributes of the layer, one node for its work."""
    import torch
    from torch.utils import _pytree

    class Stub(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.__dict__["_count"] = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(layer, name)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            number, call = calls[self._count % len(calls)]
            self.__dict__["_count"] += 1
            leaves, spec = _pytree.tree_flatten((call.outputs, list(call.stored.values())))
            made = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            given = [x for x in _pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            ranks, sizes = [t.dim() for t in made], [size for t in made for size in t.shape]
            out = iter(torch.ops.rdutune.layer(given, number, ranks, sizes, [t.dtype for t in made]))
            filled = [next(out) if isinstance(x, torch.Tensor) else x for x in leaves]
            outputs, stored = _pytree.tree_unflatten(filled, spec)
            shared = containers(args, kwargs)
            for (place, key), value in zip(call.stored, stored, strict=True):
                shared[place][key] = value
            return outputs

    return Stub()


@contextmanager
def stubbed(lists: tuple[Any, ...], calls: list[Call]) -> Iterator[None]:
    """The modules of the lists are stubs inside, and the layers again afterwards. Calls count through all lists."""
    places = [(layers, index) for layers in lists for index in range(len(layers))]
    whole = [layers[index] for layers, index in places]
    of_layer: dict[int, list[tuple[int, Call]]] = {}
    for number, call in enumerate(calls):
        of_layer.setdefault(call.layer, []).append((number, call))
    try:
        for index, own in of_layer.items():
            stub = _stub(whole[index], own)
            for (layers, at), layer in zip(places, whole, strict=True):
                if layer is whole[index]:  # one module in several places is one stub
                    layers[at] = stub
        yield
    finally:
        for (layers, at), layer in zip(places, whole, strict=True):
            layers[at] = layer


@dataclass(frozen=True, slots=True)
class Cut:
    """What surrounds the layers; middle: what lies between encoder and decoder; feeds: what each call is given.

    follows: by call, the work between its layer and the next one.
    """

    before: Capture
    middle: Capture | None
    after: Capture
    feeds: list[tuple[str, ...]]
    follows: dict[int, Between]


def cut(name: str, program: Program, encoders: int = 0) -> Cut:
    """The model around its layers, of which the first `encoders` are an encoder's with a decoder behind it.

    Raises InputError when the model computes something between two layers of a stack that is no work of one layer.
    """
    program = _without_copies(program)
    layers = [node for node in program.nodes if node.target == LAYER]
    inner = [node for node in program.nodes if node.target != LAYER]
    last = layers[encoders:]
    depends = _dependent(program.nodes, last)
    after = [node for node in inner if node.outputs[0].name in depends]
    rest = [node for node in inner if node.outputs[0].name not in depends]
    follows = between(program, last, after)
    ours = {id(node) for one in follows.values() for node in one.nodes}
    after = [node for node in after if id(node) not in ours]
    _refuse_between(name, last, after)
    if not encoders:
        more = tuple(node for one in follows.values() for node in one.nodes)
        before, ends = rest, _needed(program, (*layers, *more, *after))
        middle = None
    else:
        behind = _dependent(program.nodes, layers[:encoders])
        _refuse_between(name, layers[:encoders], [node for node in rest if node.outputs[0].name in behind])
        ends = _needed(program, layers[:encoders], results=False)
        before = _above(rest, set(ends))
        middle = _middle(program, rest, (layers[encoders - 1], last, after))
    out = _made(program, before, ends)
    hidden = uses(layers[0])[:1] if layers else []
    first = tuple(value for value in hidden if value in out)
    head = _part(program, "before", before, (*first, *(value for value in out if value not in first)))
    known = [set(head.outputs)] * encoders + [set((middle or head).outputs)] * len(last)
    feeds = [tuple(v if v in names else "" for v in uses(node)) for node, names in zip(layers, known, strict=True)]
    end = _after(program, after, layers, middle.nodes if middle else before)
    return Cut(head, middle, end, feeds, {encoders + number: one for number, one in follows.items()})


def _without_copies(program: Program) -> Program:
    """`program` without slices that take all there is, and other copies (before layers that only read caches)."""
    shapes = {v.name: v.shape for node in program.nodes for v in node.outputs}
    same: dict[str, str] = {}
    kept = []
    for node in program.nodes:
        node = replace(node, args=_renamed(node.args, same), kwargs=_renamed(node.kwargs, same))
        source = node.args[0] if node.args else None
        if isinstance(source, Ref) and _copies(node, shapes.get(source.name)):
            same[node.outputs[0].name] = source.name
        else:
            kept.append(node)
    results = [same.get(name, name) for name in program.results]
    return replace(program, nodes=kept, results=results)


def _copies(node: Node, shape: tuple[int, ...] | None) -> bool:
    """Whether a node gives what it is given, which has that `shape`."""
    return node.target == "aten.alias.default" or (
        node.target == "aten.slice.Tensor" and node.outputs[0].shape == shape
    )


def _renamed(value: Any, same: dict[str, str]) -> Any:
    """Arguments with the values that are copies read from their source."""
    if isinstance(value, Ref):
        return Ref(same.get(value.name, value.name))
    return tuple(_renamed(item, same) for item in value) if isinstance(value, tuple) else value


def _needed(program: Program, nodes: Iterable[Node], results: bool = True) -> list[str]:
    """The values that `nodes` read, and those the program gives."""
    return [used for node in nodes for used in uses(node)] + (program.results if results else [])


def _made(program: Program, nodes: list[Node], needed: list[str]) -> tuple[str, ...]:
    """Of the values needed, those that `nodes` or the inputs give."""
    made = _names(program, nodes) - _stored(program)
    return tuple(dict.fromkeys(used for used in needed if used in made))


def _above(nodes: list[Node], wanted: set[str]) -> list[Node]:
    """The nodes that `wanted` values need."""
    found = []
    for node in reversed(nodes):
        if wanted.intersection(value.name for value in node.outputs):
            found.append(node)
            wanted.update(uses(node))
    return found[::-1]


def _middle(program: Program, rest: list[Node], around: tuple[Node, list[Node], list[Node]]) -> Capture:
    """Between encoder and decoder. Its inputs: the decoder's tokens, then what the encoder's last layer gives."""
    encoder, decoder, after = around
    ends = _needed(program, (*decoder, *after))
    nodes = _above(rest, set(ends))
    memory = encoder.outputs[0]
    read = set(_needed(program, nodes)) | set(ends)
    hidden = uses(decoder[0])[0]
    out = [value for value in (*_made(program, nodes, ends), memory.name) if value in ends]
    part = _part(program, "middle", nodes, tuple(sorted(out, key=lambda value: value != hidden)))
    inputs = (*(value for value in program.inputs if value.name in read), *([memory] if memory.name in read else []))
    return replace(part, inputs=inputs)


def _dependent(nodes: list[Node], layers: list[Node]) -> set[str]:
    """The values that depend on one of `layers`."""
    own = {id(node) for node in layers}
    found: set[str] = set()
    for node in nodes:
        if id(node) in own or any(used in found for used in uses(node)):
            found.update(value.name for value in node.outputs)
    return found


def _refuse_between(name: str, layers: list[Node], after: list[Node]) -> None:
    made = {value.name: node for node in after for value in node.outputs}
    wrong = [made[used] for layer in layers for used in uses(layer) if used in made]
    if wrong:
        places = ", ".join(dict.fromkeys(f"{node.module or 'the model'} ({node.line})" for node in wrong))
        raise InputError(
            name, f"computes something between two layers: {places}", "only a chain of layers is understood"
        )


def _stored(program: Program) -> set[str]:
    return {value.name for value in (*program.weights, *program.buffers)}


def _names(program: Program, nodes: list[Node]) -> set[str]:
    return {value.name for value in program.inputs} | {value.name for node in nodes for value in node.outputs}


def _part(program: Program, label: str, nodes: list[Node], outputs: tuple[str, ...]) -> Capture:
    used = {name for node in nodes for name in uses(node)} | set(outputs)
    return Capture(
        label,
        tuple(value for value in program.inputs if label == "before" and (value.name in used or not nodes)),
        tuple(value for value in program.weights if value.name in used),
        tuple(nodes),
        outputs,
        tuple(value for value in program.buffers if value.name in used),
    )


def _after(program: Program, nodes: list[Node], layers: list[Node], before: Iterable[Node]) -> Capture:
    """The part after the layers. Its inputs: the last layer's hidden states, then whatever else it reads."""
    made = {value.name for node in nodes for value in node.outputs}
    values: dict[str, Value] = {v.name: v for v in program.inputs}
    values |= {v.name: v for node in (*layers, *before) for v in node.outputs}
    read = dict.fromkeys(used for node in nodes for used in uses(node) if used not in made and used in values)
    read |= dict.fromkeys(used for used in program.results if used not in made and used in values)
    last = layers[-1].outputs[0].name if layers else ""
    names = sorted(read, key=lambda used: used != last)
    part = _part(program, "after", nodes, tuple(program.results))
    return Capture(part.label, tuple(values[n] for n in names), part.weights, part.nodes, part.outputs, part.buffers)
