"""Which revision of the schema a file has, and how it gets to the one that this program writes."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from megatune_db import connection
from megatune_db import studies
from megatune_db.connection import Mode
from megatune_db.errors import DatabaseLockedError
from megatune_db.errors import DatabaseMissingError
from megatune_db.errors import NewerSchemaError
from megatune_db.errors import NotADatabaseError
from megatune_db.errors import OlderSchemaError
from megatune_db.location import refuse_network_file_system
from megatune_db.location import sqlite_path
from megatune_db.lock import writer_lock
from megatune_db.models import PREFIX

VERSION_TABLE = PREFIX + "alembic_version"
"""Optuna's own Alembic owns ``alembic_version`` in the same file."""
MIGRATIONS = Path(__file__).parent / "migrations"


def is_ours(name: str | None, kind: str, parents: Mapping[Any, str | None]) -> bool:
    """Alembic's filter of names: tables without our prefix are Optuna's and none of our business."""
    del parents
    return kind != "table" or (name is not None and name.startswith(PREFIX))


def head() -> str:
    """The revision that this program writes."""
    found = _script().get_current_head()
    assert found is not None
    return found


def revision(path: Path) -> str | None:
    """The revision of the file's schema; None for an empty file, and for one that holds Optuna's tables alone.

    :raises NotADatabaseError: when the file is not SQLite's, or holds the tables of another program.
    """
    with connection.translated(path), contextlib.closing(connection.connect(path, Mode.READ)) as opened:
        tables = {name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if VERSION_TABLE in tables:
            row = opened.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
            if row is not None:
                return str(row[0])
        if tables - {"sqlite_sequence", VERSION_TABLE} and "studies" not in tables:
            raise NotADatabaseError(f"{path} is the database of another program: name another file")
        return None


def check(path: Path, found: str) -> None:
    """Check that this program can use a file of revision ``found``.

    :raises OlderSchemaError: when it must be upgraded first.
    :raises NewerSchemaError: when this program does not know the revision.
    """
    script = _script()
    if found == script.get_current_head():
        return
    if found in {known.revision for known in script.walk_revisions()}:
        raise OlderSchemaError(
            f"{path} was written by an older megatune: run `megatune db upgrade --db {path}` (it keeps a copy)"
        )
    raise NewerSchemaError(f"{path} was written by a newer megatune: upgrade the program")


def create(path: Path) -> None:
    """Bring a new file, or one that holds Optuna's tables alone, to the head revision.

    Safe when several processes do it at once: one does, the others wait and find it done.
    """
    deadline = time.monotonic() + connection.BUSY_TIMEOUT_S
    while True:
        try:
            with writer_lock(path):
                with connection.translated(path):
                    connection.connect(path, Mode.CREATE).close()
                if revision(path) is None:
                    _migrate(path)
                return
        except DatabaseLockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def upgrade(url_or_path: str | PathLike[str]) -> str:
    """Bring an existing database to the revision that this program writes, and return that revision.

    When there is something to migrate, the file is first copied to ``FILE.REVISION.backup`` beside it. The migration
    is one transaction: it happens whole or not at all. Optuna's tables in the file are brought up to date too.

    :raises DatabaseMissingError: when there is no file.
    :raises NewerSchemaError: when a newer program wrote it.
    :raises DatabaseLockedError: while a campaign runs in it.
    """
    path = sqlite_path(url_or_path)
    refuse_network_file_system(path)
    if not path.exists():
        raise DatabaseMissingError(f"there is no database {path}: check the path, or run a campaign into it first")
    with writer_lock(path):
        found = revision(path)
        if found is not None:
            with contextlib.suppress(OlderSchemaError):
                check(path, found)
        ours, optunas = found != head(), studies.needs_upgrade(path)
        if ours or optunas:
            _back_up(path, found or "without-megatune")
        if ours:
            _migrate(path)
        if optunas:
            studies.upgrade(path)
    return head()


def _back_up(path: Path, found: str) -> None:
    names = (
        f"{path.name}.{found}{suffix}.backup" for suffix in itertools.chain([""], (f"-{i}" for i in itertools.count(2)))
    )
    target = next(candidate for candidate in map(path.with_name, names) if not candidate.exists())
    try:
        with (
            connection.translated(target),
            contextlib.closing(connection.connect(path, Mode.READ)) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _migrate(path: Path) -> None:
    # Foreign keys are off, because Alembic changes a table by making it anew under another name.
    engine = create_engine(
        connection.url_of(path), creator=lambda: connection.connect(path, foreign_keys=False), poolclass=NullPool
    )
    connection.translate_errors(engine, path)
    try:
        with engine.connect() as opened:
            opened.exec_driver_sql("BEGIN IMMEDIATE")
            command.upgrade(_config(opened), "head")
            opened.commit()
    finally:
        engine.dispose()


def _config(opened: object = None) -> Config:
    config = Config(attributes={"connection": opened})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
