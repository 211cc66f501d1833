"""Measuring given configs again, and campaigns with other seeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from campaigns import ToyBuilder
from campaigns import ToyRunner
from campaigns import campaign
from toy import TARGET
from toy_recordings import BASELINE
from toy_recordings import record_toy
from toy_recordings import workloads

from megatune_db import queries
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_tuner import remeasuring
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.equipping import Equipment
from megatune_tuner.progress import Progress
from megatune_tuner.remeasuring import Batch
from megatune_tuner.remeasuring import can_measure
from megatune_tuner.remeasuring import recorded_equipment
from megatune_tuner.remeasuring import remeasure
from megatune_tuner.remeasuring import target_equipment
from megatune_tuner.repeating import run_repeats
from megatune_tuner.repeating import seeds_of
from megatune_tuner.repeating import with_seed
from megatune_tuner.stopping import Stop

REGIME = Regime()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "toy.db") as opened:
        yield opened


def batches(count: int = 3) -> list[Batch]:
    found = []
    for workload in workloads()[:count]:
        configs = operator("toy").space(workload, architecture("sm_90a")).defaults()
        found.append((workload, [BASELINE, *configs]))
    return found


def test_a_batch_is_one_interleaved_session_and_kept_as_a_verification(database: Database) -> None:
    runner = ToyRunner(needs_artifacts=True)
    found = remeasure(batches(), Equipment(runner, ToyBuilder(), None, {}), REGIME, database=database)
    assert [len(requests) for requests in runner.finals] == [3, 3, 3]
    assert runner.requests == []
    with database.session() as session:
        kept = queries.measurements(session, [each.id for each in found if each.id is not None])
        (target,) = queries.targets(session)
    assert len(kept) == 9
    for each in found:
        assert each.id is not None
        row = kept[each.id]
        assert (row.stage, row.workload, row.config) == (Stage.VERIFY, each.workload.digest, each.config.digest)
    sessions = {
        each.workload: {other.measurement.session for other in found if other.workload == each.workload}
        for each in found
    }
    assert all(len(names) == 1 for names in sessions.values())
    assert target.digest == TARGET.digest


def test_what_cannot_be_built_says_so_and_the_rest_is_compared(database: Database) -> None:
    builder = ToyBuilder(lambda config: Status.COMPILE_ERROR if config.variant == "mma" else Status.OK)
    runner = ToyRunner(needs_artifacts=True)
    found = remeasure(batches(1), Equipment(runner, builder, None, {}), REGIME, database=database)
    statuses = {each.config.variant: each.measurement.status for each in found}
    assert statuses == {"stock": Status.OK, "simt": Status.OK, "mma": Status.COMPILE_ERROR}
    assert {each.measurement.stage for each in found} == {Stage.VERIFY}
    assert all(each.id is not None for each in found)


class StopAtOnce(Progress):
    """Asks to stop with the first measurement."""

    def __init__(self, stop: Stop) -> None:
        super().__init__()
        self._stop = stop

    def measured(self, workload: Workload, status: Status, best_us: float | None) -> None:
        self._stop.request()


def test_a_stop_keeps_what_was_measured(database: Database) -> None:
    stop = Stop()
    equipment = Equipment(ToyRunner(), None, None, {})
    found = remeasure(batches(), equipment, REGIME, database=database, stop=stop, progress=StopAtOnce(stop))
    assert len({each.workload for each in found}) == 1
    assert remeasure(batches(1), equipment, REGIME)[0].id is None


def test_a_recording_says_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "toy.parquet"
    record_toy(path, workloads()[:1])
    with recorded_equipment(str(path), REGIME) as found:
        can = can_measure(found)
        workload = workloads()[0]
        assert can(workload, BASELINE)
        assert not can(workload, Config.of("nothing", {}))
        assert not can(workload.at(77), BASELINE)
        assert found.runner.provenance is Provenance.REPLAYED
    with pytest.raises(MegatuneError, match="was recorded cold-graph"), recorded_equipment(str(path), Regime("warm")):
        pass
    assert can_measure(Equipment(ToyRunner(), None, None, {}))(workload, Config.of("nothing", {}))


def test_a_group_that_this_machine_does_not_have_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remeasuring, "visible_gpus", lambda: ["one"])
    group = Workload.of("reduction", {"width": 7168}, 1, world=2)
    with (
        pytest.raises(MegatuneError, match="2 ranks take 2 GPUs from GPU 0 on, this machine shows 1"),
        target_equipment([(group, [])], REGIME, emulated=False),
    ):
        pass


TABLE = """
[[shapes]]
operator = "toy"
n = 1536
k = 7168
"""


@pytest.mark.parametrize(
    ("head", "tail"),
    [
        ("", ""),
        ("", "[sampler]\nseed = 5\nkind = 'tpe'\n[budget]\ntrials = 3\n"),
        ("", "[ sampler ] # which\nkind = 'tpe'\n"),
        ("sampler = {kind = 'tpe', seed = 3}", ""),
        ("sampler.kind = 'tpe'", ""),
    ],
)
def test_another_seed_changes_nothing_else(head: str, tail: str) -> None:
    first = parse_campaign(f'name = "toy"\noperators = ["toy"]\ntokens = [1]\n{head}\n{TABLE}{tail}')
    again = with_seed(first, 77)
    assert again.sampler.seed == 77
    assert again.sampler.kind == first.sampler.kind
    assert again.model_dump(exclude={"sampler"}) == first.model_dump(exclude={"sampler"})
    assert again.workloads() == first.workloads()
    assert again.source == first.source


def test_repeats_have_seeds_and_databases_of_their_own_and_go_on(tmp_path: Path) -> None:
    path = tmp_path / "toy.parquet"
    record_toy(path, workloads()[:1])
    declared: Campaign = campaign(tokens=(1,), recording=path)
    assert seeds_of(declared, 2) == [0, 1, 2]
    found = run_repeats(declared, tmp_path / "repeats", 2)
    assert [each.seed for each in found] == [1, 2]
    measured = []
    for each in found:
        assert each.summary is not None
        assert each.summary.reused == 0
        with open_database(each.database, read_only=True) as database, database.session() as session:
            row = queries.campaign(session, "toy")
            assert row is not None
            assert parse_campaign(row.file_text).sampler.seed == each.seed
            measured.append({row.config for row in queries.trials(session, row.id)})
    assert measured[0] != measured[1]
    again = run_repeats(declared, tmp_path / "repeats", 2)
    assert [each.summary is not None and each.summary.measured for each in again] == [0, 0]
