"""The experience store: evaluations by content, the runs that made them, and the best known schedules.

Promises: no record is ever overwritten; one is served only for the method (target, version, fidelity) it was made with;
what belongs together is written in one transaction; a corrupt row is skipped, with its id in `skipped`, and
breaks nothing else. Failures of the database are InputError. Safe for many processes at once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Table, exists, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from agent.experience.database import database_errors, open_engine, reading, writing
from agent.experience.records import (
    Evaluation,
    Incumbent,
    Method,
    Neighbour,
    Run,
    RunStatus,
    Status,
    Trial,
    WorkloadRecord,
    distance,
)  # fmt: skip
from agent.experience.rows import (
    Corrupt,
    Row,
    evaluation_from,
    evaluation_row,
    run_from,
    run_row,
    schedule_from,
    schedule_row,
    trial_from,
    trial_row,
    workload_from,
    workload_row,
)  # fmt: skip
from agent.experience.schema import evaluations, metadata, runs, schedules, targets, trials, workloads
from agent.experience.verify import WITH_TEXT, best_evaluation_problem, problems
from compiler.ir.graph import Graph
from compiler.ir.schedule import Schedule
from compiler.target import Target

T = TypeVar("T")
#: Keys asked for in one query; SQLite and PostgreSQL limit the variables of a statement.
_KEYS_A_QUERY = 500
#: Rows fetched at a time where usually the first one is the answer.
_ROWS_A_FETCH = 8


class Store:
    """An open experience store. Use `Store.open`; close it, or use it in a `with`."""

    def __init__(self, engine: Engine, where: str) -> None:
        self._engine = engine
        self._where = where
        self._skipped: dict[str, None] = {}

    @classmethod
    def open(cls, url: str, timeout_s: float = 30.0) -> "Store":
        """Open the store at a database URL, creating folder, file and schema where missing.

        timeout_s: how long to wait for another process's write. InputError if the store cannot be opened and written.
        """
        return cls(*open_engine(url, timeout_s))

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def skipped(self) -> tuple[str, ...]:
        """`table id: why` of each corrupt row that reads have skipped since the store was opened."""
        return tuple(self._skipped)

    # -- writing

    def workload(self, graph: Graph) -> WorkloadRecord:
        """Record a workload; one already known gets this graph's names and features."""
        record = WorkloadRecord.of(graph)
        with self._writing() as connection:
            _put_workload(connection, record)
        return record

    def target(self, target: Target) -> None:
        """Record a target, unless it is known."""
        with self._writing() as connection:
            _insert_new(connection, targets, [_target_row(target)])

    def put_evaluations(self, batch: Iterable[Evaluation]) -> None:
        """Record evaluations and their schedules, all or none; those already known stay as they are.

        Their workload and target must be recorded before.
        """
        with self._writing() as connection:
            _put_evaluations(connection, batch)

    def record_run(
        self, run: Run, steps: Sequence[Trial], batch: Iterable[Evaluation], graph: Graph, target: Target
    ) -> None:
        """Record a run with its trials, evaluations, workload and target in one transaction.

        An evaluation that the store already has may be left out of `batch`. A run recorded before is left as it is.
        ValueError if the parts belong to different runs.
        """
        new = tuple(batch)
        _check_one_run(run, new, graph, target)
        with self._writing() as connection:
            _put_workload(connection, WorkloadRecord.of(graph))
            _insert_new(connection, targets, [_target_row(target)])
            _put_evaluations(connection, new)
            key = connection.execute(select(runs.c.key).where(runs.c.id == run.id)).scalar()
            if key is None:
                connection.execute(insert(runs), run_row(run))
                if steps:
                    connection.execute(insert(trials), [trial_row(run.id, step) for step in steps])
            elif key != run.key:
                raise ValueError(f"run {run.id} is already another run")

    # -- reading

    def get_evaluation(self, key: str) -> Evaluation | None:
        return self.get_evaluations([key]).get(key)

    def get_evaluations(self, keys: Iterable[str]) -> dict[str, Evaluation]:
        """The known ones of many evaluations, by key."""
        wanted = sorted(set(keys))
        out: dict[str, Evaluation] = {}
        with self._reading() as connection:
            for start in range(0, len(wanted), _KEYS_A_QUERY):
                some = evaluations.c.key.in_(wanted[start : start + _KEYS_A_QUERY])
                rows = connection.execute(WITH_TEXT.where(some)).mappings()
                out.update((e.key, e) for e in self._kept(rows, evaluation_from))
        return out

    def schedule(self, schedule_id: str) -> Schedule | None:
        with self._reading() as connection:
            rows = connection.execute(select(schedules).where(schedules.c.id == schedule_id)).mappings()
            return next(self._kept(rows, lambda row: schedule_from(row["id"], row["text"])), None)

    def finished_run(self, key: str) -> Run | None:
        """The first completed run with exactly this key whose best evaluation is still sound."""
        query = select(runs).where(runs.c.key == key, runs.c.status == RunStatus.DONE.value)
        with self._reading() as connection:

            def read(row: Row) -> Run:
                run = run_from(row)
                problem = best_evaluation_problem(connection, run)
                if problem:
                    raise Corrupt("runs", run.id, problem)
                return run

            rows = connection.execute(query.order_by(runs.c.started, runs.c.id)).mappings().all()
            return next(self._kept(rows, read), None)

    def trials(self, run_id: str) -> tuple[Trial, ...]:
        """The trials of a run in order."""
        query = select(trials).where(trials.c.run_id == run_id).order_by(trials.c.index)
        with self._reading() as connection:
            return tuple(self._kept(connection.execute(query).mappings(), trial_from))

    def incumbent(self, graph_id: str, method: Method) -> Incumbent | None:
        """The best measured schedule of a workload under exactly this method; equal latencies by schedule id."""
        with self._reading() as connection:
            return self._incumbent(connection, graph_id, method)

    def nearest(self, workload: WorkloadRecord, method: Method, limit: int) -> list[Neighbour]:
        """Incumbents of other workloads under exactly this method, by (distance, id), at most `limit`."""
        known = exists().where(evaluations.c.graph_id == workloads.c.id, *_measured(method))
        query = select(workloads).where(workloads.c.id != workload.id, known)
        out: list[Neighbour] = []
        with self._reading() as connection:
            others = list(self._kept(connection.execute(query).mappings(), workload_from))
            for gap, other in sorted(((distance(workload.features, o.features), o) for o in others), key=_by_distance):
                if len(out) >= limit:
                    break
                best = self._incumbent(connection, other.id, method)
                if best is not None:
                    out.append(Neighbour(gap, other, best.schedule, best.latency_s))
        return out

    def verify(self) -> list[str]:
        """Check every row against its identity: `table id: why` of each that reads would skip, and of dangling ones."""
        with self._reading() as connection:
            return list(dict.fromkeys(problems(connection)))

    def counts(self) -> dict[str, int]:
        """Rows of each table."""
        with self._reading() as connection:
            return {
                table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
                for table in metadata.sorted_tables
            }

    def _incumbent(self, connection: Connection, graph_id: str, method: Method) -> Incumbent | None:
        query = WITH_TEXT.where(evaluations.c.graph_id == graph_id, *_measured(method))
        result = connection.execute(
            query.order_by(evaluations.c.latency_s, evaluations.c.schedule_id),
            execution_options={"yield_per": _ROWS_A_FETCH},
        )
        with result:
            for e in self._kept(result.mappings(), evaluation_from):
                if e.latency_s is not None:
                    return Incumbent(graph_id, e.schedule, e.latency_s)
        return None

    def _kept(self, rows: Iterable[Row], read: Callable[[Row], T]) -> Iterator[T]:
        for row in rows:
            try:
                value = read(row)
            except Corrupt as error:
                self._skipped.setdefault(str(error))
            else:
                yield value

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with database_errors(self._where), reading(self._engine) as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with database_errors(self._where), writing(self._engine) as connection:
            yield connection


def _by_distance(item: tuple[float, WorkloadRecord]) -> tuple[float, str]:
    return item[0], item[1].id


def _measured(method: Method) -> list[ColumnElement[bool]]:
    return [
        evaluations.c.target_id == method.target_id,
        evaluations.c.version == method.version,
        evaluations.c.fidelity == method.fidelity,
        evaluations.c.status == Status.MEASURED.value,
    ]


def _check_one_run(run: Run, batch: tuple[Evaluation, ...], graph: Graph, target: Target) -> None:
    if run.graph_id != graph.id or run.method.target_id != target.id:
        raise ValueError(f"run {run.id} is not of graph {graph.id} on target {target.id}")
    for e in batch:
        if e.graph_id != run.graph_id or e.method != run.method:
            raise ValueError(f"evaluation {e.key} is not of run {run.id}")


def _target_row(target: Target) -> dict[str, Any]:
    return {"id": target.id, "name": target.name}


def _put_workload(connection: Connection, record: WorkloadRecord) -> None:
    statement = _insert(connection, workloads)
    changed = {c.name: statement.excluded[c.name] for c in workloads.c if c.name != "id"}
    connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=changed), workload_row(record))


def _put_evaluations(connection: Connection, batch: Iterable[Evaluation]) -> None:
    new = tuple(batch)
    _insert_new(connection, schedules, [schedule_row(e.schedule) for e in new])
    _insert_new(connection, evaluations, [evaluation_row(e) for e in new])


def _insert_new(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert the rows whose primary key is not there yet; in key order, so that two writers cannot deadlock."""
    if not rows:
        return
    names = [c.name for c in table.primary_key]
    statement = _insert(connection, table).on_conflict_do_nothing(index_elements=names)
    connection.execute(statement, sorted(rows, key=lambda row: [row[name] for name in names]))


def _insert(connection: Connection, table: Table) -> "sqlite.Insert | postgresql.Insert":
    """INSERT ... ON CONFLICT: the same SQL in both dialects, but no part of SQLAlchemy's common language."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
