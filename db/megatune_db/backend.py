"""What SQLite and PostgreSQL do differently, behind one interface: everything else is written once."""

from __future__ import annotations

import contextlib
from abc import ABC
from abc import abstractmethod
from collections.abc import Hashable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.engine import ExceptionContext

from megatune_db.errors import DatabaseError
from megatune_db.errors import DatabaseUnreachableError
from megatune_db.errors import NewerSchemaError
from megatune_db.location import Location
from megatune_db.location import Where
from megatune_db.location import locate
from megatune_db.models import PREFIX

VERSION_TABLE = PREFIX + "alembic_version"
"""Optuna's own Alembic owns ``alembic_version`` in the same database."""


class Backend(ABC):
    """One database, by its location. Nothing is connected to before a method needs it."""

    def __init__(self, location: Location) -> None:
        self.location = location

    @abstractmethod
    def look(self, *, write: bool) -> bool:
        """Whether there is something to open.

        :raises DatabaseError: where nothing could be opened or made, whatever it holds.
        """

    @abstractmethod
    def make(self) -> None:
        """Make what is empty, so that it can be connected to; does nothing where it is there."""

    @abstractmethod
    def engine(self, *, read_only: bool = False, pooled: bool = True) -> Engine:
        """An engine whose errors are ``DatabaseError`` where a user can mend them."""

    @abstractmethod
    def migrating(self) -> contextlib.AbstractContextManager[Connection]:
        """A connection in a transaction that nobody else writes beside; committed unless the block raises."""

    @abstractmethod
    def guard(self, engine: Engine, revision: str) -> None:
        """Have the engine refuse to go on once the schema has another revision than this one.

        What is checked holds to the end of the transaction: a migration waits for it.
        """

    @abstractmethod
    def writer_lock(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock that one campaign holds; it ends with the process at the latest.

        :raises DatabaseLockedError: at once, with who holds it.
        """

    @abstractmethod
    def writer(self) -> int | None:
        """The process that holds the writer lock, None when none does; 0 where it is not one of this machine's."""

    @abstractmethod
    def watch(self) -> Watch:
        """A counter of commits."""

    @abstractmethod
    def identity(self) -> Hashable | None:
        """Which database lies at the location, None for none: another one there has another identity."""

    @abstractmethod
    def optuna(self, *, upgrading: bool) -> tuple[str, dict[str, Any]]:
        """The URL and the engine's options with which Optuna opens the same database; to upgrade, with a password."""

    @abstractmethod
    def meaning(self, error: BaseException | None) -> DatabaseError | None:
        """What an error of the driver tells the user to do; None for errors that are the program's own."""

    @abstractmethod
    def hold_still(self, opened: Connection) -> None:
        """Have a connection that has read nothing yet see one moment of the database until it is closed."""

    @abstractmethod
    def copy_whole(self, target: Path) -> bool:
        """Write everything to a new file of the same kind; False where there is no such thing as a file."""

    def translate(self, engine: Engine) -> Engine:
        """Make an engine raise ``DatabaseError`` for what a user can mend, and leave every other error as it is."""

        @event.listens_for(engine, "handle_error")
        def _translate(context: ExceptionContext) -> None:
            found = self.meaning(context.original_exception)
            if isinstance(found, DatabaseUnreachableError):
                context.is_disconnect = True
                if context.is_pre_ping:
                    # A connection of the pool that was lost meanwhile: another one is tried next.
                    return
            if found is not None:
                raise found from context.original_exception

        return engine

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """The same for code that opens connections of its own, whatever it wraps the driver's errors in."""
        try:
            yield
        except DatabaseError:
            raise
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None:
                found = self.meaning(cause)
                if found is not None:
                    raise found from error
                cause = cause.__cause__
            raise

    def outdated(self) -> DatabaseError:
        """What is said to a program under which the schema changed."""
        return NewerSchemaError(
            f"{self.location} was upgraded by another version of megatune while this one had it open: "
            "nothing more is written; start again with that version"
        )


class Watch(ABC):
    """Says whether anybody has committed since it was asked last."""

    @abstractmethod
    def changes(self) -> Hashable:
        """A value that differs once anybody has committed."""

    @abstractmethod
    def close(self) -> None:
        """Let go of its connection; calling again does nothing."""


def backend_at(where: Where) -> Backend:
    """The backend for a path or URL.

    :raises DatabaseError: for a location that cannot be one of a database.
    """
    location = locate(where)
    if location.is_file:
        from megatune_db.sqlite import SqliteBackend

        return SqliteBackend(location)
    from megatune_db.postgres import PostgresBackend

    return PostgresBackend(location)
