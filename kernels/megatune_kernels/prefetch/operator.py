"""The operator ``prefetch``: pull weights into the L2 while the memory bus idles, as a chain with what reads them.

A config's time is that of the whole chain, so what a prefetch costs its consumers counts as much as what it saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
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
from megatune_kernels.operator import Part
from megatune_kernels.operator import Workload
from megatune_kernels.operator import Workspace
from megatune_kernels.operator import operator
from megatune_kernels.prefetch.ahead import head_bytes
from megatune_kernels.prefetch.chain import PROJECTION
from megatune_kernels.prefetch.chain import REDUCTION
from megatune_kernels.prefetch.chain import chain_from
from megatune_kernels.prefetch.chain import chain_of
from megatune_kernels.prefetch.consumers import COLD
from megatune_kernels.prefetch.consumers import EARLY
from megatune_kernels.prefetch.consumers import config_of
from megatune_kernels.prefetch.consumers import kinds
from megatune_kernels.prefetch.consumers import reducer_of
from megatune_kernels.prefetch.ranges import KIB
from megatune_kernels.prefetch.space import COLUMNS
from megatune_kernels.prefetch.space import FULL
from megatune_kernels.prefetch.space import LATER
from megatune_kernels.prefetch.space import MOST
from megatune_kernels.prefetch.space import OWN
from megatune_kernels.prefetch.space import PLAIN
from megatune_kernels.prefetch.space import PREFETCH
from megatune_kernels.prefetch.space import ROWS
from megatune_kernels.prefetch.space import check_depth
from megatune_kernels.prefetch.space import prefetch_space
from megatune_kernels.projection.geometry import WARP
from megatune_kernels.projection.shapes import projection_shapes
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.target import Architecture

if TYPE_CHECKING:
    from megatune_kernels.prefetch.buffers import ChainBuffers
    from megatune_kernels.prefetch.buffers import GroupChainBuffers

IDLE = "idle"
NONE = "none"
IDLE_NS = (3_000, 5_000, 10_000)
"""Lengths of the idle phase that are measured where a model is given: an all-reduce or an attention core at few
tokens."""
HEADS_OF_LAYERS = (
    ("kda_in_proj", "kda_f_b"),
    ("gdn_qkvz", "gdn_ba"),
    ("fused_qkv_a", "q_b", "mla_gate"),
    ("qkv",),
    ("front",),
)
"""Names of the projections that begin a layer, or its mixture of experts, in the order in which they are read."""
TAKEN = {PREFETCH: ("depth_mib", "grid", "chunk_kib", "carveout", "start_percent", "walk"), IDLE: ()}
"""The kernels of this operator and the parameters that they take."""
HEAD = "head"
"""Beside them, of a prefetch by columns: bytes of a row that it leaves to the first consumer."""


class Prefetch(Operator):
    """Weight prefetch before the first projections of a layer, one rank's share.

    The idle phase is the reduction before them where there is a group of ranks. On one GPU it is a stand-in: a kernel
    that takes ``idle_ns`` and touches no memory.
    """

    name = "prefetch"
    variants = (PREFETCH, PLAIN)
    baselines = (NONE,)
    """The chain without prefetch and without programmatic launches."""
    uses = (PROJECTION, REDUCTION)
    curve_of = "depth_mib"

    def workloads(self, model: Model, parallel: Parallel, tokens: Sequence[int]) -> list[Workload]:
        shapes = {shape.name: shape for shape in projection_shapes(model, parallel)}
        found: dict[Workload, None] = {}
        for names in HEADS_OF_LAYERS:
            consumers = [shapes[name] for name in names if name in shapes]
            dims: dict[str, int] = {}
            for number, shape in enumerate(consumers, start=1):
                dims |= {f"n{number}": shape.n, f"k{number}": shape.k}
            if dims:
                every = ((idle_ns, count) for idle_ns in IDLE_NS for count in tokens)
                found |= {self.workload({"idle_ns": idle_ns, **dims}, count): None for idle_ns, count in every}
            if dims and parallel.tensor > 1:
                grouped = {"width": model.hidden, **dims}
                found |= {self.workload(grouped, count, world=parallel.tensor): None for count in tokens}
        return list(found)

    def workload(self, dims: Mapping[str, int], tokens: int, dtype: str = "bf16", world: int = 1) -> Workload:
        if dtype != "bf16":
            raise MegatuneError(f"dtype {dtype!r} is not supported by prefetch; allowed: bf16")
        return Workload.of(self.name, chain_from(dims, tokens, world).dims(), tokens, dtype=dtype, world=world)

    def space(self, workload: Workload, arch: Architecture) -> Space:
        return prefetch_space(workload, arch)

    def parts(self, workload: Workload, config: Config) -> tuple[Part, ...]:
        chain, params = chain_of(workload), config.params
        pdl = bool(params.get("pdl", False))
        kind = str(params.get("consumer", COLD if COLD in kinds(chain) else kinds(chain)[0]))
        carveout = FULL if params.get("shared", OWN) == MOST else None
        if chain.width:
            reduction = operator(REDUCTION).workload({"width": chain.width}, workload.tokens, world=workload.world)
            phase = Part(REDUCTION, reduction, reducer_of(reduction, pdl), carveout=carveout, leads=True)
        else:
            phase = Part(IDLE, workload, Config.of(IDLE, {}))
        names = {0: phase.name, **{consumer.number: consumer.name for consumer in chain.consumers}}
        found = []
        for consumer, stream, behind in chain.streams():
            # Behind an event there is no predecessor on the stream whose end could be overlapped.
            overlaps = pdl and behind
            of = COLD if kind == EARLY and (consumer.after or not overlaps) else kind
            tuned = config_of(of, consumer.workload(workload.tokens), overlaps)
            after = () if behind else (names[consumer.after],)
            # Stream 1 is the prefetch's.
            stream = stream and stream + 1
            found.append(Part(consumer.name, consumer.workload(workload.tokens), tuned, stream, after, carveout))
        if config.variant != PREFETCH:
            return (phase, *found)
        walk = str(params.get("walk", ROWS))
        check_depth(chain, int(params["depth_mib"]), walk)
        own = {name: params[name] for name in TAKEN[PREFETCH] if name in params}
        if walk == COLUMNS and pdl:
            own[HEAD] = head_bytes(found[0].workload, found[0].config)
        return (Part(PREFETCH, workload, Config.of(PREFETCH, own), stream=1), phase, *found)

    def specialization(self, workload: Workload, config: Config) -> dict[str, Value]:
        return {"kernel": _own(config)}

    def compile(self, workload: Workload, config: Config, arch: Architecture) -> Artifact:
        from cutlass import Int32
        from cutlass import Int64
        from cutlass import cute

        from megatune_kernels.prefetch import kernels

        stream = cute.runtime.make_fake_stream()
        scalars = [Int32(1) for _ in self.launch(workload, config).scalars]
        if _own(config) == IDLE:
            compiled = compile_for(arch, kernels.launch_idle, *scalars, stream)
        else:
            compiled = compile_for(arch, kernels.launch_prefetch, Int64(0), *scalars, stream)
        return from_compiled(compiled, artifact_key(self, workload, config, arch), arch)

    def launch(self, workload: Workload, config: Config) -> Launch:
        """Of the operator's own kernels.

        :raises MegatuneError: for a depth that is larger than the weights.
        """
        chain, block = chain_of(workload), (WARP, 1, 1)
        if _own(config) == IDLE:
            # Consumers that take most of an SM would otherwise wait for the one that this is on.
            return Launch(grid=(1, 1, 1), block=block, shared_bytes=0, scalars=(chain.idle_ns,), carveout=FULL)
        names = ("depth_mib", "grid", "chunk_kib", "carveout", "start_percent")
        depth, grid, chunk, carveout, start = (int(config.params[name]) for name in names)
        walk, head = str(config.params.get("walk", ROWS)), int(config.params.get(HEAD, 0))
        check_depth(chain, depth, walk)
        begin, columns = int(walk == LATER), int(walk == COLUMNS)
        delay = chain.idle_ns * start // 100
        scalars = (begin, len(chain.consumers), depth, chunk * KIB, columns, head, delay)
        return Launch(grid=(grid, 1, 1), block=block, shared_bytes=0, scalars=scalars, carveout=carveout)

    def cost(self, workload: Workload, config: Config) -> Cost:
        costs = [
            operator(PROJECTION).cost(consumer.workload(workload.tokens), config)
            for consumer in chain_of(workload).consumers
        ]
        return Cost(sum(cost.memory_bytes for cost in costs), 0, sum(cost.flops for cost in costs))

    def rotating_bytes(self, workload: Workload) -> int:
        return chain_of(workload).weight_bytes

    def inputs(self, workload: Workload, copies: int, seed: int) -> ChainBuffers:
        from megatune_kernels.prefetch.buffers import ChainBuffers

        return ChainBuffers(workload, copies, seed)

    def workspace(self, workload: Workload, config: Config) -> Workspace:
        """That of the reduction."""
        if not chain_of(workload).width:
            return Workspace()
        part = next(part for part in self.parts(workload, config) if part.name == REDUCTION)
        return operator(REDUCTION).workspace(part.workload, part.config)

    def group_inputs(self, workload: Workload, rank: int, heaps: Sequence[int], seed: int) -> GroupChainBuffers:
        from megatune_kernels.prefetch.buffers import GroupChainBuffers

        return GroupChainBuffers(workload, rank, heaps, seed)

    def baseline(self, name: str, workload: Workload, inputs: Any, copy: int) -> None:
        raise MegatuneError(f"{name!r} is a chain of kernels: it is launched part by part")


def _own(config: Config) -> str:
    """Which of the operator's own kernels a config of a part is of."""
    if config.variant not in TAKEN:
        raise MegatuneError(f"{config.variant!r} is no kernel of prefetch; allowed: {', '.join(TAKEN)}")
    return config.variant
