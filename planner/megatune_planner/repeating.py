"""What running a campaign again with other seeds says of its plan.

A **flip** is a decision, at one measured number of tokens of one shape, that another seed takes otherwise. It is no
fault where the two choices tie: then either may serve. Whether they do is not read off the two plans, whose figures are
of two searches, but measured: the choices of all runs and the baselines, once more and in one session. They tie as
members of a plan's tie set do (``ties.py``): the slower is not significantly slower than the faster by more than the
plan's slack. One flip in twenty of two choices that truly tie will look like more, by the confidence of the interval.

The **regret** of a run is the time that its choices lose against the fastest choice of any run, as a share of the time
that those take: summed over decisions, each weighted by its time and by the traffic that the plan was made for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from typing import Literal

from pydantic import Field

from megatune_db.queries import RepeatRow
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Status
from megatune_kernels.canonical import canonical_json
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.statistics import CONFIDENCE
from megatune_planner.band_schema import Band
from megatune_planner.bands import weights_of
from megatune_planner.crossover_schema import Ratio
from megatune_planner.objective import ANY
from megatune_planner.plan import Plan
from megatune_planner.plan import Repeatability
from megatune_planner.plan import ShapePlan
from megatune_planner.plan import UnrepeatableBand
from megatune_planner.schema import Part
from megatune_planner.schema import Share
from megatune_planner.schema import Tokens
from megatune_planner.verifying.checks import Check
from megatune_planner.verifying.checks import choice_of
from megatune_planner.verifying.checks import workload_of
from megatune_planner.verifying.judging import compare
from megatune_planner.verifying.routings import Mixes
from megatune_planner.verifying.routings import at_each_routing
from megatune_planner.verifying.routings import joined
from megatune_planner.verifying.routings import wholly_measured

STOCK = "stock"


class Flip(Part):
    """A decision that another seed takes otherwise."""

    operator: str
    """Of the operator."""
    shape: str
    """Key of the dims."""
    dtype: str
    """Of the operands."""
    world: Annotated[int, Field(ge=1)]
    """Ranks of one launch."""
    routing: str
    """How tokens are spread over experts."""
    tokens: Tokens
    """Exactly as measured."""
    seed: int
    """Of the run that decides otherwise."""
    mine: str
    """What the plan serves."""
    other: str
    """What the other run's plan serves."""
    choice: str
    """Digest of the plan's config; ``stock`` for stock."""
    ratio: Ratio | None
    """Time of the plan's choice over that of the other, in one session; None where one has no figures."""
    kind: Literal["tie", "worse", "better", "unknown"]
    """Of the plan's choice against the other: within the noise, slower, faster, or not comparable."""


class Run(Part):
    """What one seed came to."""

    seed: int
    """Of the sampler."""
    plan: str | None
    """Digest; None where nothing beat its baseline."""
    regret: Annotated[float, Field(ge=0)]
    """Share of the time that its choices lose against the best of all runs."""


class Repeats(Part):
    """The document of a campaign that was run again."""

    format: Literal["megatune-repeats"] = "megatune-repeats"
    """Says what the document is."""
    schema_version: Literal[1] = 1
    """Of the document."""
    campaign: str
    """Its name."""
    plan: str
    """Digest of its own plan."""
    target: str
    """Digest."""
    regime: str
    """Conditions of every measurement."""
    provenance: Provenance
    """Of every measurement."""
    shapes: Annotated[tuple[str, ...], Field(min_length=1)]
    """That were compared: operator, dims, dtype, world and routing, each as one word."""
    runs: Annotated[tuple[Run, ...], Field(min_length=2)]
    """The campaign's own first."""
    decisions: Annotated[int, Field(ge=1)]
    """That were compared: shapes and measured tokens, times repeats."""
    flips: tuple[Flip, ...]
    """Every one of them."""
    flip_rate: Share
    """Flips over decisions."""
    tie_slack: Share
    """Share of the time up to which a difference never counts."""

    @property
    def beyond_ties(self) -> list[Flip]:
        return [flip for flip in self.flips if flip.kind != "tie"]

    @property
    def regret(self) -> float:
        """Of the campaign's own plan."""
        return self.runs[0].regret


@dataclass(frozen=True)
class Decision:
    """What each run serves at one measured number of tokens of one shape."""

    operator: str
    shape: ShapePlan
    band: Band
    """Of the campaign's own plan."""
    workload: Workload
    choices: tuple[Config, ...]
    """By run; a baseline for stock."""
    keys: tuple[str, ...]
    """By run: a config's digest, or ``stock``."""

    @property
    def flips(self) -> bool:
        return len(set(self.keys)) > 1

    @property
    def mixes(self) -> Mixes:
        """What its figures stand for, where that is several routings."""
        return {} if self.shape.mix is None else {self.workload.at(0): self.shape.mix}

    @property
    def place(self) -> str:
        return _place(self.operator, self.shape)


def decisions_of(plans: Sequence[Plan | None], workloads: Sequence[Workload] | None = None) -> list[Decision]:
    """Every decision of the first plan that rests on measurements, with what the others decide there.

    :param plans: by run, the campaign's own first, which is one; None where nothing beat its baseline: all is stock.
    :param workloads: of the campaign: what its database knows besides, of other shapes and of tokens beyond these, no
        repeat ever measures. None: all of the first plan.
    """
    first, *others = plans
    assert first is not None
    known = [{} if plan is None else _shapes(plan) for plan in others]
    spans = None if workloads is None else _spans(workloads)
    found = []
    for (name, _), shape in _shapes(first).items():
        least, most = (0, math.inf) if spans is None else spans.get((name, *shape.key), (1, 0))
        for tokens in (each for each in shape.measured_tokens if least <= each <= most):
            band = shape.band(tokens)
            stock = Config.of(_baseline(shape, tokens), {})
            bands = [band, *(_band(shapes.get((name, shape.key)), tokens) for shapes in known)]
            found.append(
                Decision(
                    operator=name,
                    shape=shape,
                    band=band,
                    workload=workload_of(name, shape, tokens),
                    choices=tuple(_serves(each, stock) for each in bands),
                    keys=tuple(_key(each) for each in bands),
                )
            )
    return found


def _spans(workloads: Iterable[Workload]) -> dict[tuple[object, ...], tuple[int, int]]:
    """The least and the most tokens of each shape, at each of its routings and at any."""
    found: dict[tuple[object, ...], tuple[int, int]] = {}
    for each in workloads:
        for routing in (each.routing, ANY):
            key = (each.operator, each.shape, each.dtype, each.world, routing)
            least, most = found.get(key, (each.tokens, each.tokens))
            found[key] = (min(least, each.tokens), max(most, each.tokens))
    return found


def to_measure(decisions: Iterable[Decision]) -> list[Check]:
    """What to measure in one session each: the choices of all runs wherever one of them decides otherwise."""
    return [
        Check(workload, tuple(dict.fromkeys(decision.choices)))
        for decision in decisions
        if decision.flips
        for workload in at_each_routing(decision.workload, decision.mixes)
    ]


def judge_repeats(
    campaign: str,
    seeds: Sequence[int],
    plans: Sequence[Plan | None],
    decisions: Sequence[Decision],
    measured: Mapping[tuple[Workload, Config], Measurement],
    provenance: Provenance,
) -> Repeats:
    """What other seeds came to.

    :param campaign: its name.
    :param seeds: by run, the campaign's own first.
    :param plans: as for ``decisions_of``.
    :param measured: of ``to_measure``.
    """
    own = plans[0]
    assert own is not None
    mixes = {workload: mix for decision in decisions for workload, mix in decision.mixes.items()}
    measured = dict(measured) | {
        (workload, config): joined(workload, mixes, [measured[place, config] for place in places])
        for workload, config, places in wholly_measured(measured, mixes)
    }
    slack = own.content.options.tie_slack
    flips = tuple(flip for decision in decisions for flip in _flips(decision, seeds, measured, slack))
    count = len(decisions) * (len(seeds) - 1)
    regrets = _regrets(own, decisions, measured)
    return Repeats(
        campaign=campaign,
        plan=own.digest,
        target=own.content.target.digest,
        regime=own.content.regime,
        provenance=provenance,
        shapes=tuple(dict.fromkeys(decision.place for decision in decisions)),
        runs=tuple(
            Run(seed=seed, plan=None if plan is None else plan.digest, regret=regret)
            for seed, plan, regret in zip(seeds, plans, regrets, strict=True)
        ),
        decisions=count,
        flips=flips,
        flip_rate=len(flips) / count,
        tie_slack=slack,
    )


def repeatability_of(plan: Plan, rows: Sequence[RepeatRow]) -> Repeatability | None:
    """What the last repeats of a campaign say of a plan with its shapes, regime and provenance; None without any.

    A flip counts where the plan decides as the campaign's own did.

    :param rows: of the target, the newest first.
    """
    shapes = _shapes(plan)
    places = {_place(name, shape) for (name, _), shape in shapes.items()}
    for row in rows:
        if row.regime != plan.content.regime or row.provenance not in plan.content.coverage.measurements:
            continue
        found = Repeats.model_validate_json(row.document)
        if places.isdisjoint(found.shapes):
            continue
        return Repeatability(
            seeds=tuple(run.seed for run in found.runs),
            provenance=found.provenance,
            decisions=found.decisions,
            flips=len(found.flips),
            flips_beyond_ties=len(found.beyond_ties),
            flip_rate=found.flip_rate,
            regret=found.regret,
            bands=tuple(_unrepeatable(shapes, found.beyond_ties)),
        )
    return None


def repeats_json(found: Repeats) -> str:
    return canonical_json(found.model_dump(mode="json"))


def _unrepeatable(
    shapes: Mapping[tuple[str, tuple[str, str, int, str]], ShapePlan], flips: Sequence[Flip]
) -> Iterator[UnrepeatableBand]:
    for (name, key), shape in shapes.items():
        mine = [flip for flip in flips if (flip.operator, _shape_key(flip)) == (name, key)]
        for band in shape.bands:
            inside = [flip for flip in mine if band.covers(flip.tokens) and flip.choice == _key(band)]
            if inside:
                worst = max(inside, key=lambda flip: abs(flip.ratio.median - 1) if flip.ratio else 0.0)
                yield UnrepeatableBand(
                    operator=name,
                    shape=shape.shape,
                    dtype=shape.dtype,
                    world=shape.world,
                    routing=shape.routing,
                    tokens_lo=band.tokens_lo,
                    tokens_hi=band.tokens_hi,
                    tokens=tuple(sorted({flip.tokens for flip in inside})),
                    reason=flip_text(worst),
                )


def flip_text(flip: Flip) -> str:
    """A flip in one line."""
    text = f"at {flip.tokens} tokens seed {flip.seed} serves {flip.other}"
    if flip.ratio is None:
        return f"{text}, which could not be compared with {flip.mine}"
    low, high = flip.ratio.low - 1, flip.ratio.high - 1
    return f"{text}: {flip.mine} takes {flip.ratio.median - 1:+.1%} ({low:+.1%} to {high:+.1%}) of its time"


def _shapes(plan: Plan) -> dict[tuple[str, tuple[str, str, int, str]], ShapePlan]:
    return {(each.name, shape.key): shape for each in plan.content.operators for shape in each.shapes}


def _shape_key(flip: Flip) -> tuple[str, str, int, str]:
    return (flip.shape, flip.dtype, flip.world, flip.routing)


def _place(operator: str, shape: ShapePlan) -> str:
    return f"{operator} {shape.shape} {shape.dtype} world={shape.world} {shape.routing}"


def _band(shape: ShapePlan | None, tokens: int) -> Band | None:
    """The band of another run; None, which is stock, where it decides nothing there."""
    return None if shape is None else shape.band(tokens)


def _key(band: Band | None) -> str:
    return STOCK if band is None or band.decision.kind == "stock" else band.decision.config


def _serves(band: Band | None, stock: Config) -> Config:
    chosen = None if band is None or band.decision.kind == "stock" else choice_of(band)
    return chosen or stock


def _baseline(shape: ShapePlan, tokens: int) -> str:
    """The fastest baseline: what stock is."""
    points = [(curve.at(tokens), curve.name) for curve in shape.curves if curve.kind == "baseline"]
    return min((point.latency.median_us, name) for point, name in points if point is not None)[1]


def _flips(
    decision: Decision,
    seeds: Sequence[int],
    measured: Mapping[tuple[Workload, Config], Measurement],
    slack: float,
) -> Iterator[Flip]:
    mine = decision.choices[0]
    for seed, other, key in zip(seeds[1:], decision.choices[1:], decision.keys[1:], strict=True):
        if key == decision.keys[0]:
            continue
        ratio, kind = _compare(decision.workload, mine, other, measured, slack)
        yield Flip(
            operator=decision.operator,
            shape=decision.shape.shape,
            dtype=decision.shape.dtype,
            world=decision.shape.world,
            routing=decision.shape.routing,
            tokens=decision.workload.tokens,
            seed=seed,
            mine=str(mine),
            other=str(other),
            choice=decision.keys[0],
            ratio=ratio,
            kind=kind,
        )


def _compare(
    workload: Workload,
    mine: Config,
    other: Config,
    measured: Mapping[tuple[Workload, Config], Measurement],
    slack: float,
) -> tuple[Ratio | None, Literal["tie", "worse", "better", "unknown"]]:
    if mine == other:
        return Ratio(median=1.0, low=1.0, high=1.0), "tie"
    one, two = measured.get((workload, mine)), measured.get((workload, other))
    if one is None or two is None or one.status is not Status.OK or two.status is not Status.OK:
        return None, "unknown"
    now, _, _ = compare(one, two, CONFIDENCE)
    if now is None:
        return None, "unknown"
    ratio = Ratio(median=now.median, low=now.low, high=now.high)
    if now.low > 1 + slack:
        return ratio, "worse"
    return ratio, "better" if 1 / now.high > 1 + slack else "tie"


def _regrets(
    own: Plan, decisions: Sequence[Decision], measured: Mapping[tuple[Workload, Config], Measurement]
) -> list[float]:
    """By run. A decision that could not be measured in one session counts for none."""
    runs = len(decisions[0].choices)
    lost, total = [0.0] * runs, 0.0
    traffic = {int(tokens): weight for tokens, weight in own.content.options.traffic.items()}
    for decision, weight in _weighted(decisions, traffic):
        times = _times(decision, measured)
        if times is None:
            continue
        best = min(times)
        total += weight * best
        for run, us in enumerate(times):
            lost[run] += weight * (us - best)
    return [each / total if total else 0.0 for each in lost]


def _weighted(decisions: Sequence[Decision], traffic: Mapping[int, float]) -> Iterator[tuple[Decision, float]]:
    by_shape: dict[tuple[object, ...], list[Decision]] = {}
    for decision in decisions:
        by_shape.setdefault((decision.operator, decision.shape.key), []).append(decision)
    for mine in by_shape.values():
        yield from zip(mine, weights_of([decision.workload for decision in mine], traffic), strict=True)


def _times(decision: Decision, measured: Mapping[tuple[Workload, Config], Measurement]) -> list[float] | None:
    """Microseconds of each run's choice, all of one session; where all decide alike, the plan's own figure."""
    if not decision.flips:
        point = next((each for each in decision.band.points if each.tokens == decision.workload.tokens), None)
        return None if point is None else [point.latency.median_us] * len(decision.choices)
    found = [measured.get((decision.workload, config)) for config in decision.choices]
    times = [each.median_us for each in found if each is not None and each.median_us is not None]
    return times if len(times) == len(found) else None
