"""Why the best schedule is faster than the preset: from measured differences only.

Each change is undone on its own in the best schedule and the result is evaluated, so that what a line says a change
does is the difference between two reports. These evaluations explain; they are not trials and cost no budget.
The explanation depends on graph, target and schedules only, so a repeated run explains itself in the same words.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agent.evaluate import Evaluation, Measured, Rejected
from agent.words import nbytes, percent, seconds
from compiler.diagnostic import Code, Diagnostic
from compiler.ir.actions import (
    ALL,
    Action,
    Buffer,
    Cut,
    Experts,
    Fuse,
    Loop,
    Place,
    Prefetch,
    Rewrite,
    Rule,
    SetLaunch,
    Shard,
    Tile,
    Units,
)  # fmt: skip
from compiler.ir.schedule import Schedule
from compiler.ir.text import print_action
from simulator.report import Report

Evaluate = Callable[[Schedule], Evaluation]

#: A difference below this share of the step's time is not worth a word.
WORTH = 0.001
MOST_CHANGES = 40


@dataclass(frozen=True, slots=True)
class Change:
    """What takes the base schedule a step towards the best: actions gone and actions new on one subject."""

    gone: tuple[Action, ...]
    new: tuple[Action, ...]

    @property
    def text(self) -> str:
        return "; ".join(print_action(a) for a in self.new) or "; ".join(f"no {print_action(a)}" for a in self.gone)

    def undone(self, best: Schedule, base: Schedule) -> Schedule:
        """`best` with this subject as `base` has it. Sections depend on order, so they are taken over as a whole."""
        if any(isinstance(a, Fuse | Cut) for a in (*self.gone, *self.new)):
            sections = [a for a in base.actions if isinstance(a, Fuse | Cut)]
            return Schedule((*(a for a in best.actions if not isinstance(a, Fuse | Cut)), *sections))
        return best.without(*self.new).with_actions(*self.gone)


@dataclass(frozen=True, slots=True)
class Effect:
    """A change and the step without it: the report, or why it does not compile, and what the difference says."""

    change: Change
    without: Report | Diagnostic
    words: str

    def cost_s(self, best: Report) -> float | None:
        """Seconds the step takes longer without the change; None where it does not compile."""
        return self.without.latency_s - best.latency_s if isinstance(self.without, Report) else None


@dataclass(frozen=True, slots=True)
class Explanation:
    """`lines` are sentences; `causes` are (cause, base seconds, best seconds); `effects` are largest first."""

    base: str
    changes: tuple[Change, ...]
    causes: tuple[tuple[str, float, float], ...]
    effects: tuple[Effect, ...]
    lines: tuple[str, ...]


def changes_between(base: Schedule, best: Schedule) -> tuple[Change, ...]:
    """Changes from `base` to `best`, by subject, in the order of the actions."""
    gone = [a for a in base.actions if a not in best.actions]
    new = [a for a in best.actions if a not in base.actions]
    sections = Change(
        tuple(a for a in gone if isinstance(a, Fuse | Cut)), tuple(a for a in new if isinstance(a, Fuse | Cut))
    )
    subjects = dict.fromkeys((type(a), a.subject) for a in (*new, *gone) if not isinstance(a, Fuse | Cut))
    out = [sections] if sections.gone or sections.new else []
    for subject in subjects:
        mine = [tuple(a for a in side if (type(a), a.subject) == subject) for side in (gone, new)]
        out.append(Change(mine[0], mine[1]))
    return tuple(out)


def explain(base: tuple[str, Schedule, Report], best: tuple[Schedule, Report], evaluate: Evaluate) -> Explanation:
    """Compare `best` with `base` (a preset's name, schedule and report)."""
    name, base_schedule, slow = base
    schedule, fast = best
    changes = changes_between(base_schedule, schedule)
    causes = _causes(slow, fast)
    if not changes:
        return Explanation(name, (), causes, (), (f"No schedule was found that is faster than the {name} preset.",))
    effects = []
    for change in changes[:MOST_CHANGES]:
        without = _without(change.undone(schedule, base_schedule), evaluate)
        effects.append(Effect(change, without, _words(change, without, fast)))
    effects.sort(key=lambda e: -(e.cost_s(fast) if isinstance(e.without, Report) else float("inf")))  # type: ignore[operator]
    lines = [_headline(name, slow, fast), *_moved(causes, slow, fast), *_sentences(effects, fast)]
    return Explanation(name, changes, causes, tuple(effects), tuple(lines))


def limits(report: Report) -> tuple[tuple[str, float], ...]:
    """The causes of the step's time worth naming, largest first."""
    return tuple(sorted(((c, s) for c, s in report.breakdown_s if s > WORTH * report.latency_s), key=lambda x: -x[1]))


def _without(undone: Schedule, evaluate: Evaluate) -> Report | Diagnostic:
    """The undone schedule's report, or why it does not compile. Numbers of ops that the change had made go with it."""
    result = evaluate(undone)
    if isinstance(result, Rejected):
        rules = [d.rule for d in result.diagnostics if d.code is Code.UNKNOWN_OP]
        named = [
            a for a in undone.actions if isinstance(a, Units | Buffer) and any(repr(a.op) in rule for rule in rules)
        ]
        result = evaluate(undone.without(*named)) if named else result
    return result.report if isinstance(result, Measured) else result.diagnostics[0]


def _causes(slow: Report, fast: Report) -> tuple[tuple[str, float, float], ...]:
    before, after = dict(slow.breakdown_s), dict(fast.breakdown_s)
    return tuple((c, before.get(c, 0.0), after.get(c, 0.0)) for c in dict.fromkeys((*before, *after)))


def _headline(name: str, slow: Report, fast: Report) -> str:
    gain = slow.latency_s - fast.latency_s
    if gain == 0:
        return f"As fast as {name}: {seconds(fast.latency_s)}."
    if gain < 0:
        return f"Slower than {name}: {seconds(fast.latency_s)} against {seconds(slow.latency_s)}."
    ratio = slow.latency_s / fast.latency_s
    return f"{ratio:.3f}x as fast as {name}: {seconds(slow.latency_s)} -> {seconds(fast.latency_s)} (-{seconds(gain)})."


def _moved(causes: tuple[tuple[str, float, float], ...], slow: Report, fast: Report) -> list[str]:
    """Where the time went or came from, largest difference first, as one sentence each way; and what else changed."""
    large = sorted((c for c in causes if abs(c[1] - c[2]) > WORTH * slow.latency_s), key=lambda c: -abs(c[1] - c[2]))
    less = [f"{c} {seconds(a)} -> {seconds(b)}" for c, a, b in large if b < a]
    more = [f"{c} {seconds(a)} -> {seconds(b)}" for c, a, b in large if b > a]
    out = [f"Less time on: {', '.join(less)}."] if less else []
    out += [f"More time on: {', '.join(more)}."] if more else []
    if fast.hidden_s - slow.hidden_s > WORTH * fast.latency_s:
        before = f" ({seconds(slow.hidden_s)} before)" if slow.hidden_s else ""
        out.append(f"Prefetch hides {seconds(fast.hidden_s)} of weight streaming behind other work{before}.")
    return out


def _sentences(effects: list[Effect], fast: Report) -> list[str]:
    """One sentence for each change that matters on its own; one for all others."""
    out, idle = [], 0
    for effect in effects:
        cost, name = effect.cost_s(fast), effect.change.text
        if isinstance(effect.without, Diagnostic):
            out.append(f"{name}: {effect.words}; without it the schedule does not compile ({effect.without.code}).")
        elif cost is not None and abs(cost) > WORTH * fast.latency_s:
            sign = "+" if cost > 0 else "-"
            share = percent(abs(cost), fast.latency_s)
            out.append(f"{name}: {effect.words}; without it {seconds(effect.without.latency_s)} ({sign}{share}).")
        else:
            idle += 1
    if idle:
        out.append(f"{idle} {'change makes' if idle == 1 else 'changes make'} less than 0.1% of difference alone.")
    return out


def _words(change: Change, without: Report | Diagnostic, fast: Report) -> str:
    """What the change is, and what differs between the two reports."""
    parts = [_what(change)]
    if isinstance(without, Report):
        parts += _measured(without, fast)
    return ", ".join(p for p in parts if p)


def _measured(slow: Report, fast: Report) -> list[str]:
    out = []
    hidden = fast.hidden_s - slow.hidden_s
    if hidden > WORTH * fast.latency_s:
        out.append(f"hides {seconds(hidden)} of weight streaming behind other work")
    tiers = (("HBM", slow.hbm_read_bytes, fast.hbm_read_bytes), ("DDR", slow.ddr_read_bytes, fast.ddr_read_bytes))
    reads = [
        f"{nbytes(abs(a - b))} {'less' if b < a else 'more'} from {tier}"
        for tier, a, b in tiers
        if abs(a - b) > WORTH * max(a, b)
    ]
    if reads:
        out.append(f"a socket reads {' and '.join(reads)}")
    if slow.launches != fast.launches:
        out.append(f"launches {slow.launches} -> {fast.launches}")
    moved = [(a - b, c, a, b) for c, a, b in _causes(slow, fast) if abs(a - b) > WORTH * fast.latency_s]
    moved.sort(key=lambda m: -abs(m[0]))
    if moved:
        out.append("time on " + ", ".join(f"{c} {seconds(a)} -> {seconds(b)}" for _, c, a, b in moved[:3]))
    return out


def _what(change: Change) -> str:
    """What the new action means on the chip, or nothing where only old ones are gone."""
    if not change.new:
        return "taken out"
    new, old = change.new[0], change.gone[0] if change.gone else None
    describe = _MEANING.get(type(new))
    return describe(new, old) if describe else ""


def _rewrite(new: Action, old: Action | None) -> str:
    assert isinstance(new, Rewrite)
    if new.rule is Rule.SPLIT_KV:
        before = old.ways if isinstance(old, Rewrite) else 1
        return f"the cache is walked in {new.ways} parts at once instead of {before}"
    return {
        Rule.MERGE_QKV: "query, key and value weights arrive as one stream",
        Rule.MERGE_GATE_UP: "gate and up weights arrive as one stream",
        Rule.MLA_ABSORB: "attention runs on the latent cache itself",
        Rule.STREAMING_SOFTMAX: "scores are never stored",
    }.get(new.rule, "")


def _experts(new: Action, old: Action | None) -> str:
    assert isinstance(new, Experts)
    before = old.regions if isinstance(old, Experts) else 1
    if new.regions == before:
        return f"tiles of {new.tile} rows an expert"
    return f"routed experts run on {new.regions} regions side by side instead of {before}"


def _tile(new: Action, old: Action | None) -> str:
    assert isinstance(new, Tile)
    before = f" instead of {old.size}" if isinstance(old, Tile) else ""
    return f"loop tiles of {new.size} {new.axis}{before}"


def _shard(new: Action, old: Action | None) -> str:
    assert isinstance(new, Shard)
    before = f" instead of {old.ways}" if isinstance(old, Shard) else ""
    if new.ways == 1:
        return f"{new.dim} of {new.part} stays whole on every socket"
    return f"{new.dim} of {new.part} is spread over {new.ways} sockets{before}"


def _buffer(new: Action) -> str:
    assert isinstance(new, Buffer)
    who = "every stage" if new.op == ALL else new.op
    return f"{who} takes turns with its readers" if new.depth == 1 else f"{who} may run {new.depth} tiles ahead"


def _place(new: Action, old: Action | None) -> str:
    assert isinstance(new, Place)
    return f"{new.tensors} stay in {str(new.tier).upper()}"


_MEANING: dict[type[Action], Callable[[Action, Action | None], str]] = {
    Rewrite: _rewrite,
    Experts: _experts,
    Tile: _tile,
    Shard: _shard,
    Place: _place,
    Fuse: lambda new, old: "other sections",
    Cut: lambda new, old: "other sections",
    Loop: lambda new, old: "layers run in one launch",
    SetLaunch: lambda new, old: f"sections are launched by {new.mode}",  # type: ignore[attr-defined]
    Prefetch: lambda new, old: "",  # what prefetch hides is measured
    Units: lambda new, old: f"{new.op} on {new.pcus} PCUs",  # type: ignore[attr-defined]
    Buffer: lambda new, old: _buffer(new),
}
