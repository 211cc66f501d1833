"""The commands ``bundle``, ``measure`` and ``ingest``, for GPU hosts without a network or a compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated

import typer

from megatune_db.location import ENVIRONMENT
from megatune_db.location import Location
from megatune_db.location import locate

if TYPE_CHECKING:
    from megatune_tuner.campaign_file import Campaign

app = typer.Typer(help="Measure where there is neither a network nor a compiler.", add_completion=False)

DEFAULT_DATABASE = Location("megatune.db")
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.command(epilog="Example: megatune bundle kimi-k3.toml -o kimi-k3.bundle")
def bundle(
    campaign: Annotated[
        str,
        typer.Argument(
            metavar="CAMPAIGN", help="A campaign file, or the name of a campaign in --db, to go on with it."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The file for the bundle.")],
    db: Annotated[
        Location | None,
        typer.Option(
            "--db",
            envvar=ENVIRONMENT,
            parser=locate,
            metavar="PATH|URL",
            help="A database: what it has measured is not asked for again.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Digest of the target; needed where the database has several.")
    ] = None,
    configs: Annotated[
        int | None, typer.Option("--configs", min=1, help="Configs to ask for in each cell, in place of budget.trials.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Pack what a campaign would measure next, compiled, for a GPU host without a network or a compiler.

    The host needs torch and cuda.core: `python x.bundle -o x.result` measures there.
    """
    # As for campaigns: numpy reads this when it is first imported, and the cores are for compiling.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from megatune_tuner.progress import PlainProgress
    from megatune_tuner.transfer.measure import lines_of
    from megatune_tuner.transfer.packing import pack_file

    made = pack_file(_campaign(campaign, db), out, db, target=target, configs=configs, progress=PlainProgress())
    if as_json:
        report = {
            "file": str(made.path),
            "digest": made.digest,
            "bytes": made.size,
            "campaign": made.bundle.campaign,
            "arch": made.bundle.arch,
            "cells": len(made.bundle.cells),
            "configs": made.bundle.requests,
            "artifacts": len(made.artifacts),
        }
        typer.echo(json.dumps(report, indent=2))
        return
    for line in lines_of(made):
        typer.echo(line)
    typer.echo(f"next, on the GPU host: python {made.path.name} -o {made.path.with_suffix('.result').name}")


@app.command(epilog="Example: megatune measure kimi-k3.bundle -o kimi-k3.result")
def measure(
    file: Annotated[Path, typer.Argument(metavar="BUNDLE", dir_okay=False, help="The bundle.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", dir_okay=False, help="The file for the measurements; by default beside the bundle."
        ),
    ] = None,
    gpu: Annotated[
        int, typer.Option("--gpu", min=0, help="Index of the GPU to measure on; of a group, its first.")
    ] = 0,
    check: Annotated[bool, typer.Option("--check", help="Say what is in the bundle, and measure nothing.")] = False,
) -> None:
    """Measure a bundle with the Megatune that is inside it, or go on with it; the same as `python BUNDLE`.

    A bundle is a program: run those of people whose programs you would run.
    """
    from megatune_tuner.transfer.bundle import read_bundle

    # Nothing of it runs before all of it is known to be what was packed.
    read_bundle(file)
    given = [] if out is None else ["--out", str(out)]
    command = [sys.executable, str(file), "--gpu", str(gpu), *given, *(["--check"] if check else [])]
    child = subprocess.Popen(command)
    while True:
        try:
            code = child.wait()
            break
        except KeyboardInterrupt:
            # The terminal told the child too, which stops after the current measurement.
            continue
    if code:
        raise typer.Exit(code)


@app.command(epilog="Example: megatune ingest kimi-k3.result --db tuned.db")
def ingest(
    file: Annotated[Path, typer.Argument(metavar="RESULT", dir_okay=False, help="The result of a bundle.")],
    db: Annotated[
        Location,
        typer.Option(
            "--db", envvar=ENVIRONMENT, parser=locate, metavar="PATH|URL", help="The database for the measurements."
        ),
    ] = DEFAULT_DATABASE,
    as_json: JsonOption = False,
) -> None:
    """Take the measurements of a result into a database, once however often it is repeated."""
    from dataclasses import asdict

    from megatune_db.session import open_database
    from megatune_tuner.transfer.ingest import ingest as take_in
    from megatune_tuner.transfer.result import read_result

    found = read_result(file)
    with open_database(db) as database, database.session() as session:
        done = take_in(session, found)
    if as_json:
        typer.echo(json.dumps({**asdict(done), "target": done.target.digest}, indent=2))
        return
    typer.echo(f"{done.campaign}: {done.new} new of {done.taken} measurements on {done.target}")
    if not done.complete:
        typer.echo("the bundle was not measured to its end: measure on, and take the result in again")
    typer.echo(f"next: megatune plan --db {db}")


def _campaign(name: str, db: Location | None) -> Campaign:
    """The campaign of a file, or that of the database, as its file was when it ran last."""
    from megatune_db.queries import campaign
    from megatune_db.queries import campaigns
    from megatune_db.session import open_database
    from megatune_kernels.errors import MegatuneError
    from megatune_tuner.campaign_file import load_campaign
    from megatune_tuner.campaign_file import parse_campaign

    path = Path(name)
    if path.exists() or path.suffix == ".toml" or db is None:
        return load_campaign(path)
    with open_database(db, read_only=True) as database, database.session() as session:
        row = campaign(session, name)
        known = ", ".join(each.name for each in campaigns(session))
    if row is None:
        raise MegatuneError(f"there is no file {name}, and no campaign of that name in {db}; it has {known or 'none'}")
    return parse_campaign(row.file_text, source=name)
