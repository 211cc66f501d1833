"""Running a campaign file from start to end: what the commands and the quickstart share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from contextlib import closing
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from megatune_db.election import TERM_S
from megatune_db.location import Where
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.target import architecture_of
from megatune_tuner.campaign import run_campaign
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.coordinator import Coordinator
from megatune_tuner.engines.base import Engine
from megatune_tuner.engines.remote import RemoteEngine
from megatune_tuner.engines.remote import first_worker
from megatune_tuner.equipping import Equipment
from megatune_tuner.equipping import compilers
from megatune_tuner.equipping import equipment
from megatune_tuner.equipping import recording_of
from megatune_tuner.equipping import replay_runner
from megatune_tuner.measuring import Bench
from megatune_tuner.measuring import Builder
from megatune_tuner.measuring import Configs
from megatune_tuner.office import in_office
from megatune_tuner.progress import Progress
from megatune_tuner.recording_file import check_place
from megatune_tuner.recording_run import RecordSummary
from megatune_tuner.recording_run import record
from megatune_tuner.stopping import Stop
from megatune_tuner.summary import Summary
from megatune_tuner.transactions import OUTAGE_S
from megatune_tuner.transactions import Transactions

if TYPE_CHECKING:
    pass


def run_file(campaign: Campaign, db: Where, *, progress: Progress | None = None, gpu: int = 0) -> Summary:
    """Run a campaign into the database at ``db``, or go on with it; Ctrl-C stops it after the current measurement.

    The errors are those of ``equipment``, ``open_database`` and ``run_campaign``.
    """
    with (
        Stop() as stop,
        _ready(campaign, db, gpu) as (with_, database),
        progress or Progress() as seen,
    ):
        return run_campaign(
            campaign,
            with_.runner,
            database,
            builder=with_.builder,
            configs=with_.configs,
            progress=seen,
            stop=stop,
        )


def run_on_workers(
    campaign: Campaign,
    db: Where,
    *,
    ray: bool = False,
    address: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    outage_s: float = OUTAGE_S,
    term_s: float = TERM_S,
) -> Summary:
    """The same with the measuring done by workers in other processes.

    :param ray: start the workers on a Ray cluster; otherwise others start them, with ``megatune worker``.
    :param address: of the cluster, ``HOST:PORT``; None: the one that runs here, or a new one of this machine alone.
    :param workers: how many there are to be; None: on Ray as many as fit, else one.
    :raises MegatuneError: when the cluster does not answer, or has no room for a worker.
    """
    with ExitStack() as opened:
        stop = opened.enter_context(Stop())
        seen = opened.enter_context(progress or Progress())
        database = opened.enter_context(open_database(db))
        transactions = Transactions(database, outage_s=outage_s, note=seen.note)
        if ray:
            from megatune_tuner.engines.ray import RayEngine

            engine: Engine = opened.enter_context(
                closing(RayEngine(campaign, database.location, address=address, workers=workers))
            )
        else:
            engine = RemoteEngine(workers or 1)
        opened.enter_context(in_office(transactions, campaign, seen, stop, term_s=term_s))
        engine.launch()
        if campaign.runner.kind == "replay":
            found = recording_of(campaign)
            bench: Bench = replay_runner(found)
            configs: Configs | None = found.configs
            builder: Builder | None = None
        else:
            if not ray:
                seen.note("waiting for a worker: megatune worker")
            bench, configs = first_worker(transactions, campaign.name, lambda: stop.requested, engine.check), None
            builder = engine.builder(bench) or opened.enter_context(closing(compilers(bench.target)))
        return Coordinator(campaign, bench, transactions, engine, builder, configs, seen, stop).run()


def record_file(
    campaign: Campaign, db: Where, out: Path, *, progress: Progress | None = None, gpu: int = 0
) -> RecordSummary:
    """Measure what ``[record]`` asks for into the database at ``db`` and write the recording ``out``.

    The errors are those of ``equipment``, ``open_database`` and ``record``; a place where ``out`` cannot be written is
    one before anything is measured.
    """
    check_place(out)
    with (
        Stop() as stop,
        _ready(campaign, db, gpu) as (with_, database),
        progress or Progress() as seen,
    ):
        return record(
            campaign,
            with_.runner,
            database,
            out,
            builder=with_.builder,
            configs=with_.configs,
            progress=seen,
            stop=stop,
            facts=with_.facts,
        )


@contextmanager
def _ready(campaign: Campaign, db: Where, gpu: int) -> Iterator[tuple[Equipment, Database]]:
    """The equipment and the database of a campaign that can be measured: a rejected one leaves no database behind."""
    with equipment(campaign, gpu) as with_:
        campaign.spaces(architecture_of(with_.runner.target.hardware))
        with open_database(db) as database:
            yield with_, database
