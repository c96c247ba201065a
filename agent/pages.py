"""report.html: one self-contained page of an onboarding. The template escapes every word it is given."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from agent.charts import Level, Segment, curve, outside_scale, segments
from agent.evaluate import VERSION, Evaluation, Rejected
from agent.explain import Explanation, limits
from agent.reference import number
from agent.report import warning_lines
from agent.summary import diff_lines, workload_words
from agent.trial import Onboarding
from agent.words import bound_words, clean, count, nbytes, percent, rate, seconds
from compiler.diagnostic import Diagnostic
from compiler.frontend import model_summary
from simulator.report import Cause, Report, SectionReport

if TYPE_CHECKING:
    from jinja2 import Template

MOST_SECTIONS = 40


@dataclass(frozen=True, slots=True)
class Row:
    """A preset or the best schedule: its report, or why it was refused."""

    name: str
    report: Report | None
    refused: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class Tier:
    """One memory tier of a socket: bytes used of bytes there are."""

    name: str
    note: str
    used: int
    capacity: int

    @property
    def share(self) -> float:
        return min(1.0, self.used / self.capacity)


def report_html(onboarding: Onboarding, explanation: Explanation) -> str:
    """The page of a run."""
    o = onboarding
    rows = _rows(o)
    measured = [(row.name, row.report) for row in rows if row.report is not None]
    longest = max(report.latency_s for _, report in measured)
    latencies = [t.latency_s for t in o.trials]
    levels = _levels(o, measured)
    return _template().render(
        o=o,
        model=model_summary(o.model),
        workload=workload_words(o.graph, o.target),
        best=o.report,
        base=next((r for name, r in measured if name == explanation.base), o.report),
        explanation=explanation,
        effects=[(e, e.cost_s(o.report)) for e in explanation.effects],
        diff=diff_lines(explanation),
        warnings=warning_lines(o.model, o.graph, o.target, o.report),
        rows=[*rows, _row("placed", o.placed)],
        curve=curve(latencies, levels),
        outside=outside_scale(latencies, levels),
        bars=[(name, r, segments(r.breakdown_s, longest)) for name, r in measured],
        causes=[str(c) for c in Cause if any(dict(r.breakdown_s).get(c, 0) > 0 for _, r in measured)],
        by_block=[(name, r, _by_block(r, longest)) for name, r in measured],
        sections=[(name, _by_section(r)) for name, r in reversed(measured)],
        most=MOST_SECTIONS,
        limits=limits(o.report),
        tiers=_tiers(o),
        assumptions=_provenance(o, ("assumed", "fitted")),
        sources=_provenance(o, ("source",)),
        version=VERSION,
    )


def _rows(o: Onboarding) -> list[Row]:
    return [_row(name, trial.evaluation) for name, trial in (*o.presets, ("best", o.best))]


def _row(name: str, evaluation: Evaluation) -> Row:
    if isinstance(evaluation, Rejected):
        return Row(name, None, evaluation.diagnostics)
    return Row(name, evaluation.report)


def _levels(o: Onboarding, measured: list[tuple[str, Report]]) -> list[Level]:
    base = [Level(name, r.latency_s, "l-base") for name, r in measured if name == "o3"]
    return [*base, Level("bound", o.bound.latency_s, "l-bound")]


def _by_block(report: Report, longest_s: float) -> tuple[Segment, ...]:
    """Time of a report by block kind, in the order of the model."""
    spent: dict[str, float] = {}
    for section in report.sections:
        spent[section.block] = spent.get(section.block, 0.0) + section.latency_s
    return segments(tuple(spent.items()), longest_s)


def _by_section(report: Report) -> list[tuple[SectionReport, tuple[Segment, ...]]]:
    """Sections, slowest first, each with its time by cause as a bar; the slowest fills the width."""
    slowest_first = sorted(report.sections, key=lambda s: -s.latency_s)
    return [(s, segments(s.breakdown_s, slowest_first[0].latency_s)) for s in slowest_first]


def _tiers(o: Onboarding) -> list[Tier]:
    r, t = o.report, o.target
    spilled = (
        f"{nbytes(r.memory_spilled_bytes)} of it because HBM is full"
        if r.memory_spilled_bytes
        else "placed by the schedule"
    )
    return [
        Tier("SRAM", "largest need of what is on chip together", r.sram_peak_bytes, t.sram_bytes),
        Tier("HBM", "weights, cache and activations", r.memory_hbm_bytes, t.hbm_bytes),
        Tier("DDR", spilled if r.memory_ddr_bytes else "not used", r.memory_ddr_bytes, t.ddr_bytes),
    ]


def _provenance(o: Onboarding, kinds: tuple[str, ...]) -> list[tuple[str, str, str, str]]:
    rows = [
        (key, number(key, getattr(o.target, key)), p.kind, p.text) for key, p in o.target.provenance if p.kind in kinds
    ]
    return sorted(rows, key=lambda row: -kinds.index(row[2]))


@lru_cache(maxsize=1)
def _template() -> "Template":
    from importlib.resources import files

    from jinja2 import Environment, FunctionLoader, StrictUndefined

    def load(name: str) -> str:
        return (files("agent") / "templates" / name).read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(load), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=_finalize,
    )  # fmt: skip
    words: dict[str, Any] = {
        "seconds": seconds, "nbytes": nbytes, "count": count, "rate": rate, "share": percent,
        "bound_words": bound_words,
    }  # fmt: skip
    environment.filters.update(words)
    return environment.get_template("report.html.j2")


def _finalize(value: Any) -> Any:
    """Control characters have no place in a page either; markup of the charts is left as it is."""
    return value if not isinstance(value, str) or hasattr(value, "__html__") else clean_block(value)


def clean_block(text: str) -> str:
    """`clean` line by line: a schedule keeps its lines."""
    return "\n".join(clean(part, 2000) for part in text.split("\n"))
