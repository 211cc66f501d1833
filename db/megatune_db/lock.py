"""One campaign at a time into one SQLite file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from megatune_db.errors import DatabaseError
from megatune_db.errors import DatabaseLockedError
from megatune_db.errors import ReadOnlyError

# A record lock, unlike ``flock``, is not inherited by forked workers, which may outlive a coordinator that was killed.
# But it belongs to the whole process and is lost when any descriptor of the file is closed, so that a second attempt in
# the same process must not even open the file: this set says that it is held.
_held: dict[Path, int] = {}
_guard = threading.Lock()


def lock_path(path: Path) -> Path:
    """The file beside the database that the lock is on; it stays, because removing it would race."""
    return path.with_name(path.name + ".lock")


@contextlib.contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of the database at ``path``; it ends with the process at the latest.

    :raises DatabaseLockedError: at once when another process, or this one, holds it.
    :raises ReadOnlyError: when no file can be written beside the database.
    """
    with _guard:
        if _held.get(path) == os.getpid():
            raise DatabaseLockedError(
                f"this process is already running a campaign in {path}; wait for it or use another --db"
            )
        descriptor = _open(lock_path(path))
        try:
            _acquire(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        _held[path] = os.getpid()
    try:
        yield
    finally:
        with _guard:
            del _held[path]
            os.close(descriptor)


def lock_holder(path: Path) -> int | None:
    """The process that holds the lock of the database at ``path``, None when none does; nothing is taken or written.

    0 where it cannot be told which: the process cannot be seen from here, or the file beside the database not be read.
    """
    with _guard:
        if _held.get(path) == os.getpid():
            return os.getpid()
        try:
            descriptor = os.open(lock_path(path), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError:
            return 0
        try:
            # Trying to take it, be it for an instant, would turn away a campaign that starts in that instant.
            return _in_the_way(descriptor)
        finally:
            os.close(descriptor)


def _in_the_way(descriptor: int) -> int | None:
    """Who holds a record lock on the file: the answer to ``F_GETLK``, laid out as the C library's ``struct flock``."""
    if sys.platform == "darwin":
        answer = struct.unpack(
            "qqihh", fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack("qqihh", 0, 0, 0, fcntl.F_WRLCK, 0))
        )
        kind, holder = answer[3], answer[2]
    else:
        layout = "hhqqi4x"
        answer = struct.unpack(
            layout, fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(layout, fcntl.F_WRLCK, 0, 0, 0, 0))
        )
        kind, holder = answer[0], answer[4]
    return None if kind == fcntl.F_UNLCK else max(0, int(holder))


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError as error:
        raise ReadOnlyError(f"{path} cannot be written ({error.strerror}): make its directory writable") from error
    except OSError as error:
        raise DatabaseError(f"{path} cannot be opened ({error.strerror}): check the directory") from error


def _acquire(descriptor: int, path: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        raise DatabaseLockedError(
            f"another process (pid {holder}) is running a campaign in {path}; wait for it or use another --db"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
