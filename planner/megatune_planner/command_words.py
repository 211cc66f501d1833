"""What the planner's commands share: options, and what their words mean."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any

import typer

from megatune_db.location import ENVIRONMENT
from megatune_db.location import Location
from megatune_db.location import Where
from megatune_db.location import locate
from megatune_kernels.errors import MegatuneError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from megatune_db.records import Provenance
    from megatune_db.reviews import By
    from megatune_planner.plan import Plan

PIPE_COLUMNS = 120
"""Width of tables where stdout is no terminal and nothing says how wide it is."""

DatabaseOption = Annotated[
    Location,
    typer.Option(
        "--db",
        envvar=ENVIRONMENT,
        parser=locate,
        metavar="PATH|URL",
        help="The database with the measurements: a file, or postgresql://USER@HOST/DATABASE.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="A plan file, or a plan's name or digest in --db.")]
DEFAULT_DATABASE = Location("megatune.db")
TargetOption = Annotated[
    str | None, typer.Option("--target", help="Digest of the target; needed where the database has several.")
]
RegimeOption = Annotated[str, typer.Option("--regime", help="Conditions of the measurements, weights and execution.")]
ProvenanceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--provenance", help="What counts as evidence, the most trusted first; by default measured, then replayed."
    ),
]
DEFAULT_REGIME = "cold-graph"
ByOption = Annotated[str | None, typer.Option("--by", help="Whose action it is; by default the user who runs this.")]


@contextmanager
def database_session(db: Where) -> Iterator[Session]:
    """A session in an existing database, committed at its end."""
    from megatune_db.session import open_database

    with open_database(db, create=False) as database, database.session() as session:
        yield session


def by_of(by: str | None, comment: str = "") -> By:
    """Whose action it is, and why."""
    from megatune_db.reviews import By
    from megatune_planner.reviewing import user

    if by is not None and not by.strip():
        raise MegatuneError("--by is somebody's name, and not empty")
    return By(user() if by is None else by, comment)


def find_plan(plan: str, db: Location) -> tuple[Plan, str | None]:
    """The plan, and its state where it comes from the database."""
    from megatune_db.session import open_database

    found = from_file(plan)
    if found is not None:
        return found, None
    if not db.exists():
        raise MegatuneError(f"there is no file {plan}, and no database {db} that could hold a plan of that name")
    with open_database(db, read_only=True) as database, database.session() as session:
        return from_database(plan, session)


def from_file(plan: str) -> Plan | None:
    from megatune_planner.plan import Plan

    path = Path(plan)
    return Plan.load(path) if path.exists() or path.suffix == ".json" else None


def from_database(plan: str, session: Session) -> tuple[Plan, str]:
    from megatune_db import queries
    from megatune_planner.plan import Plan

    row = queries.plan(session, plan)
    if row is None:
        known = ", ".join(sorted({row.name for row in queries.plans(session)}))
        raise MegatuneError(f"there is no file {plan}, and no plan of that name or digest; there are {known or 'none'}")
    return Plan.from_json(row.content), row.state.value


def regime_of(text: str) -> Any:
    from megatune_db.records import Regime

    try:
        return Regime.parse(text)
    except ValueError:
        raise MegatuneError(
            f"no such regime: {text!r}; allowed: cold-graph, cold-eager, warm-graph, warm-eager"
        ) from None


def provenances_of(words: list[str] | None) -> list[Provenance]:
    from megatune_db.records import Provenance

    allowed = [each for each in Provenance if each is not Provenance.PREDICTED]
    for word in words or ():
        if word not in allowed:
            raise MegatuneError(f"{word!r} is no evidence; allowed: {', '.join(allowed)}")
    return [Provenance(word) for word in words or ()]


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def print_rich(value: Any) -> None:
    """Print what Rich lays out, as wide as the terminal; plain text where there is none."""
    from rich.console import Console

    width = shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns
    Console(width=width, highlight=False).print(value)
