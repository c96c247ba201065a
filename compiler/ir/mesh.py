"""Which socket holds what: digits of the socket number, and the layout of a tensor over them.

Sockets are numbered 0..N-1. A split over `ways` sockets takes a digit of that number, `socket // stride % ways`; along
all other digits sockets hold the same. Two digits are disjoint where one ends before the other begins; what is split
along several takes disjoint ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import prod


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """A digit of the socket number: `socket // stride % ways`."""

    ways: int
    stride: int

    def __post_init__(self) -> None:
        if self.ways < 2 or self.stride < 1:
            raise ValueError(f"a digit of {self.ways} ways, stride {self.stride}")

    def place(self, socket: int) -> int:
        """The value of the digit on `socket`, 0..ways-1."""
        return socket // self.stride % self.ways

    def disjoint(self, other: "MeshAxis") -> bool:
        """Whether the digits share nothing, so that every pair of their values is on some socket."""
        low, high = sorted((self, other), key=lambda a: a.stride)
        return high.stride % (low.stride * low.ways) == 0


def merged(axes: Iterable[MeshAxis]) -> tuple[MeshAxis, ...]:
    """Disjoint digits as the fewest that make the same groups of sockets, lowest first: equal groups, equal values."""
    out: list[MeshAxis] = []
    for axis in sorted(axes, key=lambda a: a.stride):
        if out and out[-1].stride * out[-1].ways == axis.stride:
            axis = MeshAxis(out[-1].ways * axis.ways, out.pop().stride)
        out.append(axis)
    return tuple(out)


def groups(axes: tuple[MeshAxis, ...], sockets: int) -> tuple[tuple[int, ...], ...]:
    """The sockets that differ in the digits `axes` only, group by group, each ordered by those digits, first first."""
    found: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for socket in range(sockets):
        places = tuple(axis.place(socket) for axis in axes)
        rest = socket - sum(axis.stride * place for axis, place in zip(axes, places, strict=True))
        found.setdefault(rest, []).append((places, socket))
    return tuple(tuple(socket for _, socket in sorted(members)) for _, members in sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Split:
    """A dimension of `whole` elements over sockets, `local` on each; with padding local x ways is more than `whole`."""

    dim: str
    axis: MeshAxis
    whole: int
    local: int

    def __post_init__(self) -> None:
        if not 1 <= self.local <= self.whole or self.local * self.axis.ways < self.whole:
            raise ValueError(f"{self.dim}: {self.axis.ways} shards of {self.local} of {self.whole}")

    def span(self, socket: int) -> tuple[int, int]:
        """First element, and one past the last, that `socket` holds: the rest of its `local` elements is padding."""
        first = min(self.whole, self.axis.place(socket) * self.local)
        return first, min(self.whole, first + self.local)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the sockets hold a tensor.

    splits: dimensions of which a socket has a slice. partial: the value is the sum of what the sockets of a group along
    these digits hold (`merged`); an operand that is added, not multiplied (a bias, a rotary part passed on), is in the
    summand of the first socket of a group only. apart: a slot means something on the sockets only that have its expert:
    those whose digit is expert * ways // experts.
    """

    splits: tuple[Split, ...] = ()
    partial: tuple[MeshAxis, ...] = ()
    apart: MeshAxis | None = None

    def __post_init__(self) -> None:
        axes = self.axes
        if any(not a.disjoint(b) for i, a in enumerate(axes) for b in axes[i + 1 :]):
            raise ValueError(f"digits that overlap: {axes}")
        if self.partial != merged(self.partial):
            raise ValueError(f"partial sums over {self.partial}, not merged")

    @property
    def axes(self) -> tuple[MeshAxis, ...]:
        """Every digit on which what a socket holds depends."""
        return (*(s.axis for s in self.splits), *self.partial, *((self.apart,) if self.apart else ()))

    def split(self, dim: str) -> Split | None:
        return next((s for s in self.splits if s.dim == dim), None)


WHOLE_LAYOUT = Layout()


class CollectiveKind(StrEnum):
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"


@dataclass(frozen=True, slots=True)
class Collective:
    """An exchange in each group of sockets along `axes`; a gather puts dimension dims[i] together along axes[i]."""

    kind: CollectiveKind
    axes: tuple[MeshAxis, ...]
    dims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.axes or len(self.dims) != (len(self.axes) if self.kind is CollectiveKind.ALL_GATHER else 0):
            raise ValueError(f"{self.kind} of {self.dims} over {self.axes}")

    @property
    def ways(self) -> int:
        """Sockets of a group."""
        return prod(axis.ways for axis in self.axes)
