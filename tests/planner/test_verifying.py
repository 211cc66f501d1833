"""Verifying: what is measured again, and what that says. Measurements are made up, with the noise that a test wants."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import replace
from datetime import datetime
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from plan_examples import CUBLAS
from plan_examples import REGIME
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import example_cases
from plan_examples import example_plan
from plan_examples import fill
from plan_examples import measurement as made_up
from plan_examples import simt

from megatune_db import queries
from megatune_db import store
from megatune_db.queries import TargetRow
from megatune_db.queries import VerificationRow
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator as registered
from megatune_kernels.space import Config
from megatune_kernels.statistics import interval_rank
from megatune_kernels.statistics import least_count
from megatune_kernels.statistics import median_interval
from megatune_kernels.target import architecture
from megatune_planner.drafting import draft_plan
from megatune_planner.plan import Plan
from megatune_planner.review_warnings import review_warnings
from megatune_planner.verifying.checks import Checks
from megatune_planner.verifying.checks import Rival
from megatune_planner.verifying.checks import check_hardware
from megatune_planner.verifying.checks import checks_of
from megatune_planner.verifying.checks import choice_of
from megatune_planner.verifying.judging import CANARY_MARGIN
from megatune_planner.verifying.judging import MARGIN
from megatune_planner.verifying.judging import Again
from megatune_planner.verifying.judging import compare
from megatune_planner.verifying.judging import judge
from megatune_planner.verifying.keeping import findings_of
from megatune_planner.verifying.keeping import keep_verification
from megatune_planner.verifying.keeping import times_then
from megatune_planner.verifying.standing import verification_findings
from megatune_planner.verifying.verification import Verdict
from megatune_planner.verifying.verification import Verification

AT = datetime(2026, 12, 2, 12)
TIMES = {(case.workload, case.config): case.us for case in example_cases()}
Slower = Callable[[Workload, Config], float]


def unchanged(workload: Workload, config: Config) -> float:
    return 1.0


def samples(us: float, workload: Workload, count: int, noise: float, seed: int = 0) -> tuple[float, ...]:
    """Of one session: what slows the device for a moment slows every config of the workload."""
    shared = random.Random(f"{workload} {seed}")
    own = random.Random(f"{workload} {us} {seed}")
    return tuple(us * (1 + shared.gauss(0, 3 * noise)) * (1 + own.gauss(0, noise)) for _ in range(count))


def measured(
    checks: Checks,
    slower: Slower = unchanged,
    *,
    count: int = 31,
    noise: float = 0.001,
    status: Mapping[Config, Status] | None = None,
) -> dict[tuple[Workload, Config], Again]:
    """As the example's measurements were, but for the factor that is given."""
    found = {}
    for check in checks.to_measure:
        for config in check.configs:
            us = TIMES[check.workload, config] * slower(check.workload, config)
            ended = (status or {}).get(config, Status.OK)
            one = made_up(Case(check.workload, config, us, session=f"verify {check.workload}", status=ended))
            if ended is Status.OK:
                taken = samples(us, check.workload, count, noise)
                median, low, high = median_interval(taken)
                one = replace(one, samples_us=taken, median_us=median, low_us=low, high_us=high)
            found[check.workload, config] = Again(len(found) + 1, replace(one, stage=Stage.VERIFY))
    return found


def recorded(workload: Workload, config: Config) -> bool:
    return (workload, config) in TIMES


@pytest.fixture(scope="module")
def checks(plan: Plan) -> Checks:
    return checks_of(plan, recorded)


def judged(plan: Plan, checks: Checks, found: dict[tuple[Workload, Config], Again], **options: float) -> Verification:
    return judge(plan, checks, found, TARGET, Provenance.MEASURED, AT, **options)


def test_both_sides_of_every_boundary_are_measured_with_baseline_and_rivals(plan: Plan) -> None:
    sides = {(side.workload.shape, side.workload.tokens): side for side in checks_of(plan).ends}
    for operator in plan.content.operators:
        tuned = registered(operator.name)
        for shape in operator.shapes:
            for below, above in pairwise(shape.bands):
                for band, tokens, other in ((below, below.tokens_hi, above), (above, above.tokens_lo, below)):
                    if not band.points:
                        continue
                    side = sides[shape.shape, tokens or 0]
                    assert side.choice == choice_of(band)
                    rivals = {rival.config for rival in side.rivals}
                    assert (Config.of("cublas", {}) in rivals) == (band.decision.kind == "config")
                    beside = choice_of(other)
                    space = tuned.space(side.workload, architecture("sm_90a"))
                    if beside is not None and beside.variant != "cublas" and not space.violations(beside):
                        assert beside in rivals | {side.choice}


def test_what_a_recording_lacks_is_stood_for_by_the_nearest_that_it_has(plan: Plan, checks: Checks) -> None:
    assert all(recorded(check.workload, config) for check in checks.to_measure for config in check.configs)
    moved = [side for side in checks.ends if side.end != side.workload.tokens]
    assert moved
    for side in moved:
        tokens = [point.tokens for point in side.band.points]
        assert min(tokens, key=lambda at: abs(at - side.end)) == side.workload.tokens


def test_canaries_are_few_the_same_every_time_and_away_from_boundaries(plan: Plan, checks: Checks) -> None:
    again = checks_of(plan, recorded).canaries
    assert again == checks.canaries
    assert 0 < len(again) <= 6
    assert not {canary.workload for canary in again} & {side.workload for side in checks.ends}


def test_nothing_changed(plan: Plan, checks: Checks) -> None:
    found = judged(plan, checks, measured(checks))
    assert found.verdict is Verdict.HOLDS
    assert found.machine.verdict is Verdict.HOLDS
    assert found.changed == {}
    assert found.comparisons == sum(len(side.rivals) for side in checks.ends)
    assert Verification.model_validate_json(found.model_dump_json()) == found
    last = found.bands[-1]
    assert (last.tokens_hi, last.ends, last.verdict) == (None, (), Verdict.HOLDS)


def test_a_choice_that_became_slow_is_named_with_how_much(plan: Plan, checks: Checks) -> None:
    side = next(side for side in checks.ends if side.band.decision.kind == "config")
    assert side.choice is not None

    def slower(workload: Workload, config: Config) -> float:
        return 1.4 if (workload, config) == (side.workload, side.choice) else 1.0

    found = judged(plan, checks, measured(checks, slower))
    assert found.verdict is Verdict.DRIFTED
    (band,) = [band for band in found.bands if band.verdict is Verdict.DRIFTED]
    assert (band.shape, band.tokens_lo) == (side.shape.shape, side.band.tokens_lo)
    (drifted,) = [each for each in band.ends if each.verdict is Verdict.DRIFTED]
    worst = max(drifted.compared, key=lambda each: each.beyond_doubt.low if each.beyond_doubt else 0)
    assert worst.beyond_doubt is not None
    assert worst.now is not None
    assert worst.beyond_doubt.low <= worst.now.low <= worst.now.high <= worst.beyond_doubt.high
    assert worst.then is not None
    assert worst.now.median == pytest.approx(1.4 * worst.then, rel=0.02)
    assert f"{side.shape.shape}, {side.band.tokens_lo}" in found.reason
    assert found.machine.verdict is Verdict.HOLDS


def test_a_rival_that_is_faster_where_nothing_was_measured_is_a_gain_and_no_drift(plan: Plan, checks: Checks) -> None:
    # Between measured tokens a band reaches by prediction, and nothing was said of its rivals there.
    side = next(side for side in checks.ends if side.band.decision.kind == "config" and side.workload.tokens > 1)
    rival = Rival(simt(block=192), "neighbour")
    between = replace(side, workload=side.workload.at(3), rivals=(*side.rivals, rival))
    assert between.choice is not None
    found = {}
    for config, us in ((CUBLAS, 9.0), (between.choice, 5.0), (rival.config, 4.0)):
        taken = samples(us, between.workload, 31, 0.001)
        one = replace(made_up(Case(between.workload, config, us, session="verify")), samples_us=taken)
        found[between.workload, config] = Again(None, one)
    result = judged(plan, replace(checks, ends=(between,), canaries=()), found)
    assert result.verdict is Verdict.HOLDS
    ((_, _, gain),) = result.gains
    assert gain.reason == "saves 20.0% where nothing was measured before"
    # Against the baseline a band claims something at every one of its tokens.
    slow = {key: again for key, again in found.items() if key[1] != CUBLAS}
    slow[between.workload, CUBLAS] = found[between.workload, rival.config]
    assert judged(plan, replace(checks, ends=(between,), canaries=()), slow).verdict is Verdict.DRIFTED


def test_a_neighbour_that_was_not_measured_there_is_a_gain_and_no_drift(
    tmp_path: Path, plan: Plan, checks: Checks
) -> None:
    side = next(side for side in checks.ends if side.workload.tokens == 4 and len(side.rivals) > 1)
    # Of a variant that has a better one there, so that the plan does not tell whether it was measured.
    rival = Rival(simt(block=64), "neighbour")
    place = (side.workload, rival.config)
    checks = Checks((replace(side, rivals=(*side.rivals, rival)),), ())
    again = measured(checks, lambda workload, config: 0.4 if (workload, config) == place else 1.0)

    def verdict(then: Mapping[tuple[Workload, Config], float | None] | None) -> Verification:
        return judge(plan, checks, again, TARGET, Provenance.MEASURED, AT, then=then)

    found = {}
    for name, cases in (
        ("whole", example_cases()),
        ("less", [case for case in example_cases() if (case.workload, case.config) != place]),
        ("elsewhere", []),
    ):
        with open_database(tmp_path / f"{name}.db") as database, database.session() as session:
            fill(session, cases)
            found[name] = times_then(session, plan, checks)
    assert found["whole"] == {place: pytest.approx(TIMES[place], rel=0.02)}
    assert found["less"] == {place: None}
    assert found["elsewhere"] == {}
    less = verdict(found["less"])
    assert less.verdict is Verdict.HOLDS
    assert [str(rival.config)] == [each.against for _, _, each in less.gains]
    # Where it was measured, or nobody can tell whether it was, the boundary has moved.
    assert verdict(found["whole"]).verdict is verdict(found["elsewhere"]).verdict is Verdict.DRIFTED


def test_a_slower_machine_is_told_by_its_canaries_and_not_by_the_bands(plan: Plan, checks: Checks) -> None:
    found = judged(plan, checks, measured(checks, lambda workload, config: 1 + 3 * CANARY_MARGIN))
    assert found.verdict is Verdict.HOLDS
    assert found.machine.verdict is Verdict.DRIFTED
    assert "canaries changed" in found.machine.reason


@pytest.mark.parametrize("count", [1, 5])
def test_too_few_samples_do_not_show_that_a_plan_holds(plan: Plan, checks: Checks, count: int) -> None:
    # A range of so few holds the median less often than in 95 of 100 cases, however narrow it is.
    found = judged(plan, checks, measured(checks, count=count))
    assert found.verdict is Verdict.CANNOT_TELL
    assert "too few samples" in found.reason
    apart = {
        key: replace(again, measurement=replace(again.measurement, session=f"{key}"))
        for key, again in measured(checks, count=6).items()
    }
    alone = judged(plan, checks, apart)
    assert alone.verdict is Verdict.CANNOT_TELL
    assert "samples can show drift, not 6" in alone.reason


@pytest.mark.parametrize("count", [1, 5, 6])
def test_too_few_samples_show_no_drift(plan: Plan, checks: Checks, count: int) -> None:
    choices = {side.choice for side in checks.ends if side.band.decision.kind == "config"}
    slow = measured(checks, lambda workload, config: 1.5 if config in choices else 1.0, count=count)
    found = judged(plan, checks, slow)
    assert found.verdict is Verdict.CANNOT_TELL
    assert "too few samples" in found.reason


def test_noise_shows_neither(plan: Plan, checks: Checks) -> None:
    found = judged(plan, checks, measured(checks, noise=0.3))
    assert Verdict.CANNOT_TELL in {band.verdict for band in found.bands}
    assert "within the noise" in found.reason


@pytest.mark.parametrize(
    ("status", "recording", "verdict"),
    [
        (Status.WRONG_RESULT, None, Verdict.DRIFTED),
        (Status.COMPILE_ERROR, None, Verdict.DRIFTED),
        (Status.INFEASIBLE, None, Verdict.DRIFTED),
        (Status.INFEASIBLE, "some", Verdict.CANNOT_TELL),
        (Status.COMPILE_TIMEOUT, None, Verdict.CANNOT_TELL),
    ],
)
def test_a_choice_that_works_no_more(
    plan: Plan, checks: Checks, status: Status, recording: str | None, verdict: Verdict
) -> None:
    choice = next(side.choice for side in checks.ends if side.band.decision.kind == "config")
    assert choice is not None
    again = measured(checks, status={choice: status})
    found = judge(plan, checks, again, TARGET, Provenance.MEASURED, AT, recording=recording)
    assert found.verdict is verdict
    assert str(status) in found.reason


def test_a_baseline_that_fails_leaves_it_open_and_a_rival_that_fails_does_not(plan: Plan, checks: Checks) -> None:
    stock = Config.of("cublas", {})
    found = judged(plan, checks, measured(checks, status={stock: Status.OUT_OF_MEMORY}))
    for band in found.bands:
        if band.ends:
            # A baseline that works no more is stock's own choice, and what else cannot be compared with.
            stays = Verdict.DRIFTED if band.decision == "stock (cublas)" else Verdict.CANNOT_TELL
            assert band.verdict is stays
    choices = {side.choice for side in checks.ends}
    rivals = {rival.config for side in checks.ends for rival in side.rivals} - choices - {stock}
    assert judged(plan, checks, measured(checks, status=dict.fromkeys(rivals, Status.CRASH))).verdict is Verdict.HOLDS


@settings(deadline=None, max_examples=25)
@given(
    factor=st.floats(0.3, 3.0),
    noise=st.sampled_from([0.0005, 0.01, 0.1]),
    count=st.integers(1, 31),
    slow=st.floats(0.9, 1.3),
)
def test_verdicts_are_as_the_intervals_say_and_do_not_depend_on_the_clock(
    shared: tuple[Plan, Checks], factor: float, noise: float, count: int, slow: float
) -> None:
    plan, checks = shared
    choices = {side.choice for side in checks.ends if side.band.decision.kind == "config"}

    def one(workload: Workload, config: Config) -> float:
        return slow if config in choices else 1.0

    found = judged(plan, checks, measured(checks, one, count=count, noise=noise))
    scaled = {
        key: replace(
            again,
            measurement=replace(
                again.measurement,
                samples_us=tuple(us * factor for us in again.measurement.samples_us),
                **{name: getattr(again.measurement, name) * factor for name in ("median_us", "low_us", "high_us")},
            ),
        )
        for key, again in measured(checks, one, count=count, noise=noise).items()
    }
    # A factor that is common to all changes no verdict, but for what rounding does at the very margin.
    other = judged(plan, checks, scaled)
    for mine, theirs in zip(found.bands, other.bands, strict=True):
        for side, same in zip(mine.ends, theirs.ends, strict=True):
            for compared, alike in zip(side.compared, same.compared, strict=True):
                assert compared.allowed is not None
                if compared.now is None:
                    assert (compared.verdict, alike.verdict) == (Verdict.CANNOT_TELL, Verdict.CANNOT_TELL)
                    continue
                assert compared.allowed >= 1 + MARGIN
                edges = [compared.now.high, *([compared.beyond_doubt.low] if compared.beyond_doubt else [])]
                if all(abs(edge - compared.allowed) > 1e-9 for edge in edges):
                    assert compared.verdict is alike.verdict
                expected = Verdict.CANNOT_TELL
                if compared.now.high <= compared.allowed:
                    expected = Verdict.HOLDS
                elif compared.beyond_doubt is not None and compared.beyond_doubt.low > compared.allowed:
                    expected = Verdict.DRIFTED
                assert compared.verdict is expected


@pytest.fixture(scope="module")
def shared(plan: Plan, checks: Checks) -> tuple[Plan, Checks]:
    return plan, checks


def test_intervals_hold_as_often_as_they_claim() -> None:
    # At the very margin: what is claimed there is wrong. Any one of 40 comparisons would be an alarm.
    rng = np.random.default_rng(7)
    comparisons, rounds, count = 40, 250, 31
    sure = 1 - 0.05 / comparisons
    alarms = shown = 0
    for _ in range(rounds):
        ratios = np.sort(1.02 * np.exp(rng.normal(0, 0.01, (comparisons, count))), axis=1)
        alarms += bool((ratios[:, interval_rank(count, sure)] > 1.02).any())
        shown += int((ratios[:, count - 1 - interval_rank(count)] <= 1.02).sum())
    assert alarms / rounds <= 0.05 + 0.03
    assert shown / (rounds * comparisons) <= 0.025 + 0.005


def test_fewer_samples_than_a_confidence_needs_give_no_interval_of_it() -> None:
    for confidence in (0.95, 0.999, 0.99999):
        least = least_count(confidence)
        assert 1 - 2 ** (1 - least) >= confidence > 1 - 2 ** (2 - least)
        assert interval_rank(least, confidence) == 0
    workload = example_cases()[0].workload
    a = replace(made_up(Case(workload, Config.of("cublas", {}), 5.0)), samples_us=(5.0,) * 6)
    now, beyond, pairs = compare(a, a, 0.999)
    assert (now, beyond, pairs) == ((1.0, 1.0, 1.0), None, 6)
    apart = replace(a, session="another")
    assert compare(a, apart, 0.999)[2] == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gpu": "NVIDIA B300", "arch": "sm_103a", "device_id": "3182"}, "NVIDIA B300"),
        ({"sms": 66}, "66 SMs"),
        ({"world": 8, "links": "nvlink"}, "8 ranks over nvlink"),
        ({"memory_bytes": 80 * 2**30}, "H200"),
    ],
)
def test_other_hardware_is_refused_in_one_line(plan: Plan, change: dict[str, object], named: str) -> None:
    check_hardware(plan, replace(TARGET.hardware, memory_bytes=int(TARGET.hardware.memory_bytes * 1.005)))
    with pytest.raises(MegatuneError, match=named) as error:
        check_hardware(plan, replace(TARGET.hardware, **change))
    assert "\n" not in str(error.value)


def target_row(toolchain: str, day: int = 1) -> TargetRow:
    target = replace(TARGET, toolchain=replace(TARGET.toolchain, driver=toolchain))
    counts = {Provenance.MEASURED: 1}
    at = AT + timedelta(days=day)
    return TargetRow(target.digest, asdict(target.hardware), asdict(target.toolchain), at, counts)


def verification_row(found: Verification, *, day: int = 2, driver: str = "580.00") -> VerificationRow:
    return VerificationRow(
        id=1,
        at=AT + timedelta(days=day),
        who="somebody",
        name=found.name,
        plan=found.plan,
        target=found.target,
        hardware=found.hardware,
        toolchain=found.toolchain | {"driver": driver},
        provenance=found.provenance,
        verdict=found.verdict,
        reason=found.reason,
        document=found.model_dump_json(),
    )


def test_a_changed_toolchain_is_a_finding_until_the_plan_is_verified_on_it(plan: Plan, checks: Checks) -> None:
    holds = judged(plan, checks, measured(checks))
    newer = [target_row(TARGET.toolchain.driver, 0), target_row("600.1")]
    (finding,) = verification_findings(plan, newer)
    assert (finding.kind, "driver 580.00 to 600.1" in finding.text) == ("toolchain", True)
    assert verification_findings(plan, newer, [verification_row(holds, driver="600.1")]) == []
    before = verification_row(holds, day=0)
    assert [each.kind for each in verification_findings(plan, newer, [before])] == ["toolchain"]
    # Who verified it later with the plan's own toolchain has gone back to that.
    assert verification_findings(plan, newer, [verification_row(holds)]) == []
    replay = replace(verification_row(holds, driver="600.1"), provenance=Provenance.REPLAYED)
    assert [each.kind for each in verification_findings(plan, newer, [replay])] == ["toolchain"]
    assert [w.kind for w in review_warnings(plan, newer, [replay])][:1] == ["toolchain"]
    drifted = replace(verification_row(holds, driver="600.1"), verdict="drifted", reason="a band is slow")
    kinds = [each.kind for each in verification_findings(plan, newer, [drifted])]
    assert kinds == ["verification", "toolchain"]
    # A driver that was only ever verified on is known all the same, once it was not shown to hold.
    assert [each.kind for each in verification_findings(plan, newer[:1], [drifted])] == kinds


def test_a_replay_does_not_take_the_place_of_a_measurement(plan: Plan, checks: Checks) -> None:
    holds = verification_row(judged(plan, checks, measured(checks)))
    drifted = replace(holds, verdict="drifted", reason="a band is slow")
    replayed = {
        verdict: replace(holds, provenance=Provenance.REPLAYED, verdict=verdict, at=AT + timedelta(days=9))
        for verdict in ("holds", "cannot tell")
    }
    (finding,) = verification_findings(plan, (), [replayed["holds"], drifted])
    assert "it has drifted: a band is slow" in finding.text
    assert verification_findings(plan, (), [replayed["cannot tell"], holds]) == []
    # Where nothing else is known it is better than nothing.
    assert len(verification_findings(plan, (), [replayed["cannot tell"]])) == 1


def test_other_kernels_are_a_finding_until_the_plan_is_verified_with_them(tmp_path: Path) -> None:
    cases = [replace(case, revision="" if case.config.variant == "cublas" else "f" * 64) for case in example_cases()]
    plan = example_plan(tmp_path, cases)
    assert verification_findings(plan, revisions={"projection": "f" * 64}) == []
    assert verification_findings(plan, revisions={}) == []
    (finding,) = verification_findings(plan, revisions={"projection": "e" * 64})
    assert "kernels of projection" in finding.text
    checks = checks_of(plan, recorded)
    again = {
        key: replace(one, measurement=replace(one.measurement, revision="e" * 64))
        for key, one in measured(checks).items()
    }
    found = judged(plan, checks, again)
    assert found.changed == {"kernels of projection": ("f" * 12, "e" * 12)}
    assert verification_findings(plan, (), [verification_row(found)], {"projection": "e" * 64}) == []
    assert len(verification_findings(plan, (), [verification_row(found)], {"projection": "d" * 64})) == 1


def test_a_verification_is_kept_and_its_measurements_make_no_plan(tmp_path: Path) -> None:
    with open_database(tmp_path / "example.db") as database:
        with database.session() as session:
            fill(session, example_cases())
            plan = draft_plan(session, name="example", regime=REGIME)
        checks = checks_of(plan, recorded)
        again = measured(checks, lambda workload, config: 0.5 if config.variant == "simt" else 1.0)
        with database.session() as session:
            for one in again.values():
                store.add_measurement(session, one.measurement)
            found = judged(plan, checks, again)
            keep_verification(session, plan, found, "somebody")
        with database.session() as session:
            (row,) = queries.verifications(session, plan.digest)
            assert (row.verdict, row.who, row.at) == (found.verdict, "somebody", AT)
            assert Verification.model_validate_json(row.document) == found
            assert queries.verifications(session, "another") == []
            assert draft_plan(session, name="example", regime=REGIME).digest == plan.digest
            expected = [] if found.verdict is Verdict.HOLDS else ["verification"]
            assert [each.kind for each in findings_of(session, plan)] == expected


def test_a_config_that_a_verification_found_wrong_is_planned_no_more(tmp_path: Path) -> None:
    with open_database(tmp_path / "example.db") as database, database.session() as session:
        fill(session, example_cases())
        plan = draft_plan(session, name="example", regime=REGIME)
        side = next(side for side in checks_of(plan, recorded).ends if side.band.decision.kind == "config")
        assert side.choice is not None
        wrong: Measurement = made_up(Case(side.workload, side.choice, 1.0, status=Status.WRONG_RESULT))
        store.add_measurement(session, replace(wrong, stage=Stage.VERIFY))
        shapes = draft_plan(session, name="example", regime=REGIME).operator("projection").shapes
        shape = next(shape for shape in shapes if shape.key == side.shape.key)
        assert choice_of(shape.band(side.workload.tokens)) != side.choice
