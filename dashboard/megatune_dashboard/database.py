"""``megatune db``: keeping a database usable."""

from __future__ import annotations

import typer

from megatune_planner.command_words import DEFAULT_DATABASE
from megatune_planner.command_words import DatabaseOption

database_app = typer.Typer(help="Look after a database.", epilog="Example: megatune db upgrade --db tuned.db")


@database_app.callback()
def _group() -> None:
    """Look after a database."""


@database_app.command(epilog="Example: megatune db upgrade --db tuned.db")
def upgrade(
    db: DatabaseOption = DEFAULT_DATABASE,
) -> None:
    """Bring a database that an older Megatune wrote to the schema of this one; a copy stays beside it."""
    from megatune_db.schema import upgrade as upgrade_schema

    typer.echo(f"{db}: schema {upgrade_schema(db)}")
