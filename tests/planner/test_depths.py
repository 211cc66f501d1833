"""Curves over the depth of a prefetch, and the tokens from which it hurts, from made-up times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from plan_examples import Case
from plan_examples import fill
from prefetch_examples import KDA
from prefetch_examples import NONE
from prefetch_examples import cell
from prefetch_examples import chain
from prefetch_examples import plain
from prefetch_examples import plan_of
from prefetch_examples import prefetch
from prefetch_examples import valley
from typer.testing import CliRunner

from megatune_db import queries
from megatune_db.records import Status
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.space import Config
from megatune_planner.commands import app
from megatune_planner.depths import DepthCurve
from megatune_planner.depths import depth_curve
from megatune_planner.depths import depth_curves
from megatune_planner.depths import depth_curves_of
from megatune_planner.depths import depth_of
from megatune_planner.depths import depth_text
from megatune_planner.depths import off_from
from megatune_planner.depths import off_text
from megatune_planner.plan import ShapePlan


def curves_of(directory: Path, cases: Sequence[Case]) -> tuple[DepthCurve, ...]:
    with open_database(directory / "depths.db") as database, database.session() as session:
        fill(session, cases)
        session.flush()
        (row,) = queries.measured_shapes(session)
        return depth_curves(session, row)


def curve_of(directory: Path, cases: Sequence[Case]) -> DepthCurve:
    (curve,) = curves_of(directory, cases)
    return curve


def test_the_optimum_lies_inside_and_has_an_interval(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, cell(chain(1), valley(30.0, 12, 6.0)))
    assert [point.depth_mib for point in curve.points] == [0, 2, 4, 8, 12, 16, 24, 32]
    assert (curve.best_mib, curve.low_mib, curve.high_mib) == (12, 12, 12)
    assert curve.interior
    assert curve.verdict == "helps"
    best = curve.at(12)
    assert best.over_off is not None
    assert best.over_off.paired
    assert best.over_off.ratio == pytest.approx(24 / 30)
    assert best.over_best.ratio == 1
    assert curve.baseline is not None
    assert curve.baseline.median_us == pytest.approx(30 * 1.06)
    # 24 MiB are no better than none, and what is deeper costs more than it saves.
    assert curve.at(24).candidate.median_us == pytest.approx(30.0)
    deep = curve.at(32).over_off
    assert deep is not None
    assert deep.low > 1
    with pytest.raises(KeyError):
        curve.at(40)
    assert depth_text(curve).endswith(
        "at 1 tokens: best at 12 MiB, 24.00 µs, an interior optimum within 12 to 12 MiB; 1.25x over depth 0; "
        "prefetch helps"
    )


def test_what_was_not_paired_widens_the_interval(tmp_path: Path) -> None:
    """Half a percent apart: pairs tell that, and intervals of 0.4 % either way do not."""
    times = {NONE: 30.0, plain(): 30.0, prefetch(4): 25.0, prefetch(8): 24.0, prefetch(12): 24.12, prefetch(24): 26.0}
    paired = curve_of(tmp_path, cell(chain(1), times))
    assert (paired.low_mib, paired.high_mib) == (8, 8)
    (tmp_path / "search").mkdir()
    searched = curve_of(tmp_path / "search", cell(chain(1), times, finals=()))
    assert (searched.low_mib, searched.high_mib) == (8, 12)
    assert not searched.at(12).over_best.paired
    assert searched.interior


def test_a_tie_behind_a_slower_depth_is_no_part_of_the_interval(tmp_path: Path) -> None:
    times = {NONE: 30.0, plain(): 30.0, prefetch(4): 24.01, prefetch(8): 26.0, prefetch(12): 24.0, prefetch(24): 26.0}
    curve = curve_of(tmp_path, cell(chain(1), times))
    assert curve.ties_mib == (4, 12)
    assert (curve.low_mib, curve.high_mib) == (12, 12)
    assert "; ties at 4 MiB" in depth_text(curve)


@pytest.mark.parametrize(
    ("times", "best", "verdict"),
    [
        ({plain(): 30.0, prefetch(4): 26.0, prefetch(8): 24.0}, 8, "helps"),
        ({plain(): 30.0, prefetch(4): 31.0, prefetch(8): 32.0}, 0, "hurts"),
        ({plain(): 30.0, prefetch(4): 30.05, prefetch(8): 32.0}, 0, "tie"),
        ({plain(): 30.0}, 0, None),
        ({prefetch(4): 30.0}, 4, None),
    ],
)
def test_an_optimum_at_an_end_is_not_interior(
    tmp_path: Path, times: dict[Config, float], best: int, verdict: str | None
) -> None:
    curve = curve_of(tmp_path, cell(chain(1), {NONE: 31.0, **times}))
    assert (curve.best_mib, curve.verdict) == (best, verdict)
    assert not curve.interior
    assert "where measuring ended" in depth_text(curve)


def test_each_depth_is_as_fast_as_its_best_config(tmp_path: Path) -> None:
    times = {NONE: 30.0, plain(): 29.0, prefetch(8): 27.0, prefetch(8, grid=16): 25.0, prefetch(8, start=50): 28.0}
    curve = curve_of(tmp_path, cell(chain(1), times))
    assert curve.at(8).candidate.params["grid"] == 16
    assert curve.at(0).candidate.params == {"pdl": True}


def test_configs_that_failed_and_older_kernels_are_no_part_of_it(tmp_path: Path) -> None:
    workload = chain(1)
    cases = [
        Case(workload, prefetch(8), 10.0, revision="old"),
        Case(workload, NONE, 30.0),
        Case(workload, plain(), 29.0, revision="new"),
        Case(workload, prefetch(8), 25.0, revision="new"),
        Case(workload, prefetch(12), 1.0, revision="new", status=Status.WRONG_RESULT),
    ]
    curve = curve_of(tmp_path, cases)
    assert {point.depth_mib: point.candidate.median_us for point in curve.points} == {0: 29.0, 8: 25.0}


def test_one_curve_for_each_number_of_tokens(tmp_path: Path) -> None:
    cases = [case for tokens in (1, 4, 8) for case in cell(chain(tokens), valley(30.0, 12, 6.0))]
    assert [curve.workload.tokens for curve in curves_of(tmp_path, cases)] == [1, 4, 8]
    with open_database(tmp_path / "depths.db") as database, database.session() as session:
        fill(session, cases)
        session.flush()
        (row,) = queries.measured_shapes(session)
        assert depth_curve(session, row, 4).best_mib == 12
        with pytest.raises(NothingMeasured, match="was measured at 2 tokens: measure it"):
            depth_curve(session, row, 2)


def helping_then_hurting() -> list[Case]:
    found = []
    for tokens in (1, 2, 4):
        found += cell(chain(tokens), valley(30.0 + tokens, 12, 6.0 - tokens))
    found += cell(chain(6), {NONE: 33.0, plain(): 31.0, prefetch(2): 31.1, prefetch(8): 33.0})
    found += cell(chain(8), {NONE: 33.0, plain(): 31.0, prefetch(2): 32.0, prefetch(8): 34.0})
    return found


def shape_of(directory: Path, cases: Sequence[Case]) -> ShapePlan:
    (shape,) = plan_of(directory, cases).operator("prefetch").shapes
    return shape


def test_the_plan_says_from_which_tokens_prefetch_hurts(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, helping_then_hurting())
    depths = {t: depth_of(shape.band(t).decision) for t in (1, 2, 4, 6, 8, 9)}
    assert depths == {1: 12, 2: 12, 4: 12, 6: 0, 8: 0, 9: 0}
    decision = shape.band(8).decision
    assert decision.kind == "config"
    assert decision.variant == "plain"
    off = off_from(shape)
    assert off is not None
    assert (off.tokens_lo, off.hurts, off.ties) == (6, (8,), (6,))
    assert off_text(shape) == "depth 0 from 6 tokens on; prefetch is slower at 8; a tie at 6"
    crossover = next(each for each in shape.crossovers if {each.below, each.above} == {"prefetch", "plain"})
    assert set(off.evidence) == {id_ for point in crossover.points if point.tokens >= 6 for id_ in point.evidence}
    assert {8: "plain", 4: "prefetch"}.items() <= {point.tokens: point.faster for point in crossover.points}.items()


@pytest.mark.parametrize("params", [{}, {"depth_mib": ""}, {"depth_mib": True}])
def test_a_depth_that_is_no_number_is_one_line(tmp_path: Path, params: dict[str, object]) -> None:
    """A plan may be of anybody's making."""
    decision = shape_of(tmp_path, cell(chain(1), valley(30.0, 12, 6.0))).band(1).decision
    assert depth_of(decision) == 12
    with pytest.raises(MegatuneError, match=r"has depth_mib .*, which is no number of MiB"):
        depth_of(decision.model_copy(update={"params": params}))


def test_a_plan_that_prefetches_throughout_is_never_off(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, [case for tokens in (1, 8) for case in cell(chain(tokens), valley(30.0, 12, 6.0))])
    assert off_from(shape) is None
    assert off_text(shape) == ""


def test_a_plan_that_never_prefetches_is_off_from_its_first_tokens(tmp_path: Path) -> None:
    times = {NONE: 33.0, plain(): 30.0, prefetch(4): 32.0}
    shape = shape_of(tmp_path, [case for tokens in (2, 8) for case in cell(chain(tokens), times)])
    off = off_from(shape)
    assert off is not None
    assert (off.tokens_lo, off.hurts, off.ties) == (2, (2, 8), ())


def test_a_plan_finds_its_curves_in_the_database(tmp_path: Path) -> None:
    other = {**KDA, "idle_ns": 3000}
    cases = [*helping_then_hurting(), *cell(chain(1, other), valley(30.0, 8, 6.0))]
    plan = plan_of(tmp_path, cases)
    with open_database(tmp_path / "prefetch.db") as database, database.session() as session:
        found = depth_curves_of(session, plan)
    assert [(curve.workload["idle_ns"], curve.workload.tokens, curve.best_mib) for curve in found] == [
        (3000, 1, 8),
        (5000, 1, 12),
        (5000, 2, 12),
        (5000, 4, 12),
        (5000, 6, 0),
        (5000, 8, 0),
    ]


def test_show_prints_curves_and_where_prefetch_hurts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    plan, file = plan_of(tmp_path, helping_then_hurting()), tmp_path / "plan.json"
    file.write_text(plan.to_json())
    with_database = CliRunner().invoke(app, ["show", str(file), "--db", str(tmp_path / "prefetch.db")])
    alone = CliRunner().invoke(app, ["show", str(file), "--db", str(tmp_path / "missing.db")])
    for result in (with_database, alone):
        assert result.exit_code == 0, result.output
        assert "depth 0 from 6 tokens on; prefetch is slower at 8; a tie at 6" in result.stdout
    added = with_database.stdout.removeprefix(alone.stdout).splitlines()
    assert added[1] == "Depths of prefetch, as the database has them"
    assert len(added) == 2 + 5
    assert "at 8 tokens: best at 0 MiB, 31.00 µs" in added[-1]
