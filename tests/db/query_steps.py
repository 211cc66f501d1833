"""How an engine goes about a query: which tables it reads, by which index, and whether it walks them whole."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from megatune_db.session import Database


@dataclass(frozen=True)
class Step:
    """One reading of a table."""

    table: str
    index: str | None
    """None: the table itself; for SQLite, ``INTEGER PRIMARY KEY`` is one."""
    searched: bool
    """Whether a condition said where in the index to look; otherwise all of it is walked."""
    text: str


def steps(database: Database, query: Callable[[Session], object], *, as_if_large: bool = False) -> list[Step]:
    """The steps of every statement that the query runs.

    :param as_if_large: on PostgreSQL, have tables walked only where nothing else is possible: small tables are read
        whole and joined as wholes, whatever their indexes are.
    """
    statements: list[tuple[str, Any]] = []

    def remember(_: object, __: object, sql: str, parameters: object, *___: object) -> None:
        if sql.lstrip().startswith(("SELECT", "WITH")):
            statements.append((sql, parameters))

    event.listen(database.engine, "before_cursor_execute", remember)
    try:
        with database.session() as session:
            query(session)
            session.rollback()
    finally:
        event.remove(database.engine, "before_cursor_execute", remember)
    of_sqlite = database.location.is_file
    found: list[Step] = []
    with database.engine.connect() as opened:
        if as_if_large and not of_sqlite:
            for what in ("seqscan", "hashjoin", "mergejoin"):
                opened.exec_driver_sql(f"SET LOCAL enable_{what} = off")
        for sql, parameters in statements:
            if of_sqlite:
                rows = opened.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters)
                found += [step for row in rows if (step := _of_sqlite(row[3])) is not None]
            else:
                (told,) = opened.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}", parameters).scalars()
                found += _of_postgres(told[0]["Plan"])
        opened.rollback()
    return found


def _of_sqlite(text: str) -> Step | None:
    words = text.split()
    if words[0] not in ("SCAN", "SEARCH") or "CONSTANT" in words:
        return None
    _, _, using = text.partition(" USING ")
    index = using.removeprefix("COVERING ").removeprefix("INDEX ").partition(" (")[0] or None
    return Step(words[1], index, words[0] == "SEARCH", text)


def _of_postgres(node: dict[str, Any], table: str = "") -> Iterator[Step]:
    table = node.get("Relation Name", table)
    kind = node["Node Type"]
    text = f"{kind} of {table} by {node.get('Index Name')}: {node.get('Index Cond', node.get('Filter', 'everything'))}"
    if kind in ("Index Scan", "Index Only Scan", "Bitmap Index Scan"):
        yield Step(table, node["Index Name"], "Index Cond" in node, text)
    elif kind.endswith("Seq Scan"):
        yield Step(table, None, False, text)
    for child in node.get("Plans", ()):
        yield from _of_postgres(child, table)
