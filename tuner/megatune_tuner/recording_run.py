"""Recording: every config of every cell, or a sample of them, measured into the database and written to one file.

Unlike a campaign this does not search, so that a recording shows the whole space. It can be killed and run again as
often as needed: what the database holds is not measured twice.

Around crossovers it can also record every whole number of tokens: there the best configs of the listed tokens below
and above, so that a sweep over all of them can be replayed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections import deque
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from sqlalchemy.orm import Session

from megatune_db.election import TERM_S
from megatune_db.queries import ExportRow
from megatune_db.queries import export_rows
from megatune_db.records import CampaignState
from megatune_db.records import Measurement
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.target import architecture_of
from megatune_tuner.bisection import cells_around
from megatune_tuner.bisection import winners
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.candidates import Catalogue
from megatune_tuner.finals import finalists
from megatune_tuner.ledger import Ledger
from megatune_tuner.measuring import Builder
from megatune_tuner.measuring import Configs
from megatune_tuner.measuring import Job
from megatune_tuner.measuring import Meter
from megatune_tuner.measuring import wait_for_builds
from megatune_tuner.office import in_office
from megatune_tuner.progress import Progress
from megatune_tuner.recording_file import About
from megatune_tuner.recording_file import write_recording
from megatune_tuner.runners.base import Runner
from megatune_tuner.search import largest_first
from megatune_tuner.stopping import Stop
from megatune_tuner.transactions import Transactions

AHEAD = 4096
"""Jobs whose artifacts are in the works or wait in memory, some tens of KiB each: a cell that shares none with those
before it compiles while they measure, also when these are many that share theirs."""
HANDED_OVER = 2
"""Jobs that the runner has: while it measures one, the one before is committed and the one behind waits its turn."""
NOTHING = Space(())
"""The space of a cell around a crossover before it is enumerated, and where nothing of it can be measured."""


@dataclass(frozen=True)
class RecordSummary:
    """What a recording has come to."""

    name: str
    interrupted: bool
    """Whether it was asked to stop before its end."""
    target: str
    path: Path | None
    """None while no cell is complete, or after a stop."""
    rows: int
    cells: int
    complete: int
    """Cells whose configs are all measured; the file holds these alone."""
    measured: int
    """Measurements that this run took, finalists not counted."""
    finals: int
    """Measurements of finalists that this run took beside."""
    statuses: dict[Status, int]
    """Of ``measured``."""
    wall_s: float
    measuring_s: float
    """Seconds of this run."""


def record(
    campaign: Campaign,
    runner: Runner,
    database: Database,
    path: Path,
    *,
    builder: Builder | None = None,
    configs: Configs | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
    facts: Mapping[str, float] | None = None,
) -> RecordSummary:
    """Measure the cells of a campaign as ``[record]`` says, and write the complete ones to ``path``.

    Of the budget, its seconds and finalists count. The other parameters and the errors are those of ``run_campaign``.

    :param facts: figures of the target to keep with the measurements, such as its copy bandwidth.
    """
    progress, stop = progress or Progress(), stop or Stop()
    with in_office(Transactions(database, note=progress.note), campaign, progress, stop, term_s=TERM_S):
        recorder = _Recorder(campaign, runner, database, builder, configs, progress, stop)
        return recorder.run(path, facts or {})


def sampled(catalogue: Catalogue, count: int | None, seed: int, *, around_defaults: bool = False) -> list[Config]:
    """The configs of a cell to record: all, or each variant's default and ``count`` more.

    Those come in the order of a hash of the config and the seed, so that cells share as many as their spaces allow.

    :param around_defaults: also, for each value of each parameter, the one nearest to the default that has that value.
    """
    if count is None:
        return list(catalogue.configs)
    chosen = [catalogue.configs[index] for index in catalogue.defaults()]
    if around_defaults:
        chosen += [catalogue.configs[index] for index in catalogue.around_defaults()]
    ordered = sorted(catalogue.configs, key=lambda config: _place(config.digest, seed))
    return list(dict.fromkeys([*chosen, *ordered[:count]]))


@cache
def _place(config: str, seed: int) -> str:
    return digest([seed, config])


@dataclass
class _Handed:
    """A job that the runner has."""

    cell: _Cell
    job: Job
    measurement: Future[Measurement]

    @property
    def is_last(self) -> bool:
        """Whether its cell ends with it."""
        return self.job.config is self.cell.left[-1]


@dataclass
class _Cell:
    workload: Workload
    space: Space
    left: list[Config]
    """To be measured still, baselines first."""
    times_us: dict[Config, float]
    """Of what works."""

    @property
    def ranked(self) -> list[Config]:
        """The configs that work, baselines left out, the fastest first."""
        tuned = [config for config in self.times_us if config.variant in self.space.by_variant]
        return sorted(tuned, key=lambda config: (self.times_us[config], str(config)))


class _Recorder:
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
        self._database = database
        self._configs = configs
        self._progress = progress
        self._stop = stop
        self._arch = architecture_of(runner.target.hardware)
        self._spaces = campaign.spaces(self._arch)
        listed = list(self._spaces)
        self._listed = largest_first(listed) if campaign.budget.total_seconds else listed
        self._cells: dict[Workload, _Cell] = {}
        self._meter = Meter(runner, campaign.measuring_regime(), builder)
        self._ledger = Ledger(
            Transactions(database), campaign, runner.target, runner.provenance, compiled=runner.needs_artifacts
        )
        self._statuses: Counter[Status] = Counter()
        self._finals = 0
        self._complete: list[Workload] = []
        self._works = False
        self._wall_s = 0.0
        self._in_the_works: deque[tuple[_Cell, Job]] = deque()
        self._handed: deque[_Handed] = deque()
        # The runner has one caller, this thread, so that the database is written while it measures.
        self._measuring = ThreadPoolExecutor(1, thread_name_prefix="measuring")

    def run(self, path: Path, facts: Mapping[str, float]) -> RecordSummary:
        self._ledger.begin(self._spaces)
        state = CampaignState.FAILED
        preparing = ThreadPoolExecutor(1, thread_name_prefix="spaces")
        try:
            cells = self._listed
            while cells:
                self._measure([preparing.submit(self._select, workload) for workload in cells])
                self._settle(0)
                # Each round tells more narrowly where a crossover is.
                cells = self._around() if self._whole else []
            state = CampaignState.FINISHED if self._whole else CampaignState.STOPPED
        except KeyboardInterrupt:
            state = CampaignState.STOPPED
            raise
        finally:
            preparing.shutdown(wait=True, cancel_futures=True)
            self._measuring.shutdown(wait=True, cancel_futures=True)
            self._wall_s = time.monotonic() - self._started
            self._ledger.end(state, wall_s=self._wall_s, measuring_s=self._meter.measuring_s)
        if self._complete and not self._works:
            failures = ", ".join(f"{count} {status}" for status, count in self._statuses.items())
            raise NothingMeasured(f"{self._campaign.source}: no config works: {failures}")
        rows = self._write(path, facts) if self._complete and not self._stop.requested else 0
        return RecordSummary(
            name=self._campaign.name,
            interrupted=self._stop.requested,
            target=str(self._runner.target),
            path=path if rows else None,
            rows=rows,
            cells=len(self._spaces),
            complete=len(self._complete),
            measured=self._statuses.total(),
            finals=self._finals,
            statuses=dict(self._statuses),
            wall_s=self._wall_s,
            measuring_s=self._meter.measuring_s,
        )

    @property
    def _whole(self) -> bool:
        return len(self._complete) == len(self._spaces)

    def _around(self) -> list[Workload]:
        """The cells near crossovers that are to be recorded too."""
        share = self._campaign.record.around_crossovers
        if share is None:
            return []
        finals = {workload: self._ledger.finals(workload, space) for workload, space in self._spaces.items()}
        around = cells_around(finals, share)
        if self._configs is not None:
            around = [workload for workload in around if any(True for _ in self._configs(workload))]
        for workload in around:
            self._ledger.put_workload(workload)
            self._spaces[workload] = NOTHING
        return around

    def _select(self, workload: Workload) -> _Cell:
        listed = workload in self._listed
        try:
            if not listed:
                self._spaces[workload] = self._campaign.space_at(workload, self._arch)
            space = self._spaces[workload]
            catalogue = Catalogue(space, self._configs(workload) if self._configs is not None else None)
        except MegatuneError as error:
            if listed:
                raise self._campaign.fault(str(workload), error) from error
            return _Cell(workload, NOTHING, [], {})
        baselines = [Config.of(name, {}) for name in operator(workload.operator).baselines]
        if listed:
            asked = self._campaign.record
            chosen = sampled(catalogue, asked.sample, asked.seed, around_defaults=asked.around_defaults)
        else:
            chosen = self._best_near(workload, catalogue)
        known = self._ledger.known(workload)
        left = [config for config in (*baselines, *chosen) if config.digest not in known]
        medians = {config: known[config.digest].median_us for config in (*baselines, *chosen) if config.digest in known}
        times_us = {config: us for config, us in medians.items() if us is not None}
        cell = self._cells[workload] = _Cell(workload, space, left, times_us)
        return cell

    def _best_near(self, workload: Workload, catalogue: Catalogue) -> list[Config]:
        """The winners of the listed cells of the shape with the next fewer and the next more tokens."""
        shape = [listed for listed in self._listed if listed.at(0) == workload.at(0)]
        fewer = max((listed for listed in shape if listed.tokens < workload.tokens), key=lambda listed: listed.tokens)
        more = min((listed for listed in shape if listed.tokens > workload.tokens), key=lambda listed: listed.tokens)
        best = [
            config
            for near in (fewer, more)
            for config in winners(self._ledger.finals(near, self._spaces[near]), self._cells[near].ranked)
        ]
        legal = dict.fromkeys(catalogue.nearest(config) for config in best)
        return [catalogue.configs[index] for index in legal if index is not None]

    def _measure(self, selected: Sequence[Future[_Cell]]) -> None:
        window = AHEAD if self._meter.ahead else 0
        done, known = self._progress.done, 0
        for number, future in enumerate(selected, start=1):
            # Listing a space takes long: the runner has something to do meanwhile.
            while self._in_the_works and not future.done():
                if not self._next():
                    return
            cell = future.result()
            self._ledger.put_configs(cell.workload, cell.space, cell.left)
            known += len(cell.left)
            self._progress.expect(done + round(known / number * len(selected)))
            for config in cell.left:
                self._in_the_works.append((cell, self._meter.job(cell.workload, config)))
                if len(self._in_the_works) > window and not self._next():
                    return
            if not cell.left and not self._end_cell(cell):
                return
        while self._in_the_works:
            if not self._next():
                return

    def _next(self) -> bool:
        """Hand over what was asked first, and keep what the runner has done; False when it is time to stop."""
        cell, job = self._in_the_works.popleft()
        # The operands of a cell are made once: its finalists are measured before the next cell begins.
        if self._handed and self._handed[-1].is_last and not self._settle(0):
            return False
        if self._ends() or not wait_for_builds([job], self._stop):
            return False
        self._handed.append(_Handed(cell, job, self._measuring.submit(self._meter.measure, job)))
        return self._settle(HANDED_OVER - 1)

    def _settle(self, left: int) -> bool:
        """Keep measurements until the runner has only ``left`` jobs; False when it is time to stop."""
        goes_on = True
        while len(self._handed) > left:
            goes_on = self._keep(self._handed.popleft()) and goes_on
        return goes_on

    def _keep(self, handed: _Handed) -> bool:
        """Commit a measurement, and end its cell if it was the last; False when it is time to stop."""
        cell, job, measurement = handed.cell, handed.job, handed.measurement.result()
        self._ledger.keep(measurement, job.artifacts)
        self._statuses[measurement.status] += 1
        if measurement.median_us is not None:
            cell.times_us[job.config] = measurement.median_us
        self._progress.measured(job.workload, measurement.status, min(cell.times_us.values(), default=None))
        return not handed.is_last or self._end_cell(cell)

    def _end_cell(self, cell: _Cell) -> bool:
        """Measure the best and the baselines again, interleaved, unless that was done; False when it is time to
        stop."""
        if cell.times_us and not (not cell.left and self._ledger.has_finals(cell.workload)):
            baselines = [config for config in cell.times_us if config.variant not in cell.space.by_variant]
            curve_of = operator(cell.workload.operator).curve_of
            best = finalists(cell.ranked, self._campaign.budget.finalists, curve_of)
            jobs = [self._meter.job(cell.workload, config) for config in (*best, *baselines)]
            if self._ends() or not wait_for_builds(jobs, self._stop):
                return False
            for job, measurement in self._measuring.submit(self._meter.finalists, jobs).result():
                self._ledger.keep(measurement, job.artifacts)
                self._finals += 1
        self._works |= bool(cell.times_us)
        self._complete.append(cell.workload)
        return True

    def _ends(self) -> bool:
        seconds = self._campaign.budget.total_seconds
        return self._stop.requested or (seconds is not None and time.monotonic() - self._started >= seconds)

    def _write(self, path: Path, facts: Mapping[str, float]) -> int:
        about = About(
            target=self._runner.target,
            regime=self._campaign.measuring_regime(),
            version=version("megatune"),
            campaign=self._campaign.text,
            sampling=self._sampling(),
            facts={**facts, "measuring_share": self._measuring_share()},
        )
        with self._database.session() as session:
            return write_recording(path, self._rows(session), about)

    def _measuring_share(self) -> float:
        """Share of the campaign's wall time, over all its runs, for which the runner was busy.

        A run that found everything measured has only written the file, and does not count.
        """
        row = self._ledger.row()
        idle = 0.0 if self._statuses else self._wall_s
        return row.measuring_s / max(row.wall_s - idle, row.measuring_s, 1e-9)

    def _rows(self, session: Session) -> Iterator[ExportRow]:
        complete = {workload.digest for workload in self._complete}
        rows = export_rows(
            session,
            target=self._runner.target.digest,
            regime=self._campaign.measuring_regime(),
            provenance=self._runner.provenance,
        )
        return (row for row in rows if row.measurement.workload in complete)

    def _sampling(self) -> str:
        asked = self._campaign.record
        around = ""
        if asked.around_crossovers is not None:
            around = (
                f"; within {asked.around_crossovers:.0%} of each crossover every whole number of tokens, with the best "
                "configs of the listed tokens below and above"
            )
        if asked.sample is None:
            return f"the whole space of each cell, and its baselines{around}"
        near = ", for each value of each parameter the config nearest to it" if asked.around_defaults else ""
        # Campaigns on the same target share its rows, and leaving theirs out would hide the best configs.
        return (
            f"each cell's {asked.sample} first configs in the order of a hash with seed {asked.seed}, "
            f"the default of each variant{near}, and the baselines; besides these, what searches on the same target "
            f"proposed{around}"
        )
