"""The database's clock, by which everybody who shares a database goes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class database_now(FunctionElement[float]):  # noqa: N801 - read as a function of SQL
    """Seconds of Unix time, in a statement; a file of SQLite goes by the clock of the machine that it lies on."""

    type = Double()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _sqlite(element: database_now, compiler: Any, **options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now, "postgresql")
def _postgresql(element: database_now, compiler: Any, **options: Any) -> str:
    # Not the time at which the transaction began: it may have waited for a lock since.
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)"
