"""How far the model is from published serving figures.

The only thing that it says of a server nobody measured a plan on is a lower bound: reading the weights at the memory's
bandwidth. The error of that bound is what attention, communication, launches, prefill and the host add, so that it is
negative, and how large it is says how little a bound promises. A figure without its hardware or ranks is not compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatune_kernels.figures import Figure
from megatune_kernels.models import model
from megatune_planner.serving.published import Serving
from megatune_planner.serving.published import published_serving
from megatune_planner.serving.step import floor_us


@dataclass(frozen=True)
class Check:
    """One published figure against the bound."""

    published: Serving
    floor_us: float | None
    """Predicted; None where it cannot be."""
    error: float | None
    """Share of the published time that the bound misses it by; negative: below it."""
    reason: str
    """Why there is none; empty where there is one."""


def checks() -> list[Check]:
    """Every published serving figure."""
    return [_check(each) for each in published_serving()]


def figures() -> list[Figure]:
    """The same as figures of a benchmark."""
    return [
        Figure(
            figure=f"step model against {each.published.id}",
            value=None if each.error is None else 100 * each.error,
            unit="% of the published step",
            goal="<= 0",
            met=None if each.error is None else each.error <= 0,
            provenance="predicted",
            how=each.reason or f"lower bound {each.floor_us:.0f} µs, published {_published(each.published)}",
        )
        for each in checks()
    ]


def _published(serving: Serving) -> str:
    return f"{serving.step_us:.0f} µs: {serving.source}"


def _check(published: Serving) -> Check:
    if published.hardware is None or published.ranks is None:
        return Check(published, None, None, "the source says neither the hardware nor the ranks: not compared")
    found = floor_us(model(published.model), published.hardware, published.ranks, published.sequences)
    if found is None:
        return Check(published, None, None, f"the memory bandwidth of {published.hardware} is not known")
    return Check(published, found, found / published.step_us - 1, "")
