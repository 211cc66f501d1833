"""The operator ``projection``: y[tokens, n] = x[tokens, k] · w[n, k]^T, BF16 in and out, FP32 accumulation."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING
from typing import Any

from megatune_kernels.artifact import artifact_key
from megatune_kernels.artifact import compile_for
from megatune_kernels.artifact import from_compiled
from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Model
from megatune_kernels.models import Parallel
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Cost
from megatune_kernels.operator import Launch
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import COPY_BYTES
from megatune_kernels.projection.geometry import Mma
from megatune_kernels.projection.geometry import Simt
from megatune_kernels.projection.shapes import projection_shapes
from megatune_kernels.projection.space import MMA_TOKENS
from megatune_kernels.projection.space import projection_space
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.target import Architecture

if TYPE_CHECKING:
    from megatune_kernels.projection.buffers import ProjectionBuffers

DIMS = ("k", "n")
LARGEST_DIM = 2**31 - 1
K_MULTIPLE = COPY_BYTES // BF16_BYTES
"""Every row of x and w must start on a 16-byte boundary."""


def _kernel(workload: Workload, config: Config) -> Simt | Mma:
    return (Simt if config.variant == "simt" else Mma).of(workload, config.params)


class Projection(Operator):
    """Dense projections of a decode step, one rank's share."""

    name = "projection"
    variants = ("simt", "mma")
    baselines = ("cublas",)

    def workloads(self, model: Model, parallel: Parallel, tokens: Sequence[int]) -> list[Workload]:
        shapes = dict.fromkeys((shape.n, shape.k) for shape in projection_shapes(model, parallel))
        return [self.workload({"n": n, "k": k}, count) for n, k in shapes for count in tokens]

    def workload(self, dims: Mapping[str, int], tokens: int, dtype: str = "bf16", world: int = 1) -> Workload:
        if world != 1:
            raise MegatuneError(f"world={world} is impossible: every rank runs its own share of a projection, world 1")
        if sorted(dims) != list(DIMS):
            raise MegatuneError(f"a projection has the dims n and k, got {', '.join(sorted(dims)) or 'none'}")
        if not 1 <= dims["n"] <= LARGEST_DIM or dims["k"] > LARGEST_DIM:
            raise MegatuneError(
                f"n={dims['n']}, k={dims['k']} is impossible: a projection has 1 to {LARGEST_DIM} outputs and inputs, "
                "which kernels count in 32 bits"
            )
        if dims["k"] < K_MULTIPLE or dims["k"] % K_MULTIPLE:
            raise MegatuneError(
                f"k={dims['k']} is impossible: rows are read 16 bytes at a time, so k must be a "
                f"multiple of {K_MULTIPLE}"
            )
        if not 1 <= tokens <= MMA_TOKENS:
            raise MegatuneError(f"tokens={tokens} is out of range: a decode projection has 1 to {MMA_TOKENS} tokens")
        if dtype != "bf16":
            raise MegatuneError(f"dtype {dtype!r} is not supported by projection; allowed: bf16")
        return Workload.of(self.name, dims, tokens, dtype=dtype)

    def space(self, workload: Workload, arch: Architecture) -> Space:
        return projection_space(workload, arch)

    def specialization(self, workload: Workload, config: Config) -> dict[str, Value]:
        return {"variant": config.variant, **asdict(_kernel(workload, config))}

    def compile(self, workload: Workload, config: Config, arch: Architecture) -> Artifact:
        from cutlass import BFloat16
        from cutlass import Int32
        from cutlass import cute

        from megatune_kernels.projection import mma
        from megatune_kernels.projection import simt

        kernel = _kernel(workload, config)
        function = simt.launch if isinstance(kernel, Simt) else mma.launch
        pointers = [
            cute.runtime.make_ptr(BFloat16, COPY_BYTES, cute.AddressSpace.gmem, assumed_align=COPY_BYTES)
            for _ in range(3)
        ]
        scalars = [Int32(1) for _ in kernel.launch(workload).scalars]
        stream = cute.runtime.make_fake_stream()
        compiled = compile_for(arch, function, *pointers, *scalars, stream, kernel)
        return from_compiled(compiled, artifact_key(self, workload, config, arch), arch)

    def launch(self, workload: Workload, config: Config) -> Launch:
        return _kernel(workload, config).launch(workload)

    def cost(self, workload: Workload, config: Config) -> Cost:
        n, k, tokens = workload["n"], workload["k"], workload.tokens
        return Cost(memory_bytes=BF16_BYTES * (n * k + tokens * k + tokens * n), link_bytes=0, flops=2 * tokens * n * k)

    def rotating_bytes(self, workload: Workload) -> int:
        return BF16_BYTES * workload["n"] * workload["k"]

    def inputs(self, workload: Workload, copies: int, seed: int) -> ProjectionBuffers:
        from megatune_kernels.projection.buffers import ProjectionBuffers

        return ProjectionBuffers(workload, copies, seed)

    def baseline(self, name: str, workload: Workload, inputs: Any, copy: int) -> None:
        if name not in self.baselines:
            raise MegatuneError(f"unknown baseline {name!r}; allowed: {', '.join(self.baselines)}")
        inputs.torch_mm(copy)
