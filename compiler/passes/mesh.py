"""Which digit of the socket number each split of a block takes.

A block has one digit for each (dimension, ways), so that a tensor split by one op is held as another needs it. What
meets (the splits of an op, the partial sums and the experts' slots that flow into it) takes disjoint digits; partial
sums that are added take the same ones where that is possible. The lowest stride that will do is taken, in the order in
which the ops come, so the same schedule gives the same arrangement everywhere.
"""

from collections.abc import Iterable, Sequence

from compiler.ir.mesh import MeshAxis, merged

Key = tuple[str, int]  # dimension, ways
Meeting = tuple[str, tuple[Key, ...]]  # an op, and what meets there
Digits = dict[Key, MeshAxis]


class NoArrangement(Exception):
    """No digits keep apart what meets: the first op of it, and all splits that meet, there or through other ops."""

    def __init__(self, op: str, keys: tuple[Key, ...]) -> None:
        super().__init__(op, keys)
        self.op = op
        self.keys = keys


def arrange(meetings: Sequence[Meeting], sums: Iterable[tuple[Key, Key]], sockets: int) -> Digits:
    """A digit for every key of `meetings`. sums: keys of partial sums that are added, which had better agree.

    NoArrangement where the sockets do not allow any.
    """
    keys = dict.fromkeys(key for _, met in meetings for key in met)
    apart: dict[Key, set[Key]] = {key: set() for key in keys}
    for _, met in meetings:
        for key in met:
            apart[key].update(other for other in met if other != key)
    alike: dict[Key, list[Key]] = {key: [] for key in keys}
    for a, b in sums:
        if a != b and b not in alike[a]:
            alike[a].append(b)
            alike[b].append(a)
    digits: Digits = {}
    for component in _components(keys, apart):
        component.sort(key=lambda key: not alike[key])  # what should agree chooses first
        if not _place(component, 0, digits, (apart, alike), sockets):
            raise NoArrangement(next(op for op, met in meetings if set(met) & set(component)), tuple(component))
    return digits


def _components(keys: Iterable[Key], apart: dict[Key, set[Key]]) -> list[list[Key]]:
    """Keys that meet, directly or through others, in the order in which they come."""
    keys = list(keys)
    seen: set[Key] = set()
    out = []
    for key in keys:
        if key in seen:
            continue
        reached: set[Key] = set()
        todo = {key}
        while todo:
            reached |= todo
            todo = {n for k in todo for n in apart[k]} - reached
        seen |= reached
        out.append([k for k in keys if k in reached])
    return out


def _place(
    keys: list[Key], at: int, digits: Digits, rules: tuple[dict[Key, set[Key]], dict[Key, list[Key]]], sockets: int
) -> bool:
    """Give keys[at:] their digits, backtracking; False, and no digit given, where that is impossible."""
    if at == len(keys):
        return True
    apart, alike = rules
    key = keys[at]
    wanted = {digits[k].stride for k in alike[key] if k in digits}
    taken = [digits[k] for k in apart[key] if k in digits]
    strides = (s for s in range(1, sockets // key[1] + 1) if sockets % (s * key[1]) == 0)
    for stride in sorted(strides, key=lambda s: (s not in wanted, s)):
        digit = MeshAxis(key[1], stride)
        if all(digit.disjoint(other) for other in taken):
            digits[key] = digit
            if _place(keys, at + 1, digits, rules, sockets):
                return True
            del digits[key]
    return False


def axes_of(keys: Iterable[Key], digits: Digits) -> tuple[MeshAxis, ...]:
    """The digits of `keys`, merged."""
    return merged(digits[key] for key in keys)
