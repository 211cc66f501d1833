"""What a database holds at a glance: shapes, parameters, failures, paces and sizes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

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
from sqlalchemy import update
from sqlalchemy.orm import Session

from megatune_db import bulk
from megatune_db import models
from megatune_db import queries
from megatune_db import store
from megatune_db.queries import ShapeRow
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import Database


def shape_of(session: Session) -> ShapeRow:
    (row,) = queries.measured_shapes(session)
    return row


def trial(session: Session, campaign: int, number: int, measurement: int | None, tokens: int = 0) -> int:
    return store.add_trial(
        session,
        campaign_id=campaign,
        workload=workload(tokens),
        config=config(number),
        number=number,
        measurement_id=measurement,
        reason="sampler",
        reused=False,
    )


def test_shapes_are_told_apart_by_what_is_never_compared(database: Database) -> None:
    with database.session() as session:
        put_examples(session)
        store.put_target(session, digest="other", hardware={}, toolchain={})
        store.add_measurement(session, measured(2, 0))
        store.add_measurement(session, measured(1, 0))
        store.add_measurement(session, failed(0, 0))
        row = shape_of(session)
        assert row.workloads == ((1, workload(1)), (2, workload(2))), "what never worked has no curve"
        assert (row.target, row.regime, row.provenance, row.operator) == (TARGET, REGIME, Provenance.MEASURED, OPERATOR)
        assert hash(row) is not None
        for other in (
            measured(1, 0, target="other"),
            measured(1, 0, regime=Regime("warm")),
            measured(1, 0, provenance=Provenance.REPLAYED),
        ):
            store.add_measurement(session, other)
        rows = queries.measured_shapes(session)
    assert len(rows) == len({(each.target, each.regime, each.provenance) for each in rows}) == 4


def test_a_shapes_version_changes_with_its_measurements_alone(database: Database) -> None:
    with database.session() as session:
        put_examples(session)
        store.add_measurement(session, measured(0, 0))
        row = shape_of(session)
        before = queries.shapes_version(session, (row,))
        store.add_measurement(session, measured(0, 0, regime=Regime("warm")))
        store.put_campaign(session, name="h200", file_text="", file_digest="")
        assert queries.shapes_version(session, (row,)) == before
        store.add_measurement(session, failed(0, 1))
        assert queries.shapes_version(session, (row,)) != before
        assert queries.shapes_version(session, (replace(row, target="unknown"),)) == ((0, 0),)


def test_a_parameters_curve_is_the_fastest_of_each_value(database: Database) -> None:
    with database.session() as session:
        put_examples(session, configs=7)
        for number, us in ((0, 5.0), (3, 4.0), (6, 6.0)):
            store.add_measurement(session, measured(1, number, us))
        store.add_measurement(session, measured(1, 1, 1.0))
        store.add_measurement(session, measured(1, 3, 0.5, stage=Stage.FINAL))
        store.put_config(session, digest="more", operator=OPERATOR, variant="simt", params={"rows": 3, "pdl": True})
        store.add_measurement(session, replace(measured(1, 0, 3.5), config="more"))
        found = queries.parameter_curves(session, shape_of(session), variant="simt", parameter="rows")
        switches = queries.parameter_curves(session, shape_of(session), variant="simt", parameter="pdl")
        none = queries.parameter_curves(session, shape_of(session), variant="simt", parameter='"; DROP')
    assert [(point.tokens, point.value, point.median_us) for point in found] == [(1, 0, 5.0), (1, 3, 3.5), (1, 6, 6.0)]
    assert [(point.value, point.median_us) for point in switches] == [(1, 3.5)]
    assert not none


def test_failures_are_counted_and_told_the_latest_first(database: Database) -> None:
    with database.session() as session:
        put_examples(session)
        ids = [
            store.add_measurement(session, each)
            for each in (
                failed(0, 0, Status.HANG),
                failed(1, 0, Status.HANG),
                failed(2, 1, Status.CRASH),
                measured(0, 1),
            )
        ]
        campaign = store.put_campaign(session, name="h200", file_text="", file_digest="")
        trial(session, campaign, 1, ids[2], tokens=2)
        assert queries.failure_counts(session) == {Status.HANG: 2, Status.CRASH: 1}
        configs = queries.failing_configs(session)
        assert [(each.config, each.status, each.measurements) for each in configs] == [
            (config(0), Status.HANG, 2),
            (config(1), Status.CRASH, 1),
        ]
        assert len(queries.failing_configs(session, most=1)) == 1
        (crashing,) = queries.failing_configs(session, statuses=(Status.CRASH,))
        assert crashing.config == config(1)
        every = queries.failures(session)
        assert [each.measurement_id for each in every] == ids[2::-1]
        assert (every[0].reason, every[0].tokens, every[0].variant) == ("it was crash", 2, "mma")
        assert [each.status for each in queries.failures(session, statuses=(Status.HANG,), most=1)] == [Status.HANG]
        assert [each.measurement_id for each in queries.failures(session, campaign_id=campaign)] == [ids[2]]
        assert [each.measurement_id for each in queries.failures(session, workload=workload(1))] == [ids[1]]


def test_a_campaigns_pace_workloads_and_name(database: Database) -> None:
    with database.session() as session:
        put_examples(session)
        campaign = store.put_campaign(session, name="h200", file_text="", file_digest="")
        store.put_campaign(session, name="later", file_text="", file_digest="")
        assert queries.campaign_names(session) == ["later", "h200"]
        assert queries.trial_pace_s(session, campaign) is None
        assert queries.campaign_workloads(session, campaign) == []
        for number, tokens in enumerate((2, 0, 2)):
            id_ = trial(session, campaign, number, None, tokens)
            at = NOON + timedelta(seconds=(0, 100, 103)[number])
            session.execute(update(models.Trial).where(models.Trial.id == id_).values(created_at=at))
        assert queries.trial_pace_s(session, campaign) == pytest.approx(51.5)
        assert queries.trial_pace_s(session, campaign, last=2) == pytest.approx(3)
        assert [each.tokens for each in queries.campaign_workloads(session, campaign)] == [0, 2]


def test_samples_are_read_whatever_they_are(database: Database) -> None:
    with database.session() as session:
        put_examples(session)
        number = store.add_measurement(session, measured(0, 0))
        found = queries.stored_samples(session, number)
        assert found is not None
        assert found.samples.tolist() == [10.0, 10.0]
        assert queries.stored_samples(session, number + 1) is None
        strange = {
            "workload_id": 1,
            "config_id": 2,
            "target_id": 1,
            "regime": "lukewarm",
            "stage": Stage.SEARCH,
            "status": Status.OK,
            "provenance": Provenance.MEASURED,
            "session": "",
            "measured_at": NOON,
            "launches_a_sample": 0,
            "flush_bytes": 0,
            "reason": "",
            "compile_s": 0.0,
            "measure_s": 0.0,
            "artifact": "",
            "samples": np.array([np.nan, 1.0], "<f4").tobytes() + b"\x00",
        }
        assert bulk.insert_rows(session, models.Measurement, [strange]) == 1
        found = queries.stored_samples(session, number + 1)
    assert found is not None
    assert found.regime == "lukewarm"
    assert np.isnan(found.samples[0])
    assert len(found.samples) == 2


def test_sizes(database: Database) -> None:
    with database.session() as session:
        before = queries.table_sizes(session)
        put_examples(session, tokens=3, configs=6)
        store.add_measurement(session, measured(0, 0))
        after = queries.table_sizes(session)
    assert before.rows["measurements"] == 0
    assert {name: after.rows[name] for name in ("workloads", "configs", "measurements")} == {
        "workloads": 3,
        "configs": 6,
        "measurements": 1,
    }
    assert after.bytes > 0
    if database.location.is_file:
        assert after.free_bytes is not None
        assert 0 <= after.free_bytes < after.bytes
    else:
        assert after.free_bytes is None


def test_contenders_of_some_workloads_are_those_among_all(database: Database) -> None:
    with database.session() as session:
        put_examples(session)
        for tokens in range(3):
            for number in range(3):
                store.add_measurement(session, measured(tokens, number, 10.0 + number))
        options = {"target": TARGET, "regime": REGIME, "provenances": [Provenance.MEASURED], "baselines": ["cublas"]}
        every = queries.contenders(session, **options)
        some = queries.contenders(session, **options, workloads=[workload(0), workload(2)])
    assert some == [each for each in every if each.tokens != 1]
    assert some


def test_targets_without_counting(database: Database) -> None:
    with database.session() as session:
        put_examples(session)
        store.add_measurements(session, [measured(0, 0), measured(0, 1), measured(0, 1, regime=Regime("warm"))])
        (counted,), (plain,) = queries.targets(session), queries.targets(session, counted=False)
        store.put_target(session, digest="other", hardware={}, toolchain={})
        assert queries.targets(session, counted=False)[1].measurements == {}
    assert counted.measurements == {Provenance.MEASURED: 3}
    assert plain == replace(counted, measurements={Provenance.MEASURED: 1})


def test_changes_are_seen_of_others(database: Database) -> None:
    before = database.changes()
    assert database.changes() == before
    with database.session() as session:
        put_examples(session)
    after = database.changes()
    assert after != before
    assert database.changes() == after
