"""Campaigns over the toy, and runners that do as a test says."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from dataclasses import field
from datetime import UTC
from datetime import datetime
from pathlib import Path

from toy import TARGET
from toy import samples_us

from megatune_db.queries import TrialRow
from megatune_db.queries import campaign as campaign_row
from megatune_db.queries import trials as trial_rows
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.statistics import median_interval
from megatune_kernels.target import Target
from megatune_tuner.campaign import run_campaign
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.compiling import Built
from megatune_tuner.progress import Progress
from megatune_tuner.recordings import read_recording
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.runners.replay import ReplayRunner
from megatune_tuner.summary import Summary

Outcome = Callable[[Request], Status]

STOCK = Config.of("stock", {}).digest


class Notes(Progress):
    """Keeps what people would be told."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def campaign(
    *,
    name: str = "toy",
    tokens: Sequence[int] = (1, 4, 32),
    shapes: Sequence[tuple[int, int]] = ((1536, 7168),),
    budget: str = "trials = 12",
    more: str = "",
    recording: Path | None = None,
    studies: bool | None = False,
) -> Campaign:
    """A campaign over the toy.

    :param studies: whether it writes Optuna's, which takes as long as all the rest; None: as campaigns do by default.
    """
    text = f'name = "{name}"\ntokens = {list(tokens)}\n{more}\n'
    for n, k in shapes:
        text += f'[[shapes]]\noperator = "toy"\nn = {n}\nk = {k}\n'
    text += f"[budget]\n{budget}\n"
    if studies is not None and "sampler" not in more:
        text += f"[sampler]\nstudies = {str(studies).lower()}\n"
    if recording is not None:
        text += f'[runner]\nkind = "replay"\nrecording = "{recording}"\n'
    return parse_campaign(text, source=f"{name}.toml")


def replay(declared: Campaign, database: Database, recording: Path, **more: object) -> Summary:
    """Run a campaign from a recording."""
    found = read_recording(recording)
    return run_campaign(declared, ReplayRunner(found), database, configs=found.configs, **more)  # type: ignore[arg-type]


def trials(database: Database, name: str = "toy") -> list[TrialRow]:
    with database.session() as session:
        row = campaign_row(session, name)
        assert row is not None
        return trial_rows(session, row.id)


def finalists_of(rows: Iterable[TrialRow], cell: Workload) -> set[str]:
    """Who has to be a finalist of the cell: the baseline, the four fastest configs and the fastest of each variant."""
    mine = [row for row in rows if row.workload == cell.digest and row.stage is Stage.SEARCH and row.median_us]
    ranked = sorted((row.median_us, row.config, row.variant) for row in mine if row.config != STOCK)
    firsts = {min(row for row in ranked if row[2] == variant)[1] for variant in {row[2] for row in ranked}}
    return {STOCK, *firsts, *(config for _, config, _ in ranked[:4])}


def works(request: Request) -> Status:
    return Status.OK


@dataclass
class ToyRunner(Runner):
    """Measures the toy's true times. ``outcome`` says how a request ends; every request is kept."""

    outcome: Outcome = works
    needs_artifacts: bool = False
    at: Target = TARGET
    provenance: Provenance = Provenance.MEASURED
    measure_s: float = 0.01
    samples: Callable[[Workload, Config], tuple[float, ...]] = samples_us
    requests: list[Request] = field(default_factory=list)
    finals: list[list[Request]] = field(default_factory=list)

    @property
    def target(self) -> Target:
        return self.at

    def measure(self, request: Request) -> Measurement:
        self.requests.append(request)
        return self._answer(request, Stage.SEARCH, uuid.uuid4().hex)

    def finalists(self, requests: Sequence[Request]) -> list[Measurement]:
        self.finals.append(list(requests))
        session = uuid.uuid4().hex
        return [self._answer(request, Stage.FINAL, session) for request in requests]

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, request: Request, stage: Stage, session: str) -> Measurement:
        status = self.outcome(request)
        samples = self.samples(request.workload, request.config) if status is Status.OK else ()
        figures = median_interval(samples) if samples else (None, None, None)
        return Measurement(
            workload=request.workload.digest,
            config=request.config.digest,
            target=self.at.digest,
            regime=request.regime,
            stage=stage,
            status=status,
            provenance=self.provenance,
            session=session,
            measured_at=datetime.now(UTC).replace(tzinfo=None),
            samples_us=samples,
            median_us=figures[0],
            low_us=figures[1],
            high_us=figures[2],
            reason="" if status is Status.OK else f"the toy ends {status}",
            compile_s=request.compile_s,
            measure_s=self.measure_s,
            artifact=request.artifact_key,
        )


class ToyBuilder:
    """Builds artifacts at once, or so many together. ``status`` says how building a config ends."""

    def __init__(
        self, status: Callable[[Config], Status] = lambda _: Status.OK, *, processes: int = 2, together: int = 1
    ) -> None:
        self.processes = processes
        self._status = status
        self._together = together
        self._waiting: list[tuple[Future[Built], Config]] = []
        self._late: threading.Timer | None = None
        self.most_waiting = 0
        self.submitted: list[tuple[Workload, Config]] = []

    def submit(self, operator: Operator, workload: Workload, config: Config) -> Future[Built]:
        self.submitted.append((workload, config))
        future: Future[Built] = Future()
        self._waiting.append((future, config))
        self.most_waiting = max(self.most_waiting, len(self._waiting))
        if self._late is not None:
            self._late.cancel()
        if len(self._waiting) >= self._together:
            self._finish()
        else:
            # The last ones are never so many.
            self._late = threading.Timer(0.5, self._finish)
            self._late.start()
        return future

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future, config in waiting:
            status = self._status(config)
            if status is Status.OK:
                future.set_result(Built(Artifact(config.digest, "sm_90a", "toy", b"cubin", 32, 0), status, "", 0.25))
            else:
                future.set_result(Built(None, status, f"the compiler ends {status}", 0.5))
