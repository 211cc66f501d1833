"""The pages Campaigns, Explore, Search and Health, run by Streamlit's own test harness."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import closing
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plan_examples
import prefetch_examples
import pytest

pytest.importorskip("streamlit")

from sqlalchemy import update
from streamlit.testing.v1 import AppTest

from megatune_dashboard.app.context import Context
from megatune_dashboard.app.pages import PAGES
from megatune_dashboard.app.pages import campaigns
from megatune_dashboard.app.people import Person
from megatune_dashboard.app.people import Role
from megatune_dashboard.app.search_charts import history_figure
from megatune_dashboard.app.source import Source
from megatune_db import models
from megatune_db import queries
from megatune_db import reviews
from megatune_db import store
from megatune_db.codec import SAMPLE
from megatune_db.records import CampaignAction
from megatune_db.records import Status
from megatune_db.reviews import By
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError

Show = Callable[..., AppTest]
REVIEWER = Person("rea@example.org", Role.REVIEWER, local=False)
VIEWER = Person("vic@example.org", Role.VIEWER, local=False)
MARKUP = '<script>alert(1)</script> [link](http://example.org) **bold** :red[x] $x^2$ "=1+1"'


def texts(app: AppTest) -> str:
    """Everything that the page says."""
    kinds = ("title", "subheader", "markdown", "caption", "info", "warning", "error", "code")
    return "\n".join(str(each.value) for kind in kinds for each in getattr(app, kind))


def shown(app: AppTest, place: int = 0) -> Any:
    """A table of the page, as a data frame."""
    return app.dataframe[place].value


@contextmanager
def forced(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that can write what Megatune would never: its triggers are gone."""
    with closing(sqlite3.connect(path)) as opened, opened:
        for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            opened.execute(f'DROP TRIGGER "{name}"')
        yield opened


def no_fault(app: AppTest) -> AppTest:
    assert "fault of the program" not in texts(app)
    assert not app.error, [each.value for each in app.error]
    return app


@pytest.mark.parametrize("page", [module.PATH for module in PAGES])
def test_without_a_database_every_page_says_how_to_begin(page: str, show: Show, tmp_path: Path) -> None:
    app = no_fault(show(tmp_path / "none yet.db", page))
    assert app.code[0].value == f"megatune quickstart --db '{tmp_path / 'none yet.db'}'"
    assert not (tmp_path / "none yet.db").exists()


@pytest.mark.parametrize("page", [module.PATH for module in PAGES])
def test_an_empty_database_is_a_page(page: str, show: Show, tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    open_database(path).close()
    no_fault(show(path, page))


def test_an_empty_database_shows_the_quickstart(show: Show, tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    open_database(path).close()
    assert "megatune quickstart" in show(path, "campaigns").code[0].value


@pytest.mark.parametrize("page", [module.PATH for module in PAGES])
def test_what_is_no_database_is_one_line(page: str, show: Show, tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("not a database, but long enough to be taken for one" * 100)
    app = show(path, page)
    assert "is not a megatune database" in re.sub(r"\\", "", app.error[0].value)
    assert len(app.error) == 1


def test_campaigns_show_how_far_each_has_come(show: Show, tuned: Path) -> None:
    app = no_fault(show(tuned, "campaigns", campaign="projections"))
    rows = shown(app).set_index("campaign")
    assert list(rows.index) == ["reductions", "projections"]
    assert set(rows["state"]) == {"finished"}
    assert set(rows["progress"]) == {1.0}
    metrics = {each.label: each.value for each in app.metric}
    assert metrics["State"] == "finished"
    ratio = float(metrics["Best against baseline"].removesuffix(" x"))
    assert ratio == pytest.approx(rows.loc["projections", "times as fast"], abs=0.006)
    outcomes = shown(app, 1)
    assert len(outcomes) == 8
    assert "routing" not in outcomes.columns
    assert set(outcomes["provenance"]) == {"replayed"}
    assert outcomes["times as fast"].iloc[0] == outcomes["baseline µs"].iloc[0] / outcomes["best µs"].iloc[0]
    assert not app.button, "nothing can be stopped or resumed of a campaign that is finished"
    assert not charts_of(app), "the first look does not wait for a chart"
    (chart,) = charts_of(no_fault(app.run()))
    assert sorted(values(chart["data"][0]["y"])) == pytest.approx(sorted(outcomes["times as fast"]))


def test_a_campaign_whose_process_ended_can_go_on(show: Show, tuned: Path) -> None:
    with forced(tuned) as opened:
        opened.execute("UPDATE megatune_campaigns SET state = 'running' WHERE name = 'reductions'")
    app = no_fault(show(tuned, "campaigns"))
    assert {each.label: each.value for each in app.metric}["State"] == "interrupted"
    assert [each.label for each in app.button] == ["Go on"]
    assert app.code[0].value == f"megatune resume --db {tuned} -- reductions"
    assert not show(tuned, "campaigns", person=VIEWER).button


def test_what_is_done_to_a_campaign_is_in_its_log_and_no_viewer_does_it(show: Show, tuned: Path) -> None:
    with forced(tuned) as opened:
        opened.execute("UPDATE megatune_campaigns SET state = 'stopped' WHERE name = 'reductions'")
    context = Context(Source(tuned), VIEWER)
    for action in CampaignAction:
        # The button is not there for a viewer; what it does is refused all the same.
        with pytest.raises(MegatuneError, match="takes the role reviewer"):
            campaigns.act(context, "reductions", action)
    with pytest.raises(MegatuneError, match="does not run any more"):
        campaigns.act(Context(Source(tuned), REVIEWER), "reductions", CampaignAction.STOP)
    with open_database(tuned) as database, database.session() as session:
        assert not queries.campaign_log(session), "what was not done is not in the log"
        reviews.log_campaign(session, "reductions", CampaignAction.STOP, By(REVIEWER.name))
    app = no_fault(show(tuned, "campaigns", campaign="reductions"))
    assert "Who stopped it and had it go on" in [each.label for each in app.expander]


def test_explore_shows_curves_bands_and_crossovers(show: Show, tuned: Path) -> None:
    app = no_fault(show(tuned, "explore", operator="projection", shape="k=7168,n=2112 bf16"))
    assert [each.value for each in app.selectbox[:2]] == ["projection", "k=7168,n=2112 bf16"]
    (chart, _) = charts_of(app)
    names = {trace["name"] for trace in chart["data"]}
    assert {"cublas (baseline)", "simt", "mma", "least possible (rated speed)", "what planning chooses"} <= names
    assert chart["layout"]["xaxis"]["type"] == "log"
    assert chart["layout"]["yaxis"]["title"]["text"].startswith("µs a launch")
    assert len(chart["layout"]["shapes"]) >= 2, "bands are shaded"
    solid = {trace["name"]: trace["line"]["dash"] for trace in chart["data"] if trace.get("mode") == "lines+markers"}
    assert solid["mma"] == "solid"
    assert solid["cublas (baseline)"] != "solid"
    assert "replayed" in texts(app)


def test_predictions_are_drawn_otherwise_and_say_so(show: Show, tuned: Path) -> None:
    plain = charts_of(show(tuned, "explore", operator="reduction"))[0]
    assert not [trace for trace in plain["data"] if "predicted" in (trace["name"] or "")]
    app = no_fault(show(tuned, "explore", operator="reduction", predicted="true"))
    lines = [trace for trace in charts_of(app)[0]["data"] if "predicted" in (trace.get("name") or "")]
    assert {trace["name"] for trace in lines} >= {"full_fanout, predicted", "two_stage, predicted"}
    assert {trace["line"]["dash"] for trace in lines} == {"dot"}
    assert "nobody measured it" in texts(app)


def test_a_filter_comes_from_the_address_and_a_wrong_one_is_left_out(show: Show, tuned: Path) -> None:
    app = no_fault(show(tuned, "explore", operator="reduction", shape="no such shape", part="All points"))
    assert app.selectbox[0].value == "reduction"
    assert app.selectbox[1].value == "width=7168 bf16, world 2"
    rows = shown(app)
    assert {"full_fanout", "two_stage", "nccl"} <= set(rows["curve"])
    assert (rows["low µs"] <= rows["median µs"]).all()
    assert (rows["median µs"] <= rows["high µs"]).all()


def test_bandwidth_is_a_share_of_the_limit(show: Show, tuned: Path) -> None:
    points = shown(show(tuned, "explore", operator="projection", part="All points"))
    shares = points["share of the limit %"]
    assert ((shares > 0) & (shares < 100)).all(), "nothing is faster than its GPU's memory"
    assert np.allclose(shares, 100 * points["least possible µs"] / points["median µs"])
    (_, chart) = charts_of(no_fault(show(tuned, "explore", operator="projection", part="Bandwidth")))
    assert chart["layout"]["yaxis"]["title"]["text"] == "share of the limit, %"


def test_one_parameter_has_the_fastest_config_of_each_value(show: Show, tuned: Path) -> None:
    app = no_fault(
        show(tuned, "explore", operator="projection", part="One parameter", variant="mma", parameter="stages")
    )
    (_, chart) = charts_of(app)
    assert chart["layout"]["xaxis"]["title"]["text"] == "stages"
    with open_database(tuned, read_only=True) as database, database.session() as session:
        row = next(each for each in queries.measured_shapes(session) if each.shape in app.selectbox[1].value)
        points = queries.parameter_curves(session, row, variant="mma", parameter="stages")
    assert sum(len(trace["x"]) for trace in chart["data"]) == len(points) > 0


def test_depths_of_a_prefetch(show: Show, tmp_path: Path) -> None:
    path = tmp_path / "chains.db"
    with open_database(path) as database, database.session() as session:
        plan_examples.fill(session, prefetch_examples.example_prefetches())
    app = no_fault(show(path, "explore", operator="prefetch"))
    (_, chart) = charts_of(app)
    assert [trace["name"] for trace in chart["data"]] == ["1 token", "2 tokens", "4 tokens", "8 tokens"]
    assert values(chart["data"][0]["x"]).tolist() == [0, 2, 4, 8, 12, 16, 24, 32]
    best = [trace["marker"]["symbol"].index("star") for trace in chart["data"]]
    assert best[0] > best[2] > best[3] == 0, "deep for few tokens, and none for many"
    assert "depth 0 from 8 tokens on" in texts(app).replace("\\", "")


def test_samples_behind_a_point(show: Show, tuned: Path) -> None:
    points = shown(show(tuned, "explore", operator="projection", part="All points"))
    number = int(points["measurement"].iloc[0])
    app = no_fault(show(tuned, "explore", operator="projection", measurement=str(number)))
    with open_database(tuned, read_only=True) as database, database.session() as session:
        samples = queries.samples(session, [number])[number]
    (_, chart) = charts_of(app)
    assert np.allclose(values(chart["data"][0]["y"]), samples)
    assert f"{np.median(samples):.3f} µs" in texts(app)


def test_two_sides_beside_one_another(show: Show, tuned: Path) -> None:
    app = no_fault(show(tuned, "explore", operator="projection", beside="campaign projections"))
    left, right, *_ = charts_of(app)
    assert {trace["name"] for trace in right["data"]} == {"best", "baseline"}
    assert left["layout"]["yaxis"].get("range") == right["layout"]["yaxis"].get("range")


@pytest.mark.parametrize("part", ["History", "Parameters", "Coverage", "Failures", "Why this config"])
@pytest.mark.parametrize("campaign", ["projections", "reductions"])
def test_every_part_of_search(part: str, campaign: str, show: Show, tuned: Path) -> None:
    no_fault(show(tuned, "search", campaign=campaign, part=part))


def test_history_is_the_campaigns_own(show: Show, tuned: Path) -> None:
    app = no_fault(show(tuned, "search", campaign="projections", tokens="4"))
    (chart,) = charts_of(app)
    best = next(trace for trace in chart["data"] if trace["name"] == "best so far")
    steps = values(best["y"])
    assert (np.diff(steps) <= 0).all()
    with open_database(tuned, read_only=True) as database, database.session() as session:
        row = queries.campaign(session, "projections")
        assert row is not None
        workload = next(
            w
            for w in queries.campaign_workloads(session, row.id)
            if w.tokens == 4 and w.shape in app.selectbox[1].value
        )
        trials = queries.trials(session, row.id, workload=workload.digest)
    searched = [t.median_us for t in trials if t.stage == "search" and t.variant != "cublas" and t.median_us]
    assert steps[-1] == pytest.approx(min(searched))


def test_why_this_config_shows_the_tie_set(show: Show, tuned: Path) -> None:
    app = no_fault(show(tuned, "search", campaign="projections", tokens="16", part="Why this config"))
    rows = shown(app)
    assert rows["over best"].iloc[0] == 1
    assert (rows["low"] <= 1 + 1e-9).all(), "a tie is not significantly slower than the best"
    assert "Planning runs" in texts(app)


def test_health_counts_and_names_what_failed(show: Show, tuned: Path) -> None:
    with forced(tuned) as opened:
        opened.execute(
            "UPDATE megatune_measurements SET status = 'hang', reason = 'rank 1 stopped in phase measure', "
            "samples = NULL, median_us = NULL, low_us = NULL, high_us = NULL WHERE id IN (SELECT id FROM "
            "megatune_measurements WHERE stage = 'search' ORDER BY median_us DESC LIMIT 3)"
        )
    app = no_fault(show(tuned, "health"))
    tables = [each.value for each in app.dataframe]
    (quarantined,) = [each for each in tables if "workloads" in each]
    (hangs,) = [each for each in tables if "reason" in each]
    assert quarantined["workloads"].sum() == 3
    (chart,) = charts_of(app)
    assert values(chart["data"][0]["x"]) == [3]
    # What is folded is read when it is opened.
    app.session_state["fold-failing-configs"] = True
    (_, failing) = [each.value for each in no_fault(app.run()).dataframe if "workloads" in each.value]
    assert failing["workloads"].sum() == 3
    assert set(quarantined["status"]) == {"hang"}
    assert set(hangs["reason"]) == {"rank 1 stopped in phase measure"}
    assert "Nobody measures" in texts(app)


@pytest.mark.parametrize("page", [module.PATH for module in PAGES])
def test_markup_in_names_is_text(page: str, show: Show, tuned: Path) -> None:
    with forced(tuned) as opened:
        opened.execute("UPDATE megatune_campaigns SET name = ? WHERE name = 'projections'", (MARKUP,))
        opened.execute("UPDATE megatune_targets SET hardware = json_set(hardware, '$.gpu', ?)", (MARKUP,))
    app = no_fault(show(tuned, page, campaign=MARKUP))
    for kind in ("title", "subheader", "markdown", "caption", "info", "warning"):
        for each in getattr(app, kind):
            unescaped = re.sub(r"\\.", "", each.value)
            assert not [mark for mark in ("<script", "](", ":red[", "$x") if mark in unescaped]
    assert not [each for each in app.markdown if each.allow_html]


def test_samples_that_are_no_numbers_are_left_out_and_huge_ones_are_drawn(show: Show, tuned: Path) -> None:
    points = shown(show(tuned, "explore", operator="projection", part="All points"))
    number = int(points["measurement"].iloc[0])
    strange = np.concatenate([np.full(20_000, 3e30), [np.nan, np.inf]]).astype(SAMPLE)
    with forced(tuned) as opened:
        opened.execute("UPDATE megatune_measurements SET samples = ? WHERE id = ?", (strange.tobytes(), number))
    app = no_fault(show(tuned, "explore", operator="projection", measurement=str(number)))
    assert "2 of 20002 samples are no finite number" in texts(app)
    assert "shows every 4th" in texts(app)


@pytest.mark.parametrize("page", ["explore", "search", "campaigns", "health"])
@pytest.mark.parametrize("figure", ["9e999", "NULL", "1e300"])
def test_figures_that_are_none_are_a_page(page: str, figure: str, show: Show, tuned: Path) -> None:
    with forced(tuned) as opened:
        opened.execute(f"UPDATE megatune_measurements SET median_us = {figure}, high_us = {figure} WHERE id % 3 = 0")
    show(tuned, page)


@pytest.mark.parametrize("page", [module.PATH for module in PAGES])
def test_no_finished_trial_is_a_page(page: str, show: Show, tmp_path: Path) -> None:
    path = tmp_path / "asked.db"
    with open_database(path) as database, database.session() as session:
        campaign = store.put_campaign(session, name="asked", file_text="not TOML [", file_digest="0")
        store.put_workload(
            session,
            digest="w",
            operator="projection",
            shape="k=8,n=8",
            dims={"k": 8, "n": 8},
            tokens=1,
            dtype="bf16",
            world=1,
            routing="none",
        )
        store.put_config(session, digest="c", operator="projection", variant="simt", params={"rows": 1})
        store.add_trial(
            session,
            campaign_id=campaign,
            workload="w",
            config="c",
            number=0,
            measurement_id=None,
            reason="sampler",
            reused=False,
        )
    no_fault(show(path, page))
    for part in ("Parameters", "Coverage", "Failures", "Why this config"):
        no_fault(show(path, "search", part=part))


def test_an_operator_that_is_not_installed_is_one_line(show: Show, tuned: Path) -> None:
    with forced(tuned) as opened:
        opened.execute("UPDATE megatune_workloads SET operator = 'strange' WHERE operator = 'reduction'")
        opened.execute("UPDATE megatune_configs SET operator = 'strange' WHERE operator = 'reduction'")
    app = show(tuned, "explore", operator="strange")
    assert len(app.error) == 1
    assert "is not installed here" in app.error[0].value


def test_a_fault_is_one_line_and_no_traceback(show: Show, tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise RuntimeError("token=secret")

    monkeypatch.setattr(queries, "table_sizes", fails)
    app = show(tuned, "health")
    assert len(app.error) == 1
    assert "A fault of the program (RuntimeError)" in app.error[0].value.replace("\\", "")
    assert "secret" not in texts(app)


def charts_of(app: AppTest) -> list[dict[str, Any]]:
    """The charts of a page, as Plotly's JSON."""
    import json

    found = []
    for each in app.get("plotly_chart"):
        spec = json.loads(each.proto.spec)
        for trace in spec["data"]:
            trace.setdefault("name", None)
        found.append(spec)
    return found


def values(array: Any) -> Any:
    """Plotly packs arrays of numbers."""
    import base64

    if isinstance(array, dict):
        return np.frombuffer(base64.b64decode(array["bdata"]), np.dtype(array["dtype"]))
    return np.asarray(array, float)


def test_workloads_that_differ_in_their_routing_are_told_apart(show: Show, tuned: Path) -> None:
    with forced(tuned) as opened:
        opened.execute("UPDATE megatune_workloads SET routing = 'power_law_1.2' WHERE tokens = 1")
    rows = shown(no_fault(show(tuned, "campaigns", campaign="projections")), 1)
    assert set(rows["routing"]) == {"none", "power_law_1.2"}
    assert set(rows[rows["tokens"] == 1]["routing"]) == {"power_law_1.2"}
    # The box cuts what tells them apart.
    for page in ("explore", "search"):
        app = no_fault(show(tuned, page, campaign="projections", operator="projection"))
        (whole,) = [each for each in app.selectbox if each.label == "Shape"]
        routed = next(name for name in whole.options if name.endswith("routing power_law_1.2"))
        app = no_fault(show(tuned, page, campaign="projections", operator="projection", shape=routed))
        assert routed in texts(app).replace("\\", "")


def test_a_box_that_would_cut_what_tells_shapes_apart_is_as_wide_as_the_page() -> None:
    def page() -> None:
        import streamlit as st

        from megatune_dashboard.app.pages.explore import shape_box

        shapes: list[str] = st.session_state["shapes"]
        chosen, left = shape_box(shapes, st.columns(3), st.container())
        st.text(f"{chosen}: {len(left)}")

    long = [f"beta=4,experts=896,k=3584,width=384 mxfp4, routing {routing}" for routing in ("balanced", "same")]
    for shapes, left in ((long, 3), (long[:1], 2), (["k=7168,n=2112 bf16", "k=7168,n=288 bf16"], 2)):
        app = AppTest.from_function(page)
        app.session_state["shapes"] = shapes
        (shown_there,) = no_fault(app.run()).text
        assert shown_there.value == f"{shapes[0]}: {left}"


def test_a_slow_baseline_does_not_press_the_configs_together(tuned: Path) -> None:
    with open_database(tuned) as database, database.session() as session:
        (campaign, *_) = [queries.campaign(session, name) for name in queries.campaign_names(session)]
        assert campaign is not None
        workload = queries.campaign_workloads(session, campaign.id)[0]
        rows = [row for row in queries.trials(session, campaign.id, workload=workload.digest) if row.median_us]
    near = [replace(row, median_us=10.0 + place) for place, row in enumerate(rows[:4])]
    failed = replace(rows[4], median_us=None, status=Status.INFEASIBLE)
    for slow_us, axis, floor_us in ((20.0, None, 0.0), (4000.0, "log", 10.0 / 1.3)):
        baseline = replace(near[0], variant="slow", median_us=slow_us)
        made = history_figure([*near, failed, baseline], ["slow"])
        assert made.layout.yaxis.type == axis
        (cross,) = [trace for trace in made.data if trace.name == "failed"]
        assert list(cross.y) == pytest.approx([floor_us])


def test_what_an_operator_says_of_a_workload_is_shown(show: Show, tuned: Path) -> None:
    with open_database(tuned) as database, database.session() as session:
        session.execute(update(models.Workload).values(facts={"distinct experts": 12.5}))
    assert "Of this workload: distinct experts 12.5" in texts(no_fault(show(tuned, "search"))).replace("\\", "")
    folds = [each.label for each in no_fault(show(tuned, "explore")).expander]
    assert "What its operator says of the workloads" in folds
