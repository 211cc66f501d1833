"""Ranks that need no GPU: real processes, the real steps that ranks take together, and faults where a config says so.

A config's variant is what goes wrong, its parameter ``rank`` at whom, by default at rank 1; the others do well.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain
from megatune_tuner.workers.failures import Infeasible
from megatune_tuner.workers.failures import WrongResult
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.group_rank import AlonePart

TARGET = Target(Hardware("A GPU", "sm_90a", "0000", 132, 1 << 20, 1 << 30, "none"), Toolchain("1", "13", "4", "2"))
LAUNCHES = 120
LAUNCH_US = 5.0
A_RANK_US = 0.25
"""By so much each rank is slower than the one before."""
STARTING = "MEGATUNE_TEST_STARTING"
"""Names a file of one word and a rank: how the next process of that rank starts. It is read once."""
SLEEP_S = 600.0
ALONE = (AlonePart("consumer1", "consumer1", LAUNCHES), AlonePart("reduction", "reduction", LAUNCHES // 2))
POLLING: set[str] = set()
"""Parts of the last job that a rank of this process has launched."""


@dataclass
class Operands:
    """Of one workload, kept for its next job."""

    workload: Workload
    values: int = 0
    """Counts the changes of values, as all ranks have to."""


@dataclass
class Loaded:
    job: Job
    operands: Operands
    launches: int = LAUNCHES
    flush_bytes: int = 0
    alone: tuple[AlonePart, ...] = ()
    is_renewed: bool = False
    poisoned: bool = False
    prepared: set[str] = field(default_factory=set)


class FakeRank:
    def __init__(self, number: int, world: int, *, first_gpu: int, shared: bool, store: str) -> None:
        self.number = number
        self.world = world
        self.shared = shared
        self.busy = False
        self.gone = False
        self.diary: list[str | int] = []
        self.held: Operands | None = None
        self._start()

    def _start(self) -> None:
        path = Path(os.environ.get(STARTING, "/nowhere"))
        if not path.exists():
            return
        word, rank = path.read_text().split()
        if int(rank) != self.number:
            return
        path.unlink()
        match word:
            case "sleep":
                time.sleep(SLEEP_S)
            case "abort":
                os.abort()
            case "refuse":
                raise MegatuneError("too little memory is free")

    def card(self) -> dict[str, Any]:
        return {"number": self.number}

    def connect(self, cards: Sequence[dict[str, Any]]) -> None:
        assert [card["number"] for card in cards] == list(range(self.world))

    def target(self) -> Target:
        from dataclasses import replace

        links = "emulated" if self.shared else "fake"
        return replace(TARGET, hardware=replace(TARGET.hardware, world=self.world, links=links))

    def facts(self) -> dict[str, float]:
        return {"link_bytes_a_us": 100.0 - self.number}

    def load(self, job: Job) -> Loaded:
        if self.held is None or self.held.workload != job.workload:
            self.held = Operands(job.workload)
        loaded = Loaded(job, self.held, alone=ALONE if job.config.variant == "chain" else ())
        POLLING.clear()
        match self._fault(job):
            case "infeasible":
                raise Infeasible("no room for so many blocks")
            case "memory":
                raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY")
            case "stall":
                time.sleep(SLEEP_S)
            case "disagree":
                loaded.launches += 60
        return loaded

    def join(self, loaded: Loaded) -> None:
        """Nothing to connect."""

    def arm(self, loaded: Loaded) -> None:
        """Nothing to arm."""

    def renew(self, loaded: Loaded) -> None:
        loaded.operands.values += 1
        loaded.is_renewed = True

    def spoil(self, loaded: Loaded) -> None:
        loaded.poisoned = True

    def verify(self, loaded: Loaded) -> None:
        loaded.poisoned = False
        match self._fault(loaded.job):
            case "hang":
                self.busy = True
            case "crash":
                os.abort()
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "illegal":
                self.gone = True
        if loaded.job.config.variant == "abandon":
            self.gone = self._fault(loaded.job) is not None
            self.busy = not self.gone

    def check(self, loaded: Loaded) -> int:
        assert not loaded.poisoned
        match self._fault(loaded.job):
            case "wrong":
                raise WrongResult("3 of 8 outputs differ")
            case "late":
                if loaded.is_renewed:
                    raise WrongResult("3 of 8 outputs differ with other values")
            case "differ":
                return -1
        return 0 if loaded.job.config.variant == "differ" else loaded.operands.values

    def prepare(self, loaded: Loaded, part: str) -> None:
        assert part not in POLLING, "what is made may wait for the GPU, on which another rank's launches wait for these"
        loaded.prepared.add(part)

    def replay(self, loaded: Loaded, part: str = "") -> None:
        if part:
            assert part in loaded.prepared
            POLLING.add(part)
        self.diary.append(part or "replay")

    def mark(self, event: int) -> None:
        self.diary.append(event)

    def times(self, count: int) -> list[float]:
        what = self.diary[-2]
        timed = [each for i in range(count) for each in (2 * i, what, 2 * i + 1)]
        assert self.diary[-len(timed) - 1 :] == [what, *timed]
        self.diary.clear()
        return [LAUNCHES * (LAUNCH_US + A_RANK_US * self.number)] * count

    def is_idle(self) -> bool:
        if self.gone:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
        return not self.busy

    def condition(self) -> tuple[bool, int]:
        return False, 1980 - self.number

    def others(self) -> list[int]:
        return []

    def drop(self) -> None:
        self.held = None

    def close(self, loaded: Loaded) -> None:
        """Nothing is held."""

    def _fault(self, job: Job) -> str | None:
        return job.config.variant if job.config.params.get("rank", 1) == self.number else None
