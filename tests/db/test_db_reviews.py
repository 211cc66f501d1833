"""Plans move on by reviews alone, every action is in the log, and nothing that was recorded goes away."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import pytest
from db_examples import TARGET
from db_examples import measured
from db_examples import put_examples
from query_steps import steps
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db import reviews
from megatune_db import store
from megatune_db.backend import VERSION_TABLE
from megatune_db.errors import PlanStateError
from megatune_db.records import PlanState
from megatune_db.reviews import By
from megatune_db.session import Database

ME = By("somebody", "as measured")
FILES = {"b.json": b"{}", "a.py": b"pass"}


@pytest.fixture(autouse=True)
def plans(database: Database) -> None:
    """Plans p0, p1, … for one target, model and worlds, and one for others."""
    with database.session() as session:
        put_examples(session)
        for number in range(4):
            store.put_plan(session, digest=f"p{number}", name="kimi", content="{}", target=TARGET, worlds=(8,))
        store.put_plan(session, digest="other", name="kimi", content="{}", target=TARGET, worlds=(4,))


def state(session: Session, digest: str) -> PlanState:
    found = queries.plan(session, digest)
    assert found is not None
    return found.state


def ship(session: Session, digest: str) -> int:
    reviews.approve(session, digest, ME)
    return reviews.export(session, digest, ME, exporter="json", files=FILES)


def log(session: Session, digest: str | None = None) -> list[tuple[str, ...]]:
    rows = queries.reviews(session, digest)[::-1]
    return [(row.plan, row.action.value, row.before.value, row.after.value, row.other or "") for row in rows]


def test_a_plan_is_approved_exported_and_gives_its_place_to_the_next(session: Session) -> None:
    ship(session, "p0")
    ship(session, "p1")
    assert (state(session, "p0"), state(session, "p1")) == (PlanState.RETIRED, PlanState.EXPORTED)
    assert log(session) == [
        ("p0", "approve", "draft", "approved", ""),
        ("p0", "export", "approved", "exported", ""),
        ("p1", "approve", "draft", "approved", ""),
        ("p0", "retire", "exported", "retired", "p1"),
        ("p1", "export", "approved", "exported", ""),
    ]
    newest = queries.reviews(session, limit=1)[0]
    assert (newest.who, newest.comment, newest.name) == ("somebody", "as measured", "kimi")
    for digest in ("p0", "p1", "p2"):
        found = queries.plan_in_service(session, digest)
        assert found is not None
        assert (found.digest, found.last_action, found.last_who) == ("p1", "export", "somebody")
    assert queries.plan_in_service(session, "other") is None


def test_what_was_exported(session: Session) -> None:
    reviews.approve(session, "p0", ME)
    first = reviews.export(session, "p0", ME, exporter="vllm", files=FILES, runtime="vllm", runtime_version="0.33.0")
    second = reviews.export(session, "p0", By("other"), exporter="json", files=dict(reversed(FILES.items())))
    third = reviews.export(session, "p1", ME, exporter="json", files={"a.py": b"pass "})
    found = queries.plan_exports(session)
    assert [row.id for row in found] == [third, second, first]
    assert (found[2].runtime, found[2].runtime_version, found[1].runtime) == ("vllm", "0.33.0", "")
    assert found[2].files == {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    assert found[2].digest == found[1].digest != found[0].digest
    assert [row.state for row in found] == [PlanState.DRAFT, PlanState.EXPORTED, PlanState.APPROVED]
    assert [row.id for row in queries.plan_exports(session, "p0", limit=1)] == [second]
    assert queries.plan_export(session, first) == found[2]
    assert queries.plan_export(session, 99) is None


def test_a_draft_that_is_exported_stays_one(session: Session) -> None:
    reviews.export(session, "p0", ME, exporter="json", files=FILES)
    assert log(session) == [("p0", "export", "draft", "draft", "")]
    assert queries.plan_in_service(session, "p0") is None


def test_rolling_back_and_forth(session: Session) -> None:
    for digest in ("p0", "p1", "p2"):
        ship(session, digest)
    assert [row.digest for row in queries.earlier_plans(session, "p2")] == ["p1", "p0"]
    reviews.roll_back(session, "p2", By("somebody", "slower than it was"), to="p0")
    assert [state(session, f"p{n}").value for n in range(3)] == ["exported", "retired", "retired"]
    assert log(session)[-2:] == [
        ("p2", "roll_back", "exported", "retired", "p0"),
        ("p0", "restore", "retired", "exported", "p2"),
    ]
    assert [row.digest for row in queries.earlier_plans(session, "p0")] == ["p2", "p1"]
    # What it took the place of in its day, not what was rolled back in its favour.
    assert queries.replaced_plan(session, "p0") is None
    ship(session, "p3")
    replaced = queries.replaced_plan(session, "p3")
    assert replaced is not None
    assert replaced.digest == "p0"
    reviews.retire(session, "p3", ME)
    assert queries.plan_in_service(session, "p3") is None
    assert log(session, "p3")[-1] == ("p3", "retire", "exported", "retired", "")
    ship(session, "p3")
    assert state(session, "p3") is PlanState.EXPORTED


def test_a_rejected_plan_can_be_approved_after_all(session: Session) -> None:
    reviews.reject(session, "p0", ME)
    assert state(session, "p0") is PlanState.RETIRED
    reviews.approve(session, "p0", ME)
    reviews.reject(session, "p0", ME)
    assert [entry[1] for entry in log(session)] == ["reject", "approve", "reject"]
    # It was never in service, so nothing can be rolled back to it.
    ship(session, "p1")
    assert queries.earlier_plans(session, "p1") == []


def test_what_cannot_be_done_says_why(session: Session) -> None:
    ship(session, "p0")
    ship(session, "p1")
    ship(session, "other")
    reviews.reject(session, "p3", ME)
    for action, says in [
        (lambda: reviews.approve(session, "p1", ME), r"plan kimi \(p1\) is exported: it cannot be approved again"),
        (lambda: reviews.reject(session, "p1", ME), "is exported: roll it back instead"),
        (lambda: reviews.reject(session, "p0", ME), "is retired: it cannot be rejected again"),
        (lambda: reviews.retire(session, "p2", ME), "is a draft: only a plan in service"),
        (lambda: reviews.roll_back(session, "p2", ME, to="p0"), "is a draft: only a plan in service"),
        (lambda: reviews.roll_back(session, "p1", ME, to="p3"), r"\(p3\) is retired and no earlier plan"),
        (lambda: reviews.roll_back(session, "p1", ME, to="p1"), r"\(p1\) is exported and no earlier plan"),
        (lambda: reviews.roll_back(session, "p1", ME, to="other"), "another target, model or worlds"),
    ]:
        before = log(session)
        with pytest.raises(PlanStateError, match=says):
            action()
        assert log(session) == before
    for action in (reviews.approve, reviews.reject, reviews.retire):
        with pytest.raises(LookupError, match="no plan unknown"):
            action(session, "unknown", ME)


def test_who_and_why_are_kept_as_they_can_be(session: Session) -> None:
    with pytest.raises(ValueError, match="needs somebody"):
        By("  ")
    reviews.approve(session, "p0", By(" me\udcff" + "e" * 300, " <b>so</b>\n\udcff "))
    (row,) = queries.reviews(session)
    assert row.who == "me?" + "e" * 253
    assert row.comment == "<b>so</b>\n?"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM megatune_reviews",
        "UPDATE megatune_reviews SET who = 'somebody else'",
        "DELETE FROM megatune_exports",
        "UPDATE megatune_exports SET digest = ''",
        "DELETE FROM megatune_plans WHERE digest = 'p3'",
        "UPDATE megatune_plans SET content = '[]'",
        "UPDATE megatune_plans SET model = 'other'",
        "DELETE FROM megatune_measurements",
        "UPDATE megatune_measurements SET provenance = 'measured'",
    ],
)
def test_nothing_that_was_recorded_is_changed_or_deleted(database: Database, statement: str) -> None:
    with database.session() as session:
        store.add_measurement(session, measured(0, 0))
        ship(session, "p0")
    with pytest.raises(IntegrityError, match="megatune_"), database.session() as session:
        session.execute(text(statement))


def test_two_plans_are_never_in_service_at_once(database: Database) -> None:
    with pytest.raises(IntegrityError, match=r"(?i)unique"), database.session() as session:
        session.execute(text("UPDATE megatune_plans SET state = 'exported' WHERE digest IN ('p0', 'p1')"))


def test_two_reviewers_at_once(database: Database) -> None:
    with database.session() as session:
        for number in range(4):
            reviews.approve(session, f"p{number}", ME)
    barrier = threading.Barrier(4)
    failures: list[Exception] = []

    def export(number: int) -> None:
        barrier.wait()
        try:
            with database.session() as session:
                reviews.export(session, f"p{number}", By(f"reviewer {number}"), exporter="json", files=FILES)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=export, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with database.session() as session:
        states = [row.state.value for row in queries.plan_summaries(session) if row.digest != "other"]
        assert sorted(states) == ["exported", "retired", "retired", "retired"]
        retired = [entry for entry in log(session) if entry[1] == "retire"]
        assert len(retired) == 3
        assert len({entry[4] for entry in retired}) == 3


def test_what_fails_half_way_leaves_no_trace(database: Database) -> None:
    def fail() -> None:
        with database.session() as session:
            ship(session, "p0")
            reviews.reject(session, "p0", ME)

    with pytest.raises(PlanStateError, match="roll it back"):
        fail()
    with database.session() as session:
        assert state(session, "p0") is PlanState.DRAFT
        assert (queries.reviews(session), queries.plan_exports(session)) == ([], [])


@pytest.mark.parametrize(
    "query",
    [
        lambda s: queries.reviews(s, "p0"),
        lambda s: queries.reviews(s, limit=5),
        lambda s: queries.plan_exports(s, "p0"),
        lambda s: queries.plan_in_service(s, "p0"),
        lambda s: queries.replaced_plan(s, "p0"),
        lambda s: queries.earlier_plans(s, "p0"),
        lambda s: queries.plan_summaries(s),
    ],
    ids=["reviews", "newest reviews", "exports", "in service", "replaced", "earlier", "summaries"],
)
def test_reviews_are_read_by_an_index(database: Database, query: Callable[[Session], object]) -> None:
    walked = {step.table for step in steps(database, query, as_if_large=True) if not step.searched}
    # Walking all plans, or the log from its end, is what these are for; the version and the targets are few rows.
    assert walked <= {"megatune_plans", "megatune_reviews", "megatune_targets", VERSION_TABLE}
