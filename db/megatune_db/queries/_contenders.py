"""What a plan is made of, out of a million measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer
from sqlalchemy import exists
from sqlalchemy import func
from sqlalchemy import literal_column
from sqlalchemy import or_
from sqlalchemy import select
from sqlalchemy import tuple_
from sqlalchemy.orm import Session
from sqlalchemy.orm import aliased

from megatune_db import codec
from megatune_db.dialects import least
from megatune_db.models import IS_FINAL
from megatune_db.models import IS_SEARCH
from megatune_db.models import Config
from megatune_db.models import Measurement as Row
from megatune_db.models import Workload
from megatune_db.queries._lookup import configs_by_id
from megatune_db.queries._lookup import target_id
from megatune_db.queries._lookup import workloads_by_id
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status


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
    revision: str
    """Digest of the source of the kernels; empty for baselines, and where it is not known."""
    facts: dict[str, float] | None = None
    """Of the workload: what its operator says of it beside its key."""


def contenders(
    session: Session,
    *,
    target: str,
    regime: Regime,
    provenances: Sequence[Provenance],
    baselines: Sequence[str],
    operator: str | None = None,
    workloads: Sequence[str] = (),
) -> list[Contender]:
    """The ok measurements that a plan can be made of, by workload, in the order in which they were stored.

    Of each (workload, variant, provenance, revision) these are: the fastest of stage ``search``, every other one whose
    interval begins at or below the end of the fastest's, and everything of stage ``final``. Of the variants in
    ``baselines`` they are all. What is left out is slower than its variant's best beyond doubt, or ``refuted``.

    :param workloads: digests, for these workloads alone; empty: all.
    """
    ok = [
        Row.target_id == target_id(target),
        Row.regime == str(regime),
        Row.provenance.in_(provenances),
        Row.status == Status.OK,
        Row.stage != Stage.VERIFY,
    ]
    if operator is not None:
        # Adding 0 keeps SQLite from looking workloads up in the index of the search, which does not hold the times.
        ok.append((Row.workload_id + 0).in_(select(Workload.id).where(Workload.operator == operator)))
    if workloads:
        ok.append(Row.workload_id.in_(select(Workload.id).where(Workload.digest.in_(workloads))))
    wrong = refuted(session, target=target, regime=regime, provenances=provenances)
    if wrong:
        ok.append(tuple_(Row.workload_id, Row.config_id, Row.revision).not_in(sorted(wrong)))
    keys = (Row.workload_id, Config.variant, Row.provenance, Row.revision)
    searched = select(*keys, Row.high_us).join(Config, Config.id == Row.config_id).where(*ok, IS_SEARCH)
    best = least(session, searched, Row.median_us, keys, Row.high_us).cte("best")
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
            (func.length(Row.samples, type_=Integer) // codec.SAMPLE.itemsize).label("n_samples"),
            Row.provenance,
            Row.revision,
        )
        .join(Config, Config.id == Row.config_id)
        .outerjoin(
            best,
            (best.c.workload_id == Row.workload_id)
            & (best.c.variant == Config.variant)
            & (best.c.provenance == Row.provenance)
            & (best.c.revision == Row.revision),
        )
        .where(*ok, or_(Row.low_us <= best.c.high_us, Row.stage == Stage.FINAL, Config.variant.in_(baselines)))
    )
    rows = session.execute(query).all()
    known_workloads = workloads_by_id(session, {row.workload_id for row in rows})
    known_configs = configs_by_id(session, {row.config_id for row in rows})
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
                n_samples=row.n_samples,
                provenance=row.provenance,
                revision=row.revision,
                facts=workload.facts,
            )
        )
    return found


def refuted(
    session: Session, *, target: str, regime: Regime, provenances: Sequence[Provenance]
) -> set[tuple[int, int, str]]:
    """Configs that worked while they were searched and failed among the finalists, which are put to a longer test, or
    when a plan was verified.

    A wrong result counts; a hang or a crash does where others of the same session worked, because one that ends the
    processes takes all along.

    :returns: ids of workload and config, and the revision of the kernels.
    """
    other = aliased(Row)
    same = ("workload_id", "target_id", "regime", "provenance", "session")
    found: set[tuple[int, int, str]] = set()
    # One statement for each, because SQLite uses the partial index of finals only where the statement says its
    # condition; a verification has few rows, and the index that planning reads finds those that failed.
    for mine, theirs in ((IS_FINAL, "'final'"), (Row.stage == Stage.VERIFY, "'verify'")):
        beside = exists().where(
            *(getattr(other, name) == getattr(Row, name) for name in same),
            other.stage == literal_column(theirs),
            other.status == Status.OK,
        )
        query = select(Row.workload_id, Row.config_id, Row.revision).where(
            Row.target_id == target_id(target),
            Row.regime == str(regime),
            Row.provenance.in_(provenances),
            Row.status.in_((Status.WRONG_RESULT, Status.HANG, Status.CRASH)),
            mine,
            or_(Row.status == Status.WRONG_RESULT, beside),
        )
        found |= {(row.workload_id, row.config_id, row.revision) for row in session.execute(query)}
    return found
