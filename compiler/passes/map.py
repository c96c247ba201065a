"""Pass 4, map: the ops of a section become stages with PCUs, PMU buffers and streams.

Contract: what the schedule leaves open gets a deterministic heuristic (units in proportion to work, 90 % of the chip,
as published for fused decoders). SRAM is allocated here, buffer by buffer in whole PMUs; where that does not fit and
one loop tile is in flight, buffers share PMUs. A section that does not fit even so is refused with the largest buffers
and the levers. PMU ports and links count once a program is placed (`compiler.place`).
"""

from dataclasses import dataclass
from functools import lru_cache

from compiler.diagnostic import Code, Diagnostic, quantity
from compiler.ir.actions import ALL, Class
from compiler.ir.graph import Block, Op, Pattern, Role, is_kept
from compiler.passes.banks import pmus_of
from compiler.passes.lifetimes import share
from compiler.passes.partition import Span
from compiler.passes.work import Edge, Tiling, Work, block_work
from compiler.placement import Buffer, BufferKind
from compiler.program import ExpertTile, Section, Stage
from compiler.target import Target

UNITS_SHARE = 0.9  # MICRO'24 section VI-C: the fused decoder uses almost 90 % of PCUs and PMUs
STREAM_CHUNK = 16 * 2**10  # assumed: bytes of a stream in flight a PCU, double buffered


@dataclass(frozen=True, slots=True)
class Knobs:
    """What the schedule says of one section. `in_ddr` gives (bytes in DDR, bytes in all) by class.

    residents: sections on the chip at the same time (the kinds of a loop), which share the units.
    """

    tiling: Tiling
    tiles: int
    units: tuple[tuple[str, int], ...]
    depths: tuple[tuple[str, int], ...]
    hold_weights: bool | None
    hold_experts: bool | None
    prefetch: int
    looped: bool
    residents: int
    in_ddr: tuple[tuple[Class, tuple[int, int]], ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """Who makes and who reads each tensor of a block, by op index."""

    producer: dict[str, int]
    readers: dict[str, tuple[int, ...]]


@lru_cache(maxsize=1024)
def dataflow(block: Block) -> Flow:
    readers: dict[str, tuple[int, ...]] = {}
    for i, op in enumerate(block.ops):
        for name in op.inputs:
            readers[name] = (*readers.get(name, ()), i)
    return Flow({o: i for i, op in enumerate(block.ops) for o in op.outputs}, readers)


@lru_cache(maxsize=4096)
def crossing_bytes(block: Block, spans: tuple[Span, ...]) -> int:
    """Bytes of activations that go through HBM from one section of a block to another, all tokens, none reused."""
    flow, total = dataflow(block), 0
    for first, end in spans:
        for op in block.ops[first:end]:
            for name in op.outputs:
                tensor = block.tensor[name]
                outside = any(not first <= r < end for r in flow.readers.get(name, ()))
                total += tensor.nbytes if outside and not is_kept(tensor.role) else 0
    return total


@lru_cache(maxsize=16384)
def map_section(block: Block, span: Span, knobs: Knobs, target: Target) -> tuple[Section, tuple[Diagnostic, ...]]:
    """The section of ops `span`, and what keeps it from fitting the chip."""
    works = block_work(block, knobs.tiling, target)[span[0] : span[1]]
    holds = _holds(works, knobs)
    for hold, part in [*((h, UNITS_SHARE) for h in holds), *((holds[-1], UNITS_SHARE / n) for n in (2, 4, 8))]:
        units = _units(works, dict(knobs.units), target, part / knobs.residents)
        section = _build(works, units, hold, knobs, (block, span, target))
        if section.sram_bytes * knobs.residents > target.sram_bytes and knobs.tiles == 1:
            _shared(section, target)
        if section.sram_bytes * knobs.residents <= target.sram_bytes:
            break
    return section, tuple(_refusals(section, target))


def _shared(section: Section, target: Target) -> None:
    """Count the PMUs of a section whose buffers share them, where those of one have been read when the other begins."""
    numbers = share(section, [pmus_of(b.nbytes, b.copies, target) for b in section.buffers])
    section.pmus = 1 + max((n for mine in numbers for n in mine), default=-1)
    section.sram_bytes = section.pmus * target.pmu_bytes


def _units(works: tuple[Work, ...], asked: dict[str, int], target: Target, share: float) -> list[int]:
    """PCUs a stage: as asked, else of `share` of the chip in proportion to its cycles on one PCU, at most its cap."""
    port, per_cycle = target.port_bytes_per_cycle, target.lanes * target.pcu_stages
    need = [
        max(w.macs / per_cycle + w.vector_ops, (w.weight_bytes + w.expert_bytes) / port, 1.0) if w.cap else 0.0
        for w in works
    ]
    if ALL in asked:
        asked = {w.op: asked.get(w.op, asked[ALL]) for w in works if w.link_steps == 0}
    out = [asked.get(w.op, 0) for w in works]
    todo = [i for i, w in enumerate(works) if w.op not in asked and w.link_steps == 0]
    left = max(0, int(target.pcus * share) - sum(out))
    while todo:  # in proportion to the work; what a cap leaves goes to the others
        total = sum(need[i] for i in todo) or 1.0
        full = [i for i in todo if left * need[i] >= works[i].cap * total]
        if not full:
            break
        for i in full:
            out[i] = max(1, works[i].cap)
        left = max(0, left - sum(out[i] for i in full))
        todo = [i for i in todo if i not in full]
    for i in todo:
        out[i] = max(1, int(left * need[i] / total))
    spare = max(0, left - sum(out[i] for i in todo))
    for i in sorted(todo, key=lambda i: (-need[i] / out[i], i))[:spare]:  # whole units: the slowest first
        out[i] += 1
    return out


def _holds(works: tuple[Work, ...], knobs: Knobs) -> list[tuple[bool, bool]]:
    """Whether weights, and experts, stay on chip for all tiles of an execution: as placed, else as much as fits.

    Best first: with several tiles holding saves traffic, with one it saves nothing.
    """
    choices = [(True, True), (True, False), (False, False)] if knobs.tiles > 1 else [(False, False)]
    routed = [w for w in works if w.expert_bytes]
    if sum(w.resident_bytes for w in routed) > knobs.tiles * sum(w.expert_bytes for w in routed):
        choices = [c for c in choices if not c[1]]  # to hold experts is to load all of them
    weights, experts = knobs.hold_weights, knobs.hold_experts
    placed = [(w if weights is None else weights, e if experts is None else experts) for w, e in choices]
    return list(dict.fromkeys(placed))


@dataclass(frozen=True, slots=True)
class Wiring:
    """How the stages of a section hang together.

    preds: producers of each stage. lag: how many pipeline levels each stage's output waits for its last reader.
    entry: the same for each tensor that comes from outside. A tensor is on chip for that many tiles at once.
    walk: how many walks along the context end before each stage begins (a softmax reads all of it before it gives
    anything). Rows of a cache stream by: stages of another walk read them again.
    inner: tensors that are made here and read here.
    readers: the stages here that read a tensor.
    """

    preds: tuple[tuple[int, ...], ...]
    lag: tuple[int, ...]
    entry: dict[str, int]
    walk: tuple[int, ...]
    inner: frozenset[str]
    readers: dict[str, tuple[int, ...]]


@lru_cache(maxsize=4096)
def wiring(block: Block, span: Span) -> Wiring:
    flow, ops = dataflow(block), block.ops[span[0] : span[1]]
    preds: list[tuple[int, ...]] = []
    level: list[int] = []
    lag = [1] * len(ops)
    walk: list[int] = []
    seen: dict[str, list[int]] = {}
    for i, op in enumerate(ops):
        made = {name: flow.producer.get(name, -1) - span[0] for name in op.inputs}
        mine = tuple(sorted({p for p in made.values() if p >= 0}))
        preds.append(mine)
        level.append(1 + max((level[p] for p in mine), default=0))
        walk.append(max((walk[p] + _ends_a_walk(ops[p]) for p in mine), default=0))
        for p in mine:
            lag[p] = max(lag[p], level[i] - level[p])
        for name in (n for n, p in made.items() if p < 0):
            seen.setdefault(name, []).append(level[i])
    entry = {n: 1 + max(at) - min(at) for n, at in seen.items()}
    inner = frozenset(n for op in ops for n in op.inputs if flow.producer.get(n, -1) >= span[0])
    here = range(span[0], span[1])
    readers = {n: tuple(r - span[0] for r in at if r in here) for n, at in flow.readers.items()}
    return Wiring(tuple(preds), tuple(lag), entry, tuple(walk), inner, readers)


def _ends_a_walk(op: Op) -> bool:
    return op.pattern is Pattern.REDUCE and op.context > 1


def _build(
    works: tuple[Work, ...], units: list[int], hold: tuple[bool, bool], knobs: Knobs, place: tuple[Block, Span, Target]
) -> Section:
    """The section with its buffers."""
    block, span, target = place
    wires, flow, depths = wiring(block, span), dataflow(block), dict(knobs.depths)
    stages: list[Stage] = []
    stored: list[Buffer] = []
    read: set[tuple[str, int]] = set()
    several = knobs.tiles > 1
    for i, w in enumerate(works):
        walk = wires.walk[i]
        off_chip = [e for e in w.inputs if e.name in wires.entry and (e.name, walk if e.rows > 1 else 0) not in read]
        read.update((e.name, walk if e.rows > 1 else 0) for e in off_chip)
        depth = depths.get(w.op, depths.get("*", 2))
        out = [e for e in w.outputs if _leaves(e, block, flow, span)]
        held = hold[1] if w.expert_bytes else hold[0]
        stage = _stage(w, units[i], depth, wires.preds[i])
        _streams(stage, w, (off_chip, out), block, knobs, held)
        copies = depth + wires.lag[i] - 1 if several else depth
        for b in (
            *_outputs(i, w, copies, wires, (block, knobs)),
            *_staging(i, (w, stage, off_chip), wires, knobs, held),
        ):
            if b.nbytes:
                stage.pmus += pmus_of(b.nbytes, b.copies, target)
                stored.append(b)
        stages.append(stage)
    prefetch = knobs.prefetch if any(s.prefetchable and s.weight_bytes for s in stages) else 0
    pmus = sum(s.pmus for s in stages)
    if prefetch:
        stored.append(Buffer("prefetch", 0, BufferKind.PREFETCH, prefetch, prefetch, prefetch, 2, (), True))
        pmus += pmus_of(prefetch, 2, target)
    first, last = works[0].op, works[-1].op
    name = f"{block.kind}[{first}]" if first == last else f"{block.kind}[{first}..{last}]"
    sram, tiling = pmus * target.pmu_bytes, knobs.tiling
    experts = tuple(ExpertTile(w.op, w.regions, w.expert_rows) for w in works if w.expert_rows)
    sizes = (prefetch, sram, sum(units), pmus, tiling.tokens, tiling.context)
    return Section(name, block.kind, tuple(stages), knobs.tiles, *sizes, experts, tuple(stored))


def _leaves(edge: Edge, block: Block, flow: Flow, span: Span) -> bool:
    return edge.name in block.outputs or any(not span[0] <= r < span[1] for r in flow.readers.get(edge.name, ()))


def _stage(w: Work, units: int, depth: int, preds: tuple[int, ...]) -> Stage:
    used = max(1, min(units, w.cap))
    used = max(1, used // w.regions) * w.regions if w.regions > 1 else used
    return Stage(
        op=w.op,
        pattern=w.pattern,
        pcus=units,
        pcus_used=min(used, max(1, units)),
        pmus=0,
        flops=w.flops,
        macs=w.macs,
        vector_ops=w.vector_ops,
        weight_bytes=w.weight_bytes + w.expert_bytes,
        ddr_bytes=0,
        loads_once=False,
        prefetchable=w.prefetchable,
        kv_bytes=0,
        kv_ddr_bytes=0,
        kv_ports=1,
        read_bytes=0,
        write_bytes=0,
        carried_bytes=0,
        link_bytes=w.link_bytes,
        link_steps=w.link_steps,
        restarts=w.restarts,
        preds=preds,
        streams=w.streams,
        emits_early=w.emits_early,
        depth=depth,
    )


def _streams(
    stage: Stage, w: Work, edges: tuple[list[Edge], list[Edge]], block: Block, knobs: Knobs, held: bool
) -> None:
    """Fill in what the stage moves to and from HBM and DDR: its weights, and the edges that come in and go out."""
    ddr = dict(knobs.in_ddr)
    # An iteration drains before the next: with several tiles the carry of all of them would not stay on chip.
    carries = knobs.looped and knobs.tiles == 1
    stage.loads_once = held and w.pattern is not Pattern.GATHER  # each tile addresses other rows
    if held and w.expert_bytes and knobs.tiles > 1:  # over all tiles any expert may be called: all are loaded
        stage.weight_bytes = w.resident_bytes
    part, whole = ddr.get(Class.EXPERTS if w.expert_bytes else Class.WEIGHTS, (0, 1))
    stage.ddr_bytes = -(-stage.weight_bytes * part // whole)
    stage.weight_bytes -= stage.ddr_bytes
    caches = [e for e in edges[0] if e.cache]
    kv = sum(e.nbytes for e in caches)
    part, whole = ddr.get(Class.KV, (0, 1))
    stage.kv_ddr_bytes = -(-kv * part // whole)
    stage.kv_bytes = kv - stage.kv_ddr_bytes
    stage.kv_ports = max(1, min(sum(e.ports for e in caches), stage.pcus_used))
    for e in edges[0]:
        if not e.cache and carries and e.name in block.inputs:
            stage.carried_bytes += e.nbytes
        elif not e.cache:
            stage.read_bytes += e.nbytes
    for e in edges[1]:
        if carries and not is_kept(e.role) and e.name in block.outputs:
            stage.carried_bytes += e.nbytes
            continue
        # A tensor without tokens is written bit by bit, a share with every tile; cache rows go where the cache is.
        nbytes = -(-e.total // knobs.tiles) if e.whole else e.nbytes
        to_ddr = -(-nbytes * part // whole) if is_kept(e.role) else 0
        stage.kv_ddr_bytes += to_ddr
        stage.write_bytes += nbytes - to_ddr


def _output_bytes(e: Edge, copies: int, tiles: int, read_here: bool) -> int:
    """SRAM of an output: what is whole but read elsewhere only leaves bit by bit, what is read here is held.

    Of a recurrent state one sequence's is at work while another's leaves.
    """
    if e.role is Role.STATE:
        return min(e.nbytes, 2 * e.nbytes // e.rows)
    nbytes = e.nbytes * e.copies(copies)
    return min(nbytes, copies * -(-e.total // tiles)) if e.whole and not read_here else nbytes


def _outputs(i: int, w: Work, copies: int, wires: Wiring, place: tuple[Block, Knobs]) -> list[Buffer]:
    """The output buffers of stage `i`."""
    (block, knobs), name, out = place, f"{w.op} output", []
    for e in w.outputs:
        nbytes = _output_bytes(e, copies, knobs.tiles, e.name in wires.inner)
        readers = wires.readers.get(e.name, ())
        made = -(-e.total // knobs.tiles) if e.whole else e.nbytes
        stays = not readers or e.name in block.outputs
        out.append(Buffer(name, i, BufferKind.OUTPUT, nbytes, e.nbytes, made, e.copies(copies), readers, stays))
    return out


def _staging(i: int, moved: tuple[Work, Stage, list[Edge]], wires: Wiring, knobs: Knobs, held: bool) -> list[Buffer]:
    """SRAM of what stage `i` takes from outside, for as many tiles as there are between its readers, and of its
    weights, held or in flight."""
    w, stage, off_chip = moved
    out = []
    for e in off_chip:
        copies = 1 + (wires.entry[e.name] if knobs.tiles > 1 else 1)
        if e.role is Role.STATE:  # one sequence's state is at work while the next one's arrives
            copies, nbytes = 2, min(e.nbytes, 2 * e.nbytes // e.rows)
        elif e.rows > 1:  # rows of a cache, or what was expanded from one: two context tiles
            copies, nbytes = 2, min(e.nbytes, 2 * e.nbytes * knobs.tiling.context // e.rows)
        else:
            copies = e.copies(copies)
            nbytes = e.nbytes * copies
        readers = tuple(r for r in wires.readers[e.name] if r > i and (e.rows < 2 or wires.walk[r] == wires.walk[i]))
        out.append(Buffer(f"{e.name} stream", i, BufferKind.STREAM, nbytes, e.nbytes, e.nbytes, copies, readers, False))
    if w.resident_bytes:
        loaded = stage.weight_bytes + stage.ddr_bytes
        nbytes = w.resident_bytes if held else min(loaded, 2 * STREAM_CHUNK * stage.pcus_used)
        out.append(Buffer(f"{w.op} weights", i, BufferKind.WEIGHTS, nbytes, loaded, loaded, 1 if held else 2, (), held))
    return out


def _refusals(section: Section, target: Target) -> list[Diagnostic]:
    out = []
    if section.pcus > target.pcus:
        large = sorted(section.stages, key=lambda s: (-s.pcus, s.op))[:3]
        levers = (
            *(f"units {section.block} {s.op} pcus<={s.pcus // 2}" for s in large[:2] if s.pcus > 1),
            *_cut(section),
        )
        out.append(
            Diagnostic(
                Code.SECTION_OVER_PCUS,
                section.name,
                "stages resident together",
                section.pcus,
                target.pcus,
                "PCUs",
                levers,
            )
        )
    if section.sram_bytes > target.sram_bytes:
        largest = sorted(section.buffers, key=lambda b: (-b.nbytes, b.name))[:3]
        rule = "buffers resident together, in whole PMUs; largest: " + ", ".join(
            f"{b.name} {quantity(b.nbytes, 'bytes')}" for b in largest
        )
        levers = (*_cut(section), f"a smaller tile {section.block} tokens", f"buffer {section.block} * depth=1")
        if section.prefetch_bytes:
            levers = (f"prefetch {section.block} nbytes<{section.prefetch_bytes}", *levers)
        out.append(
            Diagnostic(
                Code.SECTION_OVER_SRAM, section.name, rule, section.sram_bytes, target.sram_bytes, "bytes", levers
            )
        )
    return out


def _cut(section: Section) -> tuple[str, ...]:
    middle = section.stages[(len(section.stages) - 1) // 2]
    return (f"cut {section.block} {middle.op}",) if len(section.stages) > 1 else ()
