"""The database behind the pages: opened read-only, read through a cache, written to for a moment at a time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import Concatenate
from typing import ParamSpec
from typing import TypeVar

from sqlalchemy.orm import Session

from megatune_db.errors import DatabaseMissingError
from megatune_db.errors import NotADatabaseError
from megatune_db.location import sqlite_path
from megatune_db.session import Database
from megatune_db.session import open_database

P = ParamSpec("P")
T = TypeVar("T")

MOST_ANSWERS = 256
"""That are kept; the one that was asked for the longest ago goes first."""


class Source:
    """One file, for every session of the process. It need not be there yet: it is looked for again at each use."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = sqlite_path(path)
        self._lock = threading.Lock()
        self._database: Database | None = None
        self._identity: tuple[int, int] | None = None
        self._answers: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()

    def database(self) -> Database | None:
        """The database, read-only; None while there is none, or nothing but an empty file.

        A file that was replaced by another is opened anew.

        :raises DatabaseError: when the file is there and cannot be read.
        """
        with self._lock:
            identity = _identity(self.path)
            if identity is None or identity != self._identity:
                if self._database is not None:
                    self._database.close()
                self._database, self._identity = None, None
                self._answers.clear()
            if identity is not None and self._database is None:
                self._database = _opened(self.path)
                self._identity = identity if self._database is not None else None
            return self._database

    def read(self, query: Callable[Concatenate[Session, P], T], *arguments: P.args, **options: P.kwargs) -> T:
        """What a query gives for these (hashable) arguments; asked once until somebody commits. Leave it unchanged.

        :raises DatabaseMissingError: while there is no database.
        :raises DatabaseError: when it cannot be read.
        """
        # The count comes first: what is committed between the two is read now and asked for once more later.
        return self.read_at(self._present().changes(), query, *arguments, **options)

    def read_at(
        self, version: Hashable, query: Callable[Concatenate[Session, P], T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """The same, asked once for as long as ``version`` stays what it is: for answers that few commits change.

        The errors are those of ``read``.
        """
        database = self._present()
        key = (query, arguments, tuple(sorted(options.items())))
        with self._lock:
            found = self._answers.get(key)
            if found is not None and found[0] == version:
                self._answers.move_to_end(key)
                answer: T = found[1]
                return answer
        with database.session() as session:
            answer = query(session, *arguments, **options)
        with self._lock:
            self._answers[key] = (version, answer)
            self._answers.move_to_end(key)
            while len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)
        return answer

    def _present(self) -> Database:
        database = self.database()
        if database is None:
            raise DatabaseMissingError(f"there is no database {self.path} yet")
        return database

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """A session that is committed at the end of the block. It waits for a campaign's commits and never the other
        way round for longer than its own block takes: read first, write last.

        :raises DatabaseError: when the file cannot be written.
        """
        with open_database(self.path, create=False) as database, database.session() as session:
            yield session


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file lies there; None for none, and for an empty one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found.st_size else None


def _opened(path: Path) -> Database | None:
    try:
        return open_database(path, read_only=True)
    except DatabaseMissingError:
        return None
    except NotADatabaseError:
        # A campaign makes the file before its tables; what stays without them is an error soon enough.
        if path.with_name(path.name + "-wal").exists():
            return None
        raise
