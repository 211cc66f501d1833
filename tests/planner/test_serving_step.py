from __future__ import annotations

from pathlib import Path

import pytest
from serving_examples import K3
from serving_examples import OTHERS
from serving_examples import RANKS
from serving_examples import experts_cases
from serving_examples import given_text
from serving_examples import serving_plan

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import model
from megatune_kernels.models import models
from megatune_planner.objective import Objective
from megatune_planner.plan import Plan
from megatune_planner.serving.bounds import Bounds
from megatune_planner.serving.checks import checks
from megatune_planner.serving.checks import figures
from megatune_planner.serving.given import read_given
from megatune_planner.serving.published import published_experts
from megatune_planner.serving.step import Given
from megatune_planner.serving.step import Step
from megatune_planner.serving.step import StepPart
from megatune_planner.serving.step import floor_us
from megatune_planner.serving.step import step

PROJECTIONS = 3 * 69 + 4 * 24 + 4 * 92 + 2 + 1
"""KDA has 3, MLA 4, a layer of experts 4, the dense layer 2, and one to the vocabulary."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return serving_plan(tmp_path_factory.mktemp("serving"))


@pytest.fixture
def given(tmp_path: Path) -> Given:
    path = tmp_path / "given.toml"
    path.write_text(given_text())
    return read_given(path)


def middle(step: Step, which: str, prefix: str) -> float:
    found = [getattr(part, which) for part in step.parts if part.name.startswith(prefix)]
    return sum((each.low + each.high) / 2 for each in found)


def test_operators_count_as_often_as_a_step_launches_them(plan: Plan) -> None:
    found = step(K3, plan, RANKS, 8)
    planned = [part for part in found.parts if part.provenance == "measured" and "reduction" not in part.name]
    assert sum(part.launches for part in planned) == PROJECTIONS
    assert sum(part.plan_us.low + part.plan_us.high for part in planned if part.plan_us) / 2 == pytest.approx(
        8 * PROJECTIONS
    )
    assert sum(part.stock_us.low + part.stock_us.high for part in planned if part.stock_us) / 2 == pytest.approx(
        10 * PROJECTIONS
    )
    # One behind each of 93 mixers and behind the dense MLP; 92 in the latent.
    assert {part.name: part.launches for part in found.parts if "reduction" in part.name} == {
        "reduction 7168": 94,
        "reduction 3584": 92,
    }
    assert middle(found, "plan_us", "reduction") == pytest.approx(12 * 186)
    assert middle(found, "stock_us", "reduction") == pytest.approx(20 * 186)


def test_a_plan_of_the_runtimes_own_kernel_counts_as_well(plan: Plan) -> None:
    renamed = [
        each.model_copy(update={"name": "vllm-skinny-gemm"}) if each.name == "projection" else each
        for each in plan.content.operators
    ]
    content = plan.content.model_copy(update={"operators": tuple(renamed)})
    found = step(K3, plan.model_copy(update={"content": content}), RANKS, 8)
    assert [part.plan_us for part in found.parts] == [part.plan_us for part in step(K3, plan, RANKS, 8).parts]


def test_a_router_front_takes_the_place_of_the_packed_projection_and_of_routing(tmp_path: Path, plan: Plan) -> None:
    routed = serving_plan(tmp_path, router=True)
    found = step(K3, routed, RANKS, 8, packed=True)
    assert [part.name for part in found.parts if part.name in ("front", "routing", "router front")] == ["router front"]
    assert middle(found, "plan_us", "router front") == pytest.approx(9 * 92)
    assert middle(found, "stock_us", "router front") == pytest.approx(30 * 92)
    # Over all ranks one token alone was measured.
    assert middle(step(K3, routed, RANKS, 1, packed=True), "plan_us", "router front") == pytest.approx(6 * 92)
    (beyond,) = [part for part in step(K3, routed, RANKS, 100, packed=True).parts if part.name == "router front"]
    assert (beyond.provenance, beyond.how) == (
        "missing",
        "router front over 16: measured at 1 to 1 tokens, not at 100",
    )
    assert set(OTHERS) - set(found.missing) == {"routing"}
    # Without it, and where rows are not packed, the parts are as they were.
    assert step(K3, routed, RANKS, 8) == step(K3, plan, RANKS, 8)
    names = {part.name for part in step(K3, plan, RANKS, 8, packed=True).parts}
    assert {"front", "routing"} <= names


def experts_of(plan: Plan, tokens: int) -> StepPart:
    (found,) = [part for part in step(K3, plan, RANKS, tokens).parts if part.name == "experts"]
    return found


def test_experts_that_the_plan_measured_count_instead_of_published_ones(tmp_path: Path, plan: Plan) -> None:
    published = experts_of(plan, 8)
    assert published.stock_us is not None
    # Torch at 500 µs is slower than what was published, which then is stock; torch at 30 is faster.
    for stock, name in ((500.0, "slow"), (30.0, "fast")):
        (tmp_path / name).mkdir()
        measured = serving_plan(tmp_path / name, experts=experts_cases((1, 8), {"balanced": 20.0, "same": 10.0}, stock))
        found = experts_of(measured, 8)
        assert found.provenance == "measured"
        assert found.launches == 92
        assert found.plan_us is not None
        assert (found.plan_us.low, found.plan_us.high) == pytest.approx((92 * 10 * 0.996, 92 * 20 * 1.004))
        assert "routing balanced" in found.how
        assert "routing same" in found.how
        if name == "slow":
            assert found.stock_us == published.stock_us
            assert "stock is as published" in found.how
        else:
            assert found.stock_us is not None
            assert found.stock_us.high == pytest.approx(92 * 30 * 1.004)
        # Of tokens that the plan has not, the published ones count.
        assert experts_of(measured, 64) == experts_of(plan, 64)
        assert experts_of(measured, 4).provenance == "predicted"


def test_experts_decided_over_routings_count_by_the_objective(tmp_path: Path) -> None:
    cases = experts_cases((8,), {"balanced": 20.0, "same": 10.0}, 500.0)
    found = experts_of(serving_plan(tmp_path, experts=cases, objective=Objective.of("mean")), 8)
    assert found.plan_us is not None
    assert (found.plan_us.low + found.plan_us.high) / 2 == pytest.approx(92 * 15)
    assert "mean of balanced 50% and same 50%" in found.how


def test_stock_of_experts_serves_where_the_plan_says_stock(tmp_path: Path, plan: Plan) -> None:
    cases = experts_cases((8,), {"balanced": 520.0}, 500.0)
    found = experts_of(serving_plan(tmp_path, experts=cases), 8)
    assert found.plan_us == found.stock_us == experts_of(plan, 8).stock_us


def test_what_nobody_measured_is_missing_by_name_and_no_rate_is_claimed(plan: Plan) -> None:
    found = step(K3, plan, RANKS, 8)
    assert found.missing == OTHERS
    assert found.plan_us is found.stock_us is found.rate is found.gain is None
    assert found.least_us > 8 * PROJECTIONS


def test_published_experts_are_imported_with_their_source(plan: Plan) -> None:
    (experts,) = [part for part in step(K3, plan, RANKS, 8).parts if part.name == "experts"]
    assert experts.provenance == "imported"
    assert "h200_sxm/moe/vllm" in experts.how
    figures_ = published_experts(K3, "H200 SXM", RANKS)
    assert figures_ is not None
    assert experts.plan_us == figures_.us[8] * 92
    assert published_experts(K3, "H200 SXM", 4) is None
    assert published_experts(K3, "H100 PCIe", RANKS) is None


def test_given_parts_complete_a_step(plan: Plan, given: Given) -> None:
    found = step(K3, plan, RANKS, 8, given=given)
    assert found.missing == ()
    assert found.plan_us is not None
    assert found.stock_us is not None
    assert found.rate is not None
    assert found.rate.high == pytest.approx(1e6 / found.plan_us.low)
    assert found.plan_us.high < found.stock_us.low
    assert found.gain is not None
    saved = 2 * PROJECTIONS + 8 * 186
    assert found.gain.low < saved / found.stock_us.high < found.gain.high
    assert found.provenance == "predicted"


def test_a_measured_step_of_stock_needs_no_parts(plan: Plan) -> None:
    whole = Given({}, {8: Bounds(30_000, 30_300)}, {"step": "made up"})
    found = step(K3, plan, RANKS, 8, given=whole)
    assert found.stock_us == Bounds(30_000, 30_300)
    assert found.plan_us is not None
    saved = 2 * PROJECTIONS + 8 * 186
    assert found.plan_us.low <= 30_000 - saved * 0.98
    assert found.plan_us.high < 30_300
    assert step(K3, plan, RANKS, 16, given=whole).plan_us is None


def test_between_measured_tokens_figures_are_predicted_and_outside_there_are_none(plan: Plan) -> None:
    (part,) = [part for part in step(K3, plan, RANKS, 6).parts if part.name == "q_b"]
    assert part.provenance == "predicted"
    (part,) = [part for part in step(K3, plan, RANKS, 65).parts if part.name == "q_b"]
    assert part.provenance == "missing"
    assert "measured at 1 to 64 tokens, not at 65" in part.how


def test_a_part_that_a_step_does_not_have_is_refused(plan: Plan) -> None:
    with pytest.raises(MegatuneError, match="a step of Kimi-K3 has no part 'atention'; it has"):
        step(K3, plan, RANKS, 8, given=Given({"atention": {8: Bounds(1, 2)}}, {}, {}))
    with pytest.raises(MegatuneError, match="q_b is in the plan, and given too"):
        step(K3, plan, RANKS, 8, given=Given({"q_b": {8: Bounds(1, 2)}}, {}, {}))
    with pytest.raises(MegatuneError, match="a step of 0 tokens"):
        step(K3, plan, RANKS, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[given]]\n", "given.0.part: Field required"),
        ("given = 1\n", "given: Input should be a valid list"),
        ('[[given]]\npart="a"\ntokens=1\nlow_us=2\nhigh_us=1\nsource="x"\n', "high_us is below low_us"),
        ('[[given]]\npart="a"\ntokens=1\nlow_us=-2\nhigh_us=1\nsource="x"\n', "greater than or equal to 0"),
        (2 * '[[given]]\npart="a"\ntokens=1\nlow_us=1\nhigh_us=1\nsource="x"\n', "a at 1 tokens is there twice"),
        ("[[given\n", "not TOML"),
    ],
)
def test_bad_files_of_given_figures_are_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "given.toml"
    path.write_text(text)
    with pytest.raises(MegatuneError) as caught:
        read_given(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_lower_bound_grows_with_tokens_and_falls_with_ranks() -> None:
    floors = [floor_us(K3, "H200 SXM", 16, tokens) for tokens in (1, 2, 8, 64, 512)]
    assert floors == sorted(floors, key=float)  # type: ignore[arg-type]
    assert (floor_us(K3, "H200 SXM", 8, 8) or 0) > (floor_us(K3, "H200 SXM", 16, 8) or 0)
    assert floor_us(K3, "a part that nobody knows", 16, 8) is None
    # 16 of 896 experts of 90.4 GB, and every projection besides the latent's, at 4.8 TB/s
    kda, mla = 3216 * 7168 + 768 * 128 + 7168 * 768, 2112 * 7168 + 1152 * 1536 + 768 * 7168 + 7168 * 768
    shared, dense, vocabulary = 768 * 7168 + 7168 * 384, 4224 * 7168 + 7168 * 2112, 10240 * 7168
    read = 90_403_504_128 * 16 / 896 + 2 * (69 * kda + 24 * mla + 92 * shared + dense + vocabulary)
    assert floors[0] == pytest.approx(read / 4800 / 1000)


def test_published_serving_figures_are_checked_and_the_error_is_told() -> None:
    found = {check.published.id: check for check in checks()}
    compared = [check for check in found.values() if check.error is not None]
    assert {check.published.id for check in compared} == {"k3-b300-tp8-128", "k3-b300-tp8-512"}
    # A lower bound that lies above what somebody reached would be none.
    assert all(-1 < check.error < 0 for check in compared if check.error is not None)
    assert all(check.reason for check in found.values() if check.error is None)
    assert found["k3-single-user"].published.step_us == pytest.approx(1e6 / 183.3)
    assert found["k3-sixteen-users"].published.step_us == pytest.approx(16e6 / 725)
    assert [figure.value is None for figure in figures()] == [check.error is None for check in checks()]


def test_published_experts_are_of_models_that_the_catalogue_has() -> None:
    found = {
        name
        for name, each in models().items()
        if any(published_experts(each, part, ranks) for part in ("H200 SXM", "GB300") for ranks in (1, 8, 16))
    }
    assert {"Kimi-K3", "DeepSeek-V3", "Kimi-K2.5"} <= found
    assert published_experts(model("GLM-4.7"), "H200 SXM", 8) is None
