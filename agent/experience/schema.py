"""The tables, in portable types. What a database has comes from the migrations; a test holds the two equal.

Identity columns hold content hashes; JSON columns hold canonical JSON as text.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)  # fmt: skip

#: Schema revisions, oldest first. The last one is what this code reads and writes.
REVISIONS = ("0001",)
HEAD = REVISIONS[-1]

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

workloads = Table(
    "workloads",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("model", Text, nullable=False),
    Column("model_type", Text, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("context", BigInteger, nullable=False),
    Column("sockets", Integer, nullable=False),
    Column("weights", String(16), nullable=False),
    Column("features", Text, nullable=False),
)

targets = Table(
    "targets",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", Text, nullable=False),
)

schedules = Table(
    "schedules",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("text", Text, nullable=False),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("graph_id", String(64), ForeignKey("workloads.id"), nullable=False),
    Column("schedule_id", String(64), ForeignKey("schedules.id"), nullable=False),
    Column("target_id", String(64), ForeignKey("targets.id"), nullable=False),
    Column("version", Text, nullable=False),
    Column("fidelity", String(32), nullable=False),
    Column("status", String(16), nullable=False),
    Column("latency_s", Double),
    Column("report", Text),
    Column("diagnostics", Text),
    # incumbents: the best of one workload and method without reading the others
    Index("ix_evaluations_incumbent", "graph_id", "target_id", "version", "fidelity", "status", "latency_s"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("key", String(64), nullable=False, index=True),
    Column("graph_id", String(64), ForeignKey("workloads.id"), nullable=False),
    Column("target_id", String(64), ForeignKey("targets.id"), nullable=False),
    Column("version", Text, nullable=False),
    Column("fidelity", String(32), nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("evals", Integer, nullable=False),
    Column("proposer", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("started", String(64), nullable=False),
    Column("best_schedule_id", String(64), ForeignKey("schedules.id")),
    Column("best_latency_s", Double),
    Column("evaluations_total", Integer, nullable=False),
    Column("evaluations_rejected", Integer, nullable=False),
    Column("evaluations_cached", Integer, nullable=False),
    Column("start_kind", String(16), nullable=False),
    Column("start_from", String(64)),
)

trials = Table(
    "trials",
    metadata,
    Column("run_id", String(64), ForeignKey("runs.id"), primary_key=True),
    Column("index", Integer, primary_key=True, autoincrement=False),
    Column("schedule_id", String(64), ForeignKey("schedules.id"), nullable=False),
    Column("evaluation_key", String(64), ForeignKey("evaluations.key"), nullable=False),
    Column("parent_index", Integer),
    Column("origin", Text, nullable=False),
)
