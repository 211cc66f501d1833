"""What serves here, in the words of a plan's gate. Asked once the engine has chosen its GPU and knows its config."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import reduce
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import driver
from .agreement import WAIT_S
from .agreement import Alone
from .agreement import Meeting
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


COLLECTIVE_S = 600.0
"""Seconds that NCCL's collectives wait where vLLM's config does not say: torch's default."""

WAIT = "MEGATUNE_PLAN_WAIT_S"
"""Environment variable: seconds to wait for ranks that have not come yet."""

KEY = "MEGATUNE_PLAN_KEY"
"""Environment variable: the public key that must have signed the plan, 64 hexadecimal digits or a file with it."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""The same for all that one running kernel holds, containers too."""


def target(links: str) -> dict[str, dict[str, Any]]:
    """Hardware and toolchain of this process's GPU.

    :param links: how the ranks reach one another.
    :raises Exception: whatever keeps torch or the driver from telling.
    """
    torch, index, properties = _device()
    found = driver.gpu(str(properties.uuid))
    try:
        dsl = version("nvidia-cutlass-dsl")
    except PackageNotFoundError:
        dsl = "none"
    return {
        "hardware": {
            "gpu": properties.name,
            "arch": f"sm_{properties.major}{properties.minor}a",
            "device_id": found.device_id,
            "sms": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "memory_bytes": torch.cuda.mem_get_info(index)[1],
            "links": links,
        },
        "toolchain": {
            "driver": found.driver,
            "cuda": str(torch.version.cuda),
            "dsl": dsl,
            "torch": torch.__version__,
        },
    }


def _device() -> tuple[Any, int, Any]:
    """torch, and the number and properties of this process's GPU."""
    torch = import_module("torch")
    index = torch.cuda.current_device()
    return torch, index, torch.cuda.get_device_properties(index)


def whereabouts() -> str:
    """Which machine and which GPU this rank is on, for the others."""
    _, _, properties = _device()
    return json.dumps([_BOOT.read_text().strip(), driver.gpu(str(properties.uuid)).place])


def links(ranks: Sequence[str]) -> tuple[str, bool]:
    """How this rank reaches the others, in the words of a plan's target, and whether they are on several machines.

    :param ranks: the whereabouts of all of them.
    """
    machines = {json.loads(each)[0] for each in ranks}
    if len(ranks) == 1:
        return "none", False
    if len(machines) > 1:
        return "unknown", True
    _, _, properties = _device()
    uuid = str(properties.uuid)
    here = driver.gpu(uuid).place
    places = [(domain, bus, device) for _, (domain, bus, device) in map(json.loads, ranks)]
    peers = [place for place in places if place != here]
    if len(peers) != len(ranks) - 1:
        raise Differs("two ranks are on one GPU")
    count = driver.links_to(uuid, peers)
    return f"nvlink-{count}" if count else "pcie", False


def meeting(name: str) -> Meeting | Alone:
    """Where the ranks of the tensor-parallel group agree.

    :param name: of what they agree on.
    """
    group = import_module("vllm.distributed.parallel_state").get_tp_group()
    if group.world_size == 1:
        return Alone()
    store = import_module("torch.distributed.distributed_c10d")._get_default_store()
    return Meeting(store, name, tuple(group.ranks), group.rank)


def wait_s(config: Any) -> float:
    """Seconds to wait for other ranks: no longer than half of what a collective waits, which they may be in already.

    :raises Differs: where the environment asks for what is no time.
    """
    asked = os.environ.get(WAIT)
    try:
        wait = WAIT_S if asked is None else float(asked)
    except ValueError:
        wait = 0.0
    if not wait > 0:
        raise Differs(f"{WAIT}={asked} is no number of seconds")
    parallel = config.parallel_config
    limits = (parallel.distributed_timeout_seconds, parallel.cpu_distributed_timeout_seconds, COLLECTIVE_S)
    return min(wait, *(limit / 2 for limit in limits if limit is not None))


def trusted_key() -> str | None:
    """The public key that must have signed the plan; None where any plan may serve.

    :raises Differs: when it cannot be read.
    """
    given = os.environ.get(KEY)
    if given is None or len(given) == 64:
        return given
    try:
        return Path(given).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise Differs(f"{KEY} is neither 64 hexadecimal digits nor a file that can be read: {error}") from None


def deployment(config: Any, *, several_machines: bool) -> dict[str, Any]:
    """What is served and how.

    :param config: vLLM's ``VllmConfig``.
    :param several_machines: whether the ranks are on more than one, whatever the config says.
    :raises AttributeError: where it has no such name, None among them: a plan holds for nothing that is not known.
    """
    model, compilation = config.model_config, config.compilation_config
    execution = _execution("NONE" if model.enforce_eager else compilation.cudagraph_mode.name)
    features = {name for name, path, off in FEATURES if _setting(config, path) not in (*off, None)}
    if import_module("vllm.envs").VLLM_BATCH_INVARIANT:
        features.add("deterministic")
    if several_machines:
        features.add("multi_node")
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
