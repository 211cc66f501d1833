"""The words of a measurement, and the record that runners return and the database keeps."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime


class Status(enum.StrEnum):
    """How a measurement ended."""

    OK = "ok"
    INFEASIBLE = "infeasible"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    WRONG_RESULT = "wrong_result"
    OUT_OF_MEMORY = "out_of_memory"
    CRASH = "crash"
    HANG = "hang"


class Provenance(enum.StrEnum):
    """Where a figure comes from; never mixed silently."""

    MEASURED = "measured"
    REPLAYED = "replayed"
    EMULATED = "emulated"
    IMPORTED = "imported"
    PREDICTED = "predicted"


APART = "apart-"
"""How the session of finalists begins whose samples do not pair, because they were not interleaved."""


class Stage(enum.StrEnum):
    """Why a measurement was taken: to search, again among the finalists of its workload, or to verify a plan."""

    SEARCH = "search"
    FINAL = "final"
    VERIFY = "verify"
    """Interleaved like finalists. No plan is made of these: they hold what a plan chose, and not what it chose from."""


class CampaignState(enum.StrEnum):
    """How far a campaign has come."""

    CREATED = "created"
    RUNNING = "running"
    STOPPED = "stopped"
    """Interrupted, or its budget ended: running it again goes on."""
    FINISHED = "finished"
    FAILED = "failed"


class TrialState(enum.StrEnum):
    """How far a trial has come."""

    ASKED = "asked"
    DONE = "done"
    STALE = "stale"
    """The process that asked is gone and no measurement answered; not a failure of the config."""
    LOST = "lost"
    """Given to several workers and answered by none: infrastructure failed, not the config."""


class JobState(enum.StrEnum):
    """How far a job of a campaign's queue has come."""

    BUILDING = "building"
    """Its artifacts are in the works."""
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    LOST = "lost"
    """No worker that it was given to has answered, as often as it is given out."""
    WITHDRAWN = "withdrawn"
    """Nobody waits for it any more."""


class PlanState(enum.StrEnum):
    """How far a plan has come."""

    DRAFT = "draft"
    APPROVED = "approved"
    EXPORTED = "exported"
    """In service: at most one plan for a target, model and worlds."""
    RETIRED = "retired"
    """Rejected, or no longer in service."""


class ReviewAction(enum.StrEnum):
    """What was done to a plan."""

    APPROVE = "approve"
    REJECT = "reject"
    EXPORT = "export"
    RETIRE = "retire"
    """Taken out of service; another plan took its place where the entry names one, else stock serves."""
    ROLL_BACK = "roll_back"
    """Taken out of service for an earlier plan, which the entry names."""
    RESTORE = "restore"
    """Put back into service in place of a later plan, which the entry names."""


class CampaignAction(enum.StrEnum):
    """What somebody did to a campaign that runs or has stopped."""

    STOP = "stop"
    """Asked it to end after its current measurement."""
    RESUME = "resume"
    """Had it go on."""


@dataclass(frozen=True)
class Regime:
    """Under which conditions samples were taken; samples of two regimes are never compared."""

    weights: str = "cold"
    """``cold``: operands rotate over at least twice the L2; ``warm``: one set of operands."""
    execution: str = "graph"
    """``graph``: replays of a CUDA graph; ``eager``: launches from the host."""

    def __post_init__(self) -> None:
        if self.weights not in ("cold", "warm") or self.execution not in ("graph", "eager"):
            raise ValueError(f"no such regime: {self.weights}, {self.execution}")

    def __str__(self) -> str:
        return f"{self.weights}-{self.execution}"

    @staticmethod
    def parse(text: str) -> Regime:
        weights, _, execution = text.partition("-")
        return Regime(weights, execution)


@dataclass(frozen=True)
class Measurement:
    """Samples of one (workload, config) on one target. Times are in microseconds a launch.

    Only ``ok`` carries samples and figures; every other status carries a reason.
    """

    workload: str
    """Digest."""
    config: str
    """Digest."""
    target: str
    """Digest."""
    regime: Regime
    stage: Stage
    status: Status
    provenance: Provenance
    session: str
    """Measurements of one session and of the stage ``final`` or ``verify`` were interleaved: sample i of one pairs
    with sample i of another."""
    measured_at: datetime
    """UTC, without a time zone."""
    samples_us: tuple[float, ...] = ()
    throttled: tuple[bool, ...] = ()
    """One flag a sample; empty when none was."""
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    """95 % interval of the median."""
    launches_a_sample: int = 0
    sm_clock_mhz: int | None = None
    """Median over the samples."""
    flush_bytes: int = 0
    """Bytes of distinct operands between two uses of the same set; 0 for warm weights."""
    reason: str = ""
    compile_s: float = 0.0
    """Seconds spent compiling for this measurement; 0 when the artifact was there."""
    measure_s: float = 0.0
    """Seconds for which the runner was busy with it, verification included."""
    artifact: str = field(default="")
    """Key of the artifact; empty for baselines."""
    parts_us: tuple[tuple[str, float], ...] = ()
    """Of a chain, the median time of each part alone, a launch in microseconds, by name: ``idle``, ``consumer1 cold``,
    … These are of the same job and no measurements of their own: they are compared within it alone."""
    revision: str = ""
    """Digest of the source of the operator's kernels: measurements of two revisions are never compared. Empty for
    baselines, and where it is not known."""

    def __post_init__(self) -> None:
        figures = (self.median_us, self.low_us, self.high_us)
        if self.status is Status.OK:
            if not self.samples_us or any(f is None or not math.isfinite(f) or f <= 0 for f in figures):
                raise ValueError("an ok measurement needs samples, a median and its interval, all positive")
            if self.low_us > self.high_us:  # type: ignore[operator]
                raise ValueError("the low end of the interval is above the high end")
            if not all(map(math.isfinite, self.samples_us)):
                raise ValueError("every sample must be a finite number of microseconds")
        elif self.samples_us or self.parts_us or any(f is not None for f in figures):
            raise ValueError(f"a measurement that ended {self.status} carries no figures")
        elif not self.reason:
            raise ValueError(f"a measurement that ended {self.status} needs a reason")
        if not all(math.isfinite(us) and us > 0 for _, us in self.parts_us):
            raise ValueError("times of parts are finite and positive")
        if self.throttled and len(self.throttled) != len(self.samples_us):
            raise ValueError("one throttled flag for each sample, or none")
        if not all(math.isfinite(seconds) and seconds >= 0 for seconds in (self.compile_s, self.measure_s)):
            raise ValueError("compile_s and measure_s are seconds, finite and not negative")
        if self.measured_at.tzinfo is not None:
            raise ValueError("measured_at is UTC without a time zone")
