"""estimate: analytic time of a program. Fill of the first loop tile, then a steady interval for each further tile.

An iteration of a loop drains before the next begins; only prefetched weights cross. `simulator.timing` has the
sections; this module has launches, loops and the report.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from compiler.ir.actions import Launch
from compiler.ir.graph import Phase
from compiler.program import Program, Run
from compiler.target import Target
from simulator.invariants import check
from simulator.report import Bound, Cause, Report, SectionReport, ordered
from simulator.timing import Pass, Rates, link_s, rates_of, section_pass

SIMULATOR_VERSION = 3
_STEADY = 1e-12  # relative change of an iteration's time below which the loop has reached its steady state


@dataclass(slots=True)
class _Totals:
    causes: dict[str, float] = field(default_factory=dict)
    hidden_s: float = 0.0
    latency_s: float = 0.0

    def add(self, causes: dict[str, float], times: float) -> None:
        for cause, seconds in causes.items():
            self.causes[cause] = self.causes.get(cause, 0.0) + seconds * times


def estimate(program: Program, target: Target, bound: Bound) -> Report:
    """Report of one step of `program` on `target`. Raises SimulatorFault if the figures break a law."""
    r, totals = rates_of(target), _Totals()
    launch_s = target.launch_hardware_s if program.launch == Launch.HARDWARE else target.launch_software_s
    sections: list[SectionReport] = []
    for run in program.runs:
        run_time(run, r, launch_s, totals, sections)
    latency, w = totals.latency_s, program.workload
    moved = traffic(program)
    peak = w.sockets * target.hbm_bytes_per_s * latency
    report = Report(
        program_id=program.id,
        fidelity="placed" if program.placed else "estimate",
        latency_s=latency,
        tokens_per_s_per_user=(1 if w.phase is Phase.DECODE else w.context) / latency,
        tokens_per_s=w.tokens / latency,
        hbm_pct=100 * (program.weight_nbytes + program.kv_nbytes) / peak,
        hbm_read_pct=100 * moved.hbm_read * w.sockets / peak,
        pcu_utilisation=moved.flops / (target.peak_flops * latency),
        launches=program.launches,
        breakdown_s=ordered(totals.causes),
        hidden_s=totals.hidden_s,
        sections=tuple(sections),
        hbm_read_bytes=moved.hbm_read,
        hbm_write_bytes=moved.hbm_write,
        ddr_read_bytes=moved.ddr,
        link_bytes=moved.link,
        sram_peak_bytes=max(_resident(run, "sram_bytes") for run in program.runs),
        pcus_peak=max(_resident(run, "pcus") for run in program.runs),
        memory_hbm_bytes=program.memory.hbm_bytes,
        memory_ddr_bytes=program.memory.ddr_bytes,
        memory_spilled_bytes=program.memory.spilled,
        spill_s=totals.causes.get(Cause.DDR, 0.0),
        limiter=str(max(Cause, key=lambda c: totals.causes.get(c, 0.0))),
        bound=bound,
    )
    check(report, target, moved.flops)
    return report


def _resident(run: Run, what: str) -> int:
    """Of a looped run all sections are on chip together; otherwise one at a time."""
    sizes = [getattr(s, what) for s in run.sections]
    return sum(sizes) if run.looped else max(sizes)


@dataclass(slots=True)
class Traffic:
    """Bytes a socket moves in a step, and the useful FLOPs it does."""

    hbm_read: int = 0
    hbm_write: int = 0
    ddr: int = 0
    link: int = 0
    flops: int = 0


def traffic(program: Program) -> Traffic:
    """Conservation: every byte a stage says it moves, once for each time it moves it."""
    t = Traffic()
    for run in program.runs:
        for section in run.sections:
            n, tiles = run.times, section.tiles
            for s in section.stages:
                loads = 1 if s.loads_once else tiles
                t.hbm_read += n * (loads * s.weight_bytes + tiles * (s.kv_bytes + s.read_bytes))
                t.hbm_write += n * tiles * s.write_bytes
                t.ddr += n * (loads * s.ddr_bytes + tiles * s.kv_ddr_bytes)
                t.link += n * tiles * s.link_bytes
                t.flops += n * tiles * s.flops
                boundary = tiles * s.carried_bytes
                t.hbm_read += boundary
    return t


def run_time(run: Run, r: Rates, launch_s: float, totals: _Totals, sections: list[SectionReport]) -> None:
    """Add one run to `totals` and its sections to the report."""
    spent = [0.0] * len(run.sections)
    why: list[dict[str, float]] = [{} for _ in run.sections]

    def note(k: int, one: Pass, times: float) -> None:
        spent[k] += one.latency_s * times
        for cause, seconds in one.causes.items():
            why[k][cause] = why[k].get(cause, 0.0) + seconds * times
        totals.add(one.causes, times)
        totals.hidden_s += one.hidden_s * times

    if not run.looped:
        for k, section in enumerate(run.sections):
            one = section_pass(section, r, 0.0, False)
            one.latency_s += launch_s
            one.causes[Cause.LAUNCH] = one.causes.get(Cause.LAUNCH, 0.0) + launch_s
            note(k, one, run.times)
    else:
        _loop(run, r, launch_s, note)
    totals.latency_s += sum(spent)
    for k, s in enumerate(run.sections):
        causes = ordered(why[k])
        limiter = max(causes, key=lambda cause: cause[1])[0]
        sections.append(
            SectionReport(
                name=s.name,
                block=s.block,
                executions=run.times,
                latency_s=spent[k],
                tiles=s.tiles,
                stages=len(s.stages),
                pcus=s.pcus,
                pmus=s.pmus,
                sram_bytes=s.sram_bytes,
                limiter=limiter,
                breakdown_s=causes,
                link_share=s.tiles * run.times * link_s(s, r) / spent[k],
            )
        )


def _loop(run: Run, r: Rates, launch_s: float, note: Callable[[int, Pass, float], None]) -> None:
    """One launch; iterations until their time is steady, the rest like the last. The carry crosses on chip."""
    edge = sum(sec.tiles * s.carried_bytes for sec in run.sections for s in sec.stages) / r.weights
    note(0, Pass(launch_s + edge, {Cause.LAUNCH: launch_s, Cause.ACTIVATIONS: edge}, 0.0, 0.0), 1)
    ahead, before = [0.0] * len(run.sections), -1.0
    for n in range(run.times):
        total, passes = 0.0, []
        for k, section in enumerate(run.sections):
            one = section_pass(section, r, ahead[k], True)
            ahead[k] = one.ahead
            total += one.latency_s
            passes.append(one)
        steady = abs(total - before) <= _STEADY * total
        for k, one in enumerate(passes):
            note(k, one, run.times - n if steady else 1)
        if steady:
            return
        before = total
