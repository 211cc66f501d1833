"""What ``megatune bench experts`` makes of recordings: of none, as long as none is shipped, and of made-up ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_recording import recorded
from plan_examples import Case

from megatune_dashboard import bests
from megatune_dashboard.experts_benchmark import EXPERTS
from megatune_dashboard.experts_benchmark import figures
from megatune_db.records import Stage
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """What is shipped, to fill."""
    found: dict[str, Path] = {}
    monkeypatch.setattr(bests, "shipped_recordings", lambda: found)
    return found


def cell(tokens: int, tensor: int = 8, routing: str = "power_law_1.01", **times: float) -> list[Case]:
    """Finalists of a cell of Kimi K3, by variant."""
    tuned = operator("experts")
    (plain,) = tuned.workloads(model("Kimi-K3"), Parallel(tensor), [tokens])
    workload = tuned.routed(plain, routing)
    configs = {config.variant: config for config in tuned.space(workload, architecture("sm_90a")).defaults()}
    configs["torch"] = Config.of("torch", {})
    name = f"final {tokens} {tensor} {routing}"
    return [Case(workload, configs[variant], us, Stage.FINAL, name) for variant, us in times.items()]


def test_without_a_recording_every_figure_says_so(shipped: dict[str, Path]) -> None:
    assert [(each.value, each.met) for each in figures()] == [(None, None)] * 4
    assert {each.how for each in figures()} == {"no recording of experts is shipped with this installation"}
    assert len(EXPERTS.report()["figures"]) == 4


def test_goals_are_about_the_slowest_cells_of_the_published_routing(shipped: dict[str, Path], tmp_path: Path) -> None:
    shipped["made-up"] = recorded(
        tmp_path,
        [
            *cell(1, grouped=30.0, per_route=20.0, torch=100.0),
            *cell(8, 16, grouped=121.47 / 1.9),
            *cell(8, routing="balanced", grouped=1000.0),
            *cell(64, grouped=300.0, torch=900.0),
        ],
    )
    few, many, _, torch = figures()
    assert few.value == pytest.approx(1.9)
    assert few.met is False
    assert "width=192 tokens=8" in few.how
    assert many.value == pytest.approx(564.92 / 300)
    assert many.met is True
    assert torch.value == pytest.approx(3.0)
