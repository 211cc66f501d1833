from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from megatune_db.session import open_database
from megatune_kernels.figures import Figure
from megatune_planner import benchmark as planner_benchmark


@pytest.fixture(scope="module")
def figures() -> list[Figure]:
    """The benchmark over a database small enough for a test."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(planner_benchmark, "MILLION", 5000)
        patched.setattr(planner_benchmark, "ROUNDS", 2)
        return planner_benchmark.PLANNER.run()


def test_every_figure_has_a_goal_and_says_how_it_was_made(figures: list[Figure]) -> None:
    assert [figure.unit for figure in figures] == ["ns", "s", "MB"]
    for figure in figures:
        assert figure.value is not None
        assert figure.value > 0
        assert figure.goal
        assert figure.how
        assert figure.provenance == "measured"


def test_the_benchmark_is_registered() -> None:
    (point,) = entry_points(group="megatune.benchmarks", name="planner")
    assert point.load() is planner_benchmark.PLANNER


def test_it_fills_as_many_rows_as_it_says(tmp_path: Path) -> None:
    with open_database(tmp_path / "filled.db") as database:
        assert 5000 <= planner_benchmark.fill(database, 5000) <= 5200
