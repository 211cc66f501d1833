"""Runner ``replay``: answers from a recording, on any machine."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from megatune_db.records import APART
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.statistics import median_interval
from megatune_kernels.target import Target
from megatune_tuner.recordings import Recorded
from megatune_tuner.recordings import Recording
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner


class ReplayRunner(Runner):
    """Gives the recorded status and samples; what was not recorded is infeasible here.

    The target is the recording's, the time of a measurement that of the recorded one, and the provenance
    ``replayed``; what emulated ranks recorded stays ``emulated``. The runner is never busy: ``measure_s`` is 0.
    """

    needs_artifacts = False

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.provenance = Provenance.EMULATED if recording.is_emulated else Provenance.REPLAYED

    @property
    def target(self) -> Target:
        return self._recording.about.target

    def measure(self, request: Request) -> Measurement:
        return self.replayed(request, self._found(request))

    def finalists(self, requests: Sequence[Request]) -> list[Measurement]:
        """The samples of the latest recorded session that has every request.

        Where none has, the samples taken to search, cut to equally many: those are of one target and regime, but were
        not interleaved, which their session says.
        """
        if not requests:
            return []
        found = [self._found(request) for request in requests]
        kind = APART
        for session in self._recording.finals(requests[0].workload):
            if all(
                request.config in session and request.regime == self._recording.about.regime for request in requests
            ):
                found = [session[request.config] for request in requests]
                kind = ""
        count = min((len(one.samples_us) for one in found if one.status is Status.OK), default=0)
        session_id = f"{kind}{uuid.uuid4().hex}"
        pairs = zip(requests, found, strict=True)
        return [self._answer(request, one, Stage.FINAL, session_id, count) for request, one in pairs]

    def replayed(self, request: Request, found: Recorded) -> Measurement:
        """What was recorded, as a measurement of the stage ``search`` and a session of its own."""
        return self._answer(request, found, Stage.SEARCH, uuid.uuid4().hex)

    def close(self) -> None:
        """Nothing is held."""

    def _found(self, request: Request) -> Recorded:
        found = None
        if request.regime == self._recording.about.regime:
            found = self._recording.search(request.workload, request.config)
        return found or self._recording.missing(request.workload, request.config, request.regime)

    def _answer(
        self, request: Request, found: Recorded, stage: Stage, session: str, count: int | None = None
    ) -> Measurement:
        samples, throttled = found.samples_us[:count], found.throttled[:count]
        figures = (found.median_us, found.low_us, found.high_us)
        if samples != found.samples_us:
            figures = median_interval(samples)
        return Measurement(
            workload=request.workload.digest,
            config=request.config.digest,
            target=self.target.digest,
            regime=request.regime,
            stage=stage,
            status=found.status,
            provenance=self.provenance,
            session=session,
            measured_at=found.measured_at,
            samples_us=samples,
            throttled=throttled,
            median_us=figures[0],
            low_us=figures[1],
            high_us=figures[2],
            launches_a_sample=found.launches_a_sample,
            sm_clock_mhz=found.sm_clock_mhz,
            flush_bytes=found.flush_bytes,
            reason=found.reason,
            revision=found.revision,
            parts_us=found.parts_us,
        )
