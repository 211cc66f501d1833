"""Campaigns as processes: whether one runs, how to ask it to stop, and how to go on with one that stopped.

A page never takes the place that a campaign's coordinator holds. To stop one it does what Ctrl-C does: the
database says which process that is; where it runs on this machine it gets the same signal and keeps its measurement.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from megatune_db import election
from megatune_db import place
from megatune_db.location import Location
from megatune_db.queries import CampaignRow
from megatune_db.queries import campaign
from megatune_db.records import CampaignState
from megatune_db.session import Database
from megatune_kernels.errors import MegatuneError

KILLED = "interrupted"
"""What is said of a campaign that was running when its process ended."""

_asked: set[tuple[Location, int]] = set()
_started: dict[Location, subprocess.Popen[bytes]] = {}
_lock = threading.Lock()


def coordinators(database: Database) -> dict[int, int]:
    """The processes that run campaigns, by the campaign's id; 0 for one that cannot be reached from here."""
    with database.session() as session:
        return {number: place.process(where) or 0 for number, where in election.holders(session).items()}


def state(row: CampaignRow, writer: int | None) -> str:
    """How far a campaign has come, given which process runs it: one that was killed cannot say so."""
    return KILLED if row.state is CampaignState.RUNNING and writer is None else str(row.state)


def ask_to_stop(database: Database, name: str) -> None:
    """Have a campaign that runs end after its current measurement.

    :raises MegatuneError: when it does not run, when it was asked already, and when its process cannot be reached from
        here.
    """
    with database.session() as session:
        row = campaign(session, name)
    process = None if row is None else coordinators(database).get(row.id)
    if process is None:
        raise MegatuneError("the campaign does not run any more")
    if process in (0, os.getpid()):
        raise MegatuneError("the campaign runs where the dashboard cannot reach it: press Ctrl-C there")
    with _lock:
        # A second signal would not wait for the measurement.
        if (database.location, process) in _asked:
            raise MegatuneError("the campaign was asked to stop already: it ends after its current measurement")
        try:
            os.kill(process, signal.SIGINT)
        except ProcessLookupError:
            raise MegatuneError("the campaign has just ended") from None
        except PermissionError:
            raise MegatuneError(
                f"the campaign (process {process}) belongs to another account: press Ctrl-C there"
            ) from None
        _asked.add((database.location, process))


def was_asked(where: Location, process: int | None) -> bool:
    """Whether the process was asked to stop from here."""
    return (where, process) in _asked


def resume_command(name: str, where: Location) -> str:
    """The command that goes on with a campaign of the database; of a URL, without its password."""
    return shlex.join(["megatune", "resume", "--db", str(where), "--", name])


def log_path(where: Location) -> Path:
    """Where a campaign that is started from here writes what it has to say: beside the file, or in the user's cache."""
    if where.is_file:
        return where.path.with_name(where.path.name + ".resume.log")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "megatune"
    return cache / f"{sha256(str(where).encode()).hexdigest()[:16]}.resume.log"


def resume(name: str, where: Location) -> None:
    """Start a process that goes on with the campaign, and outlives the dashboard.

    :raises MegatuneError: when its log cannot be written, or a campaign runs already.
    """
    with _lock:
        running = _started.get(where)
        if running is not None and running.poll() is None:
            raise MegatuneError("a campaign was started from here and still runs")
        try:
            log_path(where).parent.mkdir(parents=True, exist_ok=True)
            with log_path(where).open("wb") as log:
                _started[where] = subprocess.Popen(
                    [sys.executable, "-m", "megatune_dashboard", "resume", "--", name],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    # Arguments of a process can be read by everybody on the machine.
                    env={**os.environ, **where.environment()},
                )
        except OSError as error:
            raise MegatuneError(
                f"cannot start the campaign ({error.strerror}): {resume_command(name, where)}"
            ) from None


def trouble(where: Location) -> str | None:
    """The last line of a campaign that was started from here and failed; None where none did."""
    with _lock:
        process = _started.get(where)
    if process is None or process.poll() in (None, 0, 130):
        return None
    try:
        lines = log_path(where).read_text("utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else f"it ended with exit code {process.returncode}"


@lru_cache(maxsize=64)
def declared_trials(file_text: str) -> int | None:
    """How many trials a campaign file asks for over all that it lists; None where only time limits it."""
    from megatune_tuner.campaign_file import parse_campaign

    try:
        campaign = parse_campaign(file_text)
        trials = campaign.budget.trials
        return None if trials is None else trials * len(campaign.workloads())
    except MegatuneError:
        # A campaign of another version, or one that was not made from a file.
        return None
