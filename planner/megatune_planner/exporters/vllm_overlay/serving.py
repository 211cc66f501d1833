"""What serves here, in the words of a plan's gate. Asked once the engine has chosen its GPU and knows its config."""

from __future__ import annotations

import ctypes
from functools import reduce
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
from typing import Any

from .tables import Differs

DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}

FEATURES: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("pipeline_parallel", "parallel_config.pipeline_parallel_size", (1,)),
    ("multi_node", "parallel_config.nnodes", (1,)),
    ("data_parallel_attention", "parallel_config.data_parallel_size", (1,)),
    ("expert_parallel", "parallel_config.enable_expert_parallel", (False,)),
    ("expert_balancing", "parallel_config.enable_eplb", (False,)),
    ("context_parallel", "parallel_config.decode_context_parallel_size", (1,)),
    ("context_parallel", "parallel_config.prefill_context_parallel_size", (1,)),
    ("batch_overlap", "parallel_config.use_ubatching", (False,)),
    ("speculative_decoding", "speculative_config", (None,)),
    ("ragged_verification", "speculative_config.enable_adaptive_verification", (False,)),
    ("lora", "lora_config", (None,)),
    ("disaggregation", "kv_transfer_config", (None,)),
    ("routed_experts_output", "aux_output_config.enable_return_routed_experts", (False,)),
    ("cache_offload", "cache_config.kv_offloading_size", (None, 0)),
    ("state_replay", "cache_config.use_replayssm", (False,)),
    ("state_replay", "cache_config.use_kda_recoverssm", (False,)),
    ("memory_release", "model_config.enable_sleep_mode", (False,)),
    ("weight_offload", "offload_config.uva.cpu_offload_gb", (0,)),
    ("weight_offload", "offload_config.prefetch.offload_group_size", (0,)),
)
"""Names of features, where vLLM's config says that one is on, and what it says where it is off. A part of the config
that is None has none of its features."""

GRAPH_MODES = ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
"""vLLM's ``CUDAGraphMode`` of which decode steps are whole graphs, as they were measured."""


class _Pci(ctypes.Structure):
    """``nvmlPciInfo_t``."""

    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_and_vendor", ctypes.c_uint),
        ("subsystem", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


def target(links: str) -> dict[str, dict[str, Any]]:
    """Hardware and toolchain of this process's GPU.

    :param links: how the ranks reach one another.
    :raises Exception: whatever keeps torch or the driver from telling.
    """
    torch = import_module("torch")
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    driver, device_id = _driver(str(properties.uuid))
    try:
        dsl = version("nvidia-cutlass-dsl")
    except PackageNotFoundError:
        dsl = "none"
    return {
        "hardware": {
            "gpu": properties.name,
            "arch": f"sm_{properties.major}{properties.minor}a",
            "device_id": device_id,
            "sms": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "memory_bytes": torch.cuda.mem_get_info(index)[1],
            "links": links,
        },
        "toolchain": {
            "driver": driver,
            "cuda": str(torch.version.cuda),
            "dsl": dsl,
            "torch": torch.__version__,
        },
    }


def _driver(uuid: str) -> tuple[str, str]:
    """Version of the driver, and the PCI device id of the GPU of that UUID: NVML knows both, torch neither."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")

    def call(name: str, *arguments: Any) -> None:
        error = getattr(nvml, name)(*arguments)
        if error:
            raise RuntimeError(f"{name} answers {error}")

    call("nvmlInit_v2")
    try:
        text = ctypes.create_string_buffer(96)
        call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(len(text)))
        handle, pci = ctypes.c_void_p(), _Pci()
        call("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(handle))
        call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        # The vendor is in the lower half of the word.
        return text.value.decode(), f"{pci.device_and_vendor >> 16:04x}"
    finally:
        nvml.nvmlShutdown()


def deployment(config: Any) -> dict[str, Any]:
    """What is served and how.

    :param config: vLLM's ``VllmConfig``.
    :raises AttributeError: where it has no such name, None among them: a plan holds for nothing that is not known.
    """
    model, compilation = config.model_config, config.compilation_config
    execution = _execution("NONE" if model.enforce_eager else compilation.cudagraph_mode.name)
    features = {name for name, path, off in FEATURES if _setting(config, path) not in (*off, None)}
    if import_module("vllm.envs").VLLM_BATCH_INVARIANT:
        features.add("deterministic")
    if compilation.mode is not None and compilation.mode.name == "STOCK_TORCH_COMPILE":
        features.add("compiled_decode")
    return {
        "model": str(model.model),
        "world": config.parallel_config.tensor_parallel_size,
        "dtype": DTYPES.get(str(model.dtype), str(model.dtype)),
        "execution": execution,
        "features": sorted(features),
        "max_context_tokens": model.max_model_len,
    }


def _execution(mode: str) -> str:
    """In a plan's words, or in vLLM's own where a plan has none: such a step was never measured."""
    return "graph" if mode in GRAPH_MODES else "eager" if mode == "NONE" else mode.lower()


def _setting(config: Any, path: str) -> Any:
    return reduce(lambda part, name: None if part is None else getattr(part, name), path.split("."), config)


def current_config() -> Any:
    """vLLM's config.

    :raises Differs: where vLLM does not say for which it works.
    """
    found = import_module("vllm.config").get_current_vllm_config_or_none()
    if found is None:
        raise Differs("vLLM does not say for which config it works")
    return found


def additional_config(config: Any) -> dict[str, Any]:
    found = getattr(config, "additional_config", None)
    return found if isinstance(found, dict) else {}
