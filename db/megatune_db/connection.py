"""How a SQLite file is opened, and what its errors mean."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy.engine import URL

from megatune_db.errors import DatabaseError
from megatune_db.errors import DatabaseFullError
from megatune_db.errors import DatabaseLockedError
from megatune_db.errors import NotADatabaseError
from megatune_db.errors import ReadOnlyError

BUSY_TIMEOUT_S = 30.0
"""Seconds for which a statement waits while another process commits."""


class Mode(enum.Enum):
    """What a connection may do to its file, in the words of SQLite's URIs."""

    READ = "ro"
    WRITE = "rw"
    CREATE = "rwc"


def connect(path: Path, mode: Mode = Mode.WRITE, *, foreign_keys: bool = True) -> sqlite3.Connection:
    """A connection with the settings that every user of the file shares.

    A transaction takes the write lock with its first change and not before (``IMMEDIATE``): statements that read
    before it cannot pin a snapshot that another process has overtaken, which SQLite would refuse to write from.

    :raises DatabaseError: where the write-ahead log does not work.
    :raises sqlite3.Error: when the file cannot be opened, or made, as ``mode`` says.
    """
    immutable = "&immutable=1" if mode is Mode.READ and _is_immutable(path) else ""
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode.value}{immutable}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level="IMMEDIATE",
        check_same_thread=False,
    )
    try:
        if mode is Mode.READ:
            connection.execute("PRAGMA query_only = ON")
        else:
            # The write-ahead log lets readers go on while a campaign commits. With it, NORMAL keeps every commit
            # when the process is killed; only a power cut can take back the last ones, never tear the file.
            (journal,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if journal != "wal":
                raise DatabaseError(f"{path} lies on a file system without shared memory: use a local disk")
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


def json_text(value: Any) -> str:
    """How JSON is kept: short, and never with a number that is none."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """The same for code that opens connections or engines of its own, whatever it wraps SQLite's errors in."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, sqlite3.Error):
            cause = cause.__cause__
        found = meaning(cause, path)
        if found is None:
            raise
        raise found from error


def meaning(error: BaseException | None, path: Path) -> DatabaseError | None:
    """What an error of SQLite tells the user to do; None for errors that are the program's own."""
    code = getattr(error, "sqlite_errorcode", None)
    if not isinstance(error, sqlite3.Error) or code is None:
        return None
    # Only a full disk is reported as such; quotas and limits on the size of a file are failed writes.
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE):
        return DatabaseFullError(
            f"no space is left for {path}: free some and run again; what was committed before is kept"
        )
    match code & 0xFF:
        case sqlite3.SQLITE_IOERR:
            return DatabaseError(f"{path} cannot be read or written ({error}): check the disk")
        case sqlite3.SQLITE_NOTADB:
            return NotADatabaseError(f"{path} is not a megatune database: name another file")
        case sqlite3.SQLITE_CORRUPT:
            return NotADatabaseError(f"{path} is damaged ({error}): restore it from a copy or use another file")
        case sqlite3.SQLITE_READONLY:
            return ReadOnlyError(f"{path} cannot be written: it was opened read-only, or its directory or file is")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return DatabaseLockedError(
                f"another process has been writing to {path} for {BUSY_TIMEOUT_S:.0f} s: wait for it and run again"
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return DatabaseError(f"{path} cannot be opened: check its directory and your permissions")
    return None
