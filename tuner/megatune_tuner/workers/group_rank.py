"""What a rank of a group is made of: the GPU's side of the steps that ranks take together."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import Protocol

from megatune_kernels.target import Target
from megatune_tuner.workers.gpu_messages import Job


@dataclass(frozen=True)
class AlonePart:
    """Launches of one part and nothing else."""

    name: str
    key: Hashable
    """Equal for launches that take equally long over the same operands."""
    launches: int


class Loaded(Protocol):
    """A job that a rank can replay."""

    launches: int
    """Of one timed replay."""
    flush_bytes: int
    """Of operands that are cold, between two launches over the same set; 0 without."""
    alone: tuple[AlonePart, ...]
    """Parts of a chain that are also timed alone, the same on all ranks."""


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

    def prepare(self, loaded: Loaded, part: str) -> None:
        """Make what replaying one of ``alone`` needs; nothing is enqueued."""
        ...

    def replay(self, loaded: Loaded, part: str = "") -> None:
        """Enqueue what is timed, or one of ``alone`` that is prepared, once."""
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
