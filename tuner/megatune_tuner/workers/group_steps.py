"""Steps that all ranks of a group take together, and what every rank learns of each.

What one rank finds, such as a wrong result, all learn where they meet next, and leave the job together. So no rank ever
launches what waits for a rank that does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_tuner.workers.failures import failed
from megatune_tuner.workers.gpu_messages import Outcome
from megatune_tuner.workers.group_page import NAP_S
from megatune_tuner.workers.group_page import SPIN_S
from megatune_tuner.workers.group_page import Meeting
from megatune_tuner.workers.group_page import Page
from megatune_tuner.workers.group_rank import Rank

LOOK_S = 0.001
"""How often a rank that waits for its GPU looks whether another one failed."""
USABLE_S = 0.5
"""How long a GPU may be busy behind a failure before it counts as stuck."""
_REFUSED = "refused"
"""In the place of a status: a ``MegatuneError``."""

T = TypeVar("T")


class JobFailed(Exception):
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


class Steps:
    """The ranks of this process, in step with those of the others."""

    def __init__(self, page: Page, numbers: Sequence[int]) -> None:
        """:param numbers: the ranks of this process."""
        self.numbers = tuple(numbers)
        self.ranks: list[Rank] = []
        """Of this process, once they are made."""
        self.is_lost = False
        """Whether a GPU may be stuck, so that the processes of the group have to go."""
        self._meeting = Meeting(page, self.numbers)

    def make(self, make: Callable[[int], Rank]) -> None:
        """Make the ranks of this process.

        :raises JobFailed: on every rank, when one cannot be made.
        :raises MegatuneError: likewise.
        """

        def step() -> list[None]:
            for number in self.numbers:
                try:
                    self.ranks.append(make(number))
                except Exception as error:
                    raise _At(number, error) from error
            return self.all(None)

        self.together(step)

    def everywhere(self, act: Callable[[Rank], Any]) -> list[Any]:
        """Do what needs no other rank at each, and give what all ranks have from it; raises as ``together``.

        At the other ranks of a process too when it failed at one, as other processes do: operands that a rank keeps for
        the next job must not be older than another's.
        """

        def step() -> list[Any]:
            found, failures = [], []
            for number, rank in zip(self.numbers, self.ranks, strict=True):
                try:
                    found.append(act(rank))
                except Exception as error:  # noqa: BLE001 - it is raised below
                    failures.append(_At(number, error))
            if failures:
                raise failures[0] from failures[0].error
            return found

        return self.together(step)

    def begin(self, phase: str) -> None:
        """Say what all ranks of this process do from now on."""
        self._meeting.begin(phase)

    def together(self, step: Callable[[], list[Any]]) -> list[Any]:
        """Do a step, which gives a value for each rank of this process, and give those of all ranks.

        :raises JobFailed: on every rank, when the step failed on one.
        :raises MegatuneError: on every rank, when it was raised on one.
        """
        contents: list[Any]
        try:
            contents = [{"value": value} for value in step()]
        except Exception as error:  # noqa: BLE001 - whatever a config does to a rank is its result
            contents = self.all(self._failure(error))
        answers = self._meeting.exchange(dict(zip(self.numbers, contents, strict=True)))
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
            for rank in self.ranks:
                rank.drop()
        self.is_lost = any(failure["poisoned"] for failure in failures)
        raise JobFailed(Outcome(status, reason, poisoned=self.is_lost))

    def _failure(self, error: Exception) -> dict[str, Any]:
        """What the others have to know of an error of this process."""
        rank = self.numbers[0]
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

    def each(self, act: Callable[[Rank], T]) -> list[T]:
        """What an act gives for each rank of this process, none behind one at which it fails."""
        found = []
        for number, rank in zip(self.numbers, self.ranks, strict=True):
            try:
                found.append(act(rank))
            except Exception as error:
                raise _At(number, error) from error
        return found

    def all(self, value: T) -> list[T]:
        """The same value for every rank of this process."""
        return [value] * len(self.numbers)

    def wait(self) -> None:
        """Until the GPUs of this process have done what was enqueued, or another rank failed."""
        busy = dict(zip(self.numbers, self.ranks, strict=True))
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
                done = tuple(number for number in self.numbers if number not in busy)
                self._meeting.say(done, waits=True)
                if any("failed" in content for content in self._meeting.expected()):
                    raise _GaveUp
            if now - began > SPIN_S:
                time.sleep(NAP_S)

    def _is_usable(self) -> bool:
        """Whether the GPUs of this process come to rest without an error."""
        deadline = time.monotonic() + USABLE_S
        try:
            while not all(rank.is_idle() for rank in self.ranks):
                if time.monotonic() > deadline:
                    return False
                time.sleep(NAP_S)
        except Exception:  # noqa: BLE001 - the context is gone, whatever it says
            return False
        return True
