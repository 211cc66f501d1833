"""How many samples are taken, of what length, and when there are enough: the same for one GPU and for a group."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from megatune_db.records import Status
from megatune_kernels.statistics import median_interval
from megatune_tuner.workers.gpu_messages import Outcome

SAMPLE_US = 200.0
"""Least length of a sample: the microsecond between two graphs is then half a percent of it."""
ASSUMED_BYTES_A_US = 4.0e6
ASSUMED_LAUNCH_US = 2.0
MOST_LAUNCHES = 4096
FIRST_SAMPLES = 7
"""The fewest whose range holds the median with 95 %, and one more."""
MORE_SAMPLES = 6
MOST_SAMPLES = 31
HALF_WIDTH = 0.01
"""Sampling ends when the 95 % interval of the median is within this share of it."""
SAMPLING_S = 0.5
HEAT_S = 0.2
PAUSE_S = 0.1
"""After a pause of this length the clocks may have dropped."""
WATCH_S = 1.0
"""The longest time between two looks for other processes on the GPU."""
WATCH_SHARE = 0.02
"""Share of the time that those looks may take, where they are quick enough to come more often."""
RETAKES = 3
FINAL_ROUNDS = 31
SEED = 20_240_229


@dataclass
class Samples:
    """What was taken of one job so far; µs a launch."""

    launches: int
    us: list[float] = field(default_factory=list)
    throttled: list[bool] = field(default_factory=list)
    clocks_mhz: list[int] = field(default_factory=list)

    def add(self, replays_us: Sequence[float], *, hot: bool, clock_mhz: int) -> None:
        """Keep the times of whole replays."""
        self.us += [us / self.launches for us in replays_us]
        self.throttled += [hot] * len(replays_us)
        self.clocks_mhz.append(clock_mhz)

    @property
    def wanted(self) -> int:
        """How many to take next."""
        return MORE_SAMPLES if self.us else FIRST_SAMPLES

    @property
    def are_enough(self) -> bool:
        """Whether the interval is narrow, or there are as many as there may be."""
        median, low, high = median_interval(self.us)
        return (high - low) / 2 <= HALF_WIDTH * median or len(self.us) + MORE_SAMPLES > MOST_SAMPLES

    def outcome(self, *, flush_bytes: int, measure_s: float) -> Outcome:
        """What a job that went well has come to."""
        return Outcome(
            Status.OK,
            samples_us=tuple(self.us),
            throttled=tuple(self.throttled) if any(self.throttled) else (),
            launches=self.launches,
            sm_clock_mhz=round(statistics.median(self.clocks_mhz)),
            flush_bytes=flush_bytes,
            measure_s=measure_s,
        )


def another_process(pid: int) -> str:
    """What is said when samples cannot be taken for another process."""
    return f"another process computes on this GPU (pid {pid}): stop it and run again"
