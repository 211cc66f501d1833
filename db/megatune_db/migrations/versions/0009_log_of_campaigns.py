"""Who stopped a campaign and had it go on is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from megatune_db.migrations.triggers import refuse_deleting
from megatune_db.migrations.triggers import refuse_updating

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TABLE = "megatune_campaign_log"


def upgrade() -> None:
    """A table whose entries are never changed; nothing that is there changes."""
    op.create_table(
        TABLE,
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("campaign_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("who", sa.String(length=256), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["megatune_campaigns.id"], name=f"fk_{TABLE}_campaign_id_megatune_campaigns"
        ),
        sa.PrimaryKeyConstraint("id", name=f"pk_{TABLE}"),
    )
    op.create_index(f"ix_{TABLE}_campaign_id", TABLE, ["campaign_id"])
    refuse_deleting(TABLE, "nothing that was recorded is deleted")
    refuse_updating(TABLE, "an entry is never changed")
