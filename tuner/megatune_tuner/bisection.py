"""Where variants cross between measured tokens, and which cells to measure next. No database, no runner.

What is compared at one workload are the fastest finalist of each variant and each baseline, sample by sample. A
crossover counts where both are variants, or where the fastest of all gives way to another, baselines included.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from megatune_kernels.crossing import next_tokens
from megatune_kernels.crossing import side
from megatune_kernels.crossing import side_changes
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.statistics import MIN_PAIRS
from megatune_kernels.statistics import Interval
from megatune_kernels.statistics import paired_ratio

WINNERS = 3
"""Configs of each variant that a cell between two others takes from each of them. In recorded spaces of projections
the best of these is on average 0.4 % slower than the best there is; of two 0.8 %, of one 1.3 %, and more find little.
"""

Finals = Mapping[Config, Sequence[float]]
"""Samples in µs of the finalists of one cell, baselines included; sample i of one pairs with sample i of another.
Empty for a cell in which nothing worked."""


@dataclass(frozen=True)
class Crossover:
    """Where one variant or baseline of a shape gives way to another."""

    shape: Workload
    """At 0 tokens."""
    below: str
    above: str
    ratios: Mapping[int, Interval]
    """Time of ``above`` over that of ``below`` by tokens: from the most tokens at which ``below`` is faster to the
    fewest from which ``above`` is. In between there are only ties."""

    @property
    def low(self) -> int:
        return min(self.ratios)

    @property
    def high(self) -> int:
        return max(self.ratios)

    @property
    def tokens(self) -> float:
        """Where the median ratio passes 1, on straight lines between the measured tokens in logarithms.

        Among ties noise makes it pass more than once: then it is the passing in the middle.
        """
        points = [(math.log(tokens), math.log(self.ratios[tokens].median)) for tokens in sorted(self.ratios)]
        passings = [
            math.exp(x0 + (x1 - x0) * y0 / (y0 - y1))
            for (x0, y0), (x1, y1) in itertools.pairwise(points)
            if (y0 > 0) != (y1 > 0)
        ]
        return passings[len(passings) // 2]


def crossovers(measured: Mapping[Workload, Finals]) -> list[Crossover]:
    """Every crossover among the measured cells, shape by shape."""
    return [found for shape, at in _by_shape(measured).items() for found in _crossovers(shape, at)]


def cells_between(
    measured: Mapping[Workload, Finals], usable: Callable[[Workload], bool]
) -> dict[Workload, tuple[Workload, Workload]]:
    """The cells to measure next, each with the measured ones of its shape with fewer and with more tokens.

    :param usable: whether a workload can be measured at all; of those that can, the nearest to the middle is taken.
    """
    between = {}
    for shape, at in _by_shape(measured).items():
        for found in _crossovers(shape, at):
            for middle in next_tokens({tokens: side(ratio) for tokens, ratio in found.ratios.items()}):
                low = max(tokens for tokens in found.ratios if tokens < middle)
                high = min(tokens for tokens in found.ratios if tokens > middle)
                if any(low < tokens < high for tokens in at):
                    continue  # one of the two did not work there, and would hardly beside it
                inside = sorted(range(low + 1, high), key=lambda tokens: (abs(tokens - middle), tokens))
                cell = next(filter(usable, map(shape.at, inside)), None)
                if cell is not None:
                    between[cell] = (shape.at(low), shape.at(high))
    return between


def cells_around(measured: Mapping[Workload, Finals], share: float) -> list[Workload]:
    """The cells that are not measured within ``share`` of each crossover's tokens, among the measured tokens."""
    found: dict[Workload, None] = {}
    for shape, at in _by_shape(measured).items():
        for crossover in _crossovers(shape, at):
            low = max(min(at), math.ceil(crossover.tokens * (1 - share)))
            high = min(max(at), math.floor(crossover.tokens * (1 + share)))
            found |= dict.fromkeys(shape.at(tokens) for tokens in range(low, high + 1) if tokens not in at)
    return list(found)


def winners(finals: Finals, ranked: Sequence[Config]) -> list[Config]:
    """The best ``WINNERS`` of each variant among the configs of a cell.

    :param finals: the cell's; they say more than the search.
    :param ranked: the configs that work as the search ranks them, the fastest first.
    """
    in_finals = sorted((config for config in ranked if config in finals), key=lambda config: median(finals[config]))
    by_variant: dict[str, list[Config]] = {}
    for config in dict.fromkeys([*in_finals, *ranked]):
        by_variant.setdefault(config.variant, []).append(config)
    return [config for of_one in by_variant.values() for config in of_one[:WINNERS]]


def _by_shape(measured: Mapping[Workload, Finals]) -> dict[Workload, dict[int, Finals]]:
    """Finals by shape, as its workload at 0 tokens, and by tokens, ascending."""
    found: dict[Workload, dict[int, Finals]] = {}
    for workload in sorted(measured, key=lambda workload: workload.tokens):
        found.setdefault(workload.at(0), {})[workload.tokens] = measured[workload]
    return found


def _crossovers(shape: Workload, at: Mapping[int, Finals]) -> Iterator[Crossover]:
    variants = operator(shape.operator).variants
    best = {tokens: _best(finals) for tokens, finals in at.items()}
    first = {tokens: next(iter(names), None) for tokens, names in best.items()}
    for one, other in itertools.combinations(dict.fromkeys(name for names in best.values() for name in names), 2):
        ratios = {
            tokens: _ratio(names[other], names[one])
            for tokens, names in best.items()
            if one in names and other in names
        }
        sides = {tokens: side(ratio) for tokens, ratio in ratios.items()}
        for low, high in side_changes(sides):
            below, above = (one, other) if sides[low] > 0 else (other, one)
            if {one, other} <= set(variants) or (first[low], first[high]) == (below, above):
                inside = [tokens for tokens in ratios if low <= tokens <= high]
                yield Crossover(
                    shape, below, above, {tokens: _ratio(best[tokens][above], best[tokens][below]) for tokens in inside}
                )


def _best(finals: Finals) -> dict[str, Sequence[float]]:
    """The samples of each variant's and baseline's fastest, the fastest of all first."""
    best: dict[str, Sequence[float]] = {}
    for config in sorted(finals, key=lambda config: (median(finals[config]), str(config))):
        best.setdefault(config.variant, finals[config])
    return best


def _ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    if len(numerator) < MIN_PAIRS:
        # Too few pairs tell nothing: a tie.
        return Interval(median(numerator) / median(denominator), 0.0, math.inf)
    return paired_ratio(numerator, denominator)
