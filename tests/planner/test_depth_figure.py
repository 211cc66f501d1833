"""Pictures of the depth of a prefetch."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_examples import fill
from prefetch_examples import KDA
from prefetch_examples import cell
from prefetch_examples import chain
from prefetch_examples import valley

from megatune_db import queries
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_planner.depth_figure import depth_figure
from megatune_planner.depths import DepthCurve
from megatune_planner.depths import depth_curves


def curves_of(directory: Path, tokens: tuple[int, ...], idle_ns: int = 5000) -> tuple[DepthCurve, ...]:
    with open_database(directory / f"{idle_ns}.db") as database, database.session() as session:
        fill(session, [c for t in tokens for c in cell(chain(t, {**KDA, "idle_ns": idle_ns}), valley(30 + t, 12, 6.0))])
        session.flush()
        (row,) = queries.measured_shapes(session)
        return depth_curves(session, row)


def test_the_same_curves_give_the_same_picture_with_every_depth(tmp_path: Path) -> None:
    curves = curves_of(tmp_path, (1, 8))
    for name in ("one.svg", "two.svg"):
        depth_figure(curves, "NVIDIA H200, cold-graph", tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    # Matplotlib keeps what a label says beside its outlines.
    for said in ("1 token", "8 tokens", "none (baseline), 8", "optimum", "depth in MiB; 0: no prefetch", "µs a chain"):
        assert f"<!-- {said} -->" in text, said
    for depth in (0, 2, 4, 8, 12, 16, 24, 32):
        assert f"<!-- {depth} -->" in text


def test_what_is_no_one_chain_is_not_drawn(tmp_path: Path) -> None:
    curves = curves_of(tmp_path, (1,))
    with pytest.raises(NothingMeasured, match="run a campaign of the operator prefetch"):
        depth_figure((), "", tmp_path / "none.svg")
    with pytest.raises(MegatuneError, match="one chain and at most 5 numbers of tokens, not 2 and 2"):
        depth_figure((*curves, *curves_of(tmp_path, (1,), 3000)), "", tmp_path / "two.svg")
    with pytest.raises(MegatuneError, match="one chain and at most 5 numbers of tokens, not 1 and 6"):
        depth_figure(curves * 6, "", tmp_path / "six.svg")
    with pytest.raises(MegatuneError, match="suffix must be one of"):
        depth_figure(curves, "", tmp_path / "picture.txt")
    assert not list(tmp_path.glob("*.svg"))
