"""``megatune quickstart``: from recorded measurements to plans, on any machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING
from typing import Annotated

import typer

from megatune_dashboard.console import console
from megatune_db.location import Location
from megatune_db.location import locate
from megatune_kernels.errors import NothingMeasured

if TYPE_CHECKING:
    from rich.table import Table

    from megatune_planner.band_schema import Band
    from megatune_planner.plan import Plan
    from megatune_planner.plan import ShapePlan
    from megatune_tuner.campaign_file import Campaign

REPLAYED = ("quickstart.toml", "quickstart-prefetch.toml", "quickstart-router.toml", "quickstart-experts.toml")
MEASURED = "quickstart-gpu.toml"
INTERRUPTED = 130
SAID = {
    "none": "without prefetch and programmatic launch",
    "torch": "a plain path of torch's, which servers do not run as it is",
}
"""In words, of baselines whose names say too little."""
LAYERS = {"router_front": "router, latent down", "experts": "routed experts"}
"""What operators are in a model's layer that has one of each."""
DEFAULT_DATABASE = Location(".megatune/quickstart.db")


def quickstart(
    db: Annotated[
        Location,
        typer.Option(
            "--db",
            parser=locate,
            metavar="PATH|URL",
            help="The database for the measurements; plans lie beside it, or here where that is on a server.",
        ),
    ] = DEFAULT_DATABASE,
) -> None:
    """Replay recorded campaigns over a whole model, make plans of them, and measure a little where there is a GPU.

    Run again, it goes on where it stopped and measures nothing twice.
    """
    from megatune_tuner.doctor import examine
    from megatune_tuner.doctor import visible_gpus

    again = f"megatune quickstart --db {shlex.quote(str(db))}"
    for name in REPLAYED:
        _run(name, db, again)
    if visible_gpus():
        if examine().can_measure:
            typer.echo("\nThere is a GPU: measuring three projections on it, which takes about a minute.")
            try:
                _run(MEASURED, _beside(db), again)
            except NothingMeasured as error:
                typer.echo(f"No plan from this GPU: {error}")
        else:
            typer.echo("\nThere is a GPU, but nothing can be measured on it: `megatune doctor` says what is missing.")
    typer.echo("\nNext, your own model on your own GPU: `megatune doctor`, then `megatune run --help`.")


def _beside(db: Location) -> Location:
    """Where what the GPU measures goes: a file of its own, so that the recorded one can be thrown away."""
    path = Path(str(db))
    return Location(str(path.with_name(f"{path.stem}-gpu{path.suffix}"))) if db.is_file else db


def _run(name: str, db: Location, again: str) -> None:
    """Run a shipped campaign into a database, plan from it, and say what came of it.

    :param again: the command that goes on when this is stopped.
    """
    from megatune_db.session import open_database
    from megatune_planner.drafting import draft_plan
    from megatune_planner.drafting import keep_draft
    from megatune_planner.exporters.base import write
    from megatune_tuner.campaign_file import parse_campaign
    from megatune_tuner.execution import run_file
    from megatune_tuner.progress import PlainProgress
    from megatune_tuner.progress import RichProgress
    from megatune_tuner.recordings import recording

    campaign = parse_campaign(_shipped(name), source=name)
    summary = run_file(campaign, db, progress=RichProgress() if sys.stderr.isatty() else PlainProgress())
    if summary.interrupted:
        typer.echo(f"stopped; to go on: {again}", err=True)
        raise typer.Exit(INTERRUPTED)
    file = db.folder / f"{campaign.name}.plan.json"
    with open_database(db) as database, database.session() as session:
        operators = dict.fromkeys(workload.operator for workload in campaign.workloads())
        replayed = campaign.runner.recording
        target = recording(replayed).about.target.digest if replayed is not None else None
        plan = draft_plan(session, name=campaign.name, target=target, only_operators=list(operators))
        write({file.name: plan.to_json()}, file.parent)
        keep_draft(session, plan)
    out = console()
    out.print(summary_table(plan, {**_projections(campaign), **_chains(campaign), **_layers(campaign)}))
    ratios = [ratio for operator in plan.content.operators for shape in operator.shapes for ratio in _ratios(shape)]
    hardware = plan.content.target.fingerprint.hardware
    counts = " and ".join(f"{count} {kind}" for kind, count in plan.content.coverage.measurements.items())
    mean = f"geometric mean of {len(ratios)} shapes and tokens on {hardware.gpu}"
    typer.echo(
        f"\n{geometric_mean(ratios):.2f} times as fast as {_baselines(plan)} ({mean}; evidence: {counts} measurements)."
    )
    typer.echo(f"The plan is {file}, the measurements are in {db}.")
    plan_file, database_file = shlex.quote(str(file)), shlex.quote(str(db))
    typer.echo(f"Look at it: megatune show {plan_file}")
    typer.echo(f"Approve it: megatune approve {plan_file} --db {database_file}")
    typer.echo(f"Ship it:    megatune export {plan_file} --db {database_file} --to json --out exported")


def _shipped(name: str) -> str:
    return files("megatune_tuner").joinpath("data", "campaigns", name).read_text("utf-8")


def summary_table(plan: Plan, names: dict[str, list[str]]) -> Table:
    """One row a shape: what it is called, what serves which tokens, and what that gains over the baseline.

    :param names: of what the shapes are in a model, by shape.
    """
    from rich.table import Column
    from rich.table import Table

    from megatune_planner.routings import routing_suffix

    # A shape is one long word.
    table = Table(Column("shape", overflow="fold"), "is", "tokens: what serves", "times as fast", "at best")
    for operator in plan.content.operators:
        for shape in operator.shapes:
            ratios = _ratios(shape)
            table.add_row(
                f"{operator.name} {shape.shape}{routing_suffix(shape)}",
                "\n".join(names.get(shape.shape, [])),
                ", ".join(_served(shape.bands)),
                f"{geometric_mean(ratios):.2f}",
                f"{max(ratios):.2f}",
            )
    return table


def _served(bands: Iterable[Band]) -> Iterable[str]:
    """Neighbouring bands of one variant are told as one."""
    for variant, run in groupby(bands, key=lambda b: b.decision.variant if b.decision.kind == "config" else "stock"):
        found = list(run)
        first, last = found[0].tokens_lo, found[-1].tokens_hi
        tokens = f"{first}+" if last is None else str(first) if first == last else f"{first}-{last}"
        yield f"{tokens}: {variant}"


def _ratios(shape: ShapePlan) -> list[float]:
    """The baseline's time by the decision's, at every measured number of tokens."""
    return [point.baseline_latency.median_us / point.latency.median_us for band in shape.bands for point in band.points]


def _baselines(plan: Plan) -> str:
    found = {
        name for operator in plan.content.operators for shape in operator.shapes for name in shape.fastest_baselines
    }
    return " and ".join(sorted(SAID.get(name, name) for name in found))


def _projections(campaign: Campaign) -> dict[str, list[str]]:
    """What the projections of the campaign's model are called, by shape."""
    from megatune_kernels.models import model
    from megatune_kernels.operator import Workload
    from megatune_kernels.projection.shapes import projection_shapes

    found: dict[str, list[str]] = {}
    if campaign.model is not None:
        for parallel in campaign.model.parallels:
            for projection in projection_shapes(model(campaign.model.name), parallel):
                shape = Workload.of("projection", {"n": projection.n, "k": projection.k}, 1).shape
                found.setdefault(shape, []).append(f"TP{parallel.tensor} {projection.name}")
    return found


def _chains(campaign: Campaign) -> dict[str, list[str]]:
    """What the consumers of the campaign's chains are called, by shape."""
    from megatune_kernels.models import model
    from megatune_kernels.prefetch.chain import chain_of
    from megatune_kernels.projection.shapes import projection_shapes

    chains = {w.shape: chain_of(w).consumers for w in campaign.workloads() if w.operator == "prefetch"}
    found: dict[str, list[str]] = {}
    if campaign.model is None:
        return found
    for parallel in campaign.model.parallels:
        called: dict[tuple[int, int], str] = {}
        for projection in projection_shapes(model(campaign.model.name), parallel):
            called.setdefault((projection.n, projection.k), projection.name)
        for shape, consumers in chains.items():
            names = [called.get((consumer.n, consumer.k)) for consumer in consumers]
            if None not in names:
                found.setdefault(shape, []).append(f"TP{parallel.tensor} {', '.join(map(str, names))}")
    return found


def _layers(campaign: Campaign) -> dict[str, list[str]]:
    """At how many ranks the campaign's model has a shape of the operators that have one in each of its layers."""
    from megatune_kernels.models import model
    from megatune_kernels.operator import operator

    found: dict[str, list[str]] = {}
    if campaign.model is None:
        return found
    names = {workload.operator for workload in campaign.workloads()} & set(LAYERS)
    for parallel in campaign.model.parallels:
        for name in sorted(names):
            shapes = {each.shape for each in operator(name).workloads(model(campaign.model.name), parallel, (1,))}
            for shape in sorted(shapes):
                found.setdefault(shape, []).append(f"TP{parallel.tensor} {LAYERS[name]}")
    return found
