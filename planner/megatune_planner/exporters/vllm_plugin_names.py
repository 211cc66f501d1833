"""What the overlay touches in vLLM's source, for looking it up before anything is installed.

The overlay itself looks at the objects in memory, in the process that it changes.
"""

from __future__ import annotations

from collections import defaultdict

from megatune_planner.exporters.installed import ANY
from megatune_planner.exporters.installed import Fields
from megatune_planner.exporters.installed import Names
from megatune_planner.exporters.installed import Takes
from megatune_planner.exporters.vllm_overlay import decode
from megatune_planner.exporters.vllm_overlay import gemm
from megatune_planner.exporters.vllm_overlay.serving import FEATURES
from megatune_planner.exporters.vllm_overlay.serving import GRAPH_MODES
from megatune_planner.exporters.vllm_overlay.tables import Projections

_CONFIGS = {
    "": ("vllm.py", "VllmConfig"),
    "parallel_config": ("parallel.py", "ParallelConfig"),
    "speculative_config": ("speculative.py", "SpeculativeConfig"),
    "aux_output_config": ("aux_output.py", "AuxOutputConfig"),
    "cache_config": ("cache.py", "CacheConfig"),
    "model_config": ("model.py", "ModelConfig"),
    "compilation_config": ("compilation.py", "CompilationConfig"),
    "offload_config": ("offload.py", "OffloadConfig"),
    "offload_config.uva": ("offload.py", "UVAOffloadConfig"),
    "offload_config.prefetch": ("offload.py", "PrefetchOffloadConfig"),
}
"""File and class of each part of vLLM's config."""

_SETTINGS = (
    *(path for _, path, _ in FEATURES),
    "additional_config",
    "parallel_config.tensor_parallel_size",
    "parallel_config.distributed_timeout_seconds",
    "parallel_config.cpu_distributed_timeout_seconds",
    *(f"model_config.{name}" for name in ("model", "dtype", "enforce_eager", "max_model_len")),
    *(f"compilation_config.{name}" for name in ("cudagraph_mode", "mode")),
)


def _path(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def joined(*every: Names) -> Names:
    """All of them; a name that two have is as the later one has it."""
    found: defaultdict[str, dict[str, object]] = defaultdict(dict)
    for names in every:
        for path, wanted in names.items():
            found[path] |= wanted
    return dict(found)


def _config_names() -> Names:
    found: defaultdict[str, dict[str, object]] = defaultdict(dict)
    for setting in _SETTINGS:
        parts = setting.split(".")
        for index, name in enumerate(parts):
            file, owner = _CONFIGS[".".join(parts[:index])]
            found[f"vllm/config/{file}"][f"{owner}.{name}"] = ANY
    return dict(found)


ENGINE = joined(
    _config_names(),
    {
        "vllm/plugins/__init__.py": {
            "DEFAULT_PLUGINS_GROUP": "vllm.general_plugins",
            "load_general_plugins": Takes(()),
        },
        "vllm/config/vllm.py": {"get_current_vllm_config_or_none": Takes(())},
        "vllm/config/__init__.py": {"get_current_vllm_config_or_none": ANY},
        "vllm/config/compilation.py": {
            **{f"CUDAGraphMode.{mode}": ANY for mode in ("NONE", *GRAPH_MODES)},
            "CompilationMode.STOCK_TORCH_COMPILE": ANY,
        },
        "vllm/envs.py": {"VLLM_BATCH_INVARIANT": ANY},
        "vllm/distributed/parallel_state.py": {
            "get_tp_group": Takes(()),
            **{f"GroupCoordinator.{name}": ANY for name in ("rank", "ranks", "world_size")},
        },
    },
)
"""For every overlay."""

GEMM: Names = {
    _path(gemm.MODULE): {
        "ProjectionSpec": Fields(Projections.SPEC),
        "SkinnyGemmConfig": ANY,
        "_build_plan": Takes(("spec",)),
        "enable_kimi_k3_low_latency_gemm": Takes(("module", "dtype")),
        # Where vLLM passes by its table, so that entries are left out.
        "KDA_PROJECTION_OVERLAP_MAX_TOKENS": 14,
        "_KDA_PACKED_SIZE": 6288,
        "_KDA_TP_SIZE": 8,
    },
}
"""For the low-latency GEMM."""

DECODE: Names = {
    _path(decode.MODULE): {
        "SpecializedDecode.__init__": Takes(("self", "backbone", "config")),
        "SpecializedDecode.plan": Takes(("self", "positions", "intermediate_tensors")),
    },
}
"""For the specialised decode."""
