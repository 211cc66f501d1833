"""What commands say on stderr of a plan that they show, whatever else they are asked for."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from megatune_db.location import Location
    from megatune_planner.plan import Plan


MOST_BANDS = 3
"""That are told one by one."""


def warn_unverified(plan: Plan, db: Location) -> None:
    """Say on stderr what changed since a plan was measured without anybody verifying it, and what verifying showed."""
    from megatune_db.errors import DatabaseError
    from megatune_db.session import open_database
    from megatune_planner.rendering import unrepeatable_where
    from megatune_planner.verifying.keeping import findings_of

    findings = findings_of(None, plan)
    if db.exists():
        # What a database says of a plan is beside the point of a command that was given a file: one that cannot be
        # read keeps nobody from it.
        with suppress(DatabaseError), open_database(db, read_only=True) as database, database.session() as session:
            findings = findings_of(session, plan)
    for finding in findings:
        typer.echo(f"warning: {finding.text}", err=True)
    bands = plan.content.repeatability.bands if plan.content.repeatability else ()
    for band in bands[:MOST_BANDS]:
        typer.echo(f"warning: not repeatable: {unrepeatable_where(band)}: {band.reason}", err=True)
    if len(bands) > MOST_BANDS:
        typer.echo(f"warning: not repeatable: {len(bands) - MOST_BANDS} more bands: megatune show names them", err=True)
