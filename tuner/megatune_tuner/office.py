"""The office of a campaign's coordinator: waited for, won, held and left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from contextlib import contextmanager
from contextlib import suppress

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from megatune_db import election
from megatune_db import place
from megatune_db import store
from megatune_db.election import Term
from megatune_db.errors import DatabaseError
from megatune_db.errors import DatabaseLockedError
from megatune_db.queries import campaign as campaign_row
from megatune_db.session import Database
from megatune_kernels.canonical import digest
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.objectives import objective_row
from megatune_tuner.progress import Progress
from megatune_tuner.stopping import Stop
from megatune_tuner.transactions import Transactions

LOOK_S = 0.5
"""How often somebody who waits looks whether the place is free."""


@contextmanager
def in_office(
    transactions: Transactions, campaign: Campaign, progress: Progress, stop: Stop, *, term_s: float
) -> Iterator[None]:
    """Coordinate the campaign in this block, and wait before it while another process does.

    A server's database is shared by as many campaigns as there are. A file has one at a time: whoever has the place
    holds the file's lock as well.

    :raises DatabaseLockedError: when another campaign runs in the same file.
    :raises KeyboardInterrupt: when a stop is requested while this waits.
    """
    with ExitStack() as held:
        waiting = _Waiting(campaign, progress, stop)
        if is_file(transactions.database):
            _lock(transactions, campaign, waiting, held)
        term = _elected(transactions, campaign, waiting, term_s)
        transactions.term = term
        over = threading.Event()
        heart = threading.Thread(target=_keep, args=(transactions, term, over), name="term", daemon=True)
        heart.start()
        try:
            yield
        finally:
            over.set()
            heart.join()
            transactions.term = None
            with suppress(DatabaseError), transactions.database.session() as session:
                election.resign(session, term)


def is_file(database: Database) -> bool:
    """Whether the database is a file of this machine."""
    return database.location.is_file


class _Waiting:
    """Says once what is waited for."""

    def __init__(self, campaign: Campaign, progress: Progress, stop: Stop) -> None:
        self._campaign = campaign
        self._progress = progress
        self._stop = stop
        self._told = False

    def a_while(self, holder: str) -> None:
        if not self._told:
            self._told = True
            who = place.readable(holder)
            self._progress.note(f"{who} runs {self._campaign.name}: waiting, and taking over if it ends early")
        if self._stop.requested:
            raise KeyboardInterrupt
        threading.Event().wait(LOOK_S)


def _lock(transactions: Transactions, campaign: Campaign, waiting: _Waiting, held: ExitStack) -> None:
    while True:
        try:
            held.enter_context(transactions.database.writer_lock())
        except DatabaseLockedError:
            holder = transactions.read(lambda session: _holder(session, campaign))
            if holder is None:
                raise
            waiting.a_while(holder)
        else:
            return


def _holder(session: Session, campaign: Campaign) -> str | None:
    found = campaign_row(session, campaign.name)
    return None if found is None else election.holders(session).get(found.id)


def _elected(transactions: Transactions, campaign: Campaign, waiting: _Waiting, term_s: float) -> Term:
    def stand(session: Session) -> Term | str:
        found = campaign_row(session, campaign.name)
        # The file of the campaign that runs stays until it is this process's turn.
        campaign_id = (
            found.id
            if found is not None
            else store.put_campaign(
                session,
                name=campaign.name,
                file_text=campaign.text,
                file_digest=digest(campaign.text),
                objective=objective_row(campaign),
            )
        )
        return election.elect(session, campaign_id, term_s=term_s)

    while True:
        try:
            won = transactions.read(stand)
        except IntegrityError:
            # Somebody took the place for the first time in the same moment.
            continue
        if isinstance(won, Term):
            return won
        waiting.a_while(won)


def _keep(transactions: Transactions, term: Term, over: threading.Event) -> None:
    """Put the end of the term off; who has lost it is told by the next thing that it writes."""
    while not over.wait(term.term_s / 4):
        with suppress(DatabaseError), transactions.database.session() as session:
            election.fence(session, term)
