"""``megatune db``: keeping a database usable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from megatune_db.location import Location
from megatune_db.location import locate
from megatune_planner.command_words import DEFAULT_DATABASE
from megatune_planner.command_words import DatabaseOption

database_app = typer.Typer(help="Look after a database.", epilog="Example: megatune db upgrade --db tuned.db")

BackupOption = Annotated[
    Path | None,
    typer.Option(
        "--to",
        dir_okay=False,
        help="The SQLite file for the copy; by default one beside the database's file, or here for one on a server.",
    ),
]


@database_app.callback()
def _group() -> None:
    """Look after a database."""


@database_app.command(epilog="Example: megatune db upgrade --db tuned.db")
def upgrade(db: DatabaseOption = DEFAULT_DATABASE, to: BackupOption = None) -> None:
    """Bring a database that an older Megatune wrote to the schema of this one; a copy is made first."""
    from megatune_db.schema import upgrade as upgrade_schema

    done = upgrade_schema(db, keep=to)
    if done.backup is not None:
        typer.echo(f"kept as it was: {done.backup}")
    typer.echo(f"{db}: schema {done.revision}")


@database_app.command(epilog="Example: megatune db backup --db postgresql://me@host/megatune --to today.db")
def backup(db: DatabaseOption = DEFAULT_DATABASE, to: BackupOption = None) -> None:
    """Write all that a database holds to a new SQLite file, also while a campaign runs.

    Of a database on a server it is every row but Optuna's studies, which follow from the others. The file is a database
    itself, and `megatune db copy` brings it back to a server.
    """
    from megatune_db.backup import back_up

    found = back_up(db, to)
    rows = "" if found.rows is None else f", {found.rows} rows"
    typer.echo(f"{db} copied to {found.to}: schema {found.revision}{rows}")


@database_app.command(epilog="Example: megatune db copy tuned.db postgresql://me@host/megatune")
def copy(
    source: Annotated[Location, typer.Argument(parser=locate, metavar="FROM", help="The database to read.")],
    target: Annotated[Location, typer.Argument(parser=locate, metavar="TO", help="A database without tables yet.")],
) -> None:
    """Copy every row from one database into a new one, from a file to a server or the other way round."""
    from megatune_db.backup import copy as copy_rows

    found = copy_rows(source, target)
    typer.echo(f"{found.rows} rows of {source} copied to {target}: schema {found.revision}")
