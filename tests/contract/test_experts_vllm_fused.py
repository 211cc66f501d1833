"""The baseline ``vllm-fused-moe``: what it asks of vLLM is what the release has, and what it passes is what that takes.

vLLM itself does not run here: where its compiled library is missing the baseline is infeasible, and says why.
"""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import sys
from collections.abc import Callable
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from megatune_kernels.experts import vllm_fused
from megatune_kernels.operator import operators
from megatune_kernels.runtime_source import Runtime
from tests.contract.runtime_wheels import wheel

QWEN = {"experts": 16, "k": 256, "top": 2, "width": 128}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    operators.cache_clear()
    vllm_fused.installed.cache_clear()
    yield
    vllm_fused.installed.cache_clear()


def released_signature() -> inspect.Signature:
    """Of the release's function, without its annotations: names and defaults, as their source says."""
    text = Runtime("vllm", None, wheel("vllm")).read(f"{vllm_fused.MODULE.replace('.', '/')}.py")
    assert text is not None
    (found,) = [
        node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == vllm_fused.FUNCTION
    ]
    arguments = found.args
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
    defaults = [inspect.Parameter.empty] * (len(arguments.args) - len(arguments.defaults))
    defaults += [ast.unparse(default) for default in arguments.defaults]
    return inspect.Signature(
        [
            inspect.Parameter(each.arg, kinds, default=default)
            for each, default in zip(arguments.args, defaults, strict=True)
        ]
    )


def test_the_release_has_the_function_that_is_called() -> None:
    assert vllm_fused.unlike(released_signature()) == ""


def swapped(hidden_states: Any, w2: Any, w1: Any, topk_weights: Any, topk_ids: Any, activation: str = "silu") -> None:
    """Not vLLM's."""


def asking(
    hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, activation: str = "silu", *, gate: Any
) -> None:
    """Not vLLM's."""


def gelu(hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, activation: str = "gelu") -> None:
    """Not vLLM's."""


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (swapped, "it begins with hidden_states, w2, w1, topk_weights, topk_ids, not with hidden_states, w1, w2"),
        (asking, "it asks for gate besides"),
        (gelu, "its activation is not SiLU"),
    ],
)
def test_another_one_is_not_called(function: Callable[..., None], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, function)
    with pytest.raises(NotImplementedError, match=f"fused_experts of vLLM 0.0 is not called: {why}"):
        vllm_fused.installed()


def stand_in(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    """A package of vLLM's name with this function."""
    names = vllm_fused.MODULE.split(".")
    packages = [".".join(names[:end]) for end in range(1, len(names))]
    for name in (*packages, vllm_fused.MODULE, "vllm._custom_ops"):
        module = ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    setattr(sys.modules[vllm_fused.MODULE], vllm_fused.FUNCTION, function)
    monkeypatch.setattr(vllm_fused, "version", lambda _: "0.0")


def test_without_vllm_it_is_infeasible_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(vllm_fused, "version", none)
    with pytest.raises(NotImplementedError, match="vLLM is not installed here: pip install vllm"):
        vllm_fused.installed()


def test_without_its_compiled_library_it_is_infeasible_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, swapped)
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", None)
    with pytest.raises(NotImplementedError, match=r"vLLM 0\.0 cannot be imported whole: ModuleNotFoundError: "):
        vllm_fused.installed()


@pytest.mark.parametrize(
    ("dims", "dtype", "why"),
    [
        (QWEN, "mxfp4", "no mxfp4 weights with BF16 activations"),
        (QWEN, "fp8", "no fp8 weights with BF16 activations"),
        ({**QWEN, "beta": 4, "linear_beta": 25}, "bf16", "no SiTU"),
        (QWEN, "bf16", ""),
    ],
)
def test_what_it_does_not_do_is_said(dims: dict[str, int], dtype: str, why: str) -> None:
    found = vllm_fused.unfit(operators()["experts"].workload(dims, 1, dtype))
    assert why in found
    assert bool(found) == bool(why)


def test_operands_are_passed_as_it_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from megatune_kernels.experts.buffers import ExpertBuffers

    def fused_experts(
        hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, activation: str = "silu"
    ) -> Any:
        """What vLLM's does, with a BF16 number wherever it stores one."""
        out = torch.zeros_like(hidden_states, dtype=torch.float32)
        for token, (ids, shares) in enumerate(zip(topk_ids.tolist(), topk_weights, strict=True)):
            for expert, share in zip(ids, shares, strict=True):
                both = (w1[expert].float() @ hidden_states[token].float()).bfloat16()
                gate, up = both.float().chunk(2)
                hidden = (torch.nn.functional.silu(gate) * up).bfloat16()
                out[token] += (share * (w2[expert].float() @ hidden.float())).bfloat16().float()
        return out.bfloat16()

    stand_in(monkeypatch, fused_experts)
    experts = operators()["experts"]
    workload = experts.workload(QWEN, 4, "bf16")
    buffers = ExpertBuffers(workload, 2, seed=0, device="cpu")
    for _ in range(2):
        buffers.poison()
        assert buffers.check()
        for copy in range(2):
            experts.baseline(vllm_fused.VLLM_FUSED_MOE, workload, buffers, copy)
        assert buffers.check() == ""
        buffers.refresh()
