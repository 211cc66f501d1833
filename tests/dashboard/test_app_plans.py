"""The pages Plan review and Exports, run by Streamlit's own test harness."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import review_examples
from plan_examples import CUBLAS
from plan_examples import Case
from plan_examples import fill
from plan_examples import mma
from plan_examples import simt
from review_examples import ANA
from review_examples import MARKUP
from review_examples import Example

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

from megatune_dashboard.app import frame
from megatune_dashboard.app.bands import bands_figure
from megatune_dashboard.app.pages import plan_review
from megatune_dashboard.app.pages.exports import archive
from megatune_dashboard.app.people import Person
from megatune_dashboard.app.people import Role
from megatune_dashboard.app.text import plain
from megatune_db import queries
from megatune_db import reviews
from megatune_db.records import PlanState
from megatune_db.records import Stage
from megatune_db.session import open_database
from megatune_kernels.operator import Workload
from megatune_planner.drafting import draft_plan
from megatune_planner.drafting import keep_draft
from megatune_planner.exporters.base import exporter
from megatune_planner.plan import Plan
from megatune_planner.reviewing import files_of

VIEWER = Person("vic@example.org", Role.VIEWER, local=False)
REVIEWER = Person("ben@example.org", Role.REVIEWER, local=False)

Open = Callable[..., AppTest]


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return review_examples.make(tmp_path / "reviewed.db")


@pytest.fixture
def visit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Open:
    """Opens a page of the database and runs it."""

    def page(path: str, person: object) -> None:
        from megatune_dashboard.app.frame import show

        show(path, person)  # type: ignore[arg-type]

    def visit(path: str, database: Path | None = None, person: Person = REVIEWER, **query: str) -> AppTest:
        monkeypatch.setenv(frame.DATABASE, str(database or tmp_path / "reviewed.db"))
        app = AppTest.from_function(page, kwargs={"path": path, "person": person}, default_timeout=60)
        for name, value in query.items():
            app.query_params[name] = value
        return checked(app.run())

    return visit


def checked(app: AppTest) -> AppTest:
    assert not app.exception, app.exception
    assert not [each.value for each in app.error if "fault of the program" in each.value]
    return app


def text_of(app: AppTest) -> str:
    shown = [*app.title, *app.subheader, *app.markdown, *app.caption, *app.info, *app.warning, *app.error, *app.success]
    # Addresses are cut by a character without width, so that they are no links.
    return "\n".join(str(each.value) for each in shown).replace("\u2060", "")


def press(app: AppTest, name: str) -> AppTest:
    (button,) = [each for each in app.button if each.label == name]
    return checked(button.click().run())


def state(example: Example, digest: str) -> PlanState:
    with open_database(example.path, read_only=True) as database, database.session() as session:
        found = queries.plan(session, digest)
    assert found is not None
    return found.state


def test_without_plans_there_is_a_way_to_begin(visit: Open, tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    for path in ("plans", "exports"):
        assert "Nothing is measured yet" in text_of(visit(path, missing))
    assert not missing.exists()
    with open_database(missing):
        pass
    app = visit("plans", missing)
    assert "There is no plan yet" in text_of(app)
    assert app.code[0].value == f"megatune plan --db {missing}"
    assert "No plan is approved" in text_of(visit("exports", missing))


def test_what_changes_against_the_plan_in_service(visit: Open, example: Example) -> None:
    app = visit("plans")
    # The newest draft comes first, against what is in service.
    assert app.selectbox[0].value == example.draft
    assert app.selectbox[1].value == example.serving
    # Three kinds of launches of the plan, the experts as published, and nothing else: what is saved is of the three.
    assert [each.label for each in app.metric] == ["Known parts of a step, stock", "Now", "This plan", "Saves a step"]
    assert [each.value for each in app.metric][1:] == ["22.1 to 27.1 ms", "22.0 to 27.0 ms", "107 to 118 µs"]
    assert app.metric[2].delta == "-0.5%"
    assert "4 of 23 kinds of launches" in text_of(app)
    assert "2 of 2 shapes change" in text_of(app)
    titles = [each.label for each in app.expander]
    assert any("k\\=7168,n\\=1536" in title and "9\\.17 to 8\\.23 µs" in title for title in titles)
    tables = [each.value for each in app.dataframe if "time %" in each.value and "at tokens" in each.value]
    # The larger effect comes first.
    assert [list(rows["at tokens"]) for rows in tables] == [[8, 16, 32, 64], [1, 2, 4]]
    rows = tables[1]
    assert list(rows["now"].unique()) == ["stock (cublas)"]
    assert rows["this plan µs"].tolist() == pytest.approx([3.49, 3.58, 3.76])
    assert app.query_params["plan"] == example.draft


def test_against_stock(visit: Open, example: Example) -> None:
    app = visit("plans", against="stock", plan=example.draft)
    assert [each.label for each in app.metric] == ["Known parts of a step, stock", "This plan", "Saves a step"]
    assert app.selectbox[1].value == "stock"
    rows = [each.value for each in app.dataframe if "saves %" in each.value]
    assert len(rows) == 2
    assert rows[0]["saves %"].max() > 30
    assert {"why", "predicted %", "paired"} <= set(rows[0])
    # A plan alone is compared with stock from the start.
    assert visit("plans", plan=example.serving).selectbox[1].value in ("stock", example.draft)


def test_where_another_routing_has_another_winner_is_said_beside_the_bands(visit: Open, tmp_path: Path) -> None:
    cases = []
    for routing, winner in {"balanced": simt(), "same": mma()}.items():
        workload = Workload.of("projection", {"n": 1024, "k": 1024}, 4, routing=routing)
        times = {simt(): 12.0, mma(): 12.0, CUBLAS: 20.0} | {winner: 10.0}
        cases += [Case(workload, config, us, Stage.FINAL, routing) for config, us in times.items()]
    with open_database(tmp_path / "routings.db") as database, database.session() as session:
        fill(session, cases)
        keep_draft(session, draft_plan(session, name="routings"))
    said = [each.value.replace("\\", "") for each in visit("plans", tmp_path / "routings.db").caption]
    told = [each for each in said if "the winner changes with the routing" in each]
    assert len(told) == 2
    assert any("4 tokens: the winner changes with the routing: same has mma at 4 tokens" in each for each in told)


def test_of_many_shapes_one_is_shown(visit: Open, example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_review, "MOST_SHAPES", 1)
    key = "projection-k=1536,n=2304-bf16-1-none"
    for query in ({"against": "stock"}, {}):
        app = visit("plans", **query)
        (shape,) = [each for each in app.selectbox if each.label == "Shape"]
        assert "k=7168,n=1536" in shape.options[0]
        assert app.query_params["shape"] == "projection-k=7168,n=1536-bf16-1-none"
        checked(shape.select(key).run())
        assert app.query_params["shape"] == key
        again = visit("plans", shape=key, **query)
        assert [each.value for each in again.selectbox if each.label == "Shape"] == [key]


def test_warnings_come_before_what_changes(visit: Open, example: Example) -> None:
    app = visit("plans")
    (warning,) = [each for each in app.info if "partly predicted" in each.value]
    kinds = [each.value for each in app.main.children.values() if hasattr(each, "value")]
    assert kinds.index(warning.value) < kinds.index("What changes") < kinds.index("Decision")
    listed = next(each.value for each in app.dataframe if "kind" in each.value)
    assert listed["kind"].tolist() == ["prediction", "prediction"]
    assert (listed["measurements"] > 0).all()


def test_every_threshold_has_its_unit(visit: Open, example: Example) -> None:
    thresholds = next(each.value for each in visit("plans").dataframe if "unit" in each.value)
    assert set(thresholds["unit"]) == {"tokens"}
    assert thresholds["value"].notna().all()


def test_approve_export_and_roll_back(visit: Open, example: Example) -> None:
    app = visit("plans", plan=example.draft)
    # Together, as a browser sends what was typed and the click that ends the typing.
    app.text_area[0].input("faster by a twelfth")
    press(app, "Approve")
    assert state(example, example.draft) is PlanState.APPROVED
    assert "approved: it can be exported now" in text_of(app)

    app = visit("exports", plan=example.draft)
    assert "will be retired" in text_of(app)
    press(app, "Export 2 files")
    assert "is exported for json" in text_of(app)
    assert (state(example, example.draft), state(example, example.serving)) == (PlanState.EXPORTED, PlanState.RETIRED)
    exported = next(each.value for each in app.dataframe if "exporter" in each.value)
    assert exported["who"].tolist() == ["ben@example.org", "ana@example.org"]
    assert exported["state then"].tolist() == ["approved", "approved"]
    # What was just exported is shown with its files.
    assert any("SHA-256" in each.value for each in app.dataframe)

    app = visit("plans", plan=example.draft)
    assert app.selectbox[1].value == example.serving
    press(app, "Roll back")
    assert [each.value for each in app.error] == ["say why: a plan is rolled back with a comment".replace(":", "\\:")]
    assert state(example, example.draft) is PlanState.EXPORTED
    app.text_area[0].input("slower in serving")
    press(app, "Roll back")
    assert f"{example.serving[:12]} serves" in text_of(app)
    assert (state(example, example.draft), state(example, example.serving)) == (PlanState.RETIRED, PlanState.EXPORTED)
    log = next(each.value for each in app.dataframe if "action" in each.value)
    assert log["action"].tolist() == ["restore", "roll back", "export", "retire", "approve"]
    assert set(log["who"]) == {"ben@example.org"}
    assert log["comment"].tolist()[:2] == ["slower in serving", "slower in serving"]
    assert log["comment"].tolist()[-1] == "faster by a twelfth"


def test_stock_is_what_the_first_plan_is_rolled_back_to(visit: Open, example: Example) -> None:
    app = visit("plans", plan=example.serving)
    (to,) = [each for each in app.selectbox if each.label == "Roll back to"]
    assert to.value == "stock"
    app.text_area[0].input("not needed")
    press(app, "Roll back")
    assert state(example, example.serving) is PlanState.RETIRED
    assert "stock serves" in text_of(app)


def test_a_rejection_needs_a_reason(visit: Open, example: Example) -> None:
    app = visit("plans")
    press(app, "Reject")
    assert "say why" in text_of(app)
    assert state(example, example.draft) is PlanState.DRAFT
    app.text_area[0].input("the margins are thin")
    press(app, "Reject")
    assert state(example, example.draft) is PlanState.RETIRED
    press(app, "Approve again")
    assert state(example, example.draft) is PlanState.APPROVED


def test_a_viewer_looks_and_does_not_decide(visit: Open, example: Example) -> None:
    for path in ("plans", "exports"):
        app = visit(path, person=VIEWER)
        assert "vic@example.org is a viewer" in text_of(app).replace("\\", "")
        assert [each.label for each in app.button] == []
        assert len(app.dataframe) > 0


def test_somebody_who_lost_the_role_is_refused_where_it_counts(visit: Open, example: Example) -> None:
    from megatune_dashboard.app.context import Context
    from megatune_dashboard.app.source import Source
    from megatune_kernels.errors import MegatuneError

    context = Context(Source(example.path), VIEWER)
    with pytest.raises(MegatuneError, match="takes the role reviewer"), context.writing():
        raise AssertionError("a viewer wrote")


def test_a_draft_cannot_be_exported(visit: Open, example: Example) -> None:
    app = visit("exports", plan=example.draft)
    assert app.selectbox[0].value == example.serving
    (option,) = app.selectbox[0].options
    assert example.serving[:12] in option


def test_a_page_that_was_open_while_somebody_else_decided(visit: Open, example: Example) -> None:
    app = visit("plans")
    with open_database(example.path) as database, database.session() as session:
        reviews.approve(session, example.draft, ANA)
    press(app, "Approve")
    assert "is approved" in text_of(app)
    assert "it cannot be approved again" in text_of(app)


def test_what_an_exporter_cannot_express_is_said(visit: Open, example: Example) -> None:
    app = visit("exports")
    (chosen,) = [each for each in app.selectbox if each.label == "Exporter"]
    checked(chosen.select("vllm-allreduce").run())
    assert [each.label for each in app.button] == []
    assert len(app.warning) == 1


def test_hostile_plans_show_clear_pages(visit: Open, example: Example) -> None:
    review_examples.add_strange(example)
    with open_database(example.path, read_only=True) as database, database.session() as session:
        digests = {row.name: row.digest for row in queries.plan_summaries(session)}
    app = visit("plans", plan=digests[MARKUP])
    assert MARKUP not in text_of(app)
    assert plain(MARKUP) in text_of(app) or plain(MARKUP)[:40] in text_of(app)
    log = next(each.value for each in app.dataframe if "action" in each.value)
    assert MARKUP in log["who"].tolist()
    for digest in ("newer", "torn"):
        app = visit("plans", plan=digest)
        assert "This program cannot read the plan" in text_of(app)
        (approve,) = [each for each in app.button if each.label == "Approve"]
        assert approve.disabled
        # It can be compared with all the same, which says why it cannot.
        app = visit("plans", plan=example.draft, against=digest)
        assert "That plan cannot be compared with" in text_of(app)
    app = visit("plans", plan="newer")
    app.text_area[0].input("of another program")
    press(app, "Reject")
    assert state(example, "newer") is PlanState.RETIRED
    app = visit("exports", plan=digests[MARKUP])
    assert MARKUP not in text_of(app)
    press(app, "Export 2 files")
    assert state(example, digests[MARKUP]) is PlanState.EXPORTED


def test_an_address_that_names_nothing(visit: Open, example: Example) -> None:
    app = visit("plans", plan="<b>", against="nothing")
    assert app.selectbox[0].value == example.draft
    assert app.selectbox[1].value == example.serving
    assert "Choose a row for its files" in text_of(visit("exports", export="999"))


def test_files_are_those_that_were_exported(visit: Open, example: Example) -> None:
    with open_database(example.path, read_only=True) as database, database.session() as session:
        (row,) = queries.plan_exports(session)
        content = queries.plan(session, row.plan)
    assert content is not None
    files = files_of(exporter("json"), Plan.from_json(content.content))
    packed = archive(files)
    assert packed == archive(dict(reversed(files.items())))
    with zipfile.ZipFile(io.BytesIO(packed)) as opened:
        assert {name: opened.read(name) for name in opened.namelist()} == files
    app = visit("exports", export=str(row.id))
    shown = next(each.value for each in app.dataframe if "SHA-256" in each.value)
    assert dict(zip(shown["file"], shown["SHA-256"], strict=True)) == row.files
    assert not app.warning


def test_files_that_this_version_makes_otherwise_are_not_passed_off(visit: Open, example: Example) -> None:
    with open_database(example.path) as database, database.session() as session:
        other = reviews.export(session, example.serving, ANA, exporter="json", files={"plan.json": b"of another day"})
        gone = reviews.export(session, example.serving, ANA, exporter="of-another-package", files={"a": b"a"})
    assert "makes other files" in text_of(visit("exports", export=str(other)))
    assert "cannot be made again here" in text_of(visit("exports", export=str(gone)))


def test_the_picture_has_a_bar_for_each_band(example: Example) -> None:
    with open_database(example.path, read_only=True) as database, database.session() as session:
        row = queries.plan(session, example.draft)
    assert row is not None
    shape = Plan.from_json(row.content).operator("projection").shapes[1]
    made = bands_figure(("this plan", shape), ("now", None))
    assert sum(len(trace.y) for trace in made.data) == len(shape.bands) + 1
    spans = sorted((base, base + width) for trace in made.data for base, width in zip(trace.base, trace.x, strict=True))
    assert spans[0][0] == 1
    ends = [end for start, end in spans if (start, end) != (1, spans[-1][1])]
    assert sorted(ends)[-1] == spans[-1][1]
