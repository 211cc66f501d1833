"""The operator ``vllm-skinny-gemm``: y[tokens, n] = x[tokens, k] · w[n, k]^T by vLLM's own CuTe kernel.

vLLM is found by ``modules.py`` and never imported; ``rehearsal.py`` asks its code on the host what a launch looks like,
``table.py`` what it serves today, and ``compiling.py`` has it compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from megatune_kernels.artifact import artifact_key
from megatune_kernels.artifact import from_compiled
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import Unknown
from megatune_kernels.foreign import describe
from megatune_kernels.foreign import sources_digest
from megatune_kernels.models import Model
from megatune_kernels.models import Parallel
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Cost
from megatune_kernels.operator import Launch
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.parameters import check_compiled
from megatune_kernels.parameters import check_reads
from megatune_kernels.projection.shapes import projection_shapes
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.target import Architecture
from megatune_kernels.target import architecture
from megatune_kernels.vllm_skinny_gemm import modules
from megatune_kernels.vllm_skinny_gemm.rehearsal import rehearse
from megatune_kernels.vllm_skinny_gemm.space import LEAST_STEP
from megatune_kernels.vllm_skinny_gemm.space import MAX_TOKENS
from megatune_kernels.vllm_skinny_gemm.space import skinny_space
from megatune_kernels.vllm_skinny_gemm.table import SKINNY
from megatune_kernels.vllm_skinny_gemm.table import served

if TYPE_CHECKING:
    from megatune_kernels.projection.buffers import ProjectionBuffers

CUBLAS = "cublas"
SHIPPED = "shipped"
"""What vLLM's own table has it run: this kernel with the table's config, another kernel, or cuBLAS."""
BYTES = 2
"""Of a BF16 element."""


class VllmSkinnyGemm(Operator):
    """vLLM's skinny GEMM, of an installed vLLM or of the one that ``MEGATUNE_VLLM`` names."""

    name = "vllm-skinny-gemm"
    variants = (SKINNY,)
    baselines = (CUBLAS, SHIPPED)
    adapts = modules.DISTRIBUTION

    def workloads(self, model: Model, parallel: Parallel, tokens: Sequence[int]) -> list[Workload]:
        shapes = dict.fromkeys((shape.n, shape.k) for shape in projection_shapes(model, parallel))
        counts = [count for count in tokens if count <= MAX_TOKENS]
        # K of some shapes divides into no step that the kernel can make.
        steps = [(n, k) for n, k in shapes if k % LEAST_STEP == 0]
        return [self.workload({"n": n, "k": k}, count) for n, k in steps for count in counts]

    def workload(self, dims: Mapping[str, int], tokens: int, dtype: str = "bf16", world: int = 1) -> Workload:
        if world != 1:
            raise MegatuneError(f"world={world} is impossible: every rank runs its own share of a projection, world 1")
        if sorted(dims) != ["k", "n"] or min(dims.values()) < 1:
            raise MegatuneError(f"{self.name} has the dims n and k, got {', '.join(sorted(dims)) or 'none'}")
        if not 1 <= tokens <= MAX_TOKENS:
            raise MegatuneError(f"tokens={tokens} is out of range: vLLM's kernel takes 1 to {MAX_TOKENS} tokens")
        if dtype != "bf16":
            raise MegatuneError(f"dtype {dtype!r} is not supported by {self.name}; allowed: bf16")
        return Workload.of(self.name, dims, tokens, dtype=dtype)

    def space(self, workload: Workload, arch: Architecture) -> Space:
        return skinny_space(workload, arch, modules.vllm_here())

    def stands_for(self, workload: Workload, config: Config, arch: Architecture) -> Config:
        if config.variant != SHIPPED:
            return config
        found = served(modules.vllm_needed(), arch, workload["n"], workload["k"], workload.tokens)
        return found if isinstance(found, Config) else config

    def source_elsewhere(self) -> str:
        # The table as well: the baseline ``shipped`` is what it says.
        return sources_digest(modules.vllm_needed(), (modules.HOST, modules.KERNEL, modules.TABLE))

    def specialization(self, workload: Workload, config: Config) -> dict[str, Value]:
        params = config.params
        # N and K are told to the kernel, unless K is compiled in.
        return {**params, "num_rows": workload.tokens, "static_k": workload["k"] if params["static_k"] else 0}

    def compile(self, workload: Workload, config: Config, arch: Architecture) -> Artifact:
        from megatune_kernels.vllm_skinny_gemm.compiling import compile_kernel

        runtime, launch = modules.vllm_needed(), self.launch(workload, config)
        n, k = workload["n"], workload["k"]
        compiled = compile_kernel(runtime, config.params, workload.tokens, n, k, arch)
        artifact = from_compiled(compiled, artifact_key(self, workload, config, arch), arch)
        try:
            check_compiled(launch.parameters, artifact.cubin, artifact.entry)
            check_reads(launch.parameters, compiled.artifacts.PTX)
        except Unknown as error:
            raise Unknown(f"{modules.KERNEL} of {describe(runtime)}: {error}: nothing is launched") from error
        return artifact

    def launch(self, workload: Workload, config: Config) -> Launch:
        """:raises MegatuneError: in vLLM's words, for a config that it refuses at this shape."""
        found = rehearse(modules.vllm_needed(), config.items, workload.tokens, workload["n"], workload["k"])
        if not isinstance(found, Launch):
            raise MegatuneError(f"{workload}: {config}: {found}")
        return found

    def cost(self, workload: Workload, config: Config) -> Cost:
        n, k, tokens = workload["n"], workload["k"], workload.tokens
        return Cost(memory_bytes=BYTES * (n * k + tokens * k + tokens * n), link_bytes=0, flops=2 * tokens * n * k)

    def rotating_bytes(self, workload: Workload) -> int:
        return BYTES * workload["n"] * workload["k"]

    def inputs(self, workload: Workload, copies: int, seed: int) -> ProjectionBuffers:
        from megatune_kernels.projection.buffers import ProjectionBuffers

        return ProjectionBuffers(workload, copies, seed)

    def baseline(self, name: str, workload: Workload, inputs: Any, copy: int) -> None:
        """
        :raises NotImplementedError: where vLLM's table names a kernel that cannot be had here.
        """
        if name not in self.baselines:
            raise MegatuneError(f"unknown baseline {name!r}; allowed: {', '.join(self.baselines)}")
        if name == SHIPPED:
            import torch

            major, minor = torch.cuda.get_device_capability()
            arch = architecture(f"sm_{major}{minor}a")
            other = served(modules.vllm_needed(), arch, workload["n"], workload["k"], workload.tokens)
            if other is not None:
                what = (
                    f"{other}, which is no kernel of this operator" if isinstance(other, str) else f"{other}: launch it"
                )
                raise NotImplementedError(f"vLLM's table names {what}")
        inputs.torch_mm(copy)
