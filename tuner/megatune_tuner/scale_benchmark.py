"""Benchmark ``scale``: what the database and the coordinator take of a campaign that many workers measure.

Trials a second: a campaign over a shipped recording through ask, lease, replay and tell, on a file and on a PostgreSQL
server of this machine, with worker processes as ``megatune worker`` starts them. A replay takes no time, so that the
rate is that of the machinery alone; the processes share the cores of this machine.

Coordinator's time a trial: ask, put into the queue, read the answer and tell, in a cell that knows so many trials
already, in seconds of the coordinator's thread. What workers write is not part of it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import ExitStack
from contextlib import contextmanager
from datetime import UTC
from datetime import datetime
from pathlib import Path

from sqlalchemy.orm import Session

from megatune_db import election
from megatune_db import leases
from megatune_db import store
from megatune_db.election import Term
from megatune_db.embedded import EmbeddedServer
from megatune_db.errors import DatabaseError
from megatune_db.leases import JobConfig
from megatune_db.leases import NewJob
from megatune_db.location import locate
from megatune_db.records import JobState
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.figures import Benchmark
from megatune_kernels.figures import Figure
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.space import Parameter
from megatune_kernels.space import Space
from megatune_kernels.space import VariantSpace
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.candidates import Catalogue
from megatune_tuner.cell import Cell
from megatune_tuner.execution import run_on_workers
from megatune_tuner.progress import Progress
from megatune_tuner.recordings import shipped_recordings
from megatune_tuner.rows import put_workload
from megatune_tuner.search import turn_size

WORKERS = (1, 4, 16)
KNOWN = (100, 1_000, 10_000)
GOAL_MS = 20.0
TURNS = 3
SETTLED = 0.2
"""Share of the trials before the rate is taken: processes are still starting."""
RECORDING = "kimi-k3-h200"
CAMPAIGN = """
name = "scale"
operators = ["projection"]
tokens = [1, 4, 16, 64]

[model]
name = "Kimi-K3"
tensor_parallel = 8

[budget]
trials = 8
finalists = 0

[runner]
kind = "replay"
recording = "kimi-k3-h200"
"""
ENGINES = ("SQLite", "PostgreSQL")


class _Pace(Progress):
    """When trials were answered."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []

    def measured(self, workload: Workload, status: Status, best_us: float | None) -> None:
        super().measured(workload, status, best_us)
        self.at.append(time.monotonic())

    @property
    def rate(self) -> float:
        """Trials a second once all has settled."""
        first = int(SETTLED * len(self.at))
        return (len(self.at) - 1 - first) / (self.at[-1] - self.at[first])


def trials_a_second(url: str, workers: int, text: str = CAMPAIGN) -> float:
    """Of a campaign in an empty database that so many worker processes measure."""
    pace = _Pace()
    environment = os.environ | locate(url).environment() | {"OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "from megatune_tuner.commands import app; app()", "worker", "--idle", "30"]
    open_database(url).close()
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(workers)
    ]
    try:
        run_on_workers(parse_campaign(text, source="scale.toml"), url, workers=workers, progress=pace)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    return pace.rate


def coordinator_ms(database: Database, known: int, turns: int = TURNS) -> float:
    """Milliseconds a trial of a cell that knows so many already."""
    catalogue = Catalogue(Space((_variant("tiled"), _variant("split"))))
    workload = Workload.of("made_up", {"k": 7168, "n": 1536}, 8)
    draw = random.Random(known)
    # Without a number of trials turns are the smallest that there are.
    cell = Cell(workload, catalogue, trials=None)
    for config in draw.sample(list(catalogue.configs), known):
        cell.learn(config, _us(config))
    with database.session() as session:
        queue = _Queue(session, workload, known)
    taken_s, asked = 0.0, 0
    for _ in range(turns):
        began = time.thread_time()
        cell.begin_turn()
        proposals = [proposal for _ in range(turn_size(cell)) if (proposal := cell.ask()) is not None]
        asked += len(proposals)
        with database.session() as session:
            rows = queue.put(session, [proposal.config for proposal in proposals])
        taken_s += time.thread_time() - began
        queue.measure(database, len(rows))
        began = time.thread_time()
        with database.session() as session:
            found = {answer.job: answer.median_us for answer in leases.answers(session, rows)}
        for proposal, row in zip(proposals, rows, strict=True):
            cell.tell(proposal, found[row])
        taken_s += time.thread_time() - began
    return 1e3 * taken_s / asked


class _Queue:
    """The queue of a made-up campaign that has gone so far already."""

    def __init__(self, session: Session, workload: Workload, known: int) -> None:
        name = f"scale-{known}"
        self._target = f"made-up-{known}"
        self._workload = workload
        self._campaign_id = store.put_campaign(session, name=name, file_text=name, file_digest=name)
        self._workload_id = put_workload(session, workload)
        store.put_target(session, digest=self._target, hardware={}, toolchain={})
        term = election.elect(session, self._campaign_id)
        assert isinstance(term, Term)
        self._term = term
        self._worker = leases.add_worker(
            session,
            campaign_id=self._campaign_id,
            target=self._target,
            provenance=Provenance.REPLAYED,
            needs_artifacts=False,
        )
        self._number = 0
        # What went before lies in the queue as well.
        some = self._job(session, Config.of("tiled", {}))
        for first in range(0, known, 1000):
            count = min(1000, known - first)
            jobs = [NewJob(**{**some.__dict__, "number": -first - number}) for number in range(1, count + 1)]
            leases.put_jobs(session, self._campaign_id, jobs, [JobState.DONE] * count)

    def put(self, session: Session, configs: list[Config]) -> list[int]:
        election.fence(session, self._term)
        jobs = [self._job(session, config) for config in configs]
        return leases.put_jobs(session, self._campaign_id, jobs, [JobState.QUEUED] * len(jobs))

    def measure(self, database: Database, count: int) -> None:
        """What a worker does meanwhile."""
        for _ in range(count):
            with database.session() as session:
                lease = leases.claim(session, self._worker, self._campaign_id)
                assert lease is not None
                leases.finish(session, lease, [self._measured(lease.what.configs[0])])

    def _job(self, session: Session, config: Config) -> NewJob:
        self._number += 1
        row = store.put_config(
            session, digest=config.digest, operator="made_up", variant=config.variant, params=config.params
        )
        named = JobConfig(row, config.digest, config.variant, dict(config.params))
        return NewJob(self._workload_id, Stage.SEARCH, self._number, "sampler", Regime(), (named,))

    def _measured(self, config: JobConfig) -> Measurement:
        us = _us(Config.of(config.variant, config.params))
        return Measurement(
            workload=self._workload.digest,
            config=config.digest,
            target=self._target,
            regime=Regime(),
            stage=Stage.SEARCH,
            status=Status.OK,
            provenance=Provenance.REPLAYED,
            session="scale",
            measured_at=datetime.now(UTC).replace(tzinfo=None),
            samples_us=(us,) * 7,
            median_us=us,
            low_us=us,
            high_us=us,
        )


def _variant(name: str) -> VariantSpace:
    """Some 7,800 configs."""
    parameters = tuple(Parameter(f"p{number}", tuple(range(6)), 0, "made up") for number in range(5))
    return VariantSpace(name, parameters, ())


def _us(config: Config) -> float:
    away = sum((int(value) - 2.5) ** 2 * (number + 1) for number, value in enumerate(config.params.values()))
    return 10 + 0.1 * away + abs(random.Random(str(config)).gauss(0, 0.1))


@contextmanager
def _urls() -> Iterator[dict[str, Callable[[], str]]]:
    """What makes an empty database of each engine, and how."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="megatune-scale-")))
        made = iter(range(1000))
        urls: dict[str, Callable[[], str]] = {"SQLite": lambda: str(folder / f"{next(made)}.db")}
        try:
            server = opened.enter_context(EmbeddedServer())
        except DatabaseError:
            yield urls
            return

        def new() -> str:
            name = f"scale_{next(made)}"
            server.execute(f"CREATE DATABASE {name}")
            return server.url(name)

        yield urls | {"PostgreSQL": new}


def _run() -> list[Figure]:
    figures = []
    missing = "there is no PostgreSQL to start: pip install 'megatune[dev]'"
    with _urls() as urls:
        for engine in ENGINES:
            for workers in WORKERS:
                name = f"trials a second on {engine}, {workers} workers"
                if engine not in urls:
                    figures.append(Figure(name, None, "1/s", "", None, "measured", missing))
                elif RECORDING not in shipped_recordings():
                    how = f"the recording {RECORDING} is not shipped with this installation"
                    figures.append(Figure(name, None, "1/s", "", None, "measured", how))
                else:
                    rate = trials_a_second(urls[engine](), workers)
                    how = f"44 cells of {RECORDING} replayed, {os.cpu_count()} cores for all processes"
                    figures.append(Figure(name, rate, "1/s", "", None, "measured", how))
        for engine in ENGINES:
            for known in KNOWN:
                name = f"coordinator's time a trial on {engine}, {known:,} trials of the cell known"
                goal = f"<= {GOAL_MS:.0f} ms"
                if engine not in urls:
                    figures.append(Figure(name, None, "ms", goal, None, "measured", missing))
                    continue
                with open_database(urls[engine]()) as database:
                    taken_ms = coordinator_ms(database, known)
                how = "sampler model: 400 measurements of a cell count at most, and turns grow with what is known"
                figures.append(Figure(name, taken_ms, "ms", goal, taken_ms < GOAL_MS, "measured", how))
    return figures


SCALE = Benchmark("scale", "What database and coordinator take of a campaign of many workers", _run)
