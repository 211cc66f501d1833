"""How deep to prefetch: the best time of a chain by depth, where its optimum lies, and from which tokens it hurts.

Depth 0 is the chain without prefetch, with programmatic launches where they win: the variant ``plain``. A plan needs no
words of its own for it. A band that says ``plain`` or stock has depth 0, and the crossover of ``prefetch`` and
``plain`` holds what that rests on. A depth's best config comes from all that was measured, of which a plan keeps the
deciding part alone, so that the curve is asked of the database.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Literal

from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db.queries import ShapeRow
from megatune_kernels.crossing import side
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.prefetch.space import PLAIN
from megatune_kernels.prefetch.space import PREFETCH
from megatune_kernels.space import Config
from megatune_kernels.statistics import Interval
from megatune_planner.band_schema import UseConfig
from megatune_planner.band_schema import UseStock
from megatune_planner.evidence import Expresses
from megatune_planner.evidence import Measured
from megatune_planner.evidence import gather
from megatune_planner.evidence import paired_samples
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.ties import Candidate
from megatune_planner.ties import Comparison
from megatune_planner.ties import Samples
from megatune_planner.ties import best
from megatune_planner.ties import compare
from megatune_planner.ties import tie_set

OPERATOR = "prefetch"
DEPTH = "depth_mib"
TIE_SLACK = 0.001
"""Share of the best's time up to which a difference does not count, as in planning."""

Verdict = Literal["helps", "hurts", "tie"]


@dataclass(frozen=True)
class DepthPoint:
    """The best config of one depth."""

    depth_mib: int
    """0: without prefetch."""
    candidate: Candidate
    over_best: Comparison
    """Its time over that of the best depth."""
    over_off: Comparison | None
    """Its time over that of depth 0; None where depth 0 was not measured."""


@dataclass(frozen=True)
class DepthCurve:
    """A chain's best time by depth, at one number of tokens."""

    workload: Workload
    points: tuple[DepthPoint, ...]
    """Ascending in depth; at least one."""
    baseline: Candidate | None
    """The chain without prefetch and without programmatic launches; None where it was not measured."""
    best_mib: int
    """The fastest depth; a finalist stands for those that its own interval cannot tell from it."""
    ties_mib: tuple[int, ...]
    """Depths that are not significantly slower than the best, itself included, ascending."""
    low_mib: int
    """The interval of the optimum: from here to ``high_mib`` every measured depth ties with the best."""
    high_mib: int

    @property
    def interior(self) -> bool:
        """Whether lesser depths and greater ones were measured, and all of the nearest are slower."""
        return self.points[0].depth_mib < self.low_mib and self.high_mib < self.points[-1].depth_mib

    @property
    def verdict(self) -> Verdict | None:
        """What the best depth above 0 does to the chain, by the measure that a crossover has; None without both."""
        deep = [point for point in self.points if point.depth_mib]
        if not deep or deep[0].over_off is None:
            return None
        chosen = best([point.candidate for point in deep])
        ratio = next(point.over_off for point in deep if point.candidate is chosen)
        assert ratio is not None
        verdicts: Mapping[int, Verdict] = {1: "hurts", -1: "helps", 0: "tie"}
        return verdicts[side(Interval(ratio.ratio, ratio.low, ratio.high))]

    def at(self, depth_mib: int) -> DepthPoint:
        """:raises KeyError: for a depth that was not measured."""
        found = next((point for point in self.points if point.depth_mib == depth_mib), None)
        if found is None:
            raise KeyError(depth_mib)
        return found


@dataclass(frozen=True)
class Off:
    """From which tokens a plan prefetches nothing, and what that rests on."""

    tokens_lo: int
    """The first measured tokens from which no band prefetches."""
    hurts: tuple[int, ...]
    """Measured tokens from there at which the best prefetch is slower than none, ascending."""
    ties: tuple[int, ...]
    """Where the two are within the noise."""
    evidence: tuple[int, ...]
    """Ids of the measurements of both, at all of these."""


def depth_of(decision: UseConfig | UseStock) -> int:
    """MiB that a band's decision prefetches; 0 where it prefetches nothing.

    :raises MegatuneError: when it does not say how many.
    """
    if decision.kind == "stock" or decision.variant != PREFETCH:
        return 0
    depth = decision.params.get(DEPTH)
    if type(depth) is not int:
        raise MegatuneError(f"a config of {PREFETCH} has {DEPTH} {depth!r}, which is no number of MiB")
    return depth


def off_from(shape: ShapePlan) -> Off | None:
    """From which tokens a plan's chain is better without prefetch; None where it prefetches at the last measured."""
    tokens = [
        point.tokens
        for point in takewhile(
            lambda point: not depth_of(shape.band(point.tokens).decision),
            (point for band in reversed(shape.bands) for point in reversed(band.points)),
        )
    ]
    if not tokens:
        return None
    crossover = next((each for each in shape.crossovers if {each.below, each.above} == {PREFETCH, PLAIN}), None)
    points = [point for point in (crossover.points if crossover else ()) if point.tokens >= tokens[-1]]
    return Off(
        tokens_lo=tokens[-1],
        hurts=tuple(point.tokens for point in points if point.faster == PLAIN),
        ties=tuple(point.tokens for point in points if point.faster is None),
        evidence=tuple(sorted({id_ for point in points if point.faster != PREFETCH for id_ in point.evidence})),
    )


def off_text(shape: ShapePlan) -> str:
    """``off_from`` in one line; empty where there is nothing to say."""
    found = off_from(shape)
    if found is None:
        return ""
    words = [f"depth 0 from {found.tokens_lo} tokens on"]
    if found.hurts:
        words.append(f"prefetch is slower at {', '.join(map(str, found.hurts))}")
    if found.ties:
        words.append(f"a tie at {', '.join(map(str, found.ties))}")
    return "; ".join(words)


def depth_curve(session: Session, row: ShapeRow, tokens: int) -> DepthCurve:
    """The curve of a chain that was measured.

    :param row: of the operator ``prefetch``, as ``queries.measured_shapes`` has it.
    :raises NothingMeasured: when no config of the chain works at these tokens.
    """
    found = [curve for curve in depth_curves(session, row) if curve.workload.tokens == tokens]
    if not found:
        raise NothingMeasured(f"no depth of {row.operator} {row.shape} was measured at {tokens} tokens: measure it")
    return found[0]


def depth_curves(session: Session, row: ShapeRow) -> tuple[DepthCurve, ...]:
    """The curves of a chain at all of its measured tokens, ascending; figures of one revision of the kernels alone."""
    points = queries.parameter_curves(session, row=row, variant=PREFETCH, parameter=DEPTH)
    depths = sorted({int(point.value) for point in points})
    # The best of each depth is looked for as the best is that an exporter can express: all rows in one pass.
    expresses: dict[str, Expresses] = {str(depth): partial(_has_depth, depth) for depth in (0, *depths)}
    shapes = gather(
        session,
        target=row.target,
        regime=row.regime,
        provenances=[row.provenance],
        baselines={row.operator: operator(row.operator).baselines},
        expresses=expresses,
        only=[digest for _, digest in row.workloads],
    )
    samples = paired_samples(session, shapes)
    every = (measured for shape in shapes for _, measured in sorted(shape.at.items()))
    return tuple(_curve(measured, samples) for measured in every if measured.expressible)


def depth_curves_of(session: Session, plan: Plan) -> tuple[DepthCurve, ...]:
    """The curves of a plan's chains, from the measurements that are still there; none for a plan without chains."""
    names = {shape.key for each in plan.content.operators if each.name == OPERATOR for shape in each.shapes}
    if not names:
        return ()
    rows = [
        row
        for row in queries.measured_shapes(session)
        if row.operator == OPERATOR
        and (row.shape, row.dtype, row.world, row.routing) in names
        and (row.target, str(row.regime)) == (plan.content.target.digest, plan.content.regime)
    ]
    chosen: dict[str, ShapeRow] = {}
    for provenance in plan.content.options.provenances:
        for row in rows:
            if row.provenance is provenance:
                chosen.setdefault(row.shape, row)
    return tuple(curve for _, row in sorted(chosen.items()) for curve in depth_curves(session, row))


def depth_text(curve: DepthCurve) -> str:
    """A curve's optimum in one line."""
    optimum = curve.at(curve.best_mib)
    us = f"{optimum.candidate.median_us:.2f} µs"
    text = f"{curve.workload.shape} at {curve.workload.tokens} tokens: best at {curve.best_mib} MiB, {us}"
    if curve.interior:
        text += f", an interior optimum within {curve.low_mib} to {curve.high_mib} MiB"
    else:
        text += f", not told from {curve.low_mib} to {curve.high_mib} MiB, where measuring ended"
    others = [depth for depth in curve.ties_mib if not curve.low_mib <= depth <= curve.high_mib]
    if others:
        text += f"; ties at {', '.join(map(str, others))} MiB"
    if optimum.over_off is not None and curve.best_mib:
        text += f"; {1 / optimum.over_off.ratio:.2f}x over depth 0"
    if curve.verdict is not None:
        text += f"; prefetch {'ties' if curve.verdict == 'tie' else curve.verdict}"
    return text


def _has_depth(depth: int, workload: Workload, config: Config) -> bool:
    if config.variant == PLAIN:
        return depth == 0
    return config.variant == PREFETCH and config.params.get(DEPTH) == depth


def _curve(measured: Measured, samples: Samples) -> DepthCurve:
    of = {int(depth): candidate for depth, candidate in measured.expressible.items()}
    depths = sorted(of)
    first, off = best(list(of.values())), of.get(0)
    ties = {tie.config for tie in tie_set(list(of.values()), samples, TIE_SLACK)}
    tied = [of[depth].config in ties for depth in depths]
    place = next(index for index, depth in enumerate(depths) if of[depth] is first)
    below, above = _run(reversed(tied[:place])), _run(tied[place + 1 :])
    return DepthCurve(
        workload=measured.workload,
        points=tuple(
            DepthPoint(
                depth_mib=depth,
                candidate=of[depth],
                over_best=compare(of[depth], first, samples),
                over_off=None if off is None else compare(of[depth], off, samples),
            )
            for depth in depths
        ),
        baseline=_fastest(measured.baselines),
        best_mib=depths[place],
        ties_mib=tuple(depth for depth, is_tied in zip(depths, tied, strict=True) if is_tied),
        low_mib=depths[place - below],
        high_mib=depths[place + above],
    )


def _run(tied: Iterable[bool]) -> int:
    """How many ties come first."""
    return sum(1 for _ in takewhile(bool, tied))


def _fastest(baselines: Sequence[Candidate]) -> Candidate | None:
    return min(baselines, key=lambda each: each.median_us, default=None)
