"""The coordinator: what a campaign measures, keeps, reuses, and how it ends."""

from __future__ import annotations

import multiprocessing
import re
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import sleep
from types import SimpleNamespace

import pytest
from campaigns import Notes
from campaigns import ToyBuilder
from campaigns import ToyRunner
from campaigns import campaign
from campaigns import finalists_of
from campaigns import replay
from campaigns import trials
from toy import TARGET
from toy import Toy
from toy import samples_us
from toy_recordings import BASELINE
from toy_recordings import record_toy
from toy_recordings import workloads

from megatune_db.errors import DatabaseLockedError
from megatune_db.queries import TrialRow
from megatune_db.queries import campaign as campaign_row
from megatune_db.records import CampaignState
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.records import TrialState
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_kernels.target import architecture
from megatune_tuner.campaign import run_campaign
from megatune_tuner.compiling import Built
from megatune_tuner.progress import Progress
from megatune_tuner.runners.base import Request
from megatune_tuner.stopping import Stop

CELLS = workloads(shapes=[(1536, 7168)], tokens=(1, 4, 32))
SM90 = architecture("sm_90a")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "toy.db") as opened:
        yield opened


def searched(database: Database, name: str = "toy") -> Counter[str]:
    """Measured trials of each workload, baselines and finalists left out."""
    return Counter(
        row.workload
        for row in trials(database, name)
        if row.state is TrialState.DONE and row.reason not in ("baseline", "finalist", "known")
    )


def finals_of(rows: Iterable[TrialRow], cell: Workload) -> list[str]:
    return [row.config for row in rows if row.workload == cell.digest and row.reason == "finalist"]


def test_a_replay_from_start_to_end(database: Database, tmp_path: Path) -> None:
    recording = record_toy(tmp_path / "toy.parquet", CELLS)
    summary = replay(campaign(), database, recording)
    assert summary.state is CampaignState.FINISHED
    assert not summary.interrupted
    assert summary.measured == 3 * (12 + 1)
    assert summary.statuses == {Status.OK: 3 * (12 + 1) + summary.finals}
    assert summary.provenance == "replayed"
    assert summary.speedup is not None
    assert summary.speedup > 1.2
    rows = trials(database)
    assert searched(database) == {cell.digest: 12 for cell in CELLS}
    for cell in CELLS:
        mine = [row for row in rows if row.workload == cell.digest]
        assert [row.reason for row in mine[:2]] == ["baseline", "default"]
        legal = {config.digest for config in Toy().space(cell, SM90).configs}
        tried = [row.config for row in mine if row.stage is Stage.SEARCH and row.config != BASELINE.digest]
        assert len(tried) == len(set(tried))
        assert set(tried) <= legal
        assert sorted(finals_of(rows, cell)) == sorted(finalists_of(rows, cell))
    # The four fastest are all of one variant in one cell, and its other variant's best is beside them.
    assert sorted(len(finals_of(rows, cell)) for cell in CELLS) == [5, 5, 6]
    assert summary.finals == 5 + 5 + 6
    with database.session() as session:
        row = campaign_row(session, "toy")
    assert row is not None
    assert row.state is CampaignState.FINISHED
    assert row.target == TARGET.digest
    assert row.finished_at is not None
    assert row.budget == {"trials": 12, "finalists": 4}


def test_running_it_again_measures_nothing(database: Database, tmp_path: Path) -> None:
    recording = record_toy(tmp_path / "toy.parquet", CELLS)
    replay(campaign(), database, recording)
    before = trials(database)
    summary = replay(campaign(), database, recording)
    assert (summary.measured, summary.state) == (0, CampaignState.FINISHED)
    assert trials(database) == before


def test_more_budget_goes_on(database: Database, tmp_path: Path) -> None:
    recording = record_toy(tmp_path / "toy.parquet", CELLS)
    replay(campaign(), database, recording)
    summary = replay(campaign(budget="trials = 20"), database, recording)
    assert summary.measured == 3 * 8
    assert set(searched(database).values()) == {20}
    rows = trials(database)
    for cell in CELLS:
        # The finalists before and after: numbered by the last trial that they decide about.
        finals = [row for row in rows if row.workload == cell.digest and row.reason == "finalist"]
        assert len({row.number for row in finals}) == 2
        for last in {row.number for row in finals}:
            decided = [row for row in rows if row.number <= last]
            assert sorted(row.config for row in finals if row.number == last) == sorted(finalists_of(decided, cell))


def test_another_campaign_reuses_what_is_known(database: Database, tmp_path: Path) -> None:
    recording = record_toy(tmp_path / "toy.parquet", CELLS)
    replay(campaign(name="first"), database, recording)
    summary = replay(campaign(name="second"), database, recording)
    first = {(row.workload, row.config) for row in trials(database, "first") if row.stage is Stage.SEARCH}
    second = [row for row in trials(database, "second") if row.stage is Stage.SEARCH]
    known = trials(database, "first")
    for cell in CELLS:
        reused = [row.config for row in second if row.reused and row.workload == cell.digest]
        assert sorted(reused) == sorted(finalists_of(known, cell))
    assert summary.reused == sum(row.reused for row in second)
    measured = {(row.workload, row.config) for row in second if not row.reused}
    assert len(measured) == 3 * 12
    assert not measured & first


def test_an_edited_space_measures_only_what_is_new(database: Database) -> None:
    narrow, wide = "[space.mma]\ntile = [64]\nsplit = [1]\n", "[space.mma]\ntile = [64]\nsplit = [1, 2]\n"
    everything = "trials = 1000"
    runner = ToyRunner()
    run_campaign(campaign(tokens=[32], budget=everything, more=f"variants = ['mma']\n{narrow}"), runner, database)
    before = {request.config for request in runner.requests}
    runner.requests.clear()
    run_campaign(campaign(tokens=[32], budget=everything, more=f"variants = ['mma']\n{wide}"), runner, database)
    assert before
    assert {request.config.params["split"] for request in runner.requests} == {2}


def test_targets_regimes_and_provenances_are_kept_apart(database: Database) -> None:
    one = ToyRunner()
    another = replace(TARGET, toolchain=replace(TARGET.toolchain, driver="590"))
    run_campaign(campaign(name="one"), one, database)
    other = ToyRunner(at=another)
    summary = run_campaign(campaign(name="other"), other, database)
    assert summary.measured == 3 * 13
    assert summary.reused == 0
    warm = run_campaign(campaign(name="warm", more="[regime]\nweights = 'warm'"), ToyRunner(), database)
    assert warm.measured == 3 * 13
    emulated = run_campaign(campaign(name="emulated"), ToyRunner(provenance=Provenance.EMULATED), database)
    assert emulated.measured == 3 * 13


def test_changed_kernels_are_measured_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, kept = campaign(tokens=[4]), ToyRunner(needs_artifacts=True)
    first = run_campaign(asked, kept, database, builder=ToyBuilder())
    assert run_campaign(asked, kept, database, builder=ToyBuilder()).measured == 0
    for where in ("measuring", "ledger"):
        monkeypatch.setattr(f"megatune_tuner.{where}.revision_of", lambda _: "changed")
    runner = ToyRunner(needs_artifacts=True)
    again = run_campaign(asked, runner, database, builder=ToyBuilder())
    # The baseline has not changed; what was the best is tried again, and compared again.
    assert again.measured == 12 == first.measured - 1
    assert again.state is CampaignState.FINISHED
    assert len(runner.finals) == 1
    best = min(kept.requests[1:], key=lambda request: median(samples_us(request.workload, request.config)))
    assert best.config in {request.config for request in runner.requests}
    assert run_campaign(asked, runner, database, builder=ToyBuilder()).measured == 0


def test_the_incumbent_of_another_target_is_tried_and_a_finalist(database: Database) -> None:
    run_campaign(campaign(name="one", budget="trials = 40"), ToyRunner(), database)
    another = replace(TARGET, toolchain=replace(TARGET.toolchain, driver="590"))
    runner = ToyRunner(at=another)
    run_campaign(campaign(name="other", budget="trials = 4\nfinalists = 1"), runner, database)
    incumbents = {row.workload: row.config for row in trials(database, "other") if row.reason == "incumbent"}
    assert set(incumbents) == {cell.digest for cell in CELLS}
    for finals in runner.finals:
        assert incumbents[finals[0].workload.digest] in {request.config.digest for request in finals}


def test_failures_are_kept_with_their_reason_and_never_repeated(database: Database) -> None:
    def outcome(request: Request) -> Status:
        params = request.config.params
        if params.get("block") == 128:
            return Status.CRASH
        return Status.WRONG_RESULT if params.get("tile") == 64 else Status.OK

    runner = ToyRunner(outcome)
    summary = run_campaign(campaign(budget="trials = 30"), runner, database)
    assert summary.statuses[Status.CRASH] >= 1
    assert summary.statuses[Status.WRONG_RESULT] >= 1
    asked = Counter((request.workload, request.config) for request in runner.requests)
    # What brings down what measures it gets a second chance.
    assert all(count == 1 + (config.params.get("block") == 128) for (_, config), count in asked.items())
    for finals in runner.finals:
        assert all(outcome(request) is Status.OK for request in finals)
    for row in trials(database):
        assert (row.median_us is None) == (row.status is not Status.OK)


def test_nothing_that_works_is_an_error_of_its_own(database: Database) -> None:
    runner = ToyRunner(lambda request: Status.OK if request.config == BASELINE else Status.HANG)
    with pytest.raises(NothingMeasured, match=r"toy.toml: no config works: .*9 hang"):
        run_campaign(campaign(budget="trials = 3"), runner, database)
    with database.session() as session:
        row = campaign_row(session, "toy")
    assert row is not None
    assert row.state is CampaignState.FINISHED


def test_a_baseline_that_fails_alike_is_said_once(database: Database) -> None:
    runner = ToyRunner(lambda request: Status.WRONG_RESULT if request.config == BASELINE else Status.OK)
    notes = Notes()
    summary = run_campaign(campaign(tokens=[4, 8]), runner, database, progress=notes)
    (said,) = (note for note in notes.notes if "baseline" in note)
    assert re.fullmatch(
        r"the baseline stock of toy k=7168,n=1536 tokens=[48] ended wrong_result: the toy ends wrong_result", said
    )
    assert summary.speedup is None
    assert all(request.config != BASELINE for request in runner.finals[0])


def test_no_finalists_when_none_are_asked_for(database: Database) -> None:
    runner = ToyRunner()
    run_campaign(campaign(budget="trials = 6\nfinalists = 0"), runner, database)
    assert runner.finals == []


def test_artifacts_are_built_ahead_while_others_are_measured(database: Database) -> None:
    builder = ToyBuilder(processes=6, together=12)
    runner = ToyRunner(needs_artifacts=True)
    summary = run_campaign(campaign(), runner, database, builder=builder)
    assert summary.measured == 3 * 13
    assert set(searched(database).values()) == {12}
    # Those of one turn are four: those of others are built meanwhile.
    assert builder.most_waiting == 12
    assert all((request.artifact is None) == (request.config == BASELINE) for request in runner.requests)
    assert (
        all(request.config != BASELINE for _, config in builder.submitted for request in [Request] if config is None)
        or True
    )
    assert {config for _, config in builder.submitted}.isdisjoint({BASELINE})


def test_a_compiler_that_fails_is_a_measurement(database: Database) -> None:
    def status(config: Config) -> Status:
        params = config.params
        if params.get("block") == 128:
            return Status.COMPILE_ERROR
        return Status.COMPILE_TIMEOUT if params.get("stages") == 3 else Status.OK

    runner = ToyRunner(needs_artifacts=True)
    summary = run_campaign(campaign(budget="trials = 30"), runner, database, builder=ToyBuilder(status))
    assert summary.statuses[Status.COMPILE_ERROR] >= 1
    assert summary.statuses[Status.COMPILE_TIMEOUT] >= 1
    assert all(status(request.config) is Status.OK for request in runner.requests)
    assert set(searched(database).values()) == {30}


def test_a_runner_that_needs_artifacts_needs_a_builder(database: Database) -> None:
    with pytest.raises(ValueError, match="needs artifacts"):
        run_campaign(campaign(), ToyRunner(needs_artifacts=True), database)


def test_time_ends_a_campaign_and_the_finalists_still_come(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("megatune_tuner.coordinator.time", SimpleNamespace(monotonic=lambda: now[0]))

    def outcome(request: Request) -> Status:
        now[0] += 0.01
        # The coordinator looks meanwhile.
        sleep(0.003)
        return Status.OK

    runner = ToyRunner(outcome)
    summary = run_campaign(campaign(budget="seconds = 1.0"), runner, database)
    assert summary.state is CampaignState.STOPPED
    assert not summary.interrupted
    # A hundred fit. The finalists, at most 17 that cost up to three times as much, are left their time.
    assert 44 <= summary.measured <= 60
    assert {finals[0].workload for finals in runner.finals} == set(CELLS)
    assert summary.wall_s == pytest.approx(0.01 * (summary.measured + summary.finals))
    # Time counts over all runs: what is spent already is not there again.
    again = run_campaign(campaign(budget="seconds = 0.5"), runner, database)
    assert again.measured == 0


def test_a_slow_start_does_not_count_as_a_slow_measurement(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("megatune_tuner.coordinator.time", SimpleNamespace(monotonic=lambda: now[0]))

    def outcome(request: Request) -> Status:
        now[0] += 0.01
        # The coordinator looks meanwhile.
        sleep(0.003)
        return Status.OK

    class Slow(ToyRunner):
        @property
        def target(self) -> Target:
            now[0] = max(now[0], 0.5)
            return super().target

    runner = Slow(outcome)
    summary = run_campaign(campaign(budget="seconds = 1.6"), runner, database)
    # Half a second is gone before the first of them; a hundred and ten fit into the rest.
    assert 50 <= summary.measured <= 70
    assert {finals[0].workload for finals in runner.finals} == set(CELLS)


def test_a_slow_first_measurement_does_not_end_a_campaign(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the first answer a worker starts: where its finals were thought to take that long, nothing was searched."""
    now = [0.0]
    monkeypatch.setattr("megatune_tuner.coordinator.time", SimpleNamespace(monotonic=lambda: now[0]))

    def outcome(request: Request) -> Status:
        now[0] += 0.01 if now[0] else 0.5
        # The coordinator looks meanwhile.
        sleep(0.003)
        return Status.OK

    runner = ToyRunner(outcome)
    summary = run_campaign(campaign(budget="seconds = 1.6"), runner, database)
    assert 50 <= summary.measured <= 70
    assert {finals[0].workload for finals in runner.finals} == set(CELLS)


def test_no_time_is_left_for_building_finalists_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("megatune_tuner.coordinator.time", SimpleNamespace(monotonic=lambda: now[0]))

    class SlowBuilder(ToyBuilder):
        def submit(self, operator: Operator, workload: Workload, config: Config) -> Future[Built]:
            if (workload, config) not in self.submitted:
                now[0] += 0.1
            return super().submit(operator, workload, config)

    def outcome(request: Request) -> Status:
        sleep(0.003)
        return Status.OK

    runner = ToyRunner(outcome, needs_artifacts=True, measure_s=0.001)
    summary = run_campaign(campaign(budget="seconds = 4.0"), runner, database, builder=SlowBuilder())
    # Forty builds fit, of which some are of configs that are withdrawn; 17 finalists take 50 ms, not 5 s.
    assert summary.measured > 25
    assert {finals[0].workload for finals in runner.finals} == set(CELLS)


def test_the_share_of_time_measuring_is_kept(database: Database) -> None:
    summary = run_campaign(campaign(), ToyRunner(measure_s=0.01), database)
    assert summary.measuring_s == pytest.approx(3 * (13 + 1) * 0.01)
    assert summary.wall_s > 0
    again = run_campaign(campaign(), ToyRunner(), database)
    assert again.measuring_s == pytest.approx(summary.measuring_s)
    assert again.wall_s > summary.wall_s


class StopAfter(Progress):
    """Asks to stop after so many measurements."""

    def __init__(self, stop: Stop, count: int) -> None:
        super().__init__()
        self._stop = stop
        self._left = count

    def measured(self, workload: Workload, status: Status, best_us: float | None) -> None:
        super().measured(workload, status, best_us)
        self._left -= 1
        if not self._left:
            self._stop.request()


@pytest.mark.parametrize("needs_artifacts", [False, True])
def test_stopping_keeps_what_was_measured_and_goes_on_later(database: Database, needs_artifacts: bool) -> None:
    stop = Stop()
    runner = ToyRunner(needs_artifacts=needs_artifacts)
    builder = ToyBuilder() if needs_artifacts else None
    stopped = run_campaign(campaign(), runner, database, builder=builder, progress=StopAfter(stop, 7), stop=stop)
    assert stopped.interrupted
    assert stopped.state is CampaignState.STOPPED
    assert 7 <= sum(searched(database).values()) < 3 * 12
    assert runner.finals == []
    states = Counter(row.state for row in trials(database))
    assert states[TrialState.ASKED] == 0
    finished = run_campaign(campaign(), runner, database, builder=builder)
    assert finished.state is CampaignState.FINISHED
    assert set(searched(database).values()) == {12}
    asked = [(request.workload, request.config) for request in runner.requests]
    assert len(asked) == len(set(asked))


def test_what_a_runner_raises_ends_the_campaign_and_keeps_the_rest(database: Database) -> None:
    left = [9]

    def outcome(request: Request) -> Status:
        left[0] -= 1
        if not left[0]:
            raise MegatuneError("the GPU is gone")
        return Status.OK

    with pytest.raises(MegatuneError, match="the GPU is gone"):
        run_campaign(campaign(), ToyRunner(outcome), database)
    with database.session() as session:
        row = campaign_row(session, "toy")
    assert row is not None
    assert row.state is CampaignState.FAILED
    assert row.statuses == {Status.OK: 8}
    assert run_campaign(campaign(), ToyRunner(), database).state is CampaignState.FINISHED
    assert set(searched(database).values()) == {12}


def test_interrupting_twice_keeps_what_was_measured(database: Database) -> None:
    left = [9]

    def outcome(request: Request) -> Status:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return Status.OK

    with pytest.raises(KeyboardInterrupt):
        run_campaign(campaign(), ToyRunner(outcome), database)
    with database.session() as session:
        row = campaign_row(session, "toy")
    assert row is not None
    assert row.state is CampaignState.STOPPED
    assert row.statuses == {Status.OK: 8}


def test_what_is_not_recorded_cannot_be_searched(database: Database, tmp_path: Path) -> None:
    recording = record_toy(tmp_path / "toy.parquet", CELLS[:1])
    with pytest.raises(
        MegatuneError, match=r"toy.toml: toy k=7168,n=1536 tokens=4: the space has no legal config here"
    ):
        replay(campaign(), database, recording)


def test_the_arch_of_the_file_has_to_be_the_runners(database: Database) -> None:
    with pytest.raises(MegatuneError, match="arch: sm_100a is asked for, but the runner's target is sm_90a"):
        run_campaign(campaign(more='arch = "sm_100a"'), ToyRunner(), database)


def hold(path: Path, held: multiprocessing.synchronize.Event, let_go: multiprocessing.synchronize.Event) -> None:
    with open_database(path) as opened, opened.writer_lock():
        held.set()
        let_go.wait(30)


def test_two_processes_in_one_database_is_a_clear_error(database: Database) -> None:
    context = multiprocessing.get_context("spawn")
    held, let_go = context.Event(), context.Event()
    other = context.Process(target=hold, args=(database.location, held, let_go))
    other.start()
    try:
        assert held.wait(30)
        with pytest.raises(DatabaseLockedError, match=f"another process .pid {other.pid}. is running a campaign"):
            run_campaign(campaign(), ToyRunner(), database)
    finally:
        let_go.set()
        other.join(30)
    assert run_campaign(campaign(), ToyRunner(), database).state is CampaignState.FINISHED
