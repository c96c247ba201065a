"""What a run is made of: trials, and the result of an onboarding."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.evaluate import Evaluation, Fidelity, Measured, evaluate
from agent.settings import Settings
from compiler.frontend import Model
from compiler.ir.graph import Graph
from compiler.ir.schedule import Schedule
from compiler.target import Target
from simulator.report import Bound, Report


@dataclass(frozen=True, slots=True)
class Trial:
    """One evaluated schedule. `parent` is the index of the trial it was derived from, `origin` says how.

    cached: the evaluation was served from the store or from earlier in the run, not computed again.
    """

    index: int
    schedule: Schedule
    evaluation: Evaluation
    parent: int | None
    origin: str
    cached: bool

    @property
    def latency_s(self) -> float | None:
        return self.evaluation.report.latency_s if isinstance(self.evaluation, Measured) else None

    @property
    def report(self) -> Report:
        """The report of a measured trial; asking a rejected one is a mistake of ours."""
        assert isinstance(self.evaluation, Measured)
        return self.evaluation.report


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run started from. kind: exact (this command is in the store), known (this workload has an incumbent),
    near or far (the nearest other workloads have), none. `note` says it in a sentence."""

    kind: str
    note: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counts:
    """Evaluations of a run: all, of them rejected, of them served from the cache."""

    total: int
    rejected: int
    cached: int


@dataclass(frozen=True, slots=True)
class Onboarding:
    """The result of an onboarding. `presets` and `best` are trials of `trials`; presets may be rejected."""

    settings: Settings
    run_id: str
    model: Model
    graph: Graph
    target: Target
    bound: Bound
    presets: tuple[tuple[str, Trial], ...]
    best: Trial
    trials: tuple[Trial, ...]
    start: Start
    counts: Counts
    wall_s: float

    @property
    def report(self) -> Report:
        return self.best.report

    @property
    def placed(self) -> Evaluation:
        """The best schedule again, placed and routed on the grid; what was tuned has no places."""
        return evaluate(self.graph, self.best.schedule, self.target, Fidelity.PLACED)


@dataclass(frozen=True, slots=True)
class Progress:
    """Told after every evaluation: how many are done of how many, and the best so far (None before the first)."""

    done: int
    total: int
    best_s: float | None
    bound_s: float


OnProgress = Callable[[Progress], None]
