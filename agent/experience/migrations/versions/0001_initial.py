"""The first schema. Released migrations never change: a later schema is a later file."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.String(64)


def upgrade() -> None:
    _identities()
    _evaluations()
    _runs()


def downgrade() -> None:
    for table in ("trials", "runs", "evaluations", "schedules", "targets", "workloads"):
        op.drop_table(table)


def _identities() -> None:
    op.create_table(
        "workloads",
        sa.Column("id", _ID, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("model_type", sa.Text, nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("context", sa.BigInteger, nullable=False),
        sa.Column("sockets", sa.Integer, nullable=False),
        sa.Column("weights", sa.String(16), nullable=False),
        sa.Column("features", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workloads"),
    )
    op.create_table(
        "targets",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_targets"),
    )
    op.create_table(
        "schedules",
        sa.Column("id", _ID, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schedules"),
    )


def _evaluations() -> None:
    op.create_table(
        "evaluations",
        sa.Column("key", _ID, nullable=False),
        sa.Column("graph_id", _ID, nullable=False),
        sa.Column("schedule_id", _ID, nullable=False),
        sa.Column("target_id", _ID, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("fidelity", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("latency_s", sa.Double),
        sa.Column("report", sa.Text),
        sa.Column("diagnostics", sa.Text),
        sa.PrimaryKeyConstraint("key", name="pk_evaluations"),
        sa.ForeignKeyConstraint(["graph_id"], ["workloads.id"], name="fk_evaluations_graph_id"),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name="fk_evaluations_schedule_id"),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="fk_evaluations_target_id"),
    )
    op.create_index(
        "ix_evaluations_incumbent",
        "evaluations",
        ["graph_id", "target_id", "version", "fidelity", "status", "latency_s"],
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", _ID, nullable=False),
        sa.Column("key", _ID, nullable=False),
        sa.Column("graph_id", _ID, nullable=False),
        sa.Column("target_id", _ID, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("fidelity", sa.String(32), nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("evals", sa.Integer, nullable=False),
        sa.Column("proposer", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("started", _ID, nullable=False),
        sa.Column("best_schedule_id", _ID),
        sa.Column("best_latency_s", sa.Double),
        sa.Column("evaluations_total", sa.Integer, nullable=False),
        sa.Column("evaluations_rejected", sa.Integer, nullable=False),
        sa.Column("evaluations_cached", sa.Integer, nullable=False),
        sa.Column("start_kind", sa.String(16), nullable=False),
        sa.Column("start_from", _ID),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.ForeignKeyConstraint(["graph_id"], ["workloads.id"], name="fk_runs_graph_id"),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="fk_runs_target_id"),
        sa.ForeignKeyConstraint(["best_schedule_id"], ["schedules.id"], name="fk_runs_best_schedule_id"),
    )
    op.create_index("ix_runs_key", "runs", ["key"])
    op.create_table(
        "trials",
        sa.Column("run_id", _ID, nullable=False),
        sa.Column("index", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("schedule_id", _ID, nullable=False),
        sa.Column("evaluation_key", _ID, nullable=False),
        sa.Column("parent_index", sa.Integer),
        sa.Column("origin", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "index", name="pk_trials"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_trials_run_id"),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name="fk_trials_schedule_id"),
        sa.ForeignKeyConstraint(["evaluation_key"], ["evaluations.key"], name="fk_trials_evaluation_key"),
    )
