"""Running a campaign file from start to end: what the commands and the quickstart share."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import ExitStack
from contextlib import closing
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from megatune_db.election import TERM_S
from megatune_db.location import Where
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.operator import Workload
from megatune_kernels.target import Target
from megatune_kernels.target import architecture_of
from megatune_tuner.campaign import run_campaign
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.coordinator import Configs
from megatune_tuner.coordinator import Coordinator
from megatune_tuner.engines.base import Engine
from megatune_tuner.engines.remote import RemoteEngine
from megatune_tuner.engines.remote import first_worker
from megatune_tuner.measuring import Bench
from megatune_tuner.measuring import Builder
from megatune_tuner.office import in_office
from megatune_tuner.progress import Progress
from megatune_tuner.recording_file import check_place
from megatune_tuner.recording_run import RecordSummary
from megatune_tuner.recording_run import record
from megatune_tuner.recordings import Recording
from megatune_tuner.recordings import recording
from megatune_tuner.recordings import shipped_recordings
from megatune_tuner.runners.base import Runner
from megatune_tuner.stopping import Stop
from megatune_tuner.summary import Summary
from megatune_tuner.transactions import OUTAGE_S
from megatune_tuner.transactions import Transactions

if TYPE_CHECKING:
    from megatune_tuner.compiling import CompilePool


@dataclass(frozen=True)
class Equipment:
    """What a campaign measures with."""

    runner: Runner
    builder: Builder | None
    configs: Configs | None
    """The configs of a workload that can be measured; None: every legal one."""
    facts: Mapping[str, float]
    """Figures of the target that were measured beside."""


@contextmanager
def equipment(campaign: Campaign, gpu: int = 0) -> Iterator[Equipment]:
    """The runner that a campaign names, and what it needs; closed at the end of the block.

    :param gpu: index of the GPU to measure on; of a group, the first of as many as it has ranks.
    :raises MegatuneError: when nothing can be measured: no GPU, no recording, or one that lacks what is asked for.
    """
    if campaign.runner.kind == "replay":
        found = _recording(campaign)
        yield Equipment(_replay(found), None, found.configs, found.about.facts)
        return
    with _measuring(campaign, gpu) as runner, closing(_compilers(runner.target)) as pool:
        yield Equipment(runner, pool, None, runner.facts)


def runner_of(campaign: Campaign, gpu: int = 0) -> Runner:
    """The runner that a campaign names, for whoever builds nothing; the errors are those of ``equipment``."""
    return _replay(_recording(campaign)) if campaign.runner.kind == "replay" else _measuring(campaign, gpu)


def _replay(found: Recording) -> Runner:
    from megatune_tuner.runners.replay import ReplayRunner

    return ReplayRunner(found)


def _compilers(target: Target) -> CompilePool:
    from megatune_kernels.artifact_store import store_location
    from megatune_tuner.compiling import CompilePool

    return CompilePool(store_location(), architecture_of(target.hardware))


def _measuring(campaign: Campaign, gpu: int) -> Runner:
    """The runner of a campaign that measures."""
    from megatune_tuner.runners.local import local_runner

    if campaign.runner.kind == "group":
        from megatune_tuner.doctor import visible_gpus

        there = len(visible_gpus())
        if gpu + campaign.world > there:
            behind = f" from GPU {gpu} on" if gpu else ""
            raise campaign.fault(
                "runner.kind",
                f"world {campaign.world} takes {campaign.world} GPUs{behind}, this machine shows {there}; "
                'kind = "emulated" measures all ranks on one',
            )
    return local_runner(campaign.runner.kind, campaign.world, gpu)


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
            found = _recording(campaign)
            bench: Bench = _replay(found)
            configs: Configs | None = found.configs
            builder: Builder | None = None
        else:
            if not ray:
                seen.note("waiting for a worker: megatune worker")
            bench, configs = first_worker(transactions, campaign.name, lambda: stop.requested, engine.check), None
            builder = engine.builder(bench) or opened.enter_context(closing(_compilers(bench.target)))
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


def _recording(campaign: Campaign) -> Recording:
    """The recording that a campaign replays; a path is relative to the campaign file's folder."""
    name = campaign.runner.recording or ""
    if name not in shipped_recordings():
        name = str(Path(campaign.source).parent / name)
    found = recording(name)
    if found.about.regime != campaign.measuring_regime():
        raise campaign.fault("regime", f"{found.name} was recorded {found.about.regime}; a replay has to say the same")
    missing = [workload for workload in campaign.workloads() if not found.configs(workload)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise campaign.fault(
            "runner.recording", f"{found.name} has no {missing[0]}{more}; {_recorded(found, missing[0])}"
        )
    return found


def _recorded(found: Recording, like: Workload) -> str:
    """What there is instead: the tokens of that shape, or else the shapes."""
    tokens = sorted(
        {other.tokens for other in found.workloads if (other.operator, other.dims) == (like.operator, like.dims)}
    )
    if tokens:
        return f"recorded tokens: {', '.join(map(str, tokens))}"
    shapes = dict.fromkeys(other.shape for other in found.workloads if other.operator == like.operator)
    return f"recorded shapes: {'; '.join(shapes) or 'none of this operator'}"
