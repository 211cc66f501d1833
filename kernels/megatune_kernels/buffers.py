"""What a runner needs to know of an operator's operands."""

from __future__ import annotations

from typing import Protocol


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
