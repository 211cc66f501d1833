"""Reading: the named queries. Times are in microseconds a launch unless a name says otherwise.

Each takes a session, returns plain values and is served by an index. Things are named by digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import case
from sqlalchemy import distinct
from sqlalchemy import func
from sqlalchemy import or_
from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db import codec
from megatune_db.models import IS_FINAL
from megatune_db.models import IS_SEARCH
from megatune_db.models import Campaign
from megatune_db.models import Config
from megatune_db.models import Measurement as Row
from megatune_db.models import Plan
from megatune_db.models import Target
from megatune_db.models import Trial
from megatune_db.models import Workload
from megatune_db.records import CampaignState
from megatune_db.records import Measurement
from megatune_db.records import PlanState
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.records import TrialState

_CHUNK = 500
"""Ids of one statement: below the least limit on parameters that SQLite has had."""


@dataclass(frozen=True)
class TargetRow:
    """A target, and how much was measured on it."""

    digest: str
    hardware: dict[str, Any]
    toolchain: dict[str, Any]
    created_at: datetime
    measurements: dict[Provenance, int]
    """Rows by provenance, of every status."""


@dataclass(frozen=True)
class CampaignRow:
    """A campaign and its progress."""

    id: int
    name: str
    file_text: str
    file_digest: str
    target: str | None
    """Digest."""
    state: CampaignState
    budget: dict[str, Any]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    measuring_s: float
    wall_s: float
    trials: dict[TrialState, int]
    reused: int
    """Trials whose measurement was there already."""
    workloads: int
    """Workloads with at least one trial."""
    statuses: dict[Status, int]
    """Distinct measurements by status."""


@dataclass(frozen=True)
class WorkloadRow:
    """A workload with measurements on one target, in one regime."""

    digest: str
    operator: str
    shape: str
    dims: dict[str, int]
    tokens: int
    dtype: str
    world: int
    routing: str
    measurements: dict[Provenance, int]
    """Rows by provenance, of every status and stage."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An ok measurement that may decide a band, with what a planner needs to know of its workload and config."""

    measurement_id: int
    workload: str
    """Digest."""
    operator: str
    shape: str
    dims: dict[str, int]
    tokens: int
    dtype: str
    world: int
    routing: str
    variant: str
    config: str
    """Digest."""
    params: dict[str, Any]
    stage: Stage
    session: str
    median_us: float
    low_us: float
    high_us: float
    n_samples: int
    provenance: Provenance


@dataclass(frozen=True)
class StatusCount:
    """How many measurements of one workload and variant ended in one status."""

    workload: str
    """Digest."""
    operator: str
    shape: str
    tokens: int
    variant: str
    status: Status
    count: int


@dataclass(frozen=True)
class PlanRow:
    """A plan; ``content`` is its canonical JSON."""

    digest: str
    name: str
    content: str
    state: PlanState
    target: str
    """Digest."""
    created_at: datetime


@dataclass(frozen=True)
class ExportRow:
    """A measurement with its workload and config spelled out: one row of a recording."""

    measurement: Measurement
    operator: str
    shape: str
    dims: dict[str, int]
    tokens: int
    dtype: str
    world: int
    routing: str
    variant: str
    params: dict[str, Any]


@dataclass(frozen=True)
class OutcomeRow:
    """What a campaign has found for one workload."""

    workload: str
    """Digest."""
    operator: str
    shape: str
    tokens: int
    stage: Stage
    """``final`` when the best and a baseline were measured interleaved, else ``search``: preliminary."""
    variant: str | None
    config: str | None
    """Digest of the best config; None while nothing but baselines is ok."""
    best_us: float | None
    baseline: str | None
    """Variant of the fastest baseline; None while no baseline is ok."""
    baseline_us: float | None


def targets(session: Session) -> list[TargetRow]:
    """Every target, the oldest first."""
    counts = session.execute(
        select(Row.target_id, Row.provenance, func.count()).group_by(Row.target_id, Row.provenance)
    ).all()
    return [
        TargetRow(
            target.digest,
            target.hardware,
            target.toolchain,
            target.created_at,
            {provenance: count for target_id, provenance, count in counts if target_id == target.id},
        )
        for target in session.scalars(select(Target).order_by(Target.id))
    ]


def campaigns(session: Session) -> list[CampaignRow]:
    """Every campaign, the newest first."""
    query = select(Campaign, Target.digest).outerjoin(Target, Target.id == Campaign.target_id)
    return [_campaign(session, row, digest) for row, digest in session.execute(query.order_by(Campaign.id.desc()))]


def campaign(session: Session, name: str) -> CampaignRow | None:
    """The campaign of that name."""
    query = select(Campaign, Target.digest).outerjoin(Target, Target.id == Campaign.target_id)
    found = session.execute(query.where(Campaign.name == name)).first()
    return None if found is None else _campaign(session, found[0], found[1])


def _campaign(session: Session, row: Campaign, target: str | None) -> CampaignRow:
    mine = Trial.campaign_id == row.id
    states = session.execute(
        select(Trial.state, func.count(), func.sum(Trial.reused)).where(mine).group_by(Trial.state)
    ).all()
    workloads = session.scalar(select(func.count(distinct(Trial.workload_id))).where(mine))
    return CampaignRow(
        id=row.id,
        name=row.name,
        file_text=row.file_text,
        file_digest=row.file_digest,
        target=target,
        state=row.state,
        budget=row.budget,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        measuring_s=row.measuring_s,
        wall_s=row.wall_s,
        trials={state: count for state, count, _ in states},
        reused=sum(int(reused) for _, _, reused in states),
        workloads=workloads or 0,
        statuses=status_counts(session, row.id),
    )


def status_counts(session: Session, campaign_id: int) -> dict[Status, int]:
    """How many distinct measurements of the campaign's trials ended in each status, reused ones included."""
    mine = select(Trial.measurement_id).where(Trial.campaign_id == campaign_id)
    query = select(Row.status, func.count().label("measurements")).where(Row.id.in_(mine)).group_by(Row.status)
    return {row.status: row.measurements for row in session.execute(query)}


def outcomes(session: Session, campaign_id: int, baselines: Sequence[str]) -> list[OutcomeRow]:
    """For each workload of the campaign the best config against the fastest baseline, by operator, shape and tokens.

    Both come from the last session of finalists that measured both; where there is none, from the search.

    :param baselines: variants that serve today.
    """
    mine = select(Trial.measurement_id).where(Trial.campaign_id == campaign_id)
    is_baseline = Config.variant.in_(baselines)
    # With min() SQLite takes the other columns from the row that has the least.
    query = (
        select(
            Row.workload_id,
            Row.stage,
            case((Row.stage == Stage.FINAL, Row.session), else_="").label("session"),
            is_baseline.label("is_baseline"),
            func.min(Row.median_us).label("best_us"),
            Config.variant,
            Config.digest,
            Row.id,
        )
        .join(Config, Config.id == Row.config_id)
        .where(Row.id.in_(mine), Row.status == Status.OK)
        .group_by(Row.workload_id, Row.stage, "session", "is_baseline")
        .order_by(Row.id)
    )
    groups: dict[int, dict[tuple[Stage, str], dict[bool, Any]]] = {}
    for row in session.execute(query):
        sessions = groups.setdefault(row.workload_id, {})
        sessions.setdefault((row.stage, row.session), {})[bool(row.is_baseline)] = row
    found = []
    for workload in _workloads(session, groups).values():
        sessions = groups[workload.id]
        paired = [key for key, pair in sessions.items() if key[0] is Stage.FINAL and len(pair) == 2]
        key = paired[-1] if paired else (Stage.SEARCH, "")
        pair = sessions.get(key, {})
        best, baseline = pair.get(False), pair.get(True)
        found.append(
            OutcomeRow(
                workload=workload.digest,
                operator=workload.operator,
                shape=workload.shape,
                tokens=workload.tokens,
                stage=key[0],
                variant=best and best.variant,
                config=best and best.digest,
                best_us=best and best.best_us,
                baseline=baseline and baseline.variant,
                baseline_us=baseline and baseline.best_us,
            )
        )
    return sorted(found, key=lambda row: (row.operator, row.shape, row.tokens))


def known_measurements(
    session: Session, *, workload: str, target: str, regime: Regime, provenance: Provenance
) -> dict[str, Measurement]:
    """Every measurement of stage ``search``, of every status, by digest of its config."""
    query = (
        select(Row, Config.digest)
        .join(Config, Config.id == Row.config_id)
        .where(
            Row.workload_id == select(Workload.id).where(Workload.digest == workload).scalar_subquery(),
            Row.target_id == _target(target),
            Row.regime == str(regime),
            Row.provenance == provenance,
            IS_SEARCH,
        )
    )
    return {
        config: codec.record(row, workload=workload, config=config, target=target)
        for row, config in session.execute(query)
    }


def workloads(session: Session, *, target: str, regime: Regime, operator: str | None = None) -> list[WorkloadRow]:
    """Workloads with measurements on the target in the regime, by operator, shape and tokens."""
    query = select(Row.workload_id, Row.provenance, func.count()).where(
        Row.target_id == _target(target), Row.regime == str(regime)
    )
    if operator is not None:
        query = query.where(Row.workload_id.in_(select(Workload.id).where(Workload.operator == operator)))
    counts: dict[int, dict[Provenance, int]] = {}
    for workload_id, provenance, count in session.execute(query.group_by(Row.provenance, Row.workload_id)):
        counts.setdefault(workload_id, {})[provenance] = count
    found = [
        WorkloadRow(w.digest, w.operator, w.shape, w.dims, w.tokens, w.dtype, w.world, w.routing, counts[w.id])
        for w in _workloads(session, counts).values()
    ]
    return sorted(found, key=lambda w: (w.operator, w.shape, w.tokens, w.dtype, w.world, w.routing))


def contenders(
    session: Session,
    *,
    target: str,
    regime: Regime,
    provenances: Sequence[Provenance],
    baselines: Sequence[str],
    operator: str | None = None,
) -> list[Contender]:
    """The ok measurements that a plan can be made of, by workload, in the order in which they were stored.

    Of each (workload, variant, provenance) these are: the fastest of stage ``search``, every other one whose interval
    begins at or below the end of the fastest's, and everything of stage ``final``. Of the variants in ``baselines``
    they are all. What is left out is slower than its variant's best beyond doubt.
    """
    ok = [
        Row.target_id == _target(target),
        Row.regime == str(regime),
        Row.provenance.in_(provenances),
        Row.status == Status.OK,
    ]
    if operator is not None:
        ok.append(Row.workload_id.in_(select(Workload.id).where(Workload.operator == operator)))
    # With min() SQLite takes the other columns from the row that has the least.
    best = (
        select(Row.workload_id, Config.variant, Row.provenance, func.min(Row.median_us), Row.high_us)
        .join(Config, Config.id == Row.config_id)
        .where(*ok, IS_SEARCH)
        .group_by(Row.workload_id, Config.variant, Row.provenance)
        .cte("best")
    )
    query = (
        select(
            Row.id,
            Row.workload_id,
            Row.config_id,
            Row.stage,
            Row.session,
            Row.median_us,
            Row.low_us,
            Row.high_us,
            (func.length(Row.samples) / codec.SAMPLE.itemsize).label("n_samples"),
            Row.provenance,
        )
        .join(Config, Config.id == Row.config_id)
        .outerjoin(
            best,
            (best.c.workload_id == Row.workload_id)
            & (best.c.variant == Config.variant)
            & (best.c.provenance == Row.provenance),
        )
        .where(*ok, or_(Row.low_us <= best.c.high_us, Row.stage == Stage.FINAL, Config.variant.in_(baselines)))
    )
    rows = session.execute(query).all()
    known_workloads = _workloads(session, {row.workload_id for row in rows})
    known_configs = _configs(session, {row.config_id for row in rows})
    found = []
    for row in sorted(rows, key=lambda row: (row.workload_id, row.id)):
        workload = known_workloads[row.workload_id]
        config = known_configs[row.config_id]
        found.append(
            Contender(
                measurement_id=row.id,
                workload=workload.digest,
                operator=workload.operator,
                shape=workload.shape,
                dims=workload.dims,
                tokens=workload.tokens,
                dtype=workload.dtype,
                world=workload.world,
                routing=workload.routing,
                variant=config.variant,
                config=config.digest,
                params=config.params,
                stage=row.stage,
                session=row.session,
                median_us=row.median_us,
                low_us=row.low_us,
                high_us=row.high_us,
                n_samples=int(row.n_samples),
                provenance=row.provenance,
            )
        )
    return found


def samples(session: Session, measurement_ids: Iterable[int]) -> dict[int, NDArray[np.float32]]:
    """Samples in microseconds by id of the measurement; empty for one that is not ok, and no entry for one unknown."""
    found = {}
    for ids in _chunks(measurement_ids):
        for row in session.execute(select(Row.id, Row.samples).where(Row.id.in_(ids))):
            found[row.id] = codec.decode_samples(row.samples)
    return found


def measurements(session: Session, measurement_ids: Iterable[int]) -> dict[int, Measurement]:
    """Full measurements by id; no entry for one unknown."""
    found = {}
    for ids in _chunks(measurement_ids):
        query = (
            select(Row, Workload.digest, Config.digest, Target.digest)
            .join(Workload, Workload.id == Row.workload_id)
            .join(Config, Config.id == Row.config_id)
            .join(Target, Target.id == Row.target_id)
            .where(Row.id.in_(ids))
        )
        for row, workload, config, target in session.execute(query):
            found[row.id] = codec.record(row, workload=workload, config=config, target=target)
    return found


def status_by_workload(
    session: Session,
    *,
    target: str,
    regime: Regime,
    provenance: Provenance = Provenance.MEASURED,
    operator: str | None = None,
) -> list[StatusCount]:
    """How the measurements of each workload and variant ended, by operator, shape, tokens and variant."""
    query = (
        select(Row.workload_id, Config.variant, Row.status, func.count())
        .join(Config, Config.id == Row.config_id)
        .where(Row.target_id == _target(target), Row.regime == str(regime), Row.provenance == provenance)
    )
    if operator is not None:
        query = query.where(Row.workload_id.in_(select(Workload.id).where(Workload.operator == operator)))
    rows = session.execute(query.group_by(Row.workload_id, Config.variant, Row.status)).all()
    known = _workloads(session, {row.workload_id for row in rows})
    found = []
    for workload_id, variant, status, count in rows:
        workload = known[workload_id]
        found.append(
            StatusCount(workload.digest, workload.operator, workload.shape, workload.tokens, variant, status, count)
        )
    return sorted(found, key=lambda row: (row.operator, row.shape, row.tokens, row.workload, row.variant, row.status))


def export_rows(
    session: Session,
    *,
    target: str,
    regime: Regime,
    provenance: Provenance = Provenance.MEASURED,
    operator: str | None = None,
) -> Iterator[ExportRow]:
    """Every measurement of every status, with its workload and config: what a recording holds.

    The order depends on the content alone: operator, shape, tokens, stage, variant, config, session. One workload is
    in memory at a time.
    """
    for workload in workloads(session, target=target, regime=regime, operator=operator):
        if not workload.measurements.get(provenance):
            continue
        for stage in (IS_SEARCH, IS_FINAL):
            query = (
                select(Row, Config.digest, Config.variant, Config.params)
                .join(Config, Config.id == Row.config_id)
                .where(
                    Row.workload_id == select(Workload.id).where(Workload.digest == workload.digest).scalar_subquery(),
                    Row.target_id == _target(target),
                    Row.regime == str(regime),
                    Row.provenance == provenance,
                    stage,
                )
                .order_by(Config.variant, Config.digest, Row.session)
            )
            for row, config, variant, params in session.execute(query).all():
                yield ExportRow(
                    codec.record(row, workload=workload.digest, config=config, target=target),
                    workload.operator,
                    workload.shape,
                    workload.dims,
                    workload.tokens,
                    workload.dtype,
                    workload.world,
                    workload.routing,
                    variant,
                    params,
                )


def plan(session: Session, digest_or_name: str) -> PlanRow | None:
    """The plan of that digest, or else the newest of that name."""
    query = select(Plan, Target.digest).join(Target, Target.id == Plan.target_id)
    found = session.execute(query.where(Plan.digest == digest_or_name)).first()
    if found is None:
        found = session.execute(query.where(Plan.name == digest_or_name).order_by(Plan.id.desc())).first()
    return None if found is None else _plan(found[0], found[1])


def plans(session: Session) -> list[PlanRow]:
    """Every plan, the newest first."""
    query = select(Plan, Target.digest).join(Target, Target.id == Plan.target_id).order_by(Plan.id.desc())
    return [_plan(row, target) for row, target in session.execute(query)]


def _plan(row: Plan, target: str) -> PlanRow:
    return PlanRow(row.digest, row.name, row.content, row.state, target, row.created_at)


def _target(digest: str) -> Any:
    return select(Target.id).where(Target.digest == digest).scalar_subquery()


def _workloads(session: Session, ids: Iterable[int]) -> dict[int, Workload]:
    return {w.id: w for chunk in _chunks(ids) for w in session.scalars(select(Workload).where(Workload.id.in_(chunk)))}


def _configs(session: Session, ids: Iterable[int]) -> dict[int, Config]:
    return {c.id: c for chunk in _chunks(ids) for c in session.scalars(select(Config).where(Config.id.in_(chunk)))}


def _chunks(ids: Iterable[int]) -> Iterator[list[int]]:
    rest = iter(sorted(set(ids)))
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk
