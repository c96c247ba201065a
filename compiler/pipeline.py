"""The compiler: (graph, schedule, target) -> Program, or every reason why not.

An ordered tuple of passes: rewrite -> shard -> partition -> allocate the off-chip tiers -> map with SRAM -> emit.
Blocks are validated when each pass constructs them; `verify` checks what must survive from one pass to the next. The
same inputs give the same program, byte for byte. A bug here raises; a bad schedule never does.
"""

from functools import lru_cache

from compiler.compulsory import compulsory_of
from compiler.diagnostic import Code, Diagnostic
from compiler.ir.actions import (
    ALL,
    Action,
    Axis,
    Buffer,
    Class,
    Experts,
    Launch,
    Loop,
    Place,
    Prefetch,
    SetLaunch,
    Tier,
    Tile,
    Units,
    known,
)
from compiler.ir.graph import Graph, is_kept
from compiler.ir.schedule import Schedule
from compiler.lower import Lowered, Refused, default_tile, loan_refusals, lower, unknown_blocks
from compiler.passes.allocate import Demand, Layout, allocate, demands
from compiler.passes.map import Knobs, crossing_bytes, map_section
from compiler.passes.work import Tiling
from compiler.program import Program, Run, Section
from compiler.target import Target
from compiler.verify import verify_memory, verify_sections, verify_sharded

COMPILER_VERSION = 5
#: Context rows of a step of streaming softmax where the schedule says nothing.
DEFAULT_CONTEXT_TILE = 256


def compile_schedule(graph: Graph, schedule: Schedule, target: Target) -> Program | tuple[Diagnostic, ...]:
    """Compile, or return every diagnostic found (of the first pass group that refuses)."""
    refused = Refused()
    for i, name, hole in schedule.holes:
        action = schedule.actions[i]
        refused.found.append(
            Diagnostic(Code.HOLE, f"{action.family} {name}", f"is the hole {hole}", levers=("fill it",))
        )
    refused.found.extend(unknown_blocks(graph, schedule))
    if refused.found:
        return tuple(refused.found)
    lowered = {b.kind: lower(b, schedule, graph.workload.sockets, refused) for b in graph.blocks}
    refused.found.extend(() if refused.found else loan_refusals(graph, lowered))
    if refused.found:
        return refused.all(len(lowered))
    for low in lowered.values():
        verify_sharded(low.source, low.block)
    layout, over = allocate(_demands(graph, lowered), _activation_bytes(graph, lowered), target)
    refused.found.extend(over)
    verify_memory(layout.memory)
    runs = _runs(graph, schedule, lowered, layout, target, refused)
    diagnostics = refused.all(len(lowered))
    if diagnostics:
        return diagnostics
    mode = next((a.mode for a in schedule.actions if isinstance(a, SetLaunch)), Launch.HARDWARE)
    return Program(
        graph.id,
        schedule.id,
        target.id,
        COMPILER_VERSION,
        graph.model,
        graph.workload,
        mode,
        runs,
        layout.memory,
        graph.weight_nbytes,
        graph.kv_nbytes,
        graph.weight_elements,
        compulsory_of(graph),
        target.name,
        tuple(low.block for low in lowered.values()),
    )


def _demands(graph: Graph, lowered: dict[str, Lowered]) -> list[Demand]:
    out: list[Demand] = []
    for kind, low in lowered.items():
        tiers: dict[Class, Tier | None] = {}
        for cls in Class:
            place = low.last(Place, tensors=cls)
            tiers[cls] = (Tier.HBM if place.tier is Tier.SRAM else place.tier) if isinstance(place, Place) else None
        out.extend(demands(low.block, graph.repeats[kind], tiers))
    return out


def _activation_bytes(graph: Graph, lowered: dict[str, Lowered]) -> int:
    """Activations in HBM: two generations of the largest boundary, and what one block's sections leave each other."""
    return 2 * _boundary_bytes(graph) + max(crossing_bytes(low.block, low.spans) for low in lowered.values())


@lru_cache(maxsize=256)
def _boundary_bytes(graph: Graph) -> int:
    boundary = [b.tensor[n] for b in graph.blocks for n in (*b.inputs, *b.outputs)]
    return max(t.nbytes for t in boundary if not is_kept(t.role))


def _tiling(graph: Graph, low: Lowered) -> tuple[Tiling, int]:
    """The block's loop tile, and how many tiles its tokens make."""
    tokens = max((op.size("tokens") for op in low.block.ops), default=1)
    size, context = low.last(Tile, axis=Axis.TOKENS), low.last(Tile, axis=Axis.CONTEXT)
    tile = min(tokens, known(size.size)) if size else default_tile(tokens, graph.workload.phase)
    step = known(context.size) if context else DEFAULT_CONTEXT_TILE
    experts = low.last(Experts) if any(op.routing for op in low.block.ops) else None
    return Tiling(tile, step, experts), -(-tokens // tile)


def _knobs(graph: Graph, low: Lowered, layout: Layout, residents: int) -> Knobs:
    tiling, tiles = _tiling(graph, low)
    hold: dict[Class, bool | None] = {}
    for cls in (Class.WEIGHTS, Class.EXPERTS):
        place = low.last(Place, tensors=cls)
        hold[cls] = place.tier is Tier.SRAM if place else None
    prefetch = low.last(Prefetch)
    units = {a.op: known(a.pcus) for a in low.actions if isinstance(a, Units)}
    depths = {a.op: known(a.depth) for a in low.actions if isinstance(a, Buffer)}
    return Knobs(
        tiling,
        tiles,
        tuple(units.items()),
        tuple(depths.items()),
        hold[Class.WEIGHTS],
        hold[Class.EXPERTS],
        known(prefetch.nbytes) if prefetch else 0,
        residents > 0,
        max(1, residents),
        tuple((cls, share) for (kind, cls), share in layout.in_ddr.items() if kind == low.block.kind),
    )


def _runs(
    graph: Graph, schedule: Schedule, lowered: dict[str, Lowered], layout: Layout, target: Target, refused: Refused
) -> tuple[Run, ...]:
    loops = [a for a in schedule.actions if isinstance(a, Loop)]
    used: set[Action] = set()
    out = []
    for body, times in graph.runs:
        matching = [a for a in loops if a.block in (ALL, "+".join(body)) and times > 1]
        loop = matching[0] if matching else None
        used.update(matching)
        sections: list[Section] = []
        for kind in body:
            low = lowered[kind]
            knobs = _knobs(graph, low, layout, len(body) if loop else 0)
            mapped = [map_section(low.block, span, knobs, target) for span in low.spans]
            verify_sections(low.block, tuple(section for section, _ in mapped))
            sections.extend(section for section, _ in mapped)
            refused.found.extend(d for _, diagnostics in mapped for d in diagnostics)
        if loop is not None:
            refused.found.extend(_loop_refusals(loop, body, sections, lowered, target))
        out.append(Run(tuple(sections), times, loop is not None))
    for loop in loops:
        if loop not in used:
            runs = [f"loop {'+'.join(body)}" for body, times in graph.runs if times > 1]
            rule = "these blocks do not repeat one after another in this model"
            levers = tuple(runs) or ("drop this line: no block repeats",)
            refused.found.append(Diagnostic(Code.LOOP_NOT_REPEATED, f"loop {loop.block}", rule, levers=levers))
    return tuple(out)


def _loop_refusals(
    loop: Loop, body: tuple[str, ...], sections: list[Section], lowered: dict[str, Lowered], target: Target
) -> list[Diagnostic]:
    out = []
    for kind in body:
        count = len(lowered[kind].spans)
        if count > 1:
            rule = f"{kind} is {count} sections; a loop body is one section a kind"
            out.append(
                Diagnostic(Code.LOOP_BODY_NOT_ONE_SECTION, f"loop {loop.block}", rule, levers=(f"fuse {kind} all",))
            )
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
