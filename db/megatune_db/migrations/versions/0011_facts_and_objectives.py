"""Workloads keep what their operator says of them, campaigns what plans over several routings are to choose by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two columns, empty for what is there: facts are filled in when the workload is next put."""
    op.add_column("megatune_workloads", sa.Column("facts", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("megatune_campaigns", sa.Column("objective", sa.JSON(none_as_null=True), nullable=True))
