"""A plan's gate in the words of the runtimes: SGLang's megakernel contract, and what vLLM would have to refuse.

Facts of released wheels, sglang 0.5.23 (``sglang/kernels/plugin_kernels/nvidia/spec.py``, contract version 1) and vllm
0.33.0 (``vllm/config``); ``tests/planner/test_runtimes.py`` compares them with the wheels. ``megatune check`` prints
what a plan asks of the runtime that it is given.
"""

from __future__ import annotations

from typing import Any

from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters.installed import ANY
from megatune_planner.exporters.installed import Names
from megatune_planner.exporters.vllm_overlay.serving import FEATURES as OVERLAY_FEATURES
from megatune_planner.exporters.vllm_overlay.serving import GRAPH_MODES
from megatune_planner.features import FEATURES
from megatune_planner.gate import Gate
from megatune_planner.schema import Part

SGLANG_API_VERSION = 1

REQUIREMENTS = (
    "isas",
    "tp_sizes",
    "resident_blocks",
    "dtypes",
    "decode_graph_backends",
    "server_args",
    "hf_config",
    "env",
)
"""Fields of its ``Requirements``."""

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
    name: tuple(
        (path, tuple(dict.fromkeys((*off, None)))) for feature, path, off in OVERLAY_FEATURES if feature == name
    )
    for name, _, _ in OVERLAY_FEATURES
}
"""Attributes of its ``VllmConfig`` and their values where a feature is off, as the overlay looks at them. For what is
missing here it has no such setting: ``deterministic`` is the environment's ``VLLM_BATCH_INVARIANT``,
``compiled_decode`` its normal way of running, and a GPU's partition shows in its SMs."""

SGLANG_NAMES: Names = {
    "sglang/kernels/plugin_kernels/nvidia/spec.py": {
        "MEGAKERNEL_API_VERSION": SGLANG_API_VERSION,
        **{f"Feature.{member}": ANY for member in SGLANG_FEATURES.values()},
        **{f"Requirements.{field}": ANY for field in REQUIREMENTS},
        **{f"MegakernelSpec.{field}": ANY for field in ("requires", "features", "max_rows", "api_version")},
    }
}
"""What the contract rests on in its source."""


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
    if gate.model is not None:
        reason = f"the plan holds for {gate.model} alone, whatever folder or owner comes before the name"
        found.append(VllmRefusal(setting="model_config.model", serves=(gate.model,), reason=reason))
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


def asked_of(runtime: str, gate: Gate) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """What the gate asks of a runtime: as a document, and in lines; None for a runtime without words for it.

    :param runtime: name of the distribution.
    :raises MegatuneError: as ``sglang_contract`` and ``vllm_refusals``.
    """
    if runtime == "vllm":
        refusals = vllm_refusals(gate)
        return {"refuses": [each.model_dump(mode="json") for each in refusals]}, tuple(
            f"{each.setting} is {' or '.join(map(str, each.serves))}: {each.reason}" for each in refusals
        )
    if runtime == "sglang":
        contract = sglang_contract(gate)
        requires = (f"requires {name}: {_words(value)}" for name, value in contract.requires.items())
        rest = (f"features: {', '.join(contract.features) or 'none'}", f"max_rows: {contract.max_rows}")
        return {"megakernel": contract.model_dump(mode="json")}, (
            f"a megakernel of contract version {contract.api_version}",
            *requires,
            *rest,
        )
    return None


def _words(value: Any) -> str:
    return str(value) if isinstance(value, int) else ", ".join(map(str, value)) or "any"


def _torch_dtype(name: str) -> str:
    try:
        return TORCH_DTYPES[name]
    except KeyError:
        raise MegatuneError(f"torch has no dtype {name!r}; known are {', '.join(TORCH_DTYPES)}") from None
