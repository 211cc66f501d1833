"""Fused-MoE tables: their names, rows and guards, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moe_examples import DEEPSEEK
from moe_examples import PARAMS
from moe_examples import QWEN
from moe_examples import Times
from moe_examples import example_moe_plan
from moe_examples import moe_cases
from moe_examples import moe_plan
from moe_examples import moe_table
from moe_examples import on
from moe_examples import triton
from moe_examples import won
from plan_examples import Case

from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_kernels.space import Config
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.moe_schema import Layer
from megatune_planner.exporters.moe_schema import layer_of
from megatune_planner.plan import Plan

VLLM = "vllm-moe-table"
SGLANG = "sglang-moe-table"
BOTH = (VLLM, SGLANG)
PLAIN = Layer(128, 192, "bf16", 0, 0)


def exported(name: str, directory: Path, cases: Iterable[Case], **rest: Any) -> dict[str, str]:
    return exporter(name).files(moe_plan(directory, cases, **rest))


def only_path(name: str, directory: Path, cases: Iterable[Case], **rest: Any) -> str:
    files = exported(name, directory, cases, **rest)
    (path,) = (path for path in files if path.endswith(".json"))
    return path


def one_win(dims: dict[str, int] | None = None, dtype: str = "bf16", **params: Any) -> list[Case]:
    return moe_cases(dims or QWEN, won({1: triton(**params), 8: triton(**params)}), dtype)


@pytest.mark.parametrize(
    ("dims", "dtype", "gpu", "vllm", "sglang"),
    [
        (QWEN, "bf16", "NVIDIA H200", "E=128,N=192,device_name=NVIDIA_H200", "E=128,N=192,device_name=NVIDIA_H200"),
        (
            QWEN,
            "fp16",
            "NVIDIA H200 NVL",
            "E=128,N=192,device_name=NVIDIA_H200",
            "E=128,N=192,device_name=NVIDIA_H200_NVL",
        ),
        (
            DEEPSEEK,
            "fp8_w8a8",
            "NVIDIA H100 80GB HBM3",
            "E=256,N=256,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128]",
            "E=256,N=256,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128, 128]",
        ),
        (
            QWEN,
            "int4_w4a16",
            "NVIDIA B200",
            "E=128,N=192,device_name=NVIDIA_B200,dtype=int4_w4a16",
            "E=128,N=96,device_name=NVIDIA_B200,dtype=int4_w4a16",
        ),
        (
            QWEN,
            "fp32",
            "NVIDIA GB300",
            "E=128,N=192,device_name=NVIDIA_GB300,dtype=float32",
            "E=128,N=192,device_name=NVIDIA_GB300,dtype=float32",
        ),
    ],
)
def test_files_are_named_as_each_runtime_looks_for_them(
    tmp_path: Path, dims: dict[str, int], dtype: str, gpu: str, vllm: str, sglang: str
) -> None:
    plan = moe_plan(tmp_path, one_win(dims, dtype), on(gpu))
    assert f"{vllm}.json" in exporter(VLLM).files(plan)
    assert f"configs/triton_3_8_0/{sglang}.json" in exporter(SGLANG).files(plan)


def test_rows_are_spelled_as_each_runtime_reads_them(tmp_path: Path) -> None:
    plan = moe_plan(tmp_path, one_win(USE_TMA=False))
    tables = {name: json.loads(next(iter(exporter(name).files(plan).values()))) for name in BOTH}
    assert tables[VLLM].pop("triton_version") == "3.8.0"
    row = {name: value for name, value in PARAMS.items() if name != "triton_version"}
    assert tables[VLLM]["1"] == tables[VLLM]["8"] == row
    assert tables[SGLANG]["8"] == {name: value for name, value in row.items() if name != "SPLIT_K"}
    for rows in tables.values():
        assert [int(key) for key in rows] == sorted(map(int, rows)), "ties go to the first in the file"


def test_tma_is_sglangs_alone(tmp_path: Path) -> None:
    plan = moe_plan(tmp_path, one_win(USE_TMA=True))
    assert json.loads(next(iter(exporter(SGLANG).files(plan).values())))["8"]["USE_TMA"] is True
    with pytest.raises(MegatuneError, match="vLLM's kernel has no USE_TMA"):
        exporter(VLLM).files(plan)


def test_what_was_not_measured_is_guarded_at_both_ends(tmp_path: Path) -> None:
    """8 to 16 tokens were tuned: 1 to 7 and 17 and more are stock's, although 8 or 16 may be the nearest tuned."""
    tuned = triton(num_stages=7)
    plan = moe_plan(tmp_path, moe_cases(QWEN, won({8: tuned, 16: tuned})))
    for name in BOTH:
        rows = _rows(next(iter(exporter(name).files(plan).values())))
        for tokens in range(1, 2000):
            found = _nearest(rows, tokens)
            if 8 <= tokens <= 16:
                assert found["num_stages"] == 7, (name, tokens)
            else:
                assert found == moe_table(name).default(PLAIN, tokens), (name, tokens)


@pytest.mark.parametrize("name", BOTH)
def test_each_number_of_tokens_gets_what_the_plan_says(tmp_path: Path, name: str) -> None:
    plan = example_moe_plan(tmp_path)
    files = exporter(name).files(plan)
    (operator,) = plan.content.operators
    for shape in operator.shapes:
        (text,) = (text for path, text in files.items() if f"E={shape.dims['experts']}," in path)
        rows = _rows(text)
        layer = layer_of(shape)
        for tokens in [*range(1, 3000), 16511, 16512, 33023, 33024, 10**6]:
            decision, found = shape.band(tokens).decision, _nearest(rows, tokens)
            if decision.kind == "config":
                assert {**decision.params, **found} == decision.params, tokens
            else:
                assert found == moe_table(name).default(layer, tokens), tokens


@pytest.mark.parametrize(
    ("name", "cases", "says"),
    [
        (VLLM, one_win(SPLIT_K=2), "vLLM runs SPLIT_K=1 whatever a table says, and the config has 2"),
        (SGLANG, one_win(SPLIT_K=2), "SGLang's kernel cannot split K, and the config has SPLIT_K=2"),
        (
            VLLM,
            one_win({**DEEPSEEK, "block_n": 64}, "fp8_w8a8"),
            "vLLM cuts BLOCK_SIZE_K=128 to 64, because of the scales' block",
        ),
        (
            SGLANG,
            one_win(DEEPSEEK, "fp8_w8a8", BLOCK_SIZE_K=256),
            "BLOCK_SIZE_K=256 does not divide the scales' block of 128",
        ),
        (VLLM, one_win(dtype="int8_w8a8"), "vllm has no table of its own for int8_w8a8; it has them for bf16, fp16"),
        (VLLM, one_win(dtype="mxfp4"), "vllm has no table of its own for mxfp4"),
        (SGLANG, one_win(dtype="fp8_w8a16"), "sglang has no table of its own for fp8_w8a16"),
        (
            VLLM,
            one_win({**QWEN, "block_k": 128}, "int4_w4a16"),
            "kernels for weights with a scale a group are others",
        ),
    ],
)
def test_what_a_runtime_would_run_otherwise_is_refused(tmp_path: Path, name: str, cases: list[Case], says: str) -> None:
    with pytest.raises(MegatuneError, match=says):
        exported(name, tmp_path, cases)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"BLOCK_SIZE_M": 48}, "BLOCK_SIZE_M: Value error, must be a power of two"),
        ({"BLOCK_SIZE_N": 512}, "BLOCK_SIZE_N: Input should be less than or equal to 256"),
        ({"num_warps": True}, "num_warps: Input should be a valid integer"),
        ({"num_warps": 3}, "num_warps: Value error, must be a power of two"),
        ({"GROUP_SIZE_M": 0}, "GROUP_SIZE_M: Input should be greater than or equal to 1"),
        ({"triton_version": "3.8.0+git"}, "triton_version: String should match pattern"),
        ({"triton_version": "../3.8.0"}, "triton_version: String should match pattern"),
        ({"waves_per_eu": 2}, "waves_per_eu: Extra inputs are not permitted"),
    ],
)
@pytest.mark.parametrize("name", BOTH)
def test_params_outside_the_schema_are_refused(tmp_path: Path, name: str, params: dict[str, Any], says: str) -> None:
    with pytest.raises(MegatuneError, match=f"{name}: no shape of the plan has a table: .*triton_fused_moe: {says}"):
        exported(name, tmp_path, one_win(**params))


@pytest.mark.parametrize("name", BOTH)
def test_params_that_are_missing_are_named(tmp_path: Path, name: str) -> None:
    short = Config.of("triton_fused_moe", {name: value for name, value in PARAMS.items() if name != "num_stages"})
    with pytest.raises(MegatuneError, match="num_stages: Field required"):
        exported(name, tmp_path, moe_cases(QWEN, won({1: short})))


@pytest.mark.parametrize("name", BOTH)
def test_another_variant_is_refused_by_name(tmp_path: Path, name: str) -> None:
    other = replace(triton(), variant="per_route")
    with pytest.raises(MegatuneError, match="configs of the variant triton_fused_moe, and per_route is none"):
        exported(name, tmp_path, moe_cases(QWEN, won({1: other})))


@pytest.mark.parametrize("name", BOTH)
def test_a_plan_without_experts_is_one_line(plan: Plan, name: str) -> None:
    with pytest.raises(MegatuneError, match=f"{name}: the plan has no shape with the dims experts and width; it has p"):
        exporter(name).files(plan)


@pytest.mark.parametrize("name", BOTH)
def test_another_baseline_leaves_nothing_to_guard_with(tmp_path: Path, name: str) -> None:
    cases = [
        replace(case, config=replace(case.config, variant="other")) if "default" in case.config.variant else case
        for case in one_win()
    ]
    with pytest.raises(MegatuneError, match=r"a table must hold what .* runs without one.*; it has other"):
        exported(name, tmp_path, cases, baselines=("other",))


@pytest.mark.parametrize("name", BOTH)
def test_stock_needs_no_table_and_is_left_out(tmp_path: Path, name: str) -> None:
    cases = [*one_win(), *moe_cases(DEEPSEEK, won({1: None, 8: None}), "fp8_w8a8")]
    files = exported(name, tmp_path, cases)
    assert len(files) == 2
    (text,) = (text for path, text in files.items() if path.endswith(".md"))
    assert "width=256 fp8_w8a8: stock serves any number of tokens, and needs no table" in text


@pytest.mark.parametrize("name", BOTH)
def test_two_versions_of_triton_make_no_table(tmp_path: Path, name: str) -> None:
    times = won({1: triton(), 8: triton(num_stages=3, triton_version="3.7.1")})
    with pytest.raises(MegatuneError, match=r"several versions of Triton, 3\.7\.1 and 3\.8\.0"):
        exported(name, tmp_path, moe_cases(QWEN, times))


@pytest.mark.parametrize("name", BOTH)
def test_two_routings_are_one_file_and_refused_unless_they_agree(tmp_path: Path, name: str) -> None:
    def cases(times: Times, routing: str) -> list[Case]:
        return moe_cases(QWEN, times, routing=routing)

    both = won({1: triton(), 8: triton()})
    other = won({1: triton(), 8: triton(num_stages=3)})
    (tmp_path / "same").mkdir()
    assert only_path(name, tmp_path / "same", [*cases(both, "balanced"), *cases(both, "power_law")])
    with pytest.raises(
        MegatuneError, match=r"routing balanced and .*routing power_law are one file to .*, E=128|config"
    ):
        exported(name, tmp_path, [*cases(both, "balanced"), *cases(other, "power_law")])


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("provenance", [Provenance.EMULATED])
def test_figures_that_no_hardware_has_shown_are_refused(tmp_path: Path, name: str, provenance: Provenance) -> None:
    cases = moe_cases(QWEN, won({1: triton()}), provenance=provenance)
    plan = moe_plan(tmp_path, cases, provenances=(provenance,))
    with pytest.raises(MegatuneError, match=f"{name}: the plan counts {provenance} figures as evidence"):
        exporter(name).files(plan)
    value = json.loads(plan.content.model_dump_json().replace('"emulated"', '"predicted"'))
    predicted = Plan.of(type(plan.content).model_validate_json(json.dumps(value)))
    with pytest.raises(MegatuneError, match=f"{name}: the plan counts predicted figures as evidence"):
        exporter(name).files(predicted)


@pytest.mark.parametrize("name", BOTH)
def test_imported_figures_are_said(tmp_path: Path, name: str) -> None:
    cases = moe_cases(QWEN, won({1: triton()}), provenance=Provenance.IMPORTED)
    files = exported(name, tmp_path, cases, provenances=(Provenance.IMPORTED,))
    (text,) = (text for path, text in files.items() if path.endswith(".md"))
    assert "Some of it rests on imported figures" in text


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("gpu", ["../../etc", "a/../b\\c", "", "NVIDIA,H200"])
def test_a_gpu_whose_name_no_file_could_have_is_refused(tmp_path: Path, name: str, gpu: str) -> None:
    with pytest.raises(MegatuneError, match="is no name of a GPU that the name of a file could hold"):
        exported(name, tmp_path, one_win(), target=on(gpu))


@pytest.mark.parametrize("name", BOTH)
def test_a_gpu_whose_defaults_are_not_known_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MegatuneError, match="the plan holds for sm_80"):
        exported(name, tmp_path, one_win(), target=on("NVIDIA RTX", arch="sm_80"))


def _rows(text: str) -> dict[int, dict[str, Any]]:
    return {int(key): row for key, row in json.loads(text).items() if key != "triton_version"}


def _nearest(rows: dict[int, dict[str, Any]], tokens: int) -> dict[str, Any]:
    """Written once more, from what the runtimes do."""
    distances = sorted((abs(key - tokens), place) for place, key in enumerate(rows))
    return list(rows.values())[distances[0][1]]
