"""The coordinator: asks what is to be measured, and tells the search what came of it.

It asks the cells in turns, has artifacts built ahead and jobs leased to workers, and tells each turn's results in the
order of its asks. It never touches CUDA, and nobody else sees Optuna.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from megatune_db.records import CampaignState
from megatune_db.records import JobState
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture_of
from megatune_tuner.bell import Bell
from megatune_tuner.bisection import Finals
from megatune_tuner.bisection import cells_between
from megatune_tuner.bisection import winners
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.candidates import Catalogue
from megatune_tuner.cell import Cell
from megatune_tuner.cell import Proposal
from megatune_tuner.cell_run import CellRun
from megatune_tuner.dispatch import Dispatch
from megatune_tuner.dispatch import Work
from megatune_tuner.engines.base import Engine
from megatune_tuner.engines.base import Site
from megatune_tuner.ledger import BASELINE
from megatune_tuner.ledger import FINALIST
from megatune_tuner.ledger import Ledger
from megatune_tuner.measuring import Bench
from megatune_tuner.measuring import Builder
from megatune_tuner.measuring import Builds
from megatune_tuner.measuring import Configs
from megatune_tuner.objectives import objective_groups
from megatune_tuner.progress import Progress
from megatune_tuner.search import Search
from megatune_tuner.search import largest_first
from megatune_tuner.stopping import Stop
from megatune_tuner.studies import write_studies
from megatune_tuner.summary import Summary
from megatune_tuner.transactions import Transactions

FINAL_COST = 3.0
"""Measuring a finalist takes about so many times as long as measuring it to search."""


@dataclass
class _Turn:
    run: CellRun
    works: list[Work]


class Coordinator:
    """One campaign while it runs; its process has the campaign's place."""

    def __init__(
        self,
        campaign: Campaign,
        bench: Bench,
        transactions: Transactions,
        engine: Engine,
        builder: Builder | None,
        configs: Configs | None,
        progress: Progress,
        stop: Stop,
    ) -> None:
        self._started = time.monotonic()
        self._campaign = campaign
        self._bench = bench
        self._transactions = transactions
        self._engine = engine
        self._progress = progress
        self._stop = stop
        self._configs = configs
        self._arch = architecture_of(bench.target.hardware)
        self._spaces = campaign.spaces(self._arch)
        builds = Builds(bench, campaign.measuring_regime(), builder)
        self._ahead = max(1, builds.ahead, engine.ahead)
        self._ledger = Ledger(transactions, campaign, bench.target, bench.provenance, compiled=bench.needs_artifacts)
        self._work, self._delivered = Bell(), Bell()
        # Workers write results whoever coordinates, so that their transactions are of no term.
        self._of_workers = Transactions(transactions.database, outage_s=transactions.outage_s)
        self._dispatch = Dispatch(
            transactions, self._ledger, builds, engine, self._work, self._delivered, self._answered
        )
        self._left_before_s = math.inf
        if campaign.budget.total_seconds is not None:
            self._dispatch.prompt = True
            self._left_before_s = campaign.budget.total_seconds - self._ledger.row().wall_s
        self._catalogues: dict[Workload, Future[Catalogue]] = {}
        self._winners: dict[Workload, list[Config]] = {}
        """Of the cells between the listed ones, what they measure."""
        self._runs: dict[Workload, CellRun] = {}
        self._turns: deque[_Turn] = deque()
        self._in_finals: list[Work] = []
        """Finalists that are not answered yet."""
        self._measured = 0
        self._told: set[tuple[Config, str]] = set()
        """Baselines that did not work, and how they ended."""
        self._measuring_s = 0.0
        self._searching_s = 0.0
        """Of ``_measuring_s``, what was not for finalists."""
        self._spent_at = 0.0
        self._first: tuple[float, float] | None = None
        """Of the first measurement, when it was known and how long it took, in seconds of this run."""
        self._finals = 0
        listed = list(self._spaces)
        self._search = Search(largest_first(listed) if campaign.budget.total_seconds else listed, self._open)
        self._unshared = {each: len(group) for group in objective_groups(campaign, listed) for each in group}
        """Cells whose finalists are not known before those of other routings are, and at how many routings these are
        still to be measured, its own included."""
        self._cut_short = False
        """Whether something that was asked for has not been measured."""
        # Enumerating a large space takes a quarter of a second: it is done while others are measured.
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="spaces")

    def run(self) -> Summary:
        trials = self._campaign.budget.trials
        self._progress.expect(trials * len(self._spaces) if trials is not None else None)
        self._ledger.begin(self._spaces)
        state = CampaignState.FAILED
        try:
            for workload in self._spaces:
                self._catalogues[workload] = self._preparing.submit(self._catalogue, workload)
            self._engine.start(self._site())
            self._take_turns()
            done = self._search.done
            done &= self._share()
            self._finish()
            done = done and (not self._campaign.crossovers.refine or self._refine())
            self._engine.stop()
            whole = done and not self._cut_short and not self._stop.requested
            state = CampaignState.FINISHED if whole else CampaignState.STOPPED
        except KeyboardInterrupt:
            state = CampaignState.STOPPED
            raise
        except Exception:
            # What is being measured in this process ends before its database is closed.
            self._of_workers.give_up()
            self._engine.stop()
            raise
        finally:
            self._preparing.shutdown(wait=True, cancel_futures=True)
            self._engine.close()
            self._ledger.end(state, wall_s=self._elapsed_s(), measuring_s=self._measuring_s)
        if self._campaign.writes_studies and self._measured and not self._stop.requested:
            self._progress.note("writing Optuna's studies")
            write_studies(self._transactions.database, self._campaign.name, self._spaces)
        return self._summary(state)

    def _site(self) -> Site:
        return Site(
            self._of_workers, self._ledger.campaign_id, self._dispatch.artifact, self._work, self._delivered, self._stop
        )

    def _take_turns(self) -> None:
        while not self._ends():
            self._ask()
            if not self._turns:
                return
            turn = self._turns[0]
            if not self._dispatch.wait(turn.works, self._ends):
                break
            self._turns.popleft()
            self._tell(turn)
            if turn.run.cell.done and all(other.run is not turn.run for other in self._turns):
                self._end_cell(turn.run)
        if self._turns:
            self._cut_short = True
            left = [work for turn in self._turns for work in turn.works]
            self._dispatch.settle([*left, *self._in_finals])
            while self._turns:
                self._tell(self._turns.popleft())

    def _ends(self) -> bool:
        """Whether nothing more is to be searched."""
        now = self._elapsed_s()
        if now - self._spent_at > 1.0:
            self._spent_at = now
            self._ledger.spend(wall_s=now, measuring_s=self._measuring_s)
        return self._stop.requested or self._out_of_time()

    def _ask(self) -> None:
        """Ask for turns until enough is in the works: always the same number at the same point of the way."""
        while sum(len(turn.works) for turn in self._turns) < self._ahead and not self._out_of_time():
            asked = self._search.turn()
            if asked is None:
                return
            self._turns.append(self._begin(*asked))

    def _begin(self, cell: Cell, proposals: Sequence[Proposal]) -> _Turn:
        run = self._runs[cell.workload]
        works = self._baselines(run)
        for proposal in proposals:
            works.append(Work(run, run.number(), proposal.reason, [proposal.config], proposal))
        self._dispatch.put(works)
        return _Turn(run, works)

    def _baselines(self, run: CellRun) -> list[Work]:
        return [Work(run, run.number(), BASELINE, [config]) for config in run.take_baselines()]

    def _answered(self, work: Work) -> None:
        """A work was measured, in whatever order."""
        assert work.answer is not None
        answer = work.answer
        self._measuring_s += answer.measure_s
        where = f"{work.reason} of {work.run.workload}"
        if answer.state is JobState.LOST:
            self._progress.note(f"{where}: given up, because infrastructure failed: {answer.reason}")
        if work.stage is Stage.FINAL:
            self._finals += len(work.configs) if answer.state is JobState.DONE else 0
            return
        if answer.status is None:
            return
        self._measured += 1
        self._searching_s += answer.measure_s
        if self._first is None:
            self._first = (self._elapsed_s(), answer.measure_s)
        if work.proposal is not None:
            self._progress.measured(work.run.workload, answer.status, work.run.cell.best_us)
        elif answer.status is not Status.OK:
            # Mostly a baseline ends alike everywhere: once says it.
            ended = f"{answer.status}: {answer.reason}"
            if (work.configs[0], ended) not in self._told:
                self._told.add((work.configs[0], ended))
                self._progress.note(f"the baseline {work.configs[0]} of {work.run.workload} ended {ended}")

    def _tell(self, turn: _Turn) -> None:
        """Tell the search what is known of a turn, in the order in which it was asked."""
        for work in turn.works:
            answer = work.answer
            if work.is_old:
                self._progress.skip(1)
            if answer is None or answer.status is None:
                # Nothing is known of the config, and nothing is said of it.
                if work.proposal is not None:
                    turn.run.cell.drop(work.proposal)
            elif work.proposal is not None:
                turn.run.cell.tell(work.proposal, answer.median_us)
            else:
                turn.run.baselines[work.configs[0]] = answer.median_us

    def _end_cell(self, run: CellRun) -> None:
        """Take what baselines are missing, then have the finalists measured."""
        if self._stop.requested:
            return
        left = _Turn(run, self._baselines(run))
        if left.works:
            self._dispatch.put(left.works)
            if not self._dispatch.wait(left.works, lambda: self._stop.requested):
                return
            self._tell(left)
        if not run.needs_finals or run.workload in self._unshared:
            return
        configs = [*run.contenders(), *run.working_baselines()]
        finals = Work(run, run.finals_taken(), FINALIST, configs, stage=Stage.FINAL)
        self._dispatch.put([finals])
        self._in_finals.append(finals)

    def _share(self) -> bool:
        """Where plans choose over routings, measure what is a finalist at one of them at all of them: what lacks one
        cannot be chosen. False when time or a stop ended it."""
        groups = objective_groups(self._campaign, self._runs)
        shared = {
            workload: list(dict.fromkeys(config for other in group for config in self._runs[other].contenders()))
            for group in groups
            for workload in group
        }
        if not shared or self._stop.requested:
            self._unshared.clear()
            return not shared
        # Their time has come, and finals wait until all of them are measured.
        self._unshared = dict.fromkeys(self._unshared, 1)
        more = sum(self._runs[workload].share(configs) for workload, configs in shared.items())
        if self._progress.total is not None:
            self._progress.expect(self._progress.total + more)
        self._search = Search(list(shared), lambda workload: self._runs[workload].cell)
        self._take_turns()
        self._unshared.clear()
        return self._search.done

    def _finish(self) -> None:
        """The finals of cells that time ended, and those that an earlier process did not come to."""
        for run in self._runs.values():
            self._end_cell(run)
        if self._stop.requested or not self._dispatch.wait(self._in_finals, lambda: self._stop.requested):
            self._dispatch.settle(self._in_finals)
        self._in_finals.clear()
        self._ledger.spend(wall_s=self._elapsed_s(), measuring_s=self._measuring_s)

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
            self._take_turns()
            self._finish()
        return False

    def _prepare(self, workload: Workload) -> bool:
        """Begin to make ready a workload beside the listed ones; False where it has no config that can be measured."""
        if workload not in self._catalogues:
            recorded = self._configs(workload) if self._configs is not None else None
            if recorded is not None and not recorded:
                return False  # before its space is listed, which takes long
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
        """Whether what is left of the time is needed for the finalists, ``another`` cell's included, and for measuring
        those of one routing at the others."""
        if math.isinf(self._left_before_s):
            return False
        # What is a finalist at one routing is measured at the others, and is one there too.
        shares = sum(
            run.most_finals * (self._unshared[workload] - 1)
            for workload, run in self._runs.items()
            if workload in self._unshared
        )
        finals = shares + sum(run.most_finals for run in self._runs.values() if run.needs_finals)
        finals += sum(len(work.configs) for work in self._in_finals if work.answer is None)
        if another:
            finals += max(run.most_finals for run in self._runs.values())
        needed_s = (finals * FINAL_COST + shares) * self._a_measurement_s()
        return self._left_before_s - self._elapsed_s() <= needed_s

    def _a_measurement_s(self) -> float:
        """Seconds that a measurement of what is built takes in this run; 0 while nobody knows."""
        if self._first is None or self._measured < 2:
            return 0.0
        # Until the first one spaces are listed, workers start and compilers too: it says nothing of the next.
        first_at, first_s = self._first
        others = self._measured - 1
        apart = (self._elapsed_s() - first_at) / others
        # Where compiling is slower than measuring that is how long it takes to build one, and finalists are built.
        return min(apart, (self._searching_s - first_s) / others) if self._bench.needs_artifacts else apart

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
            target=str(self._bench.target),
            provenance=self._bench.provenance,
            workloads=len(self._spaces),
            measured=self._measured,
            finals=self._finals,
            reused=sum(run.reused for run in self._runs.values()),
            statuses=row.statuses,
            outcomes=outcomes,
            wall_s=row.wall_s,
            measuring_s=row.measuring_s,
        )
