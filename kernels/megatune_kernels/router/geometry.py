"""The arithmetic of a config: rows, mailboxes and how a kernel is launched. Imports no DSL.

A rank computes rows of one packed matrix [experts + latent, k]: rows of the router, all of them or those that are its
share, and behind them its rows of the projection into the latent. Logits go into a mailbox of every rank that needs
them, [parities, padded tokens, experts] in FP32, armed with a word that is never sent. A warp takes a token: it waits
until no logit of it is missing and chooses the experts.

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

REDUNDANT = "redundant"
SPLIT = "split"
QUAD = 4
"""Logits of one access: neighbouring rows of a token."""
LANE_STRIDE = WARP * QUAD
"""Experts that a warp looks at with one access of each lane."""
CANDIDATE_BYTES = 12
"""An order-preserving word, the score and the id of an expert that may be among the chosen."""
ALIGNMENT = 128
PARITIES = 2
"""Of a group: while a rank is in launch n, none of its peers can be further than n + 1 (``reduction.exchange``)."""
SIDE_REGISTERS = 72
"""What a thread needs beside sums and fragments, a token's logits in flight among it."""


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
    """Whether logits come from every rank."""
    padded_tokens: int
    warps: int
    rows: int
    k_unroll: int
    stages: int
    split_k: int
    finishers: int
    backoff: int
    """ns"""
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
    def registers(self) -> int:
        return self.tiles.registers + SIDE_REGISTERS

    @property
    def candidate_bytes(self) -> int:
        """Of a warp: at worst every expert has the same score; and the chosen scores in their order."""
        return self.experts * CANDIDATE_BYTES + WARP * FP32_BYTES

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


def weight_bytes(workload: Workload) -> int:
    """Of the packed matrix that a rank holds: every row of the router and its rows of the latent."""
    return BF16_BYTES * (workload["experts"] + workload["latent"]) * workload["k"]
