"""Legal instances of every action family on a schedule: what a tuner may do next, and the values a hole may take.

Instances that can change nothing (a buffer where one tile passes) are left out.

Legal means that the passes accept the action on this graph; whether the result fits the chip (feasible) is for the
compiler to say. Numbers are enumerated on powers of two; order is deterministic.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from compiler.diagnostic import Code
from compiler.ir.actions import (
    ALL,
    Action,
    Allocation,
    Axis,
    Buffer,
    Class,
    Cut,
    Experts,
    Fuse,
    Hole,
    Launch,
    Loop,
    Place,
    Prefetch,
    Rewrite,
    Rule,
    SetLaunch,
    Shard,
    Tier,
    Tile,
    Units,
)
from compiler.ir.graph import Block, Graph, Phase
from compiler.ir.schedule import Schedule
from compiler.lower import Refused, ahead_bytes, default_tile, lacks, loan_refusals, lower
from compiler.passes.partition import Span, partition_block
from compiler.passes.rewrite import CORES, rewrite_block
from compiler.passes.shard import shard_block, splittable
from compiler.target import Target

MIB = 2**20


@dataclass(frozen=True)
class View:
    """A schedule on a graph, with each block as the schedule leaves it."""

    graph: Graph
    schedule: Schedule
    target: Target

    def of(self, cls: type[Action], kind: str) -> tuple[Action, ...]:
        return tuple(a for a in self.schedule.actions if isinstance(a, cls) and getattr(a, "block", ALL) in (ALL, kind))

    @cached_property
    def rewritten(self) -> dict[str, Block]:
        return {b.kind: rewrite_block(b, self.of(Rewrite, b.kind))[0] for b in self.graph.blocks}

    @cached_property
    def sharded(self) -> dict[str, Block]:
        sockets = self.graph.workload.sockets
        return {k: shard_block(b, self.of(Shard, k), sockets)[0] for k, b in self.rewritten.items()}

    @cached_property
    def spans(self) -> dict[str, tuple[Span, ...]]:
        cuts = {b.kind: (*self.of(Fuse, b.kind), *self.of(Cut, b.kind)) for b in self.graph.blocks}
        return {
            k: partition_block(b, tuple(a for a in self.schedule.actions if a in cuts[k]))[0]
            for k, b in self.sharded.items()
        }

    def several_tiles(self, kind: str) -> bool:
        """Whether more than one loop tile flows through the block."""
        tokens = max((op.size("tokens") for op in self.sharded[kind].ops), default=1)
        sizes = [a.size for a in self.of(Tile, kind) if isinstance(a, Tile) and a.axis is Axis.TOKENS]
        usual = default_tile(tokens, self.graph.workload.phase)
        return tokens > (sizes[-1] if sizes and isinstance(sizes[-1], int) else usual)

    @cached_property
    def refused(self) -> frozenset[tuple[str, str]]:
        """Code and subject of what lowering refuses of the schedule as it is."""
        return _refused(self)

    def accepts(self, action: Action) -> bool:
        """Whether lowering takes the action and still all others (whether the result fits is another question)."""
        return _refused(replace(self, schedule=self.schedule.with_actions(action))) <= self.refused


def _refused(view: View) -> frozenset[tuple[str, str]]:
    refused, sockets = Refused(), view.graph.workload.sockets
    lowered = {b.kind: lower(b, view.schedule, sockets, refused) for b in view.graph.blocks}
    found = {(str(d.code), d.subject) for d in (*refused.all(len(lowered)), *loan_refusals(view.graph, lowered))}
    for loop in (a for a in view.schedule.actions if isinstance(a, Loop)):
        apart = (k for k in _loop_kinds(view, loop) if k in lowered and len(lowered[k].spans) > 1)
        found.update((f"{Code.LOOP_BODY_NOT_ONE_SECTION}", k) for k in apart)
    return frozenset(found)


def powers(low: int, high: int) -> tuple[int, ...]:
    """low, 2 low, 4 low, ... up to and including high."""
    out, value = [], low
    while value < high:
        out.append(value)
        value *= 2
    return (*out, high) if high >= low else ()


def legal_moves(view: View) -> Iterator[Action]:
    """Every legal instance of every family, family by family, block by block."""
    for family in INSTANCES:
        yield from INSTANCES[family](view)


def _rewrites(view: View) -> Iterator[Action]:
    for block in view.graph.blocks:
        now = view.of(Rewrite, block.kind)
        done = {a.rule for a in now if isinstance(a, Rewrite)}
        for rule in Rule:
            if rule is Rule.SPLIT_KV:
                ops = view.rewritten[block.kind].op
                context = max((ops[c].context * ops[c].size("splits") for c in CORES if c in ops), default=1)
                current = next((a.ways for a in now if isinstance(a, Rewrite) and a.rule is rule), 1)
                options = tuple(Rewrite(block.kind, rule, w) for w in powers(2, min(context, 256)) if w != current)
            else:
                options = () if rule in done else (Rewrite(block.kind, rule),)
            for option in options:
                if view.accepts(option):
                    yield option


def _shards(view: View) -> Iterator[Action]:
    sockets = view.graph.workload.sockets
    if sockets == 1:
        return
    for kind, block in view.rewritten.items():
        now = view.of(Shard, kind)
        parts: dict[tuple[str, str], None] = {}
        for op in block.ops:
            dims = [*splittable(op), *(["experts"] if op.routing else [])]
            for dim in dims:
                if block.kind == "sample" or (dim == "splits" and op.name not in CORES):
                    continue
                parts.setdefault((op.name.split(".")[0] if dim != "splits" else op.name, dim))
        for part, dim in parts:
            for ways in powers(1, sockets):
                for pad in (0, 1, 32, 128):
                    option = Shard(kind, part, dim, ways, pad)
                    if option in now or (ways == 1 and (pad or not any(a.subject == option.subject for a in now))):
                        continue
                    if view.accepts(option):
                        yield option
                        break


def _fusions(view: View) -> Iterator[Action]:
    for kind, spans in view.spans.items():
        ops = view.sharded[kind].ops
        if len(spans) > 1:
            yield Fuse(kind, "all")
        for (a, _), (_, d) in pairwise(spans):
            yield Fuse(kind, f"{ops[a].name}..{ops[d - 1].name}")


def _cuts(view: View) -> Iterator[Action]:
    looped = {k for a in view.schedule.actions if isinstance(a, Loop) for k in _loop_kinds(view, a)}
    for kind, spans in view.spans.items():
        if kind not in looped:
            ops = view.sharded[kind].ops
            yield from (Cut(kind, ops[i].name) for a, b in spans for i in range(a, b - 1))


def _loop_kinds(view: View, loop: Loop) -> tuple[str, ...]:
    if loop.block != ALL:
        return tuple(loop.block.split("+"))
    return tuple(k for body, times in view.graph.runs if times > 1 for k in body)


def _loops(view: View) -> Iterator[Action]:
    have = {k for a in view.schedule.actions if isinstance(a, Loop) for k in _loop_kinds(view, a)}
    for body, times in dict.fromkeys(view.graph.runs):
        if times > 1 and not have.intersection(body) and all(len(view.spans[k]) == 1 for k in body):
            yield Loop("+".join(body))


def _launches(view: View) -> Iterator[Action]:
    now = next((a.mode for a in view.schedule.actions if isinstance(a, SetLaunch)), Launch.HARDWARE)
    yield from (SetLaunch(m) for m in Launch if m is not now)


def _places(view: View) -> Iterator[Action]:
    for kind, block in view.sharded.items():
        now = {a.tensors: a.tier for a in view.of(Place, kind) if isinstance(a, Place)}
        for cls in Class:
            for tier in Tier:
                if cls is Class.KV and (tier is Tier.SRAM or (tier is Tier.HBM and cls not in now)):
                    continue  # a cache outlives its section; and HBM is where it is
                if tier is Tier.SRAM and not view.several_tiles(kind):
                    continue  # one tile loads its weights once anyway
                option = Place(kind, cls, tier)
                if tier is not now.get(cls) and not lacks(block, option):
                    yield option


def _experts(view: View) -> Iterator[Action]:
    for kind, block in view.sharded.items():
        op = next((o for o in block.ops if o.routing), None)
        if op is None or op.routing is None:
            continue
        local = op.routing.experts // op.routing.sockets
        now = view.of(Experts, kind)
        for regions in (r for r in powers(1, local) if local % r == 0):
            for tile in powers(1, min(op.size("tokens"), 1024)):
                option = Experts(kind, Allocation.STATIC, regions, tile)
                if option not in now:
                    yield option


def _tiles(view: View) -> Iterator[Action]:
    for kind, block in view.sharded.items():
        now = view.of(Tile, kind)
        tokens = max((op.size("tokens") for op in block.ops), default=1)
        if view.graph.workload.phase is Phase.PREFILL or tokens > 1:
            yield from (t for t in (Tile(kind, Axis.TOKENS, n) for n in powers(1, tokens)) if t not in now)
        contexts = [block.op[core].context for core in CORES if core in block.op]
        if contexts:
            sizes = powers(16, max(contexts))
            yield from (t for t in (Tile(kind, Axis.CONTEXT, n) for n in sizes) if t not in now)


def _units(view: View) -> Iterator[Action]:
    for kind, block in view.sharded.items():
        now = view.of(Units, kind)
        for op in block.ops:
            if op.collective is None and any(d.size > 1 for d in op.dims):
                options = (Units(kind, op.name, n) for n in powers(8, view.target.pcus // 2))
                yield from (o for o in options if o not in now)


def _buffers(view: View) -> Iterator[Action]:
    for kind in view.sharded:
        now = view.of(Buffer, kind)
        if view.several_tiles(kind):  # one tile waits for no other
            yield from (b for b in (Buffer(kind, ALL, n) for n in (1, 2)) if b not in now)


def _prefetches(view: View) -> Iterator[Action]:
    for kind, block in view.sharded.items():
        now = view.of(Prefetch, kind)
        sizes = powers(1, min(-(-ahead_bytes(block) // MIB), view.target.sram_bytes // MIB))
        yield from (p for p in (Prefetch(kind, n * MIB) for n in sizes) if p not in now)


INSTANCES: dict[type[Action], Callable[[View], Iterator[Action]]] = {
    Rewrite: _rewrites,
    Shard: _shards,
    Fuse: _fusions,
    Cut: _cuts,
    Loop: _loops,
    SetLaunch: _launches,
    Place: _places,
    Experts: _experts,
    Tile: _tiles,
    Units: _units,
    Buffer: _buffers,
    Prefetch: _prefetches,
}


def hole_values(view: View, action: Action, name: str, hole: Hole) -> tuple[int, ...]:
    """Values a hole may take, ascending: those that the passes accept, inside the hole's range.

    They are the values of the family's legal instances; an action that no instance names (one op instead of a part)
    tries its family's grid. Where nothing is legal the first of the grid, or the range's own powers, are for the
    compiler to judge: a hole always has a value.
    """
    rest = View(view.graph, Schedule(tuple(a for a in view.schedule.actions if not _has_hole(a))), view.target)
    found = set()
    for option in INSTANCES[type(action)](rest):
        same = all(getattr(option, f) == getattr(action, f) for f in action.key)
        if same or getattr(action, "block", "") == ALL:
            found.add(getattr(option, name))
    if not found:
        grid = _grid(view, action, name)
        found = {v for v in grid if rest.accepts(_whole(replace(action, **{name: v})))} or set(grid[:1])
    if hole.low is None or hole.high is None:
        return tuple(sorted(found))
    inside = sorted(v for v in found if hole.low <= v <= hole.high)
    return tuple(inside) or powers(max(1, hole.low), hole.high) or (hole.high,)


def _grid(view: View, action: Action, name: str) -> tuple[int, ...]:
    """Values to try where no legal instance gives any; never none."""
    if isinstance(action, Shard):
        return powers(1, view.graph.workload.sockets) if name == "ways" else (0, 1, 32, 128)
    if isinstance(action, Units):
        return (*powers(8, view.target.pcus // 2), 1)
    return {Rewrite: powers(2, 256), Buffer: (1, 2, 4), Prefetch: (0,)}.get(type(action), (1,))


def _has_hole(action: Action) -> bool:
    return any(isinstance(getattr(action, f), Hole) for f in action.__dataclass_fields__)


def _whole(action: Action) -> Action:
    """`action` with 1 in its further holes."""
    return replace(action, **{f: 1 for f in action.__dataclass_fields__ if isinstance(getattr(action, f), Hole)})
