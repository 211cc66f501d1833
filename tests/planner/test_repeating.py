"""What other seeds say of a plan: flips, ties, regret. Every time is made up."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

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
from plan_examples import measurement
from plan_examples import mma
from plan_examples import simt

from megatune_db import store
from megatune_db import verifications
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import open_database
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_planner.drafting import draft_plan
from megatune_planner.plan import Plan
from megatune_planner.reader import load
from megatune_planner.rendering import repeatability_text
from megatune_planner.repeating import STOCK
from megatune_planner.repeating import Repeats
from megatune_planner.repeating import decisions_of
from megatune_planner.repeating import judge_repeats
from megatune_planner.repeating import repeats_json
from megatune_planner.repeating import to_measure
from megatune_planner.review_warnings import review_warnings

WIDE = "k=7168,n=1536"
FOUND_LATER = simt(block=192, rows=2, k_unroll=4)
Times = dict[tuple[Workload, Config], float]
TIMES: Times = {(case.workload, case.config): case.us for case in example_cases()}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Of a search that found another config, at 8 tokens of the wide shape, and missed all of the narrow one."""
    cases = [case for case in example_cases() if case.workload.shape == WIDE]
    workload = next(case.workload for case in cases if case.workload.tokens == 8)
    session = f"finals {workload}"
    cases += [Case(workload, FOUND_LATER, 7.0), Case(workload, FOUND_LATER, 7.0, Stage.FINAL, session)]
    return example_plan(tmp_path_factory.mktemp("other"), cases)


def session_of(plans: list[Plan | None], times: Times, count: int = 20) -> dict[tuple[Workload, Config], Measurement]:
    """All choices of each flip, in one session."""
    found = {}
    for check in to_measure(decisions_of(plans)):
        for config in check.configs:
            case = Case(check.workload, config, times[check.workload, config], session=f"again {check.workload}")
            found[check.workload, config] = replace(measurement(case), stage=Stage.VERIFY)
    return found


def judged(plans: list[Plan | None], times: Times) -> Repeats:
    seeds = list(range(len(plans)))
    measured = session_of(plans, times)
    return judge_repeats("toy", seeds, plans, decisions_of(plans), measured, Provenance.MEASURED)


def times_with(us: float) -> Times:
    return TIMES | {(workload, FOUND_LATER): us for workload, _ in TIMES}


def test_the_same_plan_flips_nowhere_and_regrets_nothing(plan: Plan) -> None:
    found = judged([plan, plan, plan], TIMES)
    shapes = plan.operator("projection").shapes
    assert found.decisions == 2 * sum(len(shape.measured_tokens) for shape in shapes)
    assert (found.flips, found.flip_rate) == ((), 0.0)
    assert [run.regret for run in found.runs] == [0.0, 0.0, 0.0]
    assert to_measure(decisions_of([plan, plan])) == []
    assert Repeats.model_validate_json(repeats_json(found)) == found


def test_what_the_campaign_did_not_ask_for_is_no_decision(plan: Plan, other: Plan) -> None:
    # A database may know further tokens and shapes, which no repeat measures.
    asked = [case.workload for case in example_cases() if case.workload.shape == WIDE]
    asked = [workload for workload in asked if workload.tokens in (2, 8, 16)]
    found = decisions_of([plan, other], asked)
    assert {decision.workload.shape for decision in found} == {WIDE}
    # What refining measured in between is one.
    assert [decision.workload.tokens for decision in found] == [2, 4, 8, 16]
    assert decisions_of([plan, other], []) == []


def test_flips_beyond_ties_are_told_with_how_much(plan: Plan, other: Plan) -> None:
    found = judged([plan, other], times_with(7.0))
    wide = [flip for flip in found.flips if flip.shape == WIDE]
    (flip,) = wide
    assert (flip.tokens, flip.other, flip.kind) == (8, str(FOUND_LATER), "worse")
    assert flip.ratio is not None
    assert flip.ratio.median == pytest.approx(TIMES[_at(8), mma()] / 7.0, rel=0.02)
    # The narrow shape is stock in the other plan, wherever the first has a config.
    narrow = [flip for flip in found.flips if flip.shape != WIDE]
    assert {flip.other for flip in narrow} == {str(CUBLAS)}
    assert {flip.kind for flip in narrow} == {"better"}
    assert found.flip_rate == len(found.flips) / found.decisions
    assert found.regret > 0
    assert found.runs[1].regret > 0


def test_flips_inside_a_tie_are_no_fault(plan: Plan, other: Plan) -> None:
    first = plan.operator("projection").shapes
    mine = next(shape for shape in first if shape.shape == WIDE).band(8).decision
    assert mine.kind == "config"
    workload = next(workload for workload, _ in TIMES if workload.tokens == 8 and workload.shape == WIDE)
    us = TIMES[workload, Config.of(mine.variant, dict(mine.params))]
    found = judged([plan, other], times_with(us * 1.0005))
    assert [flip.kind for flip in found.flips if flip.shape == WIDE] == ["tie"]
    assert all(flip.shape != WIDE for flip in found.beyond_ties)


def test_a_run_without_a_plan_is_stock_everywhere(plan: Plan) -> None:
    decisions = decisions_of([plan, None])
    assert all(decision.keys[1] == STOCK for decision in decisions)
    found = judged([plan, None], TIMES)
    assert {flip.kind for flip in found.flips} == {"better"}
    assert found.runs[0].regret == 0
    assert found.runs[1].plan is None
    assert found.runs[1].regret > 0


def test_a_choice_that_fails_again_cannot_be_compared(plan: Plan) -> None:
    plans: list[Plan | None] = [plan, None]
    failed = {
        key: measurement(Case(*key, 1.0, session="again", status=Status.HANG)) if key[1] != CUBLAS else one
        for key, one in session_of(plans, TIMES).items()
    }
    found = judge_repeats("toy", [0, 1], plans, decisions_of(plans), failed, Provenance.MEASURED)
    assert {flip.kind for flip in found.flips} == {"unknown"}
    assert found.beyond_ties == list(found.flips)


@settings(deadline=None, max_examples=20)
@given(us=st.floats(3.0, 20.0))
def test_somebody_regrets_nothing_where_there_is_one_flip(shared: tuple[Plan, Plan], us: float) -> None:
    plan, other = shared
    found = judged([plan, other], times_with(us))
    assert all(run.regret >= 0 for run in found.runs)
    (flip,) = [flip for flip in found.flips if flip.shape == WIDE]
    assert flip.ratio is not None
    assert flip.ratio.median == pytest.approx(TIMES[_at(8), mma()] / us, rel=0.05)
    # The narrow flips all cost the other run, so that the first loses at the wide one alone.
    assert (found.regret > 0) == (flip.ratio.median > 1)


def _at(tokens: int) -> Workload:
    return next(workload for workload, _ in TIMES if workload.tokens == tokens and workload.shape == WIDE)


@pytest.fixture(scope="module")
def shared(plan: Plan, other: Plan) -> tuple[Plan, Plan]:
    return plan, other


def test_a_plan_says_which_bands_are_not_repeatable(tmp_path: Path, plan: Plan, other: Plan) -> None:
    found = judged([plan, other], times_with(7.0))
    with open_database(tmp_path / "example.db") as database, database.session() as session:
        fill(session, example_cases())
        before = draft_plan(session, name="example", regime=REGIME)
        assert before.content.repeatability is None
        assert "repeatability" not in before.to_json()
        store.put_campaign(session, name="toy", file_text="", file_digest="1")
        options = {"campaign": "toy", "target": TARGET.digest, "who": "somebody", "at": datetime(2026, 12, 1)}
        figures = {"repeats": 1, "flip_rate": found.flip_rate, "regret": found.regret}
        for regime, provenance in ((REGIME, Provenance.REPLAYED), (replace(REGIME, weights="warm"), "measured")):
            verifications.add_repeat(
                session,
                **options,  # type: ignore[arg-type]
                **figures,  # type: ignore[arg-type]
                regime=regime,
                provenance=Provenance(provenance),
                document=repeats_json(found),
            )
        # Of another regime or provenance nothing is said.
        assert draft_plan(session, name="example", regime=REGIME).digest == before.digest
        verifications.add_repeat(
            session,
            **options,  # type: ignore[arg-type]
            **figures,  # type: ignore[arg-type]
            regime=REGIME,
            provenance=Provenance.MEASURED,
            document=repeats_json(found),
        )
        after = draft_plan(session, name="example", regime=REGIME)
    said = after.content.repeatability
    assert said is not None
    assert after.digest != before.digest
    assert Plan.from_json(after.to_json()) == after
    assert load(after.to_json(), target=None).digest == after.digest
    assert (said.seeds, said.flips, said.regret) == ((0, 1), len(found.flips), found.regret)
    wide = [band for band in said.bands if band.shape == WIDE]
    assert [(band.tokens, band.tokens_lo <= 8 <= (band.tokens_hi or 8)) for band in wide] == [((8,), True)]
    assert "seed 1 serves" in wide[0].reason
    assert "not repeatable" in repeatability_text(said)
    assert len([each for each in review_warnings(after) if each.kind == "repeatability"]) == len(said.bands)


def test_a_plan_of_other_shapes_is_not_said_anything_of(tmp_path: Path, plan: Plan) -> None:
    found = judged([plan, None], TIMES)
    elsewhere = Workload.of("projection", {"n": 512, "k": 512}, 1)
    finals = [Case(elsewhere, config, us, Stage.FINAL, "finals") for config, us in ((CUBLAS, 10.0), (simt(), 8.0))]
    search = [Case(elsewhere, config, us) for config, us in ((CUBLAS, 10.0), (simt(), 8.0))]
    with open_database(tmp_path / "example.db") as database, database.session() as session:
        fill(session, search + finals)
        store.put_campaign(session, name="toy", file_text="", file_digest="1")
        verifications.add_repeat(
            session,
            campaign="toy",
            target=TARGET.digest,
            regime=REGIME,
            provenance=Provenance.MEASURED,
            at=datetime(2026, 12, 1),
            who="somebody",
            repeats=1,
            flip_rate=found.flip_rate,
            regret=found.regret,
            document=repeats_json(found),
        )
        assert draft_plan(session, name="other", regime=REGIME).content.repeatability is None
