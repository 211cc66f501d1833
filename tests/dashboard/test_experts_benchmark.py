"""What ``megatune bench experts`` makes of recordings: of none, and of made-up ones. And what the shipped one lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

import pytest
from made_up_recording import recorded
from plan_examples import Case

from megatune_dashboard import bests
from megatune_dashboard.experts_benchmark import EXPERTS
from megatune_dashboard.experts_benchmark import FEW
from megatune_dashboard.experts_benchmark import FLOOR
from megatune_dashboard.experts_benchmark import MANY
from megatune_dashboard.experts_benchmark import OVER
from megatune_dashboard.experts_benchmark import TIMES
from megatune_dashboard.experts_benchmark import TOKENS
from megatune_dashboard.experts_benchmark import TORCH
from megatune_dashboard.experts_benchmark import figures
from megatune_db.records import Stage
from megatune_kernels.errors import MegatuneError
from megatune_kernels.figures import Figure
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_tuner.campaign_file import load_campaign
from megatune_tuner.equipping import recording_of

PUBLISHED = json.loads(files("megatune_dashboard").joinpath("data", "marlin-kimi-k3-h200.json").read_text("utf-8"))
MARLIN = {
    (row["ranks"], int(tokens), row["routing"]): us for row in PUBLISHED["rows"] for tokens, us in row["us"].items()
}
ROUTINGS = ("power_law_1.01", "power_law_1.2")
COPY = 4000 * 10**3
"""Bytes a µs."""


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """What is shipped, to fill."""
    found: dict[str, Path] = {}
    monkeypatch.setattr(bests, "shipped_recordings", lambda: found)
    return found


def workload_of(tokens: int, tensor: int, routing: str) -> Workload:
    tuned = operator("experts")
    (plain,) = tuned.workloads(model("Kimi-K3"), Parallel(tensor), [tokens])
    return tuned.routed(plain, routing)


def cell(tokens: int, tensor: int = 8, routing: str = "power_law_1.01", **times: float) -> list[Case]:
    """Finalists of a cell of Kimi K3, by variant, whose parameters are no matter."""
    workload = workload_of(tokens, tensor, routing)
    name = f"final {tokens} {tensor} {routing}"
    return [Case(workload, Config.of(variant, {}), us, Stage.FINAL, name) for variant, us in times.items()]


def over_marlin(ratio: float, tokens: Iterable[int] = TOKENS) -> list[Case]:
    """Every cell so many times as fast as published."""
    places = [(count, ranks, routing) for count in tokens for ranks in (8, 16) for routing in ROUTINGS]
    return [case for place in places for case in cell(*place, grouped=MARLIN[place[1], place[0], place[2]] / ratio)]


def by_name() -> dict[str, Figure]:
    return {each.figure: each for each in figures()}


def test_without_a_recording_every_figure_says_so(shipped: dict[str, Path]) -> None:
    assert [(each.value, each.met) for each in figures()] == [(None, None)] * 4
    assert {each.how for each in figures()} == {"no recording of experts is shipped with this installation"}
    assert len(EXPERTS.report()["figures"]) == 4


def test_published_figures_are_of_the_slices_that_the_goals_are_about() -> None:
    assert set(MARLIN) == {
        (ranks, tokens, routing) for ranks in (8, 16) for tokens in (*TOKENS, 48) for routing in ROUTINGS
    }
    for row in PUBLISHED["rows"]:
        assert row["width"] == workload_of(1, row["ranks"], row["routing"])["width"]
    # What the goals were set by.
    quoted = [67.7, 89.8, 116.7, 175.9, 283.0, 375.5, 564.9]
    assert [round(MARLIN[8, tokens, "power_law_1.01"], 1) for tokens in TOKENS] == quoted


def test_goals_are_about_the_slowest_cells_each_at_its_own_routing(shipped: dict[str, Path], tmp_path: Path) -> None:
    cases = [
        *cell(1, grouped=30.0, per_route=20.0, torch=100.0),
        *cell(8, 16, grouped=121.47 / 1.9),
        *cell(16, 8, "power_law_1.2", grouped=259.35 / 1.95),
        *cell(8, routing="balanced", grouped=1000.0, torch=5000.0),
        *cell(64, grouped=300.0, torch=900.0),
    ]
    shipped["made-up"] = recorded(tmp_path, cases)
    found = by_name()
    few, many, torch = found[FEW], found[MANY], found[TORCH]
    assert few.value == pytest.approx(1.9)
    assert few.met is False
    assert "3 cells; this is 16 ranks 8 tokens power_law_1.01; not recorded: " in few.how
    assert "each against what was published at its own routing, power_law_1.01 or power_law_1.2" in few.how
    assert PUBLISHED["source"] in few.how
    assert many.value == pytest.approx(564.92 / 300)
    assert many.met is None, "32 tokens and 16 ranks are not there"
    assert "16 ranks 32 tokens power_law_1.2" in many.how
    assert torch.value == pytest.approx(3.0)
    skewed = found[f"{OVER} at 16 tokens, 8 ranks"]
    assert skewed.value == pytest.approx(1.95)
    assert "power_law_1.2 133.00 us against 259.35" in skewed.how
    assert {each.provenance for each in (few, many, skewed)} == {"imported"}
    assert found[f"{OVER} at 2 tokens, 8 ranks"].value is None


@pytest.mark.parametrize(("ratio", "few", "many"), [(2.1, True, True), (1.7, False, True), (1.4, False, False)])
def test_a_goal_is_met_where_every_cell_is_there_and_meets_it(
    shipped: dict[str, Path], tmp_path: Path, ratio: float, few: bool, many: bool
) -> None:
    shipped["made-up"] = recorded(tmp_path, over_marlin(ratio))
    found = by_name()
    assert (found[FEW].met, found[MANY].met) == (few, many)
    assert found[FEW].value == pytest.approx(ratio)
    assert found[FEW].how.startswith("20 cells; this is ")
    assert "not recorded" not in found[FEW].how + found[MANY].how
    of_cells = [each for name, each in found.items() if name.startswith(OVER)]
    assert len(of_cells) == 2 * len(TOKENS)
    assert {each.met for each in of_cells} == {few, many}


def test_the_floor_is_what_a_copy_takes_for_the_distinct_experts(shipped: dict[str, Path], tmp_path: Path) -> None:
    places = [(tokens, ranks, routing) for tokens in TOKENS for ranks in (8, 16) for routing in ROUTINGS]
    cases = []
    for place in places:
        floor_us = operator("experts").rotating_bytes(workload_of(*place)) / COPY
        # Below 8 tokens there is no goal.
        cases += cell(*place, grouped=floor_us * (9 if place[0] < 8 else 1.7 if place == (8, 16, ROUTINGS[1]) else 1.2))
    shipped["made-up"] = recorded(tmp_path, cases, facts={"copy_bytes_a_us": COPY})
    found = by_name()
    assert found[FLOOR].value == pytest.approx(1.7)
    assert (found[FLOOR].met, found[FLOOR].provenance) == (False, "replayed")
    assert "this is 16 ranks 8 tokens power_law_1.2" in found[FLOOR].how
    met = {name: each.met for name, each in found.items() if name.startswith(TIMES)}
    assert [name for name, each in met.items() if each is False] == [f"{TIMES} at 8 tokens, 16 ranks"]
    assert sum(each is None for each in met.values()) == 6
    assert met[f"{TIMES} at 8 tokens, 8 ranks"] is True


def test_other_gpus_have_no_published_figures(
    shipped: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped["made-up"] = recorded(tmp_path, over_marlin(2.1, (1,)), gpu="NVIDIA H100")
    found = by_name()
    assert found[FEW].value is None
    assert found[FEW].how.startswith("no such cells")


@pytest.mark.parametrize(
    ("routings", "message"),
    [
        ('["balanced"]', "tokens=3 mxfp4 routing=balanced and 1 more; recorded tokens: 1, 2, 4, 8, 16, 32, 64"),
        (
            '["power_law_1.5"]',
            "tokens=3 mxfp4 routing=power_law_1.5 and 1 more; recorded of that shape: mxfp4 at world 1, routing ",
        ),
    ],
)
def test_what_a_recording_lacks_is_told_by_the_routing_too(tmp_path: Path, routings: str, message: str) -> None:
    text = files("megatune_tuner").joinpath("data", "campaigns", "quickstart-experts.toml").read_text("utf-8")
    text = re.sub(r"(?m)^tokens = .*$", "tokens = [3]", re.sub(r"(?m)^routings = .*$", f"routings = {routings}", text))
    (tmp_path / "routed.toml").write_text(text)
    with pytest.raises(MegatuneError) as caught:
        recording_of(load_campaign(tmp_path / "routed.toml"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
