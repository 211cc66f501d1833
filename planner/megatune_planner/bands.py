"""Bands: which config serves which tokens.

At each measured number of tokens the choices are stock and the configs that win there: whose time lies below the
fastest baseline's beyond its interval, by at least the least gain. So no band is slower than its baseline at any of its
measured tokens, by construction. A config that only a search measured has to win over the baseline of the search too: a
search and a session of finalists meet the device in different states, and the least of many search times is too low.
Among the choices, dynamic programming finds the assignment with the least

    expected latency under the traffic profile + a cost for each band that needs a config of its own,

where members of a tie set count as equally fast: a difference inside the noise buys no config. Where the best is a
finalist, a member that it was not paired with counts with its own time when that is more, because overlapping intervals
are weak evidence, and the finalists were measured again to have better. What is left equal is settled in this order:
less latency at tokens without traffic, the incumbent (or default), the neighbour's choice, the simpler config.

Between two measured tokens nothing is known but the two ends, so these tokens follow a rule and are predicted:

1. Both ends have the same decision: theirs.
2. The upper end's decision wins at the lower end too: the upper end's. (Stock "wins" wherever a baseline was measured.)
3. The lower end's decision wins at the upper end too: the lower end's.
4. The upper end's config was never measured at the lower end, and takes less time at the upper end than the baseline
   at the lower one, beyond both intervals: the upper end's, because no step in between costs it more than the larger
   one, nor the baseline less than the smaller one.
5. Otherwise nothing says where in between it begins to win: stock.

Below the smallest and above the largest measured tokens the decision is stock.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from typing import Protocol

from megatune_db.records import Stage
from megatune_planner.ties import Candidate
from megatune_planner.ties import Comparison
from megatune_planner.ties import Samples
from megatune_planner.ties import best
from megatune_planner.ties import compare
from megatune_planner.ties import simplicity
from megatune_planner.ties import tie_set

_UNITS_A_MICROSECOND = 10**12
"""Costs are added as integers, so that the order of adding cannot settle a tie."""


@dataclass(frozen=True)
class Standing:
    """How everything that was measured at one number of tokens stands against the fastest baseline there."""

    tokens: int
    baseline: Candidate
    candidates: tuple[Candidate, ...]
    """Configs, without baselines; each config once."""
    ties: tuple[Candidate, ...]
    wins: Mapping[str, Comparison]
    """Time over the baseline's of each config that wins, by digest of the config."""
    preferred: frozenset[str] = frozenset()
    """Digests of the incumbent's or the default configs here."""

    @staticmethod
    def of(
        tokens: int,
        baseline: Candidate,
        candidates: Sequence[Candidate],
        samples: Samples,
        *,
        min_gain: float,
        tie_slack: float,
        preferred: frozenset[str] = frozenset(),
        searched: Candidate | None = None,
    ) -> Standing:
        """:param searched: the fastest baseline as the search measured it, if that did."""
        wins = {}
        for candidate in candidates:
            rivals = [baseline] if searched is None or candidate.stage is Stage.FINAL else [baseline, searched]
            found = [compare(candidate, rival, samples) for rival in rivals]
            enough = (1 - min_gain) * min(rival.median_us for rival in rivals)
            if candidate.median_us <= enough and all(one.high < 1 for one in found):
                wins[candidate.config] = found[0]
        ties = tie_set(candidates, samples, tie_slack)
        return Standing(tokens, baseline, tuple(candidates), ties, wins, preferred)

    @cached_property
    def by_config(self) -> dict[str, Candidate]:
        return {candidate.config: candidate for candidate in self.candidates}

    @cached_property
    def first(self) -> Candidate:
        """What the tie set was found against; there must be a candidate."""
        return best(self.candidates)

    @cached_property
    def tied(self) -> frozenset[str]:
        """Digests of the tie set."""
        return frozenset(candidate.config for candidate in self.ties)

    @cached_property
    def choices(self) -> tuple[Candidate | None, ...]:
        """Stock, as None, and every config that wins, the simplest first."""
        winners = [candidate for candidate in self.candidates if candidate.config in self.wins]
        return (None, *sorted(winners, key=simplicity))

    def latency_us(self, choice: Candidate | None) -> float:
        """What a choice counts for: the best's time for its ties, the baseline's for stock."""
        if choice is None:
            return self.baseline.median_us
        if choice.config not in self.tied:
            return choice.median_us
        first = self.first
        is_weak = first.stage is Stage.FINAL and (choice.stage, choice.session) != (first.stage, first.session)
        return max(first.median_us, choice.median_us) if is_weak else first.median_us

    def holds(self, config: str | None) -> bool:
        """Whether the config wins here, or stock (None) is asked for."""
        return config is None or config in self.wins


class Segment(NamedTuple):
    """Tokens ``lo`` to ``hi``, both included, with one decision: a config's digest, or None for stock."""

    lo: int
    hi: int
    config: str | None


class Measured(Protocol):
    """Whatever was measured at some tokens."""

    @property
    def tokens(self) -> int: ...


def weights_of(standings: Sequence[Measured], traffic: Mapping[int, float]) -> list[float]:
    """The share of the steps that each measured number of tokens stands for, of ascending ones.

    Steps with other tokens count for the next larger measured ones, as if padded; steps above the largest count for
    none. Without any traffic inside, every measured number of tokens counts the same.

    :param traffic: weight by tokens, not negative; empty for the same weight at each measured number of tokens.
    """
    weights = [0.0] * len(standings)
    for tokens, weight in sorted(traffic.items()):
        index = next((i for i, standing in enumerate(standings) if standing.tokens >= tokens), None)
        if index is not None:
            weights[index] += weight
    total = sum(weights)
    return [weight / total for weight in weights] if total else [1 / len(standings)] * len(standings)


def find_bands(
    standings: Sequence[Standing], *, traffic: Mapping[int, float] | None = None, config_cost_us: float = 0.0
) -> list[Segment]:
    """Segments that tile 1 to the largest measured tokens; neighbours differ in their decision.

    :param standings: at least one, ascending in tokens.
    """
    decisions = assign(standings, weights_of(standings, traffic or {}), config_cost_us)
    pieces = [Segment(1, standings[0].tokens - 1, None)]
    for index, (here, decision) in enumerate(zip(standings, decisions, strict=True)):
        pieces.append(Segment(here.tokens, here.tokens, decision))
        if index + 1 < len(standings):
            above = standings[index + 1]
            between = _between(here, decision, above, decisions[index + 1])
            pieces.append(Segment(here.tokens + 1, above.tokens - 1, between))
    merged: list[Segment] = []
    for piece in pieces:
        if piece.lo > piece.hi:
            continue
        if merged and merged[-1].config == piece.config:
            merged[-1] = merged[-1]._replace(hi=piece.hi)
        else:
            merged.append(piece)
    return merged


def _between(below: Standing, lower: str | None, above: Standing, upper: str | None) -> str | None:
    if lower == upper or below.holds(upper):
        return upper
    if above.holds(lower):
        return lower
    if upper is None or upper in below.by_config:
        return None
    return upper if above.by_config[upper].high_us < below.baseline.low_us else None


class _Cost(NamedTuple):
    """What dynamic programming adds up and compares, the first field first."""

    expected: int
    """Expected latency and cost of configs."""
    latency: int
    """Unweighted: decides where there is no traffic."""
    strangers: int
    """Tokens whose config is neither incumbent nor default."""
    switches: int
    complexity: int
    """Sum of ranks in the order of ``simplicity``."""

    def plus(self, other: _Cost) -> _Cost:
        return _Cost(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def assign(standings: Sequence[Standing], weights: Sequence[float], config_cost_us: float) -> list[str | None]:
    """The best decision at each measured number of tokens: a config's digest, or None for stock.

    A config that serves two bands with another decision between them is counted twice: what it costs is the switch.
    """
    switch_to_config = _Cost(round(config_cost_us * _UNITS_A_MICROSECOND), 0, 0, 1, 0)
    switch_to_stock = _Cost(0, 0, 0, 1, 0)
    reached: dict[str | None, _Cost] = {None: _Cost(0, 0, 0, 0, 0)}
    history: list[dict[str | None, str | None]] = []
    for standing, weight in zip(standings, weights, strict=True):
        cheapest = min(reached, key=reached.__getitem__)
        costs: dict[str | None, _Cost] = {}
        origins: dict[str | None, str | None] = {}
        for rank, choice in enumerate(standing.choices):
            config = None if choice is None else choice.config
            cost = reached[cheapest].plus(switch_to_stock if config is None else switch_to_config)
            origin = cheapest
            if config in reached and reached[config] <= cost:
                cost, origin = reached[config], config
            costs[config] = cost.plus(_here(standing, choice, weight, rank))
            origins[config] = origin
        reached = costs
        history.append(origins)
    decision = min(reached, key=reached.__getitem__)
    decisions = []
    for origins in reversed(history):
        decisions.append(decision)
        decision = origins[decision]
    return decisions[::-1]


def _here(standing: Standing, choice: Candidate | None, weight: float, rank: int) -> _Cost:
    latency = standing.latency_us(choice)
    return _Cost(
        expected=round(weight * latency * _UNITS_A_MICROSECOND),
        latency=round(latency * _UNITS_A_MICROSECOND),
        strangers=int(choice is not None and choice.config not in standing.preferred),
        switches=0,
        complexity=rank,
    )
