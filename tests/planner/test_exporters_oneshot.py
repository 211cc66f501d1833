"""One-shot limits of SGLang and FlashInfer that follow from reductions."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from reduction_examples import FANOUT
from reduction_examples import NCCL
from reduction_examples import TWO_STAGE
from reduction_examples import example_reduction_plan
from reduction_examples import example_reductions
from reduction_examples import on
from reduction_examples import plan_of
from reduction_examples import reduction_cases
from reduction_examples import wins
from runtime_sources import run
from runtime_sources import source
from runtime_sources import stand_ins

from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.flashinfer_routes import LOADER_FILE
from megatune_planner.exporters.flashinfer_routes import SHIPPED as FLASHINFER
from megatune_planner.exporters.flashinfer_schema import Profiles
from megatune_planner.exporters.reduction_schema import Setting
from megatune_planner.exporters.reduction_schema import Settings
from megatune_planner.exporters.sglang_allreduce import SHIPPED
from megatune_planner.exporters.sglang_allreduce import VARIABLE
from megatune_planner.exporters.sglang_allreduce import serves

SGLANG = "sglang"
ROUTES = "flashinfer"


def sglang(directory: Path, cases: Iterable[object], arch: str = "sm_100a") -> Settings:
    plan = plan_of(directory, cases, on(arch))  # type: ignore[arg-type]
    return Settings.model_validate_json(exporter(SGLANG).files(plan)["sglang_allreduce.json"])


def sglang_setting(directory: Path, cases: Iterable[object], arch: str = "sm_100a") -> Setting:
    (setting,) = sglang(directory, cases, arch).settings
    return setting


def flashinfer(directory: Path, cases: Iterable[object], arch: str = "sm_103a") -> Profiles:
    plan = plan_of(directory, cases, on(arch))  # type: ignore[arg-type]
    return Profiles.model_validate_json(exporter(ROUTES).files(plan)["flashinfer.json"])


def test_sglang_reads_kibibytes_of_one_ranks_tensor(tmp_path: Path) -> None:
    setting = sglang_setting(tmp_path, reduction_cases(7168, 8, wins({1: FANOUT, 32: FANOUT, 64: TWO_STAGE})))
    assert (setting.where, setting.name, setting.value) == ("environment", VARIABLE, 448)
    assert setting.payload_bytes == 448 * 1024 == 32 * 7168 * 2
    assert "32 tokens x 7168 elements x 2 bytes = 458752 bytes, rounded down to 448 KiB" in setting.conversion


@pytest.mark.parametrize("tokens", [60, 61, 63, 67, 71])
def test_sglang_never_gets_more_than_was_measured(tmp_path: Path, tokens: int) -> None:
    """At width 2880 a token has 5.625 KiB: rounding must not let one more in."""
    times = wins({1: FANOUT, tokens: FANOUT, 2 * tokens: TWO_STAGE})
    setting = sglang_setting(tmp_path, reduction_cases(2880, 8, times))
    bytes_a_token = 2880 * 2
    assert isinstance(setting.value, int)
    assert setting.value == tokens * bytes_a_token // 1024
    assert tokens - 1 <= setting.value * 1024 // bytes_a_token <= tokens


def test_sglang_has_one_value_for_all_widths(tmp_path: Path) -> None:
    cases = [
        *reduction_cases(7168, 8, wins({1: FANOUT, 32: FANOUT, 64: TWO_STAGE})),
        *reduction_cases(3584, 8, wins({1: FANOUT, 48: FANOUT, 64: TWO_STAGE})),
    ]
    setting = sglang_setting(tmp_path, cases)
    assert setting.value == 48 * 7
    assert "width 7168: of the 32 tokens that one-shot won, those above 24 are left to the other side" in (
        setting.warnings
    )


def test_sglang_says_what_the_buffers_take(tmp_path: Path) -> None:
    setting = sglang_setting(tmp_path, reduction_cases(7168, 8, wins({1: FANOUT, 32: FANOUT, 64: TWO_STAGE})))
    assert f"2 x 8 slots of 458752 bytes are allocated on every rank: {2 * 8 * 458752} bytes" in setting.warnings


def test_a_limit_below_sglangs_one_shot_by_pulling_is_refused(tmp_path: Path) -> None:
    """At 8 ranks of a Hopper it pulls up to 128 KiB: 8 tokens are 112 KiB, 9 are 126."""
    cases = reduction_cases(7168, 8, wins({1: FANOUT, 8: FANOUT, 9: TWO_STAGE, 64: TWO_STAGE}))
    with pytest.raises(
        MegatuneError,
        match="one-shot loses at 9 tokens of width 7168, 129024 bytes, and SGLang goes on with one-shot pull",
    ):
        sglang(tmp_path, cases, "sm_90a")


def test_a_limit_with_a_loss_beyond_the_pulling_is_fine_and_said(tmp_path: Path) -> None:
    cases = reduction_cases(7168, 8, wins({1: FANOUT, 8: FANOUT, 12: TWO_STAGE, 64: TWO_STAGE}))
    setting = sglang_setting(tmp_path, cases, "sm_90a")
    assert setting.value == 112
    assert "beyond 114688 bytes SGLang goes on with one-shot, by pulling, to 131072 bytes" in " ".join(setting.warnings)


def test_two_shot_push_takes_over_where_sglang_has_it(tmp_path: Path) -> None:
    """At 8 ranks of a Blackwell two-shot push comes before one-shot pull, so that a smaller limit holds there."""
    cases = reduction_cases(7168, 8, wins({1: FANOUT, 8: FANOUT, 9: TWO_STAGE, 64: TWO_STAGE}))
    assert sglang_setting(tmp_path, cases).value == 112


def test_two_ranks_pull_whatever_the_variable_says(tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match="goes on with one-shot pull up to 134217728 bytes"):
        sglang(tmp_path, reduction_cases(7168, 2, wins({1: FANOUT, 64: FANOUT, 128: TWO_STAGE})), "sm_90a")


def test_sglangs_own_larger_limit_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match="up to 7340032 bytes, and SGLang's own limit is 16777216 bytes: leave"):
        sglang(tmp_path, reduction_cases(7168, 2, wins({1: FANOUT, 512: FANOUT})), "sm_90a")


def test_a_world_that_sglang_does_not_have_is_named(tmp_path: Path) -> None:
    cases = example_reductions()
    assert {setting.world for setting in sglang(tmp_path, cases, "sm_103a").settings} == {4, 8, 16}
    with pytest.raises(MegatuneError, match="SGLang has no custom all-reduce for it on sm_90a; it has 2, 3, 4"):
        sglang(_sub(tmp_path), reduction_cases(7168, 16, wins({1: FANOUT, 8: TWO_STAGE})), "sm_90a")


def test_one_unfit_width_stops_its_world(tmp_path: Path) -> None:
    cases = [
        *reduction_cases(7168, 8, wins({1: FANOUT, 32: FANOUT, 64: TWO_STAGE})),
        *reduction_cases(3584, 8, wins({2: FANOUT, 32: TWO_STAGE})),
    ]
    with pytest.raises(MegatuneError, match="world 8: width 3584 bf16, world 8: a limit holds from 1 token on"):
        sglang(tmp_path, cases)


@pytest.mark.parametrize(
    ("nbytes", "forced", "runs"),
    [
        (1024, 1024, "one-shot push"),
        (1025, 1024, "two-shot push"),
        (4096, 1024, "two-shot push"),
        (4097, 1024, "one-shot pull"),
        (262144, 1024, "one-shot pull"),
        (262145, 1024, "two-shot pull or NCCL"),
        (4096, 0, "two-shot push"),
        (3 * 458752, 458752, "two-shot push"),
        (9 * 458752, 458752, "two-shot pull or NCCL"),
    ],
)
def test_what_sglang_runs_at_8_ranks_of_a_blackwell(nbytes: int, forced: int, runs: str) -> None:
    assert serves(nbytes, SHIPPED["sm_100a"][8]["graph"], forced, 8) == runs


def test_a_setting_beyond_its_evidence_cannot_be_built(tmp_path: Path) -> None:
    text = exporter(SGLANG).files(example_reduction_plan(tmp_path))["sglang_allreduce.json"]
    for change, says in (
        (lambda s: s.update(payload_bytes=s["payload_bytes"] + 1), "bytes through, and"),
        (lambda s: s["limits"][0].update(tokens=1), "tokens x bytes_a_token"),
        (lambda s: s["limits"][0].update(traffic_bytes=1), "payload_bytes x world"),
        (lambda s: s["limits"][0].update(next_tokens=1), "must lie above"),
        (lambda s: s.update(where="hearsay"), "where"),
    ):
        damaged = json.loads(text)
        change(damaged["settings"][1])
        with pytest.raises(ValueError, match=says):
            Settings.model_validate_json(json.dumps(damaged))


def test_sglang_has_these_thresholds() -> None:
    """Its tables run for real; all that they want of torch is which GPU there is."""
    path = "sglang/srt/distributed/device_communicators/configs/custom_all_reduce_v2.py"
    module = run(source("sglang", "0.5.23", path), "of_sglang", torch={})
    for arch, configs in (("sm_90a", module._sm90_configs(132)), ("sm_100a", module._sm100_configs(148))):
        assert set(configs) == set(SHIPPED[arch])
        for world, executions in SHIPPED[arch].items():
            for execution, row in executions.items():
                theirs = getattr(configs[world], execution)
                assert (row.one_shot_push, row.one_shot_pull, row.two_shot_push) == (
                    theirs.one_shot_push_threshold,
                    theirs.one_shot_pull_threshold,
                    theirs.two_shot_push_threshold,
                ), (arch, world, execution)
                for forced in (1024, 7168, 458752):
                    clipped = theirs._replace(one_shot_push_threshold=forced).clip(
                        max_push_bytes=forced, max_pull_bytes=2**30, world_size=world
                    )
                    for nbytes in (forced, forced + 16, clipped.two_shot_push_threshold, row.one_shot_pull):
                        ours = serves(nbytes, row, forced, world)
                        assert (ours == "one-shot push") == (nbytes <= clipped.one_shot_push_threshold)
                        assert (ours == "two-shot push") == (forced < nbytes <= clipped.two_shot_push_threshold)


def test_flashinfer_reads_tokens(tmp_path: Path) -> None:
    profiles = flashinfer(tmp_path, reduction_cases(7168, 8, wins({1: FANOUT, 30: FANOUT, 40: TWO_STAGE})))
    (profile,) = profiles.profiles
    routes = profile.all_reduce_routes
    assert routes.upper_bounds == (30, 256, None)
    assert [(target.protocol, target.preset) for target in routes.targets] == [
        ("ll", "LL_ALL_REDUCE_GB300_TP8_H7168"),
        ("bt", "BT_ALL_REDUCE_GB300_TP8_H7168_PRESET_0"),
        ("bt", "BT_ALL_REDUCE_GB300_TP8_H7168_PRESET_1"),
    ]
    assert (profile.top_k, profile.dtype, profile.compute_capability) == (16, "bfloat16", (10, 3))
    assert profile.finalize_routes.upper_bounds == (12, 512, None)
    assert not profiles.applies_rms_norm
    assert "30, which are 430080 bytes of one rank's tensor and 3440640 of one-shot traffic" in profile.conversion


def test_flashinfer_leaves_out_what_one_shot_covers(tmp_path: Path) -> None:
    times = wins({1: FANOUT, 256: FANOUT, 512: TWO_STAGE})
    (profile,) = flashinfer(tmp_path, reduction_cases(7168, 8, times)).profiles
    assert profile.all_reduce_routes.upper_bounds == (256, None)
    assert profile.all_reduce_routes.targets[-1].preset.endswith("PRESET_1")


@pytest.mark.parametrize("winner", [TWO_STAGE, NCCL])
def test_flashinfer_without_one_shot(tmp_path: Path, winner: str) -> None:
    cases = reduction_cases(7168, 4, wins({1: winner, 8: TWO_STAGE}))
    (profile,) = flashinfer(tmp_path, cases, "sm_100a").profiles
    assert [target.protocol for target in profile.all_reduce_routes.targets] == ["bt", "bt"]
    assert profile.compute_capability == (10, 0)


def test_flashinfer_has_a_profile_for_each_top_k(tmp_path: Path) -> None:
    cases = reduction_cases(5120, 4, wins({1: FANOUT, 20: FANOUT, 24: TWO_STAGE}))
    profiles = flashinfer(tmp_path, cases).profiles
    assert [(each.top_k, each.all_reduce_routes.upper_bounds) for each in profiles] == [
        (6, (20, 128, None)),
        (3, (20, 128, None)),
    ]
    assert profiles[1].finalize_routes.upper_bounds == (56, None)


def test_what_flashinfer_lacks_is_said(tmp_path: Path) -> None:
    profiles = flashinfer(tmp_path, example_reductions())
    assert [(each.tp_size, each.hidden_size) for each in profiles.profiles] == [(4, 7168), (8, 7168)]
    assert [line.split(":")[0] for line in profiles.skipped] == [
        "width 3584 bf16, world 8",
        "width 7168 bf16, world 16",
        "width 3584 bf16, world 16",
    ]
    assert "FlashInfer ships no LL and BT presets for it; it has 5120 at 4 ranks" in profiles.skipped[0]
    with pytest.raises(MegatuneError, match="has routes: width 7168 bf16, world 16: FlashInfer ships"):
        flashinfer(_sub(tmp_path), reduction_cases(7168, 16, wins({1: FANOUT, 8: TWO_STAGE})))


def test_flashinfers_own_larger_limit_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match="up to 8, and FlashInfer's own limit is 12: nothing to change"):
        flashinfer(tmp_path, reduction_cases(7168, 8, wins({1: FANOUT, 8: FANOUT})))


def test_hopper_has_no_such_kernels(tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match="run on sm_100a and sm_103a, and the plan holds for sm_90a"):
        flashinfer(tmp_path, example_reductions(), "sm_90a")


def test_routes_that_flashinfer_refuses_cannot_be_built(tmp_path: Path) -> None:
    text = exporter(ROUTES).files(example_reduction_plan(tmp_path))["flashinfer.json"]
    for change, says in (
        (lambda r: r.update(upper_bounds=[256, 256, None]), "must ascend"),
        (lambda r: r.update(upper_bounds=[64, 32, None]), "must ascend"),
        (lambda r: r.update(upper_bounds=[64, None, None]), "must have no end"),
        (lambda r: r.update(upper_bounds=[64, 512, 1024]), "must have no end"),
        (lambda r: r.update(upper_bounds=[64, None]), "one target for each"),
        (lambda r: r.update(upper_bounds=[65, 512, None]), "must end at the 64 tokens that were measured"),
        (lambda r: r["targets"][0].update(protocol="ht"), "'ll' or 'bt'"),
    ):
        damaged = json.loads(text)
        change(damaged["profiles"][0]["all_reduce_routes"])
        with pytest.raises(ValueError, match=says):
            Profiles.model_validate_json(json.dumps(damaged))


def test_the_loader_refuses_other_files(tmp_path: Path) -> None:
    loader = _written(tmp_path)
    file = tmp_path / "flashinfer.json"
    value = json.loads(file.read_text())
    file.write_text(json.dumps(value | {"schema_version": 2}))
    with pytest.raises(ValueError, match="does not hold routes of schema version 1"):
        loader.load()
    file.write_text(json.dumps(value | {"runtime": {"name": "pydantic", "version": "0.0.1"}}))
    with pytest.raises(ValueError, match=r"is for pydantic 0\.0\.1, and .* is installed"):
        loader.load()


MNNVL = "flashinfer.comm.mnnvl_cutedsl"


def flashinfer_package() -> dict[str, dict[str, Any]]:
    """Its modules by name: configs that run for real, and presets that are their names alone."""
    folder = MNNVL.replace(".", "/")
    torch = {"torch": {"bfloat16": "bfloat16", "dtype": str}}
    config = run(source("flashinfer-python", "0.7.4", f"{folder}/config.py"), f"{MNNVL}.config", **torch)
    kernels = {
        f"{MNNVL}.kernel_{protocol}": {name: name for name in _all(f"{folder}/kernel_{protocol}/__init__.py")}
        for protocol in ("ll", "bt", "ht")
    }
    classes = {name: getattr(config, name) for name in config.__all__}
    return {**torch, MNNVL: classes, f"{MNNVL}.config": classes, **kernels}


def _all(path: str) -> list[str]:
    tree = ast.parse(source("flashinfer-python", "0.7.4", path))
    (names,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    found: list[str] = ast.literal_eval(names)
    return found


def test_flashinfer_takes_the_routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own classes check them, and find the profile of the shape."""
    loader = _written(tmp_path)
    monkeypatch.setattr(loader, "version", lambda name: {"flashinfer-python": "0.7.4+cu130"}[name])
    with stand_ins(**flashinfer_package()):
        config = loader.load()
    assert config.applies_rms_norm is False
    for world, tokens, protocol in ((8, 32, "ll"), (8, 33, "bt"), (4, 64, "ll"), (4, 65, "bt")):
        profile = config.resolve(
            tp_size=world,
            hidden_size=7168,
            top_k=16,
            dtype="bfloat16",
            capacity_m=512,
            compute_capability=(10, 3),
        )
        assert profile.all_reduce_routes.select(tokens).protocol.value == protocol
        assert profile.finalize_routes.select(tokens).preset.startswith(("LL_FINALIZE", "BT_FINALIZE"))
    with pytest.raises(ValueError, match="No MNNVL CuTe DSL profile supports"):
        config.resolve(tp_size=8, hidden_size=7168, top_k=16, dtype="bfloat16", capacity_m=512)


def test_flashinfer_ships_these_routes() -> None:
    path = f"{MNNVL.replace('.', '/')}/presets.py"
    presets = run(source("flashinfer-python", "0.7.4", path), f"{MNNVL}.presets", **flashinfer_package())
    for (world, hidden, top_k), ours in FLASHINFER.items():
        config = presets.NO_NORM_CONFIG if hidden == 5120 else presets.DEFAULT_CONFIG
        profile = config.find(tp_size=world, hidden_size=hidden, top_k=top_k, dtype="bfloat16")
        for (ll_to, split), routes in (
            (ours.all_reduce, profile.all_reduce_routes),
            (ours.finalize, profile.finalize_routes),
        ):
            theirs = routes.upper_bounds[: 2 if split > ll_to else 1]
            assert theirs == ((ll_to, split) if split > ll_to else (ll_to,)), (world, hidden, top_k)


def _written(directory: Path) -> Any:
    """The loader, as exported beside its file and imported from there."""
    for name, text in exporter(ROUTES).files(example_reduction_plan(directory)).items():
        (directory / name).write_text(text, encoding="utf-8")
    return _module(directory / LOADER_FILE)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _sub(directory: Path) -> Path:
    folder = directory / "again"
    folder.mkdir()
    return folder
