"""SQLite: one file, one writer at a time."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool

from megatune_db import connection
from megatune_db.backend import VERSION_TABLE
from megatune_db.backend import Backend
from megatune_db.backend import Watch
from megatune_db.connection import Mode
from megatune_db.errors import DatabaseError
from megatune_db.errors import ReadOnlyError
from megatune_db.location import Location
from megatune_db.location import refuse_network_file_system
from megatune_db.lock import lock_holder
from megatune_db.lock import writer_lock

_REVISION = f"SELECT version_num FROM {VERSION_TABLE}"


class SqliteBackend(Backend):
    """A file."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self.path = location.path

    def look(self, *, write: bool) -> bool:
        refuse_network_file_system(self.path)
        if not self.path.exists():
            return False
        if write and not (os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)):
            raise ReadOnlyError(
                f"{self.path} cannot be written: make it and its directory writable, or use a copy of it"
            )
        return True

    def make(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatabaseError(f"{self.path.parent} cannot be made ({error.strerror}): use another path") from error
        with self.translated():
            connection.connect(self.path, Mode.CREATE).close()

    def engine(self, *, read_only: bool = False, pooled: bool = True) -> Engine:
        mode = Mode.READ if read_only else Mode.WRITE
        options: dict[str, Any] = {} if pooled else {"poolclass": NullPool}
        engine = create_engine(
            connection.url_of(self.path),
            creator=lambda: connection.connect(self.path, mode),
            json_serializer=connection.json_text,
            **options,
        )
        return self.translate(engine)

    @contextlib.contextmanager
    def migrating(self) -> Iterator[Connection]:
        # Foreign keys are off, because Alembic changes a table by making it anew under another name.
        engine = create_engine(
            connection.url_of(self.path),
            creator=lambda: connection.connect(self.path, foreign_keys=False),
            json_serializer=connection.json_text,
            poolclass=NullPool,
        )
        try:
            with self.translate(engine).connect() as opened:
                opened.exec_driver_sql("BEGIN IMMEDIATE")
                yield opened
                opened.commit()
        finally:
            engine.dispose()

    def guard(self, engine: Engine, revision: str) -> None:
        def check(opened: sqlite3.Connection) -> None:
            with self.translated():
                row = opened.execute(_REVISION).fetchone()
            if row != (revision,):
                raise self.outdated()

        @event.listens_for(engine, "begin")
        def _begun(opened: Connection) -> None:
            check(opened.connection.dbapi_connection)  # type: ignore[arg-type]

        @event.listens_for(engine, "before_cursor_execute")
        def _writing(_: object, cursor: sqlite3.Cursor, __: object, ___: object, context: Any, *____: object) -> None:
            # Nothing is locked until the first change, so that the schema is looked at again under the lock.
            opened = cursor.connection
            if not opened.in_transaction and (context.isinsert or context.isupdate or context.isdelete):
                with self.translated():
                    opened.execute("BEGIN IMMEDIATE")
                check(opened)

    def writer_lock(self) -> contextlib.AbstractContextManager[None]:
        return writer_lock(self.path)

    def writer(self) -> int | None:
        return lock_holder(self.path)

    def watch(self) -> Watch:
        return _DataVersion(self)

    def identity(self) -> tuple[int, int] | None:
        """Device and inode; None for no file, and for an empty one."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino) if found.st_size else None

    def optuna(self, *, upgrading: bool) -> tuple[str, dict[str, Any]]:
        del upgrading
        # Optuna's models were not written for SQLite's foreign keys, which are off unless asked for.
        return connection.url_of(self.path), {"creator": lambda: connection.connect(self.path, foreign_keys=False)}

    def meaning(self, error: BaseException | None) -> DatabaseError | None:
        return connection.meaning(error, self.path)

    def hold_still(self, opened: Connection) -> None:
        opened.exec_driver_sql("BEGIN")

    def copy_whole(self, target: Path) -> bool:
        try:
            with (
                connection.translated(target),
                contextlib.closing(connection.connect(self.path, Mode.READ)) as source,
                contextlib.closing(sqlite3.connect(target)) as copy,
            ):
                source.backup(copy)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return True


class _DataVersion(Watch):
    """SQLite counts for each connection what all others commit, so that this one must never be used to write."""

    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend
        self._connection: sqlite3.Connection | None = None

    def changes(self) -> int:
        with self._backend.translated():
            if self._connection is None:
                self._connection = connection.connect(self._backend.path, Mode.READ)
            (count,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(count)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
