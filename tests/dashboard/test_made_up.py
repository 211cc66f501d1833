"""The made-up database, and the figures that are made with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pictures
import pytest

from megatune_dashboard import dashboard_benchmark
from megatune_dashboard import made_up
from megatune_db import queries
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.session import open_database
from megatune_kernels.figures import benchmark
from megatune_planner.drafting import draft_plan
from megatune_planner.drafting import keep_draft

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from streamlit.testing.v1 import AppTest


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made-up") / "small.db"
    with open_database(path) as database, database.session() as session:
        measurements, trials = made_up.fill(session, measurements=8000, trials=800)
        size = queries.table_sizes(session)
        assert (size.rows["measurements"], size.rows["trials"]) == (measurements, trials)
        assert measurements >= 8000
        assert trials >= 800
    return path


def test_it_is_what_campaigns_write(small: Path) -> None:
    """Every row passes the checks that a measurement goes through when it is taken."""
    with open_database(small, read_only=True) as database, database.session() as session:
        for target in queries.targets(session):
            rows = list(queries.export_rows(session, target=target.digest, regime=Regime()))
            assert len(rows) == target.measurements[Provenance.MEASURED]
        assert {row.state.value for row in queries.campaigns(session)} == {"finished", "running"}
        assert queries.failure_counts(session)


def test_a_plan_can_be_made_of_it(small: Path) -> None:
    with open_database(small, read_only=True) as database, database.session() as session:
        plan = draft_plan(session, name="made-up", target=made_up.synthetic_target("1.0").digest)
    variants = {
        band.decision.variant
        for operator in plan.content.operators
        for shape in operator.shapes
        for band in shape.bands
        if band.decision.kind == "config"
    }
    assert {"simt", "mma"} <= variants


@pytest.fixture
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    made = dashboard_benchmark.make_database
    monkeypatch.setattr(dashboard_benchmark, "make_database", lambda path: made(path, 8000, 8000))


@pytest.mark.usefixtures("smaller")
def test_without_a_browser_the_figures_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("streamlit")
    monkeypatch.setattr(dashboard_benchmark, "missing", lambda: "there is no Chromium")
    first, slowest = benchmark("dashboard").run()
    assert (first.figure, first.unit, first.goal) == ("first page", "s", "< 2")
    assert (slowest.figure, slowest.goal) == ("slowest interaction", "< 1")
    for figure in (first, slowest):
        assert figure.value is not None
        assert figure.value > 0
        assert "the page's script alone, because there is no Chromium" in figure.how


def test_in_a_browser_every_step_is_walked(chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_benchmark, "LOOKING_S", 0)
    # Whether every step can be taken is asked here, and not how long it takes.
    monkeypatch.setattr(dashboard_benchmark, "settled", pictures.settled)
    path = tmp_path / "walked.db"
    dashboard_benchmark.make_database(path, 8000, 8000)
    found = dashboard_benchmark.with_browser(chromium, path, "", dashboard_benchmark.walk()[:1])
    assert [figure.figure for figure in found] == [
        "first page",
        "slowest interaction",
        "slowest interaction while somebody commits",
    ]
    assert all(figure.value for figure in found)


def test_a_plan_of_an_older_toolchain_is_warned_of(small: Path, tmp_path: Path, show: Callable[..., AppTest]) -> None:
    path = tmp_path / "reviewed.db"
    shutil.copy(small, path)
    with open_database(path) as database, database.session() as session:
        keep_draft(session, draft_plan(session, name="old", target=made_up.synthetic_target("1.0").digest))
    app = show(path, "plans")
    assert [each for each in app.warning if "driver 1.0 to 2.0" in each.value.replace("\\", "")]
