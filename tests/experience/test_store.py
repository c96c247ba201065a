"""What is stored comes back, is served only where it belongs, and survives corrupt rows."""

import sqlite3
from dataclasses import replace

import pytest
from experience_samples import graph, measured, method, moe_graph, rejected, run_of, schedule
from sqlalchemy import Table
from sqlalchemy.exc import IntegrityError

from agent.experience.records import RunStatus, StartKind, WorkloadRecord, evaluation_key
from agent.experience.schema import metadata
from agent.experience.store import Store
from compiler.ir.graph import Graph
from compiler.target import Target

GRAPH = graph()


def edit(url: str, statement: str, *values: object) -> None:
    """Change the file behind the store's back."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute(statement, values)
    connection.close()


def record(store: Store, target: Target, of: Graph, latencies: list[float], version: str = "1") -> None:
    """A run with one rejected evaluation, then one for each latency."""
    by = method(target, version)
    batch = [rejected(of.id, 0, by), *(measured(of.id, n, by, s) for n, s in enumerate(latencies, 1))]
    run, trials = run_of(batch, f"run-{of.id}-{version}", f"key-{of.id}-{version}")
    store.record_run(run, trials, batch, of, target)


def test_evaluations_come_back_equal(store: Store, target: Target) -> None:
    store.workload(GRAPH)
    store.target(target)
    batch = [measured(GRAPH.id, 0, method(target), 0.1 + 0.2), rejected(GRAPH.id, 1, method(target))]
    store.put_evaluations(batch)
    assert store.get_evaluations(e.key for e in batch) == {e.key: e for e in batch}
    back = store.get_evaluation(batch[0].key)
    assert back == batch[0] and back.report == {
        "latency_s": 0.1 + 0.2,
        "limiter": "hbm",
        "sections": [{"name": "dense"}],
    }
    assert store.get_evaluation("eval1-unknown") is None
    assert store.schedule(batch[1].schedule.id) == schedule(1)
    assert store.schedule("schedule1-unknown") is None


def test_more_keys_than_one_query_takes(store: Store, target: Target) -> None:
    store.workload(GRAPH)
    store.target(target)
    batch = [rejected(GRAPH.id, n, method(target)) for n in range(1201)]
    store.put_evaluations(batch)
    assert len(store.get_evaluations(e.key for e in batch)) == 1201


def test_a_run_comes_back_equal(store: Store, target: Target) -> None:
    batch = [rejected(GRAPH.id, 0, method(target)), measured(GRAPH.id, 1, method(target), 2e-3)]
    run, trials = run_of(batch)
    store.record_run(run, trials, batch, GRAPH, target)
    assert store.finished_run("key-1") == run
    assert store.finished_run("key-2") is None
    assert store.trials("run-1") == tuple(trials)
    assert store.verify() == []
    assert store.counts() == {"schedules": 2, "targets": 1, "workloads": 1, "evaluations": 2, "runs": 1, "trials": 2}


def test_recording_a_run_again_changes_nothing_and_another_one_by_its_id_is_refused(
    store: Store, target: Target
) -> None:
    batch = [measured(GRAPH.id, 1, method(target), 2e-3)]
    run, trials = run_of(batch)
    store.record_run(run, trials, batch, GRAPH, target)
    before = store.counts()
    store.record_run(run, trials, [], GRAPH, target)
    with pytest.raises(ValueError, match="already another run"):
        store.record_run(replace(run, key="key-2"), trials, batch, GRAPH, target)
    assert store.counts() == before


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.RUNNING])
def test_only_done_runs_are_finished(store: Store, target: Target, status: RunStatus) -> None:
    run, trials = run_of(batch := [measured(GRAPH.id, 1, method(target), 2e-3)])
    store.record_run(replace(run, status=status), trials, batch, GRAPH, target)
    assert store.finished_run(run.key) is None


def test_nothing_recorded_is_overwritten(store: Store, target: Target) -> None:
    store.workload(GRAPH)
    store.target(target)
    first = measured(GRAPH.id, 0, method(target), 1e-3)
    store.put_evaluations([first])
    store.put_evaluations([measured(GRAPH.id, 0, method(target), 9e-3), rejected(GRAPH.id, 0, method(target))])
    assert store.get_evaluation(first.key) == first
    assert store.counts()["evaluations"] == store.counts()["schedules"] == 1


def test_a_known_workload_takes_the_new_name_and_features(store: Store, url: str, target: Target) -> None:
    store.workload(GRAPH)
    edit(url, "UPDATE workloads SET features = '{}'")
    store.workload(replace(GRAPH, model="renamed"))
    record(store, target, GRAPH, [1e-3])
    [found] = store.nearest(WorkloadRecord.of(moe_graph()), method(target), 5)
    assert found.workload == WorkloadRecord.of(GRAPH)


def test_never_served_across_version_target_or_fidelity(store: Store, target: Target) -> None:
    record(store, target, GRAPH, [3e-3, 2e-3])
    other = replace(target, name="other")
    here, probe = method(target), WorkloadRecord.of(moe_graph())
    for by in (method(target, "2"), method(other), method(target, fidelity="exact")):
        assert store.incumbent(GRAPH.id, by) is None
        assert store.nearest(probe, by, 5) == []
        assert store.get_evaluation(evaluation_key(GRAPH.id, schedule(2).id, by)) is None
    best = store.incumbent(GRAPH.id, here)
    assert best is not None and (best.schedule, best.latency_s) == (schedule(2), 2e-3)
    assert store.incumbent(moe_graph().id, here) is None


def test_rejected_is_never_an_incumbent_and_ties_go_by_id(store: Store, target: Target) -> None:
    store.workload(GRAPH)
    store.target(target)
    store.put_evaluations([rejected(GRAPH.id, 0, method(target))])
    assert store.incumbent(GRAPH.id, method(target)) is None
    store.put_evaluations([measured(GRAPH.id, n, method(target), 1e-3) for n in range(1, 30)])
    best = store.incumbent(GRAPH.id, method(target))
    assert best is not None and best.schedule.id == min(schedule(n).id for n in range(1, 30))


def test_nearest_is_in_order_and_leaves_out_itself(store: Store, target: Target) -> None:
    same_features = [graph(context=256), replace(graph(context=256), sequence=("dense",))]
    for g in (moe_graph(), graph(context=512), *same_features, GRAPH):
        record(store, target, g, [2e-3, 1e-3])
    record(store, target, graph(context=64), [1e-3], version="2")
    found = store.nearest(WorkloadRecord.of(GRAPH), method(target), 10)
    assert [(n.distance, n.workload.id) for n in found] == sorted((n.distance, n.workload.id) for n in found)
    assert {n.workload.id for n in found} == {g.id for g in (moe_graph(), graph(context=512), *same_features)}
    assert [n.kind for n in found] == [StartKind.NEAR] * 3 + [StartKind.FAR]
    assert {n.latency_s for n in found} == {1e-3}
    assert store.nearest(WorkloadRecord.of(GRAPH), method(target), 2) == found[:2]
    assert store.nearest(WorkloadRecord.of(GRAPH), method(target), 0) == []


CORRUPTIONS = {
    "text": ("UPDATE schedules SET text = text || 'x' WHERE id = ?", "schedules"),
    "bytes": ("UPDATE schedules SET text = CAST(X'FFFE' AS TEXT) WHERE id = ?", "schedules"),
    "blob": ("UPDATE schedules SET text = X'FFFE' WHERE id = ?", "schedules"),
    "latency": ("UPDATE evaluations SET latency_s = 1e-9 WHERE schedule_id = ?", "evaluations"),
    "not a number": ("UPDATE evaluations SET latency_s = 'fast' WHERE schedule_id = ?", "evaluations"),
    "no latency": ("UPDATE evaluations SET latency_s = NULL WHERE schedule_id = ?", "evaluations"),
    "report": ("UPDATE evaluations SET report = '{' WHERE schedule_id = ?", "evaluations"),
    "not an object": ("UPDATE evaluations SET report = '[]' WHERE schedule_id = ?", "evaluations"),
    "version": ("UPDATE evaluations SET version = '2' WHERE schedule_id = ?", "evaluations"),
    "status": ("UPDATE evaluations SET status = 'great' WHERE schedule_id = ?", "evaluations"),
    "gone": ("DELETE FROM schedules WHERE id = ?", "schedules"),
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corrupt_record_is_skipped_and_named_and_the_rest_loads(
    store: Store, url: str, target: Target, kind: str
) -> None:
    record(store, target, GRAPH, [3e-3, 2e-3, 1e-3])
    statement, table = CORRUPTIONS[kind]
    bad = measured(GRAPH.id, 3, method(target), 1e-3)
    edit(url, statement, bad.schedule.id)
    named = f"{table} {bad.schedule.id if table == 'schedules' else bad.key}: "
    assert any(line.startswith(named) for line in store.verify())
    assert store.skipped == ()
    assert store.get_evaluation(bad.key) is None
    assert len(store.skipped) == 1 and store.skipped[0].startswith(named)
    best = store.incumbent(GRAPH.id, method(target))
    assert best is not None and best.schedule == schedule(2)
    [near] = store.nearest(WorkloadRecord.of(moe_graph()), method(target), 5)
    assert near.schedule == schedule(2)
    assert store.finished_run(f"key-{GRAPH.id}-1") is None


@pytest.mark.parametrize("features", ["", "[]", '{"phase": null}', '{"log2.batch": Infinity}', "[" * 100_000])
def test_a_corrupt_workload_is_skipped_and_named(store: Store, url: str, target: Target, features: str) -> None:
    record(store, target, GRAPH, [1e-3])
    record(store, target, graph(context=256), [1e-3])
    edit(url, "UPDATE workloads SET features = ? WHERE id = ?", features, GRAPH.id)
    found = store.nearest(WorkloadRecord.of(moe_graph()), method(target), 5)
    assert [n.workload.id for n in found] == [graph(context=256).id]
    [line] = store.verify()
    assert line.startswith(f"workloads {GRAPH.id}: ") and store.skipped == (line,)


COLUMNS = [(t, c.name) for t in metadata.sorted_tables for c in t.columns]


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=[f"{t.name}.{c}" for t, c in COLUMNS])
def test_bytes_in_any_column_lose_rows_and_nothing_else(
    store: Store, url: str, target: Target, table: Table, column: str
) -> None:
    """SQLite stores whatever it is given; no read ends in an error of ours, and `verify` tells of it where it is read."""
    record(store, target, GRAPH, [3e-3, 2e-3])
    edit(url, "PRAGMA foreign_keys = OFF")
    edit(url, f"UPDATE {table.name} SET \"{column}\" = X'FF00' WHERE rowid = (SELECT min(rowid) FROM {table.name})")
    store.finished_run(f"key-{GRAPH.id}-1")
    store.trials(f"run-{GRAPH.id}-1")
    store.nearest(WorkloadRecord.of(moe_graph()), method(target), 5)
    store.incumbent(GRAPH.id, method(target))
    store.get_evaluation(measured(GRAPH.id, 1, method(target), 3e-3).key)
    if table.name in ("runs", "trials", "evaluations"):
        assert store.verify()


def test_verify_names_trials_and_runs(store: Store, url: str, target: Target) -> None:
    record(store, target, GRAPH, [3e-3, 2e-3])
    edit(url, 'UPDATE trials SET schedule_id = ? WHERE "index" = 1', schedule(2).id)
    edit(url, 'UPDATE trials SET parent_index = 5 WHERE "index" = 0')
    edit(url, "UPDATE runs SET best_latency_s = 1e-9")
    run = f"run-{GRAPH.id}-1"
    assert [line.split(":")[0] for line in store.verify()] == [f"runs {run}", f"trials {run}, 0", f"trials {run}, 1"]
    assert [t.index for t in store.trials(run)] == [1, 2]
    edit(url, "UPDATE runs SET start_kind = 'luck'")
    assert store.finished_run(f"key-{GRAPH.id}-1") is None
    edit(url, "DELETE FROM runs")
    assert len(store.verify()) == 3


def test_a_failed_recording_leaves_the_rows_as_they_were(store: Store, url: str, target: Target) -> None:
    record(store, target, GRAPH, [1e-3])
    before = dump(url)
    other = moe_graph()
    batch = [measured(other.id, 5, method(target), 1e-3)]
    run, trials = run_of(batch, "run-2", "key-2")
    with pytest.raises(IntegrityError):
        store.record_run(run, [replace(trials[0], evaluation_key="eval1-nowhere")], batch, other, target)
    with pytest.raises(IntegrityError):  # its workload is unknown
        store.put_evaluations(batch)
    with pytest.raises(ValueError, match="is not of"):
        store.record_run(run, trials, batch, GRAPH, target)
    with pytest.raises(ValueError, match="is not of run"):
        store.record_run(run, trials, [measured(GRAPH.id, 5, method(target), 1e-3)], other, target)

    def interrupted():  # type: ignore[no-untyped-def]
        yield batch[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put_evaluations(interrupted())
    assert dump(url) == before


def dump(url: str) -> list[str]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        return list(connection.iterdump())
    finally:
        connection.close()
