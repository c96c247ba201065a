"""Pass 4, map: the ops of a section become stages with PCUs, PMU buffers and streams.

Contract: what the schedule leaves open gets a deterministic heuristic (units in proportion to work, 90 % of the chip,
as published for fused decoders). SRAM is allocated here, buffer by buffer in whole PMUs: a section that does not fit
is refused with the largest buffers and the levers. PMU bandwidth is not modelled apart: a PMU is assumed to feed the
port of the PCU beside it at full rate.
"""

from dataclasses import dataclass
from functools import lru_cache

from compiler.diagnostic import Code, Diagnostic, quantity
from compiler.ir.actions import Class
from compiler.ir.graph import Block
from compiler.passes.partition import Span
from compiler.passes.work import Edge, Tiling, Work, block_work
from compiler.program import Section, Stage
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


@lru_cache(maxsize=16384)
def map_section(block: Block, span: Span, knobs: Knobs, target: Target) -> tuple[Section, tuple[Diagnostic, ...]]:
    """The section of ops `span`, and what keeps it from fitting the chip."""
    works = block_work(block, knobs.tiling, target)[span[0] : span[1]]
    units = _units(works, dict(knobs.units), target, knobs.residents)
    first, last = works[0].op, works[-1].op
    name = f"{block.kind}[{first}]" if first == last else f"{block.kind}[{first}..{last}]"
    for hold in _holds(knobs):
        section, stored = _build(block, span, works, units, hold, knobs, target, name)
        if section.sram_bytes * knobs.residents <= target.sram_bytes:
            break
    return section, tuple(_refusals(section, stored, target))


def _units(works: tuple[Work, ...], asked: dict[str, int], target: Target, residents: int) -> list[int]:
    """PCUs a stage: as asked, else in proportion to the cycles it would take on one PCU, within its parallelism."""
    port, per_cycle = target.port_bytes_per_cycle, target.lanes * target.pcu_stages
    need = [
        max(w.macs / per_cycle + w.vector_ops, (w.weight_bytes + w.expert_bytes) / port, 1.0) if w.cap else 0.0
        for w in works
    ]
    left = target.pcus * UNITS_SHARE / residents - sum(asked.get(w.op, 0) for w in works)
    total = sum(n for w, n in zip(works, need, strict=True) if w.op not in asked) or 1.0
    out = []
    for w, n in zip(works, need, strict=True):
        share = int(max(0.0, left) * n / total)
        out.append(asked.get(w.op) or (max(1, min(w.cap, share)) if w.link_steps == 0 else 0))
    return out


def _holds(knobs: Knobs) -> list[tuple[bool, bool]]:
    """Whether weights, and experts, stay on chip for all tiles of an execution: as placed, else as much as fits.

    Best first: with several tiles holding saves traffic, with one it saves nothing.
    """
    choices = [(True, True), (True, False), (False, False)] if knobs.tiles > 1 else [(False, False)]
    weights, experts = knobs.hold_weights, knobs.hold_experts
    placed = [(w if weights is None else weights, e if experts is None else experts) for w, e in choices]
    return list(dict.fromkeys(placed))


def _build(  # noqa: PLR0913  the pieces of one section, passed once
    block: Block,
    span: Span,
    works: tuple[Work, ...],
    units: list[int],
    hold: tuple[bool, bool],
    knobs: Knobs,
    target: Target,
    name: str,
) -> tuple[Section, list[tuple[str, int]]]:
    flow, depths, ddr = dataflow(block), dict(knobs.depths), dict(knobs.in_ddr)
    level: list[int] = []
    stages: list[Stage] = []
    stored: list[tuple[str, int]] = []
    read: set[str] = set()
    extra = [1] * len(works)
    all_preds: list[tuple[int, ...]] = []
    for i, w in enumerate(works):
        preds = tuple(
            sorted(
                {
                    flow.producer[e.name] - span[0]
                    for e in w.inputs
                    if span[0] <= flow.producer.get(e.name, -1) < span[1]
                }
            )
        )
        all_preds.append(preds)
        level.append(1 + max((level[p] for p in preds), default=0))
        for p in preds:
            extra[p] = max(extra[p], level[i] - level[p])
    for i, w in enumerate(works):
        off_chip = [
            e for e in w.inputs if not span[0] <= flow.producer.get(e.name, -1) < span[1] and e.name not in read
        ]
        read.update(e.name for e in off_chip)
        depth = depths.get(w.op, depths.get("*", 2))
        out = [e for e in w.outputs if _leaves(e, block, flow, span)]
        held = hold[1] if w.expert_bytes else hold[0]
        stage = _stage(w, units[i], depth, all_preds[i])
        _streams(stage, w, off_chip, out, block, knobs, ddr, held)
        buffers = _buffers(w, stage, off_chip, depth + (extra[i] - 1 if knobs.tiles > 1 else 0), knobs, held)
        stage.pmus = sum(-(-n // target.pmu_bytes) for _, n in buffers)
        stored.extend(buffers)
        stages.append(stage)
    prefetch = knobs.prefetch if any(s.prefetchable and s.weight_bytes + s.ddr_bytes for s in stages) else 0
    pmus = sum(s.pmus for s in stages) + -(-prefetch // target.pmu_bytes)
    if prefetch:
        stored.append(("prefetch", prefetch))
    section = Section(
        name,
        block.kind,
        tuple(stages),
        knobs.tiles,
        prefetch,
        pmus * target.pmu_bytes,
        sum(units),
        pmus,
    )
    return section, stored


def _leaves(edge: Edge, block: Block, flow: Flow, span: Span) -> bool:
    return edge.name in block.outputs or any(not span[0] <= r < span[1] for r in flow.readers.get(edge.name, ()))


def _stage(w: Work, units: int, depth: int, preds: tuple[int, ...]) -> Stage:
    used = max(1, min(units, w.cap))
    used = max(1, used // w.regions) * w.regions if w.regions > 1 else used
    return Stage(
        op=w.op,
        pattern=str(w.pattern),
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


def _streams(  # noqa: PLR0913  one stage's off-chip traffic
    stage: Stage,
    w: Work,
    off_chip: list[Edge],
    out: list[Edge],
    block: Block,
    knobs: Knobs,
    ddr: dict[Class, tuple[int, int]],
    held: bool,
) -> None:
    """Fill in what the stage moves to and from HBM and DDR."""
    stage.loads_once = held
    if held and w.expert_bytes and knobs.tiles > 1:  # over all tiles any expert may be called: all are loaded
        stage.weight_bytes = w.resident_bytes
    part, whole = ddr.get(Class.EXPERTS if w.expert_bytes else Class.WEIGHTS, (0, 1))
    stage.ddr_bytes = -(-stage.weight_bytes * part // whole)
    stage.weight_bytes -= stage.ddr_bytes
    caches = [e for e in off_chip if e.cache]
    kv = sum(e.nbytes for e in caches)
    part, whole = ddr.get(Class.KV, (0, 1))
    stage.kv_ddr_bytes = -(-kv * part // whole)
    stage.kv_bytes = kv - stage.kv_ddr_bytes
    stage.kv_ports = max(1, sum(min(e.ports, stage.pcus_used) for e in caches))
    for edges, reads in (([e for e in off_chip if not e.cache], True), (out, False)):
        for e in edges:
            boundary = e.name in (block.inputs if reads else block.outputs)
            if boundary and knobs.looped and not e.cache and "kv" not in e.role:
                stage.carried_bytes += e.nbytes
            elif reads:
                stage.read_bytes += e.nbytes
            else:
                stage.write_bytes += e.nbytes


def _buffers(
    w: Work, stage: Stage, off_chip: list[Edge], depth: int, knobs: Knobs, held: bool
) -> list[tuple[str, int]]:
    """SRAM a stage takes: output tiles, staging of what comes from outside, weights held or in flight."""
    out = [(f"{w.op} output", e.nbytes * (1 if e.whole else depth)) for e in w.outputs]
    for e in off_chip:
        nbytes = (
            min(e.nbytes, 2 * e.nbytes * knobs.tiling.context // e.rows)
            if e.rows > 1
            else e.nbytes * (1 if e.whole else 2)
        )
        out.append((f"{e.name} stream", nbytes))
    if w.resident_bytes:
        flight = min(stage.weight_bytes + stage.ddr_bytes, 2 * STREAM_CHUNK * stage.pcus_used)
        out.append((f"{w.op} weights", w.resident_bytes if held else flight))
    return [(n, b) for n, b in out if b]


def _refusals(section: Section, stored: list[tuple[str, int]], target: Target) -> list[Diagnostic]:
    out = []
    if section.pcus > target.pcus:
        large = sorted(section.stages, key=lambda s: (-s.pcus, s.op))[:3]
        levers = (*(f"units {section.block} {s.op} pcus<={s.pcus // 2}" for s in large[:2]), *_cut(section))
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
        largest = sorted(stored, key=lambda x: (-x[1], x[0]))[:3]
        rule = "buffers resident together, in whole PMUs; largest: " + ", ".join(
            f"{n} {quantity(b, 'bytes')}" for n, b in largest
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
