"""What becomes of a campaign whose workers, database or configs misbehave."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from campaigns import Notes
from campaigns import ToyBuilder
from campaigns import ToyRunner
from campaigns import campaign
from campaigns import trials
from chaos import Chaos
from chaos import outcome
from toy import TARGET
from typer.testing import CliRunner

from megatune_db import leases
from megatune_db.embedded import EmbeddedServer
from megatune_db.errors import DatabaseUnreachableError
from megatune_db.models import Campaign as CampaignModel
from megatune_db.queries import troubled_jobs
from megatune_db.queries import workers
from megatune_db.records import CampaignState
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.records import TrialState
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_tuner.campaign import run_campaign
from megatune_tuner.commands import app
from megatune_tuner.engines.base import Engine
from megatune_tuner.engines.base import Site
from megatune_tuner.engines.local import LocalEngine
from megatune_tuner.office import in_office
from megatune_tuner.progress import Progress
from megatune_tuner.runners.base import Request
from megatune_tuner.stopping import Stop
from megatune_tuner.summary import Summary
from megatune_tuner.transactions import Transactions
from megatune_tuner.worker import LEAKED
from megatune_tuner.worker import SETTLED_AFTER
from megatune_tuner.worker import Worker


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "toy.db") as opened:
        yield opened


class Threads(Engine):
    """Several workers in this process, each with a runner of its own."""

    rings = True

    def __init__(self, *runners: ToyRunner, lease_s: float = 30.0, leak_bytes: int | None = None) -> None:
        self.ahead = 16 * len(runners)
        self._runners = runners
        self._options = {"lease_s": lease_s, "leak_bytes": leak_bytes}
        self._over = False
        self._threads: list[threading.Thread] = []
        self.reasons: list[str] = []

    def start(self, site: Site) -> None:
        def work(runner: ToyRunner) -> None:
            why = LEAKED
            while why == LEAKED:
                worker = Worker(
                    site.transactions,
                    site.campaign_id,
                    runner,
                    site.artifacts,
                    work=site.work,
                    delivered=site.delivered,
                    **self._options,  # type: ignore[arg-type]
                )
                why = worker.run(lambda: self._over)
                self.reasons.append(why)

        self._threads = [threading.Thread(target=work, args=(runner,)) for runner in self._runners]
        for thread in self._threads:
            thread.start()

    def check(self) -> tuple[int, ...]:
        return ()

    def stop(self) -> None:
        self.close()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        self._over = True


def test_several_workers_measure_what_one_would(tmp_path: Path) -> None:
    asked = campaign(tokens=[1, 2, 4])
    found = []
    for count in (1, 3):
        runners = [ToyRunner() for _ in range(count)]
        engine = Threads(*runners)
        engine.ahead = 32
        with open_database(tmp_path / f"{count}.db") as database:
            summary = run_campaign(asked, runners[0], database, engine=engine)
            assert summary.state is CampaignState.FINISHED
            assert sum(len(runner.requests) for runner in runners) == 3 * 13
            found.append({(row.workload, row.number, row.config, row.reason) for row in trials(database)})
    assert found[0] == found[1]


def test_a_config_that_hangs_every_time_is_quarantined_and_listed(database: Database, tmp_path: Path) -> None:
    once: list[str] = []

    def outcome(request: Request) -> Status:
        params = request.config.params
        if params.get("block") == 128:
            return Status.HANG
        if params.get("tile") == 64 and request.config.digest not in once:
            once.append(request.config.digest)
            return Status.CRASH
        return Status.OK

    runner = ToyRunner(outcome)
    summary = run_campaign(campaign(tokens=[4], budget="trials = 30"), runner, database)
    assert summary.statuses[Status.HANG] >= 1
    assert Status.CRASH not in summary.statuses
    with database.session() as session:
        jobs = troubled_jobs(session)
    hung = [job for job in jobs if "block=128" in job.configs[0]]
    assert len(hung) == summary.statuses[Status.HANG]
    assert all(job.strikes == 2 and len(job.failures) == 2 for job in hung)
    assert len(jobs) - len(hung) == len(once)
    assert all(job.strikes == 1 for job in jobs if job not in hung)
    finals = {request.config.params.get("block") for requests in runner.finals for request in requests}
    assert 128 not in finals
    said = CliRunner().invoke(app, ["status", "--db", str(tmp_path / "toy.db")], catch_exceptions=False).output
    assert said.count("quarantined, because it brought down what measures it 2 times; last: hang: ") == len(hung)


class LosesTheFirst(LocalEngine):
    """Before anything is measured, three workers take the first job and are never heard of again."""

    def start(self, site: Site) -> None:
        def lose() -> None:
            lost = 0
            while lost < 1 + leases.GIVEN_AGAIN:
                with site.transactions.database.session() as session:
                    worker = leases.add_worker(
                        session,
                        campaign_id=site.campaign_id,
                        target=TARGET.digest,
                        provenance=Provenance.MEASURED,
                        needs_artifacts=False,
                    )
                    lost += leases.claim(session, worker, site.campaign_id, -1.0) is not None
                    leases.expire(session, site.campaign_id)
                time.sleep(0.01)
            super(LosesTheFirst, self).start(site)

        threading.Thread(target=lose).start()


def test_a_lost_job_is_no_slow_config(database: Database) -> None:
    notes = Notes()
    engine = LosesTheFirst(ToyRunner())
    summary = run_campaign(campaign(tokens=[4]), ToyRunner(), database, engine=engine, progress=notes)
    lost = [row for row in trials(database) if row.state is TrialState.LOST]
    assert [row.status for row in lost] == [None]
    assert summary.statuses == {Status.OK: 12 + summary.finals}
    assert any("infrastructure failed" in note for note in notes.notes)


def test_a_slow_worker_keeps_its_lease(database: Database) -> None:
    def slow(request: Request) -> Status:
        time.sleep(1.0 if request.config.variant == "stock" else 0.0)
        return Status.OK

    runner = ToyRunner(slow)
    expired: list[int] = []
    over = threading.Event()

    def sweep() -> None:
        while not over.wait(0.1):
            with database.session() as session:
                for each in session.query(CampaignModel.id):
                    expired.append(leases.expire(session, each[0]))

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        summary = run_campaign(
            campaign(tokens=[4], budget="trials = 4"), runner, database, engine=Threads(runner, lease_s=0.6)
        )
    finally:
        over.set()
        thread.join()
    assert summary.state is CampaignState.FINISHED
    assert set(expired) == {0}


def test_a_worker_that_is_stopped_keeps_no_lease(database: Database) -> None:
    stop = Stop()

    def outcome(request: Request) -> Status:
        # The next job is taken with this one's delivery, and the stop comes before it is measured.
        if len(runner.requests) == 5:
            threading.Timer(0.0, stop.request).start()
        return Status.OK

    runner = ToyRunner(outcome)
    summary = run_campaign(campaign(budget="trials = 100"), runner, database, stop=stop)
    assert summary.interrupted
    with database.session() as session:
        assert leases.holders(session, 1) == {}
    assert run_campaign(campaign(budget="trials = 100"), runner, database).state is CampaignState.FINISHED


def test_a_worker_that_leaks_is_replaced(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [100 * 2**20]
    monkeypatch.setattr("megatune_tuner.worker.resident_bytes", lambda: taken[0])

    def leaks(request: Request) -> Status:
        taken[0] += 2**20
        return Status.OK

    runner = ToyRunner(leaks)
    engine = Threads(runner, leak_bytes=8 * 2**20)
    summary = run_campaign(campaign(tokens=[4], budget="trials = 100"), runner, database, engine=engine)
    assert summary.state is CampaignState.FINISHED
    assert engine.reasons.count(LEAKED) >= 2
    with database.session() as session:
        ended = [worker.ended for worker in workers(session)]
    assert ended.count("its memory grew") == engine.reasons.count(LEAKED)
    assert len(runner.requests) == len({request.config for request in runner.requests})
    assert len(runner.requests) > 2 * SETTLED_AFTER


def test_an_artifact_that_is_not_here_is_said(database: Database) -> None:
    class Nowhere(LocalEngine):
        def start(self, site: Site) -> None:
            super().start(Site(**{**site.__dict__, "artifacts": lambda key: None}))

    runner = ToyRunner(needs_artifacts=True)
    with pytest.raises(MegatuneError, match="set MEGATUNE_ARTIFACTS"):
        run_campaign(campaign(tokens=[4]), runner, database, engine=Nowhere(runner), builder=ToyBuilder())


@contextmanager
def coordinating(database: Database, notes: Progress, stop: Stop) -> Iterator[None]:
    with in_office(Transactions(database), campaign(), notes, stop, term_s=20.0):
        yield


def test_a_second_coordinator_waits_and_takes_over(tmp_path: Path) -> None:
    second, notes = threading.Event(), Notes()
    with open_database(tmp_path / "toy.db") as one, open_database(tmp_path / "toy.db") as other:
        with coordinating(one, Progress(), Stop()):

            def wait() -> None:
                with coordinating(other, notes, Stop()):
                    second.set()

            thread = threading.Thread(target=wait)
            thread.start()
            while not notes.notes:
                time.sleep(0.01)
            assert not second.is_set()
        thread.join(30)
    assert second.is_set()
    assert notes.notes == [f"process {os.getpid()} on {os.uname().nodename} runs toy: waiting, and taking over if it "
                           "ends early"]  # fmt: skip


def test_who_waits_can_be_stopped(tmp_path: Path) -> None:
    with open_database(tmp_path / "toy.db") as one, open_database(tmp_path / "toy.db") as other:
        stop = Stop()
        stop.request()
        with (
            coordinating(one, Progress(), Stop()),
            pytest.raises(KeyboardInterrupt),
            coordinating(other, Progress(), stop),
        ):
            pass


OUTAGE_S = 2.0


def test_a_database_that_is_gone_for_a_while_is_waited_for(own_server: EmbeddedServer, tmp_path: Path) -> None:
    notes = Notes()

    def outcome(request: Request) -> Status:
        if len(runner.requests) == 10:
            own_server.kill()
            threading.Timer(OUTAGE_S, own_server.start).start()
        return Status.OK

    runner = ToyRunner(outcome)
    with open_database(own_server.url()) as database:
        summary = run_campaign(campaign(), runner, database, progress=notes, outage_s=120.0)
        results = [row for row in trials(database) if row.state is TrialState.DONE and row.stage is Stage.SEARCH]
    assert summary.state is CampaignState.FINISHED
    assert len(results) == len(runner.requests) == 3 * 13
    assert "the database answers again" in notes.notes


def test_a_database_that_is_gone_for_too_long_ends_it(own_server: EmbeddedServer) -> None:
    def outcome(request: Request) -> Status:
        if len(runner.requests) == 10:
            own_server.kill()
        return Status.OK

    runner = ToyRunner(outcome)
    with open_database(own_server.url()) as database, pytest.raises(DatabaseUnreachableError):
        run_campaign(campaign(), runner, database, outage_s=1.0)


def test_campaigns_share_a_server(own_server: EmbeddedServer) -> None:
    found: dict[str, Summary] = {}

    def run(name: str) -> None:
        with open_database(own_server.url()) as database:
            found[name] = run_campaign(campaign(name=name, tokens=[1, 4], studies=True), ToyRunner(), database)

    open_database(own_server.url()).close()
    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [summary.state for summary in found.values()] == [CampaignState.FINISHED] * 2


def test_a_full_disk_ends_it_and_it_goes_on_with_room(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, str(tmp_path / "toy.db"), cells=2, trials=24, seed=0, slow_s=0.0)
    expected = chaos.undisturbed()
    run = [sys.executable, str(Path(__file__).parent / "chaos_process.py"), "run", str(chaos.file), "--workers", "2"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent / "plugin"),
                                       os.environ.get("PYTHONPATH", "")]),
        "MEGATUNE_DB": str(tmp_path / "toy.db"),
        "CHAOS_LOG": str(tmp_path / "measured.log"),
        "CHAOS_SLOW_S": "0",
    }  # fmt: skip
    open_database(tmp_path / "toy.db").close()
    full = subprocess.run(
        run,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)),
    )
    assert full.returncode != 0
    assert "no space is left" in full.stderr
    with open_database(tmp_path / "toy.db") as database:
        before = {row.id for row in trials(database) if row.state is TrialState.DONE}
    assert subprocess.run(run, env=environment, capture_output=True, check=False).returncode == 0
    with open_database(tmp_path / "toy.db") as database:
        assert before <= {row.id for row in trials(database) if row.state is TrialState.DONE}
        assert len(outcome(database)[1]) == len(expected[1])
