from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st
from plan_examples import example_plan
from serving_examples import K3
from serving_examples import RANKS
from serving_examples import given_text
from serving_examples import serving_plan
from typer.testing import CliRunner

from megatune_dashboard.command import app
from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import model
from megatune_planner.plan import Plan
from megatune_planner.serving.bounds import Bounds
from megatune_planner.serving.bounds import exactly
from megatune_planner.serving.choosing import LevelNotMet
from megatune_planner.serving.choosing import Option
from megatune_planner.serving.choosing import choose
from megatune_planner.serving.choosing import nearest
from megatune_planner.serving.choosing import options
from megatune_planner.serving.configuration import Level
from megatune_planner.serving.configuration import arguments
from megatune_planner.serving.configuration import capture_sizes
from megatune_planner.serving.given import read_given
from megatune_planner.serving.step import CONTEXT_EXCHANGE
from megatune_planner.serving.step import Given
from megatune_planner.serving.traffic import Traffic


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return serving_plan(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    path = tmp_path_factory.mktemp("given") / "given.toml"
    path.write_text(given_text())
    return read_given(path)


def ways(plan: Plan, level: Level, given: Given | None) -> list[Option]:
    return list(options(plan, K3, level, None, given))


def test_a_level_that_is_met_names_the_plan(plan: Plan, given: Given) -> None:
    (option,) = ways(plan, Level(20, 8, 8192), given)
    assert option.limit is None
    assert choose([option]) is option
    assert option.layout.tensor == RANKS
    rate = option.step.rate
    assert rate is not None
    assert rate.low >= 20


def test_a_plan_with_a_router_front_is_served_with_it(tmp_path: Path, plan: Plan, given: Given) -> None:
    (plain,) = ways(plan, Level(20, 8, 8192), given)
    (routed,) = ways(serving_plan(tmp_path, router=True), Level(20, 8, 8192), given)
    names = {part.name for part in routed.step.parts}
    assert {part.name for part in plain.step.parts} - names == {"latent_down", "routing"}
    assert names - {part.name for part in plain.step.parts} == {"router front"}
    assert routed.limit is None
    # Each rank computes all logits: 896 rows of the router and 224 of the latent, beside what prefill reads.
    (front,) = [each for each in routed.memory.holdings if each.name == "front"]
    assert front.bytes_ == exactly(2 * 92 * (896 + 224) * 7168)
    assert "front" not in {each.name for each in plain.memory.holdings}


def test_ranks_on_several_nodes_need_a_plan_that_holds_there(plan: Plan, given: Given) -> None:
    level = Level(20, 8, 8192)
    with pytest.raises(MegatuneError, match=r"does not hold over several nodes: .* --accept multi_node"):
        list(options(plan, K3, level, None, given, nodes=2))
    gate = plan.content.gate.model_copy(update={"features": ("multi_node",)})
    spread = Plan.of(plan.content.model_copy(update={"gate": gate}))
    (option,) = options(spread, K3, level, RANKS, given, nodes=2)
    assert (option.limit, option.layout.tensor, option.layout.nodes) == (None, RANKS, 2)
    written = {setting.path: setting for setting in arguments(spread, option.served(None))}
    assert written["nnodes",].value == 2
    assert "--node-rank" in written["nnodes",].reason
    (single,) = options(spread, K3, level, RANKS, given)
    assert ("nnodes",) not in {setting.path for setting in arguments(spread, single.served(None))}
    with pytest.raises(MegatuneError, match="16 ranks cannot be split over 3 nodes"):
        list(options(spread, K3, level, RANKS, given, nodes=3))


def test_a_cache_that_is_shared_out_needs_a_figure_of_the_exchange(plan: Plan, given: Given) -> None:
    gate = plan.content.gate.model_copy(update={"features": ("context_parallel",)})
    shared = Plan.of(plan.content.model_copy(update={"gate": gate}))
    whole, spread = options(shared, K3, Level(20, 8, 131072), None, given)
    assert (whole.layout.context_ranks, spread.layout.context_ranks) == (1, RANKS)
    assert (spread.limit, spread.step.missing) == ("no data", (CONTEXT_EXCHANGE,))
    assert CONTEXT_EXCHANGE not in {part.name for part in whole.step.parts}
    known = replace(given, parts={**given.parts, CONTEXT_EXCHANGE: {1: Bounds(90, 100), 64: Bounds(90, 100)}})
    whole, spread = options(shared, K3, Level(20, 8, 131072), None, known)
    assert spread.limit is None
    assert whole.step.plan_us is not None
    assert spread.step.plan_us is not None
    assert spread.step.plan_us.high == pytest.approx(whole.step.plan_us.high + 100)


@pytest.mark.parametrize(
    ("level", "limit", "says"),
    [
        (Level(20, 32, 131072), "memory", "holds up to 211.7 GiB, and has 126.9 GiB"),
        (Level(5000, 8, 8192), "latency", "and may take 200 µs"),
        (Level(100, 8, 8192), "latency", "and may take 10000 µs"),
    ],
)
def test_what_binds_is_said_with_the_nearest_feasible_plan(
    plan: Plan, given: Given, level: Level, limit: str, says: str
) -> None:
    found = ways(plan, level, given)
    assert [option.limit for option in found] == [limit]
    with pytest.raises(LevelNotMet) as caught:
        choose(found)
    assert caught.value.exit_code == 3
    assert f"bound by {limit}" in str(caught.value)
    assert says in str(caught.value)
    near = nearest(found)
    assert near is not None
    assert near.limit is None
    assert f"nearest feasible: kimi-k3-tp16 ({plan.digest}) at 16 ranks with {near.layout.sequences} sequences" in str(
        caught.value
    )
    if limit == "memory":
        assert near.level.rate == level.rate
        assert near.layout.sequences < level.concurrency


def test_a_step_that_nobody_measured_is_no_data(plan: Plan) -> None:
    found = ways(plan, Level(20, 8, 8192), None)
    assert [option.limit for option in found] == ["no data"]
    with pytest.raises(
        LevelNotMet, match=r"bound by no data: .* nobody measured attention, kda core, .*; none of them"
    ):
        choose(found)
    # What is known is enough where it alone takes too long.
    assert [option.limit for option in ways(plan, Level(500, 8, 8192), None)] == ["latency"]
    # Beyond what the plan measured there is nothing to go by.
    assert [option.limit for option in ways(plan, Level(1, 65, 1024), None)] == ["no data"]


def test_traffic_decides_between_plans_that_meet_the_level(plan: Plan, given: Given) -> None:
    (option,) = ways(plan, Level(20, 8, 8192), given)
    few, many = Traffic({1: 9, 8: 1}), Traffic({1: 1, 8: 9, 4096: 5})
    less, more = option.expected_us(few), option.expected_us(many)
    assert less is not None
    assert more is not None
    assert less.low < more.low <= option.step.plan_us.high  # type: ignore[union-attr]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given_by(st.integers(1, 64), st.integers(1, 200_000), st.floats(0.5, 200))
def test_asking_for_less_never_fails_what_asking_for_more_meets(
    plan: Plan, given: Given, concurrency: int, context: int, rate: float
) -> None:
    (option,) = ways(plan, Level(rate, concurrency, context), given)
    if option.limit is None:
        (less,) = ways(plan, Level(rate / 2, concurrency, max(1, context // 2)), given)
        assert less.limit is None
    else:
        near = nearest([option])
        assert near is None or near.limit is None


@given_by(st.integers(1, 300))
def test_graphs_hold_every_step_and_end_every_band(plan: Plan, concurrency: int) -> None:
    sizes, largest = capture_sizes(plan, RANKS, concurrency)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == concurrency
    ends = {band.tokens_hi for operator in plan.content.operators for shape in operator.shapes for band in shape.bands}
    assert {end for end in ends if end is not None and end <= min(concurrency, largest)} <= set(sizes)


def test_plans_that_do_not_hold_are_refused(plan: Plan, tmp_path: Path) -> None:
    level = Level(20, 8, 8192)
    with pytest.raises(MegatuneError, match="kimi-k3-tp16 holds for Kimi-K3, and not for DeepSeek-V3"):
        list(options(plan, model("DeepSeek-V3"), level, None, None))
    with pytest.raises(MegatuneError, match=r"holds for \[16\] ranks, and not for 8"):
        list(options(plan, K3, level, 8, None))
    of_any = example_plan(tmp_path)
    assert [option.layout.tensor for option in options(of_any, K3, level, None, None)] == [8]
    with pytest.raises(MegatuneError, match="cannot be split over 7 ranks"):
        list(options(of_any, K3, level, 7, None))
    with pytest.raises(MegatuneError, match="has no shape of Qwen3-30B-A3B at any number of ranks"):
        list(options(of_any, model("Qwen3-30B-A3B"), level, None, None))


@pytest.mark.parametrize(
    ("level", "says"),
    [
        ((0, 1, 1, 0.1), "needs a rate above 0"),
        ((float("nan"), 1, 1, 0.1), "needs a rate above 0"),
        ((1, 0, 1, 0.1), "concurrency is 0"),
        ((1, 10**10, 1, 0.1), "concurrency is 10000000000: at most 65536 sequences are modelled"),
        ((1, 1, 0, 0.1), "context is 0"),
        ((1, 1, 1, 1.0), "head room 1.0 is no share"),
    ],
)
def test_impossible_levels_are_refused(level: tuple[float, int, int, float], says: str) -> None:
    with pytest.raises(MegatuneError, match=says):
        Level(*level)


def run(plan: Plan, folder: Path, *more: str) -> tuple[int, str, str]:
    (folder / "plan.json").write_text(plan.to_json())
    (folder / "given.toml").write_text(given_text())
    (folder / "traffic.csv").write_text("tokens,count\n1,5\n8,20\n")
    result = CliRunner().invoke(
        app,
        [
            *("serve-plan", str(folder / "plan.json"), "--out", str(folder / "out"), "--db", str(folder / "none.db")),
            *("--given", str(folder / "given.toml"), "--traffic", str(folder / "traffic.csv"), "--unreviewed", *more),
        ],
    )
    return result.exit_code, result.stdout, result.stderr


def test_the_command_writes_the_configuration_of_the_plan_that_it_chose(plan: Plan, tmp_path: Path) -> None:
    code, said, _ = run(plan, tmp_path, "--rate", "20", "--concurrency", "8", "--context", "8192")
    assert code == 0, said
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["vllm-config.env", "vllm-config.yaml"]
    assert "tokens a second, predicted:" in said
    assert "traffic: 100.0% of 25 steps" in said
    text = (tmp_path / "out" / "vllm-config.yaml").read_text()
    for line in (
        'model: "moonshotai/Kimi-K3"',
        "tensor-parallel-size: 16",
        "max-num-seqs: 8",
        "max-model-len: 8192",
        "gpu-memory-utilization: 0.9",
        "enable-prefix-caching: true",
        "max-num-batched-tokens: 2048",
        "long-prefill-token-threshold: 1024",
        "  cudagraph_capture_sizes: [1, 4, 8]",
    ):
        assert line in text.splitlines(), text


def test_the_command_writes_nothing_where_the_level_is_not_met(plan: Plan, tmp_path: Path) -> None:
    code, said, complained = run(plan, tmp_path, "--rate", "20", "--concurrency", "32", "--context", "131072", "--json")
    assert code == 3
    assert not (tmp_path / "out").exists()
    assert complained.count("\n") == 1
    assert "bound by memory" in complained
    found = json.loads(said)
    assert not found["met"]
    assert found["options"][0]["limit"] == "memory"
    assert found["nearest"]["limit"] is None
    assert found["nearest"]["concurrency"] < 32


def test_the_command_refuses_a_profile_without_counts(plan: Plan, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[traffic]\n8 = -3\n")
    code, _, complained = run(
        plan, tmp_path, "--rate", "1", "--concurrency", "1", "--context", "1", "--traffic", str(bad)
    )
    assert code == 2
    assert "counts are not negative" in complained
    assert complained.count("\n") == 1
