"""An interval of a figure that is not known exactly. Sums add the ends: errors of parts may all point one way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """What a figure lies between, both ends included, in the unit that its owner names."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"an interval cannot end ({self.high}) before it begins ({self.low})")

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Bounds:
        """:param factor: at least 0."""
        return Bounds(self.low * factor, self.high * factor)


def exactly(value: float) -> Bounds:
    return Bounds(value, value)


def total(parts: Iterable[Bounds]) -> Bounds:
    found = exactly(0)
    for part in parts:
        found += part
    return found


def hull(parts: Iterable[Bounds]) -> Bounds:
    """The least interval that holds all of these, of which there is one at least."""
    found = list(parts)
    return Bounds(min(each.low for each in found), max(each.high for each in found))
