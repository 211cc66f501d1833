"""Opening a database."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from typing import Self

from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from megatune_db import connection
from megatune_db import schema
from megatune_db import studies
from megatune_db.connection import Mode
from megatune_db.errors import DatabaseError
from megatune_db.errors import DatabaseMissingError
from megatune_db.errors import NotADatabaseError
from megatune_db.errors import ReadOnlyError
from megatune_db.location import refuse_network_file_system
from megatune_db.location import sqlite_path
from megatune_db.lock import lock_holder
from megatune_db.lock import writer_lock

if TYPE_CHECKING:
    from optuna.storages import RDBStorage


class Database:
    """An open database. Threads may share it; each uses a session of its own."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self.url = connection.url_of(path)
        self.engine: Engine = connection.engine_for(path, read_only=read_only)
        self._watch: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        self._storages: list[RDBStorage] = []

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """A session in a transaction: committed at the end of the block, rolled back when it raises.

        For entry points only; what they call takes the session and never commits. The write lock is taken with the
        first change and kept to the end of the block: change Optuna's storage outside it.

        :raises DatabaseError: from any statement, when the disk is full, the file locked or not writable.
        """
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    def optuna_storage(self) -> RDBStorage:
        """Optuna's storage in the same file. It is closed with the database.

        :raises ReadOnlyError: when the database was opened read-only: Optuna creates its tables when it opens one.
        :raises OlderSchemaError: when an older Optuna wrote the tables.
        :raises NewerSchemaError: when a newer one did.
        """
        if self.read_only:
            raise ReadOnlyError(f"{self.path} was opened read-only: studies need it writable")
        storage = studies.open_storage(self.path)
        self._storages.append(storage)
        return storage

    @contextlib.contextmanager
    def writer_lock(self) -> Iterator[None]:
        """Hold the file's exclusive lock, so that two processes never measure into one database.

        :raises DatabaseLockedError: at once, with the process that holds it.
        :raises ReadOnlyError: when the database was opened read-only.
        """
        if self.read_only:
            raise ReadOnlyError(f"{self.path} was opened read-only: a campaign needs it writable")
        with writer_lock(self.path):
            yield

    def writer(self) -> int | None:
        """The process that holds the writer lock, None when none does; nothing is taken, so that anybody may ask.

        0 where it cannot be told which process, e.g. because it runs in another container.
        """
        return lock_holder(self.path)

    def changes(self) -> int:
        """A counter that differs once anybody has committed to the file: what was read at one count still holds at it.

        Counts of two ``Database`` objects, or of two processes, say nothing of each other.
        """
        # SQLite counts for each connection what all others commit, so that this one must never be used to write.
        with self._watching, connection.translated(self.path):
            if self._watch is None:
                self._watch = connection.connect(self.path, Mode.READ)
            (count,) = self._watch.execute("PRAGMA data_version").fetchone()
        return int(count)

    def close(self) -> None:
        """Close every connection; calling again does nothing."""
        with self._watching:
            if self._watch is not None:
                self._watch.close()
                self._watch = None
        for storage in self._storages:
            studies.close(storage)
        self._storages.clear()
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_database(url_or_path: str | PathLike[str], *, create: bool = True, read_only: bool = False) -> Database:
    """Open the database at a path or ``sqlite:///…`` URL, and make it when it is not there.

    :param create: make a missing file, and its directory; otherwise a missing file is an error.
    :param read_only: neither write nor migrate, whatever is done with the session.
    :raises DatabaseError: one of ``megatune_db.errors``: not a database, an older or newer schema, a network file
        system, no file, no permission, a full disk.
    """
    path = sqlite_path(url_or_path)
    refuse_network_file_system(path)
    if not path.exists():
        if read_only or not create:
            raise DatabaseMissingError(f"there is no database {path}: check the path, or run a campaign into it first")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatabaseError(f"{path.parent} cannot be made ({error.strerror}): use another path") from error
        schema.create(path)
    elif not read_only and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise ReadOnlyError(f"{path} cannot be written: make it and its directory writable, or use a copy of it")
    found = schema.revision(path)
    if found is None:
        if read_only:
            raise NotADatabaseError(f"{path} holds no megatune tables yet: run a campaign or an import into it first")
        schema.create(path)
    else:
        schema.check(path, found)
    return Database(path, read_only=read_only)
