"""The compiler: (graph, schedule, target) -> Program, or every reason why not.

An ordered tuple of passes: rewrite -> shard -> partition -> allocate the off-chip tiers -> map with SRAM -> emit.
Blocks are validated when each pass constructs them; `verify` checks what must survive from one pass to the next. The
same inputs give the same program, byte for byte. A bug here raises; a bad schedule never does.
"""

from dataclasses import dataclass
from functools import lru_cache

from compiler.diagnostic import NOT_HERE, Code, Diagnostic
from compiler.errors import nearest
from compiler.ir.actions import (
    ALL, Action, Axis, Buffer, Class, Cut, Experts, Fuse, Hole, Launch, Loop, Place, Prefetch, Rewrite, SetLaunch, Shard,
    Tier, Tile, Units,
)  # fmt: skip
from compiler.ir.graph import Block, Graph, Phase, Role
from compiler.ir.schedule import Schedule
from compiler.passes.allocate import Layout, allocate, demands
from compiler.passes.map import Knobs, map_section
from compiler.passes.partition import Span, partition_block
from compiler.passes.rewrite import rewrite_block
from compiler.passes.shard import shard_block
from compiler.passes.work import Tiling
from compiler.program import Program, Run, Section
from compiler.target import Target
from compiler.verify import verify_sharded

COMPILER_VERSION = 1
#: Loop tiles where the schedule says nothing: decode takes all tokens in one pass.
DEFAULT_PREFILL_TILE = 128
DEFAULT_CONTEXT_TILE = 256


@dataclass(frozen=True, slots=True)
class Lowered:
    """One block kind after rewrite, shard and partition, with the actions that map it."""

    source: Block
    block: Block
    spans: tuple[Span, ...]
    actions: tuple[Action, ...]

    def last(self, cls: type, **having: object) -> Action | None:
        """The last action of a family whose fields equal `having`."""
        for action in reversed(self.actions):
            if type(action) is cls and all(getattr(action, k) == v for k, v in having.items()):
                return action
        return None


class _Refused:
    """Collects what the passes refuse; an action on `*` is refused only if it acts nowhere."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []
        self.absent: dict[Action, list[Diagnostic]] = {}

    def add(self, refusals: tuple[tuple[Action | None, Diagnostic], ...]) -> None:
        for action, diagnostic in refusals:
            if action is not None and getattr(action, "block", "") == ALL and diagnostic.code in NOT_HERE:
                self.absent.setdefault(action, []).append(diagnostic)
            else:
                self.found.append(diagnostic)

    def all(self, blocks: int) -> tuple[Diagnostic, ...]:
        nowhere = [diagnostics[0] for diagnostics in self.absent.values() if len(diagnostics) >= blocks]
        return tuple(dict.fromkeys([*self.found, *nowhere]))


def compile_schedule(graph: Graph, schedule: Schedule, target: Target) -> Program | tuple[Diagnostic, ...]:
    """Compile, or return every diagnostic found (of the first pass group that refuses)."""
    refused = _Refused()
    for i, name, hole in schedule.holes:
        action = schedule.actions[i]
        refused.found.append(Diagnostic(Code.HOLE, f"{action.family} {name}", f"is the hole {hole}", levers=("fill it",)))
    refused.found.extend(_unknown_blocks(graph, schedule))
    if refused.found:
        return tuple(refused.found)
    lowered = {b.kind: _lower(b, schedule, graph.workload.sockets, refused) for b in graph.blocks}
    if refused.found:
        return refused.all(len(lowered))
    for low in lowered.values():
        verify_sharded(low.source, low.block)
    layout, over = allocate(_demands(graph, lowered), _activation_bytes(graph), target)
    refused.found.extend(over)
    runs = _runs(graph, schedule, lowered, layout, target, refused)
    diagnostics = refused.all(len(lowered))
    if diagnostics:
        return diagnostics
    mode = next((a.mode for a in schedule.actions if isinstance(a, SetLaunch)), Launch.HARDWARE)
    return Program(
        graph.id, schedule.id, target.id, COMPILER_VERSION, graph.model, graph.workload, str(mode), runs, layout.memory,
        graph.weight_nbytes, graph.kv_nbytes,
    )  # fmt: skip


def lower_block(block: Block, schedule: Schedule, sockets: int) -> Block:
    """The block as a socket runs it, for enumeration; refusals are ignored here (the compiler reports them)."""
    return _lower(block, schedule, sockets, _Refused()).block


def _unknown_blocks(graph: Graph, schedule: Schedule) -> list[Diagnostic]:
    kinds = tuple(graph.block)
    out = []
    for action in schedule.actions:
        name = getattr(action, "block", ALL)
        for kind in name.split("+") if isinstance(action, Loop) else (name,):
            if kind != ALL and kind not in graph.block:
                hint = f"no block kind {kind!r} in {graph.model}; {nearest(kind, kinds)}".rstrip("; ")
                out.append(Diagnostic(Code.UNKNOWN_BLOCK, action.family, hint, levers=(f"kinds: {', '.join(kinds)}",)))
    return out


def _lower(block: Block, schedule: Schedule, sockets: int, refused: _Refused) -> Lowered:
    mine = tuple(a for a in schedule.actions if getattr(a, "block", "") in (ALL, block.kind))
    rewritten, refusals = rewrite_block(block, tuple(a for a in mine if isinstance(a, Rewrite)))
    refused.add(refusals)
    sharded, refusals = shard_block(rewritten, tuple(a for a in mine if isinstance(a, Shard)), sockets)
    refused.add(refusals)
    spans, refusals = partition_block(sharded, tuple(a for a in mine if isinstance(a, Fuse | Cut)))
    refused.add(refusals)
    low = Lowered(block, sharded, spans, mine)
    refused.add(_numeric_refusals(low))
    return low


def _numeric_refusals(low: Lowered) -> tuple[tuple[Action, Diagnostic], ...]:
    """Actions on ops or numbers that this block does not have."""
    block, out = low.block, []
    routed = [op for op in block.ops if op.routing]
    for action in low.actions:
        where = f"{action.family} {block.kind}"
        if isinstance(action, Units | Buffer) and action.op != ALL and action.op not in block.op:
            names = tuple(block.op)
            hint = f"no op {action.op!r}; {nearest(action.op, names)}".rstrip("; ")
            out.append((action, Diagnostic(Code.UNKNOWN_OP, where, hint, levers=(f"ops: {', '.join(names)}",))))
        elif isinstance(action, Experts) and not routed:
            out.append((action, Diagnostic(Code.EXPERTS_NONE, where, "the block has no routed experts")))
        elif isinstance(action, Experts) and routed[0].routing is not None:
            local = routed[0].routing.experts // routed[0].routing.sockets
            if local % int(action.regions):  # type: ignore[arg-type]
                levers = tuple(f"regions={r}" for r in range(local, 0, -1) if local % r == 0)[:6]
                rule = f"{action.regions} regions do not divide a socket's {local} experts"
                out.append((action, Diagnostic(Code.EXPERTS_RANGE, where, rule, levers=levers)))
        elif isinstance(action, Place) and action.tier is Tier.SRAM and action.tensors is Class.KV:
            rule = "a cache outlives its section: hbm or ddr"
            out.append((action, Diagnostic(Code.PLACE_ILLEGAL, where, rule, levers=("place it in hbm",))))
        elif isinstance(action, Place) and action.tensors is Class.EXPERTS and not routed:
            out.append((action, Diagnostic(Code.EXPERTS_NONE, where, "the block has no routed experts")))
    return tuple(out)


def _demands(graph: Graph, lowered: dict[str, Lowered]) -> list:  # type: ignore[type-arg]
    out = []
    for kind, low in lowered.items():
        tiers = {}
        for cls in Class:
            place = low.last(Place, tensors=cls)
            tiers[cls] = (Tier.HBM if place.tier is Tier.SRAM else place.tier) if isinstance(place, Place) else None
        out.extend(demands(low.block, graph.repeats[kind], tiers))
    return out


@lru_cache(maxsize=256)
def _activation_bytes(graph: Graph) -> int:
    """Two generations of the largest boundary between blocks, whole on every socket."""
    boundary = [b.tensor[n] for b in graph.blocks for n in (*b.inputs, *b.outputs)]
    return 2 * max(t.nbytes for t in boundary if t.role is not Role.KV_CACHE)


def _tiling(graph: Graph, low: Lowered) -> tuple[Tiling, int]:
    """The block's loop tile, and how many tiles its tokens make."""
    tokens = max((op.size("tokens") for op in low.block.ops), default=1)
    default = tokens if graph.workload.phase is Phase.DECODE else min(tokens, DEFAULT_PREFILL_TILE)
    size, context = low.last(Tile, axis=Axis.TOKENS), low.last(Tile, axis=Axis.CONTEXT)
    tile = min(tokens, size.size) if isinstance(size, Tile) and isinstance(size.size, int) else default
    step = context.size if isinstance(context, Tile) and isinstance(context.size, int) else DEFAULT_CONTEXT_TILE
    experts = low.last(Experts)
    if not isinstance(experts, Experts) or not any(op.routing for op in low.block.ops):
        experts = None
    return Tiling(tile, step, experts), -(-tokens // tile)


def _knobs(graph: Graph, low: Lowered, layout: Layout, residents: int) -> Knobs:
    tiling, tiles = _tiling(graph, low)
    hold: dict[Class, bool | None] = {}
    for cls in (Class.WEIGHTS, Class.EXPERTS):
        place = low.last(Place, tensors=cls)
        hold[cls] = (place.tier is Tier.SRAM) if isinstance(place, Place) else None
    prefetch = low.last(Prefetch)
    units = {a.op: a.pcus for a in low.actions if isinstance(a, Units)}
    depths = {a.op: a.depth for a in low.actions if isinstance(a, Buffer)}
    return Knobs(
        tiling, tiles, tuple(units.items()), tuple(depths.items()), hold[Class.WEIGHTS], hold[Class.EXPERTS],  # type: ignore[arg-type]
        prefetch.nbytes if isinstance(prefetch, Prefetch) and isinstance(prefetch.nbytes, int) else 0,
        residents > 0, max(1, residents),
        tuple((cls, share) for (kind, cls), share in layout.in_ddr.items() if kind == low.block.kind),
    )  # fmt: skip


def _runs(  # noqa: PLR0913  everything the emit pass joins
    graph: Graph, schedule: Schedule, lowered: dict[str, Lowered], layout: Layout, target: Target, refused: _Refused
) -> tuple[Run, ...]:  # fmt: skip
    loops = [a for a in schedule.actions if isinstance(a, Loop)]
    used: set[Action] = set()
    out = []
    for body, times in graph.runs:
        loop = next((a for a in loops if a.block in (ALL, "+".join(body)) and times > 1), None)
        sections: list[Section] = []
        for kind in body:
            low = lowered[kind]
            knobs = _knobs(graph, low, layout, len(body) if loop else 0)
            for span in low.spans:
                section, diagnostics = map_section(low.block, span, knobs, target)
                refused.found.extend(diagnostics)
                sections.append(section)
        if loop is not None:
            used.add(loop)
            refused.found.extend(_loop_refusals(loop, body, sections, lowered, target))
        out.append(Run(tuple(sections), times, loop is not None))
    for loop in loops:
        if loop not in used:
            runs = [f"loop {'+'.join(body)}" for body, times in graph.runs if times > 1]
            rule = "these blocks do not repeat one after another in this model"
            refused.found.append(Diagnostic(Code.LOOP_NOT_REPEATED, f"loop {loop.block}", rule, levers=tuple(runs)))
    return tuple(out)


def _loop_refusals(
    loop: Loop, body: tuple[str, ...], sections: list[Section], lowered: dict[str, Lowered], target: Target
) -> list[Diagnostic]:
    out = []
    for kind in body:
        count = len(lowered[kind].spans)
        if count > 1:
            rule = f"{kind} is {count} sections; a loop body is one section a kind"
            out.append(Diagnostic(Code.LOOP_BODY_NOT_ONE_SECTION, f"loop {loop.block}", rule, levers=(f"fuse {kind} all",)))
    if len(body) > 1:
        for code, demand, bound, unit in (
            (Code.SECTION_OVER_PCUS, sum(s.pcus for s in sections), target.pcus, "PCUs"),
            (Code.SECTION_OVER_SRAM, sum(s.sram_bytes for s in sections), target.sram_bytes, "bytes"),
        ):
            if demand > bound:
                rule = "the kinds of a loop are resident together"
                levers = ("fewer units", "smaller buffers", "no loop")
                out.append(Diagnostic(code, f"loop {loop.block}", rule, demand, bound, unit, levers))
    return out
