"""Writing: every function inserts or finds, can be called again, and leaves the commit to the entry point.

Things are named by digest. A digest that is not there is an error of the caller: put the thing first.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Any
from typing import TypedDict
from typing import Unpack

from sqlalchemy import case
from sqlalchemy import select
from sqlalchemy import update
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.orm import Session

from megatune_db import codec
from megatune_db import models
from megatune_db.dialects import Insert
from megatune_db.dialects import insert
from megatune_db.records import CampaignState
from megatune_db.records import Measurement
from megatune_db.records import PlanState
from megatune_db.records import Stage
from megatune_db.records import TrialState

_CHUNK = 10_000
"""Rows of one bulk insert: enough to forget the overhead, few enough to keep memory flat."""


class CampaignFields(TypedDict, total=False):
    """What ``set_campaign`` can set."""

    state: CampaignState
    target: str
    """Digest."""
    budget: dict[str, Any]
    started_at: datetime | None
    finished_at: datetime | None
    """UTC, without a time zone."""
    measuring_s: float
    wall_s: float
    """Seconds, over all runs of the campaign."""


class PriorFields(TypedDict):
    """A row of ``models.Prior``."""

    digest: str
    format: str
    source: str
    place: dict[str, Any]
    tokens: int | None
    entry: Any
    reason: str


def put_target(session: Session, *, digest: str, hardware: dict[str, Any], toolchain: dict[str, Any]) -> int:
    """The id of the target."""
    return _put(session, models.Target, {"digest": digest}, {"hardware": hardware, "toolchain": toolchain})


def put_workload(
    session: Session,
    *,
    digest: str,
    operator: str,
    shape: str,
    dims: dict[str, int],
    tokens: int,
    dtype: str,
    world: int,
    routing: str,
    facts: dict[str, float] | None = None,
) -> int:
    """The id of the workload.

    :param facts: what its operator says of it beside its key; None when not known, and filled in when it is known
        later.
    """
    values = {
        "operator": operator,
        "shape": shape,
        "dims": dims,
        "tokens": tokens,
        "dtype": dtype,
        "world": world,
        "routing": routing,
        "facts": facts,
    }
    found = _put(session, models.Workload, {"digest": digest}, values)
    if facts is not None:
        _fill(session, models.Workload.facts, found, facts)
    return found


def put_config(
    session: Session,
    *,
    digest: str,
    operator: str,
    variant: str,
    params: dict[str, Any],
    changes_bits: bool | None = None,
) -> int:
    """The id of the config; configs of two operators can share a digest and are two rows.

    :param changes_bits: whether its results can differ in their bits from those of the variant's other configs;
        None when not known, and filled in when it is known later.
    """
    key = {"operator": operator, "digest": digest}
    found = _put(session, models.Config, key, {"variant": variant, "params": params, "changes_bits": changes_bits})
    if changes_bits is not None:
        _fill(session, models.Config.changes_bits, found, changes_bits)
    return found


def put_artifact(
    session: Session,
    *,
    key: str,
    arch: str,
    entry: str,
    registers: int,
    local_bytes: int,
    cubin_bytes: int,
    dsl: str = "",
) -> int:
    """The id of the artifact. ``registers`` and ``local_bytes`` are a thread's, ``cubin_bytes`` the file's size."""
    values = {
        "arch": arch,
        "entry": entry,
        "registers": registers,
        "local_bytes": local_bytes,
        "cubin_bytes": cubin_bytes,
        "dsl": dsl,
    }
    return _put(session, models.Artifact, {"key": key}, values)


def put_campaign(
    session: Session, *, name: str, file_text: str, file_digest: str, objective: dict[str, Any] | None = None
) -> int:
    """The id of the campaign of that name; an edited file replaces the text and keeps the id and its trials.

    :param objective: what its plans choose by over the routings of a shape, as the planner reads it.
    """
    values = {
        "file_text": file_text,
        "file_digest": file_digest,
        "objective": objective,
        "state": CampaignState.CREATED,
        "budget": {},
        "measuring_s": 0.0,
        "wall_s": 0.0,
    }
    found = _put(session, models.Campaign, {"name": name}, values)
    edited = (models.Campaign.id == found) & (models.Campaign.file_digest != file_digest)
    if session.scalar(select(models.Campaign.id).where(edited)) is not None:
        session.execute(
            update(models.Campaign)
            .where(models.Campaign.id == found)
            .values(file_text=file_text, file_digest=file_digest, objective=objective)
        )
    if objective is not None:
        _fill(session, models.Campaign.objective, found, objective)
    return found


def set_campaign(session: Session, campaign_id: int, **fields: Unpack[CampaignFields]) -> None:
    """Set the fields that are given and leave the others.

    :raises LookupError: when there is no such campaign, or no such target.
    """
    unknown = set(fields) - set(CampaignFields.__annotations__)
    if unknown:
        raise TypeError(f"a campaign has no {', '.join(sorted(unknown))}")
    values: dict[str, Any] = dict(fields)
    if "state" in values:
        values["state"] = CampaignState(values["state"])
    if "target" in values:
        values["target_id"] = target_id(session, values.pop("target"))
    if session.get(models.Campaign, campaign_id) is None:
        raise LookupError(f"no campaign {campaign_id}")
    if values:
        session.execute(update(models.Campaign).where(models.Campaign.id == campaign_id).values(values))


def add_measurement(session: Session, measurement: Measurement) -> int:
    """The id of the measurement's row.

    A row of the same (workload, config, target, regime, provenance) and the same revision in stage ``search``, or the
    same session in stage ``final``, is returned as it is: neither repeated nor overwritten.

    :raises LookupError: when its workload, config or target has not been put.
    """
    workload_id, operator = _workload(session, measurement.workload)
    ids = {
        "workload_id": workload_id,
        "config_id": _config_id(session, operator, measurement.config),
        "target_id": target_id(session, measurement.target),
    }
    return add_measurement_of(session, ids, measurement)


def add_measurement_of(session: Session, ids: dict[str, int], measurement: Measurement) -> int:
    """The same with ids that are known: ``workload_id``, ``config_id`` and ``target_id``."""
    found: int | None = session.scalar(
        _inserting(session).returning(models.Measurement.id), ids | codec.figures(measurement)
    )
    if found is None:
        found = _same(session, ids, measurement)
    return found


def add_measurements(session: Session, measurements: Iterable[Measurement]) -> int:
    """Import many, and return how many were new; those that are there already are left as they are.

    :raises LookupError: when a workload, config or target has not been put.
    """
    ids = _Ids(session)
    rows = (ids.of(measurement) | codec.figures(measurement) for measurement in measurements)
    new = 0
    while chunk := list(islice(rows, _CHUNK)):
        # Without being asked to, SQLAlchemy forgets how many rows an insert has added.
        done = session.connection().execute(_inserting(session), chunk, execution_options={"preserve_rowcount": True})
        new += done.rowcount
    return new


def add_trial(
    session: Session,
    *,
    campaign_id: int,
    workload: str,
    config: str,
    number: int,
    measurement_id: int | None,
    reason: str,
    reused: bool,
    state: TrialState | None = None,
) -> int:
    """The id of the trial; adding it again sets its measurement and state, and never takes a measurement away.

    :param workload: digest.
    :param config: digest.
    :param state: ``done`` with a measurement and ``asked`` without, unless it is given.
    :raises LookupError: when the workload or config has not been put.
    """
    workload_id, operator = _workload(session, workload)
    if state is None:
        state = TrialState.ASKED if measurement_id is None else TrialState.DONE
    new = insert(session, models.Trial).values(
        campaign_id=campaign_id,
        workload_id=workload_id,
        config_id=_config_id(session, operator, config),
        number=number,
        state=state,
        measurement_id=measurement_id,
        reason=reason,
        reused=reused,
    )
    if measurement_id is None:
        changed: dict[str, Any] = {
            "state": case((models.Trial.measurement_id.is_(None), state), else_=models.Trial.state)
        }
    else:
        changed = {"state": state, "measurement_id": measurement_id, "reused": reused}
    key = ["campaign_id", "workload_id", "number", "config_id", "reason"]
    found: int | None = session.scalar(
        new.on_conflict_do_update(index_elements=key, set_=changed).returning(models.Trial.id)
    )
    assert found is not None
    return found


def set_trials_stale(session: Session, campaign_id: int, *, upto: int | None = None) -> int:
    """Mark the trials that were asked for and never measured, once the process that asked is gone; how many.

    :param upto: the greatest id of a trial that is marked; None for all.
    """
    asked = (models.Trial.campaign_id == campaign_id) & (models.Trial.state == TrialState.ASKED)
    if upto is not None:
        asked &= models.Trial.id <= upto
    changed = update(models.Trial).where(asked).values(state=TrialState.STALE).returning(models.Trial.id)
    return len(session.scalars(changed).all())


def put_plan(
    session: Session,
    *,
    digest: str,
    name: str,
    content: str,
    target: str,
    model: str | None = None,
    worlds: Iterable[int] = (),
) -> int:
    """The id of the plan, a draft; one that is there stays as it is. What ``reviews`` does moves it on.

    :param content: the plan's canonical JSON.
    :param target: digest.
    :param model: name of the model that it serves; None: every model, and the plan's name stands for it.
    :param worlds: numbers of ranks that it serves; empty: any.
    :raises LookupError: when the target has not been put.
    """
    values = {
        "name": name,
        "content": content,
        "state": PlanState.DRAFT,
        "target_id": target_id(session, target),
        "model": name if model is None else model,
        "worlds": ",".join(map(str, sorted(set(worlds)))),
    }
    return _put(session, models.Plan, {"digest": digest}, values)


def put_priors(session: Session, rows: Iterable[PriorFields]) -> int:
    """Keep entries of other projects' tables and caches, and return how many were new."""
    new = 0
    statement = insert(session, models.Prior).on_conflict_do_nothing()
    given = iter(rows)
    while chunk := [dict(row) for row in islice(given, _CHUNK)]:
        done = session.connection().execute(statement, chunk, execution_options={"preserve_rowcount": True})
        new += done.rowcount
    return new


def _put(
    session: Session,
    model: type[models.Target | models.Workload | models.Config | models.Artifact | models.Campaign | models.Plan],
    key: dict[str, Any],
    values: dict[str, Any],
) -> int:
    # Looking first keeps the write lock free for others in the common case; inserting with "do nothing" and looking
    # again covers the race with another process that puts the same thing.
    existing = select(model.id).filter_by(**key)
    found = session.scalar(existing)
    if found is None:
        found = session.scalar(
            insert(session, model).values(**key, **values).on_conflict_do_nothing().returning(model.id)
        )
    if found is None:
        found = session.scalars(existing).one()
    return found


def _fill(session: Session, column: InstrumentedAttribute[Any], id_: int, value: Any) -> None:
    """Give a column of a row its value where it has none."""
    table = column.class_
    # Looking first, for the same reason.
    if session.scalar(select(table.id).where(table.id == id_, column.is_(None))) is not None:
        session.execute(update(table).where(table.id == id_, column.is_(None)).values({column: value}))


def _inserting(session: Session) -> Insert:
    return insert(session, models.Measurement).on_conflict_do_nothing()


def _same(session: Session, ids: dict[str, int], measurement: Measurement) -> int:
    query = select(models.Measurement.id).filter_by(
        **ids, regime=str(measurement.regime), provenance=measurement.provenance
    )
    if measurement.stage is Stage.SEARCH:
        query = query.where(models.IS_SEARCH, models.Measurement.revision == measurement.revision)
    else:
        query = query.where(models.IS_FINAL, models.Measurement.session == measurement.session)
    return session.scalars(query).one()


def target_id(session: Session, digest: str) -> int:
    """The id of the target.

    :raises LookupError: when it has not been put.
    """
    found = session.scalar(select(models.Target.id).filter_by(digest=digest))
    if found is None:
        raise LookupError(f"no target {digest}: put it first")
    return found


def _workload(session: Session, digest: str) -> tuple[int, str]:
    found = session.execute(select(models.Workload.id, models.Workload.operator).filter_by(digest=digest)).first()
    if found is None:
        raise LookupError(f"no workload {digest}: put it first")
    return found.id, found.operator


def _config_id(session: Session, operator: str, digest: str) -> int:
    found = session.scalar(select(models.Config.id).filter_by(operator=operator, digest=digest))
    if found is None:
        raise LookupError(f"no config {digest} of {operator}: put it first")
    return found


class _Ids:
    """Ids of one transaction by digest. They are not kept longer: a rollback can take ids back."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._workloads: dict[str, tuple[int, str]] = {}
        self._configs: dict[tuple[str, str], int] = {}
        self._targets: dict[str, int] = {}

    def of(self, measurement: Measurement) -> dict[str, Any]:
        workload = self._workloads.get(measurement.workload)
        if workload is None:
            workload = self._workloads[measurement.workload] = _workload(self._session, measurement.workload)
        workload_id, operator = workload
        config_id = self._configs.get((operator, measurement.config))
        if config_id is None:
            config_id = _config_id(self._session, operator, measurement.config)
            self._configs[operator, measurement.config] = config_id
        target = self._targets.get(measurement.target)
        if target is None:
            target = self._targets[measurement.target] = target_id(self._session, measurement.target)
        return {"workload_id": workload_id, "config_id": config_id, "target_id": target}
