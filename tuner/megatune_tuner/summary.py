"""What a campaign comes to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from megatune_db.queries import OutcomeRow
from megatune_db.records import CampaignState
from megatune_db.records import Status


@dataclass(frozen=True)
class Summary:
    """What a campaign has come to."""

    name: str
    state: CampaignState
    interrupted: bool
    """Whether it was asked to stop before its end."""
    target: str
    provenance: str
    workloads: int
    measured: int
    """Measurements that this run took, finalists not counted."""
    finals: int
    """Measurements of finalists that this run took beside."""
    reused: int
    """Measurements that were there already and that this run counts on."""
    statuses: dict[Status, int]
    """All measurements of the campaign by status, over all its runs and with the finalists."""
    outcomes: list[OutcomeRow]
    wall_s: float
    measuring_s: float
    """Seconds over all runs of the campaign."""

    @property
    def speedup(self) -> float | None:
        """Geometric mean over the workloads of the baseline's time by the best's, where both are known."""
        ratios = [row.baseline_us / row.best_us for row in self.outcomes if row.baseline_us and row.best_us]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
