"""Which target of a database is meant."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection

from sqlalchemy.orm import Session

from megatune_db.queries import TargetRow
from megatune_db.queries import targets
from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_kernels.target import Target


def find_target(
    session: Session,
    wanted: str | None,
    provenances: Collection[Provenance],
    fits: Callable[[Target], bool] = lambda _: True,
) -> Target | None:
    """The target of that digest, or the only one that fits and has measurements of one of these provenances; None
    where none does.

    :param wanted: the digest or its beginning; None: the only one.
    :raises MegatuneError: when there is no target of that digest, or a choice is needed, with what there is.
    """
    rows = targets(session, counted=False)
    if wanted is not None:
        named = [row for row in rows if row.digest.startswith(wanted)]
        if len(named) != 1:
            known = "; ".join(f"{row.digest} {target_of(row)}" for row in rows) or "none"
            raise MegatuneError(f"the database has no target {wanted!r}; it has {known}")
        return target_of(named[0])
    found = [target_of(row) for row in rows if set(provenances) & row.measurements.keys()]
    found = [each for each in found if fits(each)]
    if len(found) > 1:
        several = "; ".join(f"{each.digest} {each}" for each in found)
        raise MegatuneError(f"the database has several targets, choose one with --target: {several}")
    return found[0] if found else None


def target_of(row: TargetRow) -> Target:
    """The target of a row."""
    return Target.from_dict({"hardware": row.hardware, "toolchain": row.toolchain})
