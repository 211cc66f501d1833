"""Tables of SGLang's sequence-parallel collectives: rows, refusals, and the overlay in SGLang's own lookup."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace
from typing import Any
from typing import NamedTuple

import pytest
from plan_examples import Case
from reduction_examples import on
from runtime_sources import functions
from runtime_sources import source
from runtime_sources import stand_ins
from sp_examples import GATHER
from sp_examples import SCATTER
from sp_examples import direct
from sp_examples import example_collectives_plan
from sp_examples import example_sp_cases
from sp_examples import pull
from sp_examples import push
from sp_examples import sp_cases
from sp_examples import sp_plan

from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters import sglang_overlay
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.sglang_sp_collective import dispatched
from megatune_planner.exporters.sp_collective_schema import STRATEGIES
from megatune_planner.exporters.sp_collective_schema import Pull
from megatune_planner.exporters.sp_collective_schema import Push
from megatune_planner.plan import Plan

SP_COLLECTIVE = "sglang/kernels/ops/communication/sp_collective.py"
TABLE_8 = "world=8,H=7168,device_name=NVIDIA_GB300.json"
TABLE_16 = "world=16,H=7168,device_name=NVIDIA_GB300.json"


def exported(directory: Path, cases: list[Case], **rest: Any) -> dict[str, Any]:
    return dict(exporter("sglang").files(sp_plan(directory, cases, **rest)))


def configs(files: dict[str, Any], name: str = TABLE_8) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files[name])["configs"]
    return found


def test_a_band_is_a_row_from_its_first_tokens_on(tmp_path: Path) -> None:
    files = exported(tmp_path, example_sp_cases())
    assert configs(files) == {
        SCATTER: {
            "8": {"strategy": "push", "num_blocks": 64, "block_size": 256},
            "65": {"strategy": "pull", "num_blocks": 32, "block_size": 1024},
            "2049": {"strategy": "nccl"},
            "4097": {"strategy": "nccl"},
        },
        GATHER: {
            "8": {"strategy": "nccl"},
            "16": {"strategy": "push", "num_blocks": 16, "block_size": 256},
            "65": {"strategy": "direct", "num_blocks": 32, "block_size": 1024},
            "4097": {"strategy": "nccl"},
        },
    }
    assert set(configs(files, TABLE_16)[SCATTER]) == {"16", "17", "256", "257"}
    assert json.loads(files[TABLE_8])["selection"]["fallback"] == "nccl"


def test_the_table_says_where_it_comes_from(tmp_path: Path) -> None:
    plan = sp_plan(tmp_path, example_sp_cases())
    files = exporter("sglang").files(plan)
    assert json.loads(files[TABLE_8])["source"] == {
        "device": "NVIDIA GB300",
        "plan": "collectives",
        "digest": plan.digest,
    }
    text = files["sglang_sp_collective.md"]
    assert isinstance(text, str)
    # 64 tokens of 14336 bytes, of which each of 8 ranks has a share.
    assert f"| 8 | push num_blocks=64 block_size=256 | {64 * 14336 // 8} | 8, 16, 64 |" in text


@pytest.mark.parametrize(
    ("cases", "says"),
    [
        (
            sp_cases(SCATTER, 8, {8: push(block_size=1024)}),
            "push: block_size: Input should be less than or equal to 512",
        ),
        (sp_cases(SCATTER, 8, {8: push(block_size=48)}), "push: block_size: Input should be a multiple of 32"),
        (sp_cases(SCATTER, 8, {8: push(152)}), "fewer blocks than the GPU's 132 SMs, and the config has 152"),
        (sp_cases(SCATTER, 8, {8: pull(97)}), "pull: num_blocks: Input should be less than or equal to 96"),
        (sp_cases(SCATTER, 8, {8: direct()}), "SGLang's reduce_scatter can push and pull, and direct is neither"),
        (sp_cases(GATHER, 8, {8: pull()}), "SGLang's all_gather can push and direct, and pull is neither"),
        (sp_cases(SCATTER, 2, {8: push()}), "SGLang has it at 4, 8, 16 ranks"),
        (sp_cases(SCATTER, 8, {8: push()}, width=3584), "SGLang has it at width 7168"),
        (sp_cases(SCATTER, 8, {8: push()}, dtype="fp16"), "SGLang has it in bf16"),
        (sp_cases(SCATTER, 8, {8: None, 64: push()}), "nccl serves the fewest tokens, and SGLang reads no table that"),
        (sp_cases(SCATTER, 8, {64: push()}), "measure from 8 tokens on, or leave it"),
        (sp_cases(GATHER, 8, {8: push()}), "world 8: SGLang reads no table without rows of reduce_scatter"),
    ],
)
def test_what_sglang_cannot_do_is_refused_by_name(tmp_path: Path, cases: list[Case], says: str) -> None:
    with pytest.raises(MegatuneError, match=f"sglang: no world of the plan has a table: .*{says}"):
        exported(tmp_path, cases)


def test_a_world_that_cannot_be_said_is_left_out_and_named(tmp_path: Path) -> None:
    cases = [*example_sp_cases(), *sp_cases(SCATTER, 4, {4: None, 64: push()})]
    files = exported(tmp_path, cases)
    assert [name for name in files if name.startswith("world=")] == [TABLE_8, TABLE_16]
    assert "reduce_scatter width=7168 bf16, world 4: nccl serves the fewest tokens" in files["sglang_sp_collective.md"]


def test_another_baseline_is_no_fallback(tmp_path: Path) -> None:
    cases = [
        replace(case, config=replace(case.config, variant="mscclpp")) if case.config.variant == "nccl" else case
        for case in sp_cases(SCATTER, 8, {8: push()})
    ]
    with pytest.raises(MegatuneError, match="SGLang falls back to nccl, which the plan has no baseline of"):
        exported(tmp_path, cases, baselines=("mscclpp",))


def test_emulated_and_predicted_figures_are_refused(tmp_path: Path) -> None:
    cases = sp_cases(SCATTER, 8, {8: push()}, provenance=Provenance.EMULATED)
    plan = sp_plan(tmp_path, cases, provenances=(Provenance.EMULATED,))
    with pytest.raises(MegatuneError, match="the plan counts emulated figures as evidence"):
        exporter("sglang").files(plan)
    text = plan.content.model_dump_json().replace('"emulated"', '"predicted"')
    with pytest.raises(MegatuneError, match="the plan counts predicted figures as evidence"):
        exporter("sglang").files(Plan.of(type(plan.content).model_validate_json(text)))
    (tmp_path / "links").mkdir()
    with pytest.raises(MegatuneError, match="ranks that were emulated on one GPU"):
        exported(tmp_path / "links", example_sp_cases(), target=on("sm_103a", links="emulated"))


@pytest.mark.parametrize(
    ("hardware", "says"),
    [
        ({"arch": "sm_90a"}, "run on sm_100a and sm_103a, and the plan holds for sm_90a"),
        ({"arch": "sm_103a", "gpu": "../../etc"}, "is no name of a GPU"),
        ({"arch": "sm_103a", "gpu": ""}, "is no name of a GPU"),
    ],
)
def test_other_gpus_are_refused(tmp_path: Path, hardware: dict[str, Any], says: str) -> None:
    with pytest.raises(MegatuneError, match=says):
        exported(tmp_path, example_sp_cases(), target=on(**hardware))


def test_a_plan_of_both_gives_both(tmp_path: Path) -> None:
    files = exporter("sglang").files(example_collectives_plan(tmp_path))
    assert {"sglang_allreduce.json", "sglang_allreduce.md", TABLE_8, "sglang_sp_collective.md"} < set(files)


# What follows runs SGLang's own lookup, over the tables that it ships.


def shipped(name: str) -> str:
    """A table of SGLang's own."""
    return source("sglang", "0.5.23", f"{Path(SP_COLLECTIVE).parent}/configs/sp_collective/{name}")


@contextmanager
def sglang(folder: Path, monkeypatch: pytest.MonkeyPatch, installed: str = "0.5.23") -> Iterator[ModuleType]:
    """SGLang's module of these collectives, its tables in a folder, and a GB300."""
    own = folder / "sglang" / "configs"
    own.mkdir(parents=True)
    for name in (TABLE_8, TABLE_16):
        (own / name).write_text(
            source("sglang", "0.5.23", f"{Path(SP_COLLECTIVE).parent}/configs/sp_collective/{name}")
        )
    info = folder / "site" / f"sglang-{installed}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {installed}\n")
    module = ModuleType(sglang_overlay.MODULE)
    module.__dict__.update(
        functions(
            source("sglang", "0.5.23", SP_COLLECTIVE),
            {"Tuning", "Dispatch", "FusionDispatch", "_device_name", "_table", "get_dispatch", "get_fusion_dispatch"},
            json=json,
            os=os,
            NamedTuple=NamedTuple,
            torch=SimpleNamespace(cuda=SimpleNamespace(get_device_name=lambda device: "NVIDIA GB300")),
            _TABLES={},
            _CONFIG_DIR=str(own),
        )
    )
    with stand_ins(**{sglang_overlay.MODULE: {}}), monkeypatch.context() as patch:
        patch.setitem(sys.modules, sglang_overlay.MODULE, module)
        patch.syspath_prepend(folder / "site")
        yield module


def plugin(files: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The wheel, unpacked as pip would, and loaded by its entry point."""
    (wheel,) = (content for name, content in files.items() if name.endswith(".whl"))
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        archive.extractall(folder)
        (points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert (
            archive.read(points).decode()
            == "[sglang.srt.plugins]\nmegatune_sglang_plan = megatune_sglang_plan:register\n"
        )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "megatune_sglang_plan", raising=False)
    return import_module("megatune_sglang_plan")


def test_pip_can_take_back_every_file_of_the_wheel(tmp_path: Path) -> None:
    """The record is comma-separated, and so are the names of SGLang's tables."""
    files = exported(tmp_path, example_sp_cases())
    (wheel,) = (content for name, content in files.items() if name.endswith(".whl"))
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith("RECORD"))
        rows = list(csv.reader(io.StringIO(archive.read(record).decode())))
        assert [row[0] for row in rows] == archive.namelist()
        assert {len(row) for row in rows} == {3}


def test_sglangs_lookup_finds_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sp_plan(tmp_path, example_sp_cases())
    loaded = plugin(dict(exporter("sglang").files(plan)), tmp_path / "plugin", monkeypatch)
    with sglang(tmp_path, monkeypatch) as module:
        before = {tokens: module.get_dispatch(SCATTER, 8, 7168, tokens, None) for tokens in range(8, 9000, 8)}
        fused = {tokens: module.get_fusion_dispatch("attn_res_all_gather", 8, 7168, tokens, None) for tokens in before}
        module._TABLES.clear()
        for _ in range(2):
            loaded.register()
        after = {tokens: module.get_dispatch(SCATTER, 8, 7168, tokens, None) for tokens in before}
        assert before != after
        for operator in plan.content.operators:
            for shape in operator.shapes:
                for tokens in range(shape.world, 9000, shape.world):
                    found = module.get_dispatch(operator.name, shape.world, 7168, tokens, None)
                    decision = shape.band(tokens).decision
                    if decision.kind == "stock":
                        assert found is None, tokens
                    else:
                        assert (found.strategy, found.tuning._asdict()) == (decision.variant, decision.params), tokens
        # What the plan says nothing of is SGLang's own, and so is the all-gather at 16 ranks.
        assert any(fused.values())
        for tokens, own in fused.items():
            assert module.get_fusion_dispatch("attn_res_all_gather", 8, 7168, tokens, None) == own
        assert module.get_dispatch(GATHER, 16, 7168, 64, None) is not None
        # It is asked so whether there is a table at all.
        assert module.get_dispatch(SCATTER, 8, 7168, 1, None) is not None


def test_what_is_put_in_place_is_seen_before_sglang_sets_up_its_log(tmp_path: Path) -> None:
    """It loads plugins first: what Python shows without any set-up is all that anybody sees."""
    files = exported(tmp_path, example_sp_cases())
    (name,) = (name for name in files if name.endswith(".whl"))
    for place in ("site", "site/sglang-0.5.23.dist-info", "site/sglang/kernels/ops/communication"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "site/sglang-0.5.23.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n"
    )
    module = tmp_path / "site" / f"{sglang_overlay.MODULE.replace('.', '/')}.py"
    module.write_text("_TABLES = {}\n_CONFIG_DIR = '/nowhere'\n")
    with zipfile.ZipFile(io.BytesIO(files[name])) as archive:
        archive.extractall(tmp_path / "site")
    result = subprocess.run(
        [sys.executable, "-c", "import megatune_sglang_plan as plan; plan.register(); plan.register()"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = result.stderr.splitlines()
    assert lines == 2 * lines[: len(lines) // 2]
    assert any(line.startswith("Megatune: plan ") and TABLE_8 in line for line in lines)


def test_without_the_wheel_a_table_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = exported(tmp_path, example_sp_cases())
    with sglang(tmp_path, monkeypatch) as module:
        (tmp_path / "sglang" / "configs" / TABLE_8).write_text(files[TABLE_8])
        assert module.get_dispatch(SCATTER, 8, 7168, 64, None).strategy == "push"
        assert module.get_fusion_dispatch("attn_res_all_gather", 8, 7168, 64, None) is None


def test_a_push_that_fits_no_slot_goes_on_as_the_notes_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = plugin(exported(tmp_path, example_sp_cases()), tmp_path / "plugin", monkeypatch)
    with sglang(tmp_path, monkeypatch) as module:
        loaded.register()
        shard = 64 * 14336 // 8
        assert module.get_dispatch(SCATTER, 8, 7168, 64, None, max_push_size=shard).strategy == "push"
        assert module.get_dispatch(SCATTER, 8, 7168, 64, None, max_push_size=shard - 1).strategy == "pull"


@pytest.mark.parametrize(
    ("installed", "environment", "lacks", "says"),
    [
        ("0.5.24", {}, "", "SGLang 0.5.24 keeps its own tables, the plan is for 0.5.23"),
        ("0.5.23+cu130", {"MEGATUNE_PLAN": "off"}, "", "keeps its own tables, MEGATUNE_PLAN is off"),
        ("0.5.23", {}, "_TABLES", "has no _TABLES or no _CONFIG_DIR"),
    ],
)
def test_the_overlay_does_nothing_where_anything_differs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    installed: str,
    environment: dict[str, str],
    lacks: str,
    says: str,
) -> None:
    loaded = plugin(exported(tmp_path, example_sp_cases()), tmp_path / "plugin", monkeypatch)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with sglang(tmp_path, monkeypatch, installed) as module:
        if lacks:
            delattr(module, lacks)
        loaded.register()
        assert not getattr(module, "_TABLES", {})
    assert says in caplog.text


def test_a_damaged_wheel_changes_nothing_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = plugin(exported(tmp_path, example_sp_cases()), tmp_path / "plugin", monkeypatch)
    with sglang(tmp_path, monkeypatch) as module:
        for damaged, says in (("{", "JSONDecodeError"), ("{}", "KeyError: 'source'")):
            (tmp_path / "plugin" / "megatune_sglang_plan" / TABLE_8).write_text(damaged)
            loaded.register()
            assert module._TABLES == {}
            assert f"SGLang keeps its own tables: {says}" in caplog.text


def test_rows_are_like_those_that_sglang_ships() -> None:
    """Each of them would be found legal here, and looked up alike."""
    kinds = {"push": Push, "pull": Pull, "direct": Pull}
    for name in (TABLE_8, TABLE_16):
        table = json.loads(shipped(name))
        assert set(table) == {"source", "selection", "configs"}
        for collective, strategies in STRATEGIES.items():
            rows = {int(key): row for key, row in table["configs"][collective].items()}
            for row in rows.values():
                assert row["strategy"] in (*strategies, "nccl")
                if row["strategy"] != "nccl":
                    kinds[row["strategy"]].model_validate(row)
            assert dispatched(rows, 1) == rows[min(rows)]
