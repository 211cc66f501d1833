"""Measurements say of which revision of the kernels they are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLE = "megatune_measurements"
SEARCH = "uq_megatune_measurements_search"
PLANNING = "ix_megatune_measurements_planning"


def upgrade() -> None:
    """A column, and a place in the two indexes; of what is there already nobody knows the revision."""
    op.add_column(TABLE, sa.Column("revision", sa.String(length=64), server_default="", nullable=False))
    op.drop_index(SEARCH, TABLE)
    op.create_index(
        SEARCH,
        TABLE,
        ["workload_id", "target_id", "regime", "provenance", "config_id", "revision"],
        unique=True,
        sqlite_where=sa.text("stage = 'search'"),
        postgresql_where=sa.text("stage = 'search'"),
    )
    op.drop_index(PLANNING, TABLE)
    op.create_index(
        PLANNING,
        TABLE,
        [
            "target_id",
            "regime",
            "provenance",
            "status",
            "workload_id",
            "config_id",
            "stage",
            "median_us",
            "low_us",
            "high_us",
            "revision",
        ],
        unique=False,
    )
