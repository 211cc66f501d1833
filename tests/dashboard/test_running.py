"""Stopping a campaign that runs, and going on with one that stopped, as the pages do it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import campaign_examples
import pytest

from megatune_dashboard.app import running
from megatune_db import election
from megatune_db import queries
from megatune_db.location import locate
from megatune_db.records import CampaignState
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_tuner.campaign_file import parse_campaign


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "long.db"
    yield path
    if path.exists():
        with open_database(path, read_only=True) as database:
            process = database.writer()
        if process:
            subprocess.run(["kill", "-KILL", str(process)], check=False)


def test_a_campaign_stops_after_its_measurement_and_goes_on(path: Path) -> None:
    process = campaign_examples.start_long(path)
    try:
        with open_database(path, read_only=True) as database:
            assert database.writer() == process.pid
            assert list(running.coordinators(database).values()) == [process.pid]
            running.ask_to_stop(database, "long")
            assert running.was_asked(locate(path), process.pid)
            with pytest.raises(MegatuneError, match="asked to stop already"):
                running.ask_to_stop(database, "long")
        assert process.wait(120) == 130
    finally:
        process.kill()
        process.wait()
    made = campaign_examples.wait_for(path, CampaignState.STOPPED, trials=20)

    running.resume("long", locate(path))
    with pytest.raises(MegatuneError, match="still runs"):
        running.resume("long", locate(path))
    assert campaign_examples.wait_for(path, CampaignState.RUNNING, trials=made + 1) > made
    with open_database(path, read_only=True) as database:
        running.ask_to_stop(database, "long")
    campaign_examples.wait_for(path, CampaignState.STOPPED)
    assert running.trouble(locate(path)) is None


def test_what_keeps_a_campaign_from_going_on_is_said(tuned: Path) -> None:
    running.resume("no such campaign", locate(tuned))
    until = time.monotonic() + 60
    while running.trouble(locate(tuned)) is None and time.monotonic() < until:
        time.sleep(0.1)
    found = running.trouble(locate(tuned))
    assert found is not None
    assert "the database has no campaign 'no such campaign'" in found


def test_nothing_runs(tuned: Path) -> None:
    with open_database(tuned) as database:
        with database.session() as session:
            row = queries.campaigns(session)[0]
        for name in (row.name, "no such campaign"):
            with pytest.raises(MegatuneError, match="does not run any more"):
                running.ask_to_stop(database, name)
        with database.session() as session:
            election.elect(session, row.id)
        with pytest.raises(MegatuneError, match="press Ctrl-C there"):
            running.ask_to_stop(database, row.name)


def test_a_campaign_that_was_killed_is_told_from_one_that_runs(tuned: Path) -> None:
    with open_database(tuned, read_only=True) as database, database.session() as session:
        row = queries.campaigns(session)[0]
    assert running.state(row, None) == "finished"


def test_how_many_trials_were_declared() -> None:
    campaign = parse_campaign(campaign_examples.PROJECTIONS)
    assert running.declared_trials(campaign_examples.PROJECTIONS) == 16 * len(campaign.workloads()) == 128
    assert running.declared_trials(campaign_examples.PROJECTIONS.replace("trials = 16", "minutes = 1")) is None
    assert running.declared_trials("no campaign [") is None


def test_a_name_is_never_an_option() -> None:
    assert running.resume_command("--help", locate("a b.db")) == "megatune resume --db 'a b.db' -- --help"
