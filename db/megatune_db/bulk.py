"""Many rows at once, for made-up databases of benchmarks and tests: nothing is looked up, and little is checked."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from itertools import islice
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from megatune_db import models
from megatune_db.dialects import ids_go_on
from megatune_db.dialects import on_postgres

_CHUNK = 20_000


def insert_rows(session: Session, table: type[models.Base], rows: Iterable[Mapping[str, Any]]) -> int:
    """Insert rows, each with the columns of the first one, and return how many there were.

    Ids are the caller's to choose, so that rows of one table can name those of another; later rows get higher ones.
    """
    count = 0
    remaining = iter(rows)
    while chunk := list(islice(remaining, _CHUNK)):
        session.connection().execute(insert(table), chunk)
        count += len(chunk)
    if on_postgres(session):
        session.execute(ids_go_on(table.__tablename__))
    return count
