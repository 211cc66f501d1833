"""The database behind the pages: opened read-only, read through a cache, written to for a moment at a time."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterator
from typing import Any
from typing import Concatenate
from typing import ParamSpec
from typing import TypeVar

from sqlalchemy.orm import Session

from megatune_db.backend import backend_at
from megatune_db.errors import DatabaseMissingError
from megatune_db.errors import EmptyDatabaseError
from megatune_db.location import Location
from megatune_db.location import Where
from megatune_db.location import locate
from megatune_db.session import Database
from megatune_db.session import open_database

P = ParamSpec("P")
T = TypeVar("T")

MOST_ANSWERS = 256
"""That are kept; the one that was asked for the longest ago goes first."""


class Source:
    """One database, for every session of the process. It need not be there yet: it is looked for at each use."""

    def __init__(self, where: Where) -> None:
        self.location: Location = locate(where)
        self._backend = backend_at(self.location)
        self._lock = threading.Lock()
        self._database: Database | None = None
        self._identity: Hashable | None = None
        self._answers: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()

    def database(self) -> Database | None:
        """The database, read-only; None while there is none, or one without tables.

        A file that was replaced by another is opened anew.

        :raises DatabaseError: when it is there and cannot be read.
        """
        with self._lock:
            identity = self._backend.identity()
            if identity is None or identity != self._identity:
                if self._database is not None:
                    self._database.close()
                self._database, self._identity = None, None
                self._answers.clear()
            if identity is not None and self._database is None:
                self._database = _opened(self.location)
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
            raise DatabaseMissingError(f"there is no database {self.location} yet")
        return database

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """A session that is committed at the end of the block. It waits for a campaign's commits and never the other
        way round for longer than its own block takes: read first, write last.

        :raises DatabaseError: when it cannot be written.
        """
        with open_database(self.location, create=False) as database, database.session() as session:
            yield session


def _opened(where: Location) -> Database | None:
    try:
        return open_database(where, read_only=True)
    except (DatabaseMissingError, EmptyDatabaseError):
        # A campaign makes a file before its tables.
        return None
