"""The database behind the pages: what is read is kept until somebody commits, and nobody is ever kept waiting."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from megatune_dashboard.app.context import Context
from megatune_dashboard.app.people import Person
from megatune_dashboard.app.people import Role
from megatune_dashboard.app.source import MOST_ANSWERS
from megatune_dashboard.app.source import Source
from megatune_db import queries
from megatune_db import store
from megatune_db.errors import DatabaseMissingError
from megatune_db.errors import ReadOnlyError
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError


def put(session: Session, name: str) -> None:
    store.put_campaign(session, name=name, file_text="", file_digest="")


class Counted:
    """A query that says how often it was asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, session: Session, suffix: str = "") -> list[str]:
        self.times += 1
        return [name + suffix for name in queries.campaign_names(session)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "seen.db"
    with open_database(path) as database, database.session() as session:
        put(session, "first")
    return path


def test_an_answer_is_kept_until_somebody_commits(path: Path) -> None:
    source, query = Source(path), Counted()
    assert source.read(query) == source.read(query) == ["first"]
    assert query.times == 1
    assert source.read(query, suffix="!") == ["first!"]
    with open_database(path) as database, database.session() as session:
        put(session, "second")
    assert source.read(query) == ["second", "first"]
    assert query.times == 3


def test_an_answer_with_a_version_outlives_commits_elsewhere(path: Path) -> None:
    source, query = Source(path), Counted()
    source.read_at(1, query)
    with open_database(path) as database, database.session() as session:
        put(session, "second")
    assert source.read_at(1, query) == ["first"]
    assert source.read_at(2, query) == ["second", "first"]


def test_the_oldest_answers_go_first(path: Path) -> None:
    source, query = Source(path), Counted()
    for number in range(MOST_ANSWERS + 1):
        source.read(query, str(number))
    source.read(query, str(MOST_ANSWERS))
    assert query.times == MOST_ANSWERS + 1
    source.read(query, "0")
    assert query.times == MOST_ANSWERS + 2


def test_a_database_that_comes_later_is_found_and_none_is_made(tmp_path: Path) -> None:
    path = tmp_path / "later.db"
    source = Source(path)
    assert source.database() is None
    with pytest.raises(DatabaseMissingError):
        source.read(queries.campaign_names)
    assert not path.exists()
    path.touch()
    assert source.database() is None, "an empty file is what a campaign makes first"
    path.unlink()
    open_database(path).close()
    assert source.read(queries.campaign_names) == []


def test_a_file_that_was_replaced_is_read_anew(path: Path, tmp_path: Path) -> None:
    source = Source(path)
    assert source.read(queries.campaign_names) == ["first"]
    with open_database(tmp_path / "other.db") as database, database.session() as session:
        put(session, "of another")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    (tmp_path / "other.db").replace(path)
    assert source.read(queries.campaign_names) == ["of another"]


def test_pages_read_while_somebody_writes_and_keep_nobody_from_writing(path: Path) -> None:
    source = Source(path)
    with open_database(path) as database, database.session() as session:
        put(session, "not committed")
        session.flush()
        assert source.read(queries.campaign_names) == ["first"], "and at once, although the lock is held"
    reading, written = threading.Event(), threading.Event()

    def slow(session: Session) -> list[str]:
        names = queries.campaign_names(session)
        reading.set()
        assert written.wait(20), "a reader kept the writer waiting"
        return names

    reader = threading.Thread(target=source.read, args=(slow,))
    reader.start()
    assert reading.wait(20)
    with open_database(path) as database, database.session() as session:
        put(session, "third")
    written.set()
    reader.join()
    assert "third" in source.read(queries.campaign_names)


def test_reading_cannot_write(path: Path) -> None:
    with pytest.raises(ReadOnlyError):
        Source(path).read(put, "never")  # type: ignore[arg-type]


def test_only_reviewers_write(path: Path) -> None:
    source = Source(path)
    with Context(source, Person("rea", Role.REVIEWER, local=False)).writing() as session:
        put(session, "by a reviewer")
    assert "by a reviewer" in source.read(queries.campaign_names)
    with (
        pytest.raises(MegatuneError, match="takes the role reviewer"),
        Context(source, Person("vic", Role.VIEWER, local=False)).writing(),
    ):
        pass


def test_a_write_that_fails_is_taken_back(path: Path) -> None:
    source = Source(path)

    def fail() -> None:
        with source.writing() as session:
            put(session, "half")
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert source.read(queries.campaign_names) == ["first"]
