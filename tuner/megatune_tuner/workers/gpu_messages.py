"""What the coordinator and the process that drives a GPU say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from megatune_db.records import Status
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config


@dataclass(frozen=True)
class Job:
    """One config to time. ``artifact`` is None for what a library launches."""

    workload: Workload
    config: Config
    artifact: Artifact | None
    cold: bool
    graph: bool
    parts: tuple[Artifact, ...] = ()
    """Of a chain, the artifacts of ``Operator.parts``; ``artifact`` is None then."""

    @property
    def is_compiled(self) -> bool:
        """Whether kernels of its own are launched, not what a library has."""
        return self.artifact is not None or bool(self.parts)

    @property
    def keys(self) -> list[str]:
        """Of all artifacts."""
        return [artifact.key for artifact in (*([self.artifact] if self.artifact else []), *self.parts)]


@dataclass(frozen=True)
class Outcome:
    """What became of a job; times in µs a launch."""

    status: Status
    reason: str = ""
    samples_us: tuple[float, ...] = ()
    throttled: tuple[bool, ...] = ()
    launches: int = 0
    sm_clock_mhz: int | None = None
    flush_bytes: int = 0
    measure_s: float = 0.0
    parts_us: tuple[tuple[str, float], ...] = ()
    """Of a chain, the median time of each part alone."""
    poisoned: bool = False
    """Whether the context is unusable now, so that the process must be replaced."""


@dataclass(frozen=True)
class Describe:
    """Ask for the target and for the bandwidth of a copy."""


@dataclass(frozen=True)
class Start:
    """Ask whether the GPU can be used, so that the start of the process is not in the first measurement's time."""


@dataclass(frozen=True)
class Search:
    """Ask for the measurement of one job."""

    job: Job


@dataclass(frozen=True)
class Final:
    """Ask for interleaved measurements of jobs of one workload, in an order drawn from ``seed``."""

    jobs: tuple[Job, ...]
    seed: int
