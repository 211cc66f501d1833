"""Targets, workloads and measurements as they were stored."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import and_
from sqlalchemy import func
from sqlalchemy import or_
from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db import codec
from megatune_db.models import IS_FINAL
from megatune_db.models import IS_SEARCH
from megatune_db.models import Artifact
from megatune_db.models import Config
from megatune_db.models import Measurement as Row
from megatune_db.models import Target
from megatune_db.models import Workload
from megatune_db.queries._lookup import chunks
from megatune_db.queries._lookup import kinds
from megatune_db.queries._lookup import target_id
from megatune_db.queries._lookup import workload_id
from megatune_db.queries._lookup import workloads_by_id
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Status


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
    facts: dict[str, float] | None
    """What the operator says of it beside its key; None: not known."""


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
    facts: dict[str, float] | None = None
    """Of the workload: what its operator says of it beside its key."""


@dataclass(frozen=True)
class FinalRow:
    """An ok measurement of stage ``final``."""

    variant: str
    params: dict[str, Any]
    measurement: Measurement


@dataclass(frozen=True)
class ArtifactRow:
    """A compiled kernel."""

    key: str
    arch: str
    entry: str
    registers: int
    """Registers a thread."""
    local_bytes: int
    """Bytes a thread spills to local memory."""
    cubin_bytes: int
    dsl: str
    """Version of the DSL; empty when not known."""


def targets(session: Session, *, counted: bool = True) -> list[TargetRow]:
    """Every target, the oldest first.

    :param counted: whether to count the measurements, which takes longer the more there are; otherwise there is 1 of
        each provenance that there are some of.
    """
    counts: list[tuple[int, Provenance, int]]
    if counted:
        query = select(Row.target_id, Row.provenance, func.count()).group_by(Row.target_id, Row.provenance)
        counts = [(target_id, provenance, count) for target_id, provenance, count in session.execute(query)]
    else:
        counts = [(number, provenance, 1) for number, _, _, provenance in kinds(session)]
    return [
        TargetRow(
            target.digest,
            target.hardware,
            target.toolchain,
            target.created_at,
            {provenance: count for measured_on, provenance, count in counts if measured_on == target.id},
        )
        for target in session.scalars(select(Target).order_by(Target.id))
    ]


def workloads(session: Session, *, target: str, regime: Regime, operator: str | None = None) -> list[WorkloadRow]:
    """Workloads with measurements on the target in the regime, by operator, shape and tokens."""
    query = select(Row.workload_id, Row.provenance, func.count()).where(
        Row.target_id == target_id(target), Row.regime == str(regime)
    )
    if operator is not None:
        query = query.where(Row.workload_id.in_(select(Workload.id).where(Workload.operator == operator)))
    counts: dict[int, dict[Provenance, int]] = {}
    for measured, provenance, count in session.execute(query.group_by(Row.provenance, Row.workload_id)):
        counts.setdefault(measured, {})[provenance] = count
    found = [
        WorkloadRow(w.digest, w.operator, w.shape, w.dims, w.tokens, w.dtype, w.world, w.routing, counts[w.id], w.facts)
        for w in workloads_by_id(session, counts).values()
    ]
    return sorted(found, key=lambda w: (w.operator, w.shape, w.tokens, w.dtype, w.world, w.routing))


def known_measurements(
    session: Session,
    *,
    workload: str,
    target: str,
    regime: Regime,
    provenance: Provenance,
    revision: str | None = None,
    upto: int | None = None,
) -> dict[str, Measurement]:
    """Measurements of stage ``search``, of every status, by digest of the config.

    :param upto: the greatest id that counts; None for all.
    :param revision: of the kernels: what was measured of another one is left out, and baselines, which have none, are
        not. None for every revision; a config that several measured has the latest one's.
    """
    query = (
        select(Row, Config.digest)
        .join(Config, Config.id == Row.config_id)
        .where(
            Row.workload_id == workload_id(workload),
            Row.target_id == target_id(target),
            Row.regime == str(regime),
            Row.provenance == provenance,
            IS_SEARCH,
        )
        .order_by(Row.id)
    )
    if revision is not None:
        query = query.where(or_(Row.revision == revision, and_(Row.revision == "", Row.artifact == "")))
    if upto is not None:
        query = query.where(Row.id <= upto)
    return {
        config: codec.record(row, workload=workload, config=config, target=target)
        for row, config in session.execute(query)
    }


def final_sessions(
    session: Session, *, workload: str, target: str, regime: Regime, provenance: Provenance
) -> list[list[FinalRow]]:
    """The finalists of the workload that worked, by session; the latest session first."""
    query = (
        select(Row, Config.digest, Config.variant, Config.params)
        .join(Config, Config.id == Row.config_id)
        .where(
            Row.workload_id == workload_id(workload),
            Row.target_id == target_id(target),
            Row.regime == str(regime),
            Row.provenance == provenance,
            IS_FINAL,
        )
    )
    found: dict[str, list[FinalRow]] = {}
    for row, config, variant, params in sorted(session.execute(query), key=lambda found: -found[0].id):
        if row.status is Status.OK:
            measurement = codec.record(row, workload=workload, config=config, target=target)
            found.setdefault(row.session, []).append(FinalRow(variant, params, measurement))
    return list(found.values())


def measurements(session: Session, measurement_ids: Iterable[int]) -> dict[int, Measurement]:
    """Full measurements by id; no entry for one unknown."""
    found = {}
    for ids in chunks(measurement_ids):
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


def samples(session: Session, measurement_ids: Iterable[int]) -> dict[int, NDArray[np.float32]]:
    """Samples in microseconds by id of the measurement; empty for one that is not ok, and no entry for one unknown."""
    found = {}
    for ids in chunks(measurement_ids):
        for row in session.execute(select(Row.id, Row.samples).where(Row.id.in_(ids))):
            found[row.id] = codec.decode_samples(row.samples)
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
        .where(Row.target_id == target_id(target), Row.regime == str(regime), Row.provenance == provenance)
    )
    if operator is not None:
        query = query.where(Row.workload_id.in_(select(Workload.id).where(Workload.operator == operator)))
    rows = session.execute(query.group_by(Row.workload_id, Config.variant, Row.status)).all()
    known = workloads_by_id(session, {row.workload_id for row in rows})
    found = []
    for measured, variant, status, count in rows:
        workload = known[measured]
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
                    Row.workload_id == workload_id(workload.digest),
                    Row.target_id == target_id(target),
                    Row.regime == str(regime),
                    Row.provenance == provenance,
                    stage,
                )
                .order_by(Config.variant, Config.digest, Row.session, Row.id)
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
                    workload.facts,
                )


def artifacts(session: Session, keys: Iterable[str]) -> dict[str, ArtifactRow]:
    """Artifacts by key; no entry for one unknown."""
    found = {}
    for some in chunks(keys):
        for a in session.scalars(select(Artifact).where(Artifact.key.in_(some))):
            found[a.key] = ArtifactRow(a.key, a.arch, a.entry, a.registers, a.local_bytes, a.cubin_bytes, a.dsl)
    return found
