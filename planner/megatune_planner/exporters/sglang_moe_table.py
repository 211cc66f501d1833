"""Fused-MoE tables of SGLang, from plans of Triton's fused-MoE kernels (``moe_schema``).

SGLang 0.5.23 looks for ``configs/triton_X_Y_Z/E=…,N=…,device_name=…[,dtype=…][,block_shape=[n, k]].json`` in
``SGLANG_MOE_CONFIG_DIR``, with a space in the block's shape and each GPU by its own name. Every key must be tokens. Its
kernel cannot split K, and a row that names ``SPLIT_K`` stops it. N is counted as weights are stored: two of 4 bits are
one.
"""

from __future__ import annotations

from collections.abc import Iterable

from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters import file_names
from megatune_planner.exporters.installed import ANY
from megatune_planner.exporters.moe_schema import Layer
from megatune_planner.exporters.moe_schema import MoeConfig
from megatune_planner.exporters.moe_table import MoeTable
from megatune_planner.exporters.moe_table import Row

FOLDER_VARIABLE = "SGLANG_MOE_CONFIG_DIR"

_SIZES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")


class SglangMoeTable(MoeTable):
    """One file a table below ``configs/triton_X_Y_Z``, and ``sglang_moe_table.md`` to read."""

    name = "sglang-moe-table"
    what = f"fused-MoE tables of SGLang 0.5.23, for {FOLDER_VARIABLE}"
    runtime = "sglang"
    runtime_version = "0.5.23"
    markdown_file = "sglang_moe_table.md"
    baseline = "sglang_default"
    dtypes = {  # noqa: RUF012  (nothing writes to it)
        "bf16": "",
        "fp16": "",
        "fp32": "float32",
        "fp8_w8a8": "fp8_w8a8",
        "int8_w8a8": "int8_w8a8",
        "int8_w8a16": "int8_w8a16",
        "int4_w4a16": "int4_w4a16",
    }
    own_notes = (
        f"Start SGLang with {FOLDER_VARIABLE} set to this folder. It then reads no other: tables that SGLang ships for "
        "other models are hidden, so keep one folder a server.",
        "Triton kernels alone read it: --moe-runner-backend triton. SGLang then logs 'Using MoE kernel config from' "
        "with the file's path; where it logs 'Using default MoE kernel config', it asked for another file than these. "
        "Under another Triton it takes the file all the same, and warns.",
        "E and N are those of one rank as SGLang holds them: expert parallelism, redundant experts and fused shared "
        "experts change E, and tensor parallelism changes N. Scales a channel have tables of their own.",
        "Tokens that the plan leaves to stock have a row of their own, of what SGLang 0.5.23 chooses where it finds no "
        "table. A table of the same name that SGLang ships is hidden whole: nothing here was compared with it.",
        "Both GEMMs of a layer read the file: there is none with _down in its name. A server with deterministic "
        "inference reads no table.",
    )
    relies_on = {  # noqa: RUF012  (nothing writes to it)
        "sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py": dict.fromkeys(
            ("get_config_file_name", "get_moe_configs", "get_default_config", "try_get_optimal_moe_config"), ANY
        ),
    }

    def path(self, layer: Layer, gpu: str, triton: str) -> str:
        width = layer.width // 2 if layer.dtype == "int4_w4a16" else layer.width
        dtype = self.dtypes[layer.dtype]
        parts = [f"E={layer.experts}", f"N={width}", f"device_name={file_names.device(gpu.replace(' ', '_'))}"]
        parts += [f"dtype={dtype}"] if dtype else []
        parts += [f"block_shape=[{layer.block_n}, {layer.block_k}]"] if layer.block else []
        return f"configs/triton_{triton.replace('.', '_')}/{','.join(parts)}.json"

    def row(self, config: MoeConfig, layer: Layer) -> Row:
        if config.SPLIT_K != 1:
            raise MegatuneError(f"SGLang's kernel cannot split K, and the config has SPLIT_K={config.SPLIT_K}")
        if layer.block and layer.block_k % config.BLOCK_SIZE_K:
            raise MegatuneError(
                f"SGLang's kernel takes one scale a step of K, and BLOCK_SIZE_K={config.BLOCK_SIZE_K} does not divide "
                f"the scales' block of {layer.block_k}"
            )
        row = config.model_dump(exclude={"triton_version", "SPLIT_K", "USE_TMA"})
        return row | ({"USE_TMA": True} if config.USE_TMA else {})

    def default(self, layer: Layer, tokens: int) -> Row:
        few = tokens <= layer.experts
        if layer.dtype != "fp8_w8a8":
            # Without warps and stages: Triton's own.
            return dict(zip(_SIZES, (16, 32, 64, 1) if few else (64, 64, 32, 8), strict=False))
        if layer.block:
            return dict(zip(_SIZES, (64, *layer.block, 32, 4, 3), strict=True))
        return dict(zip(_SIZES, (64, 128, 128, 1, 4, 4) if few else (128, 256, 128, 32, 8, 4), strict=True))

    def changes(self, layer: Layer) -> Iterable[int]:
        return (layer.experts + 1,)
