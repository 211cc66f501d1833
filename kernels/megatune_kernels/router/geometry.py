"""The arithmetic of a config: rows, mailboxes and how a kernel is launched. Imports no DSL.

A rank computes rows of one packed matrix [experts + latent, k]: rows of the router, all of them or those that are its
share, and behind them its rows of the projection into the latent. Scores go into a mailbox of every rank that needs
them, [parities, padded tokens, experts] in FP32, armed with a word that is never sent. A warp takes a token: it waits
until no score of it is missing and chooses the experts.

``Front`` is also what the kernel is specialised for: two workloads that give equal values share an artifact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatune_kernels.operator import Launch
from megatune_kernels.operator import Workload
from megatune_kernels.operator import Workspace
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import PADDED_TOKENS
from megatune_kernels.projection.geometry import WARP
from megatune_kernels.projection.geometry import Mma
from megatune_kernels.reduction.geometry import ARMED
from megatune_kernels.reduction.geometry import SENTINEL
from megatune_kernels.space import Params
from megatune_kernels.target import Architecture

REDUNDANT = "redundant"
SPLIT = "split"
QUAD = 4
"""Scores of one access: neighbouring rows of a token."""
LANE_STRIDE = WARP * QUAD
"""Experts that a warp looks at with one access of each lane."""
PAIR_BYTES = 8
"""An order-preserving word and the id of an expert that may be among the chosen."""
SPARE_CANDIDATES = 8
"""Candidates that are compared at a time, so that the last ones need no test of their own."""
ALIGNMENT = 128
LATENCY_BYTES = 2 << 20
"""Bytes that are on their way at least: on an H200, configs with less took 12.6 us and more for a token, those with
4.6 MiB 10.0 to 10.3, and one with 13 MiB 7.8."""
LATENCY_SHARE = 6
"""Of a small matrix, so much of it is enough."""
PARITIES = 2
"""Of a group: while a rank is in launch n, none of its peers can be further than n + 1 (``reduction.exchange``)."""
SIDE_REGISTERS = 64
"""What a thread needs beside sums and fragments."""
FINISHING_REGISTERS = 128
"""What it needs for the scores of a token, as compiled."""
DEEP_UNROLL = 4
DEEP_REGISTERS = 36
"""What the compiler takes in addition where that many steps of a stage lie beside each other."""
CLUSTERED = 0.9
"""The share of multiprocessors that clusters of more than two blocks reach at least: parts of a GPU hold them whole.
Of an H200's 132, clusters of four reach 120, and 124 with two blocks each."""


@dataclass(frozen=True)
class Front:
    """One launch: a warp owns ``rows`` rows and a share of K; warps, then blocks of a cluster, divide K."""

    experts: int
    own_experts: int
    """Rows of the router that a rank computes."""
    latent: int
    k: int
    top: int
    world: int
    exchanges: bool
    """Whether scores come from every rank."""
    padded_tokens: int
    warps: int
    rows: int
    k_unroll: int
    stages: int
    split_k: int
    finishers: int
    pdl: bool

    @staticmethod
    def of(workload: Workload, variant: str, params: Params) -> Front:
        values: dict[str, Any] = dict(params)
        experts, world = workload["experts"], workload.world
        exchanges = variant == SPLIT
        return Front(
            experts=experts,
            own_experts=experts // world if exchanges else experts,
            latent=workload["latent"],
            k=workload["k"],
            top=workload["top"],
            world=world,
            exchanges=exchanges,
            padded_tokens=next(size for size in PADDED_TOKENS if size >= workload.tokens),
            **values,
        )

    @property
    def tiles(self) -> Mma:
        """Where fragments lie in shared memory, as in a projection whose warps all divide K."""
        return Mma(
            padded_tokens=self.padded_tokens,
            warps=self.warps,
            rows=self.rows,
            rows_a_warp=self.rows,
            k_unroll=self.k_unroll,
            stages=self.stages,
            split_k=self.split_k,
            pdl=self.pdl,
        )

    @property
    def computed_rows(self) -> int:
        return self.own_experts + self.latent

    @property
    def row_blocks(self) -> int:
        return -(-self.computed_rows // self.rows)

    def source_row(self, row: Any, rank: Any, choose: Any) -> Any:
        """The row of the packed matrix that a rank's computed row is; those of the latent lie behind all experts'."""
        first = rank * self.own_experts if self.exchanges else 0
        return choose(row < self.own_experts, row + first, row + (self.experts - self.own_experts))

    @property
    def accesses(self) -> int:
        """Accesses of each lane to all logits of a token."""
        return self.experts // LANE_STRIDE

    @property
    def finishing_blocks(self) -> int:
        return min(self.finishers, self.row_blocks * self.split_k)

    @property
    def parity_bytes(self) -> int:
        return self.padded_tokens * self.experts * FP32_BYTES

    @property
    def parities(self) -> int:
        return PARITIES if self.world > 1 else 1

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.parities * self.parity_bytes, ALIGNMENT, ARMED[SENTINEL])

    @property
    def bytes_on_their_way(self) -> int:
        """Of weights, once every block has asked for all the stages that it may ask for ahead."""
        a_block = (self.stages - 1) * self.warps * self.tiles.stage_k * BF16_BYTES * self.rows
        return self.row_blocks * self.split_k * a_block

    @property
    def registers(self) -> int:
        """What a thread cannot do without."""
        return self.tiles.registers + SIDE_REGISTERS

    @property
    def likely_registers(self) -> int:
        """At most what the compiler takes where there is no need to save."""
        deep = DEEP_REGISTERS if self.k_unroll >= DEEP_UNROLL else 0
        return max(FINISHING_REGISTERS, self.registers + deep)

    def fits(self, arch: Architecture) -> bool:
        """Whether all blocks, which wait for one another, are on the GPU at once; true where no GPU is named."""
        if not arch.sms:
            return True
        registers = min(self.likely_registers, arch.registers_a_thread)
        a_multiprocessor = arch.blocks_a_multiprocessor(self.warps * WARP, registers, self.shared_bytes)
        clusters = int(a_multiprocessor * arch.sms * (CLUSTERED if self.split_k > 2 else 1.0)) // self.split_k
        return self.row_blocks <= clusters

    @property
    def pairs_bytes(self) -> int:
        """Of a warp: at worst every expert has the same score."""
        return (self.experts + SPARE_CANDIDATES) * PAIR_BYTES

    @property
    def candidate_bytes(self) -> int:
        """Of a warp: pairs, scores in the same order, and the chosen scores in theirs."""
        return self.pairs_bytes + self.experts * FP32_BYTES + WARP * FP32_BYTES

    @property
    def shared_bytes(self) -> int:
        return max(self.tiles.shared_bytes, self.warps * self.candidate_bytes)

    def launch(self, tokens: int) -> Launch:
        """In a group the rank and the number of the launch follow; alone they are 0."""
        return Launch(
            grid=(self.row_blocks, self.split_k, 1),
            block=(self.warps * WARP, 1, 1),
            cluster=(1, self.split_k, 1),
            shared_bytes=self.shared_bytes,
            programmatic=self.pdl,
            scalars=(tokens, 0, 0) if self.world == 1 else (tokens,),
            resident=True,
        )


def least_on_its_way(kernel: Front) -> int:
    return min(LATENCY_BYTES, BF16_BYTES * kernel.computed_rows * kernel.k // LATENCY_SHARE)


def weight_bytes(workload: Workload) -> int:
    """Of the packed matrix that a rank holds: every row of the router and its rows of the latent."""
    return BF16_BYTES * (workload["experts"] + workload["latent"]) * workload["k"]
