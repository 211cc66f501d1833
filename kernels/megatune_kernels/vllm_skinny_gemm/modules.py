"""Where vLLM is, and the names of what is used of it: vLLM 0.33.0 has all of them."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import Unknown
from megatune_kernels.foreign import describe
from megatune_kernels.foreign import path_of
from megatune_kernels.runtime_source import Runtime
from megatune_kernels.runtime_source import installed
from megatune_kernels.runtime_source import runtimes_at

DISTRIBUTION = "vllm"
ENVIRONMENT = "MEGATUNE_VLLM"
"""Names a site-packages folder, an unpacked wheel or a wheel that has vLLM; without it the installed one is used."""

FOLDER = "vllm.model_executor.kernels.linear.cute_dsl"
HOST = f"{FOLDER}.skinny_gemm"
"""What checks, compiles and launches."""
KERNEL = f"{FOLDER}._skinny_gemm"
"""What runs on the GPU, and its launch."""
TABLE = "vllm.models.kimi_k3.nvidia.low_latency_gemm"
"""Which config, or which other kernel, serves a shape."""


def vllm_here() -> Runtime | None:
    """The vLLM that is tuned; None where there is none.

    :raises MegatuneError: when the environment names a place without it.
    :raises Unknown: when it has not the kernel.
    """
    return _vllm(os.environ.get(ENVIRONMENT))


@cache
def _vllm(named: str | None) -> Runtime | None:
    try:
        runtime = runtimes_at(Path(named), ((DISTRIBUTION, "vllm"),))[0] if named else installed(DISTRIBUTION)
    except PackageNotFoundError:
        return None
    except MegatuneError as error:
        raise MegatuneError(f"{ENVIRONMENT}: {error}") from None
    for module in (HOST, KERNEL):
        if runtime.read(path_of(module)) is None:
            raise Unknown(
                f"{describe(runtime)} has no {path_of(module)}: name one that has the kernel in {ENVIRONMENT}"
            )
    return runtime


def vllm_needed() -> Runtime:
    """The vLLM that is tuned.

    :raises MegatuneError: when there is none.
    """
    runtime = vllm_here()
    if runtime is None:
        raise MegatuneError(
            f"there is no vLLM here whose kernel could be built: pip install vllm, or name an unpacked wheel in "
            f"{ENVIRONMENT}"
        )
    return runtime
