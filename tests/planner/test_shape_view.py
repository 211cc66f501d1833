"""What is known of one shape: the same as the whole plan says of it, with floors, ties and predictions beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import crossover_examples
import pytest
from crossover_examples import FANOUT
from crossover_examples import GROUP
from crossover_examples import TWO_STAGE
from plan_examples import BASELINES
from plan_examples import REGIME
from plan_examples import TARGET
from plan_examples import example_cases
from plan_examples import fill
from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db.records import Provenance
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Cost
from megatune_kernels.operator import operator
from megatune_planner.limits import Rated
from megatune_planner.limits import floor
from megatune_planner.limits import links_of
from megatune_planner.limits import rated
from megatune_planner.planning import make_plan
from megatune_planner.preferred import defaults_on
from megatune_planner.shape_view import predicted_curves
from megatune_planner.shape_view import shape_view


def reductions(session: Session) -> None:
    curves = {**crossover_examples.variants(), **crossover_examples.baselines()}
    fill(session, crossover_examples.cells(curves), GROUP)


def test_a_shape_alone_is_what_the_whole_plan_says_of_it(tmp_path: Path) -> None:
    with open_database(tmp_path / "a.db") as database, database.session() as session:
        fill(session, example_cases())
        plan = make_plan(
            session,
            name="whole",
            target=TARGET.digest,
            regime=REGIME,
            baselines=BASELINES,
            preferred=defaults_on("sm_90a"),
        )
        rows = queries.measured_shapes(session)
        assert len(rows) == sum(len(each.shapes) for each in plan.content.operators) > 1
        for row in rows:
            whole = next(each for each in plan.operator(row.operator).shapes if each.shape == row.shape)
            assert shape_view(session, row).plan == whole


def test_ties_begin_with_the_best_and_hold_what_is_not_slower(tmp_path: Path) -> None:
    with open_database(tmp_path / "a.db") as database, database.session() as session:
        fill(session, example_cases())
        view = shape_view(session, queries.measured_shapes(session)[0])
    for tokens, ties in view.ties.items():
        first, *others = ties
        assert first.over_best == (1, 1, 1, True)
        assert all(tie.over_best.low <= 1 for tie in others)
        assert view.plan is not None
        band = view.plan.band(tokens)
        point = next((each for each in band.points if each.tokens == tokens), None)
        assert point is None or point.tie_set_size >= len(ties)


def test_the_floor_is_the_bytes_at_the_rated_speed(tmp_path: Path) -> None:
    with open_database(tmp_path / "a.db") as database, database.session() as session:
        fill(session, example_cases())
        row = queries.measured_shapes(session)[0]
        view = shape_view(session, row)
    for tokens, _ in row.workloads:
        least = view.floor(tokens)
        assert least is not None
        assert least.bound == "memory"
        n, k = row.dims["n"], row.dims["k"]
        assert least.us == pytest.approx(2 * (n * k + tokens * (n + k)) / 4.8e6)
        assert view.share("simt", tokens, 2 * least.us) in (None, pytest.approx(0.5))


def test_links_bound_a_reduction_each_variant_by_its_own_bytes(tmp_path: Path) -> None:
    with open_database(tmp_path / "a.db") as database, database.session() as session:
        reductions(session)
        (row,) = queries.measured_shapes(session)
        view = shape_view(session, row)
    sent = 2 * 7168 * 256
    assert view.floors[FANOUT.variant][256].us == pytest.approx(sent / 450e3)
    assert view.floors[TWO_STAGE.variant][256].bound == "links"
    least = view.floor(256)
    assert least is not None
    assert least.us == min(mine[256].us for mine in view.floors.values())


@pytest.mark.parametrize(
    ("gpu", "links", "known"),
    [("NVIDIA H200", "pcie", False), ("NVIDIA H200", "emulated", False), ("Some GPU", "nvlink-18", False)],
)
def test_nothing_is_said_of_a_limit_that_is_not_known(gpu: str, links: str, known: bool, tmp_path: Path) -> None:
    target = replace(GROUP, hardware=replace(GROUP.hardware, gpu=gpu, links=links))
    with open_database(tmp_path / "a.db") as database, database.session() as session:
        fill(session, crossover_examples.cells(crossover_examples.variants()), target)
        view = shape_view(session, queries.measured_shapes(session)[0])
    assert bool(view.floors) is known
    assert view.floor(8) is None
    assert view.plan is None, "no baseline was measured"
    assert view.candidates[8][0].median_us <= view.candidates[8][-1].median_us


def test_predictions_are_of_the_shapes_own_machine_and_marked(tmp_path: Path) -> None:
    with open_database(tmp_path / "a.db") as database, database.session() as session:
        reductions(session)
        (row,) = queries.measured_shapes(session)
        found = predicted_curves(session, row, (row,))
        other = replace(row, operator="projection")
        assert predicted_curves(session, row, (row, other)) == found
    assert {FANOUT.variant, TWO_STAGE.variant} <= set(found)
    for points in found.values():
        tokens = [count for count, _ in points]
        assert tokens == sorted(set(tokens))
        assert (tokens[0], tokens[-1]) == (row.workloads[0][0], row.workloads[-1][0])
        for _, said in points:
            assert said.provenance is Provenance.PREDICTED
            assert said.low_us <= said.median_us <= said.high_us
    near = dict(found[FANOUT.variant])[256]
    assert near.median_us == pytest.approx(2 + 0.04 * 256), "the examples follow the model's own law"


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with open_database(tmp_path / "a.db") as database, database.session() as session:
        reductions(session)
        (row,) = queries.measured_shapes(session)
        with pytest.raises(MegatuneError, match="'strange' is not installed here"):
            shape_view(session, replace(row, operator="strange"))
        with pytest.raises(MegatuneError, match="nothing is left"):
            shape_view(session, replace(row, target="gone"))


def test_rated_speeds_and_links() -> None:
    assert rated({"gpu": "NVIDIA H200"}) == rated({"gpu": "synthetic H200"})
    assert rated({"gpu": "NVIDIA GB200"}) is not None
    assert rated({"gpu": "NVIDIA H100 PCIe"}) is None
    assert rated({"gpu": "NVIDIA H100 NVL"}) is None
    assert rated({"gpu": "NVIDIA H200 MIG 1g.18gb"}) is None
    assert rated({}) is None
    assert links_of({"links": "nvlink-18"}) == 18
    assert [links_of({"links": each}) for each in ("nvlink", "nvlink-0", "none", "pcie", "emulated")] == [None] * 5


def test_the_slowest_of_what_must_be_done_bounds() -> None:
    speeds = Rated(memory_bytes_a_us=100, links_bytes_a_us=180, flops_a_us=1000)
    assert floor(Cost(1000, 0, 0), speeds, None) == (floor(Cost(1000, 9, 900), speeds, 1))
    moved = floor(Cost(1000, 400, 0), speeds, 2)
    assert moved is not None
    assert (moved.us, moved.bound) == (20, "links")
    computed = floor(Cost(1000, 0, 50_000), speeds, None)
    assert computed is not None
    assert (computed.us, computed.bound) == (50, "compute")
    assert floor(Cost(1000, 0, 0), speeds, None, cached=True) is None
    assert operator("reduction").rotating_bytes(crossover_examples.reduction(1)) == 0
