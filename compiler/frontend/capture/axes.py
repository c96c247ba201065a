"""Dimension algebra: every axis of a traced tensor is a sequence of atoms, which later uses split and identify.

An atom is a number. A view splits atoms in place (`split`), an element-wise operator identifies them (`unify`), a slice
makes a new atom that remembers what it was cut from (`cut`), and a concatenation of all the cuts gives the whole back
(`join`). An axis of size 1 is the empty sequence. Row-major order throughout: the first atom of an axis varies slowest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

#: Atoms of one axis, slowest first.
Axis = tuple[int, ...]
Axes = tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class _Cut:
    """`piece` is a part of `whole`: every `step`-th element from `start`."""

    piece: Axis
    whole: Axis
    start: int
    step: int


class Atoms:
    """The atoms of one layer: `tokens` of the traced ones, `last` of one of them, `memory` of the encoder's."""

    def __init__(self, tokens: int, memory: int = 0) -> None:
        self._sizes: list[int] = []
        self._same: list[int] = []
        self._parts: dict[int, Axis] = {}
        self._cuts: list[_Cut] = []
        self.tokens = self.fresh(tokens)
        self.last = self.fresh(1)
        self.memory = self.fresh(memory)

    def fresh(self, size: int) -> int:
        """A new atom of `size` elements."""
        self._sizes.append(size)
        self._same.append(len(self._same))
        return len(self._same) - 1

    def axis(self, size: int) -> Axis:
        """A new axis of `size` elements: one new atom, none for a single element."""
        return () if size == 1 else (self.fresh(size),)

    def find(self, atom: int) -> int:
        """The representative of the atoms identified with `atom`."""
        while self._same[atom] != atom:
            atom = self._same[atom]
        return atom

    def size(self, atom: int) -> int:
        return self._sizes[atom]

    def extent(self, axis: Iterable[int]) -> int:
        """Elements along `axis`."""
        return prod(self._sizes[atom] for atom in axis)

    def leaves(self, axis: Iterable[int]) -> Axis:
        """The atoms of `axis` as they are split and identified by now."""
        out: list[int] = []
        for atom in axis:
            root = self.find(atom)
            parts = self._parts.get(root)
            out.extend((root,) if parts is None else self.leaves(parts))
        return tuple(out)

    def flat(self, axes: Axes) -> Axis:
        """All atoms of a tensor in order."""
        return tuple(atom for axis in axes for atom in self.leaves(axis))

    def split(self, atom: int, sizes: tuple[int, ...]) -> Axis:
        """Split a leaf into atoms of `sizes` (their product is its size); everything that has it sees the parts."""
        root = self.find(atom)
        if root in self._parts or prod(sizes) != self._sizes[root]:
            raise ValueError(f"atom of {self._sizes[root]} split into {sizes}")
        self._parts[root] = tuple(self.fresh(size) for size in sizes)
        return self._parts[root]

    def unify(self, one: Axis, other: Axis) -> bool:
        """Identify two axes of equal extent, splitting atoms where they differ. False where no split fits."""
        left, right = self.leaves(one), self.leaves(other)
        if self.extent(left) != self.extent(right):
            return False
        while left and right:
            a, b = left[0], right[0]
            size_a, size_b = self._sizes[a], self._sizes[b]
            if a == b or size_a == size_b:
                self._identify(a, b)
                left, right = left[1:], right[1:]
            elif size_a > size_b and size_a % size_b == 0 and a not in self._rows():
                self.split(a, (size_b, size_a // size_b))
            elif size_b > size_a and size_b % size_a == 0 and b not in self._rows():
                self.split(b, (size_a, size_b // size_a))
            else:
                return False
            left, right = self.leaves(left), self.leaves(right)
        return True

    def _rows(self) -> tuple[int, int]:
        """The atoms that are never split."""
        return self.find(self.tokens), self.find(self.memory)

    def _identify(self, a: int, b: int) -> None:
        if a != b:
            low, high = min(a, b), max(a, b)
            self._same[high] = low

    def regroup(self, axes: Axes, shape: tuple[int, ...]) -> Axes | None:
        """The axes of a view with `shape`. None where the boundaries cross an atom that cannot be split there."""
        rest = list(self.flat(axes))
        out: list[Axis] = []
        for size in shape:
            taken: list[int] = []
            need = size
            while need > 1:
                if not rest:
                    return None
                atom = rest.pop(0)
                have = self._sizes[atom]
                if need % have == 0:
                    taken.append(atom)
                    need //= have
                elif have % need == 0 and atom not in self._rows():
                    first, second = self.split(atom, (need, have // need))
                    taken.append(first)
                    rest.insert(0, second)
                    need = 1
                else:
                    return None
            while rest and taken and self._sizes[rest[0]] == 1:
                taken.append(rest.pop(0))
            out.append(tuple(taken))
        return tuple(out)

    def cut(self, axis: Axis, start: int, size: int, step: int = 1) -> Axis:
        """Every `step`-th element of `axis` from `start`, `size` of them. The same cut again is the same atom."""
        if size == self.extent(axis):
            return axis
        whole = self.leaves(axis)
        if size == 1:
            return (self.last,) if whole == (self.tokens,) else ()
        for old in self._cuts:
            same = (old.start, old.step, self.extent(old.piece)) == (start, step, size)
            if same and self.leaves(old.whole) == whole:
                return old.piece
        piece = (self.fresh(size),)
        self._cuts.append(_Cut(piece, axis, start, step))
        return piece

    def join(self, pieces: tuple[Axis, ...], size: int) -> Axis:
        """The axis of a concatenation: the whole where the pieces are all its cuts, else a new atom of `size`."""
        wholes = [set(self.wholes(piece)) for piece in pieces]
        common = set.intersection(*wholes) if wholes else set()
        for whole in sorted(common):
            if self.extent(whole) == size:
                return whole
        return self.axis(size)

    def wholes(self, piece: Axis) -> list[Axis]:
        """What `piece` was cut from, as leaves."""
        leaves = self.leaves(piece)
        return [self.leaves(cut.whole) for cut in self._cuts if self.leaves(cut.piece) == leaves]

    def extend(self, axis: Axis, size: int) -> Axis:
        """`axis` padded or shortened to `size` elements by a convolution; cutting it back to its size gives it back."""
        if size == self.extent(axis):
            return axis
        for old in self._cuts:  # cut back
            if old.step == 0 and self.leaves(old.piece) == self.leaves(axis) and self.extent(old.whole) == size:
                return old.whole
        longer = (self.fresh(size),)
        self._cuts.append(_Cut(longer, axis, 0, 0))
        return longer

    def shrink(self, axis: Axis, size: int) -> Axis | None:
        """What `axis` extended, where that has `size` elements."""
        for old in self._cuts:
            if old.step == 0 and self.leaves(old.piece) == self.leaves(axis) and self.extent(old.whole) == size:
                return old.whole
        return None

    def inside(self, axis: Axis) -> set[int]:
        """The atoms of `axis` and of everything that was cut out of it."""
        found = set(self.leaves(axis))
        before = -1
        while len(found) != before:
            before = len(found)
            for cut in self._cuts:
                if found.intersection(self.leaves(cut.whole)):
                    found.update(self.leaves(cut.piece))
        return found
