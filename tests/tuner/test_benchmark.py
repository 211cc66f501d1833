"""Benchmark ``search`` over synthetic recordings."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_recordings import record_toy
from toy_recordings import workloads

from megatune_db.records import Status
from megatune_tuner import benchmark as module
from megatune_tuner.benchmark import SEARCH
from megatune_tuner.benchmark import WITHIN
from megatune_tuner.benchmark import WORST
from megatune_tuner.benchmark import regrets
from megatune_tuner.benchmark import search_figures

CELLS = workloads(tokens=(4, 32))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return record_toy(tmp_path / "toy.parquet", CELLS)


def test_every_cell_has_a_regret_and_most_are_small(recorded: Path) -> None:
    found = regrets(recorded, 0)
    assert set(found) == {cell.digest for cell in CELLS}
    assert all(regret >= 0 for regret in found.values())
    # The toy's cells are small: a tenth is 8 to 17 configs.
    assert sorted(found.values())[len(found) // 2] < 0.03
    assert regrets(recorded, 0) == found
    assert regrets(recorded, 1) != found


def test_the_figures_say_how_they_were_made(recorded: Path) -> None:
    worst, within = search_figures([recorded], seeds=3, processes=1)
    assert (worst.figure, within.figure) == (WORST, WITHIN)
    assert worst.value is not None
    assert within.value is not None
    assert worst.goal == "<= 3%"
    assert worst.met == (worst.value <= 3)
    assert (worst.value <= 3) == (within.value == 100)
    assert worst.provenance == "replayed"
    assert "6 cells of toy; median of 3 seeds; 10% of a cell's recorded configs measured" in worst.how


def test_a_cell_where_nothing_works_misses_the_goal(tmp_path: Path) -> None:
    path = record_toy(
        tmp_path / "toy.parquet", CELLS, lambda config: Status.HANG if config.variant == "mma" else Status.OK
    )
    worst, within = search_figures([path], seeds=1, processes=1)
    assert (worst.value, worst.met) == (None, False)
    assert "nothing that works was found" in worst.how
    assert within.value is not None
    assert within.value < 100


def test_without_recordings_the_figures_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "shipped_recordings", dict)
    report = SEARCH.report()
    assert [figure["value"] for figure in report["figures"]] == [None, None]
    assert [figure["met"] for figure in report["figures"]] == [None, None]
    assert "no recording is shipped" in report["figures"][0]["how"]
