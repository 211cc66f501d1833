"""What ``megatune bench vllm`` makes of recordings: of none, as long as none is shipped, and of made-up ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from made_up_recording import recorded
from plan_examples import Case

from megatune_dashboard import bests
from megatune_dashboard.vllm_benchmark import FILLED
from megatune_dashboard.vllm_benchmark import FILLED_SPEEDUP
from megatune_dashboard.vllm_benchmark import LEAST
from megatune_dashboard.vllm_benchmark import SPEEDUP
from megatune_dashboard.vllm_benchmark import TP16_SHAPES
from megatune_dashboard.vllm_benchmark import VLLM
from megatune_dashboard.vllm_benchmark import figures
from megatune_db.records import Stage
from megatune_kernels.figures import Figure
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_planner.serving import checks
from megatune_tuner.recordings import shipped_recordings

TUNED = operator("vllm-skinny-gemm")
CUBLAS, SHIPPED = Config.of("cublas", {}), Config.of("shipped", {})
OURS = (SPEEDUP, LEAST, FILLED, FILLED_SPEEDUP)
REVISION = "0123456789abcdef"


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """What is shipped, to fill."""
    found: dict[str, Path] = {}
    monkeypatch.setattr(bests, "shipped_recordings", lambda: found)
    return found


def skinny(block: int) -> Config:
    fields = {"outputs_per_block": 2, "k_unroll": 1, "vector_width": 4, "static_k": False}
    return Config.of("skinny", {"block_size": block, **fields})


def cell(n: int, k: int, tokens: int, *, cublas: float, table: float | None, best: float) -> list[Case]:
    """:param table: µs of the table's config; None: it has none, and cuBLAS serves."""
    workload = TUNED.workload({"n": n, "k": k}, tokens)
    times = {CUBLAS: cublas, SHIPPED: table or cublas, skinny(32): best, skinny(96): best * 1.2}
    cases = []
    for config, us in times.items():
        built = config.variant == "skinny" or (config == SHIPPED and table is not None)
        revision = REVISION if built else ""
        cases.append(Case(workload, config, us, revision=revision))
        cases.append(Case(workload, config, us, Stage.FINAL, f"finals {workload}", revision=revision))
    return cases


def named() -> Mapping[str, Figure]:
    return {figure.figure: figure for figure in figures()}


def test_the_shipped_recording() -> None:
    """One run came to 41 cells of the table; the shapes that it lacks are from another one."""
    found = named()
    assert found[SPEEDUP].met
    assert found[SPEEDUP].value == pytest.approx(1.1107, abs=0.0001)
    assert "over 41 of the 47 cells" in found[SPEEDUP].how
    assert found[LEAST].value == pytest.approx(1.0136, abs=0.0001)
    assert (found[FILLED].value, found[FILLED].met) == (6, True)
    assert found[FILLED_SPEEDUP].value == pytest.approx(1.473, abs=0.001)


def test_without_a_recording_every_figure_says_so(shipped: dict[str, Path]) -> None:
    shipped["others"] = shipped_recordings()["reduction-h200x2"]
    found = named()
    for name in OURS:
        assert (found[name].value, found[name].met) == (None, None)
        assert found[name].how == "no recording of vllm-skinny-gemm is shipped with this installation"


def test_the_serving_models_errors_are_there(shipped: dict[str, Path]) -> None:
    errors = checks.figures()
    assert errors
    assert figures()[len(OURS) :] == errors
    assert len(VLLM.report()["figures"]) == len(OURS) + len(errors)


def test_figures_are_of_the_tables_cells_and_of_those_that_it_lacks(shipped: dict[str, Path], tmp_path: Path) -> None:
    cases = [
        *cell(2304, 1536, 1, cublas=5.0, table=3.6, best=3.0),
        *cell(2304, 1536, 2, cublas=5.0, table=3.6, best=3.5),
        # Too little over cuBLAS for an entry; a TP16 shape with one; one without.
        *cell(768, 7168, 1, cublas=8.0, table=None, best=5.0),
        *cell(768, 7168, 2, cublas=8.0, table=None, best=7.9),
        *cell(1152, 1536, 1, cublas=4.0, table=None, best=4.1),
    ]
    shipped["made-up"] = recorded(tmp_path, cases)
    found = named()
    assert found[SPEEDUP].value == pytest.approx((3.6 / 3.0 * 3.6 / 3.5) ** 0.5)
    assert found[SPEEDUP].met
    assert "over 2 of the 47 cells" in found[SPEEDUP].how
    assert found[LEAST].value == pytest.approx(3.6 / 3.5)
    assert "n=2304 tokens=2" in found[LEAST].how
    assert (found[FILLED].value, found[FILLED].met) == (1, False)
    assert "of 2 that are recorded: 768x7168" in found[FILLED].how
    assert found[FILLED_SPEEDUP].value == pytest.approx(8.0 / 5.0)
    assert all(found[name].provenance == "replayed" and "made-up" in found[name].how for name in OURS)


def test_every_shape_is_filled(shipped: dict[str, Path], tmp_path: Path) -> None:
    cases = [case for n, k in TP16_SHAPES for case in cell(n, k, 1, cublas=6.0, table=None, best=4.0)]
    shipped["made-up"] = recorded(tmp_path, cases)
    found = named()
    assert (found[FILLED].value, found[FILLED].met) == (6, True)
    assert (found[SPEEDUP].value, found[SPEEDUP].met) == (None, None)


def test_what_the_table_has_is_left_where_nothing_is_faster(shipped: dict[str, Path], tmp_path: Path) -> None:
    cases = [
        *cell(2304, 1536, 1, cublas=5.0, table=3.6, best=3.0),
        *cell(2304, 1536, 2, cublas=5.0, table=3.6, best=3.7),
    ]
    shipped["made-up"] = recorded(tmp_path, cases)
    found = named()
    assert found[SPEEDUP].value == pytest.approx((3.6 / 3.0) ** 0.5)
    assert "left in 1 of them" in found[SPEEDUP].how
    assert found[LEAST].value == 1


def test_a_goal_that_is_missed_is_missed(shipped: dict[str, Path], tmp_path: Path) -> None:
    shipped["made-up"] = recorded(tmp_path, cell(2304, 1536, 1, cublas=5.0, table=3.1, best=3.0))
    found = named()
    assert found[SPEEDUP].met is False
    assert found[FILLED].value is None
    assert "none of them is recorded" in found[FILLED].how
