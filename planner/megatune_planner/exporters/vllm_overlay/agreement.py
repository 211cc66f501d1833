"""All ranks of a group change alike, or none does: ranks that decide unlike wait for one another for ever.

A collective would not do, because a rank that lacks the plan takes no part in it. So each rank writes what it found
into the store that the engine's processes share already, and the first verdict that is written there holds for all: the
store compares and sets in one step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

LIMIT_S = 300.0
"""Seconds. Ranks come here when their weights are loaded, which takes some longer than others."""

_POLL_S = 0.05
_ALIKE = "alike"
_FITS = "fits: "


def agree(
    store: Any, ranks: Sequence[int], rank: int, statement: str, problem: str, *, limit_s: float = LIMIT_S
) -> str:
    """Empty where every rank states the same and none has a problem; otherwise why not.

    :param store: a ``torch.distributed.Store`` of all the ranks.
    :param ranks: of the group.
    :param rank: this one.
    :param statement: what has to be the same everywhere.
    :param problem: why this rank cannot change; empty where it can.
    :param limit_s: seconds to wait for the other ranks.
    """
    group = "megatune/" + "-".join(map(str, ranks))
    store.set(f"{group}/{rank}", problem or f"{_FITS}{statement}")
    verdict = _verdict(store, group, ranks, time.monotonic() + limit_s)
    held: str = store.compare_set(f"{group}/verdict", "", verdict).decode()
    return "" if held == _ALIKE else held


def _verdict(store: Any, group: str, ranks: Sequence[int], deadline: float) -> str:
    for each in ranks:
        while not store.check([f"{group}/{each}"]):
            if time.monotonic() > deadline:
                return f"rank {each} has no such plan, or was too late"
            time.sleep(_POLL_S)
    said = {each: store.get(f"{group}/{each}").decode() for each in ranks}
    for each, text in said.items():
        if not text.startswith(_FITS):
            return f"rank {each}: {text}"
        if text != said[ranks[0]]:
            return f"rank {ranks[0]} has {said[ranks[0]].removeprefix(_FITS)}, rank {each} {text.removeprefix(_FITS)}"
    return _ALIKE
