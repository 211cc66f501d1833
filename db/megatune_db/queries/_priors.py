"""What other projects found best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db.models import Config
from megatune_db.models import Measurement
from megatune_db.models import Prior
from megatune_db.queries._lookup import workload_id
from megatune_db.records import Provenance
from megatune_db.records import Status


@dataclass(frozen=True)
class PriorRow:
    """An entry of another project's table or cache."""

    format: str
    source: str
    place: dict[str, Any]
    tokens: int | None
    entry: Any
    reason: str
    """Why no operator made a config of it when it was imported; empty where one may."""


def priors(session: Session, formats: Iterable[str] | None = None) -> list[PriorRow]:
    """The priors of some formats in the order in which they were imported; by default all."""
    query = select(Prior).order_by(Prior.id)
    if formats is not None:
        query = query.where(Prior.format.in_(list(formats)))
    return [
        PriorRow(row.format, row.source, row.place, row.tokens, row.entry, row.reason) for row in session.scalars(query)
    ]


def imported_configs(session: Session, workload: str, limit: int) -> list[tuple[str, dict[str, Any]]]:
    """Variant and parameters of the configs of a workload that others measured as the fastest, the fastest first.

    Of whatever target and regime: they are configs to try, and their figures are nobody's here.

    :param workload: digest.
    """
    fastest = func.min(Measurement.median_us)
    query = (
        select(Config.variant, Config.params)
        .join(Measurement, Measurement.config_id == Config.id)
        .where(
            Measurement.workload_id == workload_id(workload),
            Measurement.provenance == Provenance.IMPORTED,
            Measurement.status == Status.OK,
        )
        .group_by(Config.id)
        .order_by(fastest, Config.id)
        .limit(limit)
    )
    return [(variant, params) for variant, params in session.execute(query)]
