"""The contract of an engine: where the jobs of a campaign are measured."""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

from megatune_tuner.bell import Bell
from megatune_tuner.measuring import Bench
from megatune_tuner.measuring import Builder
from megatune_tuner.stopping import Stop
from megatune_tuner.transactions import Transactions
from megatune_tuner.worker import Artifacts


@dataclass(frozen=True)
class Site:
    """What an engine is told of the campaign that it serves."""

    transactions: Transactions
    """Of workers in this process: nothing but leases is written in them."""
    campaign_id: int
    artifacts: Artifacts
    work: Bell
    """Rings when a job can be leased."""
    delivered: Bell
    """To be rung for every result that this process can know of."""
    stop: Stop
    """Whether nothing more is to be measured."""


class Engine(ABC):
    """Has jobs leased and measured. What a job comes to is in the database, wherever it was measured."""

    ahead: int = 0
    """Jobs that should wait for workers, so that none of them waits for a job."""
    rings: bool = False
    """Whether results are delivered in this process, which then hears of them at once."""

    def launch(self) -> None:  # noqa: B027 - most have nothing to do
        """Start what can work before anything is known of the target."""

    def builder(self, bench: Bench) -> Builder | None:
        """What builds artifacts where the engine is; None: this process does, with processes of its own."""
        del bench
        return None

    @abstractmethod
    def start(self, site: Site) -> None:
        """Begin to measure."""

    @abstractmethod
    def check(self) -> Collection[int]:
        """Ids of workers that are known to have ended: what they lease need not wait for its time.

        :raises Exception: what ended measuring for good.
        """

    @abstractmethod
    def stop(self) -> None:
        """Lease nothing more, and wait for what is being measured here."""

    @abstractmethod
    def close(self) -> None:
        """Wait for nothing; calling again does nothing."""
