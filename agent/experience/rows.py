"""Rows to values and back. Reading checks every row against its own identity and raises `Corrupt` with its id.

A hash is taken of the stored text, not of what this code would print, so an old schedule is never called corrupt for
being old; one that no longer parses is, for whoever asks for it as a schedule.
"""

import json
from dataclasses import fields
from typing import Any

from sqlalchemy import RowMapping

from agent.experience.records import (
    Evaluation,
    Method,
    Run,
    RunStatus,
    StartKind,
    Status,
    Trial,
    WorkloadRecord,
    diagnostics_from_json,
    diagnostics_to_json,
)  # fmt: skip
from compiler.canonical import canonical_json, identity
from compiler.errors import InputError
from compiler.ir.schedule import Schedule
from compiler.ir.text import parse_schedule

Row = RowMapping
_BAD_VALUE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


class Corrupt(Exception):
    """A stored row that is not what its identity says."""

    def __init__(self, table: str, row_id: object, why: str) -> None:
        super().__init__(f"{table} {row_id}: {why}")


def plain(row: Row, table: str, row_id: object) -> None:
    """Raise Corrupt for bytes where a column holds text or a number: SQLite stores whatever it is given."""
    for name, value in row.items():
        if isinstance(value, bytes):
            raise Corrupt(table, row_id, f"its {name} holds bytes")


def check_text(schedule_id: str, text: object) -> str:
    """The text of a schedule row if it hashes to its id."""
    if not isinstance(text, str):
        raise Corrupt("schedules", schedule_id, "it has no text")
    found = identity("schedule1", text)
    if found != schedule_id:
        raise Corrupt("schedules", schedule_id, f"its text hashes to {found}")
    return text


def schedule_from(schedule_id: str, text: object) -> Schedule:
    try:
        schedule = parse_schedule(check_text(schedule_id, text), f"schedules {schedule_id}")
    except (InputError, ValueError) as error:
        raise Corrupt("schedules", schedule_id, f"it does not parse: {str(error).splitlines()[0]}") from None
    if schedule.id != schedule_id:
        raise Corrupt("schedules", schedule_id, "its text is not in canonical form")
    return schedule


def schedule_row(schedule: Schedule) -> dict[str, Any]:
    return {"id": schedule.id, "text": schedule.text}


def workload_from(row: Row) -> WorkloadRecord:
    plain(row, "workloads", row["id"])
    try:
        values = {f.name: row[f.name] for f in fields(WorkloadRecord)}
        return WorkloadRecord(**{**values, "features": json.loads(row["features"])})
    except _BAD_VALUE as error:
        raise Corrupt("workloads", row["id"], f"its features are damaged: {error}") from None


def workload_row(record: WorkloadRecord) -> dict[str, Any]:
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return {**values, "features": canonical_json(dict(record.features))}


def evaluation_from(row: Row) -> Evaluation:
    """An evaluation from its row joined with its schedule's `text`."""
    schedule = schedule_from(row["schedule_id"], row["text"])
    plain(row, "evaluations", row["key"])
    try:
        evaluation = Evaluation(
            row["graph_id"],
            schedule,
            method_from(row),
            Status(row["status"]),
            row["latency_s"],
            row["report"],
            () if row["diagnostics"] is None else diagnostics_from_json(row["diagnostics"]),
        )
        key = evaluation.key
    except _BAD_VALUE as error:
        raise Corrupt("evaluations", row["key"], str(error)) from None
    if key != row["key"]:
        raise Corrupt("evaluations", row["key"], f"its columns hash to {key}")
    return evaluation


def evaluation_row(e: Evaluation) -> dict[str, Any]:
    return {
        "key": e.key,
        "graph_id": e.graph_id,
        "schedule_id": e.schedule.id,
        **_method_row(e.method),
        "status": e.status.value,
        "latency_s": e.latency_s,
        "report": e.report_json,
        "diagnostics": diagnostics_to_json(e.diagnostics) if e.diagnostics else None,
    }


def run_from(row: Row) -> Run:
    plain(row, "runs", row["id"])
    try:
        values = {f.name: row[f.name] for f in fields(Run) if f.name != "method"}
        kinds = {"status": RunStatus(row["status"]), "start_kind": StartKind(row["start_kind"])}
        return Run(**{**values, **kinds, "method": method_from(row)})
    except _BAD_VALUE as error:
        raise Corrupt("runs", row["id"], str(error)) from None


def run_row(run: Run) -> dict[str, Any]:
    values = {f.name: getattr(run, f.name) for f in fields(run) if f.name != "method"}
    return {**values, "status": run.status.value, "start_kind": run.start_kind.value, **_method_row(run.method)}


def trial_from(row: Row) -> Trial:
    plain(row, "trials", f"{row['run_id']}, {row['index']}")
    try:
        return Trial(**{f.name: row[f.name] for f in fields(Trial)})
    except _BAD_VALUE as error:
        raise Corrupt("trials", f"{row['run_id']}, {row['index']}", str(error)) from None


def trial_row(run_id: str, trial: Trial) -> dict[str, Any]:
    return {"run_id": run_id, **{f.name: getattr(trial, f.name) for f in fields(trial)}}


def method_from(row: Row) -> Method:
    return Method(row["target_id"], row["version"], row["fidelity"])


def _method_row(method: Method) -> dict[str, str]:
    return {f.name: getattr(method, f.name) for f in fields(method)}
