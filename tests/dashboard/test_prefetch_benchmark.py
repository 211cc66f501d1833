"""What ``megatune bench prefetch`` makes of recordings: of the shipped one, of none and of made-up ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from made_up_recording import recorded
from prefetch_examples import NONE
from prefetch_examples import cell
from prefetch_examples import chain
from prefetch_examples import plain
from prefetch_examples import prefetch
from prefetch_examples import valley

from megatune_dashboard import bests
from megatune_dashboard.plans import depth_curves_of
from megatune_dashboard.prefetch_benchmark import GAINS
from megatune_dashboard.prefetch_benchmark import PREFETCH
from megatune_dashboard.prefetch_benchmark import SLOWEST
from megatune_dashboard.prefetch_benchmark import SPEEDUP
from megatune_dashboard.prefetch_benchmark import cells
from megatune_dashboard.prefetch_benchmark import figures
from megatune_kernels.figures import Figure
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_tuner.recordings import read_recording
from megatune_tuner.recordings import shipped_recordings

TIMES = {
    NONE: 30.0,
    plain(pdl=False): 30.0,
    plain(): 27.0,
    prefetch(8, pdl=False): 26.0,
    prefetch(8): 24.0,
    prefetch(16): 28.0,
}


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """What is shipped, to fill."""
    found: dict[str, Path] = {}
    monkeypatch.setattr(bests, "shipped_recordings", lambda: found)
    return found


def named() -> Mapping[str, Figure]:
    found = {figure.figure: figure for figure in figures()}
    assert list(found) == [SPEEDUP, SLOWEST, *(f"gain of {name}" for name in GAINS)]
    return found


def of_both() -> dict[int, list[Workload]]:
    """Chains by the ranks that have them."""
    by_tensor: dict[int, list[Workload]] = {8: [], 16: []}
    for workload, tensor in cells().items():
        by_tensor[tensor].append(workload)
    return by_tensor


def test_the_goal_is_about_every_chain_of_both() -> None:
    by_tensor = of_both()
    # Three heads of layers, three lengths of the idle phase, eight numbers of tokens.
    assert {tensor: len(found) for tensor, found in by_tensor.items()} == {8: 72, 16: 72}


def test_the_shipped_recording_meets_both_goals() -> None:
    found = {figure.figure: figure for figure in figures()}
    speedup, slowest = found[SPEEDUP], found[SLOWEST]
    assert speedup.value == pytest.approx(1.164, abs=0.001)
    assert "98 of 144 cells, 54 at TP8 and 44 at TP16, tokens 1 to 8" in speedup.how
    assert slowest.value == pytest.approx(1.041, abs=0.001)
    assert speedup.met
    assert slowest.met


def test_without_a_recording_every_figure_says_so(shipped: dict[str, Path]) -> None:
    shipped["others"] = shipped_recordings()["reduction-h200x2"]
    for figure in named().values():
        assert (figure.value, figure.met) == (None, None)
        assert figure.how == "no recording of prefetch is shipped with this installation"
    assert len(PREFETCH.report()["figures"]) == 5


def test_figures_are_means_over_the_chains(shipped: dict[str, Path], tmp_path: Path) -> None:
    by_tensor = of_both()
    chains = [*by_tensor[8][:2], *by_tensor[16][:2], chain(16)]
    # Of the last, which has more tokens than the goal is about, nothing counts.
    faster = {config: us * (0.5 if config.variant != "none" else 1) for config, us in TIMES.items()}
    shipped["made-up"] = recorded(tmp_path, [c for w in chains for c in cell(w, faster if w is chains[-1] else TIMES)])
    found = named()
    assert found[SPEEDUP].value == pytest.approx(30 / 24)
    assert found[SPEEDUP].met
    assert "over 4 of 144 cells, 2 at TP8 and 2 at TP16" in found[SPEEDUP].how
    assert found[SLOWEST].value == pytest.approx(30 / 24)
    assert found[SLOWEST].met
    values = [found[f"gain of {name}"].value for name in GAINS]
    assert values == pytest.approx([30 / 27, 30 / 26, 30 / 24])
    assert all(figure.provenance == "replayed" and "made-up" in figure.how for figure in found.values())


def test_a_goal_that_is_missed_is_missed(shipped: dict[str, Path], tmp_path: Path) -> None:
    by_tensor = of_both()
    times = {**TIMES, prefetch(8): 26.2, prefetch(8, pdl=False): 29.0}
    shipped["made-up"] = recorded(tmp_path, [c for w in (by_tensor[8][0], by_tensor[16][0]) for c in cell(w, times)])
    figure = named()[SPEEDUP]
    assert figure.value == pytest.approx(30 / 26.2)
    assert figure.met is False


def test_chains_of_one_number_of_ranks_meet_no_goal(shipped: dict[str, Path], tmp_path: Path) -> None:
    shipped["made-up"] = recorded(tmp_path, cell(of_both()[8][0], TIMES))
    figure = named()[SPEEDUP]
    assert figure.value == pytest.approx(30 / 24)
    assert figure.met is None
    assert figure.how.startswith("chains of TP8 and TP16 are needed: ")


def test_what_a_search_left_out_gives_no_gain(shipped: dict[str, Path], tmp_path: Path) -> None:
    times: dict[Config, float] = {NONE: 30.0, plain(): 30.1, prefetch(8): 30.2}
    shipped["made-up"] = recorded(tmp_path, cell(of_both()[8][0], times))
    found = named()
    for name in GAINS:
        assert found[f"gain of {name}"].value is None
        assert "no cell was searched with and without both" in found[f"gain of {name}"].how
    assert found[SLOWEST].value is None
    assert found[SLOWEST].how.startswith("no gain worth shipping: ")


def test_times_of_two_sessions_are_not_compared(shipped: dict[str, Path], tmp_path: Path) -> None:
    workload = of_both()[8][0]
    cases = [c for c in cell(workload, TIMES) if c.config.variant == "none" or c.stage == "search"]
    shipped["made-up"] = recorded(tmp_path, cases)
    assert named()[SPEEDUP].value is None


def test_a_recording_gives_its_depth_curves(tmp_path: Path) -> None:
    path = recorded(tmp_path, [c for tokens in (1, 8) for c in cell(chain(tokens), valley(30.0, 12, 6.0))])
    ((shape, curves),) = depth_curves_of(read_recording(path)).items()
    assert shape == chain(1).shape
    assert [(curve.workload.tokens, curve.best_mib, curve.interior) for curve in curves] == [
        (1, 12, True),
        (8, 12, True),
    ]
