"""What exports rest on is in the runtimes' released wheels, and their settings mean there what the exports say."""

from __future__ import annotations

import ast
import json
import zipfile
from pathlib import Path

import pytest
from export_examples import plans_by_exporter
from reduction_examples import FANOUT
from reduction_examples import NCCL
from reduction_examples import TWO_STAGE
from reduction_examples import on
from reduction_examples import plan_of
from reduction_examples import reduction_cases
from reduction_examples import wins
from runtime_sources import source
from typer.testing import CliRunner

from megatune_dashboard.command import app
from megatune_planner.exporters.base import Exporter
from megatune_planner.exporters.base import exporters
from megatune_planner.exporters.checking import check
from tests.contract.runtime_wheels import VERSIONS
from tests.contract.runtime_wheels import cannot_run
from tests.contract.runtime_wheels import wheel

RUNTIMES = sorted(VERSIONS.keys() - {"kernel_tuner"})


def test_what_cannot_run_fails_in_ci_and_is_skipped_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="this has to run in CI: no wheel"):
        cannot_run("no wheel")
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="no wheel"):
        cannot_run("no wheel")


def of(runtime: str) -> list[Exporter]:
    return [each for each in exporters().values() if str(each.runtime).replace("-", "_") == runtime]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_everything_that_exports_rest_on_is_there(runtime: str, tmp_path: Path) -> None:
    place, plans = wheel(runtime), plans_by_exporter(tmp_path)
    assert of(runtime)
    for exporter in of(runtime):
        result = check(plans[exporter.name], place, [exporter])
        (checked,) = result.checked
        assert [(each.path, each.problem) for each in checked.problems] == []
        assert checked.findings
        assert not checked.other_version
        # What is asked of an installation, whatever the plan.
        assert set(exporter.needs(plans[exporter.name])) <= set(exporter.relies_on)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_versions_are_those_that_exporters_write_for(runtime: str) -> None:
    assert {exporter.runtime_version for exporter in of(runtime)} == {VERSIONS[runtime]}


def test_the_command_reads_a_wheel(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(plans_by_exporter(tmp_path)["vllm-plugin"].to_json())
    result = CliRunner().invoke(app, ["check", str(plan), "--against", str(wheel("vllm")), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["holds"]
    assert {each["exporter"] for each in found["exports"]} == {"vllm-config", "vllm-low-latency-table", "vllm-plugin"}
    assert all(each["version"] == each["written_for"] == VERSIONS["vllm"] for each in found["exports"])


CHANGES = [
    ("vllm/models/kimi_k3/nvidia/low_latency_gemm.py", "KIMI_K3_PROJECTIONS_SM90", "KIMI_K3_PROJECTIONS_HOPPER"),
    ("vllm/models/kimi_k3/nvidia/low_latency_gemm.py", 'name: str = ""', 'label: str = ""'),
    ("vllm/models/kimi_k3/nvidia/low_latency_gemm.py", "_build_plan(spec:", "_build_plan(table:"),
    ("vllm/model_executor/kernels/linear/cute_dsl/skinny_gemm.py", "static_k: int", "fixed_k: int"),
    ("vllm/config/parallel.py", "enable_eplb: bool", "balance: bool"),
    ("vllm/plugins/__init__.py", '"vllm.general_plugins"', '"vllm.plugins"'),
]


@pytest.mark.parametrize(("file", "old", "new"), CHANGES)
def test_a_release_that_moves_something_is_found_out(tmp_path: Path, file: str, old: str, new: str) -> None:
    """As a version that nobody has seen would: the same sources, with one thing in another place."""
    plan = plans_by_exporter(tmp_path)["vllm-plugin"]
    exporter = exporters()["vllm-plugin"]
    tree = tmp_path / "tree"
    with zipfile.ZipFile(wheel("vllm")) as archive:
        for path in exporter.needs(plan):
            archive.extract(path, tree)
    assert check(plan, tree, [exporter]).holds
    text = (tree / file).read_text()
    assert old in text
    (tree / file).write_text(text.replace(old, new))
    (checked,) = check(plan, tree, [exporter]).checked
    assert {each.path for each in checked.problems} == {file}


def test_vllm_reads_the_fusion_limit_back_to_the_byte(tmp_path: Path) -> None:
    text = source("vllm", VERSIONS["vllm"], "vllm/config/compilation.py")
    tree = ast.parse(text)
    (method,) = (node for node in ast.walk(tree) if getattr(node, "name", None) == "flashinfer_max_size")
    assert isinstance(method, ast.FunctionDef)
    cases = reduction_cases(7168, 8, wins({1: FANOUT, 8: FANOUT, 21: TWO_STAGE, 40: NCCL}))
    files = exporters()["vllm-allreduce"].files(plan_of(tmp_path, cases, on("sm_100a")))
    (setting,) = (
        each
        for each in json.loads(files["vllm_allreduce.json"])["settings"]
        if each["name"].endswith("fi_allreduce_fusion_max_size_mb")
    )
    holder = type("PassConfig", (), {"fi_allreduce_fusion_max_size_mb": setting["value"]})
    namespace: dict[str, object] = {}
    exec(compile(ast.Module([method], []), "<release>", "exec"), namespace)
    read = namespace["flashinfer_max_size"]
    assert callable(read)
    assert read(holder(), 8) == setting["payload_bytes"] == 21 * 7168 * 2
    assert read(holder(), 6) is None


def test_vllms_kernels_know_the_algorithm_by_its_name(tmp_path: Path) -> None:
    """The variable is read by compiled code, which cannot be loaded without CUDA: its words are in there."""
    cases = reduction_cases(7168, 8, wins(dict.fromkeys((1, 8, 16, 32), TWO_STAGE)))
    files = exporters()["vllm-allreduce"].files(plan_of(tmp_path, cases, on("sm_100a")))
    (setting,) = (
        each for each in json.loads(files["vllm_allreduce.json"])["settings"] if each["where"] == "environment"
    )
    with zipfile.ZipFile(wheel("vllm")) as archive:
        libraries = [name for name in archive.namelist() if name.startswith("vllm/_C") and name.endswith(".so")]
        assert any(
            setting["name"].encode() in library and setting["value"].encode() in library
            for library in map(archive.read, libraries)
        )
