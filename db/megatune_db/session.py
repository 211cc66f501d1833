"""Opening a database."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING
from typing import Self

from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from megatune_db import schema
from megatune_db import studies
from megatune_db.backend import Backend
from megatune_db.backend import Watch
from megatune_db.backend import backend_at
from megatune_db.errors import DatabaseMissingError
from megatune_db.errors import EmptyDatabaseError
from megatune_db.errors import ReadOnlyError
from megatune_db.location import Location
from megatune_db.location import Where

if TYPE_CHECKING:
    from optuna.storages import RDBStorage


class Database:
    """An open database. Threads may share it; each uses a session of its own."""

    def __init__(self, backend: Backend, revision: str, *, read_only: bool) -> None:
        self.backend = backend
        self.location: Location = backend.location
        """Where it is; ``str`` of it names it without a password, and ``open_database`` takes it."""
        self.read_only = read_only
        self.engine: Engine = backend.engine(read_only=read_only)
        backend.guard(self.engine, revision)
        self._watch: Watch | None = None
        self._watching = threading.Lock()
        self._storages: list[RDBStorage] = []

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """A session in a transaction: committed at the end of the block, rolled back when it raises.

        For entry points only; what they call takes the session and never commits. The write lock is taken with the
        first change and kept to the end of the block: change Optuna's storage outside it.

        :raises DatabaseError: from any statement, when the disk is full, the database locked, gone or not writable.
        :raises NewerSchemaError: when another version of the program changed the schema since it was opened.
        """
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    def optuna_storage(self) -> RDBStorage:
        """Optuna's storage in the same database. It is closed with the database.

        :raises ReadOnlyError: when the database was opened read-only: Optuna creates its tables when it opens one.
        :raises OlderSchemaError: when an older Optuna wrote the tables.
        :raises NewerSchemaError: when a newer one did.
        """
        if self.read_only:
            raise ReadOnlyError(f"{self.location} was opened read-only: studies need it writable")
        storage = studies.open_storage(self.backend)
        self._storages.append(storage)
        return storage

    @contextlib.contextmanager
    def writer_lock(self) -> Iterator[None]:
        """Hold the database's exclusive lock, so that two processes never measure into one database.

        :raises DatabaseLockedError: at once, with the process that holds it.
        :raises ReadOnlyError: when the database was opened read-only.
        """
        if self.read_only:
            raise ReadOnlyError(f"{self.location} was opened read-only: a campaign needs it writable")
        with self.backend.writer_lock():
            yield

    def writer(self) -> int | None:
        """The process that holds the writer lock, None when none does; nothing is taken, so that anybody may ask.

        0 where it is none of this machine, or cannot be told, e.g. because it runs in another container.
        """
        return self.backend.writer()

    def changes(self) -> Hashable:
        """A value that differs once anybody has committed: what was read at one value still holds at it.

        Values of two ``Database`` objects, or of two processes, say nothing of each other.
        """
        with self._watching:
            if self._watch is None:
                self._watch = self.backend.watch()
            return self._watch.changes()

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


def open_database(where: Where, *, create: bool = True, read_only: bool = False) -> Database:
    """Open the database at a path, a ``sqlite:///…`` or a ``postgresql://…`` URL, and make it when it is not there.

    On a server the database itself has to be there; what is made are its tables.

    :param create: make a missing file, and its directory; otherwise a missing file is an error.
    :param read_only: neither write nor migrate, whatever is done with the session.
    :raises DatabaseError: one of ``megatune_db.errors``: not a database, an older or newer schema, a network file
        system, no file, no permission, a full disk, no answer.
    """
    backend = backend_at(where)
    if not backend.look(write=not read_only):
        if read_only or not create:
            raise DatabaseMissingError(schema.missing(backend))
        schema.create(backend)
    found = schema.revision(backend)
    if found is None:
        if read_only:
            raise EmptyDatabaseError(
                f"{backend.location} holds no megatune tables yet: run a campaign or an import into it first"
            )
        schema.create(backend)
        found = schema.head()
    else:
        schema.check(backend, found)
    return Database(backend, found, read_only=read_only)
