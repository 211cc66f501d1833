"""The coordinator: runs a campaign on a runner into a database.

It asks the cells in turns, has artifacts built ahead, measures one config at a time, and commits each measurement
before the next launch. It never touches CUDA, and nobody else sees Optuna.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from megatune_db.queries import OutcomeRow
from megatune_db.records import CampaignState
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture_of
from megatune_tuner.bisection import Finals
from megatune_tuner.bisection import cells_between
from megatune_tuner.bisection import winners
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.candidates import Catalogue
from megatune_tuner.cell import Cell
from megatune_tuner.cell import Proposal
from megatune_tuner.cell_run import CellRun
from megatune_tuner.ledger import BASELINE
from megatune_tuner.ledger import FINALIST
from megatune_tuner.ledger import Ledger
from megatune_tuner.measuring import Builder
from megatune_tuner.measuring import Job
from megatune_tuner.measuring import Meter
from megatune_tuner.measuring import wait_for_builds
from megatune_tuner.progress import Progress
from megatune_tuner.runners.base import Runner
from megatune_tuner.search import Search
from megatune_tuner.search import largest_first
from megatune_tuner.stopping import Stop
from megatune_tuner.studies import write_studies

FINAL_COST = 3.0
"""Measuring a finalist takes about so many times as long as measuring it to search."""

Configs = Callable[[Workload], Iterable[Config]]
T = TypeVar("T")


@dataclass(frozen=True)
class Summary:
    """What a campaign has come to."""

    name: str
    state: CampaignState
    interrupted: bool
    """Whether it was asked to stop before its end."""
    target: str
    provenance: str
    workloads: int
    measured: int
    """Measurements that this run took, finalists not counted."""
    finals: int
    """Measurements of finalists that this run took beside."""
    reused: int
    """Measurements that were there already and that this run counts on."""
    statuses: dict[Status, int]
    """All measurements of the campaign by status, over all its runs and with the finalists."""
    outcomes: list[OutcomeRow]
    wall_s: float
    measuring_s: float
    """Seconds over all runs of the campaign."""

    @property
    def speedup(self) -> float | None:
        """Geometric mean over the workloads of the baseline's time by the best's, where both are known."""
        ratios = [row.baseline_us / row.best_us for row in self.outcomes if row.baseline_us and row.best_us]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


@dataclass
class _Work:
    """One job of a turn; baselines have no proposal."""

    number: int
    reason: str
    job: Job
    proposal: Proposal | None


@dataclass
class _Turn:
    run: CellRun
    work: list[_Work]


def run_campaign(
    campaign: Campaign,
    runner: Runner,
    database: Database,
    *,
    builder: Builder | None = None,
    configs: Configs | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Summary:
    """Run a campaign, or go on with it.

    :param builder: builds artifacts; needed when the runner needs them.
    :param configs: the configs of a workload that can be measured, by default every legal one.
    :param stop: ends the campaign after the current measurement.
    :raises MegatuneError: for a space or a restriction that makes no sense on the runner's target, or a runner that
        cannot measure.
    :raises NothingMeasured: when nothing that was measured works.
    :raises DatabaseError: when another process runs a campaign in this database, or it cannot be written.
    """
    with database.writer_lock():
        coordinator = _Coordinator(campaign, runner, database, builder, configs, progress or Progress(), stop or Stop())
        return coordinator.run()


class _Coordinator:
    def __init__(
        self,
        campaign: Campaign,
        runner: Runner,
        database: Database,
        builder: Builder | None,
        configs: Configs | None,
        progress: Progress,
        stop: Stop,
    ) -> None:
        self._started = time.monotonic()
        self._campaign = campaign
        self._runner = runner
        self._progress = progress
        self._stop = stop
        self._configs = configs
        self._arch = architecture_of(runner.target.hardware)
        self._spaces = campaign.spaces(self._arch)
        self._meter = Meter(runner, campaign.measuring_regime(), builder)
        self._ledger = Ledger(database, campaign, runner.target, runner.provenance, compiled=runner.needs_artifacts)
        self._database = database
        self._left_before_s = math.inf
        if campaign.budget.total_seconds is not None:
            self._left_before_s = campaign.budget.total_seconds - self._ledger.row().wall_s
        self._catalogues: dict[Workload, Future[Catalogue]] = {}
        self._winners: dict[Workload, list[Config]] = {}
        """Of the cells between the listed ones, what they measure."""
        self._runs: dict[Workload, CellRun] = {}
        self._turns: deque[_Turn] = deque()
        self._measured = 0
        self._first_s: float | None = None
        """When the first measurement began, in seconds of this run."""
        self._finals = 0
        listed = list(self._spaces)
        self._search = Search(largest_first(listed) if campaign.budget.total_seconds else listed, self._open)
        self._asking = True
        self._cut_short = False
        """Whether something that was asked for has not been measured."""
        # The runner has one caller, this thread, so that configs are asked for while it measures.
        self._measuring = ThreadPoolExecutor(1, thread_name_prefix="measuring")
        # Enumerating a large space takes a quarter of a second: it is done while others are measured.
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="spaces")

    def run(self) -> Summary:
        trials = self._campaign.budget.trials
        self._progress.expect(trials * len(self._spaces) if trials is not None else None)
        self._ledger.begin()
        state = CampaignState.FAILED
        try:
            for workload in self._spaces:
                self._catalogues[workload] = self._preparing.submit(self._catalogue, workload)
            self._take_turns()
            self._finish()
            done = self._search.done and (not self._campaign.crossovers.refine or self._refine())
            whole = done and not self._cut_short and not self._stop.requested
            state = CampaignState.FINISHED if whole else CampaignState.STOPPED
        except KeyboardInterrupt:
            state = CampaignState.STOPPED
            raise
        finally:
            self._preparing.shutdown(wait=True, cancel_futures=True)
            # Whoever interrupts twice does not want to wait for the runner.
            self._measuring.shutdown(wait=False, cancel_futures=True)
            self._ledger.end(state, wall_s=self._elapsed_s(), measuring_s=self._meter.measuring_s)
        if self._campaign.writes_studies and self._measured and not self._stop.requested:
            self._progress.note("writing Optuna's studies")
            write_studies(self._database, self._campaign.name, self._spaces)
        return self._summary(state)

    def _take_turns(self) -> None:
        while not self._stop.requested:
            self._ask()
            if not self._turns:
                return
            turn = self._built_first()
            if not wait_for_builds((work.job for work in turn.work), self._stop):
                return
            self._take(turn)
            if turn.run.cell.done and all(other.run is not turn.run for other in self._turns):
                self._end_cell(turn.run)

    def _ask(self) -> None:
        """Ask for turns until enough is in the works."""
        while sum(len(turn.work) for turn in self._turns) < max(1, self._meter.ahead) and not self._out_of_time():
            asked = self._search.turn()
            if asked is None:
                return
            self._turns.append(self._begin(*asked))

    def _run(self, measure: Callable[[], T]) -> T:
        """What measuring gives; where artifacts have to be built ahead, configs are asked for meanwhile."""
        if not self._meter.ahead:
            return measure()
        running = self._measuring.submit(measure)
        if self._asking:
            self._ask()
        return running.result()

    def _begin(self, cell: Cell, proposals: Sequence[Proposal]) -> _Turn:
        run = self._runs[cell.workload]
        work = [self._baseline(run, config) for config in run.take_baselines()]
        for proposal in proposals:
            job = self._meter.job(run.workload, proposal.config)
            work.append(_Work(run.number(), proposal.reason, job, proposal))
        if self._meter.ahead:
            # What is in the works can be seen; without artifacts to build, it is measured before anybody looks.
            self._ledger.asked(run.workload, run.space, [(one.number, one.job.config, one.reason) for one in work])
        return _Turn(run, work)

    def _baseline(self, run: CellRun, config: Config) -> _Work:
        return _Work(run.number(), BASELINE, self._meter.job(run.workload, config), None)

    def _built_first(self) -> _Turn:
        """The first turn whose artifacts are all built, else the one that was asked first."""
        for turn in self._turns:
            if all(work.job.is_built for work in turn.work):
                self._turns.remove(turn)
                return turn
        return self._turns.popleft()

    def _take(self, turn: _Turn) -> None:
        for work in turn.work:
            if self._stop.requested or self._out_of_time():
                self._cut_short = True
                break
            self._measure(turn.run, work)
        self._ledger.spend(wall_s=self._elapsed_s(), measuring_s=self._meter.measuring_s)

    def _measure(self, run: CellRun, work: _Work) -> None:
        if self._first_s is None:
            self._first_s = self._elapsed_s()
        measurement = self._run(partial(self._meter.measure, work.job))
        self._ledger.measured(
            run.workload, run.space, [(work.number, work.job.config, work.reason, measurement, work.job.artifacts)]
        )
        self._measured += 1
        if work.proposal is None:
            run.baselines[work.job.config] = measurement.median_us
            if measurement.status is not Status.OK:
                self._progress.note(
                    f"the baseline {work.job.config} of {run.workload} ended {measurement.status}: {measurement.reason}"
                )
        else:
            run.cell.tell(work.proposal, measurement.median_us)
            self._progress.measured(run.workload, measurement.status, run.cell.best_us)

    def _end_cell(self, run: CellRun) -> None:
        """Take what baselines are missing, then the finalists."""
        if self._stop.requested:
            return
        for config in run.take_baselines():
            self._measure(run, self._baseline(run, config))
        if not run.needs_finals:
            return
        configs = [*run.contenders(), *run.working_baselines()]
        jobs = [self._meter.job(run.workload, config) for config in configs]
        if not wait_for_builds(jobs, self._stop):
            return
        results = self._run(partial(self._meter.finalists, jobs))
        self._finals += len(results)
        number = run.finals_taken()
        self._ledger.measured(
            run.workload,
            run.space,
            [(number, job.config, FINALIST, measurement, job.artifacts) for job, measurement in results],
        )

    def _finish(self) -> None:
        """The finals of cells that time ended, and those that an earlier process did not come to."""
        self._asking = False
        for run in self._runs.values():
            self._end_cell(run)

    def _refine(self) -> bool:
        """Measure between the cells that there are, in rounds, until every crossover is as narrow as the noise allows.

        Which cells these are follows from finals alone: a campaign that was killed takes the same way again, over what
        it has measured. False when time or a stop ended it.
        """
        finals: dict[Workload, Finals] = {}
        while not self._stop.requested and not self._out_of_time(another=True):
            for workload, run in self._runs.items():
                if workload not in finals:
                    finals[workload] = self._ledger.finals(workload, run.space)
            between = cells_between(finals, self._prepare)
            if not between:
                return True
            self._progress.note(f"looking for crossovers: {len(between)} cells between measured tokens are next")
            for workload, ends in between.items():
                self._ledger.put_workload(workload)
                near = [winners(finals[end], self._runs[end].cell.ranked()) for end in ends]
                self._winners[workload] = [config for configs in near for config in configs]
            self._search = Search(list(between), self._open)
            self._asking = True
            self._take_turns()
            self._finish()
        return False

    def _prepare(self, workload: Workload) -> bool:
        """Begin to make ready a workload beside the listed ones; False where it has no config that can be measured."""
        if workload not in self._catalogues:
            recorded = self._configs(workload) if self._configs is not None else None
            try:
                space = self._campaign.space_at(workload, self._arch)
            except MegatuneError:
                return False
            if recorded is not None and all(space.violations(config) for config in recorded):
                return False
            self._spaces[workload] = space
            self._catalogues[workload] = self._preparing.submit(self._catalogue, workload)
        return True

    def _open(self, workload: Workload) -> Cell:
        catalogue = self._catalogues.pop(workload).result()
        best = self._winners.get(workload)
        run = CellRun(self._campaign, workload, self._spaces[workload], catalogue, self._ledger, best)
        self._runs[workload] = run
        if best is not None and self._progress.total is not None and run.cell.trials is not None:
            self._progress.expect(self._progress.total + run.cell.trials)
        self._progress.skip(run.cell.spent)
        return run.cell

    def _catalogue(self, workload: Workload) -> Catalogue:
        try:
            configs = self._configs(workload) if self._configs is not None else None
            return Catalogue(self._spaces[workload], configs)
        except MegatuneError as error:
            raise self._campaign.fault(str(workload), error) from error

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def _out_of_time(self, *, another: bool = False) -> bool:
        """Whether what is left of the time is needed for the finalists, ``another`` cell's included."""
        if math.isinf(self._left_before_s):
            return False
        finals = sum(run.most_finals for run in self._runs.values() if run.needs_finals)
        if another:
            finals += max(run.most_finals for run in self._runs.values())
        # What went before the first measurement, such as listing spaces, says nothing of how long one takes.
        first_s = self._elapsed_s() if self._first_s is None else self._first_s
        a_measurement = (self._elapsed_s() - first_s) / max(1, self._measured)
        return self._left_before_s - self._elapsed_s() <= finals * FINAL_COST * a_measurement

    def _summary(self, state: CampaignState) -> Summary:
        row = self._ledger.row()
        baselines = {name for workload in self._spaces for name in operator(workload.operator).baselines}
        outcomes = self._ledger.outcomes(sorted(baselines))
        if not self._stop.requested and all(outcome.best_us is None for outcome in outcomes):
            failures = ", ".join(f"{count} {status}" for status, count in row.statuses.items())
            raise NothingMeasured(f"{self._campaign.source}: no config works: {failures or 'nothing was measured'}")
        return Summary(
            name=self._campaign.name,
            state=state,
            interrupted=self._stop.requested,
            target=str(self._runner.target),
            provenance=self._runner.provenance,
            workloads=len(self._spaces),
            measured=self._measured,
            finals=self._finals,
            reused=sum(run.reused for run in self._runs.values()),
            statuses=row.statuses,
            outcomes=outcomes,
            wall_s=row.wall_s,
            measuring_s=row.measuring_s,
        )
