"""What campaigns have found, and the words that several pages say it in."""

from __future__ import annotations

import math

from megatune_dashboard.app.context import Context
from megatune_dashboard.app.text import shortened
from megatune_db import queries
from megatune_db.queries import CampaignRow
from megatune_db.queries import OutcomeRow
from megatune_db.queries import TargetRow
from megatune_kernels.operator import operators


def outcomes_of(context: Context, row: CampaignRow) -> list[OutcomeRow]:
    """The best of each workload against its fastest baseline."""
    # They follow from the campaign's trials and measurements alone, neither of which is ever changed.
    version = (tuple(sorted(row.trials.items())), tuple(sorted(row.statuses.items())))
    return context.read_at(version, queries.outcomes, row.id, baseline_names())


def baseline_names() -> tuple[str, ...]:
    """Of every installed operator."""
    return tuple(sorted({name for each in operators().values() for name in each.baselines}))


def speedup(found: list[OutcomeRow]) -> float | None:
    """Geometric mean over the workloads of the baseline's time by the best's; None where neither is known."""
    ratios = [row.baseline_us / row.best_us for row in found if row.baseline_us and row.best_us]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def target_name(target: TargetRow | None) -> str:
    """A target in a few words."""
    if target is None:
        return "no target yet"
    driver = target.toolchain.get("driver")
    return shortened(f"{target.hardware.get('gpu', 'unknown GPU')}, driver {driver or 'unknown'}")


def duration(seconds: float) -> str:
    """Seconds in words, e.g. ``1 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
