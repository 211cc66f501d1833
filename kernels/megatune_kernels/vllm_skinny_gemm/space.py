"""What can be tuned of vLLM's skinny GEMM. What is legal vLLM says, where it is here; else what 0.33.0 says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from megatune_kernels.operator import Launch
from megatune_kernels.operator import Workload
from megatune_kernels.runtime_source import Runtime
from megatune_kernels.space import Constraint
from megatune_kernels.space import Parameter
from megatune_kernels.space import Params
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.space import VariantSpace
from megatune_kernels.target import Architecture
from megatune_kernels.vllm_skinny_gemm.rehearsal import WARP
from megatune_kernels.vllm_skinny_gemm.rehearsal import rehearse
from megatune_kernels.vllm_skinny_gemm.rehearsal import stage
from megatune_kernels.vllm_skinny_gemm.table import SKINNY

MAX_TOKENS = 16
LEAST_STEP = 2 * WARP
"""Elements of K in the shortest step that is in the space: K divides by it, or there is no legal config."""
STATIC_TILES = 2
"""Steps along K that vLLM 0.33.0 loads ahead where K is compiled in."""
LONGEST_BODY = 3072
"""Multiply-adds of a thread in the code of K that is compiled in, which has no loop. On an H200 the longer ones that
were measured took 1.13 to 2.8 times as long as the fastest of a dozen configs, and the longest compile for 20 s."""
OTHER_REGISTERS = 32
"""Of a thread, for addresses and loops: an estimate. vLLM's own limit of 64 has no effect beside its launch bounds."""
AXES: tuple[tuple[str, tuple[Value, ...], Value, str, bool], ...] = (
    ("block_size", (32, 64, 96, 128, 192, 224, 256), 128, "threads a block", True),
    ("outputs_per_block", (1, 2, 3, 4, 6, 8), 2, "rows of w, so outputs a token, a block", False),
    ("k_unroll", (1, 2, 4), 2, "steps along K that are unrolled", False),
    ("vector_width", (2, 4, 8), 8, "elements of a load", True),
    ("static_k", (False, True), False, "K compiled in: weights are loaded before the predecessor ends", True),
)


def skinny_space(workload: Workload, arch: Architecture, runtime: Runtime | None) -> Space:
    """The space of a workload; empty where the kernel has no legal config.

    :raises Unknown: when the kernel that is here is not as this adapter knows it.
    """
    tokens, n, k = workload.tokens, workload["n"], workload["k"]
    start = dict(stage(runtime).starts_with(tokens, n, k)) if runtime is not None else {}
    parameters = []
    for name, values, default, meaning, changes_bits in AXES:
        wanted = start.get(name, default)
        first = wanted if wanted in values and name != "static_k" else default
        parameters.append(Parameter(name, values, first, meaning, changes_bits=changes_bits))
    legal = _stated(tokens, n, k) if runtime is None else (_asked(runtime, tokens, n, k),)
    variant = VariantSpace(SKINNY, tuple(parameters), (*_sensible(tokens, k, arch), *legal))
    return Space((variant,) if variant.has_configs else ())


def _int(params: Params, name: str) -> int:
    return cast(int, params[name])


def _tile(params: Params) -> int:
    """Elements of K that a block reads in a step."""
    return _int(params, "block_size") * _int(params, "vector_width")


def _registers(params: Params, tokens: int) -> int:
    """Of a thread, at least: a sum for each token and output, two elements of a step's operands in one."""
    outputs = _int(params, "outputs_per_block")
    return tokens * outputs + (tokens + outputs) * _int(params, "vector_width") // 2 + OTHER_REGISTERS


def _sensible(tokens: int, k: int, arch: Architecture) -> Sequence[Constraint]:
    """What vLLM takes and what cannot be faster than another config."""
    return (
        Constraint(
            "unroll",
            "unrolling beyond the steps along K does nothing, and K that is compiled in is unrolled whole",
            lambda p: (
                p["k_unroll"] == 1 if p["static_k"] else _int(p, "k_unroll") * _tile(p) <= k or p["k_unroll"] == 1
            ),
        ),
        Constraint(
            "registers",
            "sums and a step's operands must fit the registers of a thread, or they spill to memory",
            lambda p: _registers(p, tokens) <= arch.registers_a_thread,
        ),
        Constraint(
            "body",
            "K that is compiled in is unrolled whole: a body that is too long is fetched for longer than it computes",
            lambda p: (
                not p["static_k"] or tokens * _int(p, "outputs_per_block") * k <= LONGEST_BODY * _int(p, "block_size")
            ),
        ),
        Constraint(
            "wide",
            "loads of 4 bytes put less in flight: only where K does not divide into wider ones for a warp",
            lambda p: _int(p, "vector_width") > 2 or k % (4 * WARP) != 0,
        ),
    )


def _asked(runtime: Runtime, tokens: int, n: int, k: int) -> Constraint:
    return Constraint(
        "vllm",
        "vLLM's own function refuses the config at this shape",
        lambda p: isinstance(rehearse(runtime, tuple(sorted(p.items())), tokens, n, k), Launch),
    )


def _stated(tokens: int, n: int, k: int) -> Sequence[Constraint]:
    """What vLLM 0.33.0 refuses, for replays where there is no vLLM; a test compares it with vLLM's own answers."""
    return (
        Constraint("tokens", f"rows of x are unrolled: 1 to {MAX_TOKENS} of them", lambda p: 1 <= tokens <= MAX_TOKENS),
        Constraint("rows", "a block writes all of its outputs", lambda p: n % _int(p, "outputs_per_block") == 0),
        Constraint("steps", "K must be whole steps: loads have no tail", lambda p: k % _tile(p) == 0),
        Constraint("warps", "threads are summed up warp by warp", lambda p: _int(p, "block_size") % WARP == 0),
        Constraint(
            "prefetch",
            f"where K is compiled in, {STATIC_TILES} steps are loaded ahead",
            lambda p: not p["static_k"] or k >= STATIC_TILES * _tile(p),
        ),
    )
