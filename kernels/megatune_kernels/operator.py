"""The one abstraction of what can be tuned.

A new operator is one folder with a subclass of ``Operator`` and one entry point in the group
``megatune.operators``; another package can add one in the same way.
"""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cache
from functools import cached_property
from importlib.metadata import entry_points
from typing import TYPE_CHECKING
from typing import Any

from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_kernels.parameters import Parameter
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.target import Architecture

if TYPE_CHECKING:
    from megatune_kernels.buffers import Buffers
    from megatune_kernels.buffers import GroupBuffers
    from megatune_kernels.models import Model
    from megatune_kernels.models import Parallel


@dataclass(frozen=True)
class Workload:
    """An operator at one shape. Hashable, canonical, and the unit that a cell of a campaign measures."""

    operator: str
    dims: tuple[tuple[str, int], ...]
    """Sorted (name, elements); which names, the operator says."""
    tokens: int
    dtype: str = "bf16"
    world: int = 1
    routing: str = "none"

    @staticmethod
    def of(operator: str, dims: Mapping[str, int], tokens: int, **rest: Any) -> Workload:
        return Workload(operator, tuple(sorted(dims.items())), tokens, **rest)

    def __getitem__(self, dim: str) -> int:
        return dict(self.dims)[dim]

    @property
    def shape(self) -> str:
        """The dims alone, e.g. ``k=7168,n=6288``: what a curve over tokens keeps fixed."""
        return ",".join(f"{name}={size}" for name, size in self.dims)

    def at(self, tokens: int) -> Workload:
        """The same shape at other tokens."""
        return Workload(self.operator, self.dims, tokens, self.dtype, self.world, self.routing)

    def to_dict(self) -> dict[str, Any]:
        return {
            "operator": self.operator,
            "dims": dict(self.dims),
            "tokens": self.tokens,
            "dtype": self.dtype,
            "world": self.world,
            "routing": self.routing,
        }

    @cached_property
    def digest(self) -> str:
        return digest(self.to_dict())

    def __str__(self) -> str:
        parts = [self.operator, self.shape, f"tokens={self.tokens}"]
        parts += [f"world={self.world}"] if self.world > 1 else []
        # What most workloads share is left out: two that differ read unlike all the same.
        parts += [self.dtype] if self.dtype != "bf16" else []
        parts += [f"routing={self.routing}"] if self.routing != "none" else []
        return " ".join(parts)


@dataclass(frozen=True)
class Cost:
    """The least that a workload must move and compute."""

    memory_bytes: int
    link_bytes: int
    flops: int


@dataclass(frozen=True)
class Launch:
    """How an artifact is launched for one workload; ``scalars`` follow the pointers in the entry's parameters."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    programmatic: bool = False
    """Programmatic stream serialisation: the kernel starts while its predecessor drains and waits inside."""
    scalars: tuple[int, ...] = ()
    """32-bit integers."""
    resident: bool = False
    """Whether blocks wait for one another, so that all of them have to be on the GPU at once."""
    carveout: int | None = None
    """Percent of an SM's L1 that is to be shared memory; None: the driver chooses."""
    parameters: tuple[Parameter, ...] = ()
    """Of an entry that takes more than pointers and integers: all of them, in place of pointers and ``scalars``."""


@dataclass(frozen=True)
class Workspace:
    """Memory that each rank of a group holds for a config, at the same offsets, for its peers to write into."""

    bytes: int = 0
    alignment: int = 1
    """Bytes."""
    armed: int = 0
    """The 32-bit word that all of it holds before the first launch."""


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel. The key names everything that the code depends on; workloads can share one."""

    key: str
    arch: str
    entry: str
    cubin: bytes
    registers: int
    """Registers a thread."""
    local_bytes: int
    """Bytes a thread spills to local memory."""


@dataclass(frozen=True)
class Part:
    """One kernel of a config, which the operator of its own workload compiles and launches."""

    name: str
    workload: Workload
    config: Config
    stream: int = 0
    """0 is the stream that the config is launched on; others run beside it and are joined at its end."""
    after: tuple[str, ...] = ()
    """Parts on other streams that it waits for. The first part of another stream than 0 that waits for none begins
    with the config."""
    carveout: int | None = None
    """As ``Launch.carveout``, where the config says more than the part's own operator does."""
    leads: bool = False
    """Nothing on its stream comes before it whose end it could overlap: it is launched without programmatic
    serialisation, whatever its own config has."""

    def launch(self, workload: Workload | None = None) -> Launch:
        """How it is launched, over ``workload`` where that is another one of its operator."""
        over = self.workload if workload is None else workload
        shape = operator(over.operator).launch(over, self.config)
        return replace(
            shape,
            carveout=shape.carveout if self.carveout is None else self.carveout,
            programmatic=shape.programmatic and not self.leads,
        )


@dataclass(frozen=True)
class Prior:
    """What another project found best for some shape, as its table or cache has it. It is a config to try, and no
    measurement."""

    format: str
    """As ``megatune import --format`` names it, e.g. ``vllm-moe-table``."""
    source: str
    """The file's name."""
    place: Mapping[str, Any]
    """What the file says that it is for, under the file's names, e.g. ``E``, ``N``, ``dtype``, ``device_name``."""
    tokens: int | None
    """Where the file says for how many it is."""
    entry: Any
    """What the file has for it."""


class Operator(ABC):
    """One tunable decode operation.

    Implementations hold no state and import the DSL and torch inside the methods that need them: ``compile``,
    ``inputs``, ``group_inputs`` and ``baseline``; everything else runs anywhere.
    """

    name: str
    variants: tuple[str, ...]
    baselines: tuple[str, ...]
    """Names of what serves today; each is a variant without parameters, outside the space."""
    uses: tuple[str, ...] = ()
    """Other operators whose kernels its configs are made of: a chain, which a campaign measures where it is named."""
    adapts: str = ""
    """Of an adapter, the runtime whose kernel it tunes where that lies; a campaign measures it where it is named."""
    waits: bool = False
    """Whether blocks of a config may wait for one another on one GPU too; those of a group may anyway."""
    curve_of: str = ""
    """A parameter over which people look at a curve: the finals compare the best of each of its values."""

    priors_from: tuple[str, ...] = ()
    """Formats of other projects' tables and caches of which ``prior`` makes configs."""

    routings: tuple[str, ...] = ()
    """How tokens may be spread over experts, by name, where that makes a difference; what ``workloads``
    and ``workload`` give has one of them."""

    @abstractmethod
    def workloads(self, model: Model, parallel: Parallel, tokens: Sequence[int]) -> list[Workload]:
        """Every distinct workload of one rank, in the order of the model's layer.

        :raises MegatuneError: naming the figures that the model's description lacks.
        """

    @abstractmethod
    def workload(self, dims: Mapping[str, int], tokens: int, dtype: str = "bf16", world: int = 1) -> Workload:
        """A workload of an explicit shape.

        :raises MegatuneError: for a missing, unknown or impossible dim, tokens, dtype or world, with what is allowed.
        """

    def routed(self, workload: Workload, routing: str) -> Workload:
        """The workload at another routing.

        :raises MegatuneError: for one that is unknown or does not fit, with what is allowed.
        """
        raise MegatuneError(f"{self.name} has no routing {routing!r}: its workloads do not depend on one")

    def facts(self, workload: Workload) -> dict[str, float]:
        """What of a workload is worth knowing beside its key, by name: kept with it, shown, and part of no digest.

        :raises MegatuneError: where it rests on what is not here.
        """
        return {}

    @abstractmethod
    def space(self, workload: Workload, arch: Architecture) -> Space:
        """What can be tuned; a variant that cannot run the workload is left out."""

    def stands_for(self, workload: Workload, config: Config, arch: Architecture) -> Config:
        """What is launched in a config's name: a baseline can be a config of the operator's own kernel."""
        return config

    def parts(self, workload: Workload, config: Config) -> tuple[Part, ...]:
        """The kernels of a config in the order of their launches: one, unless the operator is a chain.

        What a library launches, as most baselines, has none.

        :raises MegatuneError: for a config that the workload cannot have, naming the parameter.
        """
        return () if config.variant in self.baselines else (Part(self.name, workload, config),)

    def source_elsewhere(self) -> str:
        """Of an adapter, the digest of the other runtime's source that its kernels are made of; empty: all is in the
        operator's folder.

        :raises MegatuneError: when that is not here.
        """
        return ""

    def prior(self, workload: Workload, found: Prior) -> Config | None:
        """The config of the workload that another project's entry stands for; None where that is of another workload.

        Asked for the formats in ``priors_from`` alone, and of each table for the entry of the nearest tokens. The
        config need not be legal: the nearest legal one is tried.

        :raises MegatuneError: when no config does the same, with the reason.
        """
        return None

    @abstractmethod
    def specialization(self, workload: Workload, config: Config) -> dict[str, Value]:
        """What the compiled code depends on besides its source: workloads that agree on it share an artifact."""

    @abstractmethod
    def compile(self, workload: Workload, config: Config, arch: Architecture) -> Artifact:
        """Compile with no GPU present. Needs the DSL."""

    @abstractmethod
    def launch(self, workload: Workload, config: Config) -> Launch:
        """Grid, block, cluster, shared memory and scalars of one launch."""

    @abstractmethod
    def cost(self, workload: Workload, config: Config) -> Cost:
        """Bytes from memory, bytes over links and flops of one launch."""

    @abstractmethod
    def rotating_bytes(self, workload: Workload) -> int:
        """Bytes of what must be cold in one set of operands: those that a decode step reads from memory."""

    @abstractmethod
    def inputs(self, workload: Workload, copies: int, seed: int) -> Buffers:
        """Random operands on the current GPU, ``copies`` distinct sets, with outputs to poison. Needs torch.

        The runner passes the value on to ``baseline`` and looks no further than the protocol; that of a chain is
        ``megatune_kernels.buffers.ChainBuffers``.
        """

    def workspace(self, workload: Workload, config: Config) -> Workspace:
        """What a config needs of every rank beside its operands; nothing on one GPU, unless the operator ``waits``."""
        return Workspace()

    def group_inputs(self, workload: Workload, rank: int, heaps: Sequence[int], seed: int) -> GroupBuffers:
        """What ``inputs`` is for one rank of a group; of a chain ``megatune_kernels.buffers.GroupChainBuffers``.

        :param heaps: by rank, the address in this process of the memory that holds workspaces; ``heaps[rank]`` is
            this rank's own.
        """
        raise NotImplementedError(f"{self.name} runs on one GPU")

    @abstractmethod
    def baseline(self, name: str, workload: Workload, inputs: Any, copy: int) -> None:
        """Enqueue the baseline on the current stream over one set of operands. Needs torch."""


@cache
def operators() -> dict[str, Operator]:
    """Every registered operator by name."""
    found: dict[str, Operator] = {}
    for point in entry_points(group="megatune.operators"):
        operator = point.load()()
        other = found.get(operator.name)
        # A bundle carries operators of packages that may be installed too, and whose place it takes.
        if other is not None and type(other) is not type(operator):
            raise MegatuneError(f"two packages register the operator {operator.name!r}: uninstall one of them")
        found[operator.name] = operator
    return found


def operator(name: str) -> Operator:
    """The operator of that name.

    :raises MegatuneError: when there is none, with the names that there are.
    """
    try:
        return operators()[name]
    except KeyError:
        raise MegatuneError(f"unknown operator {name!r}; allowed: {', '.join(sorted(operators()))}") from None
