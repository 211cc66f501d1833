"""Fused-MoE tables, read by the functions of the runtimes' wheels that look them up."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moe_examples import DEEPSEEK
from moe_examples import PARAMS
from moe_examples import QWEN
from moe_examples import moe_cases
from moe_examples import moe_plan
from moe_examples import moe_table
from moe_examples import on
from moe_examples import triton
from moe_examples import won
from runtime_sources import functions
from runtime_sources import source
from runtime_sources import stand_ins

from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.base import write
from megatune_planner.exporters.moe_schema import Layer
from megatune_planner.exporters.moe_schema import MoeConfig
from megatune_planner.exporters.moe_schema import layer_of

VLLM = "vllm-moe-table"
SGLANG = "sglang-moe-table"
BOTH = (VLLM, SGLANG)

LOOKUP = {"get_config_file_name", "get_moe_configs", "get_default_config", "try_get_optimal_moe_config"}
VLLM_FILE = "vllm/model_executor/layers/fused_moe/fused_moe.py"
SGLANG_FOLDER = "sglang/srt/layers/moe/moe_runner/triton_utils"


def vllm_lookup(folder: Path, gpu: str) -> dict[str, Any]:
    """vLLM's functions, with its setting for tables at the folder and a GPU of that name."""
    platform = SimpleNamespace(get_device_name=lambda device: gpu, is_rocm=lambda: False, is_cuda=lambda: True)
    named = functions(source("vllm", "0.33.0", "vllm/utils/platform_utils.py"), {"get_device_name_as_file_name"}, re=re)

    def device_name() -> Any:
        with stand_ins(**{"vllm.platforms": {"current_platform": platform}}):
            return named["get_device_name_as_file_name"]()

    return functions(
        source("vllm", "0.33.0", VLLM_FILE),
        LOOKUP | {"should_moe_wna16_use_cuda"},
        functools=functools,
        json=json,
        os=os,
        envs=SimpleNamespace(VLLM_BATCH_INVARIANT=False, VLLM_TUNED_CONFIG_FOLDER=str(folder)),
        logger=SimpleNamespace(info_once=ignored, warning_once=ignored),
        current_platform=platform,
        get_device_name_as_file_name=device_name,
        next_power_of_2=lambda n: 1 << (n - 1).bit_length(),
        __file__=str(folder / "no_other_tables" / "fused_moe.py"),
    )


def sglang_lookup(folder: Path, gpu: str, version: str = "3.8.0") -> dict[str, Any]:
    """SGLang's functions, with its setting for tables at the folder, a GPU of that name and that Triton."""
    server = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
    return functions(
        source("sglang", "0.5.23", f"{SGLANG_FOLDER}/fused_moe_triton_config.py"),
        LOOKUP,
        functools=functools,
        json=json,
        os=SimpleNamespace(path=os.path, listdir=os.listdir, environ={"SGLANG_MOE_CONFIG_DIR": str(folder)}),
        logger=logging.getLogger("sglang"),
        triton=SimpleNamespace(__version__=version),
        get_exec=lambda: server,
        get_device_name=lambda: gpu,
        _is_hip=False,
        _use_low_smem_fp8_default=lambda: False,
        __file__=str(folder / "no_other_tables" / "fused_moe_triton_config.py"),
    )


def ignored(*args: object, **kwargs: object) -> None:
    pass


RUNTIMES: dict[str, Callable[[Path, str], dict[str, Any]]] = {VLLM: vllm_lookup, SGLANG: sglang_lookup}
PACKAGES = {VLLM: "vllm.model_executor.layers.fused_moe", SGLANG: SGLANG_FOLDER.replace("/", ".")}


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "layer",
    [
        Layer(128, 192, "bf16", 0, 0),
        Layer(8, 1792, "fp16", 0, 0),
        Layer(256, 256, "fp8_w8a8", 128, 128),
        Layer(256, 256, "fp8_w8a8", 96, 128),
        Layer(64, 512, "fp8_w8a8", 0, 0),
        Layer(64, 512, "int8_w8a16", 0, 0),
        Layer(384, 256, "int4_w4a16", 0, 0),
    ],
)
def test_the_runtime_chooses_these_where_it_has_no_table(tmp_path: Path, name: str, layer: Layer) -> None:
    """At every number of tokens, and where its rule changes a new run is begun."""
    theirs, ours = RUNTIMES[name](tmp_path, "NVIDIA H200")["get_default_config"], moe_table(name)
    rest = {} if name == VLLM else {"is_marlin": False}
    starts = set(ours.changes(layer))
    for tokens in [*range(1, 1100), *range(layer.experts * 128, layer.experts * 130)]:
        before, found = (
            theirs(
                M=each,
                E=layer.experts,
                N=layer.width,
                K=4096,
                topk=8,
                dtype=ours.dtypes[layer.dtype] or None,
                block_shape=list(layer.block) if layer.block else None,
                **rest,
            )
            for each in (max(tokens - 1, 1), tokens)
        )
        assert ours.default(layer, tokens) == found, tokens
        assert found == before or tokens in starts, tokens


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA B200", "NVIDIA GB300"])
def test_the_lookup_finds_what_the_plan_says(tmp_path: Path, name: str, gpu: str) -> None:
    plan = moe_plan(
        tmp_path,
        [
            *moe_cases(QWEN, won({2: triton(), 8: triton(num_stages=2), 32: triton()})),
            *moe_cases(DEEPSEEK, won({1: triton(), 16: None, 64: triton(BLOCK_SIZE_N=64)}), "fp8_w8a8"),
            *moe_cases(QWEN, won({1: triton(), 64: triton()}), "int4_w4a16"),
        ],
        on(gpu),
    )
    write(exporter(name).files(plan), tmp_path / "out")
    lookup = RUNTIMES[name](tmp_path / "out", gpu)["try_get_optimal_moe_config"]
    (operator,) = plan.content.operators
    assert len(operator.shapes) == 3
    for shape in operator.shapes:
        layer = layer_of(shape)
        stored = layer.width // 2 if layer.dtype == "int4_w4a16" else layer.width
        for tokens in [*range(1, 65), 65, 127, 512, 4096, 10**5]:
            with stand_ins(**{PACKAGES[name]: {"get_config": lambda: None}}):
                found = lookup(
                    (layer.experts, 2 * layer.width, 4096),
                    (layer.experts, 4096, stored),
                    8,
                    moe_table(name).dtypes[layer.dtype] or None,
                    tokens,
                    block_shape=list(layer.block) if layer.block else None,
                )
            decision = shape.band(tokens).decision
            if decision.kind == "config":
                assert {**decision.params, **found} == decision.params, tokens
                assert found["num_stages"] == decision.params["num_stages"]
            else:
                assert found == moe_table(name).default(layer, tokens), tokens


def test_sglang_finds_the_table_under_another_triton_too(tmp_path: Path) -> None:
    plan = moe_plan(tmp_path, moe_cases(QWEN, won({1: triton()})))
    write(exporter(SGLANG).files(plan), tmp_path / "out")
    for version in ("3.8.0", "3.9.1"):
        found = sglang_lookup(tmp_path / "out", "NVIDIA H200", version)["get_moe_configs"](128, 192, None)
        assert found[1]["num_stages"] == triton().params["num_stages"]


@pytest.mark.parametrize(
    ("name", "path", "more"),
    [
        (VLLM, f"{Path(VLLM_FILE).parent}/configs/E=128,N=192,device_name=NVIDIA_H200.json", {"SPLIT_K"}),
        (
            SGLANG,
            f"{SGLANG_FOLDER}/configs/triton_3_1_0/"
            "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json",
            set(),
        ),
    ],
)
def test_rows_have_the_keys_of_the_tables_that_the_runtime_ships(name: str, path: str, more: set[str]) -> None:
    """SPLIT_K is in few of vLLM's, and its own rule has it everywhere."""
    exporter_ = moe_table(name)
    shipped = json.loads(source(str(exporter_.runtime), exporter_.runtime_version, path))
    row = next(row for row in shipped.values() if isinstance(row, dict))
    assert set(exporter_.row(MoeConfig.model_validate(PARAMS), Layer(128, 192, "bf16", 0, 0))) == set(row) | more
