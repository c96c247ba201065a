"""What surrounds the layers: the model exported with one node for every layer, then cut into before and after."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from compiler.errors import InputError
from compiler.frontend.capture.export import Program, uses
from compiler.frontend.capture.ir import Capture, Node, Value
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
def stubbed(layers: Any, calls: list[Call]) -> Iterator[None]:
    """The modules of the list `layers` are stubs inside, and the layers again afterwards."""
    whole = list(layers)
    of_layer: dict[int, list[tuple[int, Call]]] = {}
    for number, call in enumerate(calls):
        of_layer.setdefault(call.layer, []).append((number, call))
    try:
        for index, own in of_layer.items():
            layers[index] = _stub(whole[index], own)
        yield
    finally:
        for index, layer in enumerate(whole):
            layers[index] = layer


def cut(name: str, program: Program) -> tuple[Capture, Capture, list[tuple[str, ...]]]:
    """(before, after, the values each call of a layer is given).

    Raises InputError when the model computes something between two layers.
    """
    depends = _dependent(program.nodes)
    layers = [node for node in program.nodes if node.target == LAYER]
    inner = [node for node in program.nodes if node.target != LAYER]
    before = [node for node in inner if node.outputs[0].name not in depends] if layers else inner
    after = [node for node in inner if node.outputs[0].name in depends] if layers else []
    _refuse_between(name, layers, after)
    made = _names(program, before)
    needed = [used for node in (*layers, *after) for used in uses(node)] + program.results
    out = tuple(dict.fromkeys(used for used in needed if used in made and used not in _stored(program)))
    feeds = [tuple(uses(node)) for node in layers]
    hidden = feeds[0][:1] if feeds else ()
    first = tuple(value for value in hidden if value in out)
    head = _part(program, "before", before, (*first, *(value for value in out if value not in first)))
    tail = _after(program, after, layers, before)
    known = set(head.outputs)
    return head, tail, [tuple(value if value in known else "" for value in feed) for feed in feeds]


def _dependent(nodes: list[Node]) -> set[str]:
    """The values that depend on a layer."""
    found: set[str] = set()
    for node in nodes:
        if node.target == LAYER or any(used in found for used in uses(node)):
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
        tuple(value for value in program.inputs if label == "before"),
        tuple(value for value in program.weights if value.name in used),
        tuple(nodes),
        outputs,
        tuple(value for value in program.buffers if value.name in used),
    )


def _after(program: Program, nodes: list[Node], layers: list[Node], before: list[Node]) -> Capture:
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
