"""``megatune run --repeat``: the tuner searches with other seeds, the planner says what that means for the plan."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import typer

from megatune_dashboard.console import console
from megatune_dashboard.console import print_json
from megatune_kernels.errors import NothingMeasured

if TYPE_CHECKING:
    from megatune_db.location import Location
    from megatune_db.records import Provenance
    from megatune_db.session import Database
    from megatune_planner.plan import Plan
    from megatune_planner.repeating import Repeats
    from megatune_tuner.campaign_file import Campaign
    from megatune_tuner.progress import Progress
    from megatune_tuner.summary import Summary

INTERRUPTED = 130


@dataclass(frozen=True)
class RepeatedCampaign:
    """A campaign that was run again."""

    summary: Summary
    """Of its own run."""
    repeats: Repeats
    databases: tuple[Path, ...]
    """Of the repeats, by seed."""


class StoppedError(Exception):
    """Somebody interrupted it; the same command goes on."""


def repeat(campaign: Campaign, db: Location, repeats: int, gpu: int, as_json: bool, again: str) -> None:
    """Run a campaign, then again with other seeds, and print what they say of its plan.

    :param again: the command that goes on when it is stopped.
    """
    try:
        found = repeat_campaign(campaign, db, repeats, gpu=gpu, by=_user())
    except StoppedError:
        typer.echo(f"stopped; to go on: {again} --repeat {repeats}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(_report(found))
        return
    _print(found)
    typer.echo(f"next: megatune plan --db {db}, which says in the plan what is not repeatable")


def repeat_campaign(
    campaign: Campaign, db: Location, repeats: int, *, gpu: int = 0, by: str = "megatune"
) -> RepeatedCampaign:
    """Run a campaign and its repeats, measure in one session what they choose otherwise, and keep what came of it.

    The repeats have databases of their own in a folder beside the campaign's, and go on where they were stopped.

    :raises MegatuneError: as ``run_file``.
    :raises NothingMeasured: when nothing beat its baseline: there is no plan that could be repeated.
    :raises StoppedError: when it was interrupted.
    """
    from megatune_db import verifications
    from megatune_db.records import Provenance
    from megatune_db.session import open_database
    from megatune_planner.repeating import decisions_of
    from megatune_planner.repeating import judge_repeats
    from megatune_planner.repeating import repeats_json
    from megatune_planner.repeating import to_measure
    from megatune_tuner.equipping import equipment
    from megatune_tuner.execution import run_file
    from megatune_tuner.remeasuring import remeasure
    from megatune_tuner.repeating import run_repeats
    from megatune_tuner.repeating import seeds_of
    from megatune_tuner.stopping import Stop

    summary = run_file(campaign, db, progress=_progress(), gpu=gpu)
    if summary.interrupted:
        raise StoppedError
    repeated = run_repeats(campaign, db.folder / f"{db.name}.repeats", repeats, gpu=gpu, progress=_progress)
    if any(each.summary is not None and each.summary.interrupted for each in repeated):
        raise StoppedError
    provenance = Provenance(summary.provenance)
    with open_database(db) as database:
        own = _plan(campaign, database, provenance)
        if own is None:
            raise NothingMeasured(f"{campaign.name}: nothing beat its baseline, so there is no plan that could flip")
        plans: list[Plan | None] = [own]
        for each in repeated:
            with open_database(each.database, read_only=True) as other:
                plans.append(_plan(campaign, other, provenance) if each.summary is not None else None)
        decisions = decisions_of(plans, campaign.workloads())
        with (
            equipment(campaign, gpu) as with_,
            database.writer_lock(),
            Stop() as stop,
            _progress() as progress,
        ):
            batches = [(check.workload, check.configs) for check in to_measure(decisions)]
            regime = campaign.measuring_regime()
            results = remeasure(batches, with_, regime, database=database, stop=stop, progress=progress)
            if stop.requested:
                raise StoppedError
            found = judge_repeats(
                campaign.name,
                seeds_of(campaign, repeats),
                plans,
                decisions,
                {(each.workload, each.config): each.measurement for each in results},
                provenance,
            )
            with database.session() as session:
                verifications.add_repeat(
                    session,
                    campaign=campaign.name,
                    target=found.target,
                    regime=regime,
                    provenance=provenance,
                    at=datetime.now(UTC).replace(tzinfo=None),
                    who=by,
                    repeats=repeats,
                    flip_rate=found.flip_rate,
                    regret=found.regret,
                    document=repeats_json(found),
                )
    return RepeatedCampaign(summary, found, tuple(each.database for each in repeated))


def _plan(campaign: Campaign, database: Database, provenance: Provenance) -> Plan | None:
    """The plan of what a campaign measured with that provenance; None where nothing beat its baseline."""
    from megatune_db import queries
    from megatune_planner.drafting import draft_plan

    with database.session() as session:
        row = queries.campaign(session, campaign.name)
        assert row is not None
        try:
            return draft_plan(
                session,
                name=campaign.name,
                target=row.target,
                regime=campaign.measuring_regime(),
                only_operators=sorted({workload.operator for workload in campaign.workloads()}),
                provenances=[provenance],
            )
        except NothingMeasured:
            return None


def _report(found: RepeatedCampaign) -> dict[str, Any]:
    document = found.repeats.model_dump(mode="json")
    return {
        "measured": found.summary.measured,
        "regret": found.repeats.regret,
        "flips_beyond_ties": len(found.repeats.beyond_ties),
        "databases": [str(path) for path in found.databases],
        **document,
    }


def _print(found: RepeatedCampaign) -> None:
    from rich.table import Table

    from megatune_planner.verifying.rendering import ratio_text

    repeats = found.repeats
    if repeats.flips:
        table = Table("operator", "shape", "tokens", "seed", "the plan serves", "the seed serves", "time", "is")
        for flip in repeats.flips:
            names = [" ".join(text.split()[:3]) for text in (flip.mine, flip.other)]
            ratio = "-" if flip.ratio is None else ratio_text(flip.ratio)
            table.add_row(flip.operator, flip.shape, str(flip.tokens), str(flip.seed), *names, ratio, flip.kind)
        console().print(table)
    count = len(repeats.runs) - 1
    typer.echo(
        f"{repeats.campaign}: over {count} repeat{'s' if count > 1 else ''} {len(repeats.flips)} of "
        f"{repeats.decisions} decisions flip ({repeats.flip_rate:.1%}), {len(repeats.beyond_ties)} of them beyond ties"
    )
    regrets = ", ".join(f"seed {run.seed} {run.regret:.2%}" for run in repeats.runs)
    typer.echo(f"regret against the best choice of all runs, weighted by time: {regrets}; {repeats.provenance}")
    typer.echo(f"databases of the repeats: {found.databases[0].parent}")


def _user() -> str:
    from megatune_planner.reviewing import user

    return user()


def _progress() -> Progress:
    from megatune_tuner.progress import PlainProgress
    from megatune_tuner.progress import RichProgress

    return RichProgress() if sys.stderr.isatty() else PlainProgress()
