"""What a database holds at a glance: the shapes that were measured, and what failed. Nothing here reads every row."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import exists
from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy import text
from sqlalchemy.orm import Session

from megatune_db import codec
from megatune_db.dialects import least
from megatune_db.dialects import member
from megatune_db.dialects import on_postgres
from megatune_db.models import Campaign
from megatune_db.models import Config
from megatune_db.models import Measurement as Row
from megatune_db.models import Plan
from megatune_db.models import Target
from megatune_db.models import Trial
from megatune_db.models import Workload
from megatune_db.queries._lookup import configs_by_id
from megatune_db.queries._lookup import kinds
from megatune_db.queries._lookup import target_id
from megatune_db.queries._lookup import workload_id
from megatune_db.queries._lookup import workloads_by_id
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status

MOST_FAILING = 500
FAILED = tuple(status for status in Status if status is not Status.OK)


@dataclass(frozen=True)
class ShapeRow:
    """A shape with ok measurements on one target, in one regime and of one provenance."""

    target: str
    """Digest."""
    regime: Regime
    provenance: Provenance
    operator: str
    shape: str
    dims: dict[str, int] = field(hash=False)
    dtype: str
    world: int
    routing: str
    workloads: tuple[tuple[int, str], ...]
    """Tokens and digest of each, ascending."""
    facts: dict[int, dict[str, float]] = field(default_factory=dict, hash=False)
    """By tokens, what the operator says of a workload beside its key, where it does."""


@dataclass(frozen=True)
class FailureRow:
    """A measurement that did not end ok."""

    measurement_id: int
    target: str
    """Digest."""
    regime: Regime
    provenance: Provenance
    stage: Stage
    status: Status
    reason: str
    operator: str
    shape: str
    tokens: int
    world: int
    variant: str
    config: str
    """Digest."""
    params: dict[str, Any]
    measured_at: datetime


@dataclass(frozen=True)
class WorkloadName:
    """A workload."""

    digest: str
    operator: str
    shape: str
    dims: dict[str, int]
    tokens: int
    dtype: str
    world: int
    routing: str
    facts: dict[str, float] | None
    """What the operator says of it beside its key; None: not known."""


@dataclass(frozen=True)
class ParameterPoint:
    """The fastest config with one value of a parameter."""

    tokens: int
    value: int | str
    """A switch is 0 or 1."""
    median_us: float
    low_us: float
    high_us: float
    measurement_id: int


@dataclass(frozen=True)
class StoredSamples:
    """What a measurement's row holds, whatever that is: a file that something else wrote is shown and not judged."""

    status: Status
    reason: str
    stage: Stage
    provenance: Provenance
    regime: str
    session: str
    measured_at: datetime
    samples: NDArray[np.float32]
    """Microseconds a launch, shape (samples,)."""
    throttled: tuple[bool, ...]
    launches_a_sample: int
    sm_clock_mhz: int | None


@dataclass(frozen=True)
class DatabaseSize:
    """Rows by table, and bytes on the disk."""

    rows: dict[str, int]
    bytes: int
    free_bytes: int | None
    """That are in no use; None on a server, which looks after that itself."""


@dataclass(frozen=True)
class FailingConfig:
    """A config, and at how many workloads it failed in one way."""

    target: str
    """Digest."""
    operator: str
    variant: str
    config: str
    """Digest."""
    params: dict[str, Any]
    status: Status
    measurements: int
    last_id: int
    """Id of the latest of the measurements."""


def measured_shapes(session: Session) -> list[ShapeRow]:
    """By operator, shape, dtype, world, routing, target, regime and provenance."""
    found: dict[tuple[Any, ...], ShapeRow] = {}
    tokens: dict[tuple[Any, ...], list[tuple[int, str]]] = {}
    facts: dict[tuple[Any, ...], dict[int, dict[str, float]]] = {}
    for number, target, regime, provenance in kinds(session):
        worked = exists().where(
            Row.target_id == number,
            Row.regime == str(regime),
            Row.provenance == provenance,
            Row.status == Status.OK,
            Row.workload_id == Workload.id,
            Row.stage != Stage.VERIFY,
        )
        for w in session.scalars(select(Workload).where(worked)):
            key = (w.operator, w.shape, w.dtype, w.world, w.routing, target, str(regime), provenance)
            tokens.setdefault(key, []).append((w.tokens, w.digest))
            facts.setdefault(key, {}).update({w.tokens: w.facts} if w.facts else {})
            if key not in found:
                found[key] = ShapeRow(
                    target, regime, provenance, w.operator, w.shape, w.dims, w.dtype, w.world, w.routing, ()
                )
    return [replace(row, workloads=tuple(sorted(tokens[key])), facts=facts[key]) for key, row in sorted(found.items())]


def parameter_curves(session: Session, row: ShapeRow, *, variant: str, parameter: str) -> list[ParameterPoint]:
    """The fastest search measurement of a variant for each value of one of its parameters, by tokens and value."""
    tokens_of = {digest: tokens for tokens, digest in row.workloads}
    value = member(session, Config.params, parameter).label("value")
    query = (
        select(Workload.digest, value, Row.low_us, Row.high_us, Row.id)
        .join(Workload, Workload.id == Row.workload_id)
        .join(Config, Config.id == Row.config_id)
        .where(
            Row.target_id == target_id(row.target),
            Row.regime == str(row.regime),
            Row.provenance == row.provenance,
            Row.status == Status.OK,
            Row.workload_id.in_(select(Workload.id).where(Workload.digest.in_(tokens_of))),
            Row.stage == Stage.SEARCH,
            Config.variant == variant,
            value.is_not(None),
        )
    )
    fastest = session.execute(least(session, query, Row.median_us, (Row.workload_id, value), Row.id))
    found = [
        ParameterPoint(
            tokens_of[row.digest], _plain(row.value), row.least_value, row.low_us, row.high_us, measurement_id=row.id
        )
        for row in fastest
    ]
    return sorted(found, key=lambda point: (point.tokens, str(type(point.value)), point.value))


def stored_samples(session: Session, measurement_id: int) -> StoredSamples | None:
    """One measurement with its samples; None for an id that is not there."""
    row = session.get(Row, measurement_id)
    if row is None:
        return None
    whole = len(row.samples or b"") // codec.SAMPLE.itemsize * codec.SAMPLE.itemsize
    return StoredSamples(
        row.status,
        row.reason,
        row.stage,
        row.provenance,
        row.regime,
        row.session,
        row.measured_at,
        codec.decode_samples((row.samples or b"")[:whole]),
        codec.decode_throttled(row.throttled),
        row.launches_a_sample,
        row.sm_clock_mhz,
    )


def shapes_version(session: Session, rows: tuple[ShapeRow, ...]) -> tuple[tuple[int, int], ...]:
    """How many measurements there are of each shape, and the latest's id: what was read of them at one version still
    holds at it, because measurements are never changed."""
    found = []
    for row in rows:
        # All of a shape's workloads, of every status: finals refute and searches add.
        query = select(func.count(), func.max(Row.id)).where(
            Row.target_id == target_id(row.target),
            Row.regime == str(row.regime),
            Row.provenance == row.provenance,
            Row.status.in_(tuple(Status)),
            Row.workload_id.in_(select(Workload.id).where(Workload.digest.in_([each for _, each in row.workloads]))),
        )
        count, latest = session.execute(query).one()
        found.append((count, latest or 0))
    return tuple(found)


def campaign_names(session: Session) -> list[str]:
    """Of every campaign, the newest first."""
    return list(session.scalars(select(Campaign.name).order_by(Campaign.id.desc())))


def trial_pace_s(session: Session, campaign_id: int, last: int = 100) -> float | None:
    """Seconds from one trial of the campaign to the next, over the last ones; None for fewer than two."""
    query = select(Trial.created_at).where(Trial.campaign_id == campaign_id).order_by(Trial.id.desc()).limit(last)
    times = list(session.scalars(query))
    if len(times) < 2:
        return None
    return (times[0] - times[-1]).total_seconds() / (len(times) - 1)


def campaign_workloads(session: Session, campaign_id: int) -> list[WorkloadName]:
    """The workloads that the campaign has trials of, by operator, shape, world and tokens."""
    mine = select(Trial.workload_id).where(Trial.campaign_id == campaign_id)
    found = [
        WorkloadName(w.digest, w.operator, w.shape, w.dims, w.tokens, w.dtype, w.world, w.routing, w.facts)
        for w in session.scalars(select(Workload).where(Workload.id.in_(mine)))
    ]
    return sorted(found, key=lambda w: (w.operator, w.shape, w.dtype, w.world, w.routing, w.tokens))


def table_sizes(session: Session) -> DatabaseSize:
    """How much the database holds."""
    counts = {
        name: session.scalar(select(func.count()).select_from(table)) or 0
        for name, table in (
            ("targets", Target),
            ("workloads", Workload),
            ("configs", Config),
            ("campaigns", Campaign),
            ("trials", Trial),
            ("measurements", Row),
            ("plans", Plan),
        )
    }
    if on_postgres(session):
        return DatabaseSize(counts, session.scalar(text("SELECT pg_database_size(current_database())")) or 0, None)
    pages, size, free = (
        session.scalar(text(f"PRAGMA {name}")) for name in ("page_count", "page_size", "freelist_count")
    )
    return DatabaseSize(counts, pages * size, free * size)


def failure_counts(session: Session) -> dict[Status, int]:
    """How many measurements did not end ok, by status."""
    found: dict[Status, int] = {}
    for number, _, regime, provenance in kinds(session):
        query = (
            select(Row.status, func.count().label("measurements"))
            .where(
                Row.target_id == number,
                Row.regime == str(regime),
                Row.provenance == provenance,
                Row.status.in_(FAILED),
            )
            .group_by(Row.status)
        )
        for row in session.execute(query):
            found[row.status] = found.get(row.status, 0) + row.measurements
    return found


def failing_configs(
    session: Session, most: int = MOST_FAILING, *, statuses: tuple[Status, ...] = FAILED
) -> list[FailingConfig]:
    """The configs that failed most often, by target and status.

    :param statuses: that count as failing.
    """
    counted = []
    for number, target, regime, provenance in kinds(session):
        query = (
            select(Row.config_id, Row.status, func.count(), func.max(Row.id))
            .where(
                Row.target_id == number,
                Row.regime == str(regime),
                Row.provenance == provenance,
                Row.status.in_(statuses),
            )
            .group_by(Row.config_id, Row.status)
        )
        counted += [(target, *row) for row in session.execute(query)]
    totals: dict[tuple[str, int, Status], tuple[int, int]] = {}
    for target, config_id, status, count, last in counted:
        before, latest = totals.get((target, config_id, status), (0, 0))
        totals[target, config_id, status] = (before + count, max(latest, last))
    first = sorted(totals.items(), key=lambda item: (-item[1][0], item[0][2], item[0][0], item[0][1]))[:most]
    known = configs_by_id(session, {key[1] for key, _ in first})
    return [
        FailingConfig(
            target,
            known[config_id].operator,
            known[config_id].variant,
            known[config_id].digest,
            known[config_id].params,
            status,
            count,
            last,
        )
        for (target, config_id, status), (count, last) in first
    ]


def failures(
    session: Session,
    *,
    statuses: tuple[Status, ...] = FAILED,
    most: int = 200,
    campaign_id: int | None = None,
    workload: str | None = None,
) -> list[FailureRow]:
    """The latest measurements that ended in one of these statuses, the latest first.

    :param campaign_id: of the campaign whose trials they answered; None: all.
    :param workload: digest, for those of one workload alone.
    """
    ids: set[int] = set()
    for number, _, regime, provenance in kinds(session):
        query = select(Row.id).where(
            Row.target_id == number,
            Row.regime == str(regime),
            Row.provenance == provenance,
            Row.status.in_(statuses),
        )
        if campaign_id is not None:
            query = query.where(exists().where(Trial.measurement_id == Row.id, Trial.campaign_id == campaign_id))
        if workload is not None:
            query = query.where(Row.workload_id == workload_id(workload))
        # Adding 0 keeps SQLite from reading every row, the latest first, until enough of them have failed.
        ids.update(session.scalars(query.order_by((Row.id + 0).desc()).limit(most)))
    latest = sorted(ids, reverse=True)[:most]
    query_rows = select(Row, Target.digest).join(Target, Target.id == Row.target_id).where(Row.id.in_(latest))
    rows = sorted(session.execute(query_rows), key=lambda found: -found[0].id)
    workloads = workloads_by_id(session, {row.workload_id for row, _ in rows})
    configs = configs_by_id(session, {row.config_id for row, _ in rows})
    return [_failure(row, target, workloads[row.workload_id], configs[row.config_id]) for row, target in rows]


def _plain(value: int | str) -> int | str:
    return int(value) if isinstance(value, bool) else value


def _failure(row: Row, target: str, workload: Workload, config: Config) -> FailureRow:
    return FailureRow(
        measurement_id=row.id,
        target=target,
        regime=Regime.parse(row.regime),
        provenance=row.provenance,
        stage=row.stage,
        status=row.status,
        reason=row.reason,
        operator=workload.operator,
        shape=workload.shape,
        tokens=workload.tokens,
        world=workload.world,
        variant=config.variant,
        config=config.digest,
        params=config.params,
        measured_at=row.measured_at,
    )
