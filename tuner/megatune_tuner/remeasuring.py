"""Measuring given configs again, interleaved, with no search: what is measured, and what it means, others say."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace
from functools import cache

from megatune_db import store
from megatune_db.records import Measurement
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.session import Database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.doctor import visible_gpus
from megatune_tuner.equipping import Equipment
from megatune_tuner.equipping import equipment
from megatune_tuner.measuring import Job
from megatune_tuner.measuring import Meter
from megatune_tuner.measuring import wait_for_builds
from megatune_tuner.progress import Progress
from megatune_tuner.recordings import recording
from megatune_tuner.rows import put_artifact
from megatune_tuner.rows import put_config
from megatune_tuner.rows import put_target
from megatune_tuner.rows import put_workload
from megatune_tuner.stopping import Stop

Batch = tuple[Workload, Sequence[Config]]
"""A workload, and what is measured of it in one session."""


@dataclass(frozen=True)
class Remeasured:
    """A config that was measured again."""

    workload: Workload
    config: Config
    id: int | None
    """Of the row; None without a database."""
    measurement: Measurement


@contextmanager
def target_equipment(batches: Sequence[Batch], regime: Regime, *, emulated: bool, gpu: int = 0) -> Iterator[Equipment]:
    """What measures these workloads, all of one world, on this machine; closed at the end of the block.

    :param emulated: all ranks share one GPU.
    :param gpu: index of the GPU; of a group, the first of as many as it has ranks.
    :raises MegatuneError: where nothing can be measured, with what is missing.
    """
    first = batches[0][0]
    kind = "gpu" if first.world == 1 else "emulated" if emulated else "group"
    there = len(visible_gpus())
    if kind == "group" and gpu + first.world > there:
        raise MegatuneError(
            f"{first.world} ranks take {first.world} GPUs from GPU {gpu} on, this machine shows {there}"
        )
    # What measures is chosen by campaigns, so this is one, of one workload.
    declared = Campaign.model_validate(
        {
            "name": "again",
            "tokens": (first.tokens,),
            "shapes": ({"operator": first.operator, "dtype": first.dtype, "world": first.world, **dict(first.dims)},),
            "regime": {"weights": regime.weights, "execution": regime.execution},
            "runner": {"kind": kind},
        }
    )
    with equipment(declared, gpu) as found:
        yield found


@contextmanager
def recorded_equipment(name_or_path: str, regime: Regime) -> Iterator[Equipment]:
    """What answers from a recording.

    :raises MegatuneError: when there is none, or it was recorded in another regime.
    """
    from megatune_tuner.runners.replay import ReplayRunner

    found = recording(name_or_path)
    if found.about.regime != regime:
        raise MegatuneError(
            f"{found.name} was recorded {found.about.regime}, and what is asked for was measured {regime}: "
            "name a recording of that regime"
        )
    yield Equipment(ReplayRunner(found), None, found.configs, found.about.facts)


def can_measure(with_: Equipment) -> Callable[[Workload, Config], bool]:
    """Whether a config can be measured: of a recording those that it holds, else every one."""
    configs = with_.configs
    if configs is None:
        return lambda workload, config: True
    known = cache(lambda workload: frozenset(configs(workload)))
    return lambda workload, config: config in known(workload)


def remeasure(
    batches: Sequence[Batch],
    with_: Equipment,
    regime: Regime,
    *,
    database: Database | None = None,
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> list[Remeasured]:
    """Measure each batch in one session, interleaved, and keep it before the next.

    A config whose artifact cannot be built is measured by that it cannot. Ends early where a stop is requested.

    :param database: where rows of the stage ``verify`` are kept; None: nowhere.
    :raises MegatuneError: when nothing can be measured any more.
    :raises DatabaseError: when the database cannot be written.
    """
    stop, progress = stop or Stop(), progress or Progress()
    progress.expect(sum(len(configs) for _, configs in batches))
    runner = with_.runner
    meter = Meter(runner, regime, with_.builder)
    if database is not None:
        with database.session() as session:
            put_target(session, runner.target)
    # The next batch is built while one is measured.
    ahead: dict[int, list[Job]] = {}
    found: list[Remeasured] = []
    for number, (workload, _) in enumerate(batches):
        for index in (number, number + 1):
            if index < len(batches) and index not in ahead:
                ahead[index] = [meter.job(batches[index][0], config) for config in batches[index][1]]
        jobs = ahead.pop(number)
        if not wait_for_builds(jobs, stop) or stop.requested:
            break
        results = _measured(meter, jobs)
        found += _keep(database, runner.target, workload, results)
        best = min((each.median_us for _, each in results if each.median_us is not None), default=None)
        for _, measurement in results:
            progress.measured(workload, measurement.status, best)
    return found


def _measured(meter: Meter, jobs: Sequence[Job]) -> list[tuple[Job, Measurement]]:
    """Of all jobs; those that were not built say why."""
    done = meter.finalists(jobs)
    built = {id(job) for job, _ in done}
    rest = [(job, meter.measure(job)) for job in jobs if id(job) not in built]
    return [(job, replace(measurement, stage=Stage.VERIFY)) for job, measurement in (*done, *rest)]


def _keep(
    database: Database | None, target: Target, workload: Workload, results: Sequence[tuple[Job, Measurement]]
) -> Iterator[Remeasured]:
    if database is None:
        yield from (Remeasured(workload, job.config, None, measurement) for job, measurement in results)
        return
    with database.session() as session:
        put_workload(session, workload)
        for job, measurement in results:
            put_config(session, workload, job.config)
            for artifact in job.artifacts:
                put_artifact(session, artifact, target)
            row = store.add_measurement(session, measurement)
            yield Remeasured(workload, job.config, row, measurement)
