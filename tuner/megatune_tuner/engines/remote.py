"""Engine ``remote``: workers that others start, with ``megatune worker``, on any machine that reaches the database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy.orm import Session

from megatune_db.queries import TargetRow
from megatune_db.queries import targets
from megatune_db.queries import workers
from megatune_db.records import Provenance
from megatune_kernels.target import Target
from megatune_tuner.engines.base import Engine
from megatune_tuner.engines.base import Site
from megatune_tuner.search import LEAST_A_TURN
from megatune_tuner.targets import target_of
from megatune_tuner.transactions import Transactions

LOOK_S = 0.5
"""How often a coordinator looks for its first worker."""


@dataclass(frozen=True)
class RemoteBench:
    """What is known of what a campaign's workers measure on: what the first of them said."""

    target: Target
    provenance: Provenance
    needs_artifacts: bool


class RemoteEngine(Engine):
    """Waits for results, and starts nothing.

    :param workers: how many are expected: jobs wait for all of them.
    """

    def __init__(self, workers: int) -> None:
        # A worker takes what is left of one turn, whose operands it has; so there is a turn for each, and the next.
        self.ahead = 2 * LEAST_A_TURN * workers

    def start(self, site: Site) -> None:
        """Nothing: workers find the campaign."""

    def check(self) -> Collection[int]:
        return ()

    def stop(self) -> None:
        """Nothing: workers notice."""

    def close(self) -> None:
        """Nothing."""


def first_worker(
    transactions: Transactions, campaign: str, stops: Callable[[], bool], check: Callable[[], object]
) -> RemoteBench:
    """What the campaign's workers measure on, as soon as there is one.

    :param check: raises where none will come.
    :raises KeyboardInterrupt: when a stop is requested while this waits.
    """

    def look(session: Session) -> tuple[TargetRow, Provenance] | None:
        for worker in workers(session):
            if worker.campaign == campaign and not worker.ended:
                (row,) = (row for row in targets(session, counted=False) if row.digest == worker.target)
                return row, worker.provenance
        return None

    while (found := transactions.read(look)) is None:
        if stops():
            raise KeyboardInterrupt
        check()
        threading.Event().wait(LOOK_S)
    return RemoteBench(target_of(found[0]), found[1], needs_artifacts=True)
