"""Transactions that outlive an outage of the database, and that only the campaign's coordinator can write in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from megatune_db import election
from megatune_db.election import Term
from megatune_db.errors import DatabaseLockedError
from megatune_db.errors import DatabaseUnreachableError
from megatune_db.session import Database

OUTAGE_S = 600.0
"""Seconds for which a database may be gone before a coordinator or a worker gives up."""
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0

T = TypeVar("T")


class Transactions:
    """Runs functions in transactions of their own, again where the database was gone meanwhile.

    A transaction can have been committed although nobody could say so: what is run here comes to the same when it
    is run twice.

    :param note: told once an outage, and once when it is over.
    """

    def __init__(
        self, database: Database, *, outage_s: float = OUTAGE_S, note: Callable[[str], None] | None = None
    ) -> None:
        self.database = database
        self.term: Term | None = None
        """What writing needs, once it is won; None where nobody else can write."""
        self.rolled_back: Callable[[], None] = lambda: None
        """Told when what was written was not kept."""
        self.outage_s = outage_s
        self._note = note or (lambda text: None)
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Wait for no database any more."""
        self._given_up.set()

    def read(self, do: Callable[[Session], T]) -> T:
        """:raises DatabaseError: for whatever waiting does not mend, and for an outage that is too long."""
        return self._run(do)

    def write(self, do: Callable[[Session], T]) -> T:
        """The same.

        :raises CoordinatorReplacedError: when another coordinator has taken over.
        """
        term = self.term
        if term is None:
            return self._run(do)

        def fenced(session: Session) -> T:
            election.fence(session, term)
            return do(session)

        return self._run(fenced)

    def _run(self, do: Callable[[Session], T]) -> T:
        wait_s, until, told = FIRST_WAIT_S, time.monotonic() + self.outage_s, False
        while True:
            try:
                with self.database.session() as session:
                    found = do(session)
            except Exception as error:
                self.rolled_back()
                if not is_outage(error) or time.monotonic() + wait_s > until or self._given_up.wait(wait_s):
                    raise
                if not told:
                    self._note(f"the database does not answer: waiting for it, for up to {self.outage_s:.0f} s")
                    told = True
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            else:
                if told:
                    self._note("the database answers again")
                return found


def is_outage(error: BaseException) -> bool:
    """Whether the database was gone or busy, so that the same can work in a while."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated
    return isinstance(error, DatabaseUnreachableError | DatabaseLockedError)
