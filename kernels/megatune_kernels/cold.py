"""How many sets of operands take turns so that each is cold when its turn comes. Imports torch."""

from __future__ import annotations

import math

import torch

FLUSHED = 2.0
"""Times the L2 of what is read between two launches over the same set."""


def sets_of(bytes_a_set: int, device: str) -> int:
    """At least two; no more without a GPU, where nothing is timed."""
    if torch.device(device).type != "cuda":
        return 2
    l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
    return max(2, math.ceil(FLUSHED * l2_bytes / bytes_a_set))
