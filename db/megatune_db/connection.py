"""How a SQLite file is opened, and what its errors mean."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import create_engine
from sqlalchemy import event
from sqlalchemy.engine import URL
from sqlalchemy.engine import Engine
from sqlalchemy.engine import ExceptionContext

from megatune_db.errors import DatabaseError
from megatune_db.errors import DatabaseFullError
from megatune_db.errors import DatabaseLockedError
from megatune_db.errors import NotADatabaseError
from megatune_db.errors import ReadOnlyError

BUSY_TIMEOUT_S = 30.0
"""Seconds for which a statement waits while another process commits."""


def connect(path: Path, *, read_only: bool = False, foreign_keys: bool = True) -> sqlite3.Connection:
    """A connection with the settings that every user of the file shares.

    A transaction takes the write lock with its first change and not before (``IMMEDIATE``): statements that read
    before it cannot pin a snapshot that another process has overtaken, which SQLite would refuse to write from.
    """
    if read_only:
        uri = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if _is_immutable(path) else ''}"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    else:
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level="IMMEDIATE", check_same_thread=False)
    try:
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            # The write-ahead log lets readers go on while a campaign commits. With it, NORMAL keeps every commit
            # when the process is killed; only a power cut can take back the last ones, never tear the file.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_immutable(path: Path) -> bool:
    # A log cannot be attached where nothing can be written beside the file; without one there is nothing to miss.
    return not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists()


def url_of(path: Path) -> str:
    """The SQLAlchemy URL of a SQLite file."""
    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def engine_for(path: Path, *, read_only: bool) -> Engine:
    """An engine whose errors are ``DatabaseError`` where a user can mend them."""
    engine = create_engine(url_of(path), creator=lambda: connect(path, read_only=read_only))
    translate_errors(engine, path)
    return engine


def translate_errors(engine: Engine, path: Path) -> None:
    """Make the engine raise ``DatabaseError`` for what a user can mend, and leave every other error as it is."""

    @event.listens_for(engine, "handle_error")
    def _translate(context: ExceptionContext) -> None:
        found = meaning(context.original_exception, path)
        if found is not None:
            raise found from context.original_exception


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """The same for code that uses a connection of ``sqlite3`` directly."""
    try:
        yield
    except sqlite3.Error as error:
        found = meaning(error, path)
        if found is None:
            raise
        raise found from error


def meaning(error: BaseException | None, path: Path) -> DatabaseError | None:
    """What an error of SQLite tells the user to do; None for errors that are the program's own."""
    if not isinstance(error, sqlite3.DatabaseError):
        return None
    code = getattr(error, "sqlite_errorcode", None)
    match code & 0xFF if code is not None else None:
        case sqlite3.SQLITE_FULL:
            return DatabaseFullError(f"the disk is full: free some space for {path} and run again; nothing is lost")
        case sqlite3.SQLITE_IOERR:
            return DatabaseFullError(f"{path} cannot be read or written ({error}): check the disk and its free space")
        case sqlite3.SQLITE_NOTADB:
            return NotADatabaseError(f"{path} is not a megatune database: name another file")
        case sqlite3.SQLITE_CORRUPT:
            return NotADatabaseError(f"{path} is damaged ({error}): restore it from a copy or use another file")
        case sqlite3.SQLITE_READONLY:
            return ReadOnlyError(f"{path} cannot be written: open a copy of it, or make the file writable")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return DatabaseLockedError(
                f"another process has been writing to {path} for {BUSY_TIMEOUT_S:.0f} s: wait for it and run again"
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return DatabaseError(f"{path} cannot be opened: check the directory and your permissions")
    return None
