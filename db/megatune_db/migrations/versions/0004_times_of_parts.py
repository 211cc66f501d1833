"""Measurements of chains keep the times of their parts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from megatune_db.migrations.triggers import refuse_updating

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TABLE = "megatune_measurements"


def upgrade() -> None:
    """A column, which is never changed either; what is there already has no parts."""
    op.add_column(TABLE, sa.Column("parts", sa.JSON(none_as_null=True), nullable=True))
    refuse_updating(TABLE, "a measurement is never changed: measure again", ("parts",), name="update_parts")
