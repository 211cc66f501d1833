"""The command ``check``: whether a runtime has what the exports of a plan need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any

import typer

from megatune_planner.command_words import DEFAULT_DATABASE
from megatune_planner.command_words import DatabaseOption
from megatune_planner.command_words import JsonOption
from megatune_planner.command_words import PlanArgument
from megatune_planner.command_words import find_plan
from megatune_planner.command_words import print_json
from megatune_planner.command_words import print_rich
from megatune_planner.warning_words import warn_unverified

if TYPE_CHECKING:
    from megatune_planner.exporters.checking import Check
    from megatune_planner.exporters.checking import Checked
    from megatune_planner.plan import Plan

LACKING = 3
"""Exit code where a name, a field or a grammar is not there."""


def check(
    plan: PlanArgument,
    against: Annotated[
        Path,
        typer.Option("--against", metavar="PATH", help="A site-packages folder, an unpacked tree, or a wheel file."),
    ],
    to: Annotated[
        list[str] | None, typer.Option("--to", metavar="EXPORTER", help="These exports alone; by default all.")
    ] = None,
    db: DatabaseOption = DEFAULT_DATABASE,
    as_json: JsonOption = False,
) -> None:
    """Look up in a runtime's source what the exports of a plan need. Nothing of the runtime runs, or needs a GPU.

    Exit code 0 where all of it is there, 3 where something is not.
    """
    from megatune_planner.exporters.base import exporter
    from megatune_planner.exporters.base import exporters
    from megatune_planner.exporters.checking import check as look_up

    chosen = [exporter(name) for name in to] if to else list(exporters().values())
    found, _ = find_plan(plan, db)
    result = look_up(found, against, chosen)
    if as_json:
        print_json(_document(found, against, result))
    else:
        _print(result)
    warn_unverified(found, db)
    if not result.holds:
        raise typer.Exit(LACKING)


def _document(plan: Plan, against: Path, result: Check) -> dict[str, Any]:
    return {
        "plan": plan.digest,
        "against": str(against),
        "holds": result.holds,
        "exports": [
            {
                "exporter": each.exporter.name,
                "runtime": each.runtime.name,
                "version": each.runtime.version,
                "written_for": each.exporter.runtime_version,
                "holds": not each.problems,
                "names": [
                    {"file": finding.path, "name": finding.name, "problem": finding.problem or None}
                    for finding in each.findings
                ],
            }
            for each in result.checked
        ],
        "left_out": [{"exporter": exporter.name, "reason": reason} for exporter, reason in result.left_out],
        "asks": [
            {
                "runtime": each.runtime.name,
                "version": each.runtime.version,
                **each.document,
                "problems": [f"{finding.path} {finding.problem}" for finding in each.problems],
            }
            for each in result.asked
        ],
    }


def _print(result: Check) -> None:
    from rich.table import Table

    table = Table("export", "runtime", "names", "verdict")
    for each in result.checked:
        problems = len(each.problems)
        verdict = f"{problems} not as needed" if problems else "all there"
        version = each.runtime.version or "of no stated version"
        table.add_row(each.exporter.name, f"{each.runtime.name} {version}", str(len(each.findings)), verdict)
    print_rich(table)
    for each in result.checked:
        for finding in each.problems:
            typer.echo(f"{each.exporter.name}: {finding.path} {finding.problem}")
    for note in sorted({_note(each) for each in result.checked if each.other_version}):
        typer.echo(note)
    for exporter, reason in result.left_out:
        typer.echo(f"left out: {exporter.name}: {reason}")
    for asked in result.asked:
        typer.echo(f"\nWhat the plan asks of {asked.runtime.name}, in its words; stock serves where it is otherwise:")
        for line in asked.lines:
            typer.echo(f"  {line}")
        for finding in asked.problems:
            typer.echo(f"  here it is worded otherwise: {finding.path} {finding.problem}")


def _note(each: Checked) -> str:
    name, version = each.runtime.name, each.exporter.runtime_version
    return f"exports for {name} are written for {version}: those that look at its version change nothing on another"
