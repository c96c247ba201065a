"""What is known of the values of one capture while its nodes are walked: axes, and which tensors each is read from."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from compiler.frontend.capture.axes import Atoms, Axes, Axis
from compiler.frontend.capture.ir import TRACED_TOKENS, Argument, Node, Ref


class Origin(IntEnum):
    """What a value depends on; of several, the greatest counts."""

    TABLE = 0  # positions and constants only: computed once, ahead of time
    WEIGHT = 1
    DATA = 2


@dataclass(frozen=True, slots=True)
class Seen:
    """A value: its axes, and the tensors it is a view of (one, or several where they are concatenated)."""

    axes: Axes
    roots: tuple[str, ...]
    origin: Origin


@dataclass
class Walk:
    """The atoms and values of one capture."""

    atoms: Atoms = field(default_factory=lambda: Atoms(TRACED_TOKENS))
    seen: dict[str, Seen] = field(default_factory=dict)
    pairs: dict[Axis, Axis] = field(default_factory=dict)  # of a complex axis, that of real and imaginary part

    def axis(self, size: int) -> Axis:
        """A new axis; the tokens (of this side, of the encoder) where it has their number, which no other size has."""
        for atom in (self.atoms.tokens, self.atoms.memory):
            if size == self.atoms.size(atom):
                return (atom,)
        return self.atoms.axis(size)

    def axes(self, shape: Iterable[int]) -> Axes:
        return tuple(self.axis(size) for size in shape)

    def origin(self, names: Iterable[str]) -> Origin:
        return max((self.seen[name].origin for name in names), default=Origin.TABLE)

    def roots(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(root for name in names for root in self.seen[name].roots))


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a node, by place or by name."""

    node: Node

    @property
    def name(self) -> str:
        """`namespace.name` without the overload."""
        return ".".join(self.node.target.split(".")[:2])

    @property
    def out(self) -> str:
        return self.node.outputs[0].name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.outputs[0].shape

    def get(self, place: int, name: str = "", default: Argument = None) -> Argument:
        if place < len(self.node.args):
            return self.node.args[place]
        return dict(self.node.kwargs).get(name, default)

    def number(self, place: int, name: str = "", default: int = 0) -> int:
        value = self.get(place, name, default)
        return value if isinstance(value, int) else default

    def ref(self, place: int, name: str = "") -> str | None:
        value = self.get(place, name)
        return value.name if isinstance(value, Ref) else None

    def must(self, place: int, name: str = "") -> str:
        """The value an argument names; ValueError where it is none."""
        found = self.ref(place, name)
        if found is None:
            raise ValueError(f"{self.node.target}: argument {place} is no tensor")
        return found

    def refs(self) -> tuple[str, ...]:
        """All values read, in order, each once."""
        arguments = (*self.node.args, *(value for _, value in self.node.kwargs))
        return tuple(dict.fromkeys(ref for argument in arguments for ref in _refs(argument)))


def _refs(argument: Argument) -> Iterable[str]:
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple):
        for item in argument:
            yield from _refs(item)
