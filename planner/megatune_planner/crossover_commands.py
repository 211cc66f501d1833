"""The command ``crossovers``: where variants give way to one another, here and in published figures."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated

import typer

from megatune_db.location import Location
from megatune_kernels.errors import MegatuneError
from megatune_planner.command_words import DEFAULT_DATABASE
from megatune_planner.command_words import DEFAULT_REGIME
from megatune_planner.command_words import DatabaseOption
from megatune_planner.command_words import JsonOption
from megatune_planner.command_words import ProvenanceOption
from megatune_planner.command_words import RegimeOption
from megatune_planner.command_words import TargetOption
from megatune_planner.command_words import find_plan
from megatune_planner.command_words import print_json
from megatune_planner.command_words import provenances_of
from megatune_planner.command_words import regime_of

if TYPE_CHECKING:
    from megatune_planner.survey import ShapeCrossovers


def crossovers(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[PLAN]",
            help="A plan file, or a plan's name or digest in --db; without one, everything measured in --db. "
            "With --published, a part of an entry's id.",
        ),
    ] = None,
    db: DatabaseOption = DEFAULT_DATABASE,
    target: TargetOption = None,
    regime: RegimeOption = DEFAULT_REGIME,
    provenance: ProvenanceOption = None,
    operator: Annotated[
        list[str] | None, typer.Option(help="These operators alone; by default every registered one.")
    ] = None,
    published: Annotated[bool, typer.Option("--published", help="What follows from published figures.")] = False,
    figures: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="A file of published figures in place of those that are shipped."),
    ] = None,
    width: Annotated[
        int | None, typer.Option(min=1, help="Elements of a row where a published figure states none.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the elements where a published figure states none.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print where variants give way to one another, in tokens and bytes, and which tokens to measure next."""
    if published or figures is not None:
        _published(what, figures, width, dtype, as_json=as_json)
        return
    found = _measured(what, db, target, regime, provenance, operator or ())
    if as_json:
        print_json({"shapes": [shape.model_dump(mode="json") for shape in found]})
        return
    for line in _lines(found):
        typer.echo(line)


def _measured(
    plan: str | None,
    db: Location,
    target: str | None,
    regime: str,
    provenance: list[str] | None,
    only_operators: Sequence[str],
) -> list[ShapeCrossovers]:
    from megatune_db.session import open_database
    from megatune_kernels.operator import operator
    from megatune_kernels.operator import operators
    from megatune_planner.drafting import find_target
    from megatune_planner.planning import EVIDENCE
    from megatune_planner.survey import of_measurements
    from megatune_planner.survey import of_plan

    chosen = [operator(each) for each in only_operators] or list(operators().values())
    if plan is not None:
        return [shape for shape in of_plan(find_plan(plan, db)[0]) if shape.operator in {each.name for each in chosen}]
    with open_database(db, read_only=True) as database, database.session() as session:
        return of_measurements(
            session,
            target=find_target(session, target).digest,
            regime=regime_of(regime),
            provenances=provenances_of(provenance) or EVIDENCE,
            baselines={each.name: each.baselines for each in chosen},
        )


def _lines(found: Sequence[ShapeCrossovers]) -> Iterator[str]:
    from megatune_planner.rendering import crossover_text
    from megatune_planner.routings import at_routing

    for shape in found:
        yield f"{shape.operator} {shape.shape}  {shape.dtype}, world {shape.world}{at_routing(shape.routing)}"
        yield from (f"  {crossover_text(crossover)}" for crossover in shape.crossovers)
        if shape.measure_next:
            yield f"  to narrow them, measure {', '.join(map(str, shape.measure_next))} tokens"


def _published(part: str | None, figures: Path | None, width: int | None, dtype: str | None, *, as_json: bool) -> None:
    from megatune_planner.published.answers import answer
    from megatune_planner.published.documents import read_entries
    from megatune_planner.published.documents import shipped_entries
    from megatune_planner.published.rendering import published_lines

    entries = shipped_entries() if figures is None else read_entries(figures)
    chosen = [entry for entry in entries if part is None or part in str(entry["id"])]
    if not chosen:
        raise MegatuneError(
            f"no published entry has {part!r} in its id; there are {len(entries)}, e.g. {entries[0]['id']}"
        )
    answers = [answer(entry, width=width, dtype=dtype) for entry in chosen]
    if as_json:
        print_json({"entries": [each.model_dump(mode="json") for each in answers]})
        return
    for each in answers:
        for line in published_lines(each):
            typer.echo(line)
