"""What a runner needs to know of an operator's operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from megatune_kernels.operator import Workload


class Buffers(Protocol):
    """``copies`` distinct sets of operands of one workload on the current GPU, with float64 references."""

    copies: int

    def pointers(self, copy: int) -> tuple[int, ...]:
        """Device addresses in the order of the entry's parameters."""
        ...

    def refresh(self) -> None:
        """Put other random values into the operands that change every step, and compare with their references.

        Addresses stay, so captured graphs stay valid.
        """
        ...

    def poison(self) -> None:
        """Fill every output with NaN, so that what a kernel does not write is found."""
        ...

    def check(self) -> str:
        """Compare every copy's output with its float64 reference; empty when all are within the bound, else why
        not."""
        ...


@dataclass(frozen=True)
class Windows:
    """Launches of one part that together read everything that has to be cold, each another piece of it."""

    workload: Workload
    """As which the part's kernel is launched."""
    bytes: int
    """That each launch reads."""
    pointers: tuple[tuple[int, ...], ...]
    """Device addresses of each launch in the order of the entry's parameters."""


class ChainBuffers(Buffers, Protocol):
    """Operands of a config of several kernels; ``pointers`` has those of the operator's own kernel."""

    def part_pointers(self, part: str, copy: int) -> tuple[int, ...]:
        """Device addresses in the order of the parameters of that part's entry."""
        ...

    def windows(self, part: str, most_bytes: int | None = None) -> Windows | None:
        """All that has to be cold, of every part and copy, in pieces for this part, whole ones or of at most so many
        bytes.

        Results are of no use, but written where the part writes its own. None for a part that reads nothing of it.
        """
        ...


class GroupBuffers(Buffers, Protocol):
    """One rank's operands of a workload that a group of ranks runs together.

    All ranks make theirs from the same seed and refresh them equally often, so each knows what the others hold.
    ``copies`` is the number of launches after which a sequence may begin again: a graph holds a multiple of it.
    """

    sets: int
    """Distinct sets of what has to be cold: launch number n has set n % ``sets``. They divide ``copies``."""

    def scalars(self, copy: int) -> tuple[int, ...]:
        """32-bit integers of launch number ``copy`` that follow those of ``Launch.scalars``."""
        ...

    def fingerprint(self) -> int:
        """A hash of every output's bits that all ranks have: they are equal, or the ranks' results are not the same."""
        ...


class GroupChainBuffers(ChainBuffers, GroupBuffers, Protocol):
    """One rank's operands of a config of several kernels, some of which all ranks run together."""

    def part_scalars(self, part: str, copy: int) -> tuple[int, ...]:
        """32-bit integers of launch number ``copy`` that follow those of the part's ``Launch.scalars``."""
        ...
