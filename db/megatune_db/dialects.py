"""SQL that the two engines write differently, chosen by the session's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy import Select
from sqlalchemy import TextClause
from sqlalchemy import func
from sqlalchemy import text
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import Session

from megatune_db import models

Insert = sqlite.Insert | postgresql.Insert

LOCKS = 0x4D54
"""First key of PostgreSQL's advisory locks of ours; they hold within one database."""
WRITER = 1
"""Second key of the lock that a campaign holds."""
REVIEW = 2
"""Second key of the lock that a review holds to the end of its transaction."""
STUDIES = 3
"""Second key of the lock under which Optuna's tables are made."""

IMPORT = 3
"""Second key of the lock that an import holds to the end of its transaction."""


def on_postgres(session: Session) -> bool:
    """Whether the session is PostgreSQL's, and not SQLite's."""
    return session.get_bind().dialect.name == "postgresql"


def insert(session: Session, table: type[models.Base]) -> Insert:
    """An insert that can say what to do with a row that is there already."""
    return postgresql.insert(table) if on_postgres(session) else sqlite.insert(table)


def review_lock() -> TextClause:
    """On PostgreSQL, a statement that waits until no other review is in its transaction; SQLite has one writer."""
    return text(f"SELECT pg_advisory_xact_lock({LOCKS}, {REVIEW})")


def wait_for_imports(session: Session) -> None:
    """On PostgreSQL, wait until no other import is in its transaction: two that put in the same rows, each in an order
    of its own, would wait for each other for ever, and the server would end one. SQLite has one writer.
    """
    if on_postgres(session):
        session.execute(text(f"SELECT pg_advisory_xact_lock({LOCKS}, {IMPORT})"))


def least(session: Session, query: Any, value: Any, keys: Sequence[Any], tie: Any) -> Select[*tuple[Any, ...]]:
    """Of the rows of a query, the one with the least value for each combination of the keys.

    :param query: its columns have names of their own.
    :param tie: what decides between equals; on SQLite, the order in which it comes upon them.
    """
    if not on_postgres(session):
        # With one min() SQLite takes the other columns from the row that has the least.
        return query.add_columns(func.min(value).label("least_value")).group_by(*keys)  # type: ignore[no-any-return]
    # And not by a rank: the planner knows about how many rows are distinct, and takes a rank of 1 for next to none.
    query = query.add_columns(value.label("least_value")).order_by(*keys, value, tie)
    distinct_on = getattr(postgresql, "distinct_on", None)
    return query.distinct(*keys) if distinct_on is None else query.ext(distinct_on(*keys))  # type: ignore[no-any-return]


def member(session: Session, column: Any, name: str) -> ColumnElement[Any]:
    """A member of a column of JSON objects, to be compared and grouped by; NULL where there is none.

    A switch is 0 or 1 on SQLite, and a bool on PostgreSQL.
    """
    if on_postgres(session):
        return column.cast(postgresql.JSONB)[name]  # type: ignore[no-any-return]
    return func.json_extract(column, f'$."{name}"')


def ids_go_on(table: str) -> TextClause:
    """On PostgreSQL, have the ids that a table gives out go on after the highest that is there; SQLite does so."""
    return text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), max(id)) FROM {table} HAVING max(id) > 0")
