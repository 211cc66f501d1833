"""What plans of a campaign choose by over the routings of a shape, and what it measures for that."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

from megatune_kernels.operator import Workload

if TYPE_CHECKING:
    from megatune_tuner.campaign_file import Campaign


def objective_row(campaign: Campaign) -> dict[str, Any] | None:
    """The objective as a campaign's row has it, for the planner: its kind, and weights by routing, which are empty for
    all that a shape was measured at. None where none is asked for."""
    asked = campaign.objective
    if asked is None:
        return None
    if isinstance(asked, str):
        # Of its own routings, whatever else the database knows of the shape.
        named = campaign.routings if campaign.routings is not None and len(set(campaign.routings)) > 1 else ()
        return {"kind": asked, "weights": dict.fromkeys(named, 1.0)}
    return {"kind": "mean", "weights": dict(asked)}


def objective_groups(campaign: Campaign, workloads: Iterable[Workload]) -> list[list[Workload]]:
    """Workloads that differ in nothing but the routing, those of each shape and tokens that the objective is over."""
    row = objective_row(campaign)
    return [] if row is None else [group for group in _across(workloads, row["weights"]) if len(group) > 1]


def objective_fault(asked: str | Mapping[str, float], workloads: Iterable[Workload]) -> str:
    """Why nothing here can be chosen by the objective; empty where something can."""
    groups = [group for group in _across(workloads, {}) if len(group) > 1]
    if not groups:
        return "it chooses over the routings of a shape, and no shape here has two: give routings"
    known = {workload.routing for group in groups for workload in group}
    missing = [] if isinstance(asked, str) else sorted(set(asked) - known)
    return f"{missing[0]} is not among the routings {', '.join(sorted(known))}" if missing else ""


def _across(workloads: Iterable[Workload], named: Mapping[str, float]) -> list[list[Workload]]:
    found: dict[Workload, list[Workload]] = {}
    for workload in workloads:
        if not named or workload.routing in named:
            found.setdefault(replace(workload, routing=""), []).append(workload)
    return list(found.values())
