"""Campaigns have a queue of jobs that workers lease, and one coordinator each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COORDINATORS = "megatune_coordinators"
WORKERS = "megatune_workers"
JOBS = "megatune_jobs"


def upgrade() -> None:
    """Three tables; nothing that is there changes."""
    op.create_table(
        COORDINATORS,
        sa.Column("campaign_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("holder", sa.String(length=512), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("basis", sa.String(length=64), nullable=False),
        sa.Column("measurements_before", sa.Integer(), nullable=False),
        sa.Column("trials_before", sa.Integer(), nullable=False),
        _key(COORDINATORS, "campaign_id", "megatune_campaigns"),
        sa.PrimaryKeyConstraint("campaign_id", name=f"pk_{COORDINATORS}"),
    )
    op.create_table(
        WORKERS,
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("campaign_id", sa.Integer(), nullable=False),
        sa.Column("place", sa.String(length=512), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("provenance", sa.String(length=32), nullable=False),
        sa.Column("needs_artifacts", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("ended", sa.Text(), nullable=False),
        _key(WORKERS, "campaign_id", "megatune_campaigns"),
        _key(WORKERS, "target_id", "megatune_targets"),
        sa.PrimaryKeyConstraint("id", name=f"pk_{WORKERS}"),
    )
    op.create_index(f"ix_{WORKERS}_campaign_id", WORKERS, ["campaign_id"])
    op.create_table(
        JOBS,
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("campaign_id", sa.Integer(), nullable=False),
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("worker_id", sa.Integer(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("measurement_id", sa.Integer(), nullable=True),
        sa.Column("ignored", sa.Integer(), nullable=False),
        _key(JOBS, "campaign_id", "megatune_campaigns"),
        _key(JOBS, "workload_id", "megatune_workloads"),
        _key(JOBS, "worker_id", WORKERS),
        _key(JOBS, "measurement_id", "megatune_measurements"),
        sa.PrimaryKeyConstraint("id", name=f"pk_{JOBS}"),
        sa.UniqueConstraint("campaign_id", "workload_id", "stage", "number", name="uq_megatune_jobs_once"),
    )
    op.create_index(f"ix_{JOBS}_campaign_id_state_id", JOBS, ["campaign_id", "state", "id"])
    op.create_index(
        f"ix_{JOBS}_failures",
        JOBS,
        ["campaign_id"],
        sqlite_where=sa.text("failures > 0"),
        postgresql_where=sa.text("failures > 0"),
    )


def _key(table: str, column: str, other: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{other}.id"], name=f"fk_{table}_{column}_{other}")
