"""Databases of both engines: a test that takes ``url``, ``database`` or ``session`` runs on each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from megatune_db.embedded import EmbeddedServer
from megatune_db.errors import DatabaseError
from megatune_db.session import Database
from megatune_db.session import open_database

_numbers = itertools.count()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a file of SQLite's can be made."""
    return tmp_path / "tuned.db"


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """PostgreSQL, once for each process that runs tests."""
    try:
        opened = EmbeddedServer()
        opened.start()
    except DatabaseError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    try:
        opened.execute("CREATE DATABASE template_with_tables")
        open_database(opened.url("template_with_tables")).close()
        yield opened
    finally:
        opened.close()


@pytest.fixture
def new_postgres(server: EmbeddedServer) -> Iterator[Callable[..., str]]:
    """Makes databases of PostgreSQL, and returns the URL of each; with ``tables=False`` they are empty."""
    made = []

    def make(*, tables: bool = True) -> str:
        name = f"test_{next(_numbers)}"
        server.execute(f"CREATE DATABASE {name}" + (" TEMPLATE template_with_tables" if tables else ""))
        made.append(name)
        return server.url(name)

    yield make
    server.execute(*(f"DROP DATABASE {name} WITH (FORCE)" for name in made))


@pytest.fixture(params=["sqlite", "postgres"])
def engine_name(request: pytest.FixtureRequest) -> str:
    """``sqlite`` or ``postgres``."""
    return str(request.param)


@pytest.fixture
def empty_url(engine_name: str, request: pytest.FixtureRequest) -> str:
    """Where there is no database of Megatune's yet."""
    if engine_name == "sqlite":
        return str(request.getfixturevalue("path"))
    return str(request.getfixturevalue("new_postgres")(tables=False))


@pytest.fixture
def url(engine_name: str, request: pytest.FixtureRequest) -> str:
    """What a database is opened by; it may be there already, without rows."""
    if engine_name == "sqlite":
        return str(request.getfixturevalue("path"))
    return str(request.getfixturevalue("new_postgres")())


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with open_database(url) as opened:
        yield opened


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.session() as opened:
        yield opened


@pytest.fixture
def sqlite_database(path: Path) -> Iterator[Database]:
    with open_database(path) as opened:
        yield opened
