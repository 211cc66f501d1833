"""The best configs: of a campaign, and of every target that measured a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case
from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db.dialects import least
from megatune_db.models import IS_SEARCH
from megatune_db.models import Config
from megatune_db.models import Measurement as Row
from megatune_db.models import Target
from megatune_db.models import Trial
from megatune_db.queries._lookup import workload_id
from megatune_db.queries._lookup import workloads_by_id
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status


@dataclass(frozen=True)
class OutcomeRow:
    """What a campaign has found for one workload."""

    workload: str
    """Digest."""
    operator: str
    shape: str
    routing: str
    tokens: int
    regime: Regime
    provenance: Provenance
    stage: Stage
    """``final`` when the best and a baseline were measured interleaved, else ``search``: preliminary."""
    variant: str | None
    config: str | None
    """Digest of the best config; None while nothing but baselines is ok."""
    best_us: float | None
    baseline: str | None
    """Variant of the fastest baseline; None while no baseline is ok."""
    baseline_us: float | None


@dataclass(frozen=True)
class IncumbentRow:
    """The fastest config of stage ``search`` of a workload on one target."""

    target: str
    """Digest."""
    provenance: Provenance
    config: str
    """Digest."""
    variant: str
    params: dict[str, Any]
    median_us: float


def outcomes(session: Session, campaign_id: int, baselines: Sequence[str]) -> list[OutcomeRow]:
    """The best config of each workload against its fastest baseline, by operator, shape, routing and tokens.

    Both come from the last session of finalists that measured both; where there is none, from the search. A campaign
    that was run again under another regime or with another runner has a row for each: they are never compared.

    :param baselines: variants that serve today.
    """
    mine = select(Trial.measurement_id).where(Trial.campaign_id == campaign_id)
    paired_in = case((Row.stage == Stage.FINAL, Row.session), else_="")
    is_baseline = Config.variant.in_(baselines)
    keys = (Row.workload_id, Row.regime, Row.provenance, paired_in.label("paired_in"), is_baseline.label("is_baseline"))
    measured_ok = (
        select(*keys, Config.variant, Config.digest, Row.id)
        .join(Config, Config.id == Row.config_id)
        .where(Row.id.in_(mine), Row.status == Status.OK)
    )
    query = least(session, measured_ok, Row.median_us, keys, Row.id)
    sessions: dict[tuple[int, str, Provenance], dict[str, dict[bool, Any]]] = {}
    # The last id is the last session's.
    for row in sorted(session.execute(query), key=lambda row: row.id):
        of_one = sessions.setdefault((row.workload_id, row.regime, row.provenance), {})
        of_one.setdefault(row.paired_in, {})[bool(row.is_baseline)] = row
    known = workloads_by_id(session, {key[0] for key in sessions})
    found = []
    for (measured, regime, provenance), of_one in sessions.items():
        paired = [name for name, pair in of_one.items() if name and len(pair) == 2]
        pair = of_one.get(paired[-1] if paired else "", {})
        best, baseline = pair.get(False), pair.get(True)
        workload = known[measured]
        found.append(
            OutcomeRow(
                workload=workload.digest,
                operator=workload.operator,
                shape=workload.shape,
                routing=workload.routing,
                tokens=workload.tokens,
                regime=Regime.parse(regime),
                provenance=provenance,
                stage=Stage.FINAL if paired else Stage.SEARCH,
                variant=None if best is None else best.variant,
                config=None if best is None else best.digest,
                best_us=None if best is None else best.least_value,
                baseline=None if baseline is None else baseline.variant,
                baseline_us=None if baseline is None else baseline.least_value,
            )
        )
    return sorted(
        found, key=lambda row: (row.operator, row.shape, row.routing, row.tokens, str(row.regime), row.provenance)
    )


def incumbents(
    session: Session, *, workload: str, regime: Regime, baselines: Sequence[str], upto: int | None = None
) -> list[IncumbentRow]:
    """The fastest config of the workload for each target and provenance, the latest target first.

    Figures of two targets are not comparable; the configs are where a search on another target may begin.

    :param workload: digest.
    :param baselines: variants that serve today, which are left out.
    :param upto: the greatest id of a measurement that counts; None for all.
    """
    query = (
        select(
            Row.target_id,
            Target.digest.label("target"),
            Row.provenance,
            Config.digest.label("config"),
            Config.variant,
            Config.params,
        )
        .join(Config, Config.id == Row.config_id)
        .join(Target, Target.id == Row.target_id)
        .where(
            Row.workload_id == workload_id(workload),
            IS_SEARCH,
            Row.regime == str(regime),
            Row.status == Status.OK,
            Config.variant.not_in(baselines),
        )
    )
    if upto is not None:
        query = query.where(Row.id <= upto)
    found = session.execute(least(session, query, Row.median_us, (Row.target_id, Row.provenance), Row.id)).all()
    return [IncumbentRow(*list(row)[1:]) for row in sorted(found, key=lambda row: (-row.target_id, row.provenance))]
