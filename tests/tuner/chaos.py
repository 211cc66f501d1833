"""A campaign whose processes are killed at random, and what became of it."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from dataclasses import field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import chaos_process
import toy_recordings
from sqlalchemy import select

from megatune_db import leases
from megatune_db.embedded import EmbeddedServer
from megatune_db.models import Config
from megatune_db.models import Job
from megatune_db.models import Measurement
from megatune_db.models import Workload
from megatune_db.queries import campaign as campaign_row
from megatune_db.queries import targets
from megatune_db.queries import trials
from megatune_db.records import CampaignState
from megatune_db.records import JobState
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import TrialState
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_planner.planning import make_plan
from megatune_tuner.campaign import run_campaign
from megatune_tuner.campaign_file import load_campaign
from megatune_tuner.engines.local import LocalEngine
from megatune_tuner.engines.remote import RemoteEngine
from megatune_tuner.recordings import read_recording
from megatune_tuner.runners.replay import ReplayRunner

HERE = Path(__file__).parent
PLUGINS = os.pathsep.join([str(HERE), str(HERE / "plugin"), os.environ.get("PYTHONPATH", "")])
# All of it is imported once, and every process is a fork of that.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["chaos_process"])
WORKERS = 2
PAUSE_S = 0.5
"""Between two kills at most."""
PATIENCE_S = 20.0
"""Within which processes that began are expected to do something."""
LIMIT_S = 3400.0
"""Within which everything is over, however slow the machine is."""


@dataclass
class Counts:
    """What killing came to."""

    kills: Counter[str] = field(default_factory=Counter)
    seen: set[int] = field(default_factory=set)
    """Ids of measurements that were committed when somebody was killed."""
    measurements: int = 0
    lost: int = 0
    twice: int = 0
    leases_lost: int = 0
    ignored: int = 0

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of a {kind}" for kind, count in sorted(self.kills.items()))
        return (
            f"{self.kills.total()} kills ({kills}); {self.measurements} measurements: {self.lost} lost, "
            f"{self.twice} measured twice; {self.leases_lost} leases lost, {self.ignored} results ignored"
        )


class Chaos:
    """Two coordinators, of which one waits, and two workers, in processes that are started again when they are killed.

    :param server: of the database; None: it is a file.
    """

    def __init__(
        self, folder: Path, url: str, *, cells: int, trials: int, seed: int, slow_s: float,
        server: EmbeddedServer | None = None,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._url = url
        self._server = server
        self._random = random.Random(seed)
        self._slow_s = slow_s
        self._running: dict[str, ForkServerProcess] = {}
        self._measured_bytes = 0
        self._said: dict[str, int] = {}
        """Bytes in the log of each process when it was started."""
        self.counts = Counts()
        tokens = [2**power for power in range(min(6, cells))]
        shapes = [(1536 + 256 * number, 7168) for number in range(-(-cells // len(tokens)))]
        toy_recordings.record_toy(folder / "toy.parquet", toy_recordings.workloads(shapes, tokens))
        text = f'name = "toy"\ntokens = {tokens}\n'
        text += "".join(f'[[shapes]]\noperator = "toy"\nn = {n}\nk = {k}\n' for n, k in shapes)
        text += f'[budget]\ntrials = {trials}\n[runner]\nkind = "replay"\nrecording = "toy.parquet"\n'
        self.file = folder / "toy.toml"
        self.file.write_text(text)

    def undisturbed(self) -> tuple[Any, Any]:
        """The plan and the trials of the same campaign when one worker measures it and nobody is killed."""
        found = read_recording(self._folder / "toy.parquet")
        engine = LocalEngine(ReplayRunner(found))
        engine.ahead = RemoteEngine(WORKERS).ahead
        with open_database(self._folder / "undisturbed.db") as database:
            run_campaign(load_campaign(self.file), ReplayRunner(found), database, engine=engine, configs=found.configs)
            return outcome(database)

    def run(self, kills: int) -> None:
        """Kill until it has been done so often, or the campaign is over; then let it finish."""
        until = time.monotonic() + LIMIT_S
        open_database(self._url).close()
        try:
            for name in self._names():
                self._start(name)
            while self.counts.kills.total() < kills and not self._is_over():
                self._progress()
                time.sleep(self._random.uniform(0.0, PAUSE_S))
                self._kill_one()
                assert time.monotonic() < until
            while not self._is_over():
                self._revive()
                time.sleep(0.1)
                assert time.monotonic() < until
        finally:
            for process in self._running.values():
                process.kill()
                process.join()
                process.close()
        self._count()

    def _names(self) -> list[str]:
        return ["coordinator 0", "coordinator 1", *(f"worker {number}" for number in range(WORKERS))]

    def _start(self, name: str) -> None:
        kind = name.split()[0]
        more = ["run", str(self.file), "--engine", "remote", "--workers", str(WORKERS), "--json"]
        command = more if kind == "coordinator" else ["worker", "--campaign", "toy"]
        log = self._log(name)
        log.touch()
        self._said[name] = log.stat().st_size
        environment = {
            "PYTHONPATH": PLUGINS,
            "MEGATUNE_DB": self._url,
            "CHAOS_LOG": str(self._folder / "measured.log"),
            "CHAOS_SLOW_S": str(self._slow_s),
        }
        process = FORKS.Process(
            target=chaos_process.main, args=(command, environment, str(log), str(self._folder)), name=name
        )
        process.start()
        self._running[name] = process

    def _revive(self) -> None:
        for name, process in list(self._running.items()):
            if not process.is_alive() and not (name.startswith("coordinator") and process.exitcode == 0):
                process.close()
                self._start(name)

    def _progress(self) -> None:
        """Wait until something was measured since the last kill, or nothing is for a while."""
        log = self._folder / "measured.log"
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            size = log.stat().st_size if log.exists() else 0
            if size > self._measured_bytes:
                self._measured_bytes = size
                return
            time.sleep(0.02)

    def _is_ready(self, name: str) -> bool:
        """Whether a process has begun to take part: then it has said something."""
        return name == "database" or self._log(name).stat().st_size > self._said[name]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _kill_one(self) -> None:
        names = self._names()
        victim = self._random.choice([*names, "database"] if self._server is not None else names)
        if not self._is_ready(victim):
            return
        if self._see() and victim.startswith("worker"):
            return
        if victim == "database":
            assert self._server is not None
            self._server.kill()
            self._server.start()
        else:
            process = self._running[victim]
            process.kill()
            process.join()
        self.counts.kills[victim.split()[0]] += 1
        (self._folder / "kills.log").write_text(str(self.counts.kills))
        self._revive()

    def _is_over(self) -> bool:
        with open_database(self._url) as database, database.session() as session:
            row = campaign_row(session, "toy")
        return row is not None and row.state is CampaignState.FINISHED

    def _see(self) -> bool:
        """Note what is committed; whether some job was lost as often as it is given out again.

        The next time it would be given up, as it should be, and the plan would be made without it: that has a test of
        its own.
        """
        at_last = (Job.state == JobState.LEASED) & (Job.failures >= leases.GIVEN_AGAIN)
        with open_database(self._url) as database, database.session() as session:
            self.counts.seen |= set(session.scalars(select(Measurement.id)))
            return session.scalar(select(Job.id).where(at_last).limit(1)) is not None

    def _count(self) -> None:
        log = (self._folder / "measured.log").read_text().split("\n")
        calls = Counter(line for line in log if line)
        with open_database(self._url) as database, database.session() as session:
            there = set(session.scalars(select(Measurement.id)))
            query = select(Workload.digest, Job.content, Job.failures, Job.ignored).join(
                Workload, Workload.id == Job.workload_id
            )
            rows = session.execute(query).all()
        allowed: Counter[str] = Counter()
        for row in rows:
            self.counts.leases_lost += row.failures
            self.counts.ignored += row.ignored
            for config in row.content["configs"]:
                allowed[f"{row.digest} {config['digest']}"] += 1 + row.failures
        self.counts.measurements = len(there)
        self.counts.lost = len(self.counts.seen - there)
        self.counts.twice = sum(max(0, count - allowed[key]) for key, count in calls.items())


def outcome(database: Database) -> tuple[Any, Any]:
    """The content of the plan that a database leads to, and what the campaign asked for, without ids."""
    with database.session() as session:
        (target,) = targets(session)
        plan = make_plan(
            session,
            name="toy",
            target=target.digest,
            regime=Regime(),
            baselines={"toy": ["stock"]},
            provenances=[Provenance.REPLAYED],
        )
        query = (
            select(Measurement.id, Workload.digest, Config.digest, Measurement.stage)
            .join(Workload, Workload.id == Measurement.workload_id)
            .join(Config, Config.id == Measurement.config_id)
        )
        named = {number: (workload, config, str(stage)) for number, workload, config, stage in session.execute(query)}
        row = campaign_row(session, "toy")
        assert row is not None
        asked = sorted(
            (trial.workload, trial.number, trial.reason, trial.config, trial.median_us)
            for trial in trials(session, row.id)
            if trial.state is TrialState.DONE
        )
    return _with_names(plan.model_dump(mode="json")["content"], named), asked


def _with_names(content: Any, named: dict[int, Any], key: str = "") -> Any:
    if isinstance(content, dict):
        return {name: _with_names(value, named, name) for name, value in content.items()}
    if isinstance(content, list):
        values = [_with_names(value, named, key) for value in content]
        return sorted(values) if key == "evidence" else values
    return named[content] if key == "evidence" and isinstance(content, int) else content
