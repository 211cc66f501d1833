"""Runner ``replay`` over a small recording."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from megatune_db.queries import ExportRow
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain
from megatune_kernels.target import architecture
from megatune_tuner.recording_file import About
from megatune_tuner.recording_file import write_recording
from megatune_tuner.recordings import read_recording
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.runners.replay import ReplayRunner
from megatune_tuner.statistics import summarize
from tests.contract.runner_contract import BASELINE
from tests.contract.runner_contract import COLD_GRAPH
from tests.contract.runner_contract import WORKLOAD
from tests.contract.runner_contract import RunnerContract

TARGET = Target(
    Hardware("Some GPU", "sm_90a", "2335", 132, 50 * 2**20, 80 * 2**30, "none"),
    Toolchain("580", "13.0", "4.8.1", "2.11"),
)
CONFIGS = operator("projection").space(WORKLOAD, architecture("sm_90a")).configs[:12]
FAILURES = tuple(status for status in Status if status is not Status.OK)


def row(
    config: Config, status: Status = Status.OK, *, samples: int = 9, stage: Stage = Stage.SEARCH, day: int = 1
) -> ExportRow:
    times = tuple(5.0 + 0.01 * i + day for i in range(samples)) if status is Status.OK else ()
    figures = summarize(times) if times else (None, None, None)
    found = Measurement(
        workload=WORKLOAD.digest,
        config=config.digest,
        target=TARGET.digest,
        regime=COLD_GRAPH,
        stage=stage,
        status=status,
        provenance=Provenance.MEASURED,
        session=f"day {day}",
        measured_at=datetime(2026, 12, day),
        samples_us=times,
        throttled=(False, True) * (len(times) // 2) + (False,) * (len(times) % 2),
        median_us=figures[0],
        low_us=figures[1],
        high_us=figures[2],
        launches_a_sample=40,
        sm_clock_mhz=1980,
        flush_bytes=2**28,
        reason="" if times else f"it ended {status}",
    )
    shape, dims = WORKLOAD.shape, dict(WORKLOAD.dims)
    return ExportRow(
        found, "projection", shape, dims, WORKLOAD.tokens, "bf16", 1, "none", config.variant, config.params
    )


def runner_of(folder: Path, rows: list[ExportRow]) -> ReplayRunner:
    path = folder / "some.parquet"
    write_recording(path, rows, About(TARGET, COLD_GRAPH, "0.1.0", "", "a few"))
    return ReplayRunner(read_recording(path))


def request(config: Config, regime: Regime = COLD_GRAPH) -> Request:
    return Request(WORKLOAD, config, regime)


class TestReplayRunner(RunnerContract):
    provenance = Provenance.REPLAYED
    failures = FAILURES

    @pytest.fixture
    def runner(self, tmp_path: Path) -> Iterator[Runner]:
        failed = [row(config, status) for config, status in zip(CONFIGS[2:], FAILURES, strict=False)]
        with runner_of(tmp_path, [row(CONFIGS[0]), row(CONFIGS[1]), row(BASELINE), *failed]) as opened:
            yield opened

    def good(self, runner: Runner) -> list[Request]:
        return [request(CONFIGS[0]), request(CONFIGS[1]), request(BASELINE)]

    def failing(self, runner: Runner, status: Status) -> Request:
        return request(CONFIGS[2 + FAILURES.index(status)])


def test_it_answers_what_was_recorded(tmp_path: Path) -> None:
    recorded = row(CONFIGS[0]).measurement
    found = runner_of(tmp_path, [row(CONFIGS[0])]).measure(request(CONFIGS[0]))
    assert found.samples_us == pytest.approx(recorded.samples_us)
    assert found.throttled == recorded.throttled
    assert (found.measured_at, found.sm_clock_mhz) == (recorded.measured_at, recorded.sm_clock_mhz)
    assert (found.launches_a_sample, found.flush_bytes) == (recorded.launches_a_sample, recorded.flush_bytes)
    assert found.measure_s == 0


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(CONFIGS[1]), f"not recorded: some has not {CONFIGS[1]} of {WORKLOAD}"),
        (Request(WORKLOAD.at(5), CONFIGS[0], COLD_GRAPH), f"not recorded: some has no {WORKLOAD.at(5)}"),
        (
            request(CONFIGS[0], Regime("warm", "graph")),
            "not recorded: some holds the regime cold-graph, not warm-graph",
        ),
    ],
)
def test_what_is_not_recorded_is_infeasible(tmp_path: Path, asked: Request, reason: str) -> None:
    runner = runner_of(tmp_path, [row(CONFIGS[0])])
    for found in (runner.measure(asked), *runner.finalists([asked])):
        assert (found.status, found.reason) == (Status.INFEASIBLE, reason)


def test_finalists_come_from_one_recorded_session(tmp_path: Path) -> None:
    finals = [
        row(config, stage=Stage.FINAL, day=day, samples=5)
        for day, configs in ((3, CONFIGS[:3]), (2, CONFIGS[:2]), (5, CONFIGS[1:4]))
        for config in configs
    ]
    runner = runner_of(tmp_path, [*(row(config) for config in CONFIGS[:4]), *finals])
    found = runner.finalists([request(CONFIGS[1]), request(CONFIGS[0])])
    # The latest session that has both is that of the third; the one of the fifth lacks the first config.
    assert [one.measured_at.day for one in found] == [3, 3]
    assert {one.stage for one in found} == {Stage.FINAL}


def test_finalists_that_were_never_measured_together_get_equally_many_samples(tmp_path: Path) -> None:
    rows = [row(CONFIGS[0], samples=9), row(CONFIGS[1], samples=7), row(CONFIGS[2], Status.CRASH)]
    found = runner_of(tmp_path, rows).finalists([request(config) for config in CONFIGS[:3]])
    assert [len(one.samples_us) for one in found] == [7, 7, 0]
    assert [len(one.throttled) for one in found] == [7, 7, 0]
    assert found[0].median_us == pytest.approx(summarize(found[0].samples_us).median)
    assert found[2].status is Status.CRASH


def test_no_finalists(tmp_path: Path) -> None:
    assert runner_of(tmp_path, [row(CONFIGS[0])]).finalists([]) == []
