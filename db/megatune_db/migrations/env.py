"""Runs revisions on the connection that ``megatune_db.schema`` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from megatune_db.backend import VERSION_TABLE
from megatune_db.models import Base
from megatune_db.schema import is_ours

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    include_name=is_ours,
    render_as_batch=True,
    # Both engines can undo changes of the schema; Alembic assumes that SQLite cannot.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
