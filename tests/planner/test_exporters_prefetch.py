"""The prefetch table of vLLM's latency-specialised decode, from made-up times of chains."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_examples import Case
from prefetch_examples import BLACKWELL
from prefetch_examples import NONE
from prefetch_examples import attention_chains
from prefetch_examples import cell
from prefetch_examples import chain
from prefetch_examples import example_prefetch_plan
from prefetch_examples import example_prefetches
from prefetch_examples import grouped_chains
from prefetch_examples import plain
from prefetch_examples import plan_of
from prefetch_examples import prefetch
from reduction_examples import example_reduction_plan
from runtime_sources import run
from runtime_sources import source

from megatune_kernels.errors import MegatuneError
from megatune_kernels.space import Config
from megatune_planner.exporters import batch_table
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.vllm_decode_schema import NextAttention
from megatune_planner.exporters.vllm_decode_schema import Tables
from megatune_planner.exporters.vllm_next_attention import SHIPPED

NAME = "vllm-specialized-decode"
FILE = f"{NAME.replace('-', '_')}.json"


def tables_of(directory: Path, cases: Sequence[Case]) -> Tables:
    return Tables.model_validate_json(exporter(NAME).files(plan_of(directory, cases, BLACKWELL))[FILE])


def table_of(
    directory: Path, times: Mapping[int, Mapping[Config, float]], also: Sequence[Case] = (), world: int = 8
) -> NextAttention:
    """The table of chains that all take the same times, by tokens; ``also`` comes later and counts instead."""
    cases = [case for tokens, each in times.items() for w in attention_chains(world, tokens) for case in cell(w, each)]
    replaced = {case.workload for case in also}
    (table,) = tables_of(directory, [*(c for c in cases if c.workload not in replaced), *also]).prefetch
    return table


def best(mib: int, **rest: int) -> dict[Config, float]:
    return {NONE: 32.0, plain(): 30.0, prefetch(mib, **rest): 25.0, prefetch(mib + 4): 28.0}


OFF = {NONE: 32.0, plain(): 30.0, prefetch(8): 31.0}


def test_depth_and_carve_out_in_the_runtimes_grammar(tmp_path: Path) -> None:
    table = table_of(tmp_path, {1: best(12, carveout=100), 2: best(8), 4: best(8), 8: OFF})
    assert table.value == "1:12.100,2-4:8.0,5-7:64"
    read = batch_table.parse(table.value)
    assert (read[1], read[2], read[3], 8 in read) == ((12, 100), (8, 0), (8, 0), False)
    sources = {each.tokens_lo: each.source for each in table.stretches}
    assert sources == {
        1: "measured",
        2: "measured",
        3: "neighbours",
        4: "measured",
        5: "shipped",
        8: "measured",
        9: "shipped",
    }
    assert len(table.chains) == 6
    off = next(each for each in table.stretches if each.tokens_lo == 8)
    assert (off.mib, off.measured) == (0, (8,))
    assert off.reason.endswith("prefetch does not win")
    # Of each chain: the baseline, the chain without prefetch, and the best prefetch.
    assert len(off.evidence) == 3 * 6


def test_the_least_depth_of_all_chains_serves(tmp_path: Path) -> None:
    first, *_, last = attention_chains(8, 1)
    table = table_of(tmp_path, {1: best(24)}, [*cell(first, best(6)), *cell(last, best(48))])
    assert batch_table.parse(table.value)[1] == (6, 0)
    assert "KDA idle for 3000 ns: 6 MiB" in table.stretches[0].reason


def test_chains_behind_the_ranks_own_reduction_speak_before_stand_ins(tmp_path: Path) -> None:
    grouped = [case for workload in grouped_chains(8, 1) for case in cell(workload, best(10))]
    table = table_of(tmp_path, {1: best(24)}, grouped)
    assert batch_table.parse(table.value)[1] == (10, 0)
    assert len(table.chains) == 2
    assert "behind a reduction of width 7168: 10 MiB" in table.stretches[0].reason


def test_a_chain_in_which_prefetch_loses_turns_it_off(tmp_path: Path) -> None:
    table = table_of(tmp_path, {1: best(24)}, cell(attention_chains(8, 1)[-1], OFF))
    assert 1 not in batch_table.parse(table.value)


def test_what_does_not_win_beyond_its_interval_is_off(tmp_path: Path) -> None:
    """A config that the table can say, but the plan does not serve, has to beat what serves without prefetch."""
    served = {NONE: 32.0, plain(): 30.0, prefetch(8, start=50): 25.0}
    slower, enough = {**served, prefetch(8): 29.9}, {**served, prefetch(6): 29.0}
    assert 1 not in batch_table.parse(table_of(tmp_path, {1: slower}).value)
    (tmp_path / "enough").mkdir()
    assert batch_table.parse(table_of(tmp_path / "enough", {1: enough}).value)[1] == (6, 0)


@pytest.mark.parametrize("other", [{"start": 50}, {"walk": "columns"}, {"walk": "later"}], ids=str)
def test_what_was_measured_of_other_kernels_alone_says_nothing(tmp_path: Path, other: dict[str, Any]) -> None:
    late = {NONE: 32.0, plain(): 30.0, prefetch(8, **other): 25.0}
    table = table_of(tmp_path, {1: best(12), 2: late})
    assert batch_table.parse(table.value)[2] == 96
    assert table.stretches[1].source == "shipped"
    (tmp_path / "late").mkdir()
    with pytest.raises(
        MegatuneError, match=r"no tokens at which all of KDA idle for 3000 ns, .* of 16 KiB from the beg"
    ):
        table_of(tmp_path / "late", {1: late})
    # Where no prefetch wins, vLLM's would not either.
    (tmp_path / "lost").mkdir()
    lost = {NONE: 32.0, plain(): 30.0, prefetch(8, **other): 31.0}
    assert 1 not in batch_table.parse(table_of(tmp_path / "lost", {1: lost}).value)


def test_both_kinds_of_attention_have_to_be_measured(tmp_path: Path) -> None:
    kda = [c for w in attention_chains(8, 1) if "k3" not in dict(w.dims) for c in cell(w, best(12))]
    with pytest.raises(MegatuneError, match="prefetch at 8 ranks: no chain of MLA layers was measured"):
        tables_of(tmp_path, kda)
    sixteen = [c for w in attention_chains(16, 1) for c in cell(w, best(12))]
    (tmp_path / "both").mkdir()
    tables = tables_of(tmp_path / "both", [*kda, *sixteen])
    assert [table.world for table in tables.prefetch] == [16]
    assert tables.skipped == ("prefetch at 8 ranks: no chain of MLA layers was measured",)


def test_other_chains_are_left_out_by_name(tmp_path: Path) -> None:
    front = chain(1, {"idle_ns": 5000, "n1": 560, "k1": 7168})
    cases = [c for w in attention_chains(8, 1) for c in cell(w, best(12))]
    tables = tables_of(tmp_path, [*cases, *cell(front, best(4))])
    assert tables.skipped == ("prefetch idle_ns=5000,k1=7168,n1=560: no attention of Kimi-K3 at 8 or 16 ranks",)


def test_hopper_and_emulated_figures_are_refused(tmp_path: Path) -> None:
    cases = [c for w in attention_chains(8, 1) for c in cell(w, best(12))]
    with pytest.raises(MegatuneError, match="the plan holds for sm_90a"):
        exporter(NAME).files(plan_of(tmp_path, cases))
    emulated = replace(BLACKWELL, hardware=replace(BLACKWELL.hardware, links="emulated"))
    (tmp_path / "emulated").mkdir()
    with pytest.raises(MegatuneError, match="emulated on one GPU"):
        exporter(NAME).files(plan_of(tmp_path / "emulated", cases, emulated))


def test_a_plan_of_reductions_has_no_prefetch(tmp_path: Path) -> None:
    assert Tables.model_validate_json(exporter(NAME).files(example_reduction_plan(tmp_path))[FILE]).prefetch == ()


def test_tables_that_say_something_else_cannot_be_built(tmp_path: Path) -> None:
    text = exporter(NAME).files(example_prefetch_plan(tmp_path))[FILE]
    for change, says in (
        (lambda v: v["prefetch"][0].update(value="1:13.100"), r"says \(13, 100\) at 1 tokens, and should say"),
        (lambda v: v["prefetch"][0].update(value="2-1:12"), "reversed"),
        (lambda v: v["prefetch"][0].update(value="1-2:"), "no item"),
        (lambda v: v["prefetch"][0].update(value="1"), "no item"),
        (lambda v: v["prefetch"][0].update(world=4), "8 or 16"),
        (lambda v: v["prefetch"][0]["stretches"][0].update(carveout=101), "less than or equal to 100"),
        (lambda v: v["prefetch"][0]["stretches"][0].update(mib=-1), "greater than or equal to 0"),
        (lambda v: v["prefetch"][0]["stretches"].pop(), "must end at 64 tokens"),
        (lambda v: v["prefetch"][0]["stretches"].pop(0), "must tile"),
        (lambda v: v["prefetch"].append(v["prefetch"][0]), "two tables"),
        (lambda v: v["prefetch"].clear(), "there is no table"),
    ):
        damaged = json.loads(text)
        change(damaged)
        with pytest.raises(ValueError, match=says):
            Tables.model_validate_json(json.dumps(damaged))


def test_shipped_tables_are_grammatical() -> None:
    for text in SHIPPED.values():
        assert batch_table.spell(batch_table.parse(text)) == text


def test_vllm_reads_them_alike(tmp_path: Path) -> None:
    """The reader of its release runs for real."""
    path = "vllm/models/kimi_k3/nvidia/specialized_decode/cutedsl/common/policy.py"
    policy = run(source("vllm", "0.33.0", path), "policy_of_a_release")
    (*tables,) = tables_of(tmp_path, example_prefetches()).prefetch
    assert [table.world for table in tables] == [8, 16]
    for table in tables:
        said: dict[int, object] = {}
        for each in table.stretches:
            value = each.mib if each.carveout is None else (each.mib, each.carveout)
            said |= dict.fromkeys(range(each.tokens_lo, each.tokens_hi + 1), value) if each.mib else {}
        assert policy.batch_table(table.value) == said
