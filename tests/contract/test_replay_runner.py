"""Runner ``replay`` keeps the contract of runners, whatever status a recording holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from megatune_db import queries
from megatune_db.queries import ExportRow
from megatune_db.records import APART
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import open_database
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.statistics import median_interval
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain
from megatune_kernels.target import architecture
from megatune_tuner.recording_file import About
from megatune_tuner.recording_file import write_recording
from megatune_tuner.recording_import import import_recording
from megatune_tuner.recordings import read_recording
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.runners.replay import ReplayRunner
from tests.contract.runner_contract import BASELINE
from tests.contract.runner_contract import COLD_GRAPH
from tests.contract.runner_contract import WORKLOAD
from tests.contract.runner_contract import RunnerContract

TARGET = Target(
    Hardware("NVIDIA H200", "sm_90a", "2335", 132, 60 << 20, 140 << 30, "none"),
    Toolchain("580.159.04", "13.0", "4.8.1", "2.11.0"),
)
SAMPLES = (5.0, 5.25, 5.5, 5.75, 6.0, 6.25, 6.5)
CONFIGS = operator("projection").space(WORKLOAD, architecture("sm_90a")).configs
GOOD = [*CONFIGS[:2], BASELINE]
FAILED = {status: CONFIGS[2 + place] for place, status in enumerate(s for s in Status if s is not Status.OK)}


def row(config: Config, status: Status, stage: Stage, session: str) -> ExportRow:
    figures = median_interval(SAMPLES) if status is Status.OK else (None, None, None)
    measurement = Measurement(
        workload=WORKLOAD.digest,
        config=config.digest,
        target=TARGET.digest,
        regime=COLD_GRAPH,
        stage=stage,
        status=status,
        provenance=Provenance.MEASURED,
        session=session,
        measured_at=datetime(2026, 1, 2, 3, 4, 5),
        samples_us=SAMPLES if status is Status.OK else (),
        median_us=figures[0],
        low_us=figures[1],
        high_us=figures[2],
        launches_a_sample=16,
        reason="" if status is Status.OK else f"it ended {status}",
    )
    place = WORKLOAD.to_dict()
    return ExportRow(
        measurement=measurement,
        shape=WORKLOAD.shape,
        variant=config.variant,
        params=config.params,
        **place,
    )


class TestReplayRunner(RunnerContract):
    provenance = Provenance.REPLAYED
    failures = tuple(FAILED)

    @pytest.fixture
    def runner(self, tmp_path: Path) -> Iterator[ReplayRunner]:
        path = tmp_path / "every-status.parquet"
        rows = [row(config, Status.OK, Stage.SEARCH, "") for config in GOOD]
        rows += [row(config, status, Stage.SEARCH, "") for status, config in FAILED.items()]
        rows += [row(config, Status.OK, Stage.FINAL, "one") for config in GOOD]
        write_recording(path, rows, About(TARGET, COLD_GRAPH, "1.0", "", "a few", {}))
        with ReplayRunner(read_recording(path)) as made:
            yield made

    def good(self, runner: Runner) -> list[Request]:
        return [Request(WORKLOAD, config, COLD_GRAPH) for config in GOOD]

    def failing(self, runner: Runner, status: Status) -> Request:
        return Request(WORKLOAD, FAILED[status], COLD_GRAPH)

    def test_what_is_not_recorded_is_infeasible_and_says_so(self, runner: ReplayRunner) -> None:
        measurement = runner.measure(Request(WORKLOAD, CONFIGS[-1], COLD_GRAPH))
        assert measurement.status is Status.INFEASIBLE
        assert "not recorded" in measurement.reason

    def test_samples_that_were_not_interleaved_are_told_apart(self, runner: ReplayRunner) -> None:
        requests = self.good(runner)
        assert not runner.finalists(requests)[0].session.startswith(APART)
        other = Request(WORKLOAD, FAILED[Status.CRASH], COLD_GRAPH)
        assert runner.finalists([*requests, other])[0].session.startswith(APART)


def test_what_emulated_ranks_recorded_is_no_replay_of_a_group(tmp_path: Path) -> None:
    emulated = replace(TARGET, hardware=replace(TARGET.hardware, links="emulated", world=2))
    about = About(emulated, COLD_GRAPH, "1.0", "", "one", {})
    write_recording(tmp_path / "emulated.parquet", [row(GOOD[0], Status.OK, Stage.SEARCH, "")], about)
    recording = read_recording(tmp_path / "emulated.parquet")
    measured = ReplayRunner(recording).measure(Request(WORKLOAD, GOOD[0], COLD_GRAPH))
    assert (measured.status, measured.provenance) == (Status.OK, Provenance.EMULATED)
    with open_database(tmp_path / "emulated.db") as database, database.session() as session:
        assert import_recording(session, recording) == 1
        (found,) = queries.export_rows(
            session, target=about.target.digest, regime=COLD_GRAPH, provenance=Provenance.EMULATED
        )
    assert found.measurement.median_us == measured.median_us
