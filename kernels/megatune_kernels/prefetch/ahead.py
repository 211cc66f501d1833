"""Weights that a projection asks for before it waits for its predecessor: a prefetch into its own SMs.

With programmatic launch that is what an idle phase can be used for without a prefetch kernel: every block that is on
the GPU fills registers (``simt``) or stages in shared memory (``mma``) while it waits.
"""

from __future__ import annotations

import math

from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import WARP
from megatune_kernels.projection.geometry import Mma
from megatune_kernels.projection.geometry import Simt
from megatune_kernels.space import Config
from megatune_kernels.target import Architecture

REGISTERS = 64 << 10
THREADS = 2048
BLOCKS = 32
"""Of an SM, which are those of every architecture here: CUDA C++ programming guide, table "Technical Specifications per
Compute Capability"."""
RESERVED_BYTES = 1 << 10
"""Of shared memory, that a block takes beside its own; an SM has so much more than one block can have."""
OTHER_REGISTERS = 45
"""Beside those of operands and sums: what the space of a projection leaves."""
REGISTER_STEP = 8
"""Registers of a thread are given out in so many."""


def head_bytes(workload: Workload, config: Config) -> int:
    """Bytes at the beginning of every row that the projection asks for before it waits; 0 where they do not lie
    together."""
    if config.variant == "simt":
        simt = Simt.of(workload, config.params)
        whole = simt.split_k == 1 and simt.steps(workload["k"]) >= simt.k_unroll
        return simt.block * simt.vector * simt.k_unroll * BF16_BYTES if whole else 0
    mma = Mma.of(workload, config.params)
    elements = (mma.stages - 1) * mma.k_warps * mma.split_k * mma.stage_k
    return min(elements, workload["k"]) * BF16_BYTES


def ahead_bytes(workload: Workload, config: Config, arch: Architecture, sms: int) -> int:
    """Bytes of weights that the blocks ask for which a GPU of so many SMs holds at once, with nothing else on it."""
    launch = operator(workload.operator).launch(workload, config)
    kernel: Simt | Mma
    if config.variant == "simt":
        kernel = simt = Simt.of(workload, config.params)
        whole = simt.steps(workload["k"]) >= simt.k_unroll
        a_block = simt.block * simt.vector * simt.k_unroll * simt.rows * BF16_BYTES if whole else 0
    else:
        kernel = mma = Mma.of(workload, config.params)
        stages = min(mma.stages - 1, workload["k"] // mma.stage_k // (mma.k_warps * mma.split_k))
        a_block = stages * mma.k_warps * mma.stage_k * mma.rows * BF16_BYTES
    threads = math.prod(launch.block)
    registers = -(-(kernel.registers + OTHER_REGISTERS) // REGISTER_STEP) * REGISTER_STEP
    an_sm = min(
        BLOCKS,
        THREADS // threads,
        REGISTERS // (registers * -(-threads // WARP) * WARP),
        (arch.shared_bytes_a_block + RESERVED_BYTES) // (launch.shared_bytes + RESERVED_BYTES),
    )
    return min(min(math.prod(launch.grid), an_sm * sms) * a_block, BF16_BYTES * workload["n"] * workload["k"])
