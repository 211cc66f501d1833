"""Recording: which configs are measured, that it goes on where it was, and what the file holds."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from campaigns import ToyBuilder
from campaigns import ToyRunner
from campaigns import campaign
from campaigns import replay
from toy import TARGET
from toy import Toy
from toy_recordings import BASELINE
from toy_recordings import workloads

from megatune_db.queries import campaign as campaign_row
from megatune_db.records import CampaignState
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import Workload
from megatune_kernels.space import Space
from megatune_kernels.target import architecture
from megatune_tuner import recording_run
from megatune_tuner.candidates import Catalogue
from megatune_tuner.progress import Progress
from megatune_tuner.recording_file import METADATA
from megatune_tuner.recording_run import record
from megatune_tuner.recording_run import sampled
from megatune_tuner.recordings import read_recording
from megatune_tuner.runners.base import Request
from megatune_tuner.stopping import Stop

CELLS = workloads(shapes=[(1536, 7168)], tokens=(1, 4, 32))
SM90 = architecture("sm_90a")
SAMPLE = "[record]\nsample = 20\nseed = 3\n"


def catalogue(workload: Workload) -> Catalogue:
    return Catalogue(Toy().space(workload, SM90))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "toy.db") as opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "toy.parquet"


def test_a_sample_is_shared_by_cells_and_holds_the_defaults() -> None:
    one, four, many = (set(sampled(catalogue(cell), 20, 3)) for cell in CELLS)
    assert one == four
    assert len(one) in (20, 21, 22)
    assert {config for config in one if config.variant == "mma"} <= many
    assert set(Toy().space(CELLS[0], SM90).defaults()) <= one
    assert one != set(sampled(catalogue(CELLS[0]), 20, 4))
    assert set(sampled(catalogue(CELLS[0]), None, 0)) == set(catalogue(CELLS[0]).configs)
    assert set(sampled(catalogue(CELLS[0]), 10_000, 0)) == set(catalogue(CELLS[0]).configs)


def test_around_the_defaults_every_value_is_sampled_as_near_as_it_is_legal() -> None:
    for cell in CELLS:
        space, plain = Toy().space(cell, SM90), sampled(catalogue(cell), 5, 3)
        found = sampled(catalogue(cell), 5, 3, around_defaults=True)
        assert set(plain) <= set(found)
        assert len(found) == len(set(found))
        defaults = {config.variant: config for config in space.defaults()}
        for variant in space.variants:
            mine = [config for config in found if config.variant == variant.variant]
            legal = [config for config in space.configs if config.variant == variant.variant]
            for parameter in variant.parameters:
                for value in parameter.values:
                    having = [config for config in legal if config.params[parameter.name] == value]
                    if having:
                        nearest = space.nearest(defaults[variant.variant], having)
                        assert nearest in mine


@pytest.mark.parametrize("needs_artifacts", [False, True])
def test_the_sample_and_the_baselines_are_measured_and_written(
    database: Database, path: Path, needs_artifacts: bool
) -> None:
    runner = ToyRunner(needs_artifacts=needs_artifacts)
    builder = ToyBuilder(together=30) if needs_artifacts else None
    summary = record(campaign(more=SAMPLE), runner, database, path, builder=builder, facts={"copy_bytes_a_us": 4e6})
    found = read_recording(path)
    assert found.workloads == CELLS
    finals = 0
    for cell in CELLS:
        assert set(found.configs(cell)) == {*sampled(catalogue(cell), 20, 3), BASELINE}
        (final,) = found.finals(cell)
        times = found.times_us(cell)
        tuned = sorted((config for config in times if config != BASELINE), key=lambda config: times[config])
        firsts = [next(config for config in tuned if config.variant == name) for name in {c.variant for c in tuned}]
        assert set(final) == {*tuned[:4], *firsts, BASELINE}
        finals += len(final)
    # In one cell the four fastest are all of one of two variants, and the other's best is beside them.
    assert summary.finals == finals == 5 + 5 + 6
    assert summary.path == path
    assert (summary.cells, summary.complete) == (3, 3)
    assert summary.measured == sum(len(found.configs(cell)) for cell in CELLS)
    assert summary.rows == len(found) == summary.measured + finals
    assert found.about.target == TARGET
    assert found.about.campaign == campaign(more=SAMPLE).text
    assert "20 first configs in the order of a hash with seed 3" in found.about.sampling
    assert found.about.facts == {"copy_bytes_a_us": 4e6, "measuring_share": pytest.approx(1.0, abs=1.0)}
    with database.session() as session:
        row = campaign_row(session, "toy")
    assert row is not None
    assert row.state is CampaignState.FINISHED
    assert row.measuring_s == pytest.approx(summary.measuring_s)


def test_the_whole_space_is_the_default(database: Database, path: Path) -> None:
    record(campaign(tokens=[32], more="[space.mma]\ntile = [64]\n"), ToyRunner(), database, path)
    found = read_recording(path)
    space = campaign(tokens=[32], more="[space.mma]\ntile = [64]\n").spaces(SM90)[CELLS[2]]
    assert set(found.configs(CELLS[2])) == {*space.configs, BASELINE}
    assert found.about.sampling == "the whole space of each cell, and its baselines"


class StopAfter(Progress):
    def __init__(self, stop: Stop, count: int) -> None:
        super().__init__()
        self._stop = stop
        self._left = count

    def measured(self, workload: Workload, status: Status, best_us: float | None) -> None:
        super().measured(workload, status, best_us)
        self._left -= 1
        if not self._left:
            self._stop.request()


def test_it_goes_on_where_it_stopped(database: Database, path: Path) -> None:
    stop = Stop()
    runner = ToyRunner()
    stopped = record(campaign(more=SAMPLE), runner, database, path, progress=StopAfter(stop, 30), stop=stop)
    assert stopped.interrupted
    # The runner had the next one in hand, and what it has measured is kept.
    assert (stopped.measured, stopped.complete, stopped.path) == (31, 1, None)
    assert not path.exists()
    finished = record(campaign(more=SAMPLE), runner, database, path)
    assert finished.complete == 3
    asked = [(request.workload, request.config) for request in runner.requests]
    assert len(asked) == len(set(asked)) == stopped.measured + finished.measured
    assert [finals[0].workload for finals in runner.finals] == CELLS
    again = record(campaign(more=SAMPLE), runner, database, path)
    assert (again.measured, again.rows) == (0, finished.rows)
    assert len(runner.finals) == 3


def test_time_ends_it_and_whole_cells_are_written(database: Database, path: Path) -> None:
    runner = ToyRunner()
    stop_at = {"seconds": 1000.0}

    def outcome(request: Request) -> Status:
        if request.workload == CELLS[0]:
            stop_at["seconds"] = 0.0
        return Status.OK

    runner.outcome = outcome
    declared = campaign(more=SAMPLE, budget="seconds = 1000")
    clock = pytest.MonkeyPatch()
    with clock.context() as patch:
        patch.setattr(type(declared.budget), "total_seconds", property(lambda _: stop_at["seconds"]))
        summary = record(declared, runner, database, path)
    assert not summary.interrupted
    # Where time is short the largest tokens come first.
    assert (summary.complete, summary.cells) == (1, 3)
    assert read_recording(path).workloads == CELLS[2:]


def test_the_first_cell_is_measured_while_the_next_ones_are_listed(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, in_time = threading.Event(), []

    def outcome(request: Request) -> Status:
        measured.set()
        return Status.OK

    def listed(space: Space, configs: object) -> Catalogue:
        # Nothing is measured before the first cell is listed.
        if listed_before:
            in_time.append(measured.wait(60))
        listed_before.append(space)
        return Catalogue(space)

    listed_before: list[Space] = []
    monkeypatch.setattr(recording_run, "Catalogue", listed)
    runner = ToyRunner(outcome, needs_artifacts=True)
    summary = record(campaign(more=SAMPLE), runner, database, path, builder=ToyBuilder(together=1))
    assert summary.complete == 3
    assert in_time == [True, True]


def test_failures_are_recorded_and_replayed(database: Database, path: Path, tmp_path: Path) -> None:
    def outcome(request: Request) -> Status:
        return Status.CRASH if request.config.params.get("tile") == 64 else Status.OK

    record(campaign(more=SAMPLE), ToyRunner(outcome), database, path)
    with open_database(tmp_path / "replay.db") as other:
        summary = replay(campaign(budget="trials = 1000"), other, path)
    found = read_recording(path)
    assert summary.measured == sum(len(found.configs(cell)) for cell in CELLS)
    assert summary.statuses[Status.CRASH] == sum(
        1 for cell in CELLS for config in found.configs(cell) if config.params.get("tile") == 64
    )
    assert Status.INFEASIBLE not in summary.statuses


def test_nothing_that_works_is_an_error(database: Database, path: Path) -> None:
    with pytest.raises(NothingMeasured, match=r"toy.toml: no config works: .* hang"):
        record(campaign(tokens=[32], more=SAMPLE), ToyRunner(lambda _: Status.HANG), database, path)
    assert not path.exists()


def test_what_other_campaigns_measured_of_other_shapes_stays_out(database: Database, path: Path) -> None:
    record(campaign(name="other", shapes=[(3072, 7168)], tokens=[4], more=SAMPLE), ToyRunner(), database, path)
    record(campaign(tokens=[4], more=SAMPLE), ToyRunner(), database, path)
    assert read_recording(path).workloads == [CELLS[1]]
    assert json.loads(pq.read_schema(path).metadata[METADATA])["schema"] == 1
