from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from db_examples import config
from db_examples import measured
from db_examples import put_examples
from sqlalchemy import text

from megatune_db import queries
from megatune_db import store
from megatune_db.errors import DatabaseFullError
from megatune_db.records import Stage
from megatune_db.session import Database
from megatune_db.session import open_database

HERE = Path(__file__).parent


def test_a_killed_process_loses_no_committed_measurement(url: str) -> None:
    kept: dict[int, float] = {}
    rng = random.Random(7)
    for start in (0, 100_000, 200_000):
        process = subprocess.Popen(
            [sys.executable, HERE / "commit_forever.py", url, str(start)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        time.sleep(rng.uniform(0.0, 0.3))
        process.kill()
        rest, _ = process.communicate()
        for line in [*lines, *rest.splitlines(keepends=True)]:
            if line.endswith("\n"):
                found, number = line.split()
                kept[int(found)] = float(number)

        # A reader can come first after a crash, as well as a writer.
        with open_database(url, read_only=True) as opened, opened.session() as session:
            stored = queries.samples(session, kept)
            assert {found: samples.tolist() for found, samples in stored.items()} == {
                found: [number] * 200 for found, number in kept.items()
            }
            if opened.location.is_file:
                assert session.scalar(text("PRAGMA integrity_check")) == "ok"
    with open_database(url) as opened, opened.writer_lock():
        assert len(opened.optuna_storage().get_all_studies()) == 1
    assert len(kept) >= 15


def _fill(database: Database) -> int:
    """Commit measurements until the disk is full; how many were committed."""
    with database.session() as session:
        put_examples(session, configs=1)
    for number in range(100_000):
        record = measured(0, 0, stage=Stage.FINAL, session=str(number), samples_us=(1.5,) * 2000)
        try:
            with database.session() as session:
                store.add_measurement(session, record)
        except DatabaseFullError:
            return number
    raise AssertionError("it never filled")


def test_a_full_disk_is_said_and_loses_nothing(sqlite_database: Database) -> None:
    with sqlite_database.engine.connect() as raw:
        # On the one connection that the pool holds and hands out again.
        raw.exec_driver_sql("PRAGMA max_page_count = 200")
    committed = _fill(sqlite_database)
    assert committed > 5
    with sqlite_database.session() as session:
        assert sum(queries.targets(session)[0].measurements.values()) == committed
    with sqlite_database.engine.connect() as raw:
        raw.exec_driver_sql("PRAGMA max_page_count = 100000")
    with sqlite_database.session() as session:
        store.add_measurement(session, measured(0, 0))


FULL = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from megatune_db.session import open_database
from test_db_durability import _fill
database = open_database(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
print(_fill(database))
"""


def test_a_limit_on_the_size_of_files_is_a_full_disk(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, path, HERE], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    with open_database(path) as opened, opened.session() as session:
        assert sum(queries.targets(session)[0].measurements.values()) == int(done.stdout) > 5


def test_a_disk_that_is_full_from_the_start(path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(DatabaseFullError, match="no space is left"):
            open_database(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with open_database(path) as opened, opened.session() as session:
        assert queries.targets(session) == []


def test_two_processes_can_write_in_turn(path: Path) -> None:
    with open_database(path) as opened:
        with opened.session() as session:
            put_examples(session)
        process = subprocess.Popen(
            [sys.executable, HERE / "commit_forever.py", path, "0"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            for number in range(50):
                with opened.session() as session:
                    queries.targets(session)
                    store.put_config(session, digest=config(100 + number), operator="other", variant="simt", params={})
            assert process.stdout.readline()
            assert process.poll() is None
        finally:
            process.kill()
            process.communicate()
