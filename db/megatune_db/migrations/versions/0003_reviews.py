"""Reviews and exports of plans, and which plan is in service where."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from megatune_db.migrations.triggers import refuse_deleting
from megatune_db.migrations.triggers import refuse_updating

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

PLANS = "megatune_plans"
REVIEWS = "megatune_reviews"
EXPORTS = "megatune_exports"
MEASUREMENTS = "megatune_measurements"


def upgrade() -> None:
    """Two tables, a place for each plan to serve in, and triggers that keep what was decided, and on what grounds."""
    op.add_column(PLANS, sa.Column("model", sa.String(length=256), server_default="", nullable=False))
    op.add_column(PLANS, sa.Column("worlds", sa.String(length=64), server_default="", nullable=False))
    op.execute(f"UPDATE {PLANS} SET model = name")
    op.create_table(
        REVIEWS,
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("plan_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("who", sa.String(length=256), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("before", sa.String(length=32), nullable=False),
        sa.Column("after", sa.String(length=32), nullable=False),
        sa.Column("other_id", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["plan_id"], [f"{PLANS}.id"], name=f"fk_{REVIEWS}_plan_id_{PLANS}"),
        sa.ForeignKeyConstraint(["other_id"], [f"{PLANS}.id"], name=f"fk_{REVIEWS}_other_id_{PLANS}"),
        sa.PrimaryKeyConstraint("id", name=f"pk_{REVIEWS}"),
    )
    op.create_index(f"ix_{REVIEWS}_plan_id", REVIEWS, ["plan_id"])
    op.create_index(f"ix_{REVIEWS}_other_id", REVIEWS, ["other_id"])
    op.create_table(
        EXPORTS,
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("plan_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("who", sa.String(length=256), nullable=False),
        sa.Column("exporter", sa.String(length=128), nullable=False),
        sa.Column("runtime", sa.String(length=128), nullable=False),
        sa.Column("runtime_version", sa.String(length=64), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["plan_id"], [f"{PLANS}.id"], name=f"fk_{EXPORTS}_plan_id_{PLANS}"),
        sa.PrimaryKeyConstraint("id", name=f"pk_{EXPORTS}"),
    )
    op.create_index(f"ix_{EXPORTS}_plan_id", EXPORTS, ["plan_id"])
    _leave_one_in_service()
    op.create_index(
        "uq_megatune_plans_in_service",
        PLANS,
        ["target_id", "model", "worlds"],
        unique=True,
        sqlite_where=sa.text("state = 'exported'"),
        postgresql_where=sa.text("state = 'exported'"),
    )
    _keep()


def _leave_one_in_service() -> None:
    """Of several exported plans for one place the newest serves; nobody wrote down when each was exported."""
    newer = (
        f"SELECT max(newer.id) FROM {PLANS} newer WHERE newer.state = 'exported' AND newer.id > {PLANS}.id"
        f" AND newer.target_id = {PLANS}.target_id AND newer.model = {PLANS}.model AND newer.worlds = {PLANS}.worlds"
    )
    now = "CURRENT_TIMESTAMP AT TIME ZONE 'UTC'" if op.get_bind().dialect.name == "postgresql" else "CURRENT_TIMESTAMP"
    op.execute(
        f"INSERT INTO {REVIEWS} (plan_id, at, who, action, comment, before, after, other_id)"
        f" SELECT id, {now}, 'megatune db upgrade', 'retire', 'a newer plan was exported', 'exported',"
        f" 'retired', ({newer}) FROM {PLANS} WHERE state = 'exported' AND ({newer}) IS NOT NULL"
    )
    op.execute(f"UPDATE {PLANS} SET state = 'retired' WHERE id IN (SELECT plan_id FROM {REVIEWS})")


def _keep() -> None:
    """Refuse what would take something away, whichever program tries."""
    for table in (REVIEWS, EXPORTS, PLANS, MEASUREMENTS):
        refuse_deleting(table, "nothing that was recorded is deleted")
    for table in (REVIEWS, EXPORTS):
        refuse_updating(table, "an entry is never changed")
    refuse_updating(
        PLANS,
        "a plan is never changed: make another",
        ("digest", "name", "content", "target_id", "created_at", "model", "worlds"),
    )
    refuse_updating(
        MEASUREMENTS,
        "a measurement is never changed: measure again",
        ("workload_id", "config_id", "target_id", "regime", "provenance", "revision", "samples", "median_us"),
    )
