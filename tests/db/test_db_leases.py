"""Jobs are leased, answered once and given up fairly; one process coordinates a campaign."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from unittest import mock

import pytest
from db_examples import TARGET
from db_examples import config
from db_examples import failed
from db_examples import measured
from db_examples import put_examples
from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy import update
from sqlalchemy.orm import Session

from megatune_db import election
from megatune_db import leases
from megatune_db import place
from megatune_db import queries
from megatune_db import store
from megatune_db.clock import database_now
from megatune_db.election import Term
from megatune_db.errors import CoordinatorReplacedError
from megatune_db.leases import JobConfig
from megatune_db.leases import Lease
from megatune_db.leases import NewJob
from megatune_db.leases import Receipt
from megatune_db.models import Job
from megatune_db.models import Measurement as Row
from megatune_db.records import JobState
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.records import TrialState
from megatune_db.session import Database


@pytest.fixture
def campaign(database: Database) -> int:
    """A campaign whose trials 1 to 4 are jobs that wait, of the configs 0, 1, 3 and 4."""
    with database.session() as session:
        put_examples(session)
        found = store.put_campaign(session, name="first", file_text="first", file_digest="first")
        jobs = [job(session, number, which) for number, which in enumerate((0, 1, 3, 4), 1)]
        leases.put_jobs(session, found, jobs, [JobState.QUEUED] * 4)
    return found


def job(session: Session, number: int, *configs: int, stage: Stage = Stage.SEARCH) -> NewJob:
    ids = [
        store.put_config(session, digest=config(each), operator="projection", variant="simt", params={})
        for each in configs
    ]
    named = tuple(
        JobConfig(found, config(each), "simt", {}, ("key",)) for found, each in zip(ids, configs, strict=True)
    )
    (workload_id,) = session.execute(select(Job.workload_id).limit(1)).first() or (2,)
    reason = "sampler" if stage is Stage.SEARCH else "finalist"
    return NewJob(workload_id, stage, number, reason, Regime(), named)


def worker(session: Session, campaign: int) -> int:
    return leases.add_worker(
        session, campaign_id=campaign, target=TARGET, provenance=Provenance.MEASURED, needs_artifacts=False
    )


def claim(database: Database, campaign: int, lease_s: float = 60.0) -> Lease:
    with database.session() as session:
        found = leases.claim(session, worker(session, campaign), campaign, lease_s)
    assert found is not None
    return found


def states(database: Database, campaign: int) -> list[TrialState]:
    with database.session() as session:
        return [row.state for row in queries.trials(session, campaign)]


def test_the_oldest_waits_least_and_a_result_is_taken_once(database: Database, campaign: int) -> None:
    first = claim(database, campaign)
    assert (first.attempt, first.what.number, first.what.configs[0].artifacts) == (1, 1, ("key",))
    with database.session() as session:
        assert leases.mine(session, first.worker_id, campaign) == first
        assert leases.finish(session, first, [measured(1, 0, 9.0)]) is Receipt.TAKEN
        assert leases.mine(session, first.worker_id, campaign) is None
    with database.session() as session:
        for _ in range(2):
            assert leases.finish(session, first, [measured(1, 0, 8.0)]) is Receipt.IGNORED
        assert session.scalar(select(Job.ignored).where(Job.id == first.job)) == 2
        assert session.scalar(select(func.count()).select_from(Row)) == 1
        (answer,) = leases.answers(session, [first.job, first.job + 1])
        assert (answer.job, answer.status, answer.median_us) == (first.job, Status.OK, 9.0)
    assert claim(database, campaign).what.number == 2
    assert states(database, campaign) == [TrialState.DONE, *[TrialState.ASKED] * 3]


def test_many_workers_never_share_a_job(database: Database, campaign: int) -> None:
    taken: Counter[int] = Counter()

    def work() -> None:
        with database.session() as session:
            me = worker(session, campaign)
        while True:
            with database.session() as session:
                lease = leases.claim(session, me, campaign)
                if lease is None:
                    return
                taken[lease.job] += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken.values()) == [1, 1, 1, 1]


def test_who_measures_is_told_the_latest_first(database: Database, campaign: int) -> None:
    first, second = claim(database, campaign), claim(database, campaign)
    with database.session() as session:
        leases.end_worker(session, first.worker_id, "nothing is left to measure")
        leases.finish(session, second, [measured(1, 0, 9.0)])
    with database.session() as session:
        found = queries.workers(session)
        assert [each.id for each in found] == [second.worker_id, first.worker_id]
        assert [each.leased for each in found] == [0, 1]
        assert [each.ended for each in found] == ["", "nothing is left to measure"]
        assert {(each.place, each.target, each.provenance) for each in found} == {
            (place.here(), TARGET, Provenance.MEASURED)
        }
        assert all(0 <= each.silent_s < 600 and 0 <= each.ran_s < 600 for each in found)
        assert [each.id for each in queries.workers(session, most=1)] == [second.worker_id]


def test_a_lost_lease_is_given_out_twice_more_and_is_not_the_configs_fault(database: Database, campaign: int) -> None:
    for attempt in (1, 2, 3):
        lost = claim(database, campaign, lease_s=-1.0)
        assert (lost.what.number, lost.attempt) == (1, attempt)
        with database.session() as session:
            assert leases.expire(session, campaign) == 1
            assert leases.expire(session, campaign) == 0
    with database.session() as session:
        (answer,) = leases.answers(session, [lost.job])
        assert (answer.state, answer.status) == (JobState.LOST, None)
        assert answer.reason.count("not heard of") == 3
        (trouble,) = queries.troubled_jobs(session, campaign)
        assert (trouble.state, trouble.strikes, len(trouble.failures)) == (JobState.LOST, 0, 3)
        # It was given up: what comes now is not taken any more.
        assert leases.finish(session, lost, [measured(1, 0)]) is Receipt.IGNORED
    assert states(database, campaign)[0] is TrialState.LOST
    assert claim(database, campaign).what.number == 2


def test_a_late_result_counts_while_the_job_is_open(database: Database, campaign: int) -> None:
    late = claim(database, campaign, lease_s=-1.0)
    with database.session() as session:
        leases.expire(session, campaign)
    again = claim(database, campaign)
    assert (again.job, again.attempt) == (late.job, 2)
    with database.session() as session:
        assert leases.finish(session, late, [measured(1, 0, 7.0)]) is Receipt.TAKEN
        assert leases.finish(session, again, [measured(1, 0, 8.0)]) is Receipt.IGNORED
        assert session.scalars(select(Row.median_us)).all() == [7.0]


def test_renewed_leases_hold_whatever_clock_a_worker_has(database: Database, campaign: int) -> None:
    held = claim(database, campaign, lease_s=-1.0)
    with mock.patch("time.time", return_value=0.0), database.session() as session:
        leases.renew(session, held.worker_id, campaign)
        assert leases.expire(session, campaign) == 0
        assert leases.holders(session, campaign) == {held.worker_id: place.here()}
        assert leases.expire(session, campaign, [held.worker_id]) == 1


def test_the_second_strike_is_the_configs(database: Database, campaign: int) -> None:
    first = claim(database, campaign)
    with database.session() as session:
        assert leases.finish(session, first, [failed(1, 0, reason="stopped in phase 2")]) is Receipt.AGAIN
        # Delivered again, because nobody could say whether it was taken.
        assert leases.finish(session, first, [failed(1, 0, reason="stopped in phase 2")]) is Receipt.AGAIN
    second = claim(database, campaign)
    assert (second.job, second.attempt) == (first.job, 2)
    with database.session() as session:
        assert leases.finish(session, second, [failed(1, 0, reason="stopped in phase 3")]) is Receipt.TAKEN
        row = session.execute(select(Row.status, Row.reason)).one()
        assert row.status is Status.HANG
        assert row.reason.startswith("quarantined: stopped in phase 3; attempt 1 ")
        assert row.reason.endswith("hang: stopped in phase 2")
        (trouble,) = queries.troubled_jobs(session, campaign)
        assert (trouble.state, trouble.strikes, len(trouble.failures)) == (JobState.DONE, 2, 2)


def test_one_strike_is_none(database: Database, campaign: int) -> None:
    first = claim(database, campaign)
    with database.session() as session:
        assert leases.finish(session, first, [failed(1, 0, Status.CRASH)]) is Receipt.AGAIN
    with database.session() as session:
        second = leases.claim(session, first.worker_id, campaign)
        assert second is not None
        assert leases.finish(session, second, [measured(1, 0)]) is Receipt.TAKEN
        assert leases.finish(session, first, [failed(1, 0, Status.CRASH)]) is Receipt.IGNORED
    with database.session() as session:
        assert session.scalars(select(Row.status)).all() == [Status.OK]


def test_finalists_are_one_job(database: Database, campaign: int) -> None:
    with database.session() as session:
        leases.withdraw(session, campaign)
        leases.put_jobs(session, campaign, [job(session, 4, 0, 3, stage=Stage.FINAL)], [JobState.QUEUED])
    lease = claim(database, campaign)
    assert (lease.what.stage, len(lease.what.configs)) == (Stage.FINAL, 2)
    results = [measured(1, 0, stage=Stage.FINAL), failed(1, 3, stage=Stage.FINAL)]
    with database.session() as session:
        assert leases.finish(session, lease, results) is Receipt.TAKEN
    with database.session() as session:
        finals = [row for row in queries.trials(session, campaign) if row.reason == "finalist"]
        assert [(row.number, row.state, row.status) for row in finals] == [
            (4, TrialState.DONE, Status.OK),
            (4, TrialState.DONE, Status.HANG),
        ]


def test_what_is_withdrawn_can_come_back_and_what_could_not_be_built_is_answered(
    database: Database, campaign: int
) -> None:
    leased = claim(database, campaign)
    with database.session() as session:
        leases.withdraw(session, campaign)
        assert leases.claim(session, leased.worker_id, campaign) is None
        known = leases.jobs_of(session, campaign, leased.what.workload_id)
        assert known[Stage.SEARCH, 1] == (leased.job, JobState.LEASED)
        (second, state) = known[Stage.SEARCH, 2]
        assert state is JobState.WITHDRAWN
        leases.make_ready(session, campaign, second, job(session, 2, 1))
        third = known[Stage.SEARCH, 3][0]
        broken = failed(1, 3, Status.COMPILE_ERROR)
        leases.close(session, campaign, third, job(session, 3, 3), broken)
        leases.close(session, campaign, third, job(session, 3, 3), broken)
        assert [answer.status for answer in leases.answers(session, [third])] == [Status.COMPILE_ERROR]
    assert claim(database, campaign).what.number == 2


def test_a_worker_that_cannot_measure_says_so(database: Database, campaign: int) -> None:
    lease = claim(database, campaign)
    with database.session() as session:
        leases.fail(session, lease, "no artifact")
        leases.fail(session, lease, "no artifact")
        (trouble,) = queries.troubled_jobs(session, campaign)
        assert (trouble.state, [failure["reason"] for failure in trouble.failures]) == (
            JobState.QUEUED,
            ["no artifact"],
        )
    untouched = claim(database, campaign)
    with database.session() as session:
        leases.give_back(session, untouched)
    assert claim(database, campaign).attempt == untouched.attempt + 1


def test_one_coordinator_and_the_next_when_it_is_late(database: Database, campaign: int) -> None:
    with database.session() as session:
        first = election.elect(session, campaign, holder="node1:1::")
        assert isinstance(first, Term)
        assert election.elect(session, campaign, holder="node2:2::") == "node1:1::"
        election.fence(session, first)
        session.execute(update(election.Coordinator).values(expires_at=database_now() - 1))
        second = election.elect(session, campaign, holder="node2:2::")
        assert isinstance(second, Term)
        assert second.epoch == first.epoch + 1
    with pytest.raises(CoordinatorReplacedError, match="taken over"), database.session() as session:
        election.fence(session, first)
    with database.session() as session:
        election.resign(session, first)
        assert election.elect(session, campaign, holder="node1:1::") == "node2:2::"
        election.resign(session, second)
        assert isinstance(election.elect(session, campaign, holder="node1:1::"), Term)


def test_the_place_of_a_process_that_is_gone_is_free(database: Database, campaign: int) -> None:
    script = "from megatune_db import place; print(place.here(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        other = process.stdout.readline().strip()
        assert not place.is_gone(other)
        assert place.readable(other).startswith(f"process {process.pid} on ")
        with database.session() as session:
            assert isinstance(election.elect(session, campaign, holder=other), Term)
            assert election.elect(session, campaign) == other
        process.kill()
        process.wait()
    assert place.is_gone(other)
    assert not place.is_gone(place.here())
    # Nobody can tell from here whether these run.
    assert not any(map(place.is_gone, ["", "node9:7", other.replace("/", "x")]))
    with database.session() as session:
        assert isinstance(election.elect(session, campaign), Term)


def test_a_way_begins_once_on_each_basis(database: Database, campaign: int) -> None:
    with database.session() as session:
        term = election.elect(session, campaign)
        assert isinstance(term, Term)
        begun = election.beginning(session, term, "one")
        assert (begun.measurements, begun.trials) == (0, 4)
    lease = claim(database, campaign)
    with database.session() as session:
        leases.finish(session, lease, [measured(1, 0)])
        assert begun.is_new
        assert election.beginning(session, term, "one") == replace(begun, is_new=False)
        assert election.beginning(session, term, "one", anew=True) == replace(begun, measurements=1)
        assert election.beginning(session, term, "other") == replace(begun, measurements=1)
