"""What vLLM's own table names for a shape: asked from vLLM's own functions, as it asks them when a model is loaded."""

from __future__ import annotations

from functools import cache
from typing import Any

from megatune_kernels.errors import Unknown
from megatune_kernels.foreign import Foreign
from megatune_kernels.foreign import describe
from megatune_kernels.runtime_source import Runtime
from megatune_kernels.space import Config
from megatune_kernels.target import Architecture
from megatune_kernels.vllm_skinny_gemm import modules
from megatune_kernels.vllm_skinny_gemm.rehearsal import FIELDS
from megatune_kernels.vllm_skinny_gemm.rehearsal import Platform
from megatune_kernels.vllm_skinny_gemm.rehearsal import fields_of
from megatune_kernels.vllm_skinny_gemm.rehearsal import stage

SKINNY = "skinny"
"""The variant: vLLM's CuTe kernel."""

Served = Config | str
"""A config of the kernel, or the name of another kernel."""


def served(runtime: Runtime, arch: Architecture, n: int, k: int, tokens: int) -> Served | None:
    """What vLLM runs for a projection on an architecture; None where it leaves it to cuBLAS.

    :raises Unknown: when its table cannot be asked.
    """
    return _table(runtime, arch).get((n, k), {}).get(tokens)


def shapes(runtime: Runtime, arch: Architecture) -> dict[tuple[int, int], dict[int, Served]]:
    """The whole table: by (n, k) and tokens what runs.

    :raises Unknown: as ``served``.
    """
    return _table(runtime, arch)


@cache
def _table(runtime: Runtime, arch: Architecture) -> dict[tuple[int, int], dict[int, Served]]:
    foreign = Foreign(runtime, modules.FOLDER, given={"vllm.platforms.current_platform": Platform(arch)})
    choose, build = (foreign.need(modules.TABLE, name) for name in ("_low_latency_table", "_build_plan"))
    try:
        return {
            (int(n), int(k)): {tokens: _served(runtime, call, tokens, k) for tokens, call in build(spec).items()}
            for (n, k), spec in (choose() or {}).items()
        }
    except Unknown:
        raise
    except Exception as error:
        raise Unknown(f"the table of {describe(runtime)} cannot be read: {type(error).__name__}: {error}") from error


def _served(runtime: Runtime, call: Any, tokens: int, k: int) -> Served:
    backend, config = call
    if config is None:
        return str(backend)
    params = {name: getattr(config, name) for name in FIELDS if name not in ("num_rows", "static_k")}
    params["static_k"] = config.static_k is not None
    again = stage(runtime).config_class(**fields_of(params, tokens, k))
    if repr(again) != repr(config):
        raise Unknown(f"the table of {describe(runtime)} names {config!r}, of which Megatune knows {again!r} alone")
    return Config.of(SKINNY, params)
