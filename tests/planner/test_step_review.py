"""What a plan does to a whole step: against stock, against another plan, and where one of them says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_examples import example_cases
from plan_examples import fill
from serving_examples import K3
from serving_examples import OTHERS
from serving_examples import RANKS
from serving_examples import TOKENS
from serving_examples import experts_cases
from serving_examples import serving_plan

from megatune_db.session import open_database
from megatune_planner.drafting import draft_plan
from megatune_planner.plan import Plan
from megatune_planner.planning import Options
from megatune_planner.serving.bounds import Bounds
from megatune_planner.serving.step import saved_us
from megatune_planner.serving.step import step
from megatune_planner.step_review import Deployment
from megatune_planner.step_review import deployments
from megatune_planner.step_review import expected
from megatune_planner.step_review import predicted_steps


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return serving_plan(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Plan]:
    """Two plans of the same measurements, the first of which asks more of a gain; for no model in particular."""
    with open_database(tmp_path_factory.mktemp("pair") / "a.db") as database, database.session() as session:
        fill(session, example_cases())
        return draft_plan(session, name="kimi", options=Options(min_gain=0.2)), draft_plan(session, name="kimi")


def test_against_stock_it_is_the_step_that_serving_predicts(plan: Plan) -> None:
    (found,) = deployments(plan)
    assert found.name == f"Kimi-K3 on {RANKS} ranks"
    steps = predicted_steps(plan, None, found)
    assert tuple(each.tokens for each in steps) == TOKENS
    for each in steps:
        parts = step(K3, plan, RANKS, each.tokens).parts
        known = [part for part in parts if part.plan_us is not None]
        assert set(each.missing) == set(OTHERS)
        assert [part.name for part in each.parts] == [part.name for part in known]
        assert each.before_us == each.stock_us
        assert each.after_us.low == pytest.approx(sum(part.plan_us.low for part in known if part.plan_us))
        saved = saved_us(parts)
        assert (each.saved_us.low, each.saved_us.high) == pytest.approx((saved.low, saved.high))
        assert each.saved_us == each.saved_of_stock_us


def test_what_only_one_plan_has_is_stock_in_the_other(plan: Plan) -> None:
    """The other plan has no shape of the model at these ranks, so that it is as slow as stock."""
    (found,) = deployments(plan)
    alone = predicted_steps(plan, None, found)
    content = plan.content
    fewer = content.model_copy(update={"operators": content.operators[:1]})
    beside = predicted_steps(plan, plan.model_copy(update={"content": fewer}), found)
    (gone,) = content.operators[1:]
    for one, other in zip(alone, beside, strict=True):
        assert (one.stock_us, one.after_us) == (other.stock_us, other.after_us)
        changed = {part.name for part in other.parts if part.before_us != part.after_us}
        assert changed
        assert all(name.startswith(gone.name) for name in changed)
        assert {part.name: part.before_us for part in other.parts if part.name in changed} == {
            part.name: part.stock_us for part in one.parts if part.name in changed
        }


def test_against_another_plan_only_what_differs_is_saved(pair: tuple[Plan, Plan]) -> None:
    first, second = pair
    found = deployments(second)
    assert [each.known for each in found] == sorted((each.known for each in found), reverse=True)
    assert found[0].name == "Kimi-K3 on 8 ranks"
    forth, back = predicted_steps(second, first, found[0]), predicted_steps(first, second, found[0])
    for one, other in zip(forth, back, strict=True):
        assert one.saved_us == Bounds(-other.saved_us.high, -other.saved_us.low)
        same = [part for part in one.parts if part.before_us == part.after_us]
        assert "experts" in {part.name for part in same}
    assert any(each.saved_us.low > 0 for each in forth)


def test_the_mean_follows_the_traffic(plan: Plan) -> None:
    (found,) = deployments(plan)
    steps = predicted_steps(plan, None, found)
    one = expected(steps, {str(steps[2].tokens): 7.0, "9999": 1.0})
    assert one is not None
    assert one.after_us.low == pytest.approx(steps[2].after_us.low)
    alike = expected(steps, {})
    assert alike is not None
    assert alike.stock_us.high == pytest.approx(sum(each.stock_us.high for each in steps) / len(steps))
    assert expected(steps, {"9999": 1.0}) is None
    assert expected((), {}) is None


def test_a_model_that_the_plan_knows_nothing_of_has_no_step(pair: tuple[Plan, Plan]) -> None:
    assert predicted_steps(pair[0], None, Deployment(K3, 32, 1)) == ()


def test_experts_and_the_router_front_of_a_plan_are_in_the_step_on_all_sides(tmp_path: Path, plan: Plan) -> None:
    cases = experts_cases((1, 8), {"balanced": 20.0}, 30.0)
    ours = serving_plan(tmp_path, router=True, experts=cases)
    (found,) = deployments(ours)
    (before,) = deployments(plan)
    # Both, and no projection into the latent by itself.
    assert found.known == before.known + 2 - 1
    for other in (None, plan):
        steps = {each.tokens: each for each in predicted_steps(ours, other, found)}
        parts = {part.name: part for part in steps[8].parts}
        assert parts["experts"].before_us == parts["experts"].stock_us
        assert parts["experts"].stock_us.high == pytest.approx(92 * 30 * 1.004)
        assert parts["experts"].after_us.high == pytest.approx(92 * 20 * 1.004)
        assert parts["router front"].before_us == parts["router front"].stock_us
        assert {"front", "latent_down", "routing"}.isdisjoint({*parts, *steps[8].missing})
    # Seen from a plan without them, what was measured of the other counts all the same.
    back = {part.name: part for each in predicted_steps(plan, ours, before) for part in each.parts if each.tokens == 8}
    assert back["experts"].before_us == parts["experts"].after_us
    assert back["experts"].after_us == parts["experts"].stock_us
