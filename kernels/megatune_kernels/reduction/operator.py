"""The operator ``reduction``: the sum over ranks of a partial [tokens, width], BF16 in and out, FP32 accumulation.

Every rank has the result, with the same bits.
"""

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
from megatune_kernels.operator import Workspace
from megatune_kernels.reduction.geometry import BF16_BYTES
from megatune_kernels.reduction.geometry import FullFanout
from megatune_kernels.reduction.space import VARIANTS
from megatune_kernels.reduction.space import reduction_space
from megatune_kernels.reduction.space import tiles_of
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.target import Architecture

if TYPE_CHECKING:
    from megatune_kernels.reduction.buffers import ReductionBuffers

WIDTH_MULTIPLE = 8
"""Every row must start on a 16-byte boundary."""
MOST_WIDTH = 1 << 16
MOST_TOKENS = 512
WORLDS = range(2, 17)
ONE_HOP = ("full_fanout", "torch_one_shot")
"""Variants and baselines that send a whole partial to every peer; the others send a share of it and of the result."""


class Reduction(Operator):
    """The sum of tensor-parallel partials behind a projection, in a decode step."""

    name = "reduction"
    variants = tuple(VARIANTS)
    baselines = ("nccl", "torch_one_shot", "torch_two_shot")

    def workloads(self, model: Model, parallel: Parallel, tokens: Sequence[int]) -> list[Workload]:
        if parallel.tensor == 1:
            return []
        widths = dict.fromkeys(width for width in (model.hidden, model.latent) if width is not None)
        return [self.workload({"width": width}, count, world=parallel.tensor) for width in widths for count in tokens]

    def workload(self, dims: Mapping[str, int], tokens: int, dtype: str = "bf16", world: int = 2) -> Workload:
        if world not in WORLDS:
            raise MegatuneError(f"world={world} is impossible: a reduction has {WORLDS[0]} to {WORLDS[-1]} ranks")
        if sorted(dims) != ["width"]:
            raise MegatuneError(f"a reduction has the dim width, got {', '.join(sorted(dims)) or 'none'}")
        if not WIDTH_MULTIPLE <= dims["width"] <= MOST_WIDTH or dims["width"] % WIDTH_MULTIPLE:
            raise MegatuneError(
                f"width={dims['width']} is impossible: rows are read 16 bytes at a time, so width must be a multiple "
                f"of {WIDTH_MULTIPLE}, at most {MOST_WIDTH}"
            )
        if not 1 <= tokens <= MOST_TOKENS:
            raise MegatuneError(f"tokens={tokens} is out of range: a decode reduction has 1 to {MOST_TOKENS} tokens")
        if dtype != "bf16":
            raise MegatuneError(f"dtype {dtype!r} is not supported by reduction; allowed: bf16")
        return Workload.of(self.name, dims, tokens, dtype=dtype, world=world)

    def space(self, workload: Workload, arch: Architecture) -> Space:
        return reduction_space(workload, arch)

    def specialization(self, workload: Workload, config: Config) -> dict[str, Value]:
        return {"variant": config.variant, **asdict(tiles_of(workload, config.variant, config.params))}

    def compile(self, workload: Workload, config: Config, arch: Architecture) -> Artifact:
        from cutlass import Int32
        from cutlass import Int64
        from cutlass import cute

        from megatune_kernels.reduction import full_fanout
        from megatune_kernels.reduction import two_stage

        tiles = tiles_of(workload, config.variant, config.params)
        function = full_fanout.launch if isinstance(tiles, FullFanout) else two_stage.launch
        partial, output, heap, *peers = (Int64(0) for _ in range(2 + tiles.world))
        rank, number = Int32(0), Int32(0)
        stream = cute.runtime.make_fake_stream()
        compiled = compile_for(arch, function, partial, output, heap, peers, rank, number, stream, tiles)
        return from_compiled(compiled, artifact_key(self, workload, config, arch), arch, polls=True)

    def launch(self, workload: Workload, config: Config) -> Launch:
        return tiles_of(workload, config.variant, config.params).launch

    def workspace(self, workload: Workload, config: Config) -> Workspace:
        return tiles_of(workload, config.variant, config.params).workspace

    def cost(self, workload: Workload, config: Config) -> Cost:
        elements, world = workload.tokens * workload["width"], workload.world
        sent = elements if config.variant in ONE_HOP else -(-2 * elements // world)
        return Cost(
            memory_bytes=2 * BF16_BYTES * elements,
            link_bytes=BF16_BYTES * (world - 1) * sent,
            flops=(world - 1) * elements,
        )

    def rotating_bytes(self, workload: Workload) -> int:
        # The projection before it has just left the partial in the L2.
        return 0

    def inputs(self, workload: Workload, copies: int, seed: int) -> Any:
        raise MegatuneError("a reduction runs on a group of ranks: choose the runner group, or emulated for one GPU")

    def group_inputs(self, workload: Workload, rank: int, heaps: Sequence[int], seed: int) -> ReductionBuffers:
        from megatune_kernels.reduction.buffers import ReductionBuffers

        return ReductionBuffers(workload, rank, heaps, seed)

    def baseline(self, name: str, workload: Workload, inputs: Any, copy: int) -> None:
        if name not in self.baselines:
            raise MegatuneError(f"unknown baseline {name!r}; allowed: {', '.join(self.baselines)}")
        inputs.all_reduce(name, copy)
