"""The store checks itself: every row against its identity, and rows against each other."""

from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Connection, Select, select

from agent.experience.records import Run, evaluation_key
from agent.experience.rows import (
    Corrupt,
    Row,
    check_text,
    evaluation_from,
    method_from,
    run_from,
    trial_from,
    workload_from,
)  # fmt: skip
from agent.experience.schema import evaluations, runs, schedules, trials, workloads

#: Evaluations with the text of their schedules; an evaluation whose schedule is gone is still a row.
WITH_TEXT = select(evaluations, schedules.c.text).outerjoin(schedules, evaluations.c.schedule_id == schedules.c.id)


def problems(connection: Connection) -> Iterator[str]:
    """`table id: why` of each unsound row; one bad schedule is named again for each evaluation of it."""

    def check_run(row: Row) -> None:
        run = run_from(row)
        problem = best_evaluation_problem(connection, run)
        if problem:
            raise Corrupt("runs", run.id, problem)

    checks: tuple[tuple[Select[Any], Callable[[Row], object]], ...] = (
        (select(workloads).order_by(workloads.c.id), workload_from),
        (select(schedules).order_by(schedules.c.id), lambda row: check_text(row["id"], row["text"])),
        (WITH_TEXT.order_by(evaluations.c.key), evaluation_from),
        (select(runs).order_by(runs.c.id), check_run),
        (_TRIALS, _check_trial),
    )
    for query, check in checks:
        for row in connection.execute(query, execution_options={"yield_per": 500}).mappings():
            try:
                check(row)
            except Corrupt as error:
                yield str(error)


def best_evaluation_problem(connection: Connection, run: Run) -> str:
    """What is wrong with a run's claim to its best schedule; empty when its evaluation is there and agrees."""
    if run.best_schedule_id is None:
        return ""
    key = evaluation_key(run.graph_id, run.best_schedule_id, run.method)
    row = connection.execute(WITH_TEXT.where(evaluations.c.key == key)).mappings().first()
    if row is None:
        return f"its best evaluation {key} is missing"
    try:
        latency_s = evaluation_from(row).latency_s
    except Corrupt as error:
        return f"its best evaluation is unsound: {error}"
    if latency_s != run.best_latency_s:
        return f"its best latency is {run.best_latency_s!r}, evaluation {key} has {latency_s!r}"
    return ""


_TRIALS = (
    select(trials, runs.c.graph_id, runs.c.target_id, runs.c.version, runs.c.fidelity, evaluations.c.key)
    .outerjoin(runs, trials.c.run_id == runs.c.id)
    .outerjoin(evaluations, trials.c.evaluation_key == evaluations.c.key)
    .order_by(trials.c.run_id, trials.c.index)
)


def _check_trial(row: Row) -> None:
    trial = trial_from(row)
    place = f"{row['run_id']}, {trial.index}"
    if row["graph_id"] is None or row["key"] is None:
        raise Corrupt("trials", place, "its run or its evaluation is missing")
    if evaluation_key(row["graph_id"], trial.schedule_id, method_from(row)) != trial.evaluation_key:
        raise Corrupt("trials", place, f"evaluation {trial.evaluation_key} is of another schedule or run")
