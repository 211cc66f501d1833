"""What other projects found best is kept, to be tried first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TABLE = "megatune_priors"


def upgrade() -> None:
    """A table; nothing that is there changes."""
    op.create_table(
        TABLE,
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("format", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=512), nullable=False),
        sa.Column("place", sa.JSON(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=True),
        sa.Column("entry", sa.JSON(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{TABLE}"),
        sa.UniqueConstraint("digest", name=f"uq_{TABLE}_digest"),
    )
    op.create_index(f"ix_{TABLE}_format", TABLE, ["format"])
