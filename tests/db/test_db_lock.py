from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from megatune_db.errors import DatabaseLockedError
from megatune_db.errors import ReadOnlyError
from megatune_db.location import Location
from megatune_db.lock import lock_path
from megatune_db.session import Database
from megatune_db.session import open_database

HOLD = """
import os, sys, time
from megatune_db.session import open_database
with open_database(sys.argv[1]) as database, database.writer_lock():
    if len(sys.argv) > 2 and os.fork() == 0:
        os.close(1)
        time.sleep(60)
    print(os.getpid(), flush=True)
    time.sleep(60)
"""


def _hold(where: Location, *more: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, where.given, *more], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    return process


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_second_process_is_told_who_runs(database: Database) -> None:
    process = _hold(database.location)
    place = "" if database.location.is_file else f" on {socket.gethostname()}"
    try:
        expected = (
            f"another process (pid {process.pid}{place}) is running a campaign in {database.location}; "
            "wait for it or use another --db"
        )
        with pytest.raises(DatabaseLockedError, match=re.escape(expected)), database.writer_lock():
            pass
    finally:
        _stop(process)
    with database.writer_lock():
        pass


def test_the_lock_ends_with_its_process_though_a_worker_of_it_lives_on(sqlite_database: Database) -> None:
    process = _hold(sqlite_database.location, "fork")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    worker = int(children.read_text())
    try:
        _stop(process)
        with sqlite_database.writer_lock():
            os.kill(worker, 0)
    finally:
        os.kill(worker, 9)


def test_one_process_cannot_take_it_twice(database: Database) -> None:
    with database.writer_lock():
        with (
            open_database(database.location) as again,
            pytest.raises(DatabaseLockedError, match="this process is already running a campaign"),
            again.writer_lock(),
        ):
            pass
        # Trying has not lost it.
        with pytest.raises(subprocess.CalledProcessError):
            subprocess.run([sys.executable, "-c", HOLD, database.location.given], check=True, capture_output=True)
    with database.writer_lock():
        pass


def test_two_names_of_one_file_are_one_lock(sqlite_database: Database, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(sqlite_database.location.path)
    with (
        open_database(link) as again,
        sqlite_database.writer_lock(),
        pytest.raises(DatabaseLockedError),
        again.writer_lock(),
    ):
        pass


def test_other_databases_are_not_locked(database: Database, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    file = database.location.is_file
    where = str(tmp_path / "other.db") if file else request.getfixturevalue("new_postgres")(tables=True)
    with database.writer_lock(), open_database(where) as other, other.writer_lock():
        pass


def test_who_writes_can_be_asked_without_taking_the_lock(database: Database) -> None:
    with open_database(database.location, read_only=True) as reader:
        assert reader.writer() is None
        process = _hold(database.location)
        try:
            assert reader.writer() == process.pid
        finally:
            _stop(process)
        assert reader.writer() is None
        with database.writer_lock():
            assert reader.writer() == os.getpid()
            # Asking has not lost it.
            with pytest.raises(subprocess.CalledProcessError):
                subprocess.run([sys.executable, "-c", HOLD, database.location.given], check=True, capture_output=True)


def test_nobody_writes_where_no_lock_was_ever_taken(sqlite_database: Database) -> None:
    lock_path(sqlite_database.location.path).unlink(missing_ok=True)
    assert sqlite_database.writer() is None
    assert not lock_path(sqlite_database.location.path).exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_where_no_lock_can_be_kept(sqlite_database: Database) -> None:
    lock_path(sqlite_database.location.path).unlink()
    sqlite_database.location.path.parent.chmod(0o500)
    try:
        with pytest.raises(ReadOnlyError, match="make its directory writable"), sqlite_database.writer_lock():
            pass
    finally:
        sqlite_database.location.path.parent.chmod(0o700)
