"""The two sides of an encoder-decoder: their numbers of tokens, and what one layer computes for all that follow.

A table of positions that the first layer makes and hands on (T5's relative bias) is made in every layer here: its nodes
are copied, and its weight keeps the key it has in the first layer, so that it is stored and counted once.
"""

from dataclasses import dataclass, replace
from typing import Any

from compiler.errors import InputError
from compiler.frontend.capture.export import uses
from compiler.frontend.capture.given import is_image
from compiler.frontend.capture.ir import TRACED_TOKENS, Argument, Capture, Captured, Node, Ref, Value
from compiler.frontend.capture.record import Call

Kinds = tuple[tuple[Capture, ...], tuple[tuple[str, ...], ...]]


def tensors(leaves: list[Any]) -> list[Any]:
    """The tensors among flattened arguments."""
    import torch

    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def hidden_number(call: Call) -> int:
    """Which tensor input is the hidden states: the first one of the shape of the first output."""
    from torch.utils import _pytree

    outputs = tensors(_pytree.tree_leaves(call.outputs))
    shape = outputs[0].shape if outputs else None
    return next((n for n, tensor in enumerate(tensors(call.leaves)) if tensor.shape == shape), 0)


@dataclass(frozen=True, slots=True)
class Sides:
    """Tokens of a traced sequence: of the layers (or the decoder), of the encoder before it, of what is fixed."""

    tokens: int
    source: int
    fixed: int

    @classmethod
    def of(cls, opened: Any, calls: list[Call], encoders: int) -> "Sides":
        """From what the layers were called with. InputError where the number of tokens changes between layers."""
        if opened.inputs is None and opened.config is None:
            return cls(TRACED_TOKENS, 0, 0)
        text = not is_image(opened.inputs) if opened.inputs else opened.module.main_input_name == "input_ids"
        if text and not encoders:
            return cls(TRACED_TOKENS, 0, 0)
        hidden = [tuple(tensors(call.leaves)[hidden_number(call)].shape) for call in calls]
        if any(len(shape) != 3 for shape in hidden):
            raise InputError(opened.name, f"gives its layers {hidden[0]}, and not (batch, tokens, width)")
        own = [int(shape[-2]) for shape in hidden]
        first, last = own[:encoders], own[encoders:]
        for side in (first, last):
            if len(set(side)) > 1:
                counts = ", ".join(str(count) for count in dict.fromkeys(side))
                raise InputError(opened.name, f"has layers of different numbers of tokens: {counts}")
        return cls(last[0], first[0] if first else 0, 0 if text else (first or last)[0])

    def side(self, layers: tuple[Capture, ...], encoder: list[bool]) -> tuple[Capture, ...]:
        """The layers with their tokens."""
        both = zip(layers, encoder, strict=True)
        return tuple(self._encoder(one) if early else self._decoder(one) for one, early in both)

    def _encoder(self, capture: Capture) -> Capture:
        return replace(capture, tokens=self.source)

    def _decoder(self, capture: Capture) -> Capture:
        return replace(capture, tokens=self.tokens, memory=self.source)

    def placed(self, made: Captured, middle: Capture | None, encoders: int) -> Captured:
        """`made` with what lies between its sides."""
        if middle is None:
            before, after = (replace(part, tokens=self.tokens) for part in (made.before, made.after))
            return replace(made, before=before, after=after, fixed=self.fixed)
        return replace(
            made,
            before=self._encoder(made.before),
            middle=self._decoder(middle),
            after=self._decoder(made.after),
            encoders=encoders,
            fixed=self.fixed,
        )


def repeated(
    layers: tuple[Capture, ...], calls: list[Call], sequence: tuple[int, ...], numbers: list[int]
) -> tuple[Capture, ...]:
    """The kinds of layers, with the full key of every weight of a layer that runs several times and is stored once."""
    out = []
    for kind, layer in enumerate(layers):
        own = [call.layer for call, of in zip(calls, sequence, strict=True) if of == kind]
        if len(own) > 1 and len(set(own)) == 1:
            number = str(numbers[own[0]])
            weights = tuple(replace(value, key=value.key.replace("{layer}", number)) for value in layer.weights)
            layer = replace(layer, weights=weights)
        out.append(layer)
    return tuple(out)


def carried(made: Kinds, calls: list[Call], firsts: list[int], numbers: list[int]) -> Kinds:
    """The kinds of layers and their feeds, with every table that an earlier layer hands on made where it is read.

    firsts: the first call of each kind; numbers: of each layer, its number in its own list.
    """
    layers, feeds = list(made[0]), [list(feed) for feed in made[1]]
    sources = {first: kind for kind, first in enumerate(firsts)}
    for kind, first in enumerate(firsts):
        given = tensors(calls[first].leaves)
        hidden = hidden_number(calls[first])
        rest = [tensor for number, tensor in enumerate(given) if number != hidden]
        for place in reversed(range(1, len(layers[kind].inputs))):
            origin = None if feeds[kind][place] else _origin(rest[place - 1], calls[:first])
            if origin is None or origin[0] not in sources:
                continue
            owner = sources[origin[0]]
            fixed = _absolute(layers[owner], str(numbers[calls[origin[0]].layer]), origin[1])
            if fixed is None:
                continue
            layers[owner], part = fixed
            layers[kind] = _with(layers[kind], place, part)
            del feeds[kind][place]
    return tuple(layers), tuple(tuple(feed) for feed in feeds)


def _origin(tensor: Any, calls: list[Call]) -> tuple[int, int] | None:
    """(call, number of the output) that first gave `tensor`."""
    from torch.utils import _pytree

    for number, call in enumerate(calls):
        for place, leaf in enumerate(tensors(_pytree.tree_leaves(call.outputs))):
            if leaf is tensor and place:
                return number, place
    return None


def _absolute(owner: Capture, number: str, place: int) -> tuple[Capture, Capture] | None:
    """(`owner` with the full key of every weight that output `place` is made of, the part that makes the output).

    None where the output depends on activations.
    """
    wanted, nodes = {owner.outputs[place]}, list[Node]()
    for node in reversed(owner.nodes):
        if wanted.intersection(value.name for value in node.outputs):
            nodes.append(node)
            wanted.update(uses(node))
    if wanted.intersection(value.name for value in owner.inputs):
        return None

    def named(value: Value) -> Value:
        return replace(value, key=value.key.replace("{layer}", number)) if value.name in wanted else value

    weights = tuple(named(value) for value in owner.weights)
    own = tuple(value for value in weights if value.name in wanted)
    buffers = tuple(value for value in owner.buffers if value.name in wanted)
    part = Capture("carried", (), own, tuple(nodes[::-1]), owner.outputs[place : place + 1], buffers)
    return replace(owner, weights=weights), part


def _with(capture: Capture, place: int, part: Capture) -> Capture:
    """`capture` with input `place` computed by `part`."""
    new = {value.name: f"carried{place}.{value.name}" for node in part.nodes for value in node.outputs}
    new |= {value.name: f"carried{place}.{value.name}" for value in (*part.weights, *part.buffers)}
    new[part.outputs[0]] = capture.inputs[place].name
    nodes = tuple(
        replace(
            node,
            args=tuple(_renamed(argument, new) for argument in node.args),
            kwargs=tuple((key, _renamed(argument, new)) for key, argument in node.kwargs),
            outputs=tuple(replace(value, name=new[value.name]) for value in node.outputs),
        )
        for node in part.nodes
    )
    return replace(
        capture,
        inputs=tuple(value for number, value in enumerate(capture.inputs) if number != place),
        weights=(*capture.weights, *(replace(value, name=new[value.name]) for value in part.weights)),
        buffers=(*capture.buffers, *(replace(value, name=new[value.name]) for value in part.buffers)),
        nodes=(*nodes, *capture.nodes),
    )


def _renamed(argument: Argument, names: dict[str, str]) -> Argument:
    if isinstance(argument, Ref):
        return Ref(names.get(argument.name, argument.name))
    return tuple(_renamed(item, names) for item in argument) if isinstance(argument, tuple) else argument
