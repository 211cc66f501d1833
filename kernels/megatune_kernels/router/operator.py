"""The operator ``router_front``: logits of x [tokens, k] times the router [experts, k], which experts each token goes
to, and the rank's rows of the latent that those experts read, from one packed matrix.

A token's score of an expert is the sigmoid of its logit; the ``top`` of score plus bias are chosen, equal ones by the
lower id; their weights are the scores without bias, divided by their sum. Every rank has the same ids and weights.
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
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import PADDED_TOKENS
from megatune_kernels.projection.geometry import TILE_K
from megatune_kernels.projection.geometry import WARP
from megatune_kernels.router.geometry import LANE_STRIDE
from megatune_kernels.router.geometry import QUAD
from megatune_kernels.router.geometry import REDUNDANT
from megatune_kernels.router.geometry import SPLIT
from megatune_kernels.router.geometry import Front
from megatune_kernels.router.geometry import weight_bytes
from megatune_kernels.router.space import front_space
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.target import Architecture

if TYPE_CHECKING:
    from megatune_kernels.router.buffers import FrontBuffers

DIMS = ("experts", "k", "latent", "top")
MOST_EXPERTS = 1024
"""More do not fit the registers of the warp that chooses among them."""
MOST_DIM = 1 << 20
WORLDS = range(1, 17)


class RouterFront(Operator):
    """What a decode layer computes before its routed experts, one rank's share."""

    name = "router_front"
    variants = (REDUNDANT, SPLIT)
    baselines = ("torch",)
    waits = True

    def workloads(self, model: Model, parallel: Parallel, tokens: Sequence[int]) -> list[Workload]:
        """On one GPU, where every rank computes all rows; and of a group, whose ranks can share them.

        None for a model that scores otherwise, or whose router looks at groups of experts: kernels of this operator do
        not.
        """
        router = model.router
        if router.scoring != "sigmoid" or (router.groups or 1) != 1 or model.experts % LANE_STRIDE:
            return []
        if (model.latent or 0) % (QUAD * parallel.tensor):
            raise MegatuneError(
                f"{model.latent} rows of the latent cannot be shared by {parallel.tensor} ranks in fours: choose "
                "another tensor_parallel"
            )
        dims = {
            "experts": model.experts,
            "k": model.hidden,
            "latent": (model.latent or 0) // parallel.tensor,
            "top": model.top_k,
        }
        worlds = dict.fromkeys((1, parallel.tensor))
        return [self.workload(dims, count, world=world) for world in worlds for count in tokens]

    def workload(self, dims: Mapping[str, int], tokens: int, dtype: str = "bf16", world: int = 1) -> Workload:
        if sorted(dims) != list(DIMS):
            raise MegatuneError(
                f"a router front has the dims {', '.join(DIMS)}, got {', '.join(sorted(dims)) or 'none'}"
            )
        experts, k, latent, top = (dims[name] for name in DIMS)
        if not LANE_STRIDE <= experts <= MOST_EXPERTS or experts % LANE_STRIDE:
            raise MegatuneError(
                f"experts={experts} is impossible: a warp reads {LANE_STRIDE} logits at a time, so experts must be a "
                f"multiple of {LANE_STRIDE}, at most {MOST_EXPERTS}"
            )
        if not 1 <= top <= WARP:
            raise MegatuneError(f"top={top} is out of range: 1 to {WARP} experts, one a lane")
        if not TILE_K <= k <= MOST_DIM or k % TILE_K:
            raise MegatuneError(f"k={k} is impossible: k must be a multiple of {TILE_K}, at most {MOST_DIM}")
        if not 0 <= latent <= MOST_DIM or latent % QUAD:
            raise MegatuneError(
                f"latent={latent} is impossible: four rows are stored at a time, so latent must be a multiple of "
                f"{QUAD}, at most {MOST_DIM}"
            )
        if not 1 <= tokens <= max(PADDED_TOKENS):
            raise MegatuneError(f"tokens={tokens} is out of range: a router front has 1 to {max(PADDED_TOKENS)} tokens")
        if dtype != "bf16":
            raise MegatuneError(f"dtype {dtype!r} is not supported by router_front; allowed: bf16")
        if world not in WORLDS:
            raise MegatuneError(f"world={world} is impossible: a router front has 1 to {WORLDS[-1]} ranks")
        return Workload.of(self.name, dims, tokens, dtype=dtype, world=world)

    def space(self, workload: Workload, arch: Architecture) -> Space:
        return front_space(workload, arch)

    def specialization(self, workload: Workload, config: Config) -> dict[str, Value]:
        return dict(asdict(Front.of(workload, config.variant, config.params)))

    def compile(self, workload: Workload, config: Config, arch: Architecture) -> Artifact:
        from cutlass import Int32
        from cutlass import Int64
        from cutlass import cute

        from megatune_kernels.router import front

        kernel = Front.of(workload, config.variant, config.params)
        addresses = [Int64(0) for _ in range(6)]
        heaps = [Int64(0) for _ in range(workload.world)]
        stream = cute.runtime.make_fake_stream()
        compiled = compile_for(arch, front.launch, *addresses, heaps, Int32(1), Int32(0), Int32(0), stream, kernel)
        return from_compiled(compiled, artifact_key(self, workload, config, arch), arch, polls=True)

    def launch(self, workload: Workload, config: Config) -> Launch:
        return Front.of(workload, config.variant, config.params).launch(workload.tokens)

    def workspace(self, workload: Workload, config: Config) -> Workspace:
        """On one GPU too, where it is part of the operands that are measured with."""
        return Front.of(workload, config.variant, config.params).workspace

    def cost(self, workload: Workload, config: Config) -> Cost:
        tokens, k, experts, latent = workload.tokens, workload["k"], workload["experts"], workload["latent"]
        splits = config.variant == SPLIT
        rows = (experts // workload.world if splits else experts) + latent
        sent = FP32_BYTES * tokens * (experts // workload.world) * (workload.world - 1) if splits else 0
        return Cost(
            memory_bytes=BF16_BYTES * (rows * k + tokens * (k + latent)), link_bytes=sent, flops=2 * tokens * rows * k
        )

    def rotating_bytes(self, workload: Workload) -> int:
        return weight_bytes(workload)

    def inputs(self, workload: Workload, copies: int, seed: int) -> FrontBuffers:
        from megatune_kernels.router.buffers import FrontBuffers

        return FrontBuffers(workload, copies, seed)

    def group_inputs(self, workload: Workload, rank: int, heaps: Sequence[int], seed: int) -> FrontBuffers:
        from megatune_kernels.router.buffers import FrontBuffers

        return FrontBuffers.of_rank(workload, rank, heaps, seed)

    def baseline(self, name: str, workload: Workload, inputs: Any, copy: int) -> None:
        if name not in self.baselines:
            raise MegatuneError(f"unknown baseline {name!r}; allowed: {', '.join(self.baselines)}")
        inputs.torch_front(copy)
