"""Making a plan from the measurements in a database."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from itertools import pairwise

from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import Workload
from megatune_kernels.operator import Workspace
from megatune_kernels.operator import operator
from megatune_kernels.operator import operators
from megatune_kernels.space import Config
from megatune_planner.band_schema import Band
from megatune_planner.band_schema import BandPoint
from megatune_planner.band_schema import RoutingPoint
from megatune_planner.band_schema import UseConfig
from megatune_planner.band_schema import UseStock
from megatune_planner.bands import Segment
from megatune_planner.bands import Standing
from megatune_planner.bands import find_bands
from megatune_planner.context_errors import ContextErrors
from megatune_planner.crossovers import crossovers
from megatune_planner.curves import best_of_each
from megatune_planner.curves import curves
from megatune_planner.curves import latency_of
from megatune_planner.evidence import Expresses
from megatune_planner.evidence import Measured
from megatune_planner.evidence import ShapeEvidence
from megatune_planner.evidence import gather
from megatune_planner.evidence import paired_samples
from megatune_planner.evidence import unasked
from megatune_planner.fallback import fallback_rules
from megatune_planner.gate import Gate
from megatune_planner.gate import gate_of
from megatune_planner.inputs import INPUTS
from megatune_planner.mixing import mixed
from megatune_planner.objective import Objective
from megatune_planner.objective import spelled
from megatune_planner.plan import UNITS
from megatune_planner.plan import AskedObjective
from megatune_planner.plan import Content
from megatune_planner.plan import Coverage
from megatune_planner.plan import Gap
from megatune_planner.plan import OperatorPlan
from megatune_planner.plan import Plan
from megatune_planner.plan import PlanOptions
from megatune_planner.plan import PlanTarget
from megatune_planner.plan import ShapePlan
from megatune_planner.routings import told_of_routings
from megatune_planner.routings import told_of_routings_in
from megatune_planner.stand_ins import WHY
from megatune_planner.stand_ins import compared_with
from megatune_planner.stand_ins import stands_in
from megatune_planner.stand_ins import to_beat
from megatune_planner.ties import Candidate
from megatune_planner.ties import Samples
from megatune_planner.ties import compare
from megatune_planner.ties import tie_set

EVIDENCE = (Provenance.MEASURED, Provenance.REPLAYED)
"""What counts unless it is said otherwise: figures of the target itself, taken now or recorded."""

ALIGNMENT_BYTES = 16
"""The widest access of one thread, so that operands aligned to it suit every variant."""

Preferred = Callable[[Workload], frozenset[str]]
"""Digests of the configs that win ties at a workload: the incumbent's, or the defaults."""


@dataclass(frozen=True)
class Options:
    """How to plan; see ``plan.PlanOptions``, which keeps them in the plan."""

    min_gain: float = 0.01
    tie_slack: float = 0.001
    config_cost_us: float = 0.01
    traffic: Mapping[int, float] = field(default_factory=dict)
    """Weight of a step by its tokens; empty: every measured number of tokens weighs the same."""
    objective: Objective | None = None
    """What is chosen by over the routings of a shape; None: each has bands of its own."""

    def __post_init__(self) -> None:
        for name, value in (("least gain", self.min_gain), ("tie slack", self.tie_slack)):
            if not 0 <= value < 1:
                raise MegatuneError(f"the {name} is a share from 0 to below 1, not {value}")
        if not 0 <= self.config_cost_us < float("inf"):
            raise MegatuneError(f"the cost of a config is in microseconds and not negative, not {self.config_cost_us}")
        for tokens, weight in self.traffic.items():
            if tokens < 1 or not 0 < weight < float("inf"):
                raise MegatuneError(f"traffic needs tokens of at least 1 and a positive weight, not {tokens}:{weight}")


def make_plan(
    session: Session,
    *,
    name: str,
    target: str,
    regime: Regime,
    baselines: Mapping[str, Sequence[str]],
    provenances: Sequence[Provenance] = EVIDENCE,
    options: Options | None = None,
    preferred: Preferred | None = None,
    expresses: Mapping[str, Expresses] | None = None,
    model: str | None = None,
    features: Sequence[str] = (),
    parent: str | None = None,
    context_errors: ContextErrors | None = None,
) -> Plan:
    """The plan that the measurements of one target in one regime support.

    :param target: digest.
    :param baselines: names of what serves today, by operator; operators that are not among them are left out.
    :param provenances: what counts as evidence, the most trusted first.
    :param preferred: what wins ties at a workload; nothing does when it is not given.
    :param expresses: by exporter's name, whether it can express a config: the plan then carries the best that it can.
    :param model: name of the one model that the plan is to serve; without it every model with its shapes.
    :param features: what may be switched on where the plan serves, by the names of ``features.py``.
    :param parent: digest of the plan that this one replaces.
    :param context_errors: measured at lengths of context, of the configs that serve.
    :raises MegatuneError: for an unknown target, an empty name, provenances that are no evidence, and errors at lengths
        of context that are not of what serves.
    :raises NothingMeasured: when no workload has a baseline (or, of emulated ranks, what stands in for one) and a
        config, or nothing beats its baseline.
    """
    options = options or Options()
    expresses = expresses or {}
    if not name or len(name) > 256:
        raise MegatuneError("a plan needs a name of 1 to 256 characters")
    if not provenances or Provenance.PREDICTED in provenances:
        raise MegatuneError("a plan needs evidence: predicted figures are none")
    found = next((row for row in queries.targets(session, counted=False) if row.digest == target), None)
    if found is None:
        raise MegatuneError(f"the database has no target {target!r}")
    objective = options.objective or Objective()
    evidence = gather(
        session,
        target=target,
        regime=regime,
        provenances=provenances,
        baselines=baselines,
        expresses=expresses,
        objective=objective,
    )
    samples = paired_samples(session, evidence)
    evidence = mixed(evidence, samples, objective, expresses)
    where = f"on target {target} in regime {regime}, of provenance {' or '.join(provenances)}"
    if not evidence:
        more = unasked(found.measurements, provenances)
        raise NothingMeasured(f"nothing was measured {where}: run a campaign there first{more}")
    operators: dict[str, list[ShapePlan]] = {}
    for shape in evidence:
        names = baselines[shape.workload.operator]
        planned = plan_shape(shape, samples, options, preferred, names)
        if planned is not None:
            alone = [plan_shape(each, samples, options, preferred, names) for each in shape.alone]
            planned = told_of_routings_in(planned, list(filter(None, alone)), _tied_alone(shape, samples, options))
            operators.setdefault(shape.workload.operator, []).append(planned)
    if not operators:
        shared = f" ({WHY}; two variants at the same tokens would do)" if Provenance.EMULATED in provenances else ""
        raise NothingMeasured(f"no baseline was measured {where}: without one nothing can be said to win{shared}")
    ties = _ties_of_routings(evidence, samples, options)
    plans = tuple(
        OperatorPlan(
            name=each,
            baselines=compared_with(shapes, baselines[each]),
            shapes=tuple(told_of_routings(shapes, ties.get(each, {}))),
        )
        for each, shapes in operators.items()
    )
    bands = [band for shapes in operators.values() for shape in shapes for band in shape.bands]
    if all(band.decision.kind == "stock" for band in bands):
        raise NothingMeasured(
            f"no gain worth shipping: nothing beat its baseline by {options.min_gain:.1%} beyond its interval {where}"
        )
    plan_target = PlanTarget(digest=target, hardware=found.hardware, toolchain=found.toolchain)
    return Plan.of(
        Content(
            name=name,
            parent=parent,
            target=plan_target,
            gate=_gate(plan_target, regime, plans, model, features),
            regime=str(regime),
            units=UNITS,
            options=PlanOptions(
                provenances=tuple(provenances),
                min_gain=options.min_gain,
                tie_slack=options.tie_slack,
                config_cost_us=options.config_cost_us,
                traffic={str(tokens): float(weight) for tokens, weight in sorted(options.traffic.items())},
                objective=AskedObjective(**spelled(objective)) if objective.mixes else None,
            ),
            operators=plans,
            inputs=INPUTS,
            fallback=fallback_rules(plan_target, plans, context_errors),
            coverage=_coverage(plans),
        )
    )


def _gate(
    target: PlanTarget, regime: Regime, plans: Sequence[OperatorPlan], model: str | None, features: Sequence[str]
) -> Gate:
    shapes = [shape for plan in plans for shape in plan.shapes]
    configs = [(b, b.decision) for shape in shapes for b in shape.bands if b.decision.kind == "config"]
    return gate_of(
        hardware=target.hardware,
        toolchain=target.toolchain,
        execution=regime.execution,
        dtypes=[shape.dtype for shape in shapes],
        worlds=[shape.world for shape in shapes],
        max_tokens=max(band.tokens_hi or band.tokens_lo for band, _ in configs),
        resident=any(decision.resident for _, decision in configs),
        model=model,
        features=features,
    )


def plan_shape(
    evidence: ShapeEvidence,
    samples: Samples,
    options: Options,
    preferred: Preferred | None,
    baselines: Sequence[str],
) -> ShapePlan | None:
    """What is decided for one shape; None when no baseline was measured of it, nor anything stands in for one.

    :param samples: of the finalists, by id of the measurement.
    :param baselines: names.
    """
    samples = samples if evidence.mix is None else evidence.joined
    standings: list[Standing] = []
    gaps: list[Gap] = []
    for tokens, measured in sorted(evidence.at.items()):
        gaps += (Gap(tokens=tokens, reason=reason) for reason in measured.gaps)
        rivals = to_beat(measured)
        if not rivals:
            if not measured.gaps:
                where = "" if evidence.mix is None else f" at each of {', '.join(evidence.mix.routings)}"
                gaps.append(Gap(tokens=tokens, reason=f"no baseline was measured{where}"))
            continue
        standings.append(
            Standing.of(
                tokens,
                min(rivals, key=_speed),
                measured.candidates,
                samples,
                min_gain=options.min_gain,
                tie_slack=options.tie_slack,
                preferred=preferred(measured.workload) if preferred else frozenset(),
                searched=min(measured.searched_baselines, key=_speed, default=None),
            )
        )
        if measured.outdated:
            gaps.append(Gap(tokens=tokens, reason="measured with another revision of the kernels alone: measure again"))
        elif not measured.candidates and not measured.gaps:
            gaps.append(Gap(tokens=tokens, reason="no config was measured: nothing but the baseline is known"))
    if not standings:
        return None
    segments = find_bands(standings, traffic=options.traffic, config_cost_us=options.config_cost_us)
    workload = evidence.workload
    decided = {standing.tokens: evidence.at[standing.tokens] for standing in standings}
    fast = {standing.tokens: _fast_baselines(standing, decided, samples, options) for standing in standings}
    bands = tuple(_bands(evidence, segments, standings, fast, options))
    best = {tokens: best_of_each(measured) for tokens, measured in decided.items()}
    return ShapePlan(
        shape=workload.shape,
        dims=dict(workload.dims),
        dtype=workload.dtype,
        world=workload.world,
        routing=evidence.routing,
        measured_tokens=tuple(decided),
        gaps=tuple(gaps),
        curves=curves(decided, best),
        bands=bands,
        crossovers=crossovers(workload, best, bands, samples, baselines=baselines),
        revision=evidence.revision,
        mix=evidence.mix,
    )


def _tied_alone(evidence: ShapeEvidence, samples: Samples, options: Options) -> set[tuple[str, int, str]]:
    """Routing, tokens and digest of every config that ties with the fastest at one routing of a mix."""
    return {
        (name, tokens, candidate.config)
        for tokens, measured in evidence.at.items()
        for name, here in measured.alone.items()
        for candidate in tie_set(here.candidates, samples, options.tie_slack)
    }


def _ties_of_routings(
    evidence: Sequence[ShapeEvidence], samples: Samples, options: Options
) -> dict[str, dict[tuple[str, str, int], set[tuple[str, int, str]]]]:
    """By operator, and by shape, dtype and world, of shapes with several routings: routing, tokens and digest of every
    config that ties with the fastest at one of them."""
    families: dict[tuple[str, tuple[str, str, int]], list[ShapeEvidence]] = {}
    for each in evidence:
        workload = each.workload
        families.setdefault((workload.operator, (workload.shape, workload.dtype, workload.world)), []).append(each)
    found: dict[str, dict[tuple[str, str, int], set[tuple[str, int, str]]]] = {}
    for (name, place), routed in families.items():
        if len(routed) > 1:
            found.setdefault(name, {})[place] = {
                (each.routing, tokens, candidate.config)
                for each in routed
                for tokens, measured in each.at.items()
                for candidate in tie_set(measured.candidates, samples, options.tie_slack)
            }
    return found


def _speed(baseline: Candidate) -> tuple[float, str]:
    return (baseline.median_us, baseline.variant)


def _fast_baselines(
    standing: Standing, at: Mapping[int, Measured], samples: Samples, options: Options
) -> dict[str, Candidate]:
    """The fastest baseline and those that tie with it, by name."""
    return {
        baseline.variant: baseline
        for baseline in to_beat(at[standing.tokens])
        if baseline is standing.baseline or compare(baseline, standing.baseline, samples).low <= 1 + options.tie_slack
    }


def _bands(
    evidence: ShapeEvidence,
    segments: Sequence[Segment],
    standings: Sequence[Standing],
    fast: Mapping[int, Mapping[str, Candidate]],
    options: Options,
) -> Iterator[Band]:
    for segment, baseline in _by_baseline(segments, standings, fast):
        inside = [standing for standing in standings if segment.lo <= standing.tokens <= segment.hi]
        points = tuple(
            _point(evidence.at[standing.tokens], standing, segment.config, fast[standing.tokens].get(baseline))
            for standing in inside
        )
        yield Band(
            tokens_lo=segment.lo,
            tokens_hi=segment.hi,
            # What stands in for a baseline serves nowhere: stock is not known then.
            decision=_decision(evidence.workload, segment, "" if stands_in(evidence, points) else baseline, standings),
            reason=_reason(evidence, segment, points, standings[0].tokens, options),
            points=points,
            measured_share=len(points) / (segment.hi - segment.lo + 1),
        )
    yield Band(
        tokens_lo=segments[-1].hi + 1,
        tokens_hi=None,
        decision=UseStock(),
        reason=f"more than the {segments[-1].hi} tokens that were measured at most",
        points=(),
        measured_share=0,
    )


def _by_baseline(
    segments: Sequence[Segment], standings: Sequence[Standing], fast: Mapping[int, Mapping[str, Candidate]]
) -> Iterator[tuple[Segment, str]]:
    """The segments, those of stock cut where another baseline is the fastest, and which serves in each.

    It is empty where no baseline does. One that ties with the fastest goes on serving. Tokens between two measured
    ones go with the larger, as if padded.
    """
    for segment in segments:
        inside = [standing for standing in standings if segment.lo <= standing.tokens <= segment.hi]
        if segment.config is not None or not inside:
            yield segment, ""
            continue
        serving, lo = inside[0].baseline.variant, segment.lo
        for before, here in pairwise(inside):
            if serving not in fast[here.tokens]:
                yield Segment(lo, before.tokens, None), serving
                serving, lo = here.baseline.variant, before.tokens + 1
        yield Segment(lo, segment.hi, None), serving


def _decision(
    workload: Workload, segment: Segment, baseline: str, standings: Sequence[Standing]
) -> UseConfig | UseStock:
    if segment.config is None:
        return UseStock(baseline=baseline or None)
    found = next(s.by_config[segment.config] for s in standings if segment.config in s.by_config)
    workspace, resident = _needs(workload, Config.of(found.variant, dict(found.params)), segment)
    return UseConfig(
        variant=found.variant,
        params=dict(found.params),
        config=found.config,
        workspace_bytes=workspace.bytes,
        workspace_alignment_bytes=workspace.alignment,
        alignment_bytes=ALIGNMENT_BYTES,
        resident=resident,
    )


def _needs(workload: Workload, config: Config, segment: Segment) -> tuple[Workspace, bool]:
    """The most memory of a rank that a config needs within a band, and whether blocks of a kernel of it wait for one
    another.

    :raises MegatuneError: for a config that the installed operator does not know.
    """
    known = operators().get(workload.operator)
    if workload.world == 1 and not (known and known.waits):
        # Nobody else writes; and tables of other runtimes are planned that no kernel here has.
        return Workspace(), False
    tuned = operator(workload.operator)
    try:
        # Where in the band it needs the most the kernel alone knows.
        needs = [tuned.workspace(workload.at(tokens), config) for tokens in range(segment.lo, segment.hi + 1)]
        parts = tuned.parts(workload.at(segment.hi), config)
        resident = any(operator(part.workload.operator).launch(part.workload, part.config).resident for part in parts)
    except (KeyError, TypeError, ValueError) as error:
        raise MegatuneError(
            f"the installed kernels have no {config} for {workload.operator} ({error}): "
            "plan with the Megatune that measured it, or measure again"
        ) from error
    return Workspace(max(n.bytes for n in needs), max(n.alignment for n in needs)), resident


def _point(measured: Measured, standing: Standing, config: str | None, serving_baseline: Candidate | None) -> BandPoint:
    baseline = serving_baseline or standing.baseline
    serving = baseline if config is None else standing.by_config[config]
    evidence = {each.measurement_id: each.provenance for each in (*serving.measured, *baseline.measured)}
    at_each = zip(measured.alone.items(), serving.behind, baseline.behind, strict=False)
    return BandPoint(
        tokens=standing.tokens,
        latency=latency_of(serving),
        baseline=baseline.variant,
        baseline_latency=latency_of(baseline),
        gain=1 - serving.median_us / baseline.median_us,
        paired=config is not None and standing.wins[config].paired,
        tie_set_size=len(standing.ties),
        provenance=tuple(sorted(set(evidence.values()))),
        evidence=tuple(evidence),
        routings=tuple(
            RoutingPoint(
                routing=name,
                latency=latency_of(mine),
                baseline_latency=latency_of(its),
                evidence=tuple(dict.fromkeys((mine.measurement_id, its.measurement_id))),
                facts=here.facts,
            )
            for (name, here), mine, its in at_each
        ),
        facts=measured.facts,
    )


def _reason(
    evidence: ShapeEvidence, segment: Segment, points: Sequence[BandPoint], smallest: int, options: Options
) -> str:
    alone = stands_in(evidence, points)
    why = f" ({WHY})" if alone else ""
    if segment.config is not None:
        if not points:
            return "lies between measured tokens"
        gains = sorted(point.gain for point in points)
        span = f"{gains[0]:.1%}" if len(gains) == 1 else f"{gains[0]:.1%} to {gains[-1]:.1%}"
        return f"{span} less time than {' and '.join(sorted({point.baseline for point in points}))}{why}"
    if points:
        rival = "the slowest variant" if alone else "the baseline"
        return f"nothing beat {rival} by {options.min_gain:.1%} beyond its interval{why}"
    if segment.hi < smallest:
        return f"fewer than the {smallest} tokens that were measured at least"
    return "lies between measured tokens whose configs do not win at each other's"


def _coverage(operators: Sequence[OperatorPlan]) -> Coverage:
    counts: dict[Provenance, int] = {}
    measured = total = 0
    for each in operators:
        for shape in each.shapes:
            for curve in shape.curves:
                if curve.kind != "exporter":
                    for point in curve.points:
                        counts[point.provenance] = counts.get(point.provenance, 0) + 1
            measured += len(shape.measured_tokens)
            total += shape.measured_tokens[-1]
    share = measured / total
    return Coverage(measurements=dict(sorted(counts.items())), measured_share=share, predicted_share=1 - share)
