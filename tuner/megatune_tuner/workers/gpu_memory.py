"""Memory that a graph's calls of a library write to between their results. Imports torch.

A library allocates it while it is captured and gives it back at once; the graph writes to it at every replay. torch
knows nothing of a graph that it did not make, so it would give the same memory to others, for example to the references
that results are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Apart:
    """A part of the GPU's memory that nobody else is given until it is closed."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.MemPool()

    @contextmanager
    def used(self) -> Iterator[None]:
        """What this thread allocates comes from there."""
        with torch.cuda.use_mem_pool(self._pool):
            yield

    def close(self) -> None:
        """Behind the graphs that were captured with it."""
        self._pool = None
