"""Operands that are kept for the next job of their workload, as long as there is room. Imports torch.

A campaign asks its cells in turns, and making operands with their float64 references takes longer than measuring a
config does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Hashable
from typing import Generic
from typing import TypeVar

import torch

LEAST_FREE = 0.5
"""Share of the GPU's memory that stays free for whoever else needs some: graphs, libraries, the next operands."""

T = TypeVar("T")


class Held(Generic[T]):
    """What was made for each key, the oldest use first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept for the key, or made now. Where memory runs out, it is made in the place of all others."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        # What was used to make the last ones is nobody's any more.
        torch.cuda.empty_cache()
        self._make_room(keep=0)
        try:
            made = make()
        except torch.cuda.OutOfMemoryError:
            if not self._kept:
                raise
            made = None
        if made is None:
            # Behind the handler, which keeps what the failed attempt had made.
            self.drop()
            made = make()
        self._kept[key] = made
        # Else checking it would fail for what is kept of others, and be taken for a fault of the config.
        self._make_room(keep=1)
        return made

    def _make_room(self, keep: int) -> None:
        """Give the oldest back while too little is free, but for the last ``keep``."""
        while len(self._kept) > keep and _free() < LEAST_FREE:
            self._kept.popitem(last=False)
            torch.cuda.empty_cache()

    def drop(self) -> None:
        """Give everything back."""
        self._kept.clear()
        torch.cuda.empty_cache()


def _free() -> float:
    free, whole = torch.cuda.mem_get_info()
    return float(free) / float(whole)
