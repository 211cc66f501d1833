"""The baseline ``vllm-fused-moe``: the Triton fused MoE of an installed vLLM, as its models call it.

``fused_experts`` chooses its config from vLLM's own tables and launches Triton kernels, with sorting, activation and
sum out of vLLM's compiled library between them: it runs where all of vLLM is installed, and nowhere else. It takes BF16
weights with SiLU here. With FP8 weights it rounds the activations to FP8 as well, which is another result than that of
these operands; and neither MXFP4 nor SiTU has a way through it.

What it has to look like was read off vLLM 0.33.0, and is looked at before it is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
from typing import TYPE_CHECKING
from typing import Any

from megatune_kernels.experts.geometry import BF16
from megatune_kernels.operator import Workload

if TYPE_CHECKING:
    from megatune_kernels.experts.buffers import ExpertBuffers

VLLM_FUSED_MOE = "vllm-fused-moe"
MODULE = "vllm.model_executor.layers.fused_moe.fused_moe"
FUNCTION = "fused_experts"
TAKES = ("hidden_states", "w1", "w2", "topk_weights", "topk_ids")
"""Its first parameters: x [tokens, k], w13 [experts, 2 width, k] with gate before up, w2 [experts, k, width], shares
and ids [tokens, top]. Whatever follows has a default: SiLU, weights that are not quantised, shares on the results."""

FusedExperts = Callable[..., Any]


def enqueue(workload: Workload, inputs: ExpertBuffers, copy: int) -> None:
    """Enqueue it on the current stream over one set of operands.

    :raises NotImplementedError: where it cannot run, with the reason.
    """
    reason = unfit(workload)
    if reason:
        raise NotImplementedError(reason)
    operands = inputs.operands(copy)
    operands.y.copy_(installed()(operands.x, operands.w13, operands.w2, operands.shares, operands.ids))


def unfit(workload: Workload) -> str:
    """Why vLLM's function does not do what the workload asks for; empty where it does."""
    dims = dict(workload.dims)
    if workload.dtype != BF16:
        return f"vLLM's {FUNCTION} has no {workload.dtype} weights with BF16 activations: bf16 alone"
    if dims.get("beta"):
        return f"vLLM's {FUNCTION} has no SiTU: SiLU alone"
    return ""


@cache
def installed() -> FusedExperts:
    """vLLM's function.

    :raises NotImplementedError: where vLLM is not installed whole, or its function is another.
    """
    try:
        found = version("vllm")
    except PackageNotFoundError:
        raise NotImplementedError("vLLM is not installed here: pip install vllm for this baseline") from None
    try:
        # Imported as a model would: what it needs of the compiled library is registered with torch by that.
        import_module("vllm._custom_ops")
        function = getattr(import_module(MODULE), FUNCTION)
    except Exception as error:
        why = " ".join(str(error).split())
        raise NotImplementedError(f"vLLM {found} cannot be imported whole: {type(error).__name__}: {why}") from error
    wrong = unlike(inspect.signature(function))
    if wrong:
        raise NotImplementedError(f"{FUNCTION} of vLLM {found} is not called: {wrong}")
    called: FusedExperts = function
    return called


def unlike(signature: inspect.Signature) -> str:
    """What keeps a function from being called as vLLM's is; empty where nothing does."""
    parameters = list(signature.parameters.values())
    first = tuple(parameter.name for parameter in parameters[: len(TAKES)])
    if first != TAKES:
        return f"it begins with {', '.join(first)}, not with {', '.join(TAKES)}"
    activation = signature.parameters.get("activation")
    if activation is None or "silu" not in str(activation.default).lower():
        return "its activation is not SiLU unless it is said otherwise"
    needed = [each.name for each in parameters[len(TAKES) :] if each.default is inspect.Parameter.empty]
    return f"it asks for {', '.join(needed)} besides" if needed else ""
