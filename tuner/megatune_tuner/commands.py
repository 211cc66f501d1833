"""The commands ``run``, ``resume``, ``worker``, ``record`` and ``status``, for the one ``megatune`` command to compose.

What they need is imported when they run: ``megatune --help`` should not wait for Optuna or a database library.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import Literal

import typer

from megatune_db.location import ENVIRONMENT
from megatune_db.location import Location
from megatune_db.location import locate

if TYPE_CHECKING:
    from megatune_db.queries import CampaignRow
    from megatune_db.queries import TroubledJob
    from megatune_tuner.campaign_file import Campaign
    from megatune_tuner.progress import Progress
    from megatune_tuner.recording_run import RecordSummary
    from megatune_tuner.summary import Summary

app = typer.Typer(help="Tune and record.", add_completion=False)

Engine = Literal["local", "ray", "remote"]
Runner = Literal["gpu", "group", "emulated", "replay"]
PIPE_COLUMNS = 120
"""Width of tables where stdout is no terminal and nothing says how wide it is."""
DEFAULT_DATABASE = Location("megatune.db")
INTERRUPTED = 130
MOST_REPEATS = 1000
"""Each is a campaign; what so many do not show no more will."""
REPEAT = "repeat"
"""Of the context's object: runs a campaign again, ``(campaign, db, repeats, gpu, as_json, again)``."""
KILLED = "interrupted"
"""What ``status`` says of a campaign that was running when its process ended."""

CampaignArgument = Annotated[Path, typer.Argument(metavar="CAMPAIGN.toml", dir_okay=False, help="The campaign file.")]
DatabaseOption = Annotated[
    Location,
    typer.Option(
        "--db",
        envvar=ENVIRONMENT,
        parser=locate,
        metavar="PATH|URL",
        help="The database for the measurements: a file, or postgresql://USER@HOST/DATABASE.",
    ),
]
GpuOption = Annotated[int, typer.Option("--gpu", min=0, help="Index of the GPU to measure on; of a group, its first.")]
EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine", help="Where to measure: local, in this process; ray, on a cluster; remote, by megatune worker."
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="The Ray cluster; otherwise the one that runs here."),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="How many workers: on Ray as many as fit, otherwise 1.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@dataclass(frozen=True)
class _Where:
    """Where a campaign is measured."""

    engine: Engine
    address: str | None
    workers: int | None


@app.command(epilog="Example: megatune run kimi-k3.toml --db tuned.db")
def run(
    context: typer.Context,
    campaign: CampaignArgument,
    db: DatabaseOption = DEFAULT_DATABASE,
    gpu: GpuOption = 0,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    repeat: Annotated[
        int,
        typer.Option(
            min=0, max=MOST_REPEATS, help="Run it again so many times with other seeds, and say how its plan flips."
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run a campaign, or go on with it: nothing that was measured is measured again.

    Ctrl-C stops after the current measurement; the same command goes on.
    """
    _compute_in_one_thread()
    from megatune_kernels.errors import MegatuneError
    from megatune_tuner.campaign_file import load_campaign

    again = f"megatune run {campaign} --db {db}"
    if not repeat:
        _run(load_campaign(campaign), db, gpu, as_json, _Where(engine, address, workers), again=again)
        return
    if engine != "local":
        raise MegatuneError("--repeat measures in this process: leave --engine out")
    # What flips is a matter of plans: who composes this command with a planner gives what judges them.
    judge = (context.obj or {}).get(REPEAT)
    if judge is None:
        raise MegatuneError("--repeat compares plans: use the command megatune, which has a planner")
    judge(load_campaign(campaign), db, repeat, gpu, as_json, again)


@app.command(epilog="Example: megatune resume quickstart --db tuned.db")
def resume(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the campaign, as `megatune status` prints it.")],
    db: DatabaseOption = DEFAULT_DATABASE,
    gpu: GpuOption = 0,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a campaign of a database, as its file was when it ran last.

    A recording that the file names by a path is looked for beside the database.
    """
    _compute_in_one_thread()
    from megatune_db.queries import campaign as campaign_of
    from megatune_db.queries import campaigns
    from megatune_db.session import open_database
    from megatune_kernels.errors import MegatuneError
    from megatune_tuner.campaign_file import parse_campaign

    with open_database(db, read_only=True) as database, database.session() as session:
        row = campaign_of(session, name)
        known = ", ".join(each.name for each in campaigns(session))
    if row is None:
        raise MegatuneError(f"the database has no campaign {name!r}; it has {known or 'none'}")
    found = parse_campaign(row.file_text, source=str(db.folder / f"{name}.toml"))
    where = _Where(engine, address, workers)
    _run(found, db, gpu, as_json, where, again=f"megatune resume {shlex.quote(name)} --db {db}")


def _run(campaign: Campaign, db: Location, gpu: int, as_json: bool, where: _Where, *, again: str) -> None:
    """Run the campaign and say what came of it.

    :param again: the command that goes on when it is stopped.
    """
    from megatune_db.records import CampaignState
    from megatune_db.records import Provenance
    from megatune_tuner.execution import run_file
    from megatune_tuner.execution import run_on_workers

    if where.engine == "local":
        summary = run_file(campaign, db, progress=_progress(), gpu=gpu)
    else:
        summary = run_on_workers(
            campaign,
            db,
            ray=where.engine == "ray",
            address=where.address,
            workers=where.workers,
            progress=_progress(),
        )
    if as_json:
        _print_json(_run_report(summary))
    else:
        _print_run(summary)
    if summary.interrupted:
        typer.echo(f"stopped; to go on: {again}", err=True)
        raise typer.Exit(INTERRUPTED)
    if not as_json and summary.state is CampaignState.FINISHED:
        asked = " --provenance emulated" if summary.provenance == Provenance.EMULATED else ""
        typer.echo(f"next: megatune plan --db {db}{asked}")


@app.command(epilog="Example: megatune record kimi-k3.toml --out kimi-k3.parquet --db tuned.db")
def record(
    campaign: CampaignArgument,
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="The file for the recording.")],
    db: DatabaseOption = DEFAULT_DATABASE,
    gpu: GpuOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure whole spaces, or the sample that the campaign file asks for, and write them to a recording for replay.

    Ctrl-C stops after the current measurement; the same command goes on.
    """
    from megatune_tuner.campaign_file import load_campaign
    from megatune_tuner.execution import record_file

    summary = record_file(load_campaign(campaign), db, out, progress=_progress(), gpu=gpu)
    if as_json:
        _print_json(_record_report(summary))
    else:
        typer.echo(f"{summary.name}: {summary.complete} of {summary.cells} cells complete on {summary.target}")
        by_status = f" ({_counts(summary.statuses)})" if summary.statuses else ""
        now = f"measured now: {summary.measured}{by_status}{_finalists(summary.finals)}"
        typer.echo(f"{now}; {_effort(summary.wall_s, summary.measuring_s)}")
        if summary.path is not None:
            typer.echo(f"{summary.rows} measurements written to {summary.path}")
    if summary.interrupted:
        typer.echo(f"stopped; to go on: megatune record {campaign} --out {out} --db {db}", err=True)
        raise typer.Exit(INTERRUPTED)


@app.command(epilog="Example: megatune status --db tuned.db")
def status(db: DatabaseOption = DEFAULT_DATABASE, as_json: JsonOption = False) -> None:
    """Say how far the campaigns of a database have come."""
    from megatune_db import election
    from megatune_db.queries import campaigns
    from megatune_db.queries import troubled_jobs
    from megatune_db.session import open_database

    with open_database(db, read_only=True) as database:
        # Asked before and after, because a campaign may end or begin while its row is read.
        with database.session() as session:
            coordinated = set(election.holders(session))
            rows = campaigns(session)
            trouble = troubled_jobs(session)
        with database.session() as session:
            coordinated |= set(election.holders(session))
    if as_json:
        _print_json(
            {
                "campaigns": [_status_report(row, row.id in coordinated) for row in rows],
                "jobs": [_job_report(job) for job in trouble],
            }
        )
    elif not rows:
        typer.echo(f"{db} holds no campaign yet: megatune run CAMPAIGN.toml --db {db}")
    else:
        _print_status(rows, coordinated)
        for job in trouble:
            typer.echo(_trouble(job))


@app.command(epilog="Example: megatune worker --db postgresql://tuner@db.example/megatune")
def worker(
    db: DatabaseOption = DEFAULT_DATABASE,
    name: Annotated[
        str | None, typer.Option("--campaign", help="Work for this campaign alone; otherwise for any that runs.")
    ] = None,
    runner: Annotated[
        Runner | None, typer.Option("--runner", help="Work only for campaigns that measure with this runner.")
    ] = None,
    gpu: GpuOption = 0,
    idle: Annotated[
        float | None, typer.Option("--idle", min=0, help="End after so many seconds without work; otherwise wait.")
    ] = None,
    lease: Annotated[
        float, typer.Option("--lease", min=1, help="Seconds after which a job is given out again when this dies.")
    ] = 30.0,
    leak: Annotated[
        int, typer.Option("--leak-mib", min=16, help="Begin anew as a process when it has grown by so many MiB.")
    ] = 2048,
) -> None:
    """Measure for campaigns that run in a database: lease jobs, measure, deliver, until Ctrl-C.

    Workers share a server's database over any number of machines, and a file on one. A recording that a campaign
    names by a path is looked for beside the database, or in the present directory.
    """
    _compute_in_one_thread()
    from megatune_tuner.serving import replace_process
    from megatune_tuner.serving import serve
    from megatune_tuner.stopping import Stop
    from megatune_tuner.worker import LEAKED

    with Stop() as stop:
        why = serve(
            db,
            name=name,
            kind=runner,
            gpu=gpu,
            idle_s=idle,
            lease_s=lease,
            leak_bytes=leak * 2**20,
            stop=stop,
            say=lambda text: typer.echo(text, err=True),
        )
    if why == LEAKED:
        replace_process()


def _compute_in_one_thread() -> None:
    """The model's matrices are small, and the cores are for compiling. numpy reads this when it is first imported."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _progress() -> Progress:
    from megatune_tuner.progress import PlainProgress
    from megatune_tuner.progress import RichProgress

    return RichProgress() if sys.stderr.isatty() else PlainProgress()


def _run_report(summary: Summary) -> dict[str, Any]:
    return {
        "campaign": summary.name,
        "state": summary.state,
        "interrupted": summary.interrupted,
        "target": summary.target,
        "provenance": summary.provenance,
        "workloads": summary.workloads,
        "measured": summary.measured,
        "finalists": summary.finals,
        "reused": summary.reused,
        "statuses": summary.statuses,
        "speedup": summary.speedup,
        "wall_s": round(summary.wall_s, 3),
        "measuring_s": round(summary.measuring_s, 3),
        "outcomes": [
            {
                "operator": row.operator,
                "shape": row.shape,
                "routing": row.routing,
                "tokens": row.tokens,
                "variant": row.variant,
                "config": row.config,
                "best_us": row.best_us,
                "baseline": row.baseline,
                "baseline_us": row.baseline_us,
                "stage": row.stage,
            }
            for row in summary.outcomes
        ],
    }


def _record_report(summary: RecordSummary) -> dict[str, Any]:
    return {
        "campaign": summary.name,
        "interrupted": summary.interrupted,
        "target": summary.target,
        "file": str(summary.path) if summary.path is not None else None,
        "rows": summary.rows,
        "cells": summary.cells,
        "complete": summary.complete,
        "measured": summary.measured,
        "finalists": summary.finals,
        "statuses": summary.statuses,
        "wall_s": round(summary.wall_s, 3),
        "measuring_s": round(summary.measuring_s, 3),
    }


def _state(row: CampaignRow, coordinated: bool) -> str:
    """How far a campaign has come, given whether a process coordinates it: a killed one cannot say so."""
    from megatune_db.records import CampaignState

    return KILLED if row.state is CampaignState.RUNNING and not coordinated else row.state


def _trouble(job: TroubledJob) -> str:
    """A line on a job that did not go as it should."""
    from megatune_db.leases import STRIKES
    from megatune_db.records import JobState

    what = f"{job.campaign}: {job.operator} {job.shape} tokens={job.tokens}: {', '.join(job.configs)}"
    latest = job.failures[-1]["reason"]
    if job.strikes >= STRIKES:
        return f"{what}: quarantined, because it brought down what measures it {job.strikes} times; last: {latest}"
    if job.state is JobState.LOST:
        return f"{what}: not measured, because infrastructure failed {len(job.failures)} times; last: {latest}"
    return f"{what}: given out {len(job.failures) + 1} times; {latest}"


def _job_report(job: TroubledJob) -> dict[str, Any]:
    return {
        "campaign": job.campaign,
        "operator": job.operator,
        "shape": job.shape,
        "tokens": job.tokens,
        "stage": job.stage,
        "configs": list(job.configs),
        "state": job.state,
        "strikes": job.strikes,
        "failures": [dict(failure) for failure in job.failures],
    }


def _status_report(row: CampaignRow, coordinated: bool) -> dict[str, Any]:
    return {
        "campaign": row.name,
        "state": _state(row, coordinated),
        "target": row.target,
        "budget": row.budget,
        "workloads": row.workloads,
        "trials": row.trials,
        "reused": row.reused,
        "statuses": row.statuses,
        "wall_s": round(row.wall_s, 3),
        "measuring_s": round(row.measuring_s, 3),
        "started_at": row.started_at.isoformat() if row.started_at else None,
        "finished_at": row.finished_at.isoformat() if row.finished_at else None,
    }


def _print_run(summary: Summary) -> None:
    from rich.table import Column
    from rich.table import Table

    routed = any(row.routing != "none" for row in summary.outcomes)
    table = Table("operator", Column("shape", overflow="fold"))
    for name in (*(["routing"] if routed else []), "tokens", "best", "µs", "baseline", "µs", "speedup"):
        table.add_column(name)
    before: list[str] = []
    for row in summary.outcomes:
        place = [row.operator, row.shape, *([row.routing] if routed else [])]
        # A shape is one long word: what is as in the row above is said there.
        table.add_row(
            *("" if place[: index + 1] == before[: index + 1] else word for index, word in enumerate(place)),
            str(row.tokens),
            row.variant or "-",
            _us(row.best_us),
            row.baseline or "-",
            _us(row.baseline_us),
            f"{row.baseline_us / row.best_us:.2f}" if row.best_us and row.baseline_us else "-",
        )
        before = place
    _print_table(table)
    mean = f", {summary.speedup:.3f} times as fast as the baselines (geometric mean)" if summary.speedup else ""
    typer.echo(f"{summary.name}: {summary.state}, {summary.workloads} workloads on {summary.target}{mean}")
    reused = f", {summary.reused} reused" if summary.reused else ""
    now = f"measured now: {summary.measured}{_finalists(summary.finals)}{reused}"
    every = f"in all: {_counts(summary.statuses)}"
    typer.echo(f"{now}; {every}; {_effort(summary.wall_s, summary.measuring_s)}")


def _print_status(rows: list[CampaignRow], coordinated: set[int]) -> None:
    from rich.table import Table

    table = Table("campaign", "state", "workloads", "trials", "by status", "wall", "measuring")
    for row in rows:
        # A replay's runner is never busy, which is no share of its time.
        share = f"{row.measuring_s / row.wall_s:.0%}" if row.measuring_s and row.wall_s else "-"
        table.add_row(
            row.name,
            _state(row, row.id in coordinated),
            str(row.workloads),
            str(sum(row.trials.values())),
            _counts(row.statuses),
            f"{row.wall_s:.0f} s",
            share,
        )
    _print_table(table)


def _finalists(count: int) -> str:
    return f" and {count} finalists" if count else ""


def _effort(wall_s: float, measuring_s: float) -> str:
    share = f" ({measuring_s / wall_s:.0%} of it measuring)" if measuring_s and wall_s else ""
    return f"{wall_s:.0f} s{share}"


def _counts(statuses: dict[Any, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(statuses.items())) or "none"


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _print_table(table: Any) -> None:
    from rich.console import Console

    Console(width=shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns, highlight=False).print(table)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))
