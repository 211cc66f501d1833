"""Compiles vLLM's kernel as vLLM does: its own function makes the kernel, the tensors and the options.

Imports the DSL.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

from cutlass import cute

from megatune_kernels.artifact import compile_for
from megatune_kernels.errors import Unknown
from megatune_kernels.foreign import Foreign
from megatune_kernels.foreign import describe
from megatune_kernels.runtime_source import Runtime
from megatune_kernels.space import Params
from megatune_kernels.target import Architecture
from megatune_kernels.vllm_skinny_gemm import modules
from megatune_kernels.vllm_skinny_gemm.rehearsal import Operand
from megatune_kernels.vllm_skinny_gemm.rehearsal import Platform
from megatune_kernels.vllm_skinny_gemm.rehearsal import fields_of

NOT_OF_THE_KERNEL = ("--enable-tvm-ffi",)
"""Options that say how Python calls the host's side of a kernel."""


def compile_kernel(runtime: Runtime, params: Params, tokens: int, n: int, k: int, arch: Architecture) -> Any:
    """What ``cute.compile`` gives for a config, with the options that vLLM gives it.

    :raises Unknown: when vLLM's kernel is not as this adapter knows it.
    """
    asked: list[tuple[Any, tuple[Any, ...], str]] = []

    def keep(kernel: Any, *arguments: Any, options: str = "") -> Any:
        asked.append((kernel, arguments, options))
        return lambda *_: None

    foreign = Foreign(
        runtime,
        modules.FOLDER,
        given={
            modules.KERNEL: _kernel_module(runtime),
            "torch.empty": lambda shape, dtype, device: Operand(shape, 2, dtype, device),
            "vllm.platforms.current_platform": Platform(arch),
            "quack.compile_utils.make_fake_tensor": _fake,
            "cutlass.cute.compile": keep,
            "cuda.bindings.driver.CUstream": lambda _: cute.runtime.make_fake_stream(),
        },
        real=("cutlass",),
    )
    gemm = foreign.need(modules.HOST, "ShapeDynamicSkinnyGemm")()
    config = foreign.need(modules.HOST, "SkinnyGemmConfig")(**fields_of(params, tokens, k))
    bf16, device = foreign.find("torch.bfloat16"), object()
    gemm(Operand((tokens, k), 0, bf16, device), Operand((n, k), 1, bf16, device), config)
    if len(asked) != 1:
        raise Unknown(f"{describe(runtime)} compiles {len(asked)} kernels for one config, Megatune knows of 1")
    kernel, arguments, options = asked[0]
    kept = " ".join(option for option in options.split() if option not in NOT_OF_THE_KERNEL)
    with warnings.catch_warnings():
        # Of what vLLM calls in the DSL, which is not for Megatune's user to mend.
        warnings.simplefilter("ignore", DeprecationWarning)
        return compile_for(arch, kernel, *arguments, options=kept)


@cache
def _kernel_module(runtime: Runtime) -> ModuleType:
    return Foreign(runtime, modules.FOLDER, real=("cutlass", "cuda")).module(modules.KERNEL)


def _fake(dtype: Any, shape: Sequence[Any], divisibility: int = 1, leading_dim: int = -1) -> Any:
    """Stands for quack's function of this name: strides are symbols of 64 bits, but for that of the leading mode."""
    leading = leading_dim % len(shape)
    strides = tuple(1 if mode == leading else cute.sym_int64(divisibility=divisibility) for mode in range(len(shape)))
    align = max(1, divisibility * dtype.width // 8)
    return cute.runtime.make_fake_tensor(dtype, shape, stride=strides, assumed_align=align)
