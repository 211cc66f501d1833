"""A campaign that looks for crossovers: what it measures between the listed tokens, and that a kill loses nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from types import SimpleNamespace

import crossing_toy
import pytest
import toy
from campaigns import ToyBuilder
from campaigns import ToyRunner
from campaigns import campaign
from campaigns import replay
from campaigns import trials
from crossing_toy import CrossingToy
from crossing_toy import crossing
from toy_recordings import BASELINE

from megatune_db import queries
from megatune_db.records import CampaignState
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Status
from megatune_db.records import TrialState
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.operator import Workload
from megatune_kernels.target import architecture
from megatune_tuner.bisection import WINNERS
from megatune_tuner.bisection import Crossover
from megatune_tuner.bisection import crossovers
from megatune_tuner.campaign import run_campaign
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.ledger import Ledger
from megatune_tuner.progress import Progress
from megatune_tuner.recording_run import record
from megatune_tuner.recordings import read_recording
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.replay import ReplayRunner
from megatune_tuner.stopping import Stop
from megatune_tuner.transactions import Transactions

TOKENS = (16, 32, 64, 128, 256)
SHAPE = (1536, 7168)
SM90 = architecture("sm_90a")
REFINE = "[crossovers]\nrefine = true\n"
WHOLE = "trials = 24"
"""The whole space: what a search misses moves a crossover, and is another matter."""


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with toy.registered(CrossingToy):
        yield


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "toy.db") as opened:
        yield opened


def cell(tokens: int, n: int = SHAPE[0]) -> Workload:
    return CrossingToy().workload({"n": n, "k": SHAPE[1]}, tokens)


def declared(**changed: object) -> Campaign:
    values: dict[str, object] = {"tokens": TOKENS, "budget": WHOLE, "more": REFINE}
    values |= changed
    values["more"] = f"sampler.kind = 'random'\nsampler.studies = false\n{values['more']}"
    return campaign(**values)  # type: ignore[arg-type]


def runner(**more: object) -> ToyRunner:
    return ToyRunner(samples=crossing_toy.samples_us, **more)  # type: ignore[arg-type]


def found(database: Database, asked: Campaign, cells: set[Workload]) -> list[Crossover]:
    """The crossovers that the database's finals tell."""
    ledger = Ledger(Transactions(database), asked, toy.TARGET, ToyRunner().provenance)
    return crossovers({one: ledger.finals(one, asked.space_at(one, SM90)) for one in cells})


def asked_once(runner: ToyRunner) -> bool:
    requests = [(request.workload, request.config) for request in runner.requests]
    finals = [requests[0].workload for requests in runner.finals]
    return len(set(requests)) == len(requests) and len(set(finals)) == len(finals)


def test_cells_between_are_measured_until_the_crossover_is_told(database: Database) -> None:
    one = runner()
    summary = run_campaign(declared(), one, database)
    measured = {request.workload for request in one.requests}
    between = {workload for workload in measured if workload.tokens not in TOKENS}
    assert 3 <= len(between) <= 8
    assert all(64 < workload.tokens < 128 for workload in between)
    assert summary.state is CampaignState.FINISHED
    assert summary.workloads == len(measured) == len(TOKENS) + len(between)
    assert {row.tokens for row in summary.outcomes} == {workload.tokens for workload in measured}
    (crossover,) = found(database, declared(), measured)
    assert (crossover.below, crossover.above) == ("simt", "mma")
    assert crossover.low < crossing(cell(1)) < crossover.high
    assert crossover.tokens == pytest.approx(crossing(cell(1)), rel=0.05)
    assert asked_once(one)


def test_a_cell_between_costs_little_and_compares_each_variants_best(database: Database) -> None:
    one = runner()
    run_campaign(declared(), one, database)
    counts = Counter(request.workload for request in one.requests if request.config != BASELINE)
    reasons = {row.workload: set[str]() for row in trials(database)}
    for row in trials(database):
        reasons[row.workload].add(row.reason)
    for finals in one.finals:
        workload = finals[0].workload
        assert {request.config.variant for request in finals} == {"simt", "mma", "stock"}
        if workload.tokens in TOKENS:
            assert counts[workload] == 24
            assert "crossover" not in reasons[workload.digest]
        else:
            # Winners of two cells, of two variants.
            assert 2 * WINNERS <= counts[workload] <= 4 * WINNERS
            assert reasons[workload.digest] == {"baseline", "crossover", "finalist"}


def test_without_being_asked_nothing_is_measured_between(database: Database) -> None:
    one = runner()
    run_campaign(declared(more=""), one, database)
    assert {request.workload.tokens for request in one.requests} == set(TOKENS)


def test_running_it_again_measures_nothing_and_asking_later_adds_what_is_missing(database: Database) -> None:
    first = runner()
    run_campaign(declared(more=""), first, database)
    second = runner()
    summary = run_campaign(declared(), second, database)
    assert summary.measured > 0
    assert all(request.workload.tokens not in TOKENS for request in second.requests)
    third = runner()
    again = run_campaign(declared(), third, database)
    assert (again.measured, again.finals, again.state) == (0, 0, CampaignState.FINISHED)


def test_every_shape_has_its_own(database: Database) -> None:
    sizes = (640, 3200, 64000)
    one = runner(needs_artifacts=True)
    asked = declared(shapes=[(n, SHAPE[1]) for n in sizes])
    run_campaign(asked, one, database, builder=ToyBuilder())
    measured = {request.workload for request in one.requests}
    told = {crossover.shape["n"]: crossover for crossover in found(database, asked, measured)}
    # The last one's is beyond the listed tokens.
    assert set(told) == {640, 3200}
    for n, crossover in told.items():
        at = crossing(cell(1, n))
        assert crossover.low < at < crossover.high
        assert abs(crossover.tokens - at) <= max(1, 0.05 * at)
    assert {workload.tokens for workload in measured if workload["n"] == 64000} == set(TOKENS)
    assert asked_once(one)


class Killed(BaseException):
    """What nothing catches."""


class KilledRunner(ToyRunner):
    """Answers so many times, and is killed when it is asked once more."""

    left = 0

    def measure(self, request: Request) -> Measurement:
        self._live()
        return super().measure(request)

    def finalists(self, requests: Sequence[Request]) -> list[Measurement]:
        self._live()
        return super().finalists(requests)

    def _live(self) -> None:
        if not self.left:
            raise Killed
        self.left -= 1


@pytest.mark.parametrize(("answers", "needs_artifacts"), [(3, True), (9, False)])
def test_killed_anywhere_it_goes_on_and_repeats_nothing(
    database: Database, tmp_path: Path, answers: int, needs_artifacts: bool
) -> None:
    builder = ToyBuilder() if needs_artifacts else None
    asked = declared(tokens=(64, 128))
    whole = runner(needs_artifacts=needs_artifacts)
    with open_database(tmp_path / "whole.db") as other:
        run_campaign(asked, whole, other, builder=builder)
    often = KilledRunner(samples=crossing_toy.samples_us, needs_artifacts=needs_artifacts)
    kills = 0
    while True:
        often.left = answers
        try:
            summary = run_campaign(asked, often, database, builder=builder)
        except Killed:
            kills += 1
        else:
            break
    assert kills >= len(whole.requests) // answers
    assert summary.state is CampaignState.FINISHED
    assert asked_once(often)
    for one, other_one in ((often.requests, whole.requests), *zip(often.finals, whole.finals, strict=True)):
        assert {(each.workload, each.config) for each in one} == {(each.workload, each.config) for each in other_one}
    done = [row for row in trials(database) if row.state is TrialState.DONE]
    kept = Counter((row.workload, row.config, row.stage) for row in done)
    assert set(kept.values()) == {1}


def test_ctrl_c_stops_it_between_two_measurements(database: Database) -> None:
    stop = Stop()
    one = runner()

    class StopsBetween(Progress):
        def measured(self, workload: Workload, status: Status, best_us: float | None) -> None:
            if workload.tokens not in TOKENS:
                stop.request()

    summary = run_campaign(declared(), one, database, progress=StopsBetween(), stop=stop)
    assert (summary.interrupted, summary.state) == (True, CampaignState.STOPPED)
    # What one cell asks for between two looks is measured meanwhile.
    assert len({request.workload for request in one.requests if request.workload.tokens not in TOKENS}) == 1
    assert all(finals[0].workload.tokens in TOKENS for finals in one.finals)
    assert run_campaign(declared(), one, database).state is CampaignState.FINISHED
    assert asked_once(one)


def test_time_ends_it_and_more_time_goes_on(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("megatune_tuner.coordinator.time", SimpleNamespace(monotonic=lambda: now[0]))

    def outcome(request: Request) -> Status:
        now[0] += 0.01
        # The coordinator looks meanwhile.
        sleep(0.003)
        return Status.OK

    one = runner(outcome=outcome)
    # The listed cells take 5 x (25 + 5) x 0.01 s; a cell between them some 0.2 s.
    stopped = run_campaign(declared(budget=f"{WHOLE}\nseconds = 2.3"), one, database)
    assert stopped.state is CampaignState.STOPPED
    assert stopped.wall_s <= 2.3 + 0.1
    told = len(one.finals) - len(TOKENS)
    assert told >= 1
    goes_on = run_campaign(declared(budget=f"{WHOLE}\nseconds = 100"), one, database)
    assert goes_on.state is CampaignState.FINISHED
    assert len(one.finals) - len(TOKENS) > told
    # The finalists of the cell in which time ended are measured once more with those that came later.
    requests = [(request.workload, request.config) for request in one.requests]
    assert len(set(requests)) == len(requests)
    assert max(Counter(finals[0].workload for finals in one.finals).values()) <= 2


def test_with_little_time_the_largest_tokens_of_each_shape_come_first(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("megatune_tuner.coordinator.time", SimpleNamespace(monotonic=lambda: now[0]))

    def outcome(request: Request) -> Status:
        now[0] += 0.01
        # The coordinator looks meanwhile.
        sleep(0.003)
        return Status.OK

    one = runner(outcome=outcome)
    run_campaign(declared(shapes=[SHAPE, (768, 7168)], budget="seconds = 0.9"), one, database)
    order = list(dict.fromkeys(request.workload for request in one.requests))
    assert order[:2] == [cell(256), cell(256, 768)]
    assert len(order) < 2 * len(TOKENS)
    without = runner()
    run_campaign(declared(name="without", shapes=[SHAPE, (3200, 7168)], more=""), without, database)
    assert next(iter(without.requests)).workload == cell(16)


def test_a_replay_measures_what_is_recorded_between(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "recorded.parquet"
    with open_database(tmp_path / "recorded.db") as other:
        record(declared(tokens=(*TOKENS, 70, 75, 81, 90, 120), more=""), runner(), other, path)
    summary = replay(declared(), database, path)
    tokens = {row.tokens for row in summary.outcomes}
    assert tokens - set(TOKENS) <= {70, 75, 81, 90, 120}
    assert 90 in tokens
    assert summary.state is CampaignState.FINISHED
    assert Status.INFEASIBLE not in summary.statuses
    with database.session() as session:
        (target,) = queries.targets(session)
    assert target.measurements.keys() == {Provenance.REPLAYED}


def test_a_variant_that_fails_between_ends_it_there(database: Database) -> None:
    def outcome(request: Request) -> Status:
        fails = request.workload.tokens == 96 and request.config.variant == "mma"
        return Status.HANG if fails else Status.OK

    one = runner(outcome=outcome)
    summary = run_campaign(declared(tokens=(64, 128)), one, database)
    assert summary.state is CampaignState.FINISHED
    assert {request.workload.tokens for request in one.requests} == {64, 96, 128}


def test_the_campaigns_space_holds_between_too(database: Database) -> None:
    one = runner()
    run_campaign(declared(more=f"{REFINE}[space.simt]\nrows = [5, 6, 7]\n"), one, database)
    assert any(request.workload.tokens not in TOKENS for request in one.requests)
    assert {request.config.params.get("rows") for request in one.requests} <= {None, 5, 6, 7}


def test_another_campaign_of_one_variant_hides_no_finalists(database: Database) -> None:
    run_campaign(declared(more=""), runner(), database)
    run_campaign(declared(name="narrow", more="variants = ['simt']\n"), runner(), database)
    one = runner()
    run_campaign(declared(), one, database)
    assert any(request.workload.tokens not in TOKENS for request in one.requests)


AROUND = "[record]\naround_crossovers = 0.25\n"


def test_every_integer_around_a_crossover_is_recorded(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "toy.parquet"
    sizes = (640, 1536, 64000)
    asked = declared(shapes=[(n, SHAPE[1]) for n in sizes], more=AROUND)
    one = runner()
    summary = record(asked, one, database, path)
    recording = read_recording(path)
    recorded = {n: {found.tokens for found in recording.workloads if found["n"] == n} for n in sizes}
    assert recorded[64000] == set(TOKENS)
    for n in (640, 1536):
        at = crossing(cell(1, n))
        between = recorded[n] - set(TOKENS)
        assert between >= {tokens for tokens in range(round(0.8 * at), round(1.2 * at) + 1) if tokens not in TOKENS}
        # The first estimates are from few tokens, and no round takes back what one before it has recorded.
        assert min(between) > 0.6 * at
        assert max(between) < 1.5 * at
        for tokens in between:
            assert {each.variant for finals in recording.finals(cell(tokens, n)) for each in finals} == {
                "simt",
                "mma",
                "stock",
            }
            assert 2 * WINNERS <= len(recording.configs(cell(tokens, n))) - 1 <= 4 * WINNERS
    assert (summary.cells, summary.complete) == (len(recording.workloads), len(recording.workloads))
    assert summary.measured == len(one.requests)
    assert "within 25% of each crossover every whole number of tokens" in recording.about.sampling
    again = runner()
    assert record(asked, again, database, path).measured == 0
    assert not again.finals
    assert read_recording(path).table() == recording.table()


def test_recording_around_a_crossover_goes_on_where_it_stopped(database: Database, tmp_path: Path) -> None:
    asked = declared(more=AROUND)
    whole = runner()
    with open_database(tmp_path / "whole.db") as other:
        record(asked, whole, other, tmp_path / "whole.parquet")
    often = KilledRunner(samples=crossing_toy.samples_us)
    kills = 0
    while True:
        often.left = 40
        try:
            summary = record(asked, often, database, tmp_path / "often.parquet")
        except Killed:
            kills += 1
        else:
            break
    assert kills >= 5
    assert summary.path is not None
    assert asked_once(often)
    assert {(each.workload, each.config) for each in often.requests} == {
        (each.workload, each.config) for each in whole.requests
    }


def test_a_recording_of_a_recording_has_what_that_has(database: Database, tmp_path: Path) -> None:
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    with open_database(tmp_path / "first.db") as other:
        record(declared(tokens=(*TOKENS, 70, 75, 81, 90, 120), more=""), runner(), other, first)
    found = read_recording(first)
    record(declared(more=AROUND), ReplayRunner(found), database, second, configs=found.configs)
    assert {workload.tokens for workload in read_recording(second).workloads} == {*TOKENS, 70, 75, 81, 90}
