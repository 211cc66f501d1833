"""Ids and digests."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from itertools import islice
from itertools import product
from typing import Any
from typing import TypeVar

from sqlalchemy import exists
from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db.models import Config
from megatune_db.models import Measurement as Row
from megatune_db.models import Target
from megatune_db.models import Workload
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage

Key = TypeVar("Key", int, str)

REGIMES = tuple(Regime(*words) for words in product(("cold", "warm"), ("graph", "eager")))
CHUNK = 500
"""Ids or keys of one statement: below the least limit on parameters that SQLite has had."""


def target_id(digest: str) -> Any:
    return select(Target.id).where(Target.digest == digest).scalar_subquery()


def workload_id(digest: str) -> Any:
    return select(Workload.id).where(Workload.digest == digest).scalar_subquery()


def workloads_by_id(session: Session, ids: Iterable[int]) -> dict[int, Workload]:
    return {w.id: w for chunk in chunks(ids) for w in session.scalars(select(Workload).where(Workload.id.in_(chunk)))}


def configs_by_id(session: Session, ids: Iterable[int]) -> dict[int, Config]:
    return {c.id: c for chunk in chunks(ids) for c in session.scalars(select(Config).where(Config.id.in_(chunk)))}


def chunks(keys: Iterable[Key]) -> Iterator[list[Key]]:
    rest = iter(sorted(set(keys)))
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def kinds(session: Session) -> Iterator[tuple[int, str, Regime, Provenance]]:
    """Every (id and digest of a target, regime, provenance) that something was measured of, for more than to verify a
    plan: the beginnings of the index that planning reads, found without reading it."""
    for regime, provenance in product(REGIMES, Provenance):
        measured = exists().where(
            Row.target_id == Target.id,
            Row.regime == str(regime),
            Row.provenance == provenance,
            Row.stage != Stage.VERIFY,
        )
        for row in session.execute(select(Target.id, Target.digest).where(measured).order_by(Target.id)).all():
            yield row.id, row.digest, regime, provenance
