"""Evaluations on a budget: each counted once, none computed twice, every one a trial of the run."""

from collections.abc import Callable

from agent.evaluate import Evaluation, Measured, evaluate, evaluation_key
from agent.trial import Counts, Trial
from compiler.ir.graph import Graph
from compiler.ir.schedule import Schedule
from compiler.target import Target


class BudgetSpent(Exception):
    """No evaluation is left. Raised before any work, caught by the run."""


class Evaluator:
    """Evaluates schedules of one graph on one target, at most `budget` of them.

    stored: looks up evaluations of earlier runs by key. A stored evaluation is not computed again
    but counts like any other, so that a run gives the same result whether or not it was made before.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        budget: int,
        stored: Callable[[str], Evaluation | None] = lambda key: None,
        on_trial: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        self.graph = graph
        self.target = target
        self.budget = budget
        self.trials: list[Trial] = []
        self._stored = stored
        self._seen: dict[str, Trial] = {}
        self._on_trial = on_trial

    @property
    def left(self) -> int:
        return self.budget - len(self.trials)

    @property
    def counts(self) -> Counts:
        rejected = sum(1 for t in self.trials if t.latency_s is None)
        return Counts(len(self.trials), rejected, sum(1 for t in self.trials if t.cached))

    def seen(self, schedule: Schedule) -> Trial | None:
        """The trial of this very schedule in this run: a duplicate costs nothing."""
        return self._seen.get(schedule.id)

    def run(self, schedule: Schedule, origin: str, parent: Trial | None = None) -> Trial:
        """Evaluate `schedule`, or return its earlier trial. BudgetSpent if it is new and nothing is left."""
        if (known := self.seen(schedule)) is not None:
            return known
        if self.left <= 0:
            raise BudgetSpent
        key = evaluation_key(self.graph, schedule, self.target)
        found = self._stored(key)
        evaluation = found if found is not None else evaluate(self.graph, schedule, self.target)
        index = parent.index if parent is not None else None
        trial = Trial(len(self.trials), schedule, evaluation, index, origin, found is not None)
        self.trials.append(trial)
        self._seen[schedule.id] = trial
        self._on_trial(trial)
        return trial

    @property
    def best(self) -> Trial | None:
        """The fastest measured trial; the earliest of equals."""
        measured = [t for t in self.trials if isinstance(t.evaluation, Measured)]
        return min(measured, key=rank) if measured else None


def rank(trial: Trial) -> tuple[float, int, int]:
    """Order of trials: faster first, then fewer actions, then earlier. Rejected trials come last."""
    latency = trial.latency_s
    return (latency if latency is not None else float("inf"), len(trial.schedule.actions), trial.index)
