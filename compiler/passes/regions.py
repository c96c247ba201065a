"""First half of placement: which cells each stage gets.

Contract: every stage has as many PCUs as the program says, in one run of the sweep, in an order that keeps what talks
to each other close; every buffer has at least the PMUs that it was mapped to, in cells of its stage first, then in the
nearest others. What is left of a stage's PMUs widens its buffers, since a PMU feeds one port: a stage whose PCUs
stream weights reads as many PMUs as it has PCUs. Deterministic: no randomness, ties go to the earlier stage and cell.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from compiler.grid import Grid
from compiler.passes.banks import stripes
from compiler.placement import BufferKind
from compiler.target import Target

#: Cells that a collective takes where there is room: ports enough for a link between sockets, both ways.
COLLECTIVE_CELLS = 4
#: Local improvement: sweeps over the stages, and how far a stage may move in one.
PASSES, REACH = 2, 4
#: A stage lends PMUs where it has as many times more than are missing.
BIG_ENOUGH = 8


class Space(NamedTuple):
    """SRAM that a stage needs, as `compiler.placement.Buffer` says it; `stage` counts through all stages placed.

    home: the stage whose cells it lies in: its own, or where it collects what is read whole, its first reader.
    numbers: one for each PMU of its least size; buffers that share a PMU have its number in common.
    """

    name: str
    stage: int
    home: int
    kind: BufferKind
    nbytes: int
    tile_bytes: int
    made_bytes: int
    copies: int
    numbers: tuple[int, ...]


class Need(NamedTuple):
    """A stage to place: its PCUs, whether it is a collective, and (buffer, bytes a loop tile) of what it reads."""

    pcus: int
    collective: bool
    reads: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Region:
    """Cells of one stage's PCUs, in sweep order, and the cells of the PMUs of each of its buffers."""

    pcus: list[int]
    pmus: dict[int, list[int]]


def regions(needs: tuple[Need, ...], spaces: tuple[Space, ...], grid: Grid, target: Target) -> list[Region]:
    """A region a stage; `needs` fit the chip (the compiler refused what does not)."""
    lengths = _lengths(needs, spaces, target)
    edges = [(spaces[b].stage, i, n) for i, need in enumerate(needs) for b, n in need.reads]
    out = [Region([], {}) for _ in needs]
    free: list[list[int]] = [[] for _ in needs]
    at = 0
    for i in improved(list(range(len(needs))), edges, lengths, grid):
        cells = list(range(at, at + lengths[i]))
        out[i].pcus, free[i] = cells[: needs[i].pcus], cells
        at += lengths[i]
    _least_pmus(out, free, list(range(at, target.pmus)), spaces, grid)
    for i, region in enumerate(out):
        _widen(region, free[i], spaces, grid, target)
    return out


def _lengths(needs: tuple[Need, ...], spaces: tuple[Space, ...], target: Target) -> list[int]:
    """Cells in the run of each stage: its PCUs, and as many more as its PMUs ask for and there is room for."""
    pmus = [0] * len(needs)
    seen: set[int] = set()
    for space in spaces:
        if space.kind is not BufferKind.PREFETCH:
            pmus[space.home] += sum(1 for n in space.numbers if n not in seen)
            seen.update(space.numbers)
    outputs = [0] * len(needs)
    for space in spaces:
        outputs[space.home] += len(space.numbers) if space.kind is BufferKind.OUTPUT else 0
    want = [  # a PMU beside each PCU for what it streams, and those of its output
        max(pmus[i], COLLECTIVE_CELLS if need.collective else need.pcus + outputs[i]) for i, need in enumerate(needs)
    ]
    more = [n - need.pcus for n, need in zip(want, needs, strict=True)]
    room, total = target.pcus - sum(need.pcus for need in needs), sum(more)
    if total > room:
        parts = [sum(more[:i]) * room // total for i in range(len(more) + 1)]
        more = [b - a for a, b in pairwise(parts)]
    return [need.pcus + m for need, m in zip(needs, more, strict=True)]


def improved(order: list[int], edges: list[tuple[int, int, int]], lengths: list[int], grid: Grid) -> list[int]:
    """`order` after a fixed number of attempts to move a stage where bytes times distance get less.

    edges: (producer, reader, bytes a loop tile). Rejected: simulated annealing, which needs a seed and a longer budget.
    """
    best = _distance(order, edges, lengths, grid)
    for _ in range(PASSES):
        before = best
        for stage in range(len(order)):
            at = order.index(stage)
            for to in range(max(0, at - REACH), min(len(order), at + REACH + 1)):
                moved = [*order[:at], *order[at + 1 :]]
                moved.insert(to, stage)
                cost = _distance(moved, edges, lengths, grid)
                if cost < best:
                    best, order, at = cost, moved, to
        if best == before:
            break
    return order


def _distance(order: list[int], edges: list[tuple[int, int, int]], lengths: list[int], grid: Grid) -> int:
    """Bytes times hops between the middles of the runs of producer and reader."""
    middle: list[tuple[int, int]] = [(0, 0)] * len(order)
    at = 0
    last = len(grid.at) - 1
    for i in order:
        middle[i] = grid.at[min(last, at + lengths[i] // 2)]
        at += lengths[i]
    total = 0
    for p, i, n in edges:
        (x, y), (u, v) = middle[p], middle[i]
        total += n * (abs(x - u) + abs(y - v))
    return total


def _least_pmus(
    out: list[Region], free: list[list[int]], spare: list[int], spaces: tuple[Space, ...], grid: Grid
) -> None:
    """Give every buffer the PMUs it was mapped to: outputs at the end of their run, others from its beginning; what
    does not fit there goes to the nearest free PMUs, and prefetch after all others."""
    cell: dict[int, int] = {}
    missing: list[tuple[Space, list[int]]] = []
    for space in spaces:
        fresh = [n for n in space.numbers if n not in cell]
        if space.kind is not BufferKind.PREFETCH:
            taken = _take(free[space.home], len(fresh), space.kind, grid)
            cell.update(zip(fresh, taken, strict=False))
            fresh = fresh[len(taken) :]
            cell.update(dict.fromkeys(fresh, -1))
        if fresh:
            missing.append((space, fresh))
    owner = {c: i for i, mine in enumerate(free) for c in mine}
    pool = sorted([*owner, *spare])
    for space, numbers in sorted(missing, key=lambda m: m[0].kind is BufferKind.PREFETCH):
        region = out[space.home]
        near = (region.pcus or [c for n in space.numbers if (c := cell.get(n, -1)) >= 0] or [0])[0]
        many = BIG_ENOUGH * len(numbers)  # a stage that would lose most of its PMUs gives none while others can
        small = {i for i, mine in enumerate(free) if len(mine) < many}
        chosen = sorted(sorted(pool, key=lambda c: (owner.get(c, -1) in small, abs(c - near), c))[: len(numbers)])
        pool = [c for c in pool if c not in set(chosen)]
        cell.update(zip(numbers, chosen, strict=True))
        for c in chosen:
            if c in owner:
                free[owner[c]].remove(c)
    for b, space in enumerate(spaces):
        out[space.home].pmus[b] = sorted(cell[n] for n in space.numbers)


def _take(free: list[int], n: int, kind: BufferKind, grid: Grid) -> list[int]:
    """Up to `n` of a run's free cells, and out of it: the first, but an output's from the end, column by column, so
    that each column of its readers finds as much of it as the next."""
    chosen = free[:n]
    if kind is BufferKind.OUTPUT:
        seen: dict[int, int] = {}
        turn = []
        for at, c in enumerate(reversed(free)):
            x = grid.at[c][0]
            seen[x] = seen.get(x, 0) + 1
            turn.append((seen[x], at, c))
        chosen = [c for _, _, c in sorted(turn)[:n]]
    gone = set(chosen)
    free[:] = [c for c in free if c not in gone]
    return sorted(chosen)


def _widen(region: Region, free: list[int], spaces: tuple[Space, ...], grid: Grid, target: Target) -> None:
    """Spread a stage's buffers over its free PMUs, in turns to what has most bytes a PMU, since that is how long one
    takes; an output to one a column at most."""
    columns = len({grid.at[c][0] for c in [*region.pcus, *free]})
    width = {b: len(cells) for b, cells in region.pmus.items() if spaces[b].kind is not BufferKind.PREFETCH}
    for _ in range(len(free)):
        able = [b for b, n in width.items() if spaces[b].kind is not BufferKind.OUTPUT or n < columns]
        if not able:
            break
        width[max(able, key=lambda b: (spaces[b].tile_bytes / width[b], -b))] += 1
    for b, n in width.items():
        more = n - len(region.pmus[b])
        if more > 0 and stripes(spaces[b].nbytes, spaces[b].copies, n, target):
            region.pmus[b] = sorted([*region.pmus[b], *_take(free, more, spaces[b].kind, grid)])
