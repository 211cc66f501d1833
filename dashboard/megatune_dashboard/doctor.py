"""``megatune doctor``: what this machine can do, and how to get what is missing."""

from __future__ import annotations

from typing import Annotated

import typer

from megatune_dashboard.console import console
from megatune_dashboard.console import print_json
from megatune_db.location import ENVIRONMENT
from megatune_db.location import Location
from megatune_db.location import locate


def doctor(
    db: Annotated[
        Location | None,
        typer.Option("--db", envvar=ENVIRONMENT, parser=locate, metavar="PATH|URL", help="A database to look at too."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this machine can do, what is missing, and how to get it."""
    from rich.markup import escape
    from rich.table import Table

    from megatune_tuner.doctor import State
    from megatune_tuner.doctor import examine

    report = examine(db)
    if json:
        print_json(report.to_dict())
        return
    table = Table("what", "state", "found", "remedy")
    styles = {State.OK: "green", State.MISSING: "yellow", State.BROKEN: "red"}
    for finding in report.findings:
        state = f"[{styles[finding.state]}]{finding.state}[/]"
        table.add_row(finding.subject, state, escape(finding.detail), escape(finding.remedy))
    out = console()
    out.print(table)
    if report.driver:
        out.print(f"NVIDIA driver {report.driver}" + (f", CUDA up to {report.cuda}" if report.cuda else ""))
    for line in report.links:
        out.print(line, markup=False)
    can = "Campaigns can be measured here." if report.can_measure else "Campaigns can be replayed and planned here."
    out.print(can)
