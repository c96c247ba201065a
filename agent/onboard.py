"""Onboard a model: from its config to a tuned schedule, starting from what the experience store knows.

The store is written once, at the end, in one transaction: a command that fails leaves it as it was. The same command
on the same store gives the same result: its recorded run is read back and the best schedule measured afresh.
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter

from agent.evaluate import VERSION, Evaluation, Fidelity, Measured, Rejected, evaluate, method_of
from agent.evaluator import Evaluator, rank
from agent.experience import records
from agent.experience.store import Store
from agent.experience.transfer import transfer
from agent.presets import PRESETS, preset
from agent.search import search
from agent.settings import Settings
from agent.trial import Counts, Onboarding, OnProgress, Progress, Start, Trial
from agent.workload import graph_for
from compiler.canonical import identity
from compiler.diagnostic import Diagnostic
from compiler.frontend import Model
from compiler.ir.graph import Graph
from compiler.ir.schedule import Schedule
from compiler.target import Target
from simulator.bound import bound_of
from simulator.report import Report

PROPOSER = "search"
NEIGHBOURS = 3


class OnboardFailed(Exception):
    """Nothing compiles, not even a preset: every reason. The store is as it was."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__("no preset compiles")
        self.diagnostics = diagnostics


@dataclass(frozen=True)
class _Task:
    """What is to be tuned, and how: the run key hashes all that decides the outcome but the store's content."""

    settings: Settings
    model: Model
    graph: Graph
    target: Target

    @property
    def method(self) -> records.Method:
        return method_of(self.target)

    @property
    def key(self) -> str:
        s = self.settings
        return identity(
            "runkey1", [self.graph.id, self.target.id, VERSION, Fidelity.ESTIMATE, s.seed, s.evals, PROPOSER]
        )


def onboard(settings: Settings, on_progress: OnProgress = lambda progress: None) -> Onboarding:
    """Tune the workload of `settings`. InputError for bad input, OnboardFailed when no preset compiles."""
    begun = perf_counter()
    model, graph, target = graph_for(settings)
    task = _Task(settings, model, graph, target)
    with Store.open(settings.store) as store:
        again = _recorded(task, store)
        if again is not None:
            run_id, trials, note = again
            start = Start("exact", note, (run_id,))
            counts = Counts(len(trials), sum(t.latency_s is None for t in trials), len(trials))
            return _result(task, run_id, trials, start, counts, perf_counter() - begun)
        presets = [(name, preset(name, graph, target)) for name in PRESETS]
        start, extra = _starts(task, store, presets)
        evaluator = _evaluator(task, store, on_progress)
        search(evaluator, [*presets, *extra], settings.seed)
        if evaluator.best is None:
            raise OnboardFailed(_reasons(evaluator.trials))
        run = _run(task, evaluator, start)
        _record(task, store, run, evaluator)
        return _result(task, run.id, tuple(evaluator.trials), start, evaluator.counts, perf_counter() - begun)


def _recorded(task: _Task, store: Store) -> tuple[str, tuple[Trial, ...], str] | None:
    """The finished run of this very command, whole and with its best schedule measured again; else None."""
    run = store.finished_run(task.key)
    if run is None:
        return None
    steps = store.trials(run.id)
    kept = store.get_evaluations(s.evaluation_key for s in steps)
    if len(steps) != run.evaluations_total or any(s.evaluation_key not in kept for s in steps):
        return None
    trials = []
    for s in steps:
        stored = kept[s.evaluation_key]
        evaluation = _evaluation(stored)
        if evaluation is None:
            return None
        trials.append(Trial(s.index, stored.schedule, evaluation, s.parent_index, s.origin, True))
    best = min((t for t in trials if t.latency_s is not None), key=rank)
    fresh = evaluate(task.graph, best.schedule, task.target)
    if not isinstance(fresh, Measured) or fresh.report.latency_s != best.latency_s:
        return None
    note = (
        f"this command is in the store (run {run.id}): its {run.evaluations_total} evaluations are read "
        f"back and its best is measured again; more --evals or another --seed search further"
    )
    return run.id, tuple(trials), note


def _evaluation(stored: records.Evaluation) -> Evaluation | None:
    """What the store has, or None where its report is not one that this version writes."""
    if stored.report is None:
        return Rejected(stored.diagnostics)
    try:
        return Measured(Report.from_json(stored.report))
    except (KeyError, TypeError, AttributeError):
        return None


def _starts(task: _Task, store: Store, presets: list[tuple[str, Schedule]]) -> tuple[Start, list[tuple[str, Schedule]]]:
    """Schedules from experience: this workload's incumbent, else those of the nearest workloads, moved here."""
    incumbent = store.incumbent(task.graph.id, task.method)
    if incumbent is not None:
        note = f"starts from this workload's best known schedule ({incumbent.latency_s * 1e3:.3f} ms)"
        return Start("known", note, (task.graph.id,)), [("known: incumbent", incumbent.schedule)]
    base = presets[-1][1]
    if isinstance(evaluate(task.graph, base, task.target), Rejected):
        base = presets[0][1]
    if isinstance(evaluate(task.graph, base, task.target), Rejected):
        return Start("none", "starts from the presets: no preset compiles, so nothing can be moved here"), []
    neighbours = store.nearest(records.WorkloadRecord.of(task.graph), task.method, NEIGHBOURS)
    out: list[tuple[str, Schedule]] = []
    said = []
    for n in neighbours:
        moved = transfer(n.schedule, task.graph, task.target, base)
        said.append(f"{n.workload.model} ({n.kind}, {moved.kept} edits kept, {moved.dropped} dropped)")
        if moved.kept:
            out.append((f"{n.kind}: {n.workload.model}", moved.schedule))
    if not out:
        return Start("none", "starts from the presets: the store knows nothing like this workload"), []
    kind = "near" if any(n.kind in (records.StartKind.NEAR, records.StartKind.EXACT) for n in neighbours) else "far"
    return Start(kind, f"starts from schedules of {', '.join(said)}", tuple(n.workload.id for n in neighbours)), out


def _evaluator(task: _Task, store: Store, on_progress: OnProgress) -> Evaluator:
    bound_s = bound_of(task.graph, task.target).latency_s
    best: list[float] = []

    def tell(trial: Trial) -> None:
        if trial.latency_s is not None:
            best[:] = [min([*best, trial.latency_s])]
        on_progress(Progress(trial.index + 1, task.settings.evals, best[0] if best else None, bound_s))

    def stored(key: str) -> Evaluation | None:
        found = store.get_evaluation(key)
        return None if found is None else _evaluation(found)

    return Evaluator(task.graph, task.target, task.settings.evals, stored, tell)


def _reasons(trials: list[Trial]) -> tuple[Diagnostic, ...]:
    found = [d for t in trials if isinstance(t.evaluation, Rejected) for d in t.evaluation.diagnostics]
    return tuple(dict.fromkeys(found))


def _run(task: _Task, evaluator: Evaluator, start: Start) -> records.Run:
    now = datetime.now(UTC)
    best = evaluator.best
    assert best is not None
    kinds = {"known": records.StartKind.EXACT, "near": records.StartKind.NEAR, "far": records.StartKind.FAR}
    kind = kinds.get(start.kind, records.StartKind.NONE)
    return records.Run(
        id=f"{now:%Y%m%d-%H%M%S}-{identity('run', [task.key, now.isoformat(), os.getpid()])[4:12]}",
        key=task.key,
        graph_id=task.graph.id,
        method=task.method,
        seed=task.settings.seed,
        evals=task.settings.evals,
        proposer=PROPOSER,
        status=records.RunStatus.DONE,
        started=now.isoformat(timespec="seconds"),
        best_schedule_id=best.schedule.id,
        best_latency_s=best.latency_s,
        evaluations_total=evaluator.counts.total,
        evaluations_rejected=evaluator.counts.rejected,
        evaluations_cached=evaluator.counts.cached,
        start_kind=kind,
        start_from=start.sources[0] if kind is not records.StartKind.NONE else None,
    )


def _record(task: _Task, store: Store, run: records.Run, evaluator: Evaluator) -> None:
    steps, batch = [], []
    for t in evaluator.trials:
        if isinstance(t.evaluation, Measured):
            e = records.Evaluation.measured(task.graph.id, t.schedule, task.method, t.evaluation.report)
        else:
            e = records.Evaluation.rejected(task.graph.id, t.schedule, task.method, t.evaluation.diagnostics)
        steps.append(records.Trial(t.index, t.schedule.id, e.key, t.parent, t.origin))
        if not t.cached:
            batch.append(e)
    store.record_run(run, steps, batch, task.graph, task.target)


def _result(
    task: _Task, run_id: str, trials: tuple[Trial, ...], start: Start, counts: Counts, wall_s: float
) -> Onboarding:
    by_schedule = {t.schedule.id: t for t in trials}
    known = [(name, by_schedule.get(preset(name, task.graph, task.target).id)) for name in PRESETS]
    presets = tuple((name, trial) for name, trial in known if trial is not None)
    best = min((t for t in trials if t.latency_s is not None), key=rank)
    bound = bound_of(task.graph, task.target)
    return Onboarding(
        task.settings, run_id, task.model, task.graph, task.target, bound, presets, best, trials, start, counts, wall_s
    )
