"""A plan's gate in the words of the runtimes: SGLang's megakernel contract, and what vLLM would have to refuse.

Facts of released wheels, sglang 0.5.23 (``sglang/kernels/plugin_kernels/nvidia/spec.py``, contract version 1) and vllm
0.33.0 (``vllm/config``); ``tests/contract/test_gate_mappings.py`` compares them with the wheels.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters.vllm_overlay.serving import GRAPH_MODES
from megatune_planner.features import FEATURES
from megatune_planner.gate import Gate
from megatune_planner.schema import Part

SGLANG_API_VERSION = 1

SGLANG_FEATURES = {
    "pipeline_parallel": "PIPELINE_PARALLEL",
    "multi_node": "MULTI_NODE_TP",
    "data_parallel_attention": "DP_ATTENTION",
    "expert_parallel": "EXPERT_PARALLEL",
    "expert_balancing": "EPLB",
    "context_parallel": "CONTEXT_PARALLEL",
    "speculative_decoding": "SPECULATIVE_DECODING",
    "ragged_verification": "RAGGED_VERIFY",
    "batch_overlap": "TWO_BATCH_OVERLAP",
    "lora": "LORA",
    "disaggregation": "PD_DISAGGREGATION",
    "routed_experts_output": "RETURN_ROUTED_EXPERTS",
    "indexer_output": "RETURN_INDEXER_TOPK",
    "cache_offload": "KV_OFFLOAD",
    "hierarchical_sparse": "HISPARSE",
    "memory_release": "MEMORY_RELEASE",
    "weight_offload": "CPU_OFFLOAD",
    "compiled_decode": "TORCH_COMPILE",
    "deterministic": "DETERMINISTIC_INFERENCE",
    "partitioned_gpu": "PARTITIONED_GPU",
}
"""Members of its ``Feature``; ``state_replay`` has none there."""

TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Operands' dtypes as torch calls them."""

VLLM_FEATURES: dict[str, tuple[tuple[str, tuple[Any, ...]], ...]] = {
    "pipeline_parallel": (("parallel_config.pipeline_parallel_size", (1,)),),
    "multi_node": (("parallel_config.nnodes", (1,)),),
    "data_parallel_attention": (("parallel_config.data_parallel_size", (1,)),),
    "expert_parallel": (("parallel_config.enable_expert_parallel", (False,)),),
    "expert_balancing": (("parallel_config.enable_eplb", (False,)),),
    "context_parallel": (
        ("parallel_config.decode_context_parallel_size", (1,)),
        ("parallel_config.prefill_context_parallel_size", (1,)),
    ),
    "speculative_decoding": (("speculative_config", (None,)),),
    "ragged_verification": (("speculative_config.enable_adaptive_verification", (False, None)),),
    "batch_overlap": (("parallel_config.use_ubatching", (False,)),),
    "lora": (("lora_config", (None,)),),
    "disaggregation": (("kv_transfer_config", (None,)),),
    "routed_experts_output": (("aux_output_config.enable_return_routed_experts", (False, None)),),
    "cache_offload": (("cache_config.kv_offloading_size", (None,)),),
    "memory_release": (("model_config.enable_sleep_mode", (False,)),),
    "weight_offload": (
        ("offload_config.uva.cpu_offload_gb", (0,)),
        ("offload_config.prefetch.offload_group_size", (0,)),
    ),
    "state_replay": (
        ("cache_config.use_replayssm", (False,)),
        ("cache_config.use_kda_recoverssm", (False,)),
    ),
}
"""Attributes of its ``VllmConfig`` and their values where a feature is off. For what is missing here it has no such
setting: ``deterministic`` is the environment's ``VLLM_BATCH_INVARIANT``, ``compiled_decode`` its normal way of running,
and a GPU's partition shows in its SMs."""


class SglangContract(Part):
    """The part of a ``MegakernelSpec`` that a gate decides; ``build``, ``numerics`` and the HF architecture that it is
    registered for belong to the kernels."""

    api_version: int
    """Of the contract."""
    requires: dict[str, Any]
    """Fields of ``Requirements``; an empty one accepts any value."""
    features: tuple[str, ...]
    """Members of ``Feature`` that are accepted."""
    max_rows: int
    """Of the widest step."""


class VllmRefusal(Part):
    """What a start-up of vLLM has to show, or be refused."""

    setting: str
    """Attribute of ``VllmConfig``, dotted; one that is behind None, or that is not there, counts as None."""
    serves: tuple[Any, ...]
    """Values that serve; an enumeration's by their names."""
    reason: str
    """Why others do not, in one line."""


def sglang_contract(gate: Gate) -> SglangContract:
    """The gate as SGLang's megakernel contract states it.

    :raises MegatuneError: for a dtype or a feature that the contract cannot say.
    """
    unknown = [name for name in gate.features if name not in SGLANG_FEATURES]
    if unknown:
        raise MegatuneError(f"SGLang has no feature {unknown[0]!r}: make the plan without accepting it")
    return SglangContract(
        api_version=SGLANG_API_VERSION,
        requires={
            "isas": [gate.arch.rstrip("af")],
            "tp_sizes": list(gate.worlds),
            "resident_blocks": gate.resident_blocks,
            "dtypes": [_torch_dtype(name) for name in gate.dtypes],
            "decode_graph_backends": ["full" if gate.execution == "graph" else "disabled"],
            "server_args": {},
            "hf_config": {},
            "env": {},
        },
        features=tuple(SGLANG_FEATURES[name] for name in gate.features),
        max_rows=gate.max_tokens,
    )


def vllm_refusals(gate: Gate) -> tuple[VllmRefusal, ...]:
    """What the gate asks of a ``VllmConfig``: its world, dtype and graphs, and that no feature is on that it refuses.

    :raises MegatuneError: for a dtype that torch does not have.
    """
    found = []
    if gate.worlds:
        found.append(
            VllmRefusal(
                setting="parallel_config.tensor_parallel_size",
                serves=gate.worlds,
                reason=f"the plan holds for {' or '.join(map(str, gate.worlds))} ranks",
            )
        )
    found.append(
        VllmRefusal(
            setting="model_config.dtype",
            serves=tuple(f"torch.{_torch_dtype(name)}" for name in gate.dtypes),
            reason=f"the plan holds for {' and '.join(gate.dtypes)}",
        )
    )
    found.append(
        VllmRefusal(
            setting="compilation_config.cudagraph_mode",
            serves=GRAPH_MODES if gate.execution == "graph" else ("NONE",),
            reason=f"the plan was measured with steps that are launched in {gate.execution} mode",
        )
    )
    for name, settings in VLLM_FEATURES.items():
        if name not in gate.features:
            for setting, off in settings:
                reason = f"the plan was not measured with {name}: {FEATURES[name]}"
                found.append(VllmRefusal(setting=setting, serves=off, reason=reason))
    return tuple(found)


def refused(refusals: Sequence[VllmRefusal], config: Any) -> tuple[str, ...]:
    """Reasons why a ``VllmConfig`` is refused; empty where it serves."""
    return tuple(
        f"{each.setting} is {value}: {each.reason}"
        for each in refusals
        if (value := _value(config, each.setting)) not in each.serves
    )


def _value(config: Any, setting: str) -> Any:
    for name in setting.split("."):
        config = getattr(config, name, None)
    if isinstance(config, Enum):
        return config.name
    return config if isinstance(config, bool | int | float | str | None) else str(config)


def _torch_dtype(name: str) -> str:
    try:
        return TORCH_DTYPES[name]
    except KeyError:
        raise MegatuneError(f"torch has no dtype {name!r}; known are {', '.join(TORCH_DTYPES)}") from None
