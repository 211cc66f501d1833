from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from db_examples import BASELINE
from db_examples import NOON
from db_examples import OPERATOR
from db_examples import REGIME
from db_examples import TARGET
from db_examples import VARIANTS
from db_examples import config
from db_examples import failed
from db_examples import measured
from db_examples import put_examples
from db_examples import workload
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db import store
from megatune_db.records import CampaignState
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.records import TrialState
from megatune_db.session import Database
from megatune_db.session import open_database

MEASURED = Provenance.MEASURED
WARM = Regime("warm", "graph")


@pytest.fixture
def session(session: Session) -> Session:
    put_examples(session)
    return session


def test_an_empty_database_has_empty_answers(database: Database) -> None:
    with database.session() as session:
        assert queries.contenders(session, target="t", regime=REGIME, provenances=[MEASURED], baselines=[]) == []
        assert queries.workloads(session, target="t", regime=REGIME) == []
        assert queries.status_by_workload(session, target="t", regime=REGIME) == []
        assert list(queries.export_rows(session, target="t", regime=REGIME)) == []
        known = queries.known_measurements(session, workload="w", target="t", regime=REGIME, provenance=MEASURED)
        assert known == {}
        keys = {"workload": "w", "target": "t", "regime": REGIME, "provenance": MEASURED}
        assert queries.final_sessions(session, **keys) == []
        assert queries.samples(session, []) == {}
        assert queries.measurements(session, [1]) == {}
        assert queries.artifacts(session, []) == {}
        assert queries.campaign(session, "c") is None
        assert queries.status_counts(session, 1) == {}
        assert queries.outcomes(session, 1, [BASELINE]) == []
        assert queries.trials(session, 1) == []
        assert queries.plan(session, "p") is None


def test_targets_count_by_provenance(session: Session) -> None:
    store.put_target(session, digest="other", hardware={"gpu": "B300"}, toolchain={})
    store.add_measurement(session, measured(0, 0))
    store.add_measurement(session, failed(0, 1))
    store.add_measurement(session, measured(0, 0, provenance=Provenance.REPLAYED))
    first, second = queries.targets(session)
    assert (first.digest, first.hardware, first.toolchain) == (TARGET, {"gpu": "H200"}, {"driver": "580.1"})
    assert first.measurements == {MEASURED: 2, Provenance.REPLAYED: 1}
    assert (second.digest, second.measurements) == ("other", {})


def test_known_measurements_are_of_one_key_and_every_status(session: Session) -> None:
    wanted = {config(0): measured(1, 0), config(1): failed(1, 1)}
    others = [
        measured(0, 2),
        measured(1, 2, regime=WARM),
        measured(1, 2, provenance=Provenance.REPLAYED),
        measured(1, 2, stage=Stage.FINAL),
    ]
    store.add_measurements(session, [*wanted.values(), *others])
    known = queries.known_measurements(session, workload=workload(1), target=TARGET, regime=REGIME, provenance=MEASURED)
    assert known == wanted


def test_other_kernels_are_measured_anew(session: Session) -> None:
    older = measured(1, 0, 10.0, artifact="a", revision="older")
    newer = measured(1, 0, 8.0, artifact="b", revision="newer")
    unknown, baseline = measured(1, 1, 9.0, artifact="c"), measured(1, 2, 12.0)
    for one in (older, newer, unknown, baseline):
        store.add_measurement(session, one)
    keys = {"workload": workload(1), "target": TARGET, "regime": REGIME, "provenance": MEASURED}
    assert queries.known_measurements(session, **keys) == {config(0): newer, config(1): unknown, config(2): baseline}
    assert queries.known_measurements(session, **keys, revision="older") == {config(0): older, config(2): baseline}
    assert store.add_measurement(session, older) == 1
    found = queries.contenders(session, target=TARGET, regime=REGIME, provenances=[MEASURED], baselines=[BASELINE])
    assert [(row.median_us, row.revision) for row in found] == [(10, "older"), (8, "newer"), (9, ""), (12, "")]


def test_final_sessions_are_of_one_key_and_the_latest_comes_first(session: Session) -> None:
    def final(tokens: int, number: int, name: str, **fields: Any) -> Measurement:
        return measured(tokens, number, stage=Stage.FINAL, session=name, **fields)

    earlier = [final(1, 0, "earlier"), final(1, 2, "earlier")]
    later = [final(1, 0, "later", median_us=9.0), final(1, 1, "later")]
    others = [
        final(0, 0, "later"),
        final(1, 3, "warm", regime=WARM),
        final(1, 3, "replayed", provenance=Provenance.REPLAYED),
        failed(1, 3, stage=Stage.FINAL, session="later"),
        measured(1, 3),
    ]
    store.add_measurements(session, [*earlier, *others, *later])
    found = queries.final_sessions(
        session, workload=workload(1), target=TARGET, regime=REGIME, provenance=Provenance.MEASURED
    )
    assert [{row.measurement.config: row.measurement for row in rows} for rows in found] == [
        {config(0): later[0], config(1): later[1]},
        {config(0): earlier[0], config(2): earlier[1]},
    ]
    assert {(row.variant, *row.params.items()) for row in found[0]} == {("simt", ("rows", 0)), ("mma", ("rows", 1))}
    assert {row.variant for row in found[1]} == {"simt", BASELINE}


def test_workloads_of_a_target_and_regime(session: Session) -> None:
    put_examples(session, operator="reduction")
    store.add_measurements(
        session,
        [
            measured(2, 0),
            failed(2, 1),
            measured(1, 0, stage=Stage.FINAL),
            measured(1, 0, provenance=Provenance.PREDICTED),
            measured(0, 0, regime=WARM),
            measured(0, 0, operator="reduction"),
        ],
    )
    found = queries.workloads(session, target=TARGET, regime=REGIME)
    assert [(row.digest, row.measurements) for row in found] == [
        (workload(1), {MEASURED: 1, Provenance.PREDICTED: 1}),
        (workload(2), {MEASURED: 2}),
        (workload(0, "reduction"), {MEASURED: 1}),
    ]
    assert found[0].dims == {"k": 7168, "n": 6288}
    only = queries.workloads(session, target=TARGET, regime=REGIME, operator="reduction")
    assert only == found[2:]


def test_statuses_by_workload_and_variant(session: Session) -> None:
    store.add_measurements(
        session,
        [
            measured(0, 0),
            measured(0, 3),
            failed(0, 1, Status.HANG),
            failed(0, 4, Status.CRASH),
            failed(1, 1, Status.HANG),
            measured(1, 0, regime=WARM),
        ],
    )
    found = queries.status_by_workload(session, target=TARGET, regime=REGIME)
    assert [(row.tokens, row.variant, row.status, row.count) for row in found] == [
        (0, "mma", Status.CRASH, 1),
        (0, "mma", Status.HANG, 1),
        (0, "simt", Status.OK, 2),
        (1, "mma", Status.HANG, 1),
    ]
    assert queries.status_by_workload(session, target=TARGET, regime=REGIME, operator="reduction") == []


def test_samples_of_many_ids(session: Session) -> None:
    put_examples(session, tokens=2, configs=700)
    rows = [measured(tokens, number, 1.0 + number) for tokens in range(2) for number in range(700)]
    store.add_measurements(session, [*rows, failed(2, 0)])
    found = queries.samples(session, range(5000))
    assert len(found) == 1401
    assert sorted(samples.tolist() for samples in found.values() if len(samples)) == sorted(
        list(row.samples_us) for row in rows
    )


def _contenders(session: Session, **options: object) -> list[queries.Contender]:
    given_options: dict[str, object] = {"target": TARGET, "regime": REGIME, "provenances": [MEASURED], "baselines": []}
    return queries.contenders(session, **given_options | options)  # type: ignore[arg-type]


def test_contenders_are_the_best_and_what_may_be_as_good(session: Session) -> None:
    put_examples(session, configs=12)
    rows = {
        "best of simt": measured(0, 0, 10.0, low_us=9.5, high_us=10.5),
        "overlaps": measured(0, 3, 10.8, low_us=10.4, high_us=11.0),
        "touches": measured(0, 6, 10.9, low_us=10.5, high_us=11.0),
        "best of mma": measured(0, 1, 20.0),
        "baseline": measured(0, 2, 50.0),
        "slow baseline": measured(0, 5, 90.0),
        "slow finalist": measured(0, 9, 99.0, stage=Stage.FINAL),
        "best of another workload": measured(1, 9, 30.0),
    }
    left_out = [
        measured(0, 9, 11.1, low_us=10.6, high_us=11.6),
        failed(0, 4),
        failed(1, 3, stage=Stage.FINAL),
        measured(0, 7, 1.0, regime=WARM),
        measured(0, 7, 1.0, provenance=Provenance.PREDICTED),
    ]
    store.add_measurements(session, [*rows.values(), *left_out])
    found = _contenders(session, baselines=[BASELINE])
    assert [(row.workload, row.config, row.stage, row.median_us) for row in found] == [
        (row.workload, row.config, row.stage, row.median_us) for row in rows.values()
    ]
    first = found[0]
    assert (first.operator, first.shape, first.dims) == (OPERATOR, "k=7168,n=6288", {"k": 7168, "n": 6288})
    assert (first.tokens, first.dtype, first.world, first.routing) == (0, "bf16", 1, "none")
    assert (first.variant, first.params, first.session) == ("simt", {"rows": 0}, "first")
    assert (first.low_us, first.high_us, first.n_samples, first.provenance) == (9.5, 10.5, 2, MEASURED)
    assert queries.samples(session, [first.measurement_id])[first.measurement_id].tolist() == [10.0, 10.0]

    without = _contenders(session)
    assert [row.median_us for row in without if row.variant == BASELINE] == [50.0]
    assert _contenders(session, operator=OPERATOR) == without
    assert _contenders(session, operator="reduction") == []
    assert _contenders(session, provenances=[]) == []


def test_provenances_do_not_hide_one_another(session: Session) -> None:
    store.add_measurements(session, [measured(0, 0, 10.0), measured(0, 3, 1.0, provenance=Provenance.PREDICTED)])
    found = _contenders(session, provenances=[MEASURED, Provenance.PREDICTED])
    assert [(row.provenance, row.median_us) for row in found] == [(MEASURED, 10.0), (Provenance.PREDICTED, 1.0)]


def _by_hand(rows: list[Measurement]) -> list[tuple[str, str, Stage, float]]:
    """What ``contenders`` says of itself, in the plainest way."""
    kept = []
    variant = {config(number): VARIANTS[number % 3] for number in range(6)}
    for row in rows:
        rivals = [
            other
            for other in rows
            if (other.workload, variant[other.config], other.stage) == (row.workload, variant[row.config], Stage.SEARCH)
        ]
        best = min(rivals, key=lambda other: other.median_us or 0.0, default=None)
        near = best is not None and row.low_us is not None and row.low_us <= (best.high_us or 0.0)
        counts = row.stage is Stage.FINAL or near or variant[row.config] == BASELINE
        if counts and row.stage is not Stage.VERIFY:
            kept.append((row.workload, row.config, row.stage, row.median_us or 0.0))
    return sorted(kept)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with open_database(tmp_path_factory.mktemp("shared") / "tuned.db") as opened:
        yield opened


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), spread=st.sampled_from([0.001, 0.05, 0.5]))
def test_contenders_are_those_found_by_hand(shared: Database, seed: int, spread: float) -> None:
    rng = random.Random(seed)
    rows = []
    for tokens in range(3):
        for number in range(6):
            for stage in Stage:
                if rng.random() < 0.8:
                    median = 10.0 * (1 + rng.random())
                    low, high = median * (1 - spread * rng.random()), median * (1 + spread * rng.random())
                    rows.append(measured(tokens, number, median, low_us=low, high_us=high, stage=stage))
    with Session(shared.engine) as session:  # rolled back at its end
        put_examples(session)
        store.add_measurements(session, rows)
        found = _contenders(session, baselines=[BASELINE])
        assert sorted((row.workload, row.config, row.stage, row.median_us) for row in found) == _by_hand(rows)


def test_a_recording_is_in_an_order_of_its_own(session: Session) -> None:
    rows = [measured(tokens, number, 1.0 + number) for tokens in range(2) for number in range(3)]
    rows += [
        failed(0, 4),
        measured(0, 0, stage=Stage.FINAL, session="second"),
        measured(0, 0, stage=Stage.FINAL, session="first"),
    ]
    others = [measured(2, 0, provenance=Provenance.REPLAYED), measured(2, 0, regime=WARM)]
    shuffled = [*rows, *others]
    random.Random(3).shuffle(shuffled)
    store.add_measurements(session, shuffled)
    found = list(queries.export_rows(session, target=TARGET, regime=REGIME))
    expected = sorted(
        rows,
        key=lambda row: (
            row.workload,
            row.stage is Stage.FINAL,
            VARIANTS[int(row.config[-1]) % 3],
            row.config,
            row.session,
        ),
    )
    assert [row.measurement for row in found] == expected
    assert {(row.operator, row.shape, row.dtype, row.world, row.routing) for row in found} == {
        (OPERATOR, "k=7168,n=6288", "bf16", 1, "none")
    }
    assert (found[0].tokens, found[0].dims, found[0].variant, found[0].params) == (
        0,
        {"k": 7168, "n": 6288},
        BASELINE,
        {},
    )
    replayed = queries.export_rows(session, target=TARGET, regime=REGIME, provenance=Provenance.REPLAYED)
    assert [row.tokens for row in replayed] == [2]
    assert list(queries.export_rows(session, target=TARGET, regime=REGIME, operator="reduction")) == []


def _campaign(session: Session, rows: list[Measurement], *, name: str = "h200", reused: bool = False) -> int:
    campaign = store.put_campaign(session, name=name, file_text="text", file_digest="1")
    for number, row in enumerate(rows):
        store.add_trial(
            session,
            campaign_id=campaign,
            workload=row.workload,
            config=row.config,
            number=number,
            measurement_id=store.add_measurement(session, row),
            reason="sampler" if row.stage is Stage.SEARCH else "finalist",
            reused=reused,
        )
    return campaign


def test_progress_of_campaigns(session: Session) -> None:
    rows = [measured(0, 0), measured(0, 1), failed(1, 0, Status.HANG)]
    first = _campaign(session, rows)
    store.add_trial(
        session,
        campaign_id=first,
        workload=workload(2),
        config=config(0),
        number=7,
        measurement_id=None,
        reason="sampler",
        reused=False,
    )
    store.set_campaign(session, first, state=CampaignState.RUNNING, target=TARGET, measuring_s=60.0, wall_s=90.0)
    # The same config is asked for again: another trial, the same measurement.
    second = _campaign(session, [measured(0, 0), measured(0, 0)], name="again", reused=True)

    again, h200 = queries.campaigns(session)
    assert (h200.id, h200.name, h200.target, h200.state) == (first, "h200", TARGET, CampaignState.RUNNING)
    assert (h200.file_text, h200.file_digest, h200.measuring_s, h200.wall_s) == ("text", "1", 60.0, 90.0)
    assert h200.trials == {TrialState.ASKED: 1, TrialState.DONE: 3}
    assert (h200.reused, h200.workloads) == (0, 3)
    assert h200.statuses == queries.status_counts(session, first) == {Status.OK: 2, Status.HANG: 1}
    assert isinstance(h200.created_at, datetime)
    assert h200.created_at.tzinfo is None
    assert (again.id, again.target, again.reused, again.trials) == (second, None, 2, {TrialState.DONE: 2})
    assert again.statuses == {Status.OK: 1}
    assert queries.campaign(session, "again") == again


def test_trials_say_who_asked_and_what_came_of_it(session: Session) -> None:
    campaign = _campaign(session, [measured(0, 0, 10.0), failed(1, 1), measured(0, 0, stage=Stage.FINAL)])
    first, second, third = queries.trials(session, campaign)
    assert (first.workload, first.config, first.variant, first.params) == (workload(0), config(0), "simt", {"rows": 0})
    assert (first.number, first.state, first.reason, first.reused) == (0, TrialState.DONE, "sampler", False)
    assert (first.status, first.stage, first.median_us, first.low_us, first.high_us) == (
        Status.OK,
        Stage.SEARCH,
        10.0,
        9.9,
        10.1,
    )
    assert (second.status, second.median_us) == (Status.HANG, None)
    assert (third.stage, third.reason) == (Stage.FINAL, "finalist")
    assert queries.trials(session, campaign, workload=workload(1)) == [second]


def test_outcomes_are_of_finalists_where_there_are_any(session: Session) -> None:
    final = Stage.FINAL
    campaign = _campaign(
        session,
        [
            measured(0, 0, 9.0),
            measured(0, 1, 8.0),
            measured(0, 2, 12.0),
            # The first session measured no baseline, the second is out of date, the third is what counts.
            measured(0, 1, 1.0, stage=final, session="a"),
            measured(0, 1, 2.0, stage=final, session="c"),
            measured(0, 2, 3.0, stage=final, session="c"),
            measured(0, 0, 8.5, stage=final, session="b"),
            measured(0, 1, 8.7, stage=final, session="b"),
            measured(0, 2, 11.0, stage=final, session="b"),
            measured(0, 5, 10.0, stage=final, session="b"),
            # No baseline is ok.
            measured(1, 0, 7.0),
            failed(1, 2),
            # Nothing but a baseline is ok.
            measured(2, 2, 6.0),
            failed(2, 0),
            # Another regime is another row.
            measured(2, 0, 5.0, regime=WARM),
        ],
    )
    _campaign(session, [measured(0, 3, 0.1)], name="other")
    rows = queries.outcomes(session, campaign, [BASELINE])
    assert [
        (row.tokens, row.stage, row.variant, row.config, row.best_us, row.baseline, row.baseline_us) for row in rows
    ] == [
        (0, final, "simt", config(0), 8.5, BASELINE, 10.0),
        (1, Stage.SEARCH, "simt", config(0), 7.0, None, None),
        (2, Stage.SEARCH, None, None, None, BASELINE, 6.0),
        (2, Stage.SEARCH, "simt", config(0), 5.0, None, None),
    ]
    assert [row.regime for row in rows] == [REGIME, REGIME, REGIME, WARM]
    assert {(row.operator, row.shape, row.routing, row.provenance) for row in rows} == {
        (OPERATOR, "k=7168,n=6288", "none", MEASURED)
    }


def test_incumbents_of_every_target(session: Session) -> None:
    store.put_target(session, digest="newer", hardware={}, toolchain={})
    rows = [
        measured(0, 0, 9.0),
        measured(0, 1, 8.0),
        measured(0, 2, 1.0),
        failed(0, 3),
        measured(0, 4, 2.0, stage=Stage.FINAL),
        measured(1, 4, 3.0),
        measured(0, 4, 4.0, regime=WARM),
        measured(0, 4, 5.0, provenance=Provenance.PREDICTED),
    ]
    store.add_measurements(session, [*rows, dataclasses.replace(measured(0, 0, 7.0), target="newer")])
    found = queries.incumbents(session, workload=workload(0), regime=REGIME, baselines=[BASELINE])
    assert [(row.target, row.provenance, row.config, row.median_us) for row in found] == [
        ("newer", MEASURED, config(0), 7.0),
        (TARGET, MEASURED, config(1), 8.0),
        (TARGET, Provenance.PREDICTED, config(4), 5.0),
    ]
    assert (found[1].variant, found[1].params) == ("mma", {"rows": 1})


def test_plans_by_digest_and_by_name(session: Session) -> None:
    for digest, name in (("d1", "h200"), ("d2", "h200"), ("h300", "other"), ("d4", "h300")):
        store.put_plan(session, digest=digest, name=name, content=f'{{"of":"{digest}"}}', target=TARGET)
    assert [row.digest for row in queries.plans(session)] == ["d4", "h300", "d2", "d1"]

    def digest_of(wanted: str) -> str | None:
        found = queries.plan(session, wanted)
        return found and found.digest

    assert digest_of("d1") == "d1"
    assert digest_of("h200") == "d2"
    assert digest_of("h300") == "h300"
    assert digest_of("unknown") is None


def test_times_are_kept(session: Session) -> None:
    found = store.add_measurement(session, measured(0, 0))
    assert queries.measurements(session, [found])[found].measured_at == NOON
