"""The operator ``experts``: routed experts of a decode layer, one rank's slice of each.

y [tokens, k] is the sum over each token's ``top`` experts of their routing weight times w2 · activation(w13 · x), with
w13 [experts, 2 width, k] (gate, then up) and w2 [experts, k, width] in the workload's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

from megatune_kernels.artifact import artifact_key
from megatune_kernels.artifact import compile_for
from megatune_kernels.artifact import from_compiled
from megatune_kernels.errors import MegatuneError
from megatune_kernels.experts import vllm_fused
from megatune_kernels.experts.geometry import BF16
from megatune_kernels.experts.geometry import BOTH
from megatune_kernels.experts.geometry import DOWN
from megatune_kernels.experts.geometry import FORMATS
from megatune_kernels.experts.geometry import FP8
from megatune_kernels.experts.geometry import GROUPED
from megatune_kernels.experts.geometry import MXFP4
from megatune_kernels.experts.geometry import PER_ROUTE
from megatune_kernels.experts.geometry import SCALE_BLOCK
from megatune_kernels.experts.geometry import TILE_K
from megatune_kernels.experts.geometry import UP
from megatune_kernels.experts.geometry import WORKSPACE_ALIGNMENT
from megatune_kernels.experts.geometry import Stream
from megatune_kernels.experts.geometry import expert_bytes
from megatune_kernels.experts.geometry import launch_both
from megatune_kernels.experts.geometry import workspace_bytes
from megatune_kernels.experts.routing import DEFAULT
from megatune_kernels.experts.routing import NAMES
from megatune_kernels.experts.routing import Coverage
from megatune_kernels.experts.routing import check_routing
from megatune_kernels.experts.routing import coverage
from megatune_kernels.experts.space import experts_space
from megatune_kernels.experts.vllm_fused import VLLM_FUSED_MOE
from megatune_kernels.models import Model
from megatune_kernels.models import Parallel
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Cost
from megatune_kernels.operator import Launch
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Part
from megatune_kernels.operator import Workload
from megatune_kernels.operator import Workspace
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import PADDED_TOKENS
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.target import Architecture

if TYPE_CHECKING:
    from megatune_kernels.experts.buffers import ExpertBuffers

DIMS = ("experts", "k", "top", "width")
SITU_DIMS = ("beta", "linear_beta")
"""Of SiTU; absent in SiLU."""
MOST_EXPERTS = 4096
MOST_DIM = 1 << 16
MOST_TOP = 32
ACTIVATIONS = {"silu": {}, "situ": {"beta": 4, "linear_beta": 25}}
"""What the catalogue calls an activation, and its dims; those of SiTU are Kimi K3's."""
DTYPES = {"mxfp4": MXFP4, "fp8_e4m3": FP8, "bfloat16": BF16}
"""What the catalogue calls a format of experts."""


class Experts(Operator):
    """Routed experts on one GPU."""

    name = "experts"
    variants = (PER_ROUTE, GROUPED)
    baselines = ("torch", VLLM_FUSED_MOE)
    waits = True
    routings = NAMES

    def workloads(self, model: Model, parallel: Parallel, tokens: Sequence[int]) -> list[Workload]:
        """At the default routing; none for a model whose experts have a format, an activation or a width that the
        kernels do not have."""
        width = (model.moe_intermediate or 0) // parallel.tensor
        dtype = DTYPES.get(model.expert_dtype or "")
        blocks = dtype != FP8 or model.quant_block == (SCALE_BLOCK, SCALE_BLOCK)
        if dtype is None or model.activation not in ACTIVATIONS or not width or not blocks:
            return []
        if (model.moe_intermediate or 0) % parallel.tensor or _misfit(model.latent or model.hidden, width, dtype):
            return []
        dims = {
            "experts": model.experts,
            "k": model.latent or model.hidden,
            "top": model.top_k,
            "width": width,
            **ACTIVATIONS[model.activation],
        }
        return [self.workload(dims, count, dtype) for count in tokens]

    def workload(self, dims: Mapping[str, int], tokens: int, dtype: str = MXFP4, world: int = 1) -> Workload:
        """At the default routing; ``routed`` has others."""
        if sorted(set(dims) - set(SITU_DIMS)) != list(DIMS) or len(set(dims) & set(SITU_DIMS)) == 1:
            raise MegatuneError(
                f"experts have the dims {', '.join(DIMS)}, and {' and '.join(SITU_DIMS)} where the activation is SiTU, "
                f"got {', '.join(sorted(dims)) or 'none'}"
            )
        experts, k, top, width = (dims[name] for name in DIMS)
        if not 1 <= experts <= MOST_EXPERTS:
            raise MegatuneError(f"experts={experts} is out of range: 1 to {MOST_EXPERTS}")
        if not 1 <= top <= min(MOST_TOP, experts):
            raise MegatuneError(f"top={top} is out of range: 1 to {min(MOST_TOP, experts)} of {experts} experts")
        for name, size in (("k", k), ("width", width)):
            if size > MOST_DIM:
                raise MegatuneError(f"{name}={size} is impossible: it must be at most {MOST_DIM}")
        for name in SITU_DIMS:
            if not 1 <= dims.get(name, 1) <= MOST_DIM:
                raise MegatuneError(f"{name}={dims[name]} is out of range: 1 to {MOST_DIM}; leave both out for SiLU")
        if not 1 <= tokens <= max(PADDED_TOKENS):
            raise MegatuneError(f"tokens={tokens} is out of range: experts have 1 to {max(PADDED_TOKENS)} tokens")
        if dtype not in FORMATS:
            raise MegatuneError(f"dtype {dtype!r} is not supported by experts; allowed: {', '.join(FORMATS)}")
        if misfit := _misfit(k, width, dtype):
            raise MegatuneError(misfit)
        if world != 1:
            raise MegatuneError(f"world={world} is impossible: experts run on one GPU, world 1")
        return Workload.of(self.name, dims, tokens, dtype=dtype, routing=DEFAULT)

    def routed(self, workload: Workload, routing: str) -> Workload:
        """The workload at another routing.

        :raises MegatuneError: for one that is unknown or does not fit, with what is allowed.
        """
        check_routing(routing, workload["experts"], workload["top"], workload.tokens)
        return replace(workload, routing=routing)

    def coverage(self, workload: Workload) -> Coverage:
        """Distinct experts and tokens an expert, averaged over draws of the workload's routing."""
        return coverage(workload.routing, workload["experts"], workload["top"], workload.tokens)

    def facts(self, workload: Workload) -> dict[str, float]:
        """Its coverage.

        :raises MegatuneError: for a recorded routing that is not here.
        """
        return self.coverage(workload).to_dict()

    def space(self, workload: Workload, arch: Architecture) -> Space:
        return experts_space(workload, arch)

    def parts(self, workload: Workload, config: Config) -> tuple[Part, ...]:
        if config.variant in self.baselines:
            return ()
        shared = ("group", "grid", "cache")
        if config.params["launches"] == 1:
            return (Part(BOTH, workload, config),)
        return tuple(
            Part(
                role,
                workload,
                Config.of(
                    f"{config.variant}_{role}",
                    {name: value for name, value in config.items if name in shared or name.startswith(f"{role}_")},
                ),
            )
            for role in (UP, DOWN)
        )

    def specialization(self, workload: Workload, config: Config) -> dict[str, Value]:
        # The grid is no part of the code.
        return {
            f"{kernel.role} {name}": value
            for kernel in _streams(workload, config)
            for name, value in asdict(replace(kernel, grid=0)).items()
        }

    def compile(self, workload: Workload, config: Config, arch: Architecture) -> Artifact:
        from cutlass import Int32
        from cutlass import Int64
        from cutlass import cute

        from megatune_kernels.experts import stream

        kernels = [replace(kernel, grid=0) for kernel in _streams(workload, config)]
        both = len(kernels) > 1
        role = BOTH if both else kernels[0].role
        launch, pointers = {
            UP: (stream.launch_up, 9),
            DOWN: (stream.launch_down, 7),
            BOTH: (stream.launch_both, 10),
        }[role]
        addresses = [Int64(0) for _ in range(pointers)]
        compiled = compile_for(arch, launch, *addresses, Int32(1), cute.runtime.make_fake_stream(), *kernels)
        return from_compiled(compiled, artifact_key(self, workload, config, arch), arch, polls=both)

    def launch(self, workload: Workload, config: Config) -> Launch:
        """Of one of the parts."""
        kernels = _streams(workload, config)
        if len(kernels) > 1:
            return launch_both(kernels[0], kernels[1], workload.tokens)
        return kernels[0].launch(workload.tokens)

    def workspace(self, workload: Workload, config: Config) -> Workspace:
        """Hidden and faults, one behind the other (``geometry.workspace_bytes``); in measurements
        they are part of the operands."""
        return Workspace(sum(workspace_bytes(workload).values()), WORKSPACE_ALIGNMENT)

    def cost(self, workload: Workload, config: Config) -> Cost:
        """Weights of the distinct experts once, activations, and the routing."""
        routes = workload.tokens * workload["top"]
        weights = round(self.coverage(workload).distinct * expert_bytes(workload))
        activations = 2 * BF16_BYTES * workload.tokens * workload["k"] + 2 * FP32_BYTES * routes
        flops = 6 * routes * workload["width"] * workload["k"]
        return Cost(memory_bytes=weights + activations, link_bytes=0, flops=flops)

    def rotating_bytes(self, workload: Workload) -> int:
        return round(self.coverage(workload).distinct * expert_bytes(workload))

    def inputs(self, workload: Workload, copies: int, seed: int) -> ExpertBuffers:
        from megatune_kernels.experts.buffers import ExpertBuffers

        return ExpertBuffers(workload, copies, seed)

    def baseline(self, name: str, workload: Workload, inputs: Any, copy: int) -> None:
        """
        :raises NotImplementedError: where what another runtime has for it cannot be run here.
        """
        if name not in self.baselines:
            raise MegatuneError(f"unknown baseline {name!r}; allowed: {', '.join(self.baselines)}")
        if name == VLLM_FUSED_MOE:
            vllm_fused.enqueue(workload, inputs, copy)
        else:
            inputs.torch_experts(copy)


def _misfit(k: int, width: int, dtype: str) -> str:
    """Why the kernels do not have slices of this latent and width, or nothing."""
    whole = SCALE_BLOCK if dtype == FP8 else TILE_K
    for name, size in (("k", k), ("width", width)):
        if size < whole or size % whole:
            return f"{name}={size} is impossible: in {dtype} it must be a multiple of {whole}"
    return ""


def _streams(workload: Workload, config: Config) -> tuple[Stream, ...]:
    """What a kernel consists of: both matrices in one launch, or the one of a part's config."""
    if config.params.get("launches") == 1:
        return tuple(Stream.of(workload, config.variant, role, config.params) for role in (UP, DOWN))
    variant, _, role = config.variant.rpartition("_")
    if variant not in (PER_ROUTE, GROUPED) or role not in (UP, DOWN):
        raise MegatuneError(f"{config.variant!r} is two kernels of experts: it is launched part by part")
    return (Stream.of(workload, variant, role, config.params),)
