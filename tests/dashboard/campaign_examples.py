"""Campaigns over the shipped recordings, run for real: what the pages are shown with."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from megatune_db import queries
from megatune_db.errors import NotADatabaseError
from megatune_db.records import CampaignState
from megatune_db.session import open_database
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.execution import run_file

PROJECTIONS = """
name = "projections"
tokens = [1, 4, 16, 64]
[[shapes]]
operator = "projection"
n = 2112
k = 7168
[[shapes]]
operator = "projection"
n = 1536
k = 7168
[budget]
trials = 16
finalists = 2
[runner]
kind = "replay"
recording = "kimi-k3-h200"
"""
REDUCTIONS = """
name = "reductions"
tokens = [1, 8, 64, 128, 256]
[[shapes]]
operator = "reduction"
width = 7168
world = 2
[budget]
trials = 16
finalists = 2
[runner]
kind = "replay"
recording = "reduction-h200x2"
"""
LONG = """
name = "long"
operators = ["projection"]
tokens = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
[model]
name = "Kimi-K3"
tensor_parallel = [8, 16]
[budget]
trials = 200
[runner]
kind = "replay"
recording = "kimi-k3-h200"
"""
"""Takes minutes, so that it can be watched and stopped."""
UNHURRIED = """
import time
from megatune_dashboard.command import main
from megatune_tuner.runners.replay import ReplayRunner
measure = ReplayRunner.measure
def unhurried(self, request):
    time.sleep(0.1)
    return measure(self, request)
ReplayRunner.measure = unhurried
main()
"""
"""The program, whose replays take as long as a GPU would: they keep a core from whoever looks on otherwise."""
PATIENCE_S = 60


def tuned(path: Path) -> None:
    """Run both short campaigns into the database."""
    for text in (PROJECTIONS, REDUCTIONS):
        run_file(parse_campaign(text), path)


def start_long(path: Path) -> subprocess.Popen[bytes]:
    """A process that runs the long campaign; it is measuring when this returns."""
    file = path.with_name("long.toml")
    file.write_text(LONG, "utf-8")
    process = subprocess.Popen(
        [sys.executable, "-c", UNHURRIED, "run", str(file), "--db", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(path, CampaignState.RUNNING, trials=20)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def wait_for(path: Path, state: CampaignState, *, trials: int = 0) -> int:
    """Wait until the long campaign is in that state with so many trials; returns how many it has."""
    until = time.monotonic() + PATIENCE_S
    found = "there is no database"
    while time.monotonic() < until:
        if path.exists() and path.stat().st_size:
            try:
                with open_database(path, read_only=True) as database, database.session() as session:
                    row = queries.campaign(session, "long")
            except NotADatabaseError as error:
                # It is being made.
                row, found = None, str(error)
            if row is not None:
                made = sum(row.trials.values())
                found = f"it is {row.state} with {made} trials"
                if row.state is state and made >= trials:
                    return made
        time.sleep(0.3)
    raise AssertionError(f"the campaign did not become {state} with {trials} trials: {found}")
