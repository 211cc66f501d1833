"""All ranks of a group change alike, or none does: ranks that decide unlike wait for one another for ever.

A collective would not do, because a rank that lacks the plan takes no part in it. So ranks write into the store that
the engine's processes share already, in three steps: who they are (``gather``), whether their change is made and what
it is, and that they know that all others made theirs (``agree``). Nothing is kept before the last step. The first
verdict that is written on a step holds for all: the store compares and sets at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .tables import Differs

WAIT_S = 300.0
"""Seconds for all steps together. Ranks come here with their weights loaded, which takes some longer than others."""

_SHARES = {"here": 0.8, "made": 0.1, "known": 0.1}
"""Of the wait, by step: once all are here, none takes long."""
_LATE = {"here": "has no such plan, or was too late", "made": "was too late", "known": "did not confirm"}
_POLL_S = 0.05
_ALIKE = "alike"


class Meeting:
    """The ranks of one group, about one group of tables. For one use."""

    def __init__(self, store: Any, name: str, ranks: Sequence[int], rank: int) -> None:
        """
        :param store: a ``torch.distributed.Store`` of all the ranks.
        :param name: of the tables.
        :param ranks: of the group.
        :param rank: this one.
        """
        self._store = store
        self._place = f"megatune/{name}/{'-'.join(map(str, ranks))}"
        self._ranks, self._rank = ranks, rank
        self.wait_s = WAIT_S
        """Seconds to wait for the other ranks, all steps together."""
        self.doubt = ""
        """Why this rank cannot know whether the others kept their change; it keeps its own then."""
        self.missing = ""
        """Which rank did not come at all."""

    def gather(self, words: str) -> list[str]:
        """What every rank says of itself, in the order of ranks.

        :raises Differs: when one does not come, or has found that it cannot change.
        """
        self._say("here", words)
        return list(self._heard("here", unless="all made").values())

    def agree(self, statement: str, problem: str) -> str:
        """Empty where every rank made its change, states the same of it and knows that all did; otherwise why not.

        :param statement: what has to be the same everywhere.
        :param problem: why this rank cannot change; empty where it has.
        :raises Exception: of the store, while none of the ranks can have kept its change.
        """
        if problem:
            return self._settle("all made", f"rank {self._rank}: {problem}")
        self._say("made", statement)
        refused = self._step("made", "all made")
        if refused:
            return refused
        self._say("known", _ALIKE)
        # From here on the others may keep theirs, so that a rank whose store fails does best to keep its own.
        try:
            return self._step("known", "all known")
        except Exception as error:  # noqa: BLE001
            self.doubt = f"{type(error).__name__}: {error}"
            return ""

    def _step(self, step: str, verdict: str) -> str:
        """Whether all ranks say the same at a step, as all of them have it."""
        try:
            said = self._heard(step, unless=verdict)
        except Differs as late:
            return self._settle(verdict, str(late))
        first = self._ranks[0]
        odd = [
            f"rank {first} has {said[first]}, rank {each} {text}" for each, text in said.items() if text != said[first]
        ]
        return self._settle(verdict, odd[0] if odd else "")

    def _say(self, step: str, text: str) -> None:
        self._store.set(f"{self._place}/{step}/{self._rank}", text)

    def _heard(self, step: str, *, unless: str) -> dict[int, str]:
        """What each rank says at a step.

        :raises Differs: when one says nothing in time, or a verdict is there before it does.
        """
        deadline = time.monotonic() + _SHARES[step] * self.wait_s
        for each in self._ranks:
            while not self._store.check([f"{self._place}/{step}/{each}"]):
                if self._store.check([f"{self._place}/{unless}"]):
                    raise Differs("it is settled")
                if time.monotonic() > deadline:
                    late = f"rank {each} {_LATE[step]}"
                    self.missing = late if step == "here" else ""
                    raise Differs(late)
                time.sleep(_POLL_S)
        return {each: self._store.get(f"{self._place}/{step}/{each}").decode() for each in self._ranks}

    def _settle(self, what: str, verdict: str) -> str:
        """The verdict of all ranks; empty where they are alike."""
        held: str = self._store.compare_set(f"{self._place}/{what}", "", verdict or _ALIKE).decode()
        return "" if held == _ALIKE else held


class Alone:
    """A group of one rank agrees with itself."""

    def __init__(self) -> None:
        self.wait_s = 0.0
        self.doubt = self.missing = ""

    def gather(self, words: str) -> list[str]:
        return [words]

    def agree(self, statement: str, problem: str) -> str:
        return problem
