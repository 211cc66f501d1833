"""One campaign at a time into one SQLite file."""

from __future__ import annotations

import contextlib
import fcntl
import os
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
