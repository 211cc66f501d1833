"""vLLM's own source reads the configuration that is exported: its loader, and the flags that its parser adds."""

from __future__ import annotations

import ast
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_examples import plans_by_exporter
from serving_examples import K3
from serving_examples import given_text
from serving_examples import serving_plan

from megatune_planner.exporters.vllm_config import YAML_FILE
from megatune_planner.exporters.vllm_config import ServedVllmConfig
from megatune_planner.exporters.vllm_config import VllmConfig
from megatune_planner.exporters.vllm_config import flags_in
from megatune_planner.serving.choosing import choose
from megatune_planner.serving.choosing import options
from megatune_planner.serving.configuration import Level
from megatune_planner.serving.given import read_given
from tests.contract.runtime_wheels import wheel


def function_of(path: str, name: str) -> ast.FunctionDef:
    with zipfile.ZipFile(wheel("vllm")) as archive:
        tree = ast.parse(archive.read(path))
    return next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)


def read_by_vllm(path: Path) -> list[str]:
    """The arguments that its ``load_config_file`` makes of a file."""
    function = function_of("vllm/utils/argparse_utils.py", "load_config_file")
    names: dict[str, Any] = {"yaml": yaml, "json": json, "Any": Any}
    exec(compile(ast.Module([function], []), "argparse_utils.py", "exec"), names)

    class Parser:
        _option_string_actions = {"--no-enable-prefix-caching": None}  # noqa: RUF012

    found: list[str] = names["load_config_file"](Parser(), str(path))
    return found


def texts(directory: Path) -> dict[str, str]:
    plan = serving_plan(directory)
    (directory / "given.toml").write_text(given_text())
    given = read_given(directory / "given.toml")
    found = {"plan alone": VllmConfig().files(plans_by_exporter(directory)["vllm-config"])[YAML_FILE]}
    for context in (1024, 100_000):
        option = choose(list(options(plan, K3, Level(20, 9, context), None, given)))
        found[f"context {context}"] = ServedVllmConfig(option.served(None)).files(plan)[YAML_FILE]
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return texts(tmp_path_factory.mktemp("configs"))


@pytest.mark.parametrize("name", ["plan alone", "context 1024", "context 100000"])
def test_vllm_reads_what_is_written_as_flags_that_it_has(written: dict[str, str], name: str, tmp_path: Path) -> None:
    path = tmp_path / YAML_FILE
    path.write_text(written[name])
    arguments = read_by_vllm(path)
    known = flags_in(function_of("vllm/engine/arg_utils.py", "add_cli_args"))
    flags = [each for each in arguments if each.startswith("--")]
    assert {flag.removeprefix("--").removeprefix("no-") for flag in flags} <= known
    assert len(set(flags)) == len(flags)
    compilation = json.loads(arguments[arguments.index("--compilation-config") + 1])
    assert compilation["max_cudagraph_capture_size"] == compilation["cudagraph_capture_sizes"][-1]
    assert json.loads(arguments[arguments.index("--additional-config") + 1]).keys() == {"megatune_plan"}
