from __future__ import annotations

import ast
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from plan_examples import example_plan
from reduction_examples import FANOUT
from reduction_examples import NCCL
from reduction_examples import TWO_STAGE
from reduction_examples import example_reduction_plan
from reduction_examples import plan_of
from reduction_examples import reduction_cases
from reduction_examples import sums

from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.vllm_config import ENVIRONMENT_FILE
from megatune_planner.exporters.vllm_config import FLAGS
from megatune_planner.exporters.vllm_config import YAML_FILE
from megatune_planner.exporters.vllm_config import AddsFlags
from megatune_planner.plan import Plan


def settings(plan: Plan) -> dict[str, Any]:
    """What the YAML says: its own subset, of two spaces a level and JSON values."""
    found: dict[str, Any] = {}
    open_: list[dict[str, Any]] = [found]
    for line in exporter("vllm-config").files(plan)[YAML_FILE].splitlines():  # type: ignore[union-attr]
        text = str(line)
        if text.lstrip().startswith("#"):
            continue
        depth = (len(text) - len(text.lstrip())) // 2
        name, _, value = text.strip().partition(":")
        del open_[depth + 1 :]
        if value:
            open_[depth][name] = json.loads(value)
        else:
            open_.append(open_[depth].setdefault(name, {}))
    return found


def test_every_value_has_a_reason(tmp_path: Path) -> None:
    text = exporter("vllm-config").files(example_plan(tmp_path))[YAML_FILE]
    lines = str(text).splitlines()
    for before, line in itertools.pairwise(lines):
        if not line.lstrip().startswith("#") and not line.endswith(":"):
            assert before.lstrip().startswith("# "), line


def test_graphs_end_where_bands_do(tmp_path: Path) -> None:
    plan = example_plan(tmp_path)
    found = settings(plan)
    sizes = found["compilation-config"]["cudagraph_capture_sizes"]
    shapes = plan.operator("projection").shapes
    assert {band.tokens_hi for shape in shapes for band in shape.bands} - {None} <= set(sizes)
    assert found["compilation-config"]["max_cudagraph_capture_size"] == max(sizes) == found["max-num-seqs"]
    assert set(found) <= set(FLAGS)


def test_settings_of_the_all_reduce_come_along(tmp_path: Path) -> None:
    tokens = (1, 8, 64, 512)
    cases = reduction_cases(
        7168,
        8,
        sums(tokens, **{FANOUT: lambda _: 10.0, TWO_STAGE: lambda _: 12.0, NCCL: lambda t: 8.0 if t > 64 else 20.0}),
    )
    plan = plan_of(tmp_path, cases)
    found = settings(plan)
    assert found["tensor-parallel-size"] == 8
    limit = found["compilation-config"]["pass_config"]["fi_allreduce_fusion_max_size_mb"]
    assert limit * 2**20 == 64 * 7168 * 2
    assert found["compilation-config"]["pass_config"]["fuse_allreduce_rms"] is True


def test_a_fusion_that_loses_from_1_token_on_is_switched_off(tmp_path: Path) -> None:
    tokens = (1, 8, 64)
    cases = reduction_cases(
        7168,
        8,
        sums(tokens, **{FANOUT: lambda t: 30.0 if t == 1 else 8.0, TWO_STAGE: lambda _: 32.0, NCCL: lambda _: 20.0}),
    )
    passes = settings(plan_of(tmp_path, cases))["compilation-config"]["pass_config"]
    assert passes == {"fuse_allreduce_rms": False}


def test_a_plan_of_several_worlds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match="holds for 4 and 8 and 16 ranks: megatune serve-plan --ranks says which"):
        exporter("vllm-config").files(example_reduction_plan(tmp_path))


def test_a_plan_that_decides_no_variable_says_so(tmp_path: Path) -> None:
    text = exporter("vllm-config").files(example_plan(tmp_path))[ENVIRONMENT_FILE]
    assert "# the plan decides no variable" in str(text)
    assert all(line.startswith("#") for line in str(text).splitlines())


def test_a_flag_that_the_parser_does_not_add_is_found_out() -> None:
    wanted = AddsFlags(("one", "two"))
    function = "def f(p):\n    p.add_argument('--one', '-o')\n    p.other('--two')\n"
    assert wanted.problem("f", ast.parse(function).body[0]) == "has a f without --two"
    assert wanted.problem("f", ast.parse(function.replace("other", "add_argument")).body[0]) == ""
    assert wanted.problem("f", ast.parse("f = 1").body[0]) == "has a f that is no function"
