"""Databases of both engines: a test that takes ``url``, ``database`` or ``session`` runs on each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from megatune_db.session import Database
from megatune_db.session import open_database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a file of SQLite's can be made."""
    return tmp_path / "tuned.db"


@pytest.fixture(params=["sqlite", "postgres"])
def engine_name(request: pytest.FixtureRequest) -> str:
    """``sqlite`` or ``postgres``."""
    return str(request.param)


@pytest.fixture
def empty_url(engine_name: str, request: pytest.FixtureRequest) -> str:
    """Where there is no database of Megatune's yet."""
    if engine_name == "sqlite":
        return str(request.getfixturevalue("path"))
    return str(request.getfixturevalue("new_postgres")())


@pytest.fixture
def url(engine_name: str, request: pytest.FixtureRequest) -> str:
    """What a database is opened by; it may be there already, without rows."""
    if engine_name == "sqlite":
        return str(request.getfixturevalue("path"))
    return str(request.getfixturevalue("postgres_url"))


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
