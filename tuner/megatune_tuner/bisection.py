"""Between which measured tokens two variants cross, and which cells to measure next. No database, no runner.

What is compared at one workload are the fastest finalist of each variant and each baseline, sample by sample. A
crossover counts where both are variants, or where the fastest of all gives way to another, baselines included.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

from megatune_kernels.crossing import next_tokens
from megatune_kernels.crossing import side
from megatune_kernels.crossing import side_changes
from megatune_kernels.space import Config
from megatune_kernels.statistics import MIN_PAIRS
from megatune_kernels.statistics import Interval
from megatune_kernels.statistics import paired_ratio

WINNERS = 2
"""Configs of each variant that a cell between two others takes from each: the best at one of them need not be the best
in between, and more find little."""

Finals = Mapping[Config, Sequence[float]]
"""Samples in µs of the finalists of one cell, baselines included; sample i of one pairs with sample i of another."""


@dataclass(frozen=True)
class Crossover:
    """Where one variant or baseline gives way to another."""

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


def crossovers(measured: Mapping[int, Finals], variants: Collection[str]) -> list[Crossover]:
    """Every crossover of one shape.

    :param measured: finals by tokens.
    :param variants: those of the operator; what else the finals hold are baselines.
    """
    best = {tokens: _best(finals) for tokens, finals in measured.items()}
    first = {tokens: next(iter(names), None) for tokens, names in best.items()}
    found = []
    for one, other in itertools.combinations(sorted({name for names in best.values() for name in names}), 2):
        both = [tokens for tokens, names in best.items() if one in names and other in names]
        sides = {tokens: side(_ratio(best[tokens][other], best[tokens][one])) for tokens in both}
        for low, high in side_changes(sides):
            below, above = (one, other) if sides[low] > 0 else (other, one)
            if {one, other} <= set(variants) or (first[low], first[high]) == (below, above):
                inside = sorted(tokens for tokens in both if low <= tokens <= high)
                ratios = {tokens: _ratio(best[tokens][above], best[tokens][below]) for tokens in inside}
                found.append(Crossover(below, above, ratios))
    return found


def cells_between(
    measured: Mapping[int, Finals], variants: Collection[str], usable: Callable[[int], bool]
) -> dict[int, tuple[int, int]]:
    """The tokens to measure next of one shape, each with the measured tokens below and above.

    :param measured: finals by tokens; those of a cell in which nothing worked are empty.
    :param variants: as of ``crossovers``.
    :param usable: whether tokens can be measured at all; of several that can, those nearest to the middle are taken.
    """
    found = {}
    for crossover in crossovers(measured, variants):
        for middle in next_tokens({tokens: side(ratio) for tokens, ratio in crossover.ratios.items()}):
            low = max(tokens for tokens in crossover.ratios if tokens < middle)
            high = min(tokens for tokens in crossover.ratios if tokens > middle)
            if any(low < tokens < high for tokens in measured):
                continue  # one of the two did not work there, and would hardly beside it
            inside = sorted(range(low + 1, high), key=lambda tokens: (abs(tokens - middle), tokens))
            chosen = next(filter(usable, inside), None)
            if chosen is not None:
                found[chosen] = (low, high)
    return found


def winners(finals: Finals, ranked: Sequence[Config]) -> list[Config]:
    """The best ``WINNERS`` of each variant among the configs of a cell.

    :param finals: the cell's; they say more than the search.
    :param ranked: the configs that work as the search ranks them, the fastest first.
    """
    in_finals = sorted((config for config in ranked if config in finals), key=lambda c: statistics.median(finals[c]))
    by_variant: dict[str, list[Config]] = {}
    for config in dict.fromkeys([*in_finals, *ranked]):
        by_variant.setdefault(config.variant, []).append(config)
    return [config for of_one in by_variant.values() for config in of_one[:WINNERS]]


def _best(finals: Finals) -> dict[str, Sequence[float]]:
    """The samples of each variant's and baseline's fastest, the fastest of all first."""
    ordered = sorted(finals, key=lambda config: (statistics.median(finals[config]), str(config)))
    best: dict[str, Sequence[float]] = {}
    for config in ordered:
        best.setdefault(config.variant, finals[config])
    return best


def _ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Too few pairs tell nothing: a tie."""
    if len(numerator) < MIN_PAIRS:
        return Interval(statistics.median(numerator) / statistics.median(denominator), 0.0, math.inf)
    return paired_ratio(numerator, denominator)
