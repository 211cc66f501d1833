"""Taking every measurement of a recording into a database, to plan from all of it without searching."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from megatune_db import store
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_kernels.canonical import digest
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_tuner.recordings import Recording
from megatune_tuner.rows import put_config
from megatune_tuner.rows import put_target
from megatune_tuner.rows import put_workload
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.replay import ReplayRunner


def import_recording(
    session: Session,
    recording: Recording,
    provenance: Provenance | None = None,
    *,
    workloads: Sequence[Workload] | None = None,
) -> int:
    """Add a recording's measurements; return how many the database did not have.

    Sessions of finalists stay what they are: samples that were interleaved.

    :param provenance: ``measured`` where the campaign that made the recording is to go on in this database: it then
        measures none of them again. None: that of a replay.
    :param workloads: those to take in; None: all.
    """
    workloads = recording.workloads if workloads is None else workloads
    target = recording.about.target
    put_target(session, target)
    seen: set[tuple[str, str]] = set()
    for workload in workloads:
        put_workload(session, workload, recording.about.workload_facts.get(workload.digest))
        for config in recording.configs(workload):
            if (workload.operator, config.digest) not in seen:
                seen.add((workload.operator, config.digest))
                put_config(session, workload, config)
    rows = _measurements(recording, workloads)
    if provenance is not None:
        rows = (replace(measurement, provenance=provenance) for measurement in rows)
    return store.add_measurements(session, rows)


def _measurements(recording: Recording, workloads: Sequence[Workload]) -> Iterator[Measurement]:
    runner = ReplayRunner(recording)

    def request(workload: Workload, config: Config) -> Request:
        return Request(workload, config, recording.about.regime)

    for workload in workloads:
        for config in recording.configs(workload):
            yield runner.measure(request(workload, config))
        for finals in recording.finals(workload):
            # The same recording taken in again gives the same session, so that nothing is there twice.
            taken = sorted(str(recorded.measured_at) for recorded in finals.values())
            session = digest([workload.digest, taken, sorted(config.digest for config in finals)])
            for config, recorded in finals.items():
                measured = runner.replayed(request(workload, config), recorded)
                yield replace(measured, stage=Stage.FINAL, session=session)
