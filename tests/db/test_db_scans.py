"""No named query walks a table that grows with what is measured, on either engine, unless it says why."""

from __future__ import annotations

import os
from collections.abc import Iterator

import named_queries
import pytest
from db_examples import BASELINE
from filled_examples import fill
from named_queries import LARGE
from named_queries import QUERIES
from named_queries import Asked
from named_queries import may_read_most
from named_queries import may_walk
from query_steps import Step
from query_steps import steps

from megatune_db.session import Database
from megatune_db.session import open_database
from tests.postgres import Databases


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Database, Asked]]:
    databases: Databases | None = None
    if request.param == "sqlite":
        where = str(tmp_path_factory.mktemp("filled") / "tuned.db")
    else:
        databases = request.getfixturevalue("postgres_databases")
        name = databases.make(template="template_with_tables")
        where = databases.server.url(name)
    with open_database(where) as database:
        fill(database)
        with database.engine.begin() as opened:
            opened.exec_driver_sql("ANALYZE")
        with database.session() as session:
            found = named_queries.asked(session, (BASELINE,))
        yield database, found
    if databases is not None:
        databases.drop(name)


def test_every_named_query_is_looked_at() -> None:
    assert named_queries.missing() == set()


@pytest.mark.parametrize("name", QUERIES)
def test_large_tables_are_searched_and_not_walked(filled: tuple[Database, Asked], name: str) -> None:
    database, asked = filled
    walked = _walked(steps(database, lambda session: QUERIES[name](session, asked), as_if_large=True))
    assert not walked or may_walk(name), walked


MILLION = "MEGATUNE_TEST_MILLION"
"""Environment variable with the URL of a database of a million made-up measurements, to look at it again."""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def million(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Database, Asked]]:
    from megatune_dashboard import made_up

    databases: Databases | None = None
    where = os.environ.get(f"{MILLION}_{request.param.upper()}")
    made = where is None
    if where is None and request.param == "sqlite":
        where = str(tmp_path_factory.mktemp("million") / "tuned.db")
    elif where is None:
        databases = request.getfixturevalue("postgres_databases")
        name = databases.make(template="template_with_tables")
        where = databases.server.url(name)
    with open_database(where) as database:
        if made:
            with database.session() as session:
                made_up.fill(session, measurements=1_000_000, trials=100_000)
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as opened:
                opened.exec_driver_sql("ANALYZE" if databases is None else "VACUUM ANALYZE")
        with database.session() as session:
            found = named_queries.asked(session, ("cublas", "nccl"))
        yield database, found
    if databases is not None:
        databases.drop(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUERIES)
def test_a_million_measurements_are_not_walked(million: tuple[Database, Asked], name: str) -> None:
    database, asked = million
    walked = _walked(steps(database, lambda session: QUERIES[name](session, asked)))
    assert not walked or may_walk(name) or may_read_most(name), walked


def _walked(found: list[Step]) -> list[str]:
    return [step.text for step in found if not step.searched and step.table.startswith(LARGE)]
