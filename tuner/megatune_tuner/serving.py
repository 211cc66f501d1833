"""What ``megatune worker`` does: find a campaign that runs, get its runner, and work until there is nothing to do."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from sqlalchemy.orm import Session

from megatune_db import election
from megatune_db import leases
from megatune_db.location import Where
from megatune_db.queries import CampaignRow
from megatune_db.queries import campaigns
from megatune_db.session import open_database
from megatune_kernels.artifact_store import open_store
from megatune_kernels.artifact_store import store_location
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.equipping import runner_of
from megatune_tuner.stopping import Stop
from megatune_tuner.transactions import OUTAGE_S
from megatune_tuner.transactions import Transactions
from megatune_tuner.worker import IDLE
from megatune_tuner.worker import LEAK_BYTES
from megatune_tuner.worker import STOPPED
from megatune_tuner.worker import Worker

LOOK_S = 1.0
"""How often a worker without a campaign looks for one."""

Say = Callable[[str], None]


def serve(
    where: Where,
    *,
    name: str | None = None,
    kind: str | None = None,
    source: str | None = None,
    gpu: int = 0,
    idle_s: float | None = None,
    lease_s: float = leases.LEASE_S,
    leak_bytes: int = LEAK_BYTES,
    outage_s: float = OUTAGE_S,
    stop: Stop | None = None,
    say: Say = lambda text: None,
    registered: Callable[[int], None] = lambda worker: None,
) -> str:
    """Work for campaigns that run in the database, one after the other, until there is a reason to end.

    :param name: of the campaign to work for; None: any.
    :param kind: of the runner that this worker can be; None: what a campaign asks for.
    :param source: the campaign's file, beside which a recording may lie; None: it lies beside the database.
    :param idle_s: end after so many seconds without work; None: never.
    :param registered: told the id under which it works for each campaign.
    :returns: the reason; ``LEAKED`` asks for a new process.
    :raises MegatuneError: when what a campaign asks for is not here, e.g. a GPU or a recording.
    :raises DatabaseError: when the database cannot be used, or is gone for too long.
    """
    stop = stop or Stop()
    # A worker can come before the coordinator has made the tables, but not before there is a database.
    with open_database(where) as database:
        transactions = Transactions(database, outage_s=outage_s, note=say)
        waited_s = 0.0
        while not stop.requested:
            row = transactions.read(lambda session: _wanted(session, name, kind))
            if row is None:
                if idle_s is not None and waited_s >= idle_s:
                    return IDLE
                time.sleep(LOOK_S)
                waited_s += LOOK_S
                continue
            campaign = parse_campaign(
                row.file_text, source=source or str(database.location.folder / f"{row.name}.toml")
            )
            say(f"working for {row.name}")
            with runner_of(campaign, gpu) as runner:
                store = open_store(store_location())
                worker = Worker(
                    transactions,
                    row.id,
                    runner,
                    store.get,
                    lease_s=lease_s,
                    idle_s=_patience(idle_s),
                    leak_bytes=leak_bytes,
                )
                registered(worker.id)
                why = worker.run(lambda: stop.requested)
            say(f"{worker.jobs} results delivered to {row.name}; {why}")
            if why != IDLE:
                return why
            waited_s = waited_s + _patience(idle_s) if not worker.jobs else 0.0
        return STOPPED


def replace_process() -> None:
    """Begin anew as the same process: what leaked is given back with the memory of the old one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, sys.orig_argv[:1] + sys.orig_argv[1:])


def _patience(idle_s: float | None) -> float:
    """Seconds without a job after which a worker looks whether another campaign has work."""
    return 5.0 if idle_s is None else min(5.0, idle_s)


def _wanted(session: Session, name: str | None, kind: str | None) -> CampaignRow | None:
    """The campaign to work for: one that is coordinated now, those with jobs that wait first."""
    coordinated = election.holders(session)
    waiting = leases.waiting(session)
    found = [
        row
        for row in campaigns(session)
        if row.id in coordinated and name in (None, row.name) and kind in (None, _kind(row))
    ]
    return max(found, key=lambda row: (waiting.get(row.id, 0) > 0, -row.id), default=None)


def _kind(row: CampaignRow) -> str:
    return _parsed(row).runner.kind


def _parsed(row: CampaignRow) -> Campaign:
    return parse_campaign(row.file_text, source=f"{row.name}.toml")
