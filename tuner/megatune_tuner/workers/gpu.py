"""The process that drives one GPU: ``python -m megatune_tuner.workers.gpu FD NICE DEVICE``.

Imports torch and cuda.core. It knows nothing of campaigns and never sees the sampler; it may be killed at any moment.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from megatune_db.records import Status
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_tuner.workers.child import serve


@dataclass(frozen=True)
class Job:
    """One config to time. ``artifact`` is None for a baseline."""

    workload: Workload
    config: Config
    artifact: Artifact | None
    cold: bool
    graph: bool


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
    poisoned: bool = False
    """Whether the context is unusable now, so that the process must be replaced."""


@dataclass(frozen=True)
class Describe:
    """Ask for the target and for the bandwidth of a copy."""


@dataclass(frozen=True)
class Search:
    """Ask for the measurement of one job."""

    job: Job


@dataclass(frozen=True)
class Final:
    """Ask for interleaved measurements of jobs of one workload, in an order drawn from ``seed``."""

    jobs: tuple[Job, ...]
    seed: int


def main() -> None:
    from megatune_tuner.workers.gpu_timing import Bench

    bench = cache(Bench)
    index = int(sys.argv[3])

    def answer(message: Any) -> Any:
        match message:
            case Describe():
                return bench(index).device.target(), bench(index).copy_bytes_a_us()
            case Search(job):
                return bench(index).search(job)
            case Final(jobs, seed):
                return bench(index).final(jobs, seed)
        raise TypeError(f"not a message to the GPU worker: {message!r}")

    serve(answer)


if __name__ == "__main__":
    main()
