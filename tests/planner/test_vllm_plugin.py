"""What the exporter ``vllm-plugin`` makes of plans, and its wheel in a Python without vLLM."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from plan_examples import REGIME
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import example_cases
from plan_examples import example_plan
from plan_examples import fill
from plan_examples import simt
from prefetch_examples import BLACKWELL
from prefetch_examples import NONE
from prefetch_examples import attention_chains
from prefetch_examples import cell
from prefetch_examples import example_prefetch_plan
from prefetch_examples import plain
from prefetch_examples import plan_of as prefetch_plan_of
from prefetch_examples import prefetch
from reduction_examples import FANOUT
from reduction_examples import NCCL
from reduction_examples import TWO_STAGE
from reduction_examples import example_reduction_plan
from reduction_examples import plan_of
from reduction_examples import reduction_cases
from reduction_examples import wins
from serving_examples import experts_cases
from serving_examples import serving_plan

from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_planner import reader
from megatune_planner.exporters import batch_table
from megatune_planner.exporters import wheel
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.base import write
from megatune_planner.exporters.vllm_overlay import overlay
from megatune_planner.exporters.vllm_plugin import DISTRIBUTION
from megatune_planner.exporters.vllm_plugin import PACKAGE
from megatune_planner.exporters.vllm_plugin import _runs
from megatune_planner.exporters.vllm_plugin_schema import Overlay
from megatune_planner.plan import Plan
from megatune_planner.planning import make_plan

NAME = "vllm-plugin"


def exported(plan: Plan) -> tuple[str, bytes, str]:
    """Name and bytes of the wheel, and what to know of it."""
    files = exporter(NAME).files(plan)
    ((name, content),) = ((name, content) for name, content in files.items() if isinstance(content, bytes))
    return name, content, str(files["vllm_plugin.md"])


def overlay_of(plan: Plan) -> Overlay:
    with zipfile.ZipFile(io.BytesIO(exported(plan)[1])) as archive:
        return Overlay.model_validate_json(archive.read("megatune_vllm_plan/overlay.json"))


def unpacked(plan: Plan, into: Path) -> Path:
    with zipfile.ZipFile(io.BytesIO(exported(plan)[1])) as archive:
        archive.extractall(into)
    return into / "megatune_vllm_plan"


@pytest.fixture
def reductions(tmp_path: Path) -> Plan:
    cases = [
        *reduction_cases(7168, 8, wins({1: FANOUT, 5: FANOUT, 6: TWO_STAGE, 40: TWO_STAGE, 48: NCCL, 64: NCCL})),
        *reduction_cases(3584, 8, wins({1: FANOUT, 11: FANOUT, 12: TWO_STAGE, 32: TWO_STAGE, 33: NCCL, 64: NCCL})),
    ]
    return plan_of(tmp_path, cases)


def test_operators_that_no_table_is_about_are_left_out_with_the_reason(tmp_path: Path) -> None:
    routed = serving_plan(tmp_path, (1, 8), router=True, experts=experts_cases((1, 8), {"balanced": 20.0}, 500.0))
    unheld = [each for each in overlay_of(routed).skipped if each.startswith(("router_front: ", "experts: "))]
    assert [each.partition(":")[0] for each in unheld] == ["experts", "router_front"]
    assert "PREGROUP" in unheld[0]
    assert "always shares the router's rows out" in unheld[1]
    assert "always shares the router's rows out" in exported(routed)[2]
    only = routed.content.model_copy(
        update={"operators": tuple(each for each in routed.content.operators if each.name == "router_front")}
    )
    with pytest.raises(MegatuneError, match=r"changes nothing in vLLM: .*; router_front: no table of vLLM's") as caught:
        exported(Plan.of(only))
    # Both exporters of the specialised decode say the same.
    reasons = str(caught.value).split("; vllm-")
    assert len(set(reasons)) == len(reasons)


def test_the_same_plan_gives_the_same_bytes(plan: Plan, reductions: Plan) -> None:
    for each in (plan, reductions):
        assert exported(each) == exported(Plan.from_json(each.to_json()))
    name, content, said = exported(plan)
    assert re.fullmatch(rf"megatune_vllm_plan-0\.33\.0\+{plan.digest}\.r[0-9a-f]{{8}}-py3-none-any\.whl", name)
    assert f"pip install --no-deps {name}" in said
    assert f"SHA-256 `{hashlib.sha256(content).hexdigest()}`" in said
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(_record(archive)).decode()))}
        assert set(rows) == set(archive.namelist())
        assert archive.read("megatune_vllm_plan/reader.py").decode() == Path(reader.__file__).read_text()
        assert archive.read("megatune_vllm_plan/plan.json").decode() == plan.to_json()


def _record(archive: zipfile.ZipFile) -> str:
    return next(name for name in archive.namelist() if name.endswith("RECORD"))


def test_pip_installs_it_without_a_network_and_takes_all_of_it_back(plan: Plan, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin/python"
    before = sorted(environment.rglob("*"))
    name, _, _ = exported(plan)
    write(exporter(NAME).files(plan), tmp_path / "out")

    def pip(*arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(python), *arguments]
        subprocess.run(command, check=True, capture_output=True)

    pip("install", "--no-deps", "--no-index", str(tmp_path / "out" / name))
    code = (
        "from importlib.metadata import entry_points\n"
        "(point,) = entry_points(group='vllm.general_plugins')\n"
        "import logging; logging.basicConfig()\n"
        "register = point.load(); register(); register()\n"
        "import megatune_vllm_plan as package, sys\n"
        "print(point.name, package.status()['plan'], 'torch' in sys.modules, 'megatune_planner' in sys.modules)\n"
    )
    result = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.split() == ["megatune_vllm_plan", plan.digest, "False", "False"]
    # vLLM is not there: one line, and nothing is raised.
    assert result.stderr.count("changed nothing: PackageNotFoundError") == 1
    # Another exporter's wheel of the same plan takes its place, though pip knows the plan's version already.
    newer = {f"{PACKAGE}/__init__.py": "NEWER = True\n"}
    version = wheel.version("0.33.0", plan.digest, newer)
    other = tmp_path / wheel.file_name(DISTRIBUTION, version)
    other.write_bytes(
        wheel.build(DISTRIBUTION, version, summary="", requires_python=">=3.11", files=newer, entry_points={})
    )
    pip("install", "--no-deps", "--no-index", str(other))
    subprocess.run([str(python), "-c", f"import {PACKAGE}; assert {PACKAGE}.NEWER"], check=True)
    pip("uninstall", "--yes", "megatune-vllm-plan")
    assert sorted(environment.rglob("*")) == before


def test_projections_are_those_of_the_table(plan: Plan) -> None:
    (table,) = overlay_of(plan).tables
    assert table.kind == "projections"
    assert table.table == "KIMI_K3_PROJECTIONS_SM90"
    files = exporter("vllm-low-latency-table").files(plan)
    shapes = json.loads(files["vllm_low_latency_table.json"])["shapes"]
    assert [(each.n, each.k) for each in table.shapes] == [(each["n"], each["k"]) for each in shapes]
    for mine, theirs in zip(table.shapes, shapes, strict=True):
        assert [config.model_dump() for config in mine.configs] == [entry["config"] for entry in theirs["entries"]]
        assert mine.beats_dsv3 == ()
    assert {(ask.operator, ask.tokens) for ask in table.asks} == {("projection", 1), ("projection", 5)}


def test_entries_that_vllm_passes_by_are_left_out(tmp_path: Path) -> None:
    """At 8 ranks KDA's projections run side by side in captured graphs of up to 14 tokens, without the table."""
    cases = [
        Case(Workload.of("projection", {"n": n, "k": k}, tokens), config, us)
        for n, k in ((6288, 7168), (1536, 7168))
        for tokens in (14, 15)
        for config, us in ((Config.of("cublas", {}), 10.0), (simt(), 5.0))
    ]
    plan = example_plan(tmp_path, cases)
    written = overlay_of(plan)
    (table,) = written.tables
    assert table.kind == "projections"
    assert {(s.n, s.k): [c.num_rows for c in s.configs] for s in table.shapes} == {
        (6288, 7168): [15],
        (1536, 7168): [14, 15],
    }
    (said,) = (each for each in written.skipped if "overlaps this projection" in each)
    assert said.startswith("n=6288,k=7168 at up to 14 tokens: ")
    listed = json.loads(exporter("vllm-low-latency-table").files(plan)["vllm_low_latency_table.json"])
    assert "Up to 14 tokens vLLM runs 1536x128 and 6288x7168 past the table" in listed["notes"][-1]


@pytest.mark.parametrize(("dsv3_us", "beaten"), [(5.6, True), (5.1, False), (4.9, False)])
def test_dsv3_fused_a_gives_way_where_it_was_measured_and_lost(tmp_path: Path, dsv3_us: float, beaten: bool) -> None:
    workload = Workload.of("projection", {"n": 1536, "k": 7168}, 2)
    cases = [
        Case(workload, Config.of("cublas", {}), 10.0),
        Case(workload, Config.of("dsv3_fused_a", {}), dsv3_us),
        Case(workload, simt(), 5.0),
        *(Case(workload.at(1), config, us) for config, us in ((Config.of("cublas", {}), 10.0), (simt(), 5.0))),
    ]
    with open_database(tmp_path / "dsv3.db") as database, database.session() as session:
        fill(session, cases)
        plan = make_plan(
            session,
            name="dsv3",
            target=TARGET.digest,
            regime=REGIME,
            baselines={"projection": ("cublas", "dsv3_fused_a")},
        )
    (table,) = overlay_of(plan).tables
    assert table.kind == "projections"
    (shape,) = table.shapes
    assert [config.num_rows for config in shape.configs] == [1, 2]
    assert shape.beats_dsv3 == ((2,) if beaten else ())


def test_reductions_are_those_of_the_tables(reductions: Plan) -> None:
    written = overlay_of(reductions)
    found = [(t.module.rpartition(".")[2], t.key, t.shipped, t.value) for t in written.tables if t.kind == "batches"]
    # Where stock won, and of the two variants none is told to be faster, it is as vLLM ships it.
    assert found == [("prepared", 8, "33-64:1", "6-64:1"), ("tail_runtime", 8, "", "12-32:1")]
    assert [t.decided for t in written.tables if t.kind == "batches"] == [((1, 5), (6, 40)), ((1, 11), (12, 32))]
    for table in written.tables:
        assert table.kind == "batches"
        meant = {t: value for lo, hi, value in table.means for t in range(lo, hi + 1)}
        assert batch_table.parse(table.value) == meant
        assert {ask.context_tokens for ask in table.asks} == {0}
    assert {shape.shape: shape.won for shape in written.stock_steps["8"]} == {
        "width=7168": ((48, 64),),
        "width=3584": ((33, 64),),
    }


def test_steps_are_not_stock_for_one_of_their_reductions_alone(tmp_path: Path) -> None:
    cases = reduction_cases(7168, 8, wins({1: FANOUT, 5: FANOUT, 6: TWO_STAGE, 40: TWO_STAGE, 48: NCCL, 64: NCCL}))
    written = overlay_of(plan_of(tmp_path, cases))
    assert len(written.tables) == 1
    assert written.stock_steps == {}


@pytest.mark.parametrize("fault", [OSError("no folder"), RuntimeError("changed size during iteration"), ValueError()])
def test_counting_raises_nothing_into_a_step(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    found = overlay.Overlay(unpacked(plan, tmp_path))
    monkeypatch.setenv(overlay.STATUS_FOLDER, str(tmp_path))

    asked = []

    def status() -> dict[str, Any]:
        asked.append(1)
        raise fault

    monkeypatch.setattr(found, "status", status)
    found.count("hit", "a")
    found.count("hit", "b")
    assert found.counts == {"hit a": 1, "hit b": 1}
    assert (asked, os.environ[overlay.STATUS_FOLDER]) == ([1], str(tmp_path))


def test_tables_that_were_edited_by_hand_are_refused(plan: Plan, tmp_path: Path) -> None:
    folder = unpacked(plan, tmp_path)
    assert overlay.Overlay(folder).digest == plan.digest
    file = folder / "overlay.json"
    document = json.loads(file.read_text())
    document["tables"][0]["shapes"][0]["configs"][0]["k_unroll"] += 1
    file.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="was changed after its digest was taken"):
        overlay.Overlay(folder)


def test_what_changes_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match="its tables are those that vLLM ships, and no step is stock"):
        exporter(NAME).files(example_reduction_plan(tmp_path))
    cases = [case for case in example_cases() if case.config.variant != "simt"]
    (tmp_path / "mma").mkdir()
    with pytest.raises(MegatuneError, match="vllm-plugin: the plan changes nothing in vLLM: vllm-low-latency-table"):
        exporter(NAME).files(example_plan(tmp_path / "mma", cases))


def test_what_is_needed_depends_on_the_plan(plan: Plan, reductions: Plan) -> None:
    of_gemm, of_decode = exporter(NAME).needs(plan), exporter(NAME).needs(reductions)
    gemm, decode = "vllm/models/kimi_k3/nvidia/low_latency_gemm.py", "specialized_decode/runtime/decode.py"
    assert gemm in of_gemm
    assert gemm not in of_decode
    assert any(path.endswith(decode) for path in of_decode)
    assert not any(path.endswith(decode) for path in of_gemm)


def test_what_the_overlay_would_not_do_cannot_be_written(plan: Plan, reductions: Plan) -> None:
    def damaged(plan: Plan, *path: Any, value: Any) -> str:
        document = json.loads(overlay_of(plan).model_dump_json())
        part = document
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = value
        return json.dumps(document)

    for text, says in (
        (damaged(reductions, "tables", 0, "value", value="9-64:1"), "says"),
        (damaged(reductions, "tables", 0, "value", value="64-9:1"), "the range is reversed"),
        (damaged(plan, "tables", value=[]), "nothing would change"),
        (damaged(plan, "tables", 0, "shapes", 0, "beats_dsv3", value=[16]), "must ascend in tokens, and beat"),
        (damaged(plan, "tables", 0, "shapes", 0, "k", value=1000), "is not divisible by block_size"),
        (damaged(plan, "tables", 0, "kind", value="other"), "kind"),
        (damaged(plan, "surprise", value=1), "surprise"),
    ):
        with pytest.raises(ValueError, match=says):
            Overlay.model_validate_json(text)


def test_steps_alone_may_be_stock(reductions: Plan) -> None:
    document = json.loads(overlay_of(reductions).model_dump_json()) | {"tables": []}
    assert Overlay.model_validate_json(json.dumps(document)).stock_steps


def test_runs_of_a_table() -> None:
    table = batch_table.parse("1-3:1,5:1,6-7:2,8:2.3,9:on")
    assert list(_runs(table)) == [(1, 3, 1), (5, 5, 1), (6, 7, 2), (8, 8, (2, 3)), (9, 9, "on")]


def test_prefetches_are_those_of_the_table(tmp_path: Path) -> None:
    plan = example_prefetch_plan(tmp_path)
    tables = overlay_of(plan).tables
    assert [(table.table, table.key, table.world, table.kind) for table in tables] == [  # type: ignore[union-attr]
        ("NEXT_ATTENTION", 8, 8, "batches"),
        ("NEXT_ATTENTION", 16, 16, "batches"),
    ]
    eight = tables[0]
    assert eight.kind == "batches"
    assert (eight.shipped, eight.value) == ("1:96.100,2-3:96,4-7:64,8:32", "1-2:24.0,3:96,4:12.0,5-7:64")
    assert eight.means == ((1, 2, (24, 0)), (3, 3, 96), (4, 4, (12, 0)), (5, 7, 64))
    # At 8 tokens the plan decides too: nothing is prefetched there.
    assert eight.decided == ((1, 2), (4, 4), (8, 8))
    assert {(ask.operator, ask.world, ask.context_tokens) for ask in eight.asks} == {("prefetch", 1, 0)}
    assert len({ask.shape for ask in eight.asks}) == 6
    serving = reader.load(plan.to_json(), target=None)
    assert all(serving.select(**ask.model_dump()) is not None for ask in eight.asks)


def test_prefetches_of_some_chains_alone_change_nothing(tmp_path: Path) -> None:
    times = {NONE: 32.0, plain(): 30.0, prefetch(8): 25.0}
    cases = [case for workload in attention_chains(8, 1)[:3] for case in cell(workload, times)]
    with pytest.raises(MegatuneError, match=r"vllm-plugin: the plan changes nothing .* no chain of MLA layers was mea"):
        exported(prefetch_plan_of(tmp_path, cases, BLACKWELL))
