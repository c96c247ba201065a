"""Work between two layers, done by the layer before: a factor after some layers (RWKV), a norm after a section.

Only where it reads the layer before alone, and only the next layer reads it: anything else is another stream of
activations beside the hidden states, which is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from compiler.frontend.capture.export import Program, refs, uses
from compiler.frontend.capture.ir import Argument, Capture, Node, Ref, Value

_PREFIX = "between."


@dataclass(frozen=True, slots=True)
class Between:
    """What follows one layer: its nodes, the value it is about, its result, and the weights and tables it reads."""

    nodes: tuple[Node, ...]
    source: str
    result: str
    weights: tuple[Value, ...]
    buffers: tuple[Value, ...]
    given: tuple[Value, ...]

    @property
    def print(self) -> str:
        """Equal where two layers are followed by the same work: values by order of appearance, weights by key."""
        numbers = {self.source: "0"} | {value.name: value.key for value in self.weights}
        words = []
        for node in self.nodes:
            for value in node.outputs:
                numbers[value.name] = str(len(numbers))
            scalars = [arg for arg in (*node.args, *node.kwargs) if not refs((arg,)) and not isinstance(arg, float)]
            words.append(f"{node.target}{[numbers.get(name, name) for name in uses(node)]}{scalars}")
        return ";".join(words)


def between(program: Program, layers: Sequence[Node], nodes: Sequence[Node]) -> dict[int, Between]:
    """By layer: what follows it, of the `nodes` that depend on layers. Where it is no such chain, it is left out."""
    readers: dict[str, list[Node]] = {}
    for node in (*nodes, *layers):
        for name in uses(node):
            readers.setdefault(name, []).append(node)
    known = _known(program, layers, nodes)
    out: dict[int, Between] = {}
    for number, (layer, following) in enumerate(pairwise(layers)):
        chain = {id(node) for node in _chain(layer.outputs[0].name, following, readers)}
        own = [node for node in nodes if id(node) in chain]
        inside = {value.name for node in own for value in node.outputs}
        results = [name for name in uses(following) if name in inside]
        read = [name for node in own for name in uses(node) if name not in inside and name != layer.outputs[0].name]
        ends = {id(node) for node in own} | {id(following)}
        alone = all(id(user) in ends for name in (layer.outputs[0].name, *inside) for user in readers.get(name, ()))
        if own and len(set(results)) == 1 and alone and not set(program.results) & inside and known.keys() >= set(read):
            names = dict.fromkeys(read)
            kinds = (program.weights, program.buffers)
            weights, buffers = (tuple(value for value in kind if value.name in names) for kind in kinds)
            stored = {value.name for value in (*weights, *buffers)}
            given = tuple(known[name] for name in names if name not in stored)
            out[number] = Between(tuple(own), layer.outputs[0].name, results[0], weights, buffers, given)
    return out


def _chain(name: str, following: Node, readers: dict[str, list[Node]]) -> list[Node]:
    """The nodes between a layer's result and the layer that follows, in order."""
    own: dict[int, Node] = {}
    todo = [name]
    while todo:
        for node in readers.get(todo.pop(), ()):
            if node is not following and node.target != following.target and id(node) not in own:
                own[id(node)] = node
                todo.extend(value.name for value in node.outputs)
    return list(own.values())


def _known(program: Program, layers: Sequence[Node], nodes: Sequence[Node]) -> dict[str, Value]:
    """What is there before the first layer, by name."""
    late = {value.name for node in (*layers, *nodes) for value in node.outputs}
    made = [value for node in program.nodes for value in node.outputs if value.name not in late]
    return {value.name: value for value in (*program.inputs, *program.weights, *program.buffers, *made)}


def followed(layer: Capture, after: Between) -> Capture:
    """`layer` with the work after it at its end; what it is given besides are its last inputs."""
    new = {value.name: _PREFIX + value.name for node in after.nodes for value in node.outputs}
    new |= {value.name: _PREFIX + value.name for value in (*after.weights, *after.buffers, *after.given)}
    new[after.source] = layer.outputs[0]

    def moved(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(replace(value, name=new[value.name]) for value in values)

    nodes = tuple(
        replace(
            node,
            args=tuple(_renamed(argument, new) for argument in node.args),
            kwargs=tuple((key, _renamed(argument, new)) for key, argument in node.kwargs),
            outputs=moved(node.outputs),
        )
        for node in after.nodes
    )
    return replace(
        layer,
        inputs=(*layer.inputs, *moved(after.given)),
        weights=(*layer.weights, *moved(after.weights)),
        buffers=(*layer.buffers, *moved(after.buffers)),
        nodes=(*layer.nodes, *nodes),
        outputs=(new[after.result], *layer.outputs[1:]),
    )


def _renamed(argument: Argument, names: dict[str, str]) -> Argument:
    if isinstance(argument, Ref):
        return Ref(names[argument.name])
    return tuple(_renamed(item, names) for item in argument) if isinstance(argument, tuple) else argument
