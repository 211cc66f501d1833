from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from db_examples import measured
from db_examples import put_examples
from sqlalchemy import text

from megatune_db import connection
from megatune_db import queries
from megatune_db import store
from megatune_db.backend import VERSION_TABLE
from megatune_db.connection import Mode
from megatune_db.errors import DatabaseError
from megatune_db.errors import DatabaseLockedError
from megatune_db.errors import DatabaseMissingError
from megatune_db.errors import NewerSchemaError
from megatune_db.errors import NotADatabaseError
from megatune_db.errors import ReadOnlyError
from megatune_db.schema import Upgraded
from megatune_db.schema import head
from megatune_db.schema import upgrade
from megatune_db.session import Database
from megatune_db.session import open_database


def test_a_new_file_is_made_with_its_directory(tmp_path: Path) -> None:
    with open_database(tmp_path / "a" / "b.db") as opened, opened.session() as session:
        assert queries.targets(session) == []
        assert queries.campaigns(session) == []
        assert queries.plans(session) == []


def test_settings_of_a_connection(sqlite_database: Database) -> None:
    def setting(name: str) -> object:
        with sqlite_database.engine.connect() as opened:
            return opened.exec_driver_sql(f"PRAGMA {name}").scalar()

    assert setting("journal_mode") == "wal"
    assert setting("synchronous") == 1
    assert setting("foreign_keys") == 1
    assert setting("busy_timeout") == connection.BUSY_TIMEOUT_S * 1000


def test_a_session_commits_at_its_end_and_not_when_it_raises(database: Database) -> None:
    with database.session() as session:
        put_examples(session, tokens=1)

    def put_and_fail() -> None:
        with database.session() as session:
            put_examples(session, tokens=5)
            store.add_measurement(session, measured(9, 0))

    with pytest.raises(LookupError, match="no workload"):
        put_and_fail()
    with database.session() as session:
        assert session.scalar(text("SELECT count(*) FROM megatune_workloads")) == 1


def test_reading_first_does_not_forbid_writing_later(database: Database) -> None:
    with database.session() as session, database.session() as other:
        assert queries.targets(session) == []
        put_examples(other)
        other.commit()
        store.put_target(session, digest="second", hardware={}, toolchain={})
    with database.session() as session:
        assert len(queries.targets(session)) == 2


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}])
def test_a_missing_file_is_not_made_unless_asked(path: Path, options: dict[str, bool]) -> None:
    with pytest.raises(DatabaseMissingError, match="there is no database"):
        open_database(path, **options)
    with pytest.raises(DatabaseMissingError):
        upgrade(path)
    assert not path.exists()


def test_a_file_that_goes_away_is_not_made_again_empty(path: Path) -> None:
    with open_database(path) as opened:
        opened.engine.dispose()
        path.unlink()
        with pytest.raises(DatabaseError, match="cannot be opened"), opened.session() as session:
            queries.targets(session)
    assert not path.exists()


def test_read_only_reads_and_never_writes(path: Path) -> None:
    with open_database(path) as opened, opened.session() as session:
        put_examples(session)
    before = path.read_bytes()
    with open_database(path, read_only=True) as opened:
        with opened.session() as session:
            assert len(queries.targets(session)) == 1
        with pytest.raises(ReadOnlyError, match="cannot be written"), opened.session() as session:
            store.put_target(session, digest="x", hardware={}, toolchain={})
        with pytest.raises(ReadOnlyError, match="opened read-only"):
            opened.optuna_storage()
        with pytest.raises(ReadOnlyError, match="opened read-only"), opened.writer_lock():
            pass
    assert path.read_bytes() == before


def test_a_reader_sees_what_a_writer_commits(database: Database) -> None:
    with open_database(database.location, read_only=True) as reader:
        for count in range(3):
            with reader.session() as session:
                assert len(queries.targets(session)) == count
            with database.session() as session:
                store.put_target(session, digest=f"t{count}", hardware={}, toolchain={})


def test_what_lies_where_nothing_can_be_written_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_database(path) as opened, opened.session() as session:
        put_examples(session)
    genuine = os.access
    monkeypatch.setattr(os, "access", lambda name, mode: mode != os.W_OK and genuine(name, mode))
    with open_database(path, read_only=True) as opened, opened.session() as session:
        assert len(queries.targets(session)) == 1
    assert not Path(f"{path}-shm").exists()
    with pytest.raises(ReadOnlyError, match="make it and its directory writable"):
        open_database(path)


def test_other_files_are_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"campaign: h200\n" * 200)
    for read_only in (False, True):
        with pytest.raises(NotADatabaseError, match="is not a megatune database"):
            open_database(path, read_only=read_only)
    with pytest.raises(NotADatabaseError):
        upgrade(path)
    assert path.read_bytes() == b"campaign: h200\n" * 200


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE notes (text)")
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(NotADatabaseError, match="of another program"):
            open_database(path, read_only=read_only)
    assert path.read_bytes() == before


def test_a_damaged_file_is_named(path: Path) -> None:
    with open_database(path) as opened, opened.session() as session:
        put_examples(session, configs=500)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 8192 * 4096])
    with (
        pytest.raises(NotADatabaseError, match="damaged"),
        open_database(path) as opened,
        opened.session() as session,
    ):
        put_examples(session, configs=1000)


def test_an_empty_file_becomes_a_database_but_cannot_be_read_before(path: Path) -> None:
    path.touch()
    with pytest.raises(NotADatabaseError, match="holds no megatune tables yet"):
        open_database(path, read_only=True)
    assert path.read_bytes() == b""
    open_database(path, create=False).close()
    open_database(path, read_only=True).close()


def test_a_newer_schema_is_refused(path: Path) -> None:
    open_database(path).close()
    with closing(sqlite3.connect(path)) as opened, opened:
        opened.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    for read_only in (False, True):
        with pytest.raises(NewerSchemaError, match=r"was written by a newer megatune: upgrade the program$"):
            open_database(path, read_only=read_only)
    with pytest.raises(NewerSchemaError):
        upgrade(path)
    assert [found.suffix for found in path.parent.glob("*.backup")] == []


def test_nothing_to_upgrade_makes_no_copy(path: Path) -> None:
    open_database(path).close()
    assert upgrade(path) == Upgraded(head(), None)
    assert list(path.parent.glob("*.backup")) == []


def test_a_file_system_without_shared_memory_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn(sqlite3.Connection):
        def execute(self, sql: str, *rest: object) -> sqlite3.Cursor:
            return super().execute("SELECT 'delete'" if "journal_mode" in sql else sql, *rest)  # type: ignore[arg-type]

    genuine = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **options: genuine(*given, **options, factory=Stubborn))
    with pytest.raises(DatabaseError, match="without shared memory: use a local disk"):
        open_database(path)


def test_waiting_for_another_writer_ends(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_S", 0.05)
    sqlite_database.engine.dispose()
    with closing(connection.connect(sqlite_database.location.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with (
            pytest.raises(DatabaseLockedError, match="another process has been writing"),
            sqlite_database.session() as session,
        ):
            put_examples(session)
        with sqlite_database.session() as session:
            assert queries.targets(session) == []


def test_connections_open_what_they_say(path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        connection.connect(path, Mode.WRITE)
    assert not path.exists()
    connection.connect(path, Mode.CREATE).close()
    assert path.exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseError, match=r"cannot be made \(Not a directory\): use another path"):
        open_database(tmp_path / "file" / "a" / "b.db")
