"""Fused-MoE tables of vLLM, from plans of Triton's fused-MoE kernels (``moe_schema``).

vLLM 0.33.0 looks for ``E=…,N=…,device_name=…[,dtype=…][,block_shape=[n,k]].json`` in ``VLLM_TUNED_CONFIG_FOLDER``, with
no space in the block's shape and every H200 by one name. Keys are tokens; ``triton_version`` is the one other key that
it takes. It sets ``SPLIT_K`` to 1, and cuts ``BLOCK_SIZE_K`` to the smaller side of a scale's block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping

from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters import file_names
from megatune_planner.exporters.installed import ANY
from megatune_planner.exporters.moe_schema import Layer
from megatune_planner.exporters.moe_schema import MoeConfig
from megatune_planner.exporters.moe_table import MoeTable
from megatune_planner.exporters.moe_table import Row

FOLDER_VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"

TOKENS_AN_EXPERT = 128
"""Beyond so many on average vLLM groups tiles along M."""


class VllmMoeTable(MoeTable):
    """One file a table, as ``VLLM_TUNED_CONFIG_FOLDER`` holds them, and ``vllm_moe_table.md`` to read."""

    name = "vllm-moe-table"
    what = f"fused-MoE tables of vLLM 0.33.0, for {FOLDER_VARIABLE}"
    runtime = "vllm"
    runtime_version = "0.33.0"
    markdown_file = "vllm_moe_table.md"
    baseline = "vllm_default"
    dtypes = {  # noqa: RUF012  (nothing writes to it)
        "bf16": "",
        "fp16": "",
        "fp32": "float32",
        "fp8_w8a8": "fp8_w8a8",
        "fp8_w8a16": "fp8_w8a16",
        "int8_w8a16": "int8_w8a16",
        "int4_w4a16": "int4_w4a16",
    }
    own_notes = (
        f"Start vLLM with {FOLDER_VARIABLE} set to this folder. Triton kernels alone read it: --moe-backend triton. "
        "vLLM then logs 'Using configuration from' with the file's path; where it logs 'Using default MoE config', it "
        "asked for another file than these.",
        "E and N are those of one rank as vLLM holds them: expert parallelism, redundant experts and shared experts "
        "that are fused into the table of experts change E, and tensor parallelism changes N.",
        "Tokens that the plan leaves to stock have a row of their own, of what vLLM 0.33.0 chooses where it finds no "
        "table. A table of the same name that vLLM ships is hidden whole: nothing here was compared with it.",
        "A server with VLLM_BATCH_INVARIANT reads no table.",
    )
    relies_on = {  # noqa: RUF012  (nothing writes to it)
        "vllm/envs.py": {FOLDER_VARIABLE: ANY},
        "vllm/model_executor/layers/fused_moe/fused_moe.py": dict.fromkeys(
            ("get_config_file_name", "get_moe_configs", "get_default_config", "try_get_optimal_moe_config"), ANY
        ),
        "vllm/utils/platform_utils.py": {"get_device_name_as_file_name": ANY},
    }

    def refuse(self, layer: Layer) -> None:
        super().refuse(layer)
        if layer.block_k and not layer.block_n:
            raise MegatuneError(
                "vLLM's kernels for weights with a scale a group are others, and choose a config as they launch"
            )

    def path(self, layer: Layer, gpu: str, triton: str) -> str:
        device = file_names.device(re.sub(r"[\s/]+", "_", gpu))
        if "H200" in device.split("_"):
            device = "NVIDIA_H200"
        dtype = self.dtypes[layer.dtype]
        parts = [f"E={layer.experts}", f"N={layer.width}", f"device_name={device}"]
        parts += [f"dtype={dtype}"] if dtype else []
        parts += [f"block_shape=[{layer.block_n},{layer.block_k}]"] if layer.block else []
        return ",".join(parts) + ".json"

    def head(self, triton: str) -> Mapping[str, str]:
        return {"triton_version": triton}

    def row(self, config: MoeConfig, layer: Layer) -> Row:
        if config.SPLIT_K != 1:
            raise MegatuneError(f"vLLM runs SPLIT_K=1 whatever a table says, and the config has {config.SPLIT_K}")
        if config.USE_TMA:
            raise MegatuneError("vLLM's kernel has no USE_TMA")
        if layer.block and min(layer.block) < config.BLOCK_SIZE_K:
            raise MegatuneError(
                f"vLLM cuts BLOCK_SIZE_K={config.BLOCK_SIZE_K} to {min(layer.block)}, because of the scales' block"
            )
        return config.model_dump(exclude={"triton_version", "USE_TMA"})

    def default(self, layer: Layer, tokens: int) -> Row:
        if layer.dtype == "fp8_w8a8" and layer.block:
            block_n, block_k = layer.block
            narrow = tokens <= 8 and block_n % 64 == 0
            return _row(
                (16 if tokens <= 64 else 64, 64 if narrow else block_n, block_k),
                group=1 if tokens <= 16 else 32,
                warps=4,
                stages=4 if narrow and tokens <= 4 else 3,
            )
        return _row(
            (
                next((rows for limit, rows in ((32, 16), (96, 32), (512, 64)) if tokens <= limit), 128),
                64 if tokens <= 64 else 128,
                128 if layer.dtype == "fp8_w8a8" or tokens <= 64 else 64,
            ),
            group=16 if tokens // layer.experts > TOKENS_AN_EXPERT else 1,
            warps=4 if tokens <= 128 else 8,
            stages=4 if tokens <= 32 else 3,
        )

    def changes(self, layer: Layer) -> Iterable[int]:
        if layer.dtype == "fp8_w8a8" and layer.block:
            return (5, 9, 17, 65)
        return (33, 65, 97, 129, 513, (TOKENS_AN_EXPERT + 1) * layer.experts)


def _row(block: tuple[int, int, int], *, group: int, warps: int, stages: int) -> Row:
    sizes = dict(zip(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), block, strict=True))
    return {**sizes, "GROUP_SIZE_M": group, "num_warps": warps, "num_stages": stages, "SPLIT_K": 1}
