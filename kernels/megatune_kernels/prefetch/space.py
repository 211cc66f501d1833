"""What can be tuned of a prefetch, and the one place that says which configs are legal and why."""

from __future__ import annotations

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.prefetch.chain import Chain
from megatune_kernels.prefetch.chain import chain_of
from megatune_kernels.prefetch.consumers import COLD
from megatune_kernels.prefetch.consumers import kinds
from megatune_kernels.prefetch.ranges import KIB
from megatune_kernels.prefetch.ranges import MIB
from megatune_kernels.space import Constraint
from megatune_kernels.space import Parameter
from megatune_kernels.space import Params
from megatune_kernels.space import Space
from megatune_kernels.space import VariantSpace
from megatune_kernels.target import Architecture

PREFETCH = "prefetch"
PLAIN = "plain"
DEPTHS_MIB = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)
BUS_BYTES_A_NS = 3000
"""From memory, where a search starts: three quarters of what an H200 copies."""
REDUCTION_NS = 3_000
"""About what one of few tokens takes on two H200s, for where a search starts."""


def whole_mib(chain: Chain) -> int:
    """The depth that covers all weights; its last MiB may reach beyond them."""
    return -(-chain.weight_bytes // MIB)


def check_depth(chain: Chain, depth_mib: int) -> None:
    """:raises MegatuneError: for a depth that is larger than the weights."""
    if not 1 <= depth_mib <= whole_mib(chain):
        raise MegatuneError(
            f"depth_mib={depth_mib} is impossible: the consumers have {chain.weight_bytes / MIB:.1f} MiB of weights; "
            f"allowed: 1 to {whole_mib(chain)}"
        )


def prefetch_space(workload: Workload, arch: Architecture) -> Space:
    """The space of a chain.

    :raises MegatuneError: where the size of the L2 is not known.
    """
    chain = chain_of(workload)
    if arch.l2_bytes <= 0:
        raise MegatuneError(
            f"l2_bytes: the size of the L2 is not known for {arch.name}, and a prefetch must fit into it: measure on a "
            "GPU that tells it, and name no arch"
        )
    return Space((_prefetch(chain, workload.tokens, arch.l2_bytes), _plain()))


def _pdl() -> Parameter:
    return Parameter(
        "pdl",
        (False, True),
        True,
        "programmatic launch of the consumers: each starts while what it follows ends",
        changes_bits=True,  # the winners with and without it differ in how they divide K
    )


def _plain() -> VariantSpace:
    return VariantSpace(PLAIN, (_pdl(),))


def _prefetch(chain: Chain, tokens: int, l2_bytes: int) -> VariantSpace:
    # Beyond the weights there is nothing to ask for.
    depths = (*(each for each in DEPTHS_MIB if each < whole_mib(chain)), whole_mib(chain))
    idle_ns = chain.idle_ns or REDUCTION_NS
    reach = min(idle_ns * BUS_BYTES_A_NS, chain.weight_bytes, l2_bytes // 2) // MIB
    # How long a reduction takes is not known before it is measured.
    starts = (0, 25, 50) if chain.idle_ns else (0,)
    consumers = kinds(chain)

    def asked(params: Params) -> int:
        return min(int(params["depth_mib"]) * MIB, chain.weight_bytes)

    return VariantSpace(
        PREFETCH,
        (
            Parameter(
                "depth_mib",
                depths,
                max((each for each in depths if each <= reach), default=depths[0]),
                "MiB of the consumers' weights that are asked for, in the order in which they are read",
            ),
            Parameter("grid", (1, 2, 4, 8, 16, 32, 64), 8, "blocks, of which one thread each asks"),
            Parameter("chunk_kib", (4, 16, 64), 16, "KiB of a request"),
            Parameter("carveout", (0, 100), 0, "percent of an SM's L1 that the kernel wants as shared memory"),
            Parameter("start_percent", starts, 0, "share of the idle phase that passes before the first request"),
            _pdl(),
            Parameter(
                "consumer",
                consumers,
                COLD if COLD in consumers else consumers[0],
                "whether consumers run as is best for cold weights or for warm ones",
                changes_bits=len(consumers) > 1,
            ),
        ),
        (
            Constraint(
                "L2",
                "what was asked for must stay in the L2 beside the consumers' own activations until it is read",
                lambda p: asked(p) + chain.traffic_bytes(tokens) <= l2_bytes,
            ),
            Constraint(
                "blocks",
                "every block needs a request: one without only takes its place on an SM",
                lambda p: int(p["grid"]) * int(p["chunk_kib"]) * KIB <= asked(p),
            ),
        ),
    )
