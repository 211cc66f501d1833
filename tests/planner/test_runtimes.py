from __future__ import annotations

import ast
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from plan_examples import TARGET
from runtime_sources import source

from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters.vllm_overlay import serving
from megatune_planner.features import FEATURES
from megatune_planner.gate import Gate
from megatune_planner.gate import gate_of
from megatune_planner.runtimes import GRAPH_MODES
from megatune_planner.runtimes import SGLANG_API_VERSION
from megatune_planner.runtimes import SGLANG_FEATURES
from megatune_planner.runtimes import VLLM_FEATURES
from megatune_planner.runtimes import refused
from megatune_planner.runtimes import sglang_contract
from megatune_planner.runtimes import vllm_refusals

HERE = TARGET.to_dict()


def gate(**rest: Any) -> Gate:
    made = {"execution": "graph", "dtypes": ["bf16"], "worlds": [1, 8, 16], "max_tokens": 64, "resident": True}
    return gate_of(**(HERE | made | rest))


def test_the_gate_as_sglangs_contract() -> None:
    found = sglang_contract(gate(features=("lora", "context_parallel")))
    assert found.model_dump() == {
        "api_version": 1,
        "requires": {
            "isas": ["sm_90"],
            "tp_sizes": [8, 16],
            "resident_blocks": 132,
            "dtypes": ["bfloat16"],
            "decode_graph_backends": ["full"],
            "server_args": {},
            "hf_config": {},
            "env": {},
        },
        "features": ("CONTEXT_PARALLEL", "LORA"),
        "max_rows": 64,
    }
    eager = sglang_contract(gate(execution="eager", worlds=[1], resident=False))
    assert eager.requires["decode_graph_backends"] == ["disabled"]
    assert (eager.requires["tp_sizes"], eager.requires["resident_blocks"], eager.features) == ([], 0, ())


def test_what_sglang_cannot_say_is_refused() -> None:
    with pytest.raises(MegatuneError, match="SGLang has no feature 'state_replay'"):
        sglang_contract(gate(features=("state_replay",)))
    with pytest.raises(MegatuneError, match="torch has no dtype 'mxfp4'; known are bf16"):
        sglang_contract(gate(dtypes=["mxfp4"]))
    assert set(FEATURES) - set(SGLANG_FEATURES) == {"state_replay"}
    assert len(set(SGLANG_FEATURES.values())) == len(SGLANG_FEATURES)
    assert set(VLLM_FEATURES) <= set(FEATURES)


class Mode(Enum):
    NONE = 0
    FULL = 2
    FULL_AND_PIECEWISE = (2, 1)


def config(**changes: Any) -> SimpleNamespace:
    """A deployment of vLLM with everything off, after changes by dotted name."""
    found = SimpleNamespace(speculative_config=None, lora_config=None, kv_transfer_config=None)
    values = {
        "parallel_config.tensor_parallel_size": 8,
        "model_config.dtype": SimpleNamespace(),
        "compilation_config.cudagraph_mode": Mode.FULL_AND_PIECEWISE,
    }
    values |= {setting: off[0] for settings in VLLM_FEATURES.values() for setting, off in settings if "." in setting}
    values["model_config.dtype"] = "torch.bfloat16"
    for setting, value in (values | {name.replace("__", "."): value for name, value in changes.items()}).items():
        part = found
        *folders, last = setting.split(".")
        if folders == ["speculative_config"] and found.speculative_config is None:
            continue
        for folder in folders:
            if not hasattr(part, folder):
                setattr(part, folder, SimpleNamespace())
            part = getattr(part, folder)
        setattr(part, last, value)
    return found


def test_a_plain_deployment_of_vllm_serves() -> None:
    assert refused(vllm_refusals(gate()), config()) == ()
    assert refused(vllm_refusals(gate()), config(compilation_config__cudagraph_mode=Mode.FULL)) == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parallel_config__tensor_parallel_size": 4}, "the plan holds for 8 or 16 ranks"),
        ({"model_config__dtype": "torch.float16"}, "model_config.dtype is torch.float16: the plan holds for bf16"),
        ({"compilation_config__cudagraph_mode": Mode.NONE}, "cudagraph_mode is NONE: the plan was measured with steps"),
        ({"parallel_config__pipeline_parallel_size": 2}, "not measured with pipeline_parallel: layers"),
        ({"parallel_config__decode_context_parallel_size": 8}, "not measured with context_parallel"),
        ({"lora_config": SimpleNamespace()}, "not measured with lora"),
        ({"offload_config__uva__cpu_offload_gb": 1.5}, "cpu_offload_gb is 1.5: the plan was not measured with weight_"),
        ({"speculative_config": SimpleNamespace(enable_adaptive_verification=False)}, "with speculative_decoding"),
    ],
    ids=str,
)
def test_another_deployment_of_vllm_is_refused_with_the_reason(changes: dict[str, Any], says: str) -> None:
    (reason,) = refused(vllm_refusals(gate()), config(**changes))
    assert says in reason


def test_what_a_gate_accepts_is_not_refused() -> None:
    speculating = config(speculative_config=SimpleNamespace(enable_adaptive_verification=False))
    ragged = config(speculative_config=SimpleNamespace(enable_adaptive_verification=True))
    accepting = vllm_refusals(gate(features=("speculative_decoding",)))
    assert refused(accepting, speculating) == ()
    (reason,) = refused(accepting, ragged)
    assert "ragged_verification" in reason


def test_a_config_that_does_not_say_is_refused() -> None:
    assert len(refused(vllm_refusals(gate()), SimpleNamespace())) > 10
    for feature in VLLM_FEATURES:
        asked = {each.setting for each in vllm_refusals(gate())} - {
            each.setting for each in vllm_refusals(gate(features=(feature,)))
        }
        assert asked == {setting for setting, _ in VLLM_FEATURES[feature]}


# The released wheels.


def classes(*texts: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for text in texts for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}


def members(node: ast.ClassDef) -> dict[str, str]:
    """What a class has, and the annotation or value of each as text."""
    found = {}
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found[each.target.id] = ast.unparse(each.annotation)
        elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            found[each.targets[0].id] = ast.unparse(each.value)
        elif isinstance(each, ast.FunctionDef):
            found[each.name] = ""
    return found


def test_the_released_sglang_has_this_contract() -> None:
    text = source("sglang", "0.5.23", "sglang/kernels/plugin_kernels/nvidia/spec.py")
    found = classes(text)
    assert f"MEGAKERNEL_API_VERSION = {SGLANG_API_VERSION}\n" in text
    assert set(members(found["Feature"])) == set(SGLANG_FEATURES.values())
    assert set(members(found["Requirements"])) == set(sglang_contract(gate()).requires)
    spec = set(members(found["MegakernelSpec"]))
    assert spec >= {"requires", "features", "max_rows", "api_version", "numerics", "build", "name"}
    binding = source("sglang", "0.5.23", "sglang/srt/kernel_plugins/nvidia/binding.py")
    assert 'dtype = str(model_config.dtype).replace("torch.", "")' in binding


def test_the_released_vllm_has_these_settings() -> None:
    files = ("vllm", "parallel", "model", "cache", "compilation", "offload", "aux_output", "speculative")
    found = classes(*(source("vllm", "0.33.0", f"vllm/config/{name}.py") for name in files))
    for refusal in vllm_refusals(gate()):
        at = found["VllmConfig"]
        *folders, last = refusal.setting.split(".")
        for folder in folders:
            at = found[members(at)[folder].removesuffix(" | None")]
        assert last in members(at), refusal.setting
    assert set(GRAPH_MODES) < set(members(found["CUDAGraphMode"]))


def test_the_overlay_refuses_what_the_gate_refuses() -> None:
    """It stands alone where it serves, and has a table of its own."""
    ours = {(name, setting) for name, settings in VLLM_FEATURES.items() for setting, _ in settings}
    assert {(name, setting) for name, setting, _ in serving.FEATURES} == ours
