"""Everything that is known of one shape on one target: curves, bands, crossovers, ties, floors and predictions.

It is what a plan would say of the shape now, without making the whole plan, so that a person can look around.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db.queries import ShapeRow
from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import operators
from megatune_kernels.space import Config
from megatune_planner.curves import best_of_each
from megatune_planner.evidence import Measured
from megatune_planner.evidence import ShapeEvidence
from megatune_planner.evidence import gather
from megatune_planner.evidence import paired_samples
from megatune_planner.latency_model import Prediction
from megatune_planner.latency_model import fit
from megatune_planner.limits import Floor
from megatune_planner.limits import floor
from megatune_planner.limits import links_of
from megatune_planner.limits import rated
from megatune_planner.plan import ShapePlan
from megatune_planner.planning import Options
from megatune_planner.planning import plan_shape
from megatune_planner.predictions import cells_of
from megatune_planner.preferred import defaults_on
from megatune_planner.ties import Candidate
from megatune_planner.ties import Comparison
from megatune_planner.ties import Samples
from megatune_planner.ties import best
from megatune_planner.ties import compare
from megatune_planner.ties import tie_set

SAME = Comparison(1.0, 1.0, 1.0, paired=True)
"""Of the best with itself."""
PLACES = 60
"""Tokens at which a predicted curve is drawn."""


@dataclass(frozen=True)
class Tie:
    """A config that the samples cannot tell from the fastest at its workload."""

    candidate: Candidate
    over_best: Comparison
    """Its time over that of the best."""


@dataclass(frozen=True)
class ShapeView:
    """What is known of one shape on one target, in one regime and of one provenance."""

    row: ShapeRow
    revision: str
    """Of the kernels; empty where it is not known."""
    candidates: Mapping[int, tuple[Candidate, ...]]
    """By tokens, the configs that may be the best there or elsewhere; the fastest first, baselines not among them."""
    baselines: Mapping[int, tuple[Candidate, ...]]
    """By tokens, the fastest first."""
    ties: Mapping[int, tuple[Tie, ...]]
    """By tokens; the best first."""
    plan: ShapePlan | None
    """What planning decides; None where no baseline was measured."""
    floors: Mapping[str, Mapping[int, Floor]]
    """By name of a variant or baseline and by tokens, the least time for what its best config must move and compute;
    empty for a GPU whose speeds are not known, and where ranks shared one."""

    def floor(self, tokens: int) -> Floor | None:
        """The least time that any variant or baseline could take."""
        known = [mine[tokens] for mine in self.floors.values() if tokens in mine]
        return min(known, key=lambda each: each.us, default=None)

    def share(self, name: str, tokens: int, median_us: float) -> float | None:
        """Achieved bandwidth as a share of the rated one: the least time over the measured one."""
        least = self.floors.get(name, {}).get(tokens)
        return None if least is None else least.us / median_us


def shape_view(session: Session, row: ShapeRow) -> ShapeView:
    """What is known of the shape.

    :raises MegatuneError: when the operator is not installed, or no measurement of the shape is left.
    """
    tuned = operators().get(row.operator)
    if tuned is None:
        raise MegatuneError(
            f"the operator {row.operator!r} is not installed here, so that its measurements cannot be read; "
            f"there are {', '.join(sorted(operators()))}"
        )
    found = gather(
        session,
        target=row.target,
        regime=row.regime,
        provenances=[row.provenance],
        baselines={row.operator: tuned.baselines},
        expresses={},
        only=[digest for _, digest in row.workloads],
    )
    if not found:
        raise MegatuneError(f"nothing is left of {row.operator} {row.shape}: choose another shape")
    evidence = found[0]
    samples = paired_samples(session, found)
    hardware = _hardware(session, row.target)
    preferred = defaults_on(str(hardware.get("arch")))
    return ShapeView(
        row=row,
        revision=evidence.revision,
        candidates={tokens: _by_speed(at.candidates) for tokens, at in sorted(evidence.at.items())},
        baselines={tokens: _by_speed(at.baselines) for tokens, at in sorted(evidence.at.items())},
        ties={tokens: _ties(at, samples) for tokens, at in sorted(evidence.at.items())},
        plan=plan_shape(evidence, samples, Options(), preferred, tuned.baselines),
        floors=_floors(evidence, hardware, row),
    )


def predicted_curves(
    session: Session, row: ShapeRow, others: tuple[ShapeRow, ...]
) -> dict[str, tuple[tuple[int, Prediction], ...]]:
    """What the latency model says of a shape between its measured tokens, by variant: a prediction, never a figure.

    :param others: the shapes that the model may be fitted to; those of the same operator, target, regime and
        provenance are.
    :raises MegatuneError: when the model has too few cells, or does not know the shape.
    """
    kin = [
        other
        for other in others
        if (other.operator, other.target, other.regime, other.provenance)
        == (row.operator, row.target, row.regime, row.provenance)
    ]
    cells = cells_of(
        session,
        targets=[row.target],
        regime=row.regime,
        provenance=row.provenance,
        operator=row.operator,
        only=[digest for other in kin for _, digest in other.workloads],
    )
    models = fit(cells)
    measured = [tokens for tokens, _ in row.workloads]
    places = sorted({*measured, *np.geomspace(measured[0], measured[-1], PLACES).round().astype(int).tolist()})
    found = {}
    for name, model in models.items():
        low, high = model.tokens.get(row.dims["width"], (0, -1))
        said = [
            (tokens, model.predict(row.world, row.dims["width"], tokens)) for tokens in places if low <= tokens <= high
        ]
        if said:
            found[name] = tuple(said)
    return found


def _by_speed(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(candidates, key=lambda candidate: (candidate.median_us, candidate.config)))


def _ties(measured: Measured, samples: Samples) -> tuple[Tie, ...]:
    if not measured.candidates:
        return ()
    first = best(measured.candidates)
    ties = [
        Tie(each, SAME if each is first else compare(each, first, samples))
        for each in tie_set(measured.candidates, samples)
    ]
    return tuple(sorted(ties, key=lambda tie: (tie.candidate is not first, tie.over_best.ratio)))


def _hardware(session: Session, target: str) -> Mapping[str, Any]:
    return next((each.hardware for each in queries.targets(session, counted=False) if each.digest == target), {})


def _floors(evidence: ShapeEvidence, hardware: Mapping[str, Any], row: ShapeRow) -> dict[str, dict[int, Floor]]:
    speeds, links = rated(hardware), links_of(hardware)
    # Ranks that share one GPU send nothing over links, and have only a part of it.
    if speeds is None or (row.world > 1 and (links is None or row.provenance is Provenance.EMULATED)):
        return {}
    tuned = operators()[row.operator]
    found: dict[str, dict[int, Floor]] = {}
    for tokens, measured in sorted(evidence.at.items()):
        workload = measured.workload
        cached = row.regime.weights == "warm" or not tuned.rotating_bytes(workload)
        for name, candidate in best_of_each(measured).items():
            least = floor(tuned.cost(workload, Config.of(name, dict(candidate.params))), speeds, links, cached=cached)
            if least is not None:
                found.setdefault(name, {})[tokens] = least
    return found
