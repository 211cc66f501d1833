from __future__ import annotations

import dataclasses
import string
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from db_examples import NOON
from db_examples import OPERATOR
from db_examples import REGIME
from db_examples import TARGET
from db_examples import config
from db_examples import failed
from db_examples import measured
from db_examples import put_examples
from db_examples import workload
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from sqlalchemy import exc
from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db import codec
from megatune_db import models
from megatune_db import queries
from megatune_db import reviews
from megatune_db import store
from megatune_db.records import CampaignState
from megatune_db.records import Measurement
from megatune_db.records import PlanState
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.records import TrialState
from megatune_db.session import Database


@pytest.fixture
def session(session: Session) -> Session:
    put_examples(session)
    return session


def _count(session: Session, model: type[models.Base]) -> int:
    return len(session.execute(select(model)).all())


def test_putting_again_changes_nothing(session: Session) -> None:
    before = {model: _count(session, model) for model in (models.Target, models.Workload, models.Config)}
    put_examples(session)
    assert before == {model: _count(session, model) for model in before}
    assert before == {models.Target: 1, models.Workload: 3, models.Config: 6}


def test_what_another_process_put_in_between_is_found(database: Database) -> None:
    session = Session(database.engine)
    genuine, looked = session.scalar, []

    def scalar(statement: object, *rest: object) -> object:
        answer = genuine(statement, *rest)  # type: ignore[call-overload]
        if not looked:
            looked.append(answer)
            with database.session() as other:
                store.put_target(other, digest="new", hardware={}, toolchain={})
        return answer

    session.scalar = scalar  # type: ignore[method-assign,assignment]
    found = store.put_target(session, digest="new", hardware={}, toolchain={})
    assert looked == [None]
    assert session.scalars(select(models.Target.id).filter_by(digest="new")).all() == [found]
    session.close()


def test_two_operators_can_share_the_digest_of_a_config(session: Session) -> None:
    put_examples(session, operator="reduction")
    store.add_measurement(session, measured(0, 0, 10.0))
    store.add_measurement(session, measured(0, 0, 20.0, operator="reduction"))
    for operator, expected in ((OPERATOR, 10.0), ("reduction", 20.0)):
        known = queries.known_measurements(
            session,
            workload=workload(0, operator),
            target=TARGET,
            regime=REGIME,
            provenance=Provenance.MEASURED,
        )
        assert [found.median_us for found in known.values()] == [expected]


def test_whether_bits_change_is_filled_in_once_it_is_known(session: Session) -> None:
    def put(changes_bits: bool | None) -> bool | None:
        found = store.put_config(
            session, digest="c", operator=OPERATOR, variant="simt", params={}, changes_bits=changes_bits
        )
        return session.scalar(select(models.Config.changes_bits).filter_by(id=found))

    assert [put(None), put(True), put(None), put(True)] == [None, True, True, True]


def test_facts_of_a_workload_are_filled_in_once_they_are_known_and_stay(session: Session) -> None:
    def put(facts: dict[str, float] | None) -> dict[str, float] | None:
        found = store.put_workload(
            session,
            digest="w",
            operator=OPERATOR,
            shape="n=1",
            dims={"n": 1},
            tokens=1,
            dtype="bf16",
            world=1,
            routing="none",
            facts=facts,
        )
        return session.scalar(select(models.Workload.facts).filter_by(id=found))

    known = {"distinct experts": 16.0}
    assert [put(None), put(known), put(None), put({"distinct experts": 17.0})] == [None, known, known, known]


def test_the_objective_is_that_of_the_last_campaign_on_the_target_that_says_one(session: Session) -> None:
    assert queries.asked_objective(session, target=TARGET) is None
    objectives = [{"kind": "mean"}, {"kind": "worst"}, None, {"kind": "elsewhere"}]
    for number, objective in enumerate(objectives):
        found = store.put_campaign(session, name=str(number), file_text="", file_digest="", objective=objective)
        if number < 3:
            store.set_campaign(session, found, target=TARGET)
    assert queries.asked_objective(session, target=TARGET) == {"kind": "worst"}
    store.put_campaign(session, name="1", file_text="edited", file_digest="1", objective=None)
    assert queries.asked_objective(session, target=TARGET) == {"kind": "mean"}


def test_artifacts(session: Session) -> None:
    values = {"arch": "sm_90a", "entry": "entry", "registers": 96, "local_bytes": 8, "cubin_bytes": 20480}
    first = store.put_artifact(session, key="k", dsl="4.8.1", **values)  # type: ignore[arg-type]
    assert store.put_artifact(session, key="k", **values) == first  # type: ignore[arg-type]
    assert queries.artifacts(session, ["k", "unknown"]) == {
        "k": queries.ArtifactRow("k", "sm_90a", "entry", 96, 8, 20480, "4.8.1")
    }


def test_an_edited_campaign_keeps_its_id(session: Session) -> None:
    first = store.put_campaign(session, name="h200", file_text="a", file_digest="1")
    store.set_campaign(session, first, state=CampaignState.RUNNING, target=TARGET, started_at=NOON)
    assert store.put_campaign(session, name="h200", file_text="a", file_digest="1") == first
    assert store.put_campaign(session, name="h200", file_text="b", file_digest="2") == first
    found = queries.campaign(session, "h200")
    assert found is not None
    assert (found.file_text, found.file_digest) == ("b", "2")
    assert (found.state, found.target, found.started_at) == (CampaignState.RUNNING, TARGET, NOON)


def test_a_campaign_is_set_field_by_field(session: Session) -> None:
    found = store.put_campaign(session, name="h200", file_text="a", file_digest="1")
    store.set_campaign(session, found, budget={"trials": 100}, measuring_s=1.5, wall_s=2.0)
    store.set_campaign(session, found, finished_at=NOON)
    store.set_campaign(session, found)
    (row,) = queries.campaigns(session)
    assert (row.budget, row.measuring_s, row.wall_s, row.finished_at) == ({"trials": 100}, 1.5, 2.0, NOON)
    assert row.state is CampaignState.CREATED
    store.set_campaign(session, found, finished_at=None, state="stopped")  # type: ignore[typeddict-item]
    (row,) = queries.campaigns(session)
    assert (row.finished_at, row.state) == (None, CampaignState.STOPPED)
    with pytest.raises(TypeError, match="a campaign has no colour"):
        store.set_campaign(session, found, colour="red")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="not a valid CampaignState"):
        store.set_campaign(session, found, state="asleep")  # type: ignore[typeddict-item]
    with pytest.raises(LookupError, match="no campaign 99"):
        store.set_campaign(session, 99, wall_s=1.0)
    with pytest.raises(LookupError, match="no target"):
        store.set_campaign(session, found, target="unknown")


def test_numbers_that_json_cannot_hold_are_refused(session: Session) -> None:
    found = store.put_campaign(session, name="h200", file_text="a", file_digest="1")
    with pytest.raises((exc.StatementError, ValueError), match="not JSON compliant"):
        store.set_campaign(session, found, budget={"hours": float("nan")})


def test_a_search_measurement_is_kept_once_and_as_it_was(session: Session) -> None:
    first = store.add_measurement(session, measured(0, 0, 10.0))
    assert store.add_measurement(session, measured(0, 0, 99.0, session="second")) == first
    assert store.add_measurement(session, failed(0, 0)) == first
    assert queries.measurements(session, [first])[first] == measured(0, 0, 10.0)


@pytest.mark.parametrize(
    "other",
    [
        measured(1, 0),
        measured(0, 1),
        measured(0, 0, regime=Regime("warm", "graph")),
        measured(0, 0, provenance=Provenance.REPLAYED),
        measured(0, 0, stage=Stage.FINAL),
    ],
)
def test_every_part_of_the_key_makes_another_row(session: Session, other: Measurement) -> None:
    assert store.add_measurement(session, measured(0, 0)) != store.add_measurement(session, other)


def test_finalists_are_kept_once_a_session(session: Session) -> None:
    first, second = (measured(0, 0, stage=Stage.FINAL, session=name) for name in ("first", "second"))
    ids = [store.add_measurement(session, record) for record in (first, second, first, second)]
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2


def test_many_at_once_are_the_same_as_one_by_one(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_CHUNK", 7)
    records = [measured(tokens, number, 1.0 + number) for tokens in range(3) for number in range(6)]
    records += [failed(0, 0, stage=Stage.FINAL), measured(0, 0, 5.0)]
    store.add_measurement(session, records[3])
    assert store.add_measurements(session, iter(records)) == 18
    assert store.add_measurements(session, records) == 0
    assert store.add_measurements(session, []) == 0
    stored = queries.measurements(session, range(1, 100))
    assert sorted(map(repr, stored.values())) == sorted(map(repr, records[:-1]))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("workload", "no workload unknown: put it first"),
        ("config", "no config unknown of projection: put it first"),
        ("target", "no target unknown: put it first"),
    ],
)
def test_what_a_measurement_names_must_be_there(session: Session, field: str, message: str) -> None:
    record = dataclasses.replace(measured(0, 0), **{field: "unknown"})
    with pytest.raises(LookupError, match=message):
        store.add_measurement(session, record)
    with pytest.raises(LookupError, match=message):
        store.add_measurements(session, [record])


def test_a_trial_is_answered_and_keeps_its_answer(session: Session) -> None:
    campaign = store.put_campaign(session, name="h200", file_text="a", file_digest="1")
    measurement = store.add_measurement(session, measured(0, 0))

    def add(measurement_id: int | None, *, reason: str = "sampler", state: TrialState | None = None) -> int:
        return store.add_trial(
            session,
            campaign_id=campaign,
            workload=workload(0),
            config=config(0),
            number=0,
            measurement_id=measurement_id,
            reason=reason,
            reused=False,
            state=state,
        )

    def state(workload_digest: str | None = None) -> list[tuple[TrialState, int | None, Status | None]]:
        found = queries.trials(session, campaign, workload=workload_digest)
        return [(row.state, row.measurement_id, row.status) for row in found]

    first = add(None)
    assert state() == [(TrialState.ASKED, None, None)]
    assert add(None, state=TrialState.STALE) == first
    assert state() == [(TrialState.STALE, None, None)]
    assert add(None) == first
    assert store.set_trials_stale(session, campaign + 1) == 0
    assert store.set_trials_stale(session, campaign) == 1
    assert state() == [(TrialState.STALE, None, None)]
    assert add(measurement) == first
    assert state() == [(TrialState.DONE, measurement, Status.OK)]
    assert store.set_trials_stale(session, campaign) == 0
    assert add(None) == first
    assert state() == [(TrialState.DONE, measurement, Status.OK)]
    assert add(measurement, reason="finalist") != first
    assert len(state(workload(0))) == 2
    assert state(workload(1)) == []


def test_a_trial_belongs_to_a_campaign(session: Session) -> None:
    with pytest.raises(exc.IntegrityError, match=r"(?i)foreign key"):
        store.add_trial(
            session,
            campaign_id=99,
            workload=workload(0),
            config=config(0),
            number=0,
            measurement_id=None,
            reason="sampler",
            reused=False,
        )


def test_putting_a_plan_again_leaves_it_as_it_is(session: Session) -> None:
    first = store.put_plan(session, digest="p", name="h200", content="{}", target=TARGET, worlds=(8, 4, 8))
    reviews.approve(session, "p", reviews.By("somebody"))
    assert store.put_plan(session, digest="p", name="other", content="", target=TARGET, model="m") == first
    found = queries.plan(session, "p")
    assert found is not None
    assert (found.state, found.target, found.content) == (PlanState.APPROVED, TARGET, "{}")
    assert (found.name, found.model, found.worlds) == ("h200", "h200", (4, 8))
    with pytest.raises(LookupError, match="no target unknown"):
        store.put_plan(session, digest="q", name="h200", content="{}", target="unknown")


def test_samples_that_float32_cannot_hold_are_refused(session: Session) -> None:
    with pytest.raises(ValueError, match="finite number of microseconds"):
        store.add_measurement(session, measured(0, 0, 1.0, samples_us=(1e39,)))
    assert codec.decode_samples(codec.encode_samples([1.5])).dtype == np.dtype("<f4")


def test_half_a_character_does_not_lose_a_measurement(session: Session) -> None:
    found = store.add_measurement(session, failed(0, 0, reason="driver said \udcff"))
    assert queries.measurements(session, [found])[found].reason == "driver said ?"


_SMALL = st.floats(2.0**-60, 2.0**60, width=32)
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_PARTS = st.dictionaries(st.sampled_from(["idle", "consumer1 cold", "consumer1 hot"]), st.floats(0.1, 1e6), max_size=3)


@st.composite
def records(draw: st.DrawFn) -> Measurement:
    """Any measurement of the examples' workloads, configs and target."""
    status = draw(st.sampled_from(Status))
    ok = status is Status.OK
    samples = tuple(draw(st.lists(_SMALL, min_size=1, max_size=40))) if ok else ()
    flags = st.lists(st.booleans(), min_size=len(samples), max_size=len(samples))
    low, median, high = sorted(draw(st.tuples(*[st.floats(1e-9, 1e12)] * 3)))
    return Measurement(
        workload=workload(draw(st.integers(0, 2))),
        config=config(draw(st.integers(0, 5))),
        target=TARGET,
        regime=Regime(draw(st.sampled_from(["cold", "warm"])), draw(st.sampled_from(["graph", "eager"]))),
        stage=draw(st.sampled_from([Stage.SEARCH, Stage.FINAL])),
        status=status,
        provenance=draw(st.sampled_from(Provenance)),
        session=draw(st.text(string.ascii_letters + "-é", max_size=20)),
        measured_at=draw(st.datetimes(datetime(2020, 1, 1))),
        samples_us=samples,
        throttled=tuple(draw(st.one_of(st.just([]), flags))),
        median_us=median if ok else None,
        low_us=low if ok else None,
        high_us=high if ok else None,
        launches_a_sample=draw(st.integers(0, 10**6)),
        sm_clock_mhz=draw(st.none() | st.integers(0, 10**4)),
        flush_bytes=draw(st.integers(0, 2**62)),
        reason=draw(_TEXT if ok else _TEXT.filter(bool)),
        compile_s=draw(st.floats(0, 1e6)),
        measure_s=draw(st.floats(0, 1e6)),
        artifact=draw(st.text(string.hexdigits, max_size=32)),
        parts_us=tuple(draw(_PARTS).items()) if ok else (),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.lists(records(), max_size=4))
def test_a_measurement_comes_back_as_it_went_in(database: Database, batch: list[Measurement]) -> None:
    with Session(database.engine) as session:  # rolled back at its end
        put_examples(session)
        ids = [store.add_measurement(session, record) for record in batch]
        expected: dict[int, Measurement] = {}
        for found, record in zip(ids, batch, strict=True):
            expected.setdefault(found, record)
        session.expire_all()
        assert queries.measurements(session, ids) == expected
        for found, samples in queries.samples(session, ids).items():
            assert tuple(samples.tolist()) == expected[found].samples_us
        assert store.add_measurements(session, batch) == 0


def test_store_and_queries_leave_the_commit_to_others() -> None:
    folder = Path(store.__file__).parent
    for file in [folder / "store.py", folder / "reviews.py", *(folder / "queries").glob("*.py")]:
        assert "commit()" not in file.read_text()
