"""fill: replace the holes of a schedule by numbers, by coordinate descent over their legal values.

Deterministic: the same schedule, graph, target and budget give the same numbers. Holes start at the middle of their
values; each is then moved to a neighbour, twice as far after a success, until no hole moves.
"""

from agent.evaluator import Evaluator, rank
from agent.trial import Trial
from compiler.ir.schedule import Schedule
from compiler.moves import View, hole_values


def fill(schedule: Schedule, evaluator: Evaluator, origin: str, parent: Trial | None = None, tries: int = 24) -> Trial:
    """The best trial with every hole filled, after at most `tries` evaluations.

    A schedule without holes is evaluated as it is. BudgetSpent passes through once the run's budget is used up.
    """
    if not schedule.holes:
        return evaluator.run(schedule, origin, parent)
    view = View(evaluator.graph, schedule, evaluator.target)
    values = [hole_values(view, schedule.actions[i], name, hole) for i, name, hole in schedule.holes]
    at = [len(v) // 2 for v in values]
    end = len(evaluator.trials) + tries
    best = _try(schedule, values, at, evaluator, origin, parent)
    moved = True
    while moved and len(evaluator.trials) < end:
        moved = False
        for hole in range(len(values)):
            for step in (1, -1):
                while len(evaluator.trials) < end and 0 <= at[hole] + step < len(values[hole]):
                    there = [*at[:hole], at[hole] + step, *at[hole + 1 :]]
                    trial = _try(schedule, values, there, evaluator, origin, parent)
                    if rank(trial)[:1] >= rank(best)[:1]:
                        break
                    best, at, moved, step = trial, there, True, step * 2
    return best


def _try(
    schedule: Schedule,
    values: list[tuple[int, ...]],
    at: list[int],
    evaluator: Evaluator,
    origin: str,
    parent: Trial | None,
) -> Trial:
    filled = schedule.filled(v[i] for v, i in zip(values, at, strict=True))
    return evaluator.run(filled, origin, parent)
