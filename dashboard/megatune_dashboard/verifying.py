"""``megatune verify``: the planner says what decides a plan and judges it, the tuner measures it again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC
from datetime import datetime
from typing import TYPE_CHECKING
from typing import Annotated

import typer

from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_planner.command_words import DEFAULT_DATABASE
from megatune_planner.command_words import ByOption
from megatune_planner.command_words import DatabaseOption
from megatune_planner.command_words import JsonOption
from megatune_planner.command_words import PlanArgument
from megatune_planner.command_words import by_of
from megatune_planner.command_words import find_plan
from megatune_planner.command_words import print_json
from megatune_planner.command_words import print_rich

if TYPE_CHECKING:
    from megatune_db.location import Location
    from megatune_db.records import Regime
    from megatune_planner.plan import Plan
    from megatune_planner.verifying.checks import Check
    from megatune_planner.verifying.verification import Verification
    from megatune_tuner.equipping import Equipment
    from megatune_tuner.progress import Progress
    from megatune_tuner.remeasuring import Batch

CANNOT_TELL = NothingMeasured.exit_code
DRIFTED = 4
INTERRUPTED = 130


def verify(
    plan: PlanArgument,
    recording: Annotated[
        str | None,
        typer.Option(help="Replay a recording instead of measuring: a shipped one's name, or a file."),
    ] = None,
    margin: Annotated[
        float, typer.Option(help="Share of the time by which a choice may be slower than its baseline and its rivals.")
    ] = 0.02,
    gpu: Annotated[
        int, typer.Option("--gpu", min=0, help="Index of the GPU to measure on; of a group, its first.")
    ] = 0,
    db: DatabaseOption = DEFAULT_DATABASE,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure again on the target what a plan rests on, and say whether it holds.

    Measured are both sides of every boundary, each band's choice against its baseline and its rivals, and a few
    canaries. Exit code 0 where the plan holds, 4 where it has drifted, 3 where it cannot be told. The database keeps
    the result.
    """
    who = by_of(by).who
    if not 0 < margin < 1:
        raise MegatuneError(f"--margin is a share above 0 and below 1, e.g. 0.02, not {margin}")
    found, _ = find_plan(plan, db)
    try:
        result = run_verification(found, db, who, recording=recording, margin=margin, gpu=gpu)
    except NothingMeasured as error:
        if as_json:
            print_json({"plan": found.digest, "verdict": "cannot tell", "reason": str(error)})
        raise
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        _print(result, db)
    if result.verdict != "holds":
        raise typer.Exit(DRIFTED if result.verdict == "drifted" else CANNOT_TELL)


def run_verification(
    plan: Plan, db: Location, who: str, *, recording: str | None = None, margin: float = 0.02, gpu: int = 0
) -> Verification:
    """Verify a plan on this machine, or against a recording, and keep what came of it in the database.

    :raises MegatuneError: when this is not the plan's hardware, or the recording is none of it.
    :raises NothingMeasured: when nothing can be measured here.
    :raises Exit: when it was stopped.
    """
    from megatune_db.records import Regime
    from megatune_db.session import open_database
    from megatune_planner.verifying.checks import check_hardware
    from megatune_planner.verifying.checks import checks_of
    from megatune_planner.verifying.judging import Again
    from megatune_planner.verifying.judging import judge
    from megatune_planner.verifying.keeping import keep_verification
    from megatune_planner.verifying.keeping import times_then
    from megatune_tuner.remeasuring import can_measure
    from megatune_tuner.remeasuring import remeasure
    from megatune_tuner.stopping import Stop

    regime = Regime.parse(plan.content.regime)
    with ExitStack() as stack:
        with_ = _equipment(stack, plan, regime, recording, gpu)
        check_hardware(plan, with_.runner.target.hardware)
        checks = checks_of(plan, can_measure(with_))
        database = stack.enter_context(open_database(db))
        stack.enter_context(database.writer_lock())
        with database.session() as session:
            then = times_then(session, plan, checks)
        stop, progress = stack.enter_context(Stop()), stack.enter_context(_progress())
        results = remeasure(
            batches_of(checks.to_measure), with_, regime, database=database, stop=stop, progress=progress
        )
        if stop.requested:
            typer.echo("stopped: nothing is said of a plan of which a part was measured", err=True)
            raise typer.Exit(INTERRUPTED)
        found = judge(
            plan,
            checks,
            {(each.workload, each.config): Again(each.id, each.measurement) for each in results},
            with_.runner.target,
            with_.runner.provenance,
            datetime.now(UTC).replace(tzinfo=None),
            margin=margin,
            recording=recording,
            then=then,
        )
        with database.session() as session:
            keep_verification(session, plan, found, who)
    return found


def batches_of(checks: Sequence[Check]) -> list[Batch]:
    """What a planner asks for, as what a tuner measures."""
    return [(check.workload, check.configs) for check in checks]


def _equipment(stack: ExitStack, plan: Plan, regime: Regime, recording: str | None, gpu: int) -> Equipment:
    from megatune_db.records import Provenance
    from megatune_planner.verifying.checks import checks_of
    from megatune_tuner.remeasuring import recorded_equipment
    from megatune_tuner.remeasuring import target_equipment

    if recording is not None:
        return stack.enter_context(recorded_equipment(recording, regime))
    emulated = plan.content.target.fingerprint.hardware.links == Provenance.EMULATED
    batches = batches_of(checks_of(plan).to_measure)
    try:
        return stack.enter_context(target_equipment(batches, regime, emulated=emulated, gpu=gpu))
    except NothingMeasured:
        raise
    except MegatuneError as error:
        raise NothingMeasured(
            f"cannot tell whether the plan holds, because nothing can be measured here: {error}; on a machine without "
            "its GPU --recording replays one"
        ) from error


def _progress() -> Progress:
    from megatune_tuner.progress import PlainProgress
    from megatune_tuner.progress import RichProgress

    return RichProgress() if sys.stderr.isatty() else PlainProgress()


def _print(found: Verification, db: Location) -> None:
    from megatune_planner.verifying.rendering import render_verification

    print_rich(render_verification(found))
    typer.echo(f"kept in {db}")
