"""What a plan chooses by where one shape was measured at several routings: which of them a step will have, nobody
knows before.

- ``mean``: the mean of the times at each routing, each with its share.
- ``worst``: the time at the routing where it is the longest.
- ``each``: nothing is chosen over routings; each has bands of its own. That is so unless something else is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from typing import Any
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from megatune_kernels.errors import MegatuneError
from megatune_planner.schema import Part

ANY = "any"
"""In the place of a routing, in the key of a shape that was decided for several at once: readers ask for this."""

Kind = Literal["each", "mean", "worst"]
KINDS: tuple[Kind, ...] = ("each", "mean", "worst")


class Mix(Part):
    """What every figure of a shape stands for that was decided for several routings at once."""

    kind: Literal["mean", "worst"]
    """The mean over the routings, or the routing where it takes the longest."""
    shares: Annotated[dict[str, float], Field(min_length=2)]
    """Share of the steps by routing; of the worst they count for nothing, and are alike."""

    @property
    def routings(self) -> tuple[str, ...]:
        return tuple(self.shares)

    @property
    def text(self) -> str:
        """In words, e.g. ``mean of balanced 25 % and same 75 %``."""
        if self.kind == "worst":
            return f"worst of {' and '.join(self.routings)}"
        return f"mean of {' and '.join(f'{name} {share:.0%}' for name, share in self.shares.items())}"

    def of(self, values: Mapping[str, float]) -> float:
        """The figure that stands for one of each routing."""
        if self.kind == "worst":
            return max(values[name] for name in self.shares)
        return math.fsum(share * values[name] for name, share in self.shares.items())

    def slowest(self, values: Mapping[str, float]) -> str:
        """The routing with the largest figure; of several the first one."""
        return max(self.shares, key=lambda name: values[name])


@dataclass(frozen=True)
class Objective:
    """What is asked for; the mix of one shape follows from where it was measured."""

    kind: Kind = "each"
    weights: tuple[tuple[str, float], ...] = ()
    """By routing, sorted; empty: every routing that a shape was measured at, all alike."""

    @staticmethod
    def of(kind: Any, weights: Mapping[str, Any] | None = None) -> Objective:
        """:raises MegatuneError: for what is none, with what is allowed."""
        if kind not in KINDS:
            raise MegatuneError(f"an objective is {', '.join(KINDS)} or weights of routings, not {kind!r}")
        found = tuple(sorted((weights or {}).items()))
        for name, weight in found:
            if not isinstance(weight, int | float) or not 0 < weight < math.inf:
                raise MegatuneError(f"an objective needs a positive weight for each routing, not {weight!r} for {name}")
        if kind == "each" and found:
            raise MegatuneError("an objective with weights is mean or worst: each routing alone has none")
        if len(found) == 1:
            raise MegatuneError(f"an objective chooses over two routings or more, and {found[0][0]} is one")
        return Objective(kind, found)

    @staticmethod
    def parse(text: str) -> Objective:
        """As people write it: ``mean``, ``worst``, ``each``, or weights as ``balanced:1,same:3``.

        :raises MegatuneError: for what is none, with what is allowed.
        """
        if ":" not in text:
            return Objective.of(text)
        weights: dict[str, float] = {}
        for item in text.split(","):
            name, _, weight = item.rpartition(":")
            try:
                weights[name.strip()] = float(weight)
            except ValueError:
                raise MegatuneError(
                    f"an objective is routing:weight, separated by commas, e.g. balanced:1,same:3; not {item!r}"
                ) from None
        return Objective.of("mean", weights)

    @property
    def mixes(self) -> bool:
        """Whether anything is chosen over routings."""
        return self.kind != "each"

    def mix(self, routings: Iterable[str]) -> Mix | None:
        """That of a shape which was measured at these routings; None where they are not all that are asked for, or
        where there is no choice over them."""
        weights = dict(self.weights) or dict.fromkeys(sorted(routings), 1.0)
        if self.kind == "each" or len(weights) < 2 or not set(weights) <= set(routings):
            return None
        if self.kind == "worst":
            weights = dict.fromkeys(weights, 1.0)
        total = math.fsum(weights.values())
        return Mix(kind=self.kind, shares={name: weight / total for name, weight in weights.items()})


def spelled(objective: Objective) -> dict[str, Any]:
    """As a plan's options and a campaign's row have it."""
    return {"kind": objective.kind, "weights": dict(objective.weights)}


def mean_samples(mix: Mix, samples: Sequence[Sequence[float] | NDArray[Any]]) -> NDArray[Any]:
    """Samples of the mean, as many as the routing with the fewest has: sample i is made of sample i of each.

    :param samples: in the order of the mix.
    """
    count = min(len(each) for each in samples)
    shares = mix.shares.values()
    weighed = [share * np.asarray(each[:count], dtype=np.float64) for share, each in zip(shares, samples, strict=True)]
    return np.asarray(np.sum(weighed, axis=0))
