from __future__ import annotations

import ast
import sys
from types import ModuleType
from types import SimpleNamespace
from typing import Any

import pytest
from plan_examples import TARGET
from runtime_sources import source

from megatune_kernels.errors import MegatuneError
from megatune_kernels.runtime_source import Runtime
from megatune_planner import reader
from megatune_planner.exporters.installed import differences
from megatune_planner.exporters.vllm_overlay import serving
from megatune_planner.features import FEATURES
from megatune_planner.gate import Gate
from megatune_planner.gate import gate_of
from megatune_planner.runtimes import GRAPH_MODES
from megatune_planner.runtimes import SGLANG_API_VERSION
from megatune_planner.runtimes import SGLANG_FEATURES
from megatune_planner.runtimes import SGLANG_NAMES
from megatune_planner.runtimes import VLLM_FEATURES
from megatune_planner.runtimes import VllmRefusal
from megatune_planner.runtimes import asked_of
from megatune_planner.runtimes import sglang_contract
from megatune_planner.runtimes import vllm_refusals
from tests.contract.runtime_wheels import wheel

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


class Named(SimpleNamespace):
    """A member of an enumeration, as far as its name goes."""


def config(gate_: Gate, changed: VllmRefusal | None = None, value: Any = None) -> SimpleNamespace:
    """A deployment of vLLM that a gate accepts, after the change of one setting."""
    found = SimpleNamespace(
        model_config=SimpleNamespace(model="moonshotai/Kimi-K3", enforce_eager=False, max_model_len=4096),
        compilation_config=SimpleNamespace(mode=None),
        speculative_config=None if "speculative_decoding" not in gate_.features else SimpleNamespace(),
    )
    for refusal in vllm_refusals(gate_):
        part, (*folders, last) = found, refusal.setting.split(".")
        for folder in folders:
            if not hasattr(part, folder):
                setattr(part, folder, SimpleNamespace())
            part = getattr(part, folder)
        serving = value if refusal == changed else refusal.serves[0]
        if part is not None:  # nothing of a part that is off is on
            setattr(part, last, Named(name=serving) if last == "cudagraph_mode" else serving)
    return found


def reason(gate_: Gate, served: SimpleNamespace) -> str:
    """What the overlay's own look at a deployment comes to."""
    deployment = serving.deployment(served, several_machines=False)
    return reader._other_deployment(gate_.model_dump(mode="json"), deployment)


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm.envs")
    module.VLLM_BATCH_INVARIANT = False  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.envs", module)


@pytest.mark.parametrize("features", [(), ("speculative_decoding",)])
def test_the_overlay_refuses_what_the_gate_refuses_and_nothing_else(features: tuple[str, ...]) -> None:
    """It looks at vLLM's config where it serves; what is printed of a gate has to be what it does there."""
    asked = gate(model="Kimi-K3", features=features)
    assert reason(asked, config(asked)) == ""
    refusals = vllm_refusals(asked)
    assert len(refusals) > 20
    for refusal in refusals:
        if refusal.setting.startswith("speculative_config.") and not features:
            continue
        for value in refusal.serves:
            assert reason(asked, config(asked, refusal, value)) == "", refusal
        other = {"model_config.model": "GLM-5", "compilation_config.cudagraph_mode": "PIECEWISE"}
        bad = other.get(refusal.setting, True if refusal.serves[0] is False else SimpleNamespace())
        assert reason(asked, config(asked, refusal, bad)) != "", refusal


def test_what_a_gate_accepts_is_not_refused() -> None:
    for feature in VLLM_FEATURES:
        accepting = gate(features=(feature,))
        asked = {each.setting for each in vllm_refusals(gate())} - {each.setting for each in vllm_refusals(accepting)}
        assert asked == {setting for setting, _ in VLLM_FEATURES[feature]}


def test_what_a_plan_asks_in_lines() -> None:
    found = asked_of("sglang", gate(features=("lora",)))
    assert found is not None
    document, lines = found
    assert document["megakernel"]["requires"]["tp_sizes"] == [8, 16]
    assert lines[0] == "a megakernel of contract version 1"
    assert {"requires isas: sm_90", "requires env: any", "features: LORA", "max_rows: 64"} <= set(lines)
    found = asked_of("vllm", gate())
    assert found is not None
    assert "parallel_config.tensor_parallel_size is 8 or 16: the plan holds for 8 or 16 ranks" in found[1]
    assert asked_of("flashinfer-python", gate()) is None


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
    runtime = Runtime("sglang", "0.5.23", wheel("sglang"))
    assert list(differences(runtime, SGLANG_NAMES)) == []
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
