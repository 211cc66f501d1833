"""Two versions of the program at one database: the one that does not know the schema is refused, and writes nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from db_examples import measured
from db_examples import put_examples
from sqlalchemy import text

from megatune_db import queries
from megatune_db import schema
from megatune_db import store
from megatune_db.backend import VERSION_TABLE
from megatune_db.backend import backend_at
from megatune_db.errors import NewerSchemaError
from megatune_db.session import open_database

NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "{before}"


def upgrade() -> None:
    op.add_column("megatune_targets", sa.Column("place", sa.String(), nullable=True))
"""
NEWER = """
import shutil, sys
from pathlib import Path
from megatune_db import schema
folder = Path(sys.argv[2]) / "migrations"
shutil.copytree(schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
(folder / "versions" / "9000_next.py").write_text(Path(sys.argv[3]).read_text())
schema.MIGRATIONS = folder
print("upgrading", flush=True)
print(schema.upgrade(sys.argv[1], Path(sys.argv[2]) / "kept.db").revision, flush=True)
"""
WRITER = """
import itertools, sys
sys.path.insert(0, sys.argv[2])
from db_examples import measured, put_examples
from megatune_db import store
from megatune_db.errors import NewerSchemaError
from megatune_db.records import Stage
from megatune_db.session import open_database
with open_database(sys.argv[1]) as database:
    with database.session() as session:
        put_examples(session)
    for number in itertools.count():
        try:
            with database.session() as session:
                store.add_measurement(session, measured(0, 0, stage=Stage.FINAL, session=str(number)))
        except NewerSchemaError as error:
            print(error, flush=True)
            break
        print(number, flush=True)
"""


def _newer(url: str, folder: Path) -> subprocess.Popen[str]:
    """A process of the next release that upgrades the database."""
    folder.mkdir()
    revision = folder / "next.txt"
    revision.write_text(NEXT.format(before=schema.head()))
    process = subprocess.Popen(
        [sys.executable, "-c", NEWER, url, str(folder), str(revision)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "upgrading\n"
    return process


def _rows(url: str) -> int:
    engine = backend_at(url).engine(read_only=True, pooled=False)
    with engine.connect() as opened:
        found = opened.scalar(text("SELECT count(*) FROM megatune_measurements"))
    engine.dispose()
    return int(found or 0)


def test_a_process_that_writes_is_refused_once_another_has_upgraded(empty_url: str, tmp_path: Path) -> None:
    told = tmp_path / "told.txt"
    with told.open("w") as out:
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, empty_url, str(Path(__file__).parent)], stdout=out, text=True
        )
    try:
        deadline = time.monotonic() + 120
        while told.read_text().count("\n") < 5:
            assert time.monotonic() < deadline
            assert writer.poll() is None
            time.sleep(0.02)
        rest, _ = _newer(empty_url, tmp_path / "next").communicate(timeout=120)
        assert rest == "9000\n"
        writer.wait(120)
    finally:
        writer.kill()
        writer.wait()
    lines = told.read_text().splitlines()
    assert "was upgraded by another version of megatune" in lines[-1]
    # Everything that was said to be committed is there, and nothing else.
    assert _rows(empty_url) == len(lines) - 1
    with pytest.raises(NewerSchemaError, match="was written by a newer megatune"):
        open_database(empty_url)


def _migrate(url: str) -> None:
    """What a migration does that others have to notice."""
    with backend_at(url).migrating() as migrating:
        migrating.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9000'"))


def test_who_had_it_open_can_neither_write_nor_read_on(empty_url: str) -> None:
    with open_database(empty_url) as database, open_database(empty_url, read_only=True) as reader:
        with database.session() as session:
            put_examples(session)
        _migrate(empty_url)
        for opened in (database, reader):
            with pytest.raises(NewerSchemaError, match="start again with that version"), opened.session() as session:
                queries.targets(session)
        with pytest.raises(NewerSchemaError), database.session() as session:
            store.add_measurement(session, measured(0, 0))
    assert _rows(empty_url) == 0


def test_a_migration_waits_for_a_transaction_that_writes(empty_url: str) -> None:
    with open_database(empty_url) as database:
        with database.session() as session:
            put_examples(session)
            migration = threading.Thread(target=_migrate, args=(empty_url,))
            migration.start()
            time.sleep(0.3)
            assert migration.is_alive(), "it waits"
            store.add_measurement(session, measured(0, 0))
        migration.join(60)
        with pytest.raises(NewerSchemaError), database.session() as session:
            queries.targets(session)
    assert _rows(empty_url) == 1


def test_a_transaction_that_begins_meanwhile_waits_and_is_refused(empty_url: str) -> None:
    backend = backend_at(empty_url)
    refused: list[Exception] = []
    with open_database(empty_url) as database:

        def write() -> None:
            try:
                with database.session() as session:
                    put_examples(session)
            except NewerSchemaError as error:
                refused.append(error)

        with backend.migrating() as migrating:
            thread = threading.Thread(target=write)
            thread.start()
            time.sleep(0.3)
            assert thread.is_alive(), "it waits"
            migrating.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9000'"))
        thread.join(60)
    assert len(refused) == 1
