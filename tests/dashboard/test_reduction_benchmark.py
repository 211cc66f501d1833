"""What ``megatune bench reduction`` makes of recordings: of the one that is shipped, and of emulated ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megatune_dashboard import reduction_benchmark
from megatune_dashboard.reduction_benchmark import figures
from megatune_kernels.operator import operator
from megatune_tuner.bisection_benchmark import Bisected
from megatune_tuner.bisection_benchmark import Place
from megatune_tuner.recording_file import read_table
from megatune_tuner.recording_file import write_table
from megatune_tuner.recordings import shipped_recordings

RECORDING = "reduction-h200x2"
GOALS = 8


def test_the_shipped_recording_meets_its_goals() -> None:
    found = figures()
    goals = [figure for figure in found if figure.goal and not figure.figure.startswith("crossovers")]
    assert len(goals) == GOALS
    for figure in goals:
        assert figure.met, figure
        assert figure.provenance == "replayed"
        assert RECORDING in figure.how
    names = [figure.figure for figure in found]
    assert len(names) == len(set(names))
    # Of each variant at ten numbers of tokens and two widths, some of them with a goal.
    groups = [name for name in names if not name.endswith("emulated")]
    assert sum(name.startswith(("full_fanout", "two_stage")) for name in groups) == 2 * 20
    published = [figure for figure in found if "published" in figure.figure]
    assert published
    for figure in published:
        assert figure.value is not None
        assert figure.value > 1
    for figure in found:
        if figure.figure.startswith("crossovers"):
            assert figure.value is None
            assert figure.how.startswith(f"no variant gives way to another in recording {RECORDING}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The shipped recording as if its ranks had shared a GPU."""
    about, table = read_table(shipped_recordings()[RECORDING])
    hardware = replace(about.target.hardware, links="emulated")
    made = tmp_path / "emulated.parquet"
    write_table(made, table, replace(about, target=replace(about.target, hardware=hardware)))
    return made


def test_figures_of_a_group_stay_beside_those_of_emulated_ranks(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    group = {RECORDING: shipped_recordings()[RECORDING]}
    monkeypatch.setattr(reduction_benchmark, "shipped_recordings", lambda: group)
    alone = figures()
    monkeypatch.setattr(reduction_benchmark, "shipped_recordings", lambda: {"emulated": path, **group})
    found = figures()
    assert found[: len(alone)] == alone
    assert {figure.provenance for figure in found[len(alone) :]} == {"emulated"}
    names = [figure.figure for figure in found]
    assert len(names) == len(set(names)) == len(alone) + 2 * 20


def test_emulated_ranks_meet_no_goal_of_a_group(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(reduction_benchmark, "shipped_recordings", lambda: {"emulated": path})
    found = figures()
    emulated = [figure for figure in found if figure.provenance == "emulated"]
    assert len(emulated) == 2 * 20
    assert all(figure.value is not None and figure.met is None for figure in emulated)
    assert len(found) == GOALS + 2 + len(emulated)
    for figure in found[: GOALS + 2]:
        assert figure.value is None
        assert figure.met is None
        assert "no recording of reductions at world 2 is shipped" in figure.how


def test_a_sweep_of_emulated_ranks_is_compared_with_bisection(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    place = Place("full_fanout", "two_stage", 10, 12, 11.0)
    found = Bisected(operator("reduction").workload({"width": 7168}, 1, world=2), place, place, 7, 64)
    monkeypatch.setattr(reduction_benchmark, "shipped_recordings", lambda: {"emulated": path})
    monkeypatch.setattr(reduction_benchmark, "bisected", lambda _: [found])
    figures_of = {figure.figure: figure for figure in figures()}
    off = figures_of["crossovers: bisection off the sweep, world 2, emulated"]
    share = figures_of["crossovers: share of the sweep's measurements, world 2, emulated"]
    assert (off.value, off.met, off.provenance) == (0, True, "emulated")
    assert (share.value, share.met, share.provenance) == (pytest.approx(100 * 7 / 64), True, "emulated")
