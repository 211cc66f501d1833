"""How a config becomes samples on a group of ranks: what they do together, step by step.

Every rank takes the same steps (``Steps``). What depends on a clock, such as how long to heat or whether time is up,
rank 0 decides. Needs no GPU: what a rank is made of is given (``Rank``).
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from typing import Any
from typing import TypeVar

from megatune_db.records import Status
from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.target import Target
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.gpu_messages import Outcome
from megatune_tuner.workers.group_messages import CONNECT
from megatune_tuner.workers.group_messages import IDLE
from megatune_tuner.workers.group_messages import PREPARE
from megatune_tuner.workers.group_messages import START
from megatune_tuner.workers.group_messages import Started
from megatune_tuner.workers.group_page import Page
from megatune_tuner.workers.group_rank import Loaded
from megatune_tuner.workers.group_rank import Rank
from megatune_tuner.workers.group_steps import JobFailed
from megatune_tuner.workers.group_steps import Steps
from megatune_tuner.workers.sampling import FINAL_ROUNDS
from megatune_tuner.workers.sampling import FIRST_SAMPLES
from megatune_tuner.workers.sampling import HEAT_S
from megatune_tuner.workers.sampling import PAUSE_S
from megatune_tuner.workers.sampling import RETAKES
from megatune_tuner.workers.sampling import SAMPLING_S
from megatune_tuner.workers.sampling import SEED
from megatune_tuner.workers.sampling import WATCH_S
from megatune_tuner.workers.sampling import WATCH_SHARE
from megatune_tuner.workers.sampling import Samples
from megatune_tuner.workers.sampling import another_process

HEAT_REPLAYS = 16
"""Between two meetings, while heating."""
FINAL_STRESS = 34
"""Verifications of each finalist with new values and skewed starts, each of a whole sequence of launches: two thousand
launches, where a sequence has 60."""
MOST_SKEW_S = 300e-6

T = TypeVar("T")


@dataclass
class _Ready:
    """A job that all ranks can replay."""

    job: Job
    parts: dict[Rank, Loaded]
    """Of the ranks of this process."""

    @property
    def first(self) -> Loaded:
        return next(iter(self.parts.values()))

    @property
    def launches(self) -> int:
        return self.first.launches

    @property
    def flush_bytes(self) -> int:
        return self.first.flush_bytes


class GroupBench:
    """The ranks of this process, in step with those of the others."""

    def __init__(self, page: Page, numbers: Sequence[int], make: Callable[[int], Rank]) -> None:
        """
        :param numbers: the ranks of this process.
        :param make: makes one of them.
        """
        self._make = make
        self._steps = Steps(page, numbers)
        self._last_busy = -math.inf
        self._next_watch = -math.inf
        self._kept: list[_Ready] = []
        self._alone_of: Workload | None = None
        self._alone_us: dict[Hashable, float] = {}
        """Of parts of the last workload's chains, µs a launch."""

    def start(self, describe: bool) -> Started:
        """Make the ranks and connect them.

        :raises MegatuneError: where the group cannot measure anything, naming the rank.
        """
        try:
            self._steps.begin(START)
            self._steps.make(self._make)
            cards = self._steps.everywhere(lambda rank: rank.card())
            self._steps.begin(CONNECT)
            self._steps.everywhere(lambda rank: rank.connect(cards))
            targets = self._steps.everywhere(lambda rank: rank.target().to_dict())
            if any(target != targets[0] for target in targets):
                raise MegatuneError(f"the GPUs of a group have to be alike: {_differing(targets)}")
            facts = self._steps.everywhere(lambda rank: rank.facts()) if describe else [{}]
        except JobFailed as error:
            raise MegatuneError(f"the group does not start: {error}") from error
        finally:
            self._steps.begin(IDLE)
        slowest = {name: min(each[name] for each in facts) for name in facts[0]}
        return Started(Target.from_dict(targets[0]), slowest)

    def search(self, job: Job) -> Outcome:
        """Verify, sample until the interval is narrow, verify again with other inputs."""
        started = time.monotonic()
        opened: list[_Ready] = []
        try:
            ready = self._load(job, opened)
            self._verify(ready)
            self._heat(ready)
            samples = Samples(ready.launches)
            deadline = time.monotonic() + SAMPLING_S
            while True:
                late = self._sample(ready, samples, samples.wanted, deadline)
                if samples.are_enough or late:
                    break
            self._verify(ready, again=True)
            parts_us = self._parts_us(ready)
            found = samples.outcome(flush_bytes=ready.flush_bytes, measure_s=time.monotonic() - started)
            return replace(found, parts_us=parts_us)
        except JobFailed as error:
            return replace(error.outcome, measure_s=time.monotonic() - started)
        finally:
            self._end(opened)

    def final(self, jobs: Sequence[Job], seed: int) -> list[Outcome]:
        """Sample all jobs in rounds, each round in a random order of its own, then stress each.

        A job that fails leaves the others in. One after which the group has to be replaced ends all: the others then
        have the status ``crash`` too, without being poisoned.
        """
        started = time.monotonic()
        order = random.Random(seed)
        outcomes: dict[int, Outcome] = {}
        ready: dict[int, _Ready] = {}
        opened: list[_Ready] = []
        i = 0
        try:
            for i, job in enumerate(jobs):
                with self._failing(i, outcomes):
                    one = self._load(job, opened)
                    self._verify(one)
                    ready[i] = one
            alive = list(ready)
            samples = {i: Samples(ready[i].launches) for i in alive}
            for i in alive:
                self._arm(ready[i])
                self._heat(ready[i])
            for _ in range(FINAL_ROUNDS):
                order.shuffle(alive)
                for i in alive:
                    self._arm(ready[i])
                    self._sample(ready[i], samples[i], 1)
            for i in sorted(alive):
                with self._failing(i, outcomes):
                    self._arm(ready[i])
                    self._verify(ready[i], again=True)
                    if jobs[i].is_compiled:
                        self._stress(ready[i], FINAL_STRESS, seed)
                    parts_us = self._parts_us(ready[i])
                    found = samples[i].outcome(flush_bytes=ready[i].flush_bytes, measure_s=time.monotonic() - started)
                    outcomes[i] = replace(found, parts_us=parts_us)
        except JobFailed as error:
            beside = Outcome(Status.CRASH, f"beside another that ended the group: {error.outcome.reason}")
            outcomes[i] = error.outcome
            return [outcomes.get(j, beside) for j in range(len(jobs))]
        finally:
            self._end(opened)
        return [outcomes[j] for j in range(len(jobs))]

    def stress(self, job: Job, replays: int, seed: int) -> Outcome:
        """Verify so often with new values and skewed starts; ``launches`` of the outcome are those of one replay."""
        started = time.monotonic()
        opened: list[_Ready] = []
        try:
            ready = self._load(job, opened)
            self._verify(ready)
            self._stress(ready, replays, seed)
            return Outcome(Status.OK, launches=ready.launches, measure_s=time.monotonic() - started)
        except JobFailed as error:
            return replace(error.outcome, measure_s=time.monotonic() - started)
        finally:
            self._end(opened)

    def _load(self, job: Job, opened: list[_Ready]) -> _Ready:
        self._steps.begin(PREPARE)
        ready = _Ready(job, {})
        opened.append(ready)

        def load(rank: Rank) -> str:
            part = rank.load(job)
            ready.parts[rank] = part
            return _decision(job, part.launches)

        decisions = self._steps.everywhere(load)
        if len(set(decisions)) > 1:
            said = ", ".join(f"rank {rank} {decision}" for rank, decision in enumerate(decisions))
            reason = f"the ranks disagree on what to launch, so nothing was: {said}"
            raise JobFailed(Outcome(Status.CRASH, reason, poisoned=True))

        def join() -> list[None]:
            self._each_part(ready, lambda rank, part: rank.join(part))
            return self._armed(ready)

        self._steps.together(join)
        return ready

    def _each_part(self, ready: _Ready, act: Callable[[Rank, Loaded], T]) -> list[T]:
        return self._steps.each(lambda rank: act(rank, ready.parts[rank]))

    def _arm(self, ready: _Ready) -> None:
        self._steps.begin("arm")
        self._steps.together(lambda: self._armed(ready))

    def _armed(self, ready: _Ready) -> list[None]:
        done = self._each_part(ready, lambda rank, part: rank.arm(part))
        self._steps.wait()
        return done

    def _verify(self, ready: _Ready, *, again: bool = False, skew: random.Random | None = None) -> None:
        """Launch over outputs that hold nothing, and look at them; ``again`` with other values.

        :param skew: when each rank starts.
        """
        if skew is None:
            self._steps.begin("verify after timing" if again else "verify")

        def verify(rank: Rank, part: Loaded) -> None:
            if skew is not None:
                time.sleep(MOST_SKEW_S * skew.random())
            rank.verify(part)

        def step() -> list[int]:
            if again:
                self._each_part(ready, lambda rank, part: rank.renew(part))
            self._each_part(ready, lambda rank, part: rank.spoil(part))
            self._each_part(ready, verify)
            self._steps.wait()
            return self._each_part(ready, lambda rank, part: rank.check(part))

        results = self._steps.together(step)
        if len(set(results)) > 1:
            said = ", ".join(f"rank {rank} {result:x}" for rank, result in enumerate(results))
            raise JobFailed(Outcome(Status.WRONG_RESULT, f"the ranks' outputs differ: {said}"))

    def _stress(self, ready: _Ready, replays: int, seed: int) -> None:
        self._arm(ready)
        self._steps.begin("stress")
        skew = random.Random(f"{seed} {self._steps.numbers}")
        for _ in range(replays):
            self._verify(ready, again=True, skew=skew)

    def _heat(self, ready: _Ready) -> None:
        """Replay until the clocks are up, if a GPU was idle long enough for them to drop."""
        idle = self._steps.together(lambda: self._steps.all(time.monotonic() - self._last_busy))
        if max(idle) < PAUSE_S:
            return
        self._steps.begin("heat")
        began = time.monotonic()

        def step() -> list[bool]:
            for _ in range(HEAT_REPLAYS):
                self._replay(ready)
            self._steps.wait()
            return self._steps.all(time.monotonic() - began >= HEAT_S)

        while not self._steps.together(step)[0]:
            pass
        self._last_busy = time.monotonic()

    def _sample(self, ready: _Ready, samples: Samples, count: int, deadline: float = math.inf) -> bool:
        """Take samples, again while another process computes on a GPU; a sample is the slowest rank's.

        Returns whether rank 0 has passed the deadline.

        :raises MegatuneError: when the other process stays.
        """
        for attempt in range(RETAKES):
            self._steps.begin("time")
            taken = self._steps.together(lambda: self._timed(ready, count, deadline))
            others = [(rank, pid) for rank, one in enumerate(taken) for pid in one["others"][:1]]
            if not others:
                slowest = [max(times) for times in zip(*(one["us"] for one in taken), strict=True)]
                hot, clock_mhz = any(one["hot"] for one in taken), min(one["mhz"] for one in taken)
                samples.add(slowest, hot=hot, clock_mhz=clock_mhz)
                return bool(taken[0]["late"])
            time.sleep(0.5 * (attempt + 1))
            self._heat(ready)
        raise MegatuneError(f"rank {others[0][0]}: {another_process(others[0][1])}")

    def _parts_us(self, ready: _Ready) -> tuple[tuple[str, float], ...]:
        """Of a chain, the time of each part alone by name: the slowest rank's median.

        What was timed over the same operands before is not timed again.
        """
        if ready.job.workload != self._alone_of:
            self._alone_of, self._alone_us = ready.job.workload, {}
        for alone in ready.first.alone:
            if alone.key not in self._alone_us:
                self._arm(ready)
                self._steps.begin("time parts")
                self._steps.together(partial(self._prepared, ready, alone.name))
                taken = self._steps.together(partial(self._timed, ready, FIRST_SAMPLES, math.inf, alone.name))
                slowest = [max(times) for times in zip(*(one["us"] for one in taken), strict=True)]
                self._alone_us[alone.key] = statistics.median(slowest) / alone.launches
        return tuple(sorted((alone.name, self._alone_us[alone.key]) for alone in ready.first.alone))

    def _prepared(self, ready: _Ready, part: str) -> list[None]:
        """On every rank before any launches it: what is made may wait for a GPU on which another rank polls."""
        return self._each_part(ready, lambda rank, loaded: rank.prepare(loaded, part))

    def _timed(self, ready: _Ready, count: int, deadline: float, part: str = "") -> list[dict[str, Any]]:
        # Behind the untimed one all ranks are in step, and no GPU is idle between an event and what follows it.
        self._replay(ready, part)
        for i in range(count):
            self._mark(2 * i)
            self._replay(ready, part)
            self._mark(2 * i + 1)
        self._steps.wait()
        began = self._last_busy = time.monotonic()
        watch = began >= self._next_watch

        def take(rank: Rank) -> dict[str, Any]:
            hot, mhz = rank.condition()
            others = rank.others() if watch else []
            return {"us": rank.times(count), "hot": hot, "mhz": mhz, "others": others, "late": began > deadline}

        taken = self._steps.each(take)
        if watch and not any(one["others"] for one in taken):
            ended = time.monotonic()
            self._next_watch = ended + min(WATCH_S, (ended - began) / WATCH_SHARE)
        return taken

    def _replay(self, ready: _Ready, part: str = "") -> None:
        """Once on every rank before again on any: a queue that is full makes the host wait for the GPU."""
        self._each_part(ready, lambda rank, loaded: rank.replay(loaded, part))

    def _mark(self, event: int) -> None:
        self._steps.each(lambda rank: rank.mark(event))

    @contextmanager
    def _failing(self, index: int, outcomes: dict[int, Outcome]) -> Iterator[None]:
        """Keep the outcome of a job that failed and left the group as it was."""
        try:
            yield
        except JobFailed as error:
            if error.outcome.poisoned:
                raise
            outcomes[index] = error.outcome

    def _end(self, opened: list[_Ready]) -> None:
        """Give back what was loaded, unless a GPU may be stuck: that would wait, and the process is about to go."""
        self._steps.begin(IDLE)
        if self._steps.is_lost:
            self._kept += opened
            return
        for ready in opened:
            for rank, part in ready.parts.items():
                with suppress(Exception):
                    rank.close(part)


def _decision(job: Job, launches: int) -> str:
    """A digest of what a rank is about to launch."""
    return digest(
        {
            "workload": job.workload.digest,
            "config": job.config.digest,
            "artifacts": job.keys,
            "graph": job.graph,
            "launches": launches,
            "seed": SEED,
        }
    )


def _differing(targets: Sequence[dict[str, Any]]) -> str:
    """Where the first target that differs from rank 0's does."""
    for rank, target in enumerate(targets):
        for part, fields in target.items():
            for name, value in fields.items():
                if value != targets[0][part][name]:
                    return f"{name} is {targets[0][part][name]} at rank 0 and {value} at rank {rank}"
    raise AssertionError("they are alike")
