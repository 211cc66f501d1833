"""How a config becomes samples on a group of ranks: what they do together, step by step.

Every rank takes the same steps. What depends on a clock, such as how long to heat or whether time is up, rank 0
decides; what one rank finds, such as a wrong result, all learn where they meet next, and leave the job together. So no
rank ever launches what waits for a rank that does not.

Needs no GPU: what a rank is made of, is given (``Rank``).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace
from typing import Any
from typing import Protocol
from typing import TypeVar

from megatune_db.records import Status
from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_kernels.target import Target
from megatune_tuner.workers.failures import failed
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.gpu_messages import Outcome
from megatune_tuner.workers.group_messages import CONNECT
from megatune_tuner.workers.group_messages import IDLE
from megatune_tuner.workers.group_messages import PREPARE
from megatune_tuner.workers.group_messages import START
from megatune_tuner.workers.group_messages import Started
from megatune_tuner.workers.group_page import NAP_S
from megatune_tuner.workers.group_page import SPIN_S
from megatune_tuner.workers.group_page import Meeting
from megatune_tuner.workers.group_page import Page
from megatune_tuner.workers.sampling import FINAL_ROUNDS
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
FINAL_STRESS = 50
"""Verifications of each finalist with new values and skewed starts, each of a whole sequence of launches."""
MOST_SKEW_S = 300e-6
LOOK_S = 0.001
"""How often a rank that waits for its GPU looks whether another one failed."""
USABLE_S = 0.5
"""How long a GPU may be busy behind a failure before it counts as stuck."""

_REFUSED = "refused"
"""In the place of a status: a ``MegatuneError``."""

T = TypeVar("T")


class Loaded(Protocol):
    """A job that a rank can replay."""

    launches: int
    """Of one timed replay."""


class Rank(Protocol):
    """One rank and its GPU. Whatever it enqueues runs in order; only ``is_idle`` says how far it is."""

    def card(self) -> dict[str, Any]:
        """What the other ranks need in order to reach this one, as JSON."""
        ...

    def connect(self, cards: Sequence[dict[str, Any]]) -> None:
        """Make the memory of every rank reachable."""
        ...

    def target(self) -> Target:
        """The group's target as this rank sees it."""
        ...

    def facts(self) -> dict[str, float]:
        """Figures of the target, their units in their names."""
        ...

    def load(self, job: Job) -> Loaded:
        """Prepare what needs no other rank, without launching anything that waits for one."""
        ...

    def join(self, loaded: Loaded) -> None:
        """Prepare what all ranks prepare together."""
        ...

    def arm(self, loaded: Loaded) -> None:
        """Enqueue what puts the workspace into its first state."""
        ...

    def renew(self, loaded: Loaded) -> None:
        """Put other values into the operands, the same on all ranks."""
        ...

    def spoil(self, loaded: Loaded) -> None:
        """Enqueue what makes outputs wrong that are not written."""
        ...

    def verify(self, loaded: Loaded) -> None:
        """Enqueue the launches whose outputs ``check`` looks at."""
        ...

    def check(self, loaded: Loaded) -> int:
        """A hash of the outputs; raises ``WrongResult``."""
        ...

    def replay(self, loaded: Loaded) -> None:
        """Enqueue what is timed, once."""
        ...

    def mark(self, event: int) -> None:
        """Enqueue an event."""
        ...

    def times(self, count: int) -> list[float]:
        """Between events 0 and 1, 2 and 3, and so on, in µs."""
        ...

    def is_idle(self) -> bool:
        """Whether all that was enqueued is done; raises what went wrong on the GPU."""
        ...

    def condition(self) -> tuple[bool, int]:
        """Whether the clocks are held down, and the SM clock in MHz."""
        ...

    def others(self) -> list[int]:
        """Ids of other processes that compute on this GPU."""
        ...

    def drop(self) -> None:
        """Give back operands that are kept for the next job of the same workload."""
        ...

    def close(self, loaded: Loaded) -> None:
        """Give back what ``load`` and ``join`` made."""
        ...


class _Failed(Exception):
    """A job ended for all ranks."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class _At(Exception):
    """An error of one rank of this process."""

    def __init__(self, rank: int, error: Exception) -> None:
        super().__init__(str(error))
        self.rank = rank
        self.error = error


class _GaveUp(Exception):
    """Another rank failed, so what this one waits for will not come."""


@dataclass
class _Ready:
    """A job that all ranks can replay."""

    job: Job
    parts: list[Loaded]
    """By rank of this process."""

    @property
    def launches(self) -> int:
        return self.parts[0].launches


class GroupBench:
    """The ranks of this process, in step with those of the others."""

    def __init__(self, page: Page, numbers: Sequence[int], make: Callable[[int], Rank]) -> None:
        """
        :param numbers: the ranks of this process.
        :param make: makes one of them.
        """
        self._numbers = tuple(numbers)
        self._make = make
        self._meeting = Meeting(page, self._numbers)
        self._ranks: list[Rank] = []
        self._last_busy = -math.inf
        self._next_watch = -math.inf
        self._is_lost = False
        self._kept: list[_Ready] = []

    def start(self, describe: bool) -> Started:
        """Make the ranks and connect them.

        :raises MegatuneError: where the group cannot measure anything, naming the rank.
        """
        try:
            self._begin(START)
            cards = self._together(self._made)
            self._begin(CONNECT)
            self._together(lambda: self._each(lambda rank: rank.connect(cards)))
            targets = self._together(lambda: self._each(lambda rank: rank.target().to_dict()))
            if any(target != targets[0] for target in targets):
                raise MegatuneError(f"the GPUs of a group have to be alike: {_differing(targets)}")
            facts = self._together(lambda: self._each(lambda rank: rank.facts())) if describe else [{}]
        except _Failed as error:
            raise MegatuneError(f"the group does not start: {error}") from error
        finally:
            self._begin(IDLE)
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
            return samples.outcome(flush_bytes=0, measure_s=time.monotonic() - started)
        except _Failed as error:
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
                    if jobs[i].artifact is not None:
                        self._stress(ready[i], FINAL_STRESS, seed)
                    outcomes[i] = samples[i].outcome(flush_bytes=0, measure_s=time.monotonic() - started)
        except _Failed as error:
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
        except _Failed as error:
            return replace(error.outcome, measure_s=time.monotonic() - started)
        finally:
            self._end(opened)

    def _load(self, job: Job, opened: list[_Ready]) -> _Ready:
        self._begin(PREPARE)
        ready = _Ready(job, [])
        opened.append(ready)

        def load(rank: Rank) -> str:
            part = rank.load(job)
            ready.parts.append(part)
            return _decision(job, part.launches)

        decisions = self._together(lambda: self._each(load))
        if len(set(decisions)) > 1:
            said = ", ".join(f"rank {rank} {decision}" for rank, decision in enumerate(decisions))
            reason = f"the ranks disagree on what to launch, so nothing was: {said}"
            raise _Failed(Outcome(Status.CRASH, reason, poisoned=True))

        def join() -> list[None]:
            self._each_part(ready, lambda rank, part: rank.join(part))
            return self._armed(ready)

        self._together(join)
        return ready

    def _arm(self, ready: _Ready) -> None:
        self._begin("arm")
        self._together(lambda: self._armed(ready))

    def _armed(self, ready: _Ready) -> list[None]:
        done = self._each_part(ready, lambda rank, part: rank.arm(part))
        self._wait()
        return done

    def _verify(self, ready: _Ready, *, again: bool = False, skew: random.Random | None = None) -> None:
        """Launch over outputs that hold nothing, and look at them; ``again`` with other values.

        :param skew: when each rank starts.
        """
        if skew is None:
            self._begin("verify after timing" if again else "verify")

        def verify(rank: Rank, part: Loaded) -> None:
            if skew is not None:
                time.sleep(MOST_SKEW_S * skew.random())
            rank.verify(part)

        def step() -> list[int]:
            if again:
                self._each_part(ready, lambda rank, part: rank.renew(part))
            self._each_part(ready, lambda rank, part: rank.spoil(part))
            self._each_part(ready, verify)
            self._wait()
            return self._each_part(ready, lambda rank, part: rank.check(part))

        results = self._together(step)
        if len(set(results)) > 1:
            said = ", ".join(f"rank {rank} {result:x}" for rank, result in enumerate(results))
            raise _Failed(Outcome(Status.WRONG_RESULT, f"the ranks' outputs differ: {said}"))

    def _stress(self, ready: _Ready, replays: int, seed: int) -> None:
        self._arm(ready)
        self._begin("stress")
        skew = random.Random(f"{seed} {self._numbers}")
        for _ in range(replays):
            self._verify(ready, again=True, skew=skew)

    def _heat(self, ready: _Ready) -> None:
        """Replay until the clocks are up, if a GPU was idle long enough for them to drop."""
        idle = self._together(lambda: self._all(time.monotonic() - self._last_busy))
        if max(idle) < PAUSE_S:
            return
        self._begin("heat")
        began = time.monotonic()

        def step() -> list[bool]:
            for _ in range(HEAT_REPLAYS):
                self._replay(ready)
            self._wait()
            return self._all(time.monotonic() - began >= HEAT_S)

        while not self._together(step)[0]:
            pass
        self._last_busy = time.monotonic()

    def _sample(self, ready: _Ready, samples: Samples, count: int, deadline: float = math.inf) -> bool:
        """Take samples, again while another process computes on a GPU; a sample is the slowest rank's.

        Returns whether rank 0 has passed the deadline.

        :raises MegatuneError: when the other process stays.
        """
        for attempt in range(RETAKES):
            self._begin("time")
            taken = self._together(lambda: self._timed(ready, count, deadline))
            others = [(rank, pid) for rank, one in enumerate(taken) for pid in one["others"][:1]]
            if not others:
                slowest = [max(times) for times in zip(*(one["us"] for one in taken), strict=True)]
                hot, clock_mhz = any(one["hot"] for one in taken), min(one["mhz"] for one in taken)
                samples.add(slowest, hot=hot, clock_mhz=clock_mhz)
                return bool(taken[0]["late"])
            time.sleep(0.5 * (attempt + 1))
            self._heat(ready)
        raise MegatuneError(f"rank {others[0][0]}: {another_process(others[0][1])}")

    def _timed(self, ready: _Ready, count: int, deadline: float) -> list[dict[str, Any]]:
        # Behind the untimed one all ranks are in step, and no GPU is idle between an event and what follows it.
        self._replay(ready)
        for i in range(count):
            self._mark(2 * i)
            self._replay(ready)
            self._mark(2 * i + 1)
        self._wait()
        began = self._last_busy = time.monotonic()
        watch = began >= self._next_watch

        def take(rank: Rank) -> dict[str, Any]:
            hot, mhz = rank.condition()
            others = rank.others() if watch else []
            return {"us": rank.times(count), "hot": hot, "mhz": mhz, "others": others, "late": began > deadline}

        taken = self._each(take)
        if watch and not any(one["others"] for one in taken):
            ended = time.monotonic()
            self._next_watch = ended + min(WATCH_S, (ended - began) / WATCH_SHARE)
        return taken

    def _replay(self, ready: _Ready) -> None:
        """Once on every rank before again on any: a queue that is full makes the host wait for the GPU."""
        self._each_part(ready, lambda rank, part: rank.replay(part))

    def _mark(self, event: int) -> None:
        self._each(lambda rank: rank.mark(event))

    def _together(self, step: Callable[[], list[Any]]) -> list[Any]:
        """Do a step, which gives a value for each rank of this process, and give those of all ranks.

        :raises _Failed: on every rank, when the step failed on one.
        :raises MegatuneError: on every rank, when it was raised on one.
        """
        contents: list[Any]
        try:
            contents = [{"value": value} for value in step()]
        except Exception as error:  # noqa: BLE001 - whatever a config does to a rank is its result
            contents = self._all(self._failure(error))
        answers = self._meeting.exchange(dict(zip(self._numbers, contents, strict=True)))
        failures = [answer["failed"] for answer in answers if "failed" in answer]
        if not failures:
            return [answer["value"] for answer in answers]
        # Those that gave up say nothing of why.
        first = next((failure for failure in failures if failure["status"] is not None), failures[0])
        reason = f"rank {first['rank']}: {first['reason']}"
        if first["status"] == _REFUSED:
            raise MegatuneError(reason)
        status = Status(first["status"] or Status.CRASH)
        if status is Status.OUT_OF_MEMORY:
            # All ranks' operands have seen equally many changes of values, or none has any.
            for rank in self._ranks:
                rank.drop()
        self._is_lost = any(failure["poisoned"] for failure in failures)
        raise _Failed(Outcome(status, reason, poisoned=self._is_lost))

    def _failure(self, error: Exception) -> dict[str, Any]:
        """What the others have to know of an error of this process."""
        rank = self._numbers[0]
        if isinstance(error, _At):
            rank, error = error.rank, error.error
        status: str | None = None
        reason, poisoned = str(error), False
        if isinstance(error, MegatuneError):
            status = _REFUSED
        elif isinstance(error, _GaveUp):
            poisoned = not self._is_usable()
        else:
            outcome = failed(error, 0.0, self._is_usable)
            status, reason, poisoned = outcome.status, outcome.reason, outcome.poisoned
        return {"failed": {"rank": rank, "status": status, "reason": reason, "poisoned": poisoned}}

    def _made(self) -> list[dict[str, Any]]:
        for number in self._numbers:
            try:
                self._ranks.append(self._make(number))
            except Exception as error:
                raise _At(number, error) from error
        return self._each(lambda rank: rank.card())

    def _each(self, act: Callable[[Rank], T]) -> list[T]:
        """What an act gives for each rank of this process."""
        found = []
        for number, rank in zip(self._numbers, self._ranks, strict=True):
            try:
                found.append(act(rank))
            except Exception as error:
                raise _At(number, error) from error
        return found

    def _each_part(self, ready: _Ready, act: Callable[[Rank, Loaded], T]) -> list[T]:
        parts = dict(zip(self._ranks, ready.parts, strict=True))
        return self._each(lambda rank: act(rank, parts[rank]))

    def _all(self, value: T) -> list[T]:
        """The same value for every rank of this process."""
        return [value] * len(self._numbers)

    def _wait(self) -> None:
        """Until the GPUs of this process have done what was enqueued, or another rank failed."""
        busy = dict(zip(self._numbers, self._ranks, strict=True))
        began = time.monotonic()
        looked = began
        while True:
            idle = []
            for number, rank in busy.items():
                try:
                    if rank.is_idle():
                        idle.append(number)
                except Exception as error:
                    raise _At(number, error) from error
            for number in idle:
                del busy[number]
            if not busy:
                return
            now = time.monotonic()
            if now - looked >= LOOK_S:
                looked = now
                done = tuple(number for number in self._numbers if number not in busy)
                self._meeting.say(done, waits=True)
                if any("failed" in content for content in self._meeting.expected()):
                    raise _GaveUp
            if now - began > SPIN_S:
                time.sleep(NAP_S)

    def _is_usable(self) -> bool:
        """Whether the GPUs of this process come to rest without an error."""
        deadline = time.monotonic() + USABLE_S
        try:
            while not all(rank.is_idle() for rank in self._ranks):
                if time.monotonic() > deadline:
                    return False
                time.sleep(NAP_S)
        except Exception:  # noqa: BLE001 - the context is gone, whatever it says
            return False
        return True

    @contextmanager
    def _failing(self, index: int, outcomes: dict[int, Outcome]) -> Iterator[None]:
        """Keep the outcome of a job that failed and left the group as it was."""
        try:
            yield
        except _Failed as error:
            if error.outcome.poisoned:
                raise
            outcomes[index] = error.outcome

    def _begin(self, phase: str) -> None:
        self._meeting.begin(phase)

    def _end(self, opened: list[_Ready]) -> None:
        """Give back what was loaded, unless a GPU may be stuck: that would wait, and the process is about to go."""
        self._begin(IDLE)
        if self._is_lost:
            self._kept += opened
            return
        for ready in opened:
            for rank, part in zip(self._ranks, ready.parts, strict=False):
                with suppress(Exception):
                    rank.close(part)


def _decision(job: Job, launches: int) -> str:
    """A digest of what a rank is about to launch."""
    return digest(
        {
            "workload": job.workload.digest,
            "config": job.config.digest,
            "artifact": job.artifact.key if job.artifact is not None else None,
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
