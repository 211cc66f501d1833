"""Verifications on the pages Exports and Health, and what Health says of workers and their jobs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from sqlalchemy import select
from streamlit.testing.v1 import AppTest

from megatune_dashboard.app.pages.health import worker_state
from megatune_dashboard.app.verifications import NAME_LETTERS
from megatune_dashboard.app.verifications import band_rows
from megatune_dashboard.app.verifications import canary_name
from megatune_dashboard.verifying import run_verification
from megatune_db import leases
from megatune_db import queries
from megatune_db import store
from megatune_db import verifications
from megatune_db.leases import JobConfig
from megatune_db.leases import NewJob
from megatune_db.location import locate
from megatune_db.models import Workload
from megatune_db.queries import WorkerRow
from megatune_db.records import JobState
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.session import open_database
from megatune_planner.drafting import draft_plan
from megatune_planner.drafting import keep_draft
from megatune_planner.verifying.verification import BandVerdict
from megatune_planner.verifying.verification import CanaryVerdict
from megatune_planner.verifying.verification import Verdict
from megatune_planner.verifying.verification import Verification

Show = Callable[..., AppTest]


@pytest.fixture(scope="module")
def verified_once(tuned_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of two campaigns with a plan that was verified twice, by replays; do not write to it."""
    path = tmp_path_factory.mktemp("verified") / "verified.db"
    shutil.copy(tuned_once, path)
    with open_database(path) as database, database.session() as session:
        row = queries.campaign(session, "projections")
        assert row is not None
        plan = draft_plan(session, name="<b>kimi</b>", target=row.target, only_operators=["projection"])
        keep_draft(session, plan)
    for who in ("ana@example.org", "ben@example.org"):
        run_verification(plan, locate(path), who, recording="kimi-k3-h200")
    return path


@pytest.fixture
def verified(verified_once: Path, tmp_path: Path) -> Path:
    path = tmp_path / "verified.db"
    shutil.copy(verified_once, path)
    return path


def no_fault(app: AppTest) -> AppTest:
    assert not app.error, [each.value for each in app.error]
    return app


def charts(app: AppTest) -> int:
    return len(app.get("plotly_chart"))


def test_exports_show_verifications_over_time_and_what_each_compared(show: Show, verified: Path) -> None:
    with open_database(verified, read_only=True) as database, database.session() as session:
        latest, first = queries.verifications(session)
    app = no_fault(show(verified, "exports"))
    assert charts(app) == 1
    (shown,) = [each.value for each in app.dataframe if "verdict" in each.value]
    assert list(shown["who"]) == [latest.who, first.who] == ["ben@example.org", "ana@example.org"]
    assert list(shown["verdict"]) == [latest.verdict, first.verdict]
    app = no_fault(show(verified, "exports", verification=str(first.id)))
    _, bands, canaries = [each.value for each in app.dataframe if "verdict" in each.value]
    measured = bands[bands["now µs"].notna() & bands["then µs"].notna()]
    assert len(measured) > 0
    # A replay of the same recording is as fast as it was.
    assert measured["now µs"].tolist() == pytest.approx(measured["then µs"].tolist(), rel=0.05)
    assert (measured["low"] <= measured["high"]).all()
    assert canaries["now over then"].notna().any()


def test_canaries_and_bands_of_routings_are_told_apart() -> None:
    names = set()
    for routing in ("balanced", "power_law_1.01"):
        workload = f"experts beta=4,experts=896,k=3584,linear_beta=25,top=16,width=384 tokens=8 mxfp4 routing={routing}"
        canary = CanaryVerdict.model_construct(workload=workload, config="grouped cache=l2 group=4")
        names.add(canary_name(canary))
        fields = {"operator": "experts", "shape": "width=384", "world": 1, "tokens_lo": 1, "tokens_hi": 4, "ends": ()}
        words = {"verdict": Verdict.HOLDS, "decision": "grouped", "reason": ""}
        band = BandVerdict.model_construct(**fields, **words, routing=routing)
        (row,) = band_rows(Verification.model_construct(bands=(band,)))
        assert row["routing"] == routing
    assert len(names) == 2
    assert all(len(name) <= NAME_LETTERS and name.endswith(", grouped") for name in names)
    short = CanaryVerdict.model_construct(workload="projection k=7168,n=288 tokens=8", config=f"mma {60 * 'x'}")
    assert canary_name(short).startswith("projection k=7168,n=288 tokens=8, mma ")


def test_health_shows_canaries(show: Show, verified: Path) -> None:
    app = no_fault(show(verified, "health"))
    assert charts(app) == 1
    assert [each for each in (*app.success, *app.warning) if "kimi" in each.value]


def test_without_verifications_the_pages_say_how_to_make_one(show: Show, tuned: Path) -> None:
    app = no_fault(show(tuned, "exports"))
    assert f"megatune verify PLAN --db {tuned}" in [each.value for each in app.code]
    assert charts(no_fault(show(tuned, "health"))) == 0


def test_a_verification_of_another_version_is_said(show: Show, verified: Path) -> None:
    with open_database(verified) as database, database.session() as session:
        old = queries.verifications(session)[0]
        number = verifications.add_verification(
            session,
            plan=old.plan,
            target=old.target,
            at=datetime(2027, 1, 1),
            who="ana@example.org",
            provenance=Provenance.MEASURED,
            verdict="unheard of",
            reason="it is of tomorrow",
            document="{}",
        )
    app = no_fault(show(verified, "exports", verification=str(number)))
    assert [each for each in app.warning if "another version" in each.value]
    assert charts(no_fault(show(verified, "health"))) == 1


def test_health_names_workers_and_what_they_lost(show: Show, tuned: Path) -> None:
    with open_database(tuned) as database:
        with database.session() as session:
            campaign = queries.campaign(session, "projections")
            assert campaign is not None
            assert campaign.target is not None
            workload = queries.campaign_workloads(session, campaign.id)[0]
            config = store.put_config(session, digest="c", operator="projection", variant="simt", params={"rows": 8})
            job = NewJob(
                session.scalars(select(Workload.id).where(Workload.digest == workload.digest)).one(),
                Stage.SEARCH,
                900,
                "sampler",
                Regime(),
                (JobConfig(config, "c", "simt", {"rows": 8}, ()),),
            )
            leases.put_jobs(session, campaign.id, [job], [JobState.QUEUED])
        for _ in range(1 + leases.GIVEN_AGAIN):
            with database.session() as session:
                worker = leases.add_worker(
                    session,
                    campaign_id=campaign.id,
                    target=campaign.target,
                    provenance=Provenance.MEASURED,
                    needs_artifacts=False,
                )
                lease = leases.claim(session, worker, campaign.id)
                assert lease is not None
                leases.fail(session, lease, "the GPU fell off the bus")
        with database.session() as session:
            leases.end_worker(session, worker, "nothing is left to measure")
    app = no_fault(show(tuned, "health"))
    workers = next(each.value for each in app.dataframe if "process" in each.value)
    # Those of the campaigns themselves come after.
    assert list(workers["state"])[:3] == ["ended", "measuring", "measuring"]
    assert workers["why it ended"].iloc[0] == "nothing is left to measure"
    (lost,) = [each.value for each in app.dataframe if "last reason" in each.value]
    assert list(lost["state"]) == ["lost"]
    assert list(lost["last reason"]) == ["the GPU fell off the bus"]
    assert not lost["quarantined"].any()


@pytest.mark.parametrize(
    ("place", "silent_s", "ended", "state"),
    [
        ("elsewhere:1:boot/1:5", 1.0, "", "measuring"),
        ("elsewhere:1:boot/1:5", 1000.0, "", "silent"),
        ("elsewhere:1:boot/1:5", 1000.0, "done", "ended"),
        ("", 1.0, "", "measuring"),
    ],
)
def test_what_is_said_of_a_worker(place: str, silent_s: float, ended: str, state: str) -> None:
    row = WorkerRow(1, "c", place, "t", Provenance.MEASURED, 5.0, silent_s, ended, 0)
    assert worker_state(row) == state
