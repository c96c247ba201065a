"""Second half of placement: routes between regions, and what they load on links.

Dimension order, X then Y. A reader's columns take slices of what it reads, its rows all of a slice: a slice goes along
its source's row to the column and then down or up through the cells of the column, a tree counted once a link. Sums
gather along the rows of a stage towards its output buffer, as wide as the result. Memory and the other sockets are
behind ports at the upper and lower edge of each chip tile, one a column; what is behind them is not modelled here.
Bytes are of one loop tile.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from compiler.grid import Grid
from compiler.passes.regions import Need, Region, Space
from compiler.placement import BufferKind


class StageFlow(NamedTuple):
    """Bytes of a stage that come from outside a loop tile, once an execution, go outside, and cross an iteration."""

    inwards: int
    once: int
    outwards: int
    carried: int


#: In moves, what is outside the section: HBM, DDR, other sockets, the iteration before.
OUTSIDE = -1
#: Bytes of one stream on each link that it uses.
Load = dict[int, int]


def add(load: Load, links: Iterable[int], nbytes: int) -> None:
    """`nbytes` more over each of `links`."""
    for link in links:
        load[link] = load.get(link, 0) + nbytes


class Move(NamedTuple):
    """A route by stage index, as `compiler.placement.Route` has it by name."""

    producer: int
    consumer: int
    nbytes: int
    branches: int
    hops: int


@dataclass(slots=True)
class Flows:
    """What a section moves over the grid.

    loads: (bit mask of the stages it belongs to, whether each loop tile moves it or only the first, load) of every
    stream: a tensor with all its branches, what a stage takes from memory, what it gives there, its sums.
    hops, port_bytes: of each stage.
    """

    loads: list[tuple[int, bool, Load]]
    hops: list[int]
    port_bytes: list[int]
    routes: list[Move]

    def worst(self, stage: int, together: int, grid: Grid) -> tuple[int, int]:
        """Bytes that pass the slowest link of `stage`, inside and between chip tiles, before its own have passed.

        Switches serve streams in turns, so another stream holds it up by as many bytes as its own, at most.
        """
        own: Load = {}
        beside = [load for mask, _, load in self.loads if mask & together and not mask >> stage & 1]
        for mask, _, load in self.loads:
            for link, nbytes in load.items() if mask >> stage & 1 else ():
                own[link] = own.get(link, 0) + nbytes
        most = [0, 0]
        for link, mine in own.items():
            leaves = link in grid.leaving
            most[leaves] = max(most[leaves], mine + sum(min(mine, load.get(link, 0)) for load in beside))
        return most[0], most[1]

    def steady(self, grid: Grid, rates: tuple[int, int]) -> tuple[int, int, str]:
        """Bytes a further loop tile on the fullest link inside and between chip tiles, and which takes longest."""
        total: Load = {}
        for _, each, load in self.loads:
            for link, nbytes in load.items() if each else ():
                total[link] = total.get(link, 0) + nbytes
        most, slowest, name = [0, 0], 0.0, ""
        for link, nbytes in sorted(total.items()):
            leaves = link in grid.leaving
            most[leaves] = max(most[leaves], nbytes)
            if nbytes / rates[leaves] > slowest:
                slowest, name = nbytes / rates[leaves], grid.link_name(link)
        return most[0], most[1], name

    @property
    def byte_hops(self) -> int:
        """Bytes times links, of all routes of the first loop tile."""
        return sum(sum(load.values()) for _, _, load in self.loads)

    @property
    def most_streams(self) -> tuple[int, int]:
        """The link that most streams share, and how many; (-1, 0) where nothing moves."""
        streams: dict[int, int] = {}
        for _, _, load in self.loads:
            for link in load:
                streams[link] = streams.get(link, 0) + 1
        return max(streams.items(), key=lambda item: (item[1], -item[0]), default=(-1, 0))

    def on_link(self, link: int) -> int:
        """Bytes over a link, first loop tile included."""
        return sum(load.get(link, 0) for _, _, load in self.loads)


def flows(
    needs: tuple[Need, ...],
    moves: tuple[StageFlow, ...],
    spaces: tuple[Space, ...],
    regions: list[Region],
    carry: list[int],
    grid: Grid,
) -> Flows:
    """All routes of one section. carry: cells that an iteration's carry comes from, empty where there is none."""
    out = Flows([], [0] * len(needs), [], [])
    stored = {b: cells for region in regions for b, cells in region.pmus.items()}
    trees: dict[int, tuple[int, Load]] = {}
    for i, region in enumerate(regions):
        units = region.pcus or [c for cells in region.pmus.values() for c in cells] or [0]
        taken = [(spaces[b].stage, b, stored[b], nbytes) for b, nbytes in needs[i].reads]
        if moves[i].carried and carry and not needs[i].reads:
            taken.append((OUTSIDE, -1 - i, carry, moves[i].carried))
        for producer, b, cells, nbytes in taken:
            branch: Load = {}
            branches, hops = send(cells, units, nbytes, grid, branch)
            mask, tree = trees.get(b, (0, {}))
            for link, size in branch.items():  # what two readers take goes over a link once
                tree[link] = max(tree.get(link, 0), size)
            trees[b] = (mask | 1 << i, tree)
            out.routes.append(Move(producer, i, nbytes, branches, hops))
            out.hops[i] = max(out.hops[i], hops)
        hops = _outside(i, moves[i], region, (spaces, units, grid), out)
        results = [b for b in stored if spaces[b].stage == i and spaces[b].kind is BufferKind.OUTPUT]
        sums: Load = {}
        ends = [gather(region, stored[b], spaces[b].made_bytes, grid, sums) for b in results]
        out.hops[i] = max(out.hops[i], hops) + max(ends, default=0)
        out.loads.append((1 << i, True, sums))
        out.port_bytes.append(_port_bytes(i, needs[i], spaces, stored))
    out.loads.extend((mask, True, tree) for mask, tree in trees.values())
    return out


def _outside(
    i: int,
    move: StageFlow,
    region: Region,
    where: tuple[tuple[Space, ...], list[int], Grid],
    out: Flows,
) -> int:
    """Routes of stage `i` to and from memory and other sockets; longest hops. What lies beside its PCUs goes on."""
    spaces, units, grid = where
    kinds = (BufferKind.WEIGHTS, BufferKind.STREAM)
    staged = [c for b, cells in region.pmus.items() if spaces[b].kind in kinds for c in cells] or units
    away, longest = sorted(set(staged) - set(units)), 0
    for nbytes, each in ((move.inwards, True), (move.once, False)):
        if not nbytes:
            continue
        load: Load = {}
        out.loads.append((1 << i, each, load))
        streams, hops = memory(staged, nbytes, True, grid, load)
        out.routes.append(Move(OUTSIDE, i, nbytes, streams, hops))
        if away:
            hops += send(away, units, nbytes * len(away) // len(staged), grid, load)[1]
        longest = max(longest, hops)
    if move.outwards:
        given: Load = {}
        out.loads.append((1 << i, True, given))
        streams, hops = memory(units, move.outwards, False, grid, given)
        out.routes.append(Move(i, OUTSIDE, move.outwards, streams, hops))
        longest = max(longest, hops)
    return longest


def _port_bytes(i: int, need: Need, spaces: tuple[Space, ...], stored: dict[int, list[int]]) -> int:
    """Most bytes of a loop tile through one PMU that stage `i` reads or writes; prefetched weights lie in the PMUs of
    the prefetch too, each stage's in proportion to its weights."""
    weights = sum(s.tile_bytes for s in spaces if s.kind is BufferKind.WEIGHTS)
    ahead = sum(len(stored[b]) for b, s in enumerate(spaces) if s.kind is BufferKind.PREFETCH)
    most = 0
    for b in {*(b for b, s in enumerate(spaces) if s.stage == i), *(b for b, _ in need.reads)}:
        space = spaces[b]
        if space.kind is BufferKind.PREFETCH:
            continue
        pmus = len(stored[b])
        if space.kind is BufferKind.WEIGHTS and weights:
            pmus += ahead * space.tile_bytes // weights
        written = space.stage == i and space.kind is BufferKind.OUTPUT
        most = max(most, -(-(space.made_bytes if written else space.tile_bytes) // pmus))
    return most


def _rows(cells: Iterable[int], grid: Grid) -> dict[int, list[int]]:
    """Rows of `cells` by column, columns and rows in order."""
    out: dict[int, list[int]] = {}
    for x, y in sorted(grid.at[c] for c in cells):
        out.setdefault(x, []).append(y)
    return out


def send(sources: list[int], readers: list[int], nbytes: int, grid: Grid, load: Load) -> tuple[int, int]:
    """Multicast a tensor from the PMUs in cells `sources` to the units in cells `readers`; (branches, longest hops).

    Every source gives the same share, and every column of readers gets one; they are paired from left to right.
    """
    columns, froms = _rows(readers, grid), sorted(grid.at[c] for c in sources)
    branches, longest = max(len(columns), len(froms)), 0
    share = -(-nbytes // branches)
    order = list(columns.items())
    for k in range(branches):
        (x, rows), (near, y) = order[k * len(order) // branches], froms[k * len(froms) // branches]
        low, high = min(y, rows[0]), max(y, rows[-1])
        add(load, grid.across(y, near, x), share)
        add(load, grid.along(x, y, high), share)
        add(load, grid.along(x, y, low), share)
        longest = max(longest, abs(x - near) + max(y - low, high - y))
    return branches, longest


def gather(region: Region, outputs: list[int], nbytes: int, grid: Grid, load: Load) -> int:
    """What a stage's units give, to its output buffer in the PMUs of `outputs`; longest hops.

    Each row adds its sums up on the way to the column of a PMU of the buffer; every PMU gets the same share.
    """
    rows: dict[int, list[int]] = {}
    for x, y in (grid.at[c] for c in region.pcus):
        rows.setdefault(y, []).append(x)
    order, ends, longest = sorted(rows.items()), sorted((y, x) for x, y in (grid.at[c] for c in outputs)), 0
    slices = max(len(order), len(ends)) if order else 0
    for k in range(slices):
        (y, xs), (to_y, to_x) = order[k * len(order) // slices], ends[k * len(ends) // slices]
        left, right = min(xs), max(xs)
        add(load, grid.across(y, left, max(left, to_x)), -(-nbytes // slices))
        add(load, grid.across(y, right, min(right, to_x)), -(-nbytes // slices))
        add(load, grid.along(to_x, y, to_y), -(-nbytes // slices))
        longest = max(longest, max(abs(to_x - left), abs(to_x - right)) + abs(to_y - y))
    return longest


def memory(cells: list[int], nbytes: int, inwards: bool, grid: Grid, load: Load) -> tuple[int, int]:
    """Bytes between the memory ports and `cells`, the same share each; (streams, longest hops).

    The cells of a column share the ports at both ends of its chip tile, the upper half of them the upper one; a single
    cell takes the nearer.
    """
    share, longest = -(-nbytes // len(cells)), 0
    ports: dict[tuple[int, int], list[int]] = {}
    for x, rows in _rows(cells, grid).items():
        for top, mine in groupby(rows, key=lambda y: y - y % grid.tile_height):
            inside = list(mine)
            upper = (len(inside) + (grid.nearer_top(inside[0]) if len(inside) % 2 else 0)) // 2
            ports[x, top] = inside[:upper]
            ports[x, top + grid.tile_height - 1] = inside[upper:]
    for (x, port), rows in ports.items():
        for y in rows:
            longest = max(longest, abs(y - port))
            add(load, grid.along(x, port, y) if inwards else grid.along(x, y, port), share)
    return len(ports), longest
