"""Tables and settings of vLLM that follow from reductions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from reduction_examples import FANOUT
from reduction_examples import NCCL
from reduction_examples import TWO_STAGE
from reduction_examples import Times
from reduction_examples import example_reduction_plan
from reduction_examples import example_reductions
from reduction_examples import on
from reduction_examples import plan_of
from reduction_examples import reduction_cases
from reduction_examples import sums
from reduction_examples import wins

from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters import batch_table
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.reduction_schema import Setting
from megatune_planner.exporters.reduction_schema import Settings
from megatune_planner.exporters.vllm_allreduce import ALGORITHM_VARIABLE
from megatune_planner.exporters.vllm_allreduce import FUSION_LIMIT
from megatune_planner.exporters.vllm_decode_schema import Table
from megatune_planner.exporters.vllm_decode_schema import Tables
from megatune_planner.exporters.vllm_specialized_decode import DICTS

DECODE = "vllm-specialized-decode"
SETTINGS = "vllm-allreduce"


def tables_of(directory: Path, cases: Iterable[object]) -> Tables:
    plan = plan_of(directory, cases)  # type: ignore[arg-type]
    return Tables.model_validate_json(exporter(DECODE).files(plan)["vllm_specialized_decode.json"])


def table_of(directory: Path, times: Times, width: int = 7168, world: int = 8) -> Table:
    (table,) = tables_of(directory, reduction_cases(width, world, times)).tables
    return table


def settings_of(directory: Path, cases: Iterable[object], arch: str = "sm_100a") -> Settings:
    plan = plan_of(directory, cases, on(arch))  # type: ignore[arg-type]
    return Settings.model_validate_json(exporter(SETTINGS).files(plan)["vllm_allreduce.json"])


def by_name(settings: Settings) -> dict[tuple[int, str], Setting]:
    return {(setting.world, setting.name): setting for setting in settings.settings}


def test_each_width_and_world_gets_its_dict(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, example_reductions())
    package = "vllm.models.kimi_k3.nvidia.specialized_decode.cutedsl"
    assert [(table.module, table.world, table.value) for table in tables.tables] == [
        (f"{package}.oproj.prepared", 8, "33-64:1"),
        (f"{package}.moe.tail_runtime", 8, ""),
        (f"{package}.oproj.prepared", 16, "17-64:1"),
        (f"{package}.moe.tail_runtime", 16, "33-64:1"),
    ]
    assert tables.skipped == ("width 7168 bf16, world 4: vLLM has tables for 8 and 16 ranks, and none for 4",)


def test_tables_are_read_back_token_by_token(tmp_path: Path) -> None:
    for table in tables_of(tmp_path, example_reductions()).tables:
        two_stage = {t for each in table.stretches if each.two_stage for t in range(each.tokens_lo, each.tokens_hi + 1)}
        assert batch_table.parse(table.value) == dict.fromkeys(two_stage, 1)


def test_a_boundary_that_is_no_power_of_two(tmp_path: Path) -> None:
    table = table_of(tmp_path, wins({1: FANOUT, 5: FANOUT, 6: TWO_STAGE, 64: TWO_STAGE}))
    assert table.value == "6-64:1"


def test_two_stage_at_few_tokens_is_said_where_vllm_heeds_it(tmp_path: Path) -> None:
    times = wins(dict.fromkeys((1, 8, 9, 64), TWO_STAGE))
    for world, width, value in ((8, 7168, "1-64:1"), (16, 7168, "9-64:1"), (8, 3584, "9-64:1"), (16, 3584, "9-64:1")):
        folder = tmp_path / f"{world}-{width}"
        folder.mkdir()
        table = table_of(folder, times, width, world)
        assert table.value == value
        first = table.stretches[0]
        assert (first.source == "unheeded", first.two_stage) == (value[0] == "9", value[0] != "9")
        if value[0] == "9":
            assert "a band says two_stage, but" in first.reason


def test_where_stock_won_the_faster_of_the_two_serves(tmp_path: Path) -> None:
    times = sums(
        (1, 16, 32, 64),
        full_fanout=lambda t: 2 + 0.12 * t,
        two_stage=lambda t: 6 + 0.03 * t,
        nccl=lambda t: 5.0,
    )
    table = table_of(tmp_path, times, 7168, 16)
    said = {(each.tokens_lo, each.tokens_hi): (each.two_stage, each.source) for each in table.stretches}
    assert said == {
        (1, 16): (False, "band"),
        (17, 31): (False, "neighbours"),
        (32, 32): (False, "faster_variant"),
        (33, 63): (True, "shipped"),
        (64, 64): (True, "faster_variant"),
    }
    reasons = [each.reason for each in table.stretches]
    assert "stock (nccl) won, which this backend cannot run; of the two variants two_stage is faster" in reasons
    assert "a plugin may wrap SpecializedDecode.plan to return None" in " ".join(
        tables_of(_sub(tmp_path), reduction_cases(7168, 16, times)).notes
    )


def test_variants_that_tie_below_stock_leave_what_is_shipped(tmp_path: Path) -> None:
    times = {
        1: {FANOUT: 2.0, TWO_STAGE: 6.0, NCCL: 9.0},
        32: {FANOUT: 10.0, TWO_STAGE: 10.0, NCCL: 9.0},
        64: {FANOUT: 14.0, TWO_STAGE: 14.0, NCCL: 10.0},
    }
    table = table_of(tmp_path, times)
    assert table.value == table.shipped == "33-64:1"
    assert "not told apart; as vLLM ships it" in table.stretches[-1].reason


def test_tokens_that_were_not_measured_stay_as_shipped(tmp_path: Path) -> None:
    """Turning two-stage off at 64 tokens would need a measurement there."""
    table = table_of(tmp_path, wins({2: FANOUT, 16: FANOUT, 32: FANOUT}), 3584, 16)
    assert table.value == "33-64:1"
    assert [(each.tokens_lo, each.source) for each in table.stretches] == [(1, "shipped"), (2, "band"), (33, "shipped")]
    assert "more than the 32 tokens that were measured at most; as vLLM ships it" in table.stretches[-1].reason


def test_a_contested_range_stays_as_shipped(tmp_path: Path) -> None:
    winners = {1: FANOUT, 8: FANOUT, 16: TWO_STAGE, 32: FANOUT, 48: TWO_STAGE, 64: TWO_STAGE}
    table = table_of(tmp_path, wins(winners))
    assert [(each.tokens_lo, each.tokens_hi, each.two_stage, each.source) for each in table.stretches] == [
        (1, 8, False, "band"),
        (9, 32, False, "shipped"),
        (33, 47, True, "shipped"),
        (48, 64, True, "band"),
    ]
    assert "change sides 3 times from 8 to 48 tokens: in between it stays as vLLM ships it" in table.warnings[0]


def test_a_suspect_crossover_gives_no_table(tmp_path: Path) -> None:
    times = {
        1: {FANOUT: 4.0, TWO_STAGE: 20.0, NCCL: 30.0},
        16: {FANOUT: 8.0, TWO_STAGE: 20.0, NCCL: 30.0},
        20: {FANOUT: 8.5, TWO_STAGE: 5.0, NCCL: 30.0},
    }
    with pytest.raises(MegatuneError, match=r"no shape of the plan has a table: width 7168 .* is suspect"):
        table_of(tmp_path, times)


def test_more_tokens_than_the_mailboxes_hold_are_said(tmp_path: Path) -> None:
    table = table_of(tmp_path, wins({1: FANOUT, 64: FANOUT, 128: TWO_STAGE, 512: TWO_STAGE}))
    assert table.value == ""
    assert table.warnings == ("measured at 128, 512 tokens too, which no table can say: the mailboxes end at 64",)


@pytest.mark.parametrize(
    ("width", "world", "says"),
    [
        (7168, 2, "vLLM has tables for 8 and 16 ranks, and none for 2"),
        (7168, 4, "vLLM has tables for 8 and 16 ranks, and none for 4"),
        (5120, 8, "vLLM has tables for bf16 of width 7168 and 3584"),
    ],
)
def test_what_has_no_table_is_refused_by_name(tmp_path: Path, width: int, world: int, says: str) -> None:
    with pytest.raises(MegatuneError, match=says):
        table_of(tmp_path, wins({1: FANOUT}), width, world)


def test_hopper_has_no_specialised_decode(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, example_reductions(), on("sm_90a"))
    with pytest.raises(MegatuneError, match="runs on sm_100a and sm_103a, and the plan holds for sm_90a"):
        exporter(DECODE).files(plan)


def test_shipped_tables_are_grammatical() -> None:
    for each in DICTS.values():
        for text in each.shipped.values():
            assert batch_table.spell(batch_table.parse(text)) == text


def test_tables_that_say_something_else_cannot_be_built(tmp_path: Path) -> None:
    text = exporter(DECODE).files(example_reduction_plan(tmp_path))["vllm_specialized_decode.json"]
    for change, says in (
        (lambda v: v["tables"][0].update(value="32-64:1"), "says 1 at 32 tokens, and should say None"),
        (lambda v: v["tables"][0].update(value="64-33:1"), "reversed"),
        (lambda v: v["tables"][0].update(value="33-64:"), "no item"),
        (lambda v: v["tables"][0].update(value="33-64:on"), "says 'on' at 33 tokens"),
        (lambda v: v["tables"][0].update(world=4), "8 or 16"),
        (lambda v: v["tables"][0]["stretches"].pop(), "must end at 64 tokens"),
        (lambda v: v["tables"][0]["stretches"].pop(0), "must tile"),
        (lambda v: v["tables"].append(v["tables"][0]), "two tables"),
        (lambda v: v.update(surprise=1), "surprise"),
    ):
        damaged = json.loads(text)
        change(damaged)
        with pytest.raises(ValueError, match=says):
            Tables.model_validate_json(json.dumps(damaged))


def test_the_fusion_limit_is_where_nccl_begins(tmp_path: Path) -> None:
    setting = by_name(settings_of(tmp_path, example_reductions(), "sm_103a"))[8, FUSION_LIMIT]
    assert setting.value == 0.875
    assert setting.payload_bytes == 64 * 14336 == int(0.875 * 2**20)
    assert "64 tokens x 7168 elements x 2 bytes = 917504 bytes = 0.875 MiB, exactly" in setting.conversion
    assert setting.limits[0].next_serves == NCCL


@pytest.mark.parametrize("width", [2880, 5120, 6144, 7168])
@pytest.mark.parametrize("tokens", [1, 3, 37])
def test_mebibytes_are_read_back_to_the_byte(tmp_path: Path, width: int, tokens: int) -> None:
    times = wins(dict.fromkeys((1, tokens), FANOUT) | {2 * tokens: NCCL})
    setting = by_name(settings_of(tmp_path, reduction_cases(width, 8, times)))[8, FUSION_LIMIT]
    assert isinstance(setting.value, float)
    assert int(json.loads(json.dumps(setting.value)) * 1024 * 1024) == tokens * width * 2


def test_the_fusion_limit_is_that_of_the_widest(tmp_path: Path) -> None:
    cases = [
        *reduction_cases(7168, 8, wins({1: FANOUT, 8: TWO_STAGE, 16: NCCL})),
        *reduction_cases(3584, 8, wins({1: NCCL, 8: FANOUT, 16: FANOUT})),
    ]
    setting = by_name(settings_of(tmp_path, cases))[8, FUSION_LIMIT]
    assert (setting.limits[0].width, setting.limits[0].tokens) == (7168, 8)


def test_no_loss_leaves_a_larger_limit_of_vllms_own(tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match="NCCL won nowhere up to 114688 bytes, and vLLM's own limit is 1 MiB"):
        settings_of(tmp_path, reduction_cases(7168, 8, wins({1: FANOUT, 4: TWO_STAGE, 8: FANOUT})))


def test_no_loss_raises_a_smaller_limit_of_vllms_own(tmp_path: Path) -> None:
    cases = reduction_cases(7168, 8, wins({1: FANOUT, 16: FANOUT, 32: TWO_STAGE, 128: TWO_STAGE}))
    setting = by_name(settings_of(tmp_path, cases, "sm_90a"))[8, FUSION_LIMIT]
    assert setting.value == 1.75
    assert "vLLM's own limit is 0.5 MiB" in setting.conversion


def test_nccl_from_1_token_on_is_no_limit(tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match=r"nccl wins at 1 token already: pass_config\.fuse_allreduce_rms=false"):
        settings_of(tmp_path, reduction_cases(7168, 8, wins({1: NCCL, 8: FANOUT})))


def test_one_algorithm_is_forced_where_it_wins_everywhere(tmp_path: Path) -> None:
    cases = reduction_cases(7168, 8, wins(dict.fromkeys((1, 8, 64), TWO_STAGE)))
    setting = by_name(settings_of(tmp_path, cases))[8, ALGORITHM_VARIABLE]
    assert (setting.where, setting.value, setting.payload_bytes) == ("environment", "twoshot", None)


def test_one_shot_is_forced_only_as_far_as_it_was_measured(tmp_path: Path) -> None:
    """vLLM's own all-reduce takes tensors below 1 MiB there: 73 tokens and no more."""
    short = reduction_cases(7168, 8, wins(dict.fromkeys((1, 8, 72), FANOUT)))
    with pytest.raises(MegatuneError, match="up to 1032192 bytes, and the variable would hold for every tensor below"):
        settings_of(tmp_path, short)
    enough = reduction_cases(7168, 8, wins(dict.fromkeys((1, 8, 73), FANOUT)))
    setting = by_name(settings_of(_sub(tmp_path), enough))[8, ALGORITHM_VARIABLE]
    assert setting.value == "oneshot"


def test_widths_that_disagree_force_nothing(tmp_path: Path) -> None:
    cases = [
        *reduction_cases(7168, 8, wins(dict.fromkeys((1, 8, 128), TWO_STAGE))),
        *reduction_cases(3584, 8, wins({1: FANOUT, 128: TWO_STAGE})),
    ]
    settings = settings_of(tmp_path, cases)
    assert (8, ALGORITHM_VARIABLE) not in by_name(settings)
    assert "one algorithm for all sizes, and none won at all tokens" in " ".join(settings.skipped)


@pytest.mark.parametrize(
    ("world", "says"),
    [
        (16, "vLLM has no all-reduce of its own for it; it has 2, 4, 6, 8"),
        (6, "FlashInfer's fused all-reduce has 2, 4, 8, 16 ranks"),
    ],
)
def test_ranks_that_a_setting_does_not_reach_are_named(tmp_path: Path, world: int, says: str) -> None:
    cases = reduction_cases(6144, world, wins(dict.fromkeys((1, 8, 512), TWO_STAGE)))
    cases += reduction_cases(6144, 8, wins(dict.fromkeys((1, 8, 512), TWO_STAGE)))
    assert says in " ".join(settings_of(tmp_path, cases).skipped)


def _sub(directory: Path) -> Path:
    folder = directory / "again"
    folder.mkdir()
    return folder
