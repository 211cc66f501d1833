from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from megatune_db.session import Database
from megatune_db.session import open_database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuned.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with open_database(path) as opened:
        yield opened


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.session() as opened:
        yield opened
