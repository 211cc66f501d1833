"""A campaign that is killed at any moment goes on from what is committed: nothing lost, nothing repeated."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from campaigns import campaign
from campaigns import finalists_of
from campaigns import replay
from campaigns import trials
from toy_recordings import record_toy
from toy_recordings import workloads
from typer.testing import CliRunner

from megatune_db.records import Stage
from megatune_db.records import TrialState
from megatune_db.session import open_database
from megatune_tuner.bisection import WINNERS
from megatune_tuner.commands import app
from megatune_tuner.recordings import read_recording

HERE = Path(__file__).parent
SHAPES = [(1536, 7168), (3072, 7168)]
TOKENS = [1, 2, 4, 8]
CELLS = workloads(SHAPES, TOKENS)
TRIALS = 24

PLUGINS = os.pathsep.join([str(HERE), str(HERE / "plugin"), os.environ.get("PYTHONPATH", "")])
COMMAND = "from megatune_tuner.commands import app; app()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record_toy(tmp_path / "toy.parquet", CELLS)
    text = f'name = "toy"\ntokens = {TOKENS}\n'
    text += "".join(f'[[shapes]]\noperator = "toy"\nn = {n}\nk = {k}\n' for n, k in SHAPES)
    text += f'[budget]\ntrials = {TRIALS}\n[runner]\nkind = "replay"\nrecording = "toy.parquet"\n'
    (tmp_path / "toy.toml").write_text(text)
    return tmp_path


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "run", str(folder / "toy.toml"), "--db", str(folder / "toy.db"), "--json"],
        env={**os.environ, "PYTHONPATH": PLUGINS},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def states(folder: Path) -> dict[str, str]:
    """What ``status`` says of each campaign."""
    found = CliRunner().invoke(app, ["status", "--db", str(folder / "toy.db"), "--json"], catch_exceptions=False)
    return {row["campaign"]: row["state"] for row in json.loads(found.stdout)["campaigns"]}


def rows(database: Path) -> set[tuple[object, ...]]:
    """Every search measurement as it lies in the file; empty while there is none."""
    if not database.exists():
        return set()
    query = "SELECT id, workload_id, config_id, status, samples FROM megatune_measurements WHERE stage = 'search'"
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as opened:
        try:
            return set(opened.execute(query))
        except sqlite3.OperationalError:
            return set()


def test_killed_at_random_moments(folder: Path) -> None:
    moments = random.Random(0)
    database = folder / "toy.db"
    kept: set[tuple[object, ...]] = set()
    for _ in range(4):
        process = start(folder)
        before = len(kept)
        deadline = time.monotonic() + 30
        while len(rows(database)) <= before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        now = rows(database)
        assert kept <= now
        kept = now
    last = start(folder)
    assert last.wait(120) == 0
    finished = rows(database)
    assert kept <= finished
    assert len({row[1:3] for row in finished}) == len(finished) == len(CELLS) * (TRIALS + 1)
    with open_database(database) as opened:
        found = trials(opened)
    done = [row for row in found if row.state is TrialState.DONE and row.stage is Stage.SEARCH]
    assert Counter(row.workload for row in done if row.reason != "baseline") == {cell.digest: TRIALS for cell in CELLS}
    assert all(row.state is not TrialState.ASKED for row in found)
    for cell in CELLS:
        finals = [row.config for row in found if row.reason == "finalist" and row.workload == cell.digest]
        assert sorted(finals) == sorted(finalists_of(found, cell))
    recorded = read_recording(folder / "toy.parquet")
    for row in done:
        (cell,) = [cell for cell in CELLS if cell.digest == row.workload]
        (config,) = [config for config in recorded.configs(cell) if config.digest == row.config]
        assert row.median_us == pytest.approx(recorded.times_us(cell)[config], rel=1e-6)


def test_killed_while_it_looks_for_crossovers(folder: Path) -> None:
    record_toy(folder / "toy.parquet", workloads(SHAPES, range(1, 9)))
    file = folder / "toy.toml"
    file.write_text(file.read_text().replace(str(TOKENS), "[1, 8]") + "[crossovers]\nrefine = true\n")
    database = folder / "toy.db"
    listed = 2 * len(SHAPES) * (TRIALS + 1)
    for count in (listed, listed + 8):
        process = start(folder)
        while len(rows(database)) <= count and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    kept = rows(database)
    assert start(folder).wait(120) == 0
    finished = rows(database)
    assert kept <= finished
    assert len({row[1:3] for row in finished}) == len(finished)
    with open_database(database) as opened:
        found = trials(opened)
    for shape in SHAPES:
        mine = workloads([shape], range(1, 9))
        searched = Counter(row.workload for row in found if row.state is TrialState.DONE and row.stage is Stage.SEARCH)
        assert [searched[cell.digest] for cell in (mine[0], mine[7])] == [TRIALS + 1, TRIALS + 1]
        between = [searched[cell.digest] for cell in mine[1:7] if cell.digest in searched]
        # A baseline, and the winners of two cells, of two variants.
        assert len(between) >= 2
        assert all(1 + 2 * WINNERS <= count <= 1 + 4 * WINNERS for count in between)
        finals = Counter((row.workload, row.config) for row in found if row.reason == "finalist")
        assert max(finals.values()) == 1


def test_ctrl_c_stops_after_the_current_measurement(folder: Path) -> None:
    process = start(folder)
    while len(rows(folder / "toy.db")) < 3 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert 3 <= len(rows(folder / "toy.db")) < len(CELLS) * (TRIALS + 1)
    assert start(folder).wait(120) == 0
    assert len(rows(folder / "toy.db")) == len(CELLS) * (TRIALS + 1)


def test_a_killed_campaign_is_not_said_to_run(folder: Path) -> None:
    file = folder / "toy.toml"
    file.write_text(file.read_text().replace(f"trials = {TRIALS}", "trials = 1000"))
    process = start(folder)
    while len(rows(folder / "toy.db")) < 3 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGSTOP)
    assert states(folder) == {"toy": "running"}
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert states(folder) == {"toy": "interrupted"}
    # Another campaign in the same database does not bring it back to life.
    with open_database(folder / "toy.db") as database:
        replay(campaign(name="other", tokens=TOKENS, shapes=SHAPES), database, folder / "toy.parquet")
    assert states(folder) == {"toy": "stopped", "other": "finished"}
