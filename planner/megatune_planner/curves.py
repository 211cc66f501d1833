"""Curves: latency over tokens, at one shape, of each variant's best, of each baseline, and of each exporter's best."""

from __future__ import annotations

from collections.abc import Mapping

from megatune_planner.band_schema import Curve
from megatune_planner.band_schema import CurvePoint
from megatune_planner.band_schema import Latency
from megatune_planner.evidence import Measured
from megatune_planner.ties import Candidate
from megatune_planner.ties import best


def latency_of(candidate: Candidate) -> Latency:
    return Latency(median_us=candidate.median_us, low_us=candidate.low_us, high_us=candidate.high_us)


def best_of_each(measured: Measured) -> dict[str, Candidate]:
    """Each baseline and each variant's best at one workload, by name; baselines first, then variants by name."""
    by_variant: dict[str, list[Candidate]] = {}
    for candidate in measured.candidates:
        by_variant.setdefault(candidate.variant, []).append(candidate)
    found = {baseline.variant: baseline for baseline in measured.baselines}
    return found | {variant: best(by_variant[variant]) for variant in sorted(by_variant)}


def curves(at: Mapping[int, Measured], best_at: Mapping[int, Mapping[str, Candidate]]) -> tuple[Curve, ...]:
    """The curves of one shape: baselines, then variants, then exporters, each kind by name.

    :param at: what was measured of the shape, by tokens.
    :param best_at: ``best_of_each`` of the same.
    """
    found: dict[tuple[str, str], list[CurvePoint]] = {}
    for tokens in sorted(at):
        baselines = {baseline.variant for baseline in at[tokens].baselines}
        for name, candidate in best_at[tokens].items():
            kind = "baseline" if name in baselines else "variant"
            found.setdefault((kind, name), []).append(_point(tokens, candidate))
        for exporter, candidate in at[tokens].expressible.items():
            found.setdefault(("exporter", exporter), []).append(_point(tokens, candidate))
    order = ("baseline", "variant", "exporter")
    return tuple(
        Curve.model_validate({"kind": kind, "name": name, "points": tuple(points)})
        for (kind, name), points in sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    )


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
