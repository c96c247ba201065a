"""Recurrences written out token by token, put back together as one operator.

A loop over the tokens leaves a copy of its body for every traced token: each selects its token from the same tensors,
reads what the copy before it made (the state), and the results are collected in order. Only where every copy is the
same, looks at no later token, and works element by element on states of the shape of a token's result.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from compiler.frontend.capture.costs import CREATIONS, ELEMENTWISE, aten
from compiler.frontend.capture.ir import Argument, Capture, Node, Ref
from compiler.frontend.capture.seen import Call

Shapes = dict[str, tuple[int, ...]]

#: The target of a recurrence: a tensor of all tokens, what else the loop reads, operations an element, its states.
SCAN = "rdutune.scan"

_PLACES = frozenset(aten("_to_copy to clone alias view reshape unsqueeze squeeze contiguous expand copy"))
_MADE = CREATIONS | frozenset(aten("zeros ones full scalar_tensor arange"))
#: A tensor filled row by row, and the places of the row, its dimension and its number.
_FILLS = {"aten.select_scatter": (1, 2, 3)}


@dataclass(frozen=True, slots=True)
class _Loop:
    """A collected recurrence. steps: the nodes of every token, in order; reads: the values the loop reads."""

    last: Node
    steps: tuple[tuple[Node, ...], ...]
    reads: tuple[str, ...]
    states: int

    def node(self, shapes: Shapes) -> Node:
        """The operator that stands for the loop."""
        out = self.last.outputs[0]
        whole = [name for name in self.reads if shapes[name] == out.shape]
        rest = tuple(Ref(name) for name in self.reads if name != whole[0])
        work = sum(ELEMENTWISE.get(Call(node).name, 0) for node in self.steps[-2])
        args: tuple[Argument, ...] = (Ref(whole[0]), rest, work, self.states)
        return replace(self.steps[-1][-1], target=f"{SCAN}.default", args=args, kwargs=(), outputs=(out,))


def rolled(capture: Capture) -> Capture:
    """`capture` with every written-out recurrence as one `rdutune.scan`."""
    made = {value.name: node for node in capture.nodes for value in node.outputs}
    shapes = {v.name: v.shape for v in (*capture.inputs, *capture.weights, *capture.buffers)}
    shapes |= {v.name: v.shape for node in capture.nodes for v in node.outputs}
    nodes: list[Node] = []
    for node in capture.nodes:
        pieces = _collected(node, made, capture.tokens)
        loop = _loop(node, pieces, made, shapes) if pieces else None
        nodes.append(node if loop is None else loop.node(shapes))
    return replace(capture, nodes=tuple(nodes))


def _collected(node: Node, made: dict[str, Node], tokens: int) -> tuple[str, ...]:
    """The results of all tokens, in order, that `node` puts together; nothing where it does not."""
    call = Call(node)
    if call.name == "aten.stack":
        items = call.get(0)
        names = tuple(item.name for item in items if isinstance(item, Ref)) if isinstance(items, tuple) else ()
        return names if len(names) == tokens else ()
    rows: list[str] = []
    at: Node | None = node
    while at is not None and Call(at).name in _FILLS:
        row, dim, number = _FILLS[Call(at).name]
        step = Call(at)
        if step.number(number) != tokens - 1 - len(rows) or at.outputs[0].shape[step.number(dim)] != tokens:
            return ()
        rows.append(step.must(row))
        at = made.get(step.must(0))
    return tuple(rows[::-1]) if len(rows) == tokens else ()


def _loop(last: Node, pieces: tuple[str, ...], made: dict[str, Node], shapes: Shapes) -> _Loop | None:
    """The recurrence whose results are `pieces`, where it is one."""
    tokens = len(pieces)
    walk = _Walk(made, shapes, tokens)
    if any(walk.number(name) != number for number, name in enumerate(pieces)):
        return None
    walk.settle(pieces)
    steps = tuple(tuple(node for node in walk.inside if walk.numbers[_out(node)] == n) for n in range(tokens))
    bodies = [Counter(node.target for node in step if Call(node).name not in _PLACES) for step in steps]
    same = all(body == bodies[1] for body in bodies[1:-1]) and bodies[-1] <= bodies[1]
    reads = [{name: walk.numbers[name] for node in step for name in _reads(node)} for step in steps]
    carried = [name for name, number in reads[-2].items() if number == tokens - 3]
    skips = any(0 <= number < n - 1 for n, step in enumerate(reads) for number in step.values())
    row = prod(shapes[pieces[-1]])
    known = all(Call(node).name in ELEMENTWISE or Call(node).name in _PLACES for node in walk.inside)
    outside = walk.read_later(reads)
    whole = any(shapes[name] == last.outputs[0].shape for name in outside)
    if not same or not carried or skips or not known or not whole or any(prod(shapes[name]) != row for name in carried):
        return None
    return _Loop(last, steps, outside, len(carried))


class _Walk:
    """From results back to what a loop reads: `numbers` the token of each value inside, `outside` what is read."""

    def __init__(self, made: dict[str, Node], shapes: Shapes, tokens: int) -> None:
        self.made, self.shapes, self.tokens = made, shapes, tokens
        self.numbers: dict[str, int] = {}
        self.inside: list[Node] = []
        self.outside: dict[str, None] = {}
        self.leaves: dict[str, frozenset[str]] = {}

    def number(self, name: str) -> int:
        """The last token that `name` depends on; -1 where it depends on no token alone."""
        if name in self.numbers:
            return self.numbers[name]
        node = self.made.get(name)
        if node is None or len(node.outputs) != 1:
            found = -1
        elif self._selects(node):
            found = Call(node).number(2)
            self.outside[Call(node).must(0)] = None
        elif self.tokens in node.outputs[0].shape or Call(node).name in _MADE:
            found = -1
        else:
            found = max((self.number(read) for read in _reads(node)), default=-1)
            if found >= 0:
                self.inside.append(node)
                self.outside.update(dict.fromkeys(read for read in _reads(node) if self.number(read) < 0))
        self.numbers[name] = found
        return found

    def settle(self, pieces: tuple[str, ...]) -> None:
        """Let what is made of one value of a step and read in the next alone belong to the next: a state is not it."""
        users: dict[str, list[str]] = {}
        for node in self.inside:
            for name in _reads(node):
                users.setdefault(name, []).append(_out(node))
        for node in reversed(self.inside):
            name, inner = _out(node), [read for read in _reads(node) if self.numbers[read] >= 0]
            if len(inner) == 1 and name not in pieces and not self._selects(self.made[inner[0]]):
                self.numbers[name] = max(self.numbers[name], min(self.numbers[user] for user in users[name]))

    def _selects(self, node: Node) -> bool:
        call = Call(node)
        return call.name == "aten.select" and self.shapes[call.must(0)][call.number(1)] == self.tokens

    def read_later(self, reads: list[dict[str, int]]) -> tuple[str, ...]:
        """What is read from outside the loop, without the state it starts from where that is made of nothing else."""
        later = {name for step in reads[1:] for name in step} | {name for name in self.outside if self._whole(name)}
        known = frozenset[str]().union(*(self._leaves(name) for name in later if name in self.outside))
        return tuple(name for name in self.outside if name in later or not self._leaves(name) <= known)

    def _whole(self, name: str) -> bool:
        """Whether a value has all tokens, of which each step selects its own."""
        return self.tokens in self.shapes[name]

    def _leaves(self, name: str) -> frozenset[str]:
        """The inputs and weights that a value is made of."""
        if name not in self.leaves:
            node = self.made.get(name)
            reads = () if node is None or Call(node).name in _MADE else Call(node).refs()
            own = frozenset({name} if node is None else ())
            self.leaves[name] = own.union(*(self._leaves(read) for read in reads))
        return self.leaves[name]


def _out(node: Node) -> str:
    return node.outputs[0].name


def _reads(node: Node) -> Iterable[str]:
    """The values whose elements a node reads: of a copy into a place, not the place."""
    refs = Call(node).refs()
    return refs[1:] if Call(node).name == "aten.copy" else refs
