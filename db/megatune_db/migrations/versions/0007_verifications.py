"""Plans are verified, and campaigns run again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from megatune_db.migrations.triggers import refuse_deleting
from megatune_db.migrations.triggers import refuse_updating

revision = "0007"
down_revision = "0005"
branch_labels = None
depends_on = None

VERIFICATIONS = "megatune_verifications"
REPEATS = "megatune_repeats"


def upgrade() -> None:
    """Two tables, whose entries are never changed; nothing that is there changes."""
    op.create_table(
        VERIFICATIONS,
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("plan_id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("who", sa.String(length=256), nullable=False),
        sa.Column("provenance", sa.String(length=32), nullable=False),
        sa.Column("verdict", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        _key(VERIFICATIONS, "plan_id", "megatune_plans"),
        _key(VERIFICATIONS, "target_id", "megatune_targets"),
        sa.PrimaryKeyConstraint("id", name=f"pk_{VERIFICATIONS}"),
    )
    op.create_index(f"ix_{VERIFICATIONS}_plan_id", VERIFICATIONS, ["plan_id"])
    op.create_table(
        REPEATS,
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("campaign_id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("regime", sa.String(length=32), nullable=False),
        sa.Column("provenance", sa.String(length=32), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("who", sa.String(length=256), nullable=False),
        sa.Column("repeats", sa.Integer(), nullable=False),
        sa.Column("flip_rate", sa.Double(), nullable=False),
        sa.Column("regret", sa.Double(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        _key(REPEATS, "campaign_id", "megatune_campaigns"),
        _key(REPEATS, "target_id", "megatune_targets"),
        sa.PrimaryKeyConstraint("id", name=f"pk_{REPEATS}"),
    )
    op.create_index(f"ix_{REPEATS}_campaign_id", REPEATS, ["campaign_id"])
    op.create_index(f"ix_{REPEATS}_target_id", REPEATS, ["target_id"])
    for table in (VERIFICATIONS, REPEATS):
        refuse_deleting(table, "nothing that was recorded is deleted")
        refuse_updating(table, "an entry is never changed")


def _key(table: str, column: str, other: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{other}.id"], name=f"fk_{table}_{column}_{other}")
