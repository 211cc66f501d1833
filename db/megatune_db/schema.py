"""Which revision of the schema a database has, and how it gets to the one that this program writes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from megatune_db import connection
from megatune_db import studies
from megatune_db.backend import VERSION_TABLE
from megatune_db.backend import Backend
from megatune_db.backend import backend_at
from megatune_db.errors import DatabaseLockedError
from megatune_db.errors import DatabaseMissingError
from megatune_db.errors import NewerSchemaError
from megatune_db.errors import NotADatabaseError
from megatune_db.errors import OlderSchemaError
from megatune_db.location import Where
from megatune_db.models import PREFIX

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


def revision(backend: Backend) -> str | None:
    """The revision of the schema; None for an empty database, and for one that holds Optuna's tables alone.

    :raises NotADatabaseError: when the file is not SQLite's, or the database holds the tables of another program.
    """
    engine = backend.engine(read_only=True, pooled=False)
    try:
        with engine.connect() as opened:
            tables = set(inspect(opened).get_table_names())
            if VERSION_TABLE in tables:
                found = opened.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()
                if found is not None:
                    return str(found)
    finally:
        engine.dispose()
    if tables - {VERSION_TABLE} and "studies" not in tables:
        raise NotADatabaseError(f"{backend.location} is the database of another program: name another one")
    return None


def check(backend: Backend, found: str) -> None:
    """Check that this program can use a database of revision ``found``.

    :raises OlderSchemaError: when it must be upgraded first.
    :raises NewerSchemaError: when this program does not know the revision.
    """
    script = _script()
    if found == script.get_current_head():
        return
    where = backend.location
    if found in {known.revision for known in script.walk_revisions()}:
        raise OlderSchemaError(
            f"{where} was written by an older megatune: run `megatune db upgrade --db {where}` (it keeps a copy)"
        )
    raise NewerSchemaError(f"{where} was written by a newer megatune: upgrade the program")


def check_known(backend: Backend, found: str) -> None:
    """The same for what works at older revisions too.

    :raises NewerSchemaError: when this program does not know the revision.
    """
    with contextlib.suppress(OlderSchemaError):
        check(backend, found)


def create(backend: Backend, to: str = "head") -> None:
    """Bring a new database, or one that holds Optuna's tables alone, to a revision.

    Safe when several processes do it at once: one does, the others wait and find it done.
    """
    backend.make()
    deadline = time.monotonic() + connection.BUSY_TIMEOUT_S
    while True:
        try:
            with backend.writer_lock():
                if revision(backend) is None:
                    _migrate(backend, to)
                return
        except DatabaseLockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@dataclass(frozen=True)
class Upgraded:
    """What an upgrade has done."""

    revision: str
    backup: Path | None
    """What was there before; None where there was nothing to do."""


def upgrade(where: Where, keep: Path | None = None) -> Upgraded:
    """Bring an existing database to the revision that this program writes.

    When there is something to migrate, a copy is made first. The migration is one transaction: it happens whole or
    not at all. Optuna's tables in the database are brought up to date too.

    :param keep: file for the copy; by default ``NAME.REVISION.backup`` beside the database's file or, of one on a
        server, in the working directory.
    :raises DatabaseMissingError: when there is no database.
    :raises NewerSchemaError: when a newer program wrote it.
    :raises DatabaseLockedError: while a campaign runs in it.
    :raises DatabaseError: when ``keep`` is there already, or cannot be written.
    """
    from megatune_db.backup import free_path
    from megatune_db.backup import write_backup

    backend = backend_at(where)
    if not backend.look(write=True):
        raise DatabaseMissingError(missing(backend))
    kept = None
    with backend.writer_lock():
        found = revision(backend)
        if found is not None:
            check_known(backend, found)
        ours, optunas = found != head(), studies.needs_upgrade(backend)
        # On a server Optuna's tables alone are not worth a copy: they follow from ours.
        if (ours or optunas) and (found is not None or backend.location.is_file):
            kept = free_path(backend.location, found or "without-megatune") if keep is None else keep
            write_backup(backend, kept)
        if ours:
            _migrate(backend)
        if optunas:
            studies.upgrade(backend)
    return Upgraded(head(), kept)


def missing(backend: Backend) -> str:
    """What is said where there is no database."""
    return f"there is no database {backend.location}: check the path, or run a campaign into it first"


def _migrate(backend: Backend, to: str = "head") -> None:
    with backend.migrating() as opened:
        command.upgrade(_config(opened), to)


def _config(opened: object = None) -> Config:
    config = Config(attributes={"connection": opened})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
