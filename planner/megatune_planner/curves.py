"""Curves: latency over tokens, at one shape, of each variant's best, of each baseline, and of each exporter's best."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping

from megatune_planner.evidence import Measured
from megatune_planner.plan import Curve
from megatune_planner.plan import CurvePoint
from megatune_planner.plan import Latency
from megatune_planner.ties import Candidate
from megatune_planner.ties import best


def latency_of(candidate: Candidate) -> Latency:
    return Latency(median_us=candidate.median_us, low_us=candidate.low_us, high_us=candidate.high_us)


def curves(at: Mapping[int, Measured]) -> tuple[Curve, ...]:
    """The curves of one shape: baselines, then variants, then exporters, each kind by name.

    :param at: what was measured of the shape, by tokens.
    """
    found: dict[tuple[str, str], list[CurvePoint]] = {}
    for tokens in sorted(at):
        measured = at[tokens]
        for candidate in measured.baselines:
            found.setdefault(("baseline", candidate.variant), []).append(_point(tokens, candidate))
        for variant, mine in _by_variant(measured.candidates).items():
            found.setdefault(("variant", variant), []).append(_point(tokens, best(mine)))
        for exporter, candidate in measured.expressible.items():
            found.setdefault(("exporter", exporter), []).append(_point(tokens, candidate))
    order = ("baseline", "variant", "exporter")
    return tuple(
        Curve.model_validate({"kind": kind, "name": name, "points": tuple(points)})
        for (kind, name), points in sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    )


def _by_variant(candidates: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    found: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        found.setdefault(candidate.variant, []).append(candidate)
    return found


def _point(tokens: int, candidate: Candidate) -> CurvePoint:
    return CurvePoint(
        tokens=tokens,
        variant=candidate.variant,
        params=dict(candidate.params),
        config=candidate.config,
        latency=latency_of(candidate),
        stage=candidate.stage,
        provenance=candidate.provenance,
        evidence=candidate.measurement_id,
    )
