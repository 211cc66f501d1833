"""What ``megatune bench router`` makes of recordings: of the shipped one, of none, and of made-up ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_recording import recorded
from plan_examples import Case
from typer.testing import CliRunner

from megatune_dashboard import bests
from megatune_dashboard.command import app
from megatune_dashboard.router_benchmark import CROSSOVER
from megatune_dashboard.router_benchmark import LEAST
from megatune_dashboard.router_benchmark import MEAN
from megatune_dashboard.router_benchmark import ROUTER
from megatune_dashboard.router_benchmark import SPLIT
from megatune_dashboard.router_benchmark import figures
from megatune_db.records import Stage
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.recordings import read_recording
from megatune_tuner.recordings import shipped_recordings

DIMS = {"experts": 896, "k": 7168, "latent": 448, "top": 16}


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """What is shipped, to fill."""
    found: dict[str, Path] = {}
    monkeypatch.setattr(bests, "shipped_recordings", lambda: found)
    return found


def cell(tokens: int, world: int = 1, **times: float) -> list[Case]:
    """Finalists of a cell, by variant."""
    tuned = operator("router_front")
    workload = tuned.workload(DIMS, tokens, world=world)
    configs = {config.variant: config for config in tuned.space(workload, architecture("sm_90a")).defaults()}
    configs["torch"] = Config.of("torch", {})
    return [
        Case(workload, configs[variant], us, Stage.FINAL, f"final {tokens} {world}") for variant, us in times.items()
    ]


def test_the_shipped_recording_is_of_all_cells_and_its_figures_are_printed_as_json() -> None:
    recording = read_recording(shipped_recordings()["kimi-k3-router-h200"])
    campaign = parse_campaign(recording.about.campaign)
    assert set(recording.workloads) == set(campaign.spaces(architecture("sm_90a")))
    report = json.loads(CliRunner().invoke(app, ["bench", "router", "--json"]).stdout)
    found = {figure["figure"]: figure for figure in report["figures"]}
    assert found[LEAST]["value"] == pytest.approx(4.630, abs=0.001)
    assert (found[LEAST]["met"], found[LEAST]["provenance"]) == (True, "replayed")
    assert "latent=224,top=16 tokens=8: 7.56 us against 35.01" in found[LEAST]["how"]
    assert found[MEAN]["value"] == pytest.approx(4.231, abs=0.001)
    assert "24 cells, 1 to 64 tokens" in found[MEAN]["how"]
    assert found[SPLIT]["value"] is None


def test_without_a_recording_every_figure_says_so(shipped: dict[str, Path]) -> None:
    assert [(each.figure, each.value, each.met) for each in figures()] == [
        (LEAST, None, None),
        (MEAN, None, None),
        (SPLIT, None, None),
    ]
    assert {each.how for each in figures()} == {
        "no recording of router_front on one GPU is shipped with this installation",
        "no recording of router_front of a group is shipped with this installation",
    }
    assert len(ROUTER.report()["figures"]) == 3


def test_the_goal_is_about_the_slowest_cell_of_few_tokens(shipped: dict[str, Path], tmp_path: Path) -> None:
    shipped["made-up"] = recorded(
        tmp_path,
        [
            *cell(1, redundant=5.0, torch=20.0),
            *cell(8, redundant=6.0, torch=19.2),
            *cell(64, redundant=9.0, torch=18.0),
        ],
    )
    least, mean, split = figures()
    assert (least.figure, least.met) == (LEAST, True)
    assert least.value == pytest.approx(3.2)
    assert "2 cells, 1 to 8 tokens" in least.how
    assert "tokens=8" in least.how
    assert mean.figure == MEAN
    assert mean.value == pytest.approx((4.0 * 3.2 * 2.0) ** (1 / 3))
    assert (split.figure, split.value) == (SPLIT, None)


def test_a_goal_that_is_missed_is_missed(shipped: dict[str, Path], tmp_path: Path) -> None:
    shipped["made-up"] = recorded(tmp_path, cell(2, redundant=6.0, torch=17.4))
    assert figures()[0].met is False


def test_what_sharing_the_rows_saves_is_a_matter_of_groups(shipped: dict[str, Path], tmp_path: Path) -> None:
    shipped["made-up"] = recorded(
        tmp_path,
        [
            *cell(1, 8, redundant=6.0, split=5.0, torch=7.0),
            *cell(4, 8, redundant=6.6, split=6.0),
            *cell(16, 8, redundant=7.0, split=8.0),
            *cell(64, 8, redundant=9.0),
        ],
    )
    *gains, crossover, least, mean = figures()
    assert [each.figure for each in gains] == [f"{SPLIT} at {tokens} tokens, world 8" for tokens in (1, 4, 16)]
    assert [each.value for each in gains] == pytest.approx([1.2, 1.1, 0.875])
    assert (crossover.figure, crossover.value, crossover.unit) == (f"{CROSSOVER}, world 8", 16.0, "tokens")
    assert "split up to 4 tokens, redundant from there on" in crossover.how
    # The goal is of one GPU alone.
    assert (least.value, least.met, mean.value) == (None, None, None)


def test_where_one_variant_is_always_faster_there_is_no_crossover(shipped: dict[str, Path], tmp_path: Path) -> None:
    shipped["made-up"] = recorded(
        tmp_path, [case for tokens in (1, 8) for case in cell(tokens, 2, redundant=6.0, split=7.0)]
    )
    crossover = figures()[2]
    assert (crossover.figure, crossover.value) == (f"{CROSSOVER}, world 2", None)
    assert crossover.how.startswith("none: redundant is faster at each of 1, 8 tokens")
