"""place: a compiled program onto the PCU/PMU grid. A step of its own: what the tuner compares has no places.

Sections that are on the chip together (a looped run) are placed together, others alone. A place depends on the needs of
its sections and on the target only and is kept by content, so a change elsewhere places nothing again. Refused: a
section with more streams on a link than its switches tell apart, whatever their rate; a link that is merely full is
slow, and the simulator says how slow.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from compiler.diagnostic import Code, Diagnostic, quantity
from compiler.grid import Grid, grid_of
from compiler.passes.banks import pmus_of, stripe_banks
from compiler.passes.lifetimes import live, share, surely_done
from compiler.passes.regions import Need, Region, Space, regions
from compiler.passes.route import OUTSIDE, Flows, StageFlow, flows
from compiler.placement import Buffer, BufferKind, BufferPlace, Range, Route, SectionPlace, StagePlace
from compiler.program import Program, Run, Section, Stage
from compiler.target import Target
from compiler.verify_place import verify_places


class Part(NamedTuple):
    """What the place of one section depends on. Stages and buffers count inside the section.

    lives: first and last stage of each buffer; together: for each stage a bit mask of itself and of those that
    may run beside it.
    """

    name: str
    block: str
    ops: tuple[str, ...]
    needs: tuple[Need, ...]
    moves: tuple[StageFlow, ...]
    spaces: tuple[Space, ...]
    lives: tuple[tuple[int, int], ...]
    together: tuple[int, ...]


def place(program: Program, target: Target) -> Program | tuple[Diagnostic, ...]:
    """`program` with a place for every stage and buffer, or why its sections cannot be routed.

    InputError where the target's grid is not made of its units.
    """
    runs: list[Run] = []
    refused: list[Diagnostic] = []
    for run in program.runs:
        placed: list[Section] = []
        for group in [run.sections] if run.looped else [(s,) for s in run.sections]:
            places, diagnostics = place_together(tuple(part_of(s, target) for s in group), run.looped, target)
            refused.extend(diagnostics)
            together = [replace(s, place=p) for s, p in zip(group, places, strict=True)]
            verify_places(together, target)
            placed.extend(together)
        runs.append(Run(tuple(placed), run.times, run.looped))
    return tuple(dict.fromkeys(refused)) or replace(program, runs=tuple(runs))


def part_of(section: Section, target: Target) -> Part:
    """What the place of `section` depends on."""
    pmus = [pmus_of(b.nbytes, b.copies, target) for b in section.buffers]
    numbers = share(section, pmus) if sum(pmus) > section.pmus else _apart(pmus)
    reads: list[list[tuple[int, int]]] = [[] for _ in section.stages]
    for b, buffer in enumerate(section.buffers):
        for reader in buffer.readers:
            reads[reader].append((b, buffer.tile_bytes))
    needs = (Need(s.pcus, s.link_steps > 0, tuple(r)) for s, r in zip(section.stages, reads, strict=True))
    spaces = (
        Space(b.name, b.stage, _home(b), b.kind, b.nbytes, b.tile_bytes, b.made_bytes, b.copies, tuple(n))
        for b, n in zip(section.buffers, numbers, strict=True)
    )
    return Part(
        section.name,
        section.block,
        tuple(s.op for s in section.stages),
        tuple(needs),
        tuple(_moves(s) for s in section.stages),
        tuple(spaces),
        tuple(live(b, section) for b in section.buffers),
        _together(surely_done(section)),
    )


def _home(b: Buffer) -> int:
    return b.readers[0] if b.made_bytes < b.tile_bytes and b.readers else b.stage


def _apart(pmus: list[int]) -> list[range]:
    out, at = [], 0
    for n in pmus:
        out.append(range(at, at + n))
        at += n
    return out


def _moves(s: Stage) -> StageFlow:
    """Bytes of a stage to and from memory and other sockets."""
    weights = s.weight_bytes + s.ddr_bytes
    streamed = s.kv_bytes + s.kv_ddr_bytes + s.read_bytes + s.link_bytes + (0 if s.loads_once else weights)
    return StageFlow(streamed, weights if s.loads_once else 0, s.write_bytes + s.link_bytes, s.carried_bytes)


def _together(done: tuple[int, ...]) -> tuple[int, ...]:
    """For each stage, itself and the stages that may run beside it."""
    every = (1 << len(done)) - 1
    after = [sum(1 << j for j, mask in enumerate(done) if mask >> i & 1) for i in range(len(done))]
    return tuple(every & ~(mask | after[i]) for i, mask in enumerate(done))


@lru_cache(maxsize=4096)
def place_together(
    parts: tuple[Part, ...], looped: bool, target: Target
) -> tuple[tuple[SectionPlace, ...], tuple[Diagnostic, ...]]:
    """Places of sections that are on the chip at the same time, and what cannot be routed."""
    grid = grid_of(target)
    needs, spaces, first_stage, first_space = _joined(parts)
    found = regions(needs, spaces, grid, target)
    places: list[SectionPlace] = []
    refused: list[Diagnostic] = []
    for k, part in enumerate(parts):
        mine = found[first_stage[k] : first_stage[k] + len(part.needs)]
        local = [Region(r.pcus, {b - first_space[k]: cells for b, cells in r.pmus.items()}) for r in mine]
        before = found[: first_stage[k]] or found  # of a loop, the last section of the iteration before
        moved = flows(part.needs, part.moves, part.spaces, local, _carry(before, spaces) if looped else [], grid)
        places.append(_section_place(part, local, moved, grid, target))
        refused.extend(_refusals(part, moved, grid, target))
    return tuple(places), tuple(refused)


def _joined(parts: tuple[Part, ...]) -> tuple[tuple[Need, ...], tuple[Space, ...], list[int], list[int]]:
    """Needs and spaces of all parts, counted through, and where each part's begin."""
    needs: list[Need] = []
    spaces: list[Space] = []
    first_stage, first_space, numbers = [], [], 0
    for part in parts:
        first_stage.append(len(needs))
        first_space.append(len(spaces))
        stage, space = len(needs), len(spaces)
        needs.extend(n._replace(reads=tuple((b + space, size) for b, size in n.reads)) for n in part.needs)
        spaces.extend(
            s._replace(stage=s.stage + stage, home=s.home + stage, numbers=tuple(n + numbers for n in s.numbers))
            for s in part.spaces
        )
        numbers += 1 + max((n for s in part.spaces for n in s.numbers), default=-1)
    return tuple(needs), tuple(spaces), first_stage, first_space


def _carry(before: list[Region], spaces: tuple[Space, ...]) -> list[int]:
    """Cells of the last output in `before`: what a loop's iteration leaves to the next on chip."""
    for region in reversed(before):
        cells = [c for b, at in region.pmus.items() if spaces[b].kind is BufferKind.OUTPUT for c in at]
        if cells:
            return cells
    return []


def _section_place(part: Part, local: list[Region], moved: Flows, grid: Grid, target: Target) -> SectionPlace:
    rates = (target.grid_link_bytes_per_cycle, target.tile_link_bytes_per_cycle)
    stages = tuple(
        StagePlace(ranges(r.pcus), moved.hops[i], *moved.worst(i, part.together[i], grid), moved.port_bytes[i])
        for i, r in enumerate(local)
    )
    inside, between, worst = moved.steady(grid, rates)
    buffers = [
        _buffer_place(b, space, local[space.home].pmus[b], part.lives[b], target) for b, space in enumerate(part.spaces)
    ]
    names = {**dict(enumerate(part.ops)), OUTSIDE: ""}
    routes = tuple(Route(names[m.producer], names[m.consumer], m.nbytes, m.branches, m.hops) for m in moved.routes)
    return SectionPlace(stages, tuple(buffers), routes, inside, between, worst, moved.byte_hops, moved.most_streams[1])


def _buffer_place(b: int, space: Space, cells: list[int], life: tuple[int, int], target: Target) -> BufferPlace:
    striped = len(cells) > len(space.numbers)
    even, _ = stripe_banks(space.nbytes, space.copies, len(cells) if striped else 1, target)
    odd = (0, even) if striped else divmod(even, target.pmu_banks)
    single = space.copies < 2
    return BufferPlace(
        name=space.name,
        stage=space.stage,
        kind=space.kind,
        nbytes=space.nbytes,
        pmus=ranges(cells),
        pmu_bytes=-(-space.nbytes // len(cells)) if striped else min(space.nbytes, target.pmu_bytes),
        odd=(0, 0) if single else odd,
        striped=striped,
        first=life[0],
        last=life[1],
    )


def ranges(cells: list[int]) -> tuple[Range, ...]:
    """Runs of consecutive numbers as (first, count)."""
    out: list[Range] = []
    for c in sorted(cells):
        if out and out[-1][0] + out[-1][1] == c:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((c, 1))
    return tuple(out)


def _refusals(part: Part, moved: Flows, grid: Grid, target: Target) -> list[Diagnostic]:
    """Diagnostics of links with more streams than a switch tells apart."""
    link, streams = moved.most_streams
    if streams <= target.grid_link_streams:
        return []
    nbytes = quantity(moved.on_link(link), "bytes")
    rate = target.tile_link_bytes_per_cycle if link in grid.leaving else target.grid_link_bytes_per_cycle
    rule = f"streams on link {grid.link_name(link)}, with {nbytes} a loop tile over {rate} B a cycle"
    middle = part.ops[(len(part.ops) - 1) // 2]
    levers = (
        (f"cut {part.block} {middle}",) if len(part.ops) > 1 else (f"units {part.block} {middle} pcus<{grid.width}",)
    )
    bound = target.grid_link_streams
    return [Diagnostic(Code.LINK_OVER_STREAMS, part.name, rule, streams, bound, "streams", levers)]
