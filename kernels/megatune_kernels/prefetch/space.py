"""What can be tuned of a prefetch, and the one place that says which configs are legal and why."""

from __future__ import annotations

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.prefetch.chain import Chain
from megatune_kernels.prefetch.chain import chain_of
from megatune_kernels.prefetch.consumers import COLD
from megatune_kernels.prefetch.consumers import EARLY
from megatune_kernels.prefetch.consumers import WARM
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
DEPTHS_MIB = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 112, 128)
ROWS = "rows"
COLUMNS = "columns"
LATER = "later"
OWN = "own"
MOST = "most"
FULL = 100
"""Percent of an SM's L1 as shared memory."""
BUS_BYTES_A_NS = 3000
"""From memory, where a search starts: three quarters of what an H200 copies."""
REDUCTION_NS = 3_000
"""About what one of few tokens takes on two H200s, for where a search starts."""


def walked_bytes(chain: Chain, walk: str) -> int:
    """Weights that a walk can come to."""
    skipped = chain.consumers[0].weight_bytes if walk == LATER else 0
    return chain.weight_bytes - skipped


def whole_mib(chain: Chain, walk: str = ROWS) -> int:
    """The depth that covers all weights of a walk; its last MiB may reach beyond them."""
    return -(-walked_bytes(chain, walk) // MIB)


def check_depth(chain: Chain, depth_mib: int, walk: str = ROWS) -> None:
    """:raises MegatuneError: for a depth that is larger than the weights."""
    most = whole_mib(chain, walk)
    if not 1 <= depth_mib <= most:
        whose = "consumers behind the first" if walk == LATER else "consumers"
        raise MegatuneError(
            f"depth_mib={depth_mib} is impossible: the {whose} have {walked_bytes(chain, walk) / MIB:.1f} MiB of "
            f"weights; allowed: 1 to {most}"
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
    return Space((_prefetch(chain, workload.tokens, arch.l2_bytes), _plain(chain)))


def _common(consumers: tuple[str, ...]) -> tuple[Parameter, ...]:
    """Parameters of the consumers' launches, with a prefetch and without."""
    return (
        Parameter(
            "pdl",
            (False, True),
            True,
            "programmatic launch of the consumers: each starts while what it follows ends",
            changes_bits=True,  # the winners with and without it differ in how they divide K
        ),
        Parameter(
            "consumer",
            consumers,
            next((kind for kind in (EARLY, COLD) if kind in consumers), consumers[0]),
            "whether consumers run as is best for cold weights or for warm ones, or early: those behind the idle phase "
            "as is best when what they ask for meanwhile costs nothing",
            changes_bits=len(consumers) > 1,
        ),
        Parameter(
            "shared",
            (OWN, MOST),
            MOST,
            "how much of an SM's L1 consumers want as shared memory: each what it needs, or all of them the most, so "
            "that none waits for an SM to change its share",
        ),
    )


EARLY_RULE = Constraint(
    "early",
    "only a programmatic launch asks for weights before what it follows has ended",
    lambda p: bool(p["pdl"]) or p["consumer"] != EARLY,
)


def _plain(chain: Chain) -> VariantSpace:
    # Nothing makes weights warm here.
    return VariantSpace(PLAIN, _common(tuple(kind for kind in kinds(chain) if kind != WARM)), (EARLY_RULE,))


def _prefetch(chain: Chain, tokens: int, l2_bytes: int) -> VariantSpace:
    # Beyond the weights there is nothing to ask for.
    depths = (*(each for each in DEPTHS_MIB if each < whole_mib(chain)), whole_mib(chain))
    idle_ns = chain.idle_ns or REDUCTION_NS
    # The other half of what arrives meanwhile consumers ask for themselves.
    reach = min(idle_ns * BUS_BYTES_A_NS // 2, chain.weight_bytes, l2_bytes // 2) // MIB
    # How long a reduction takes is not known before it is measured.
    starts = (0, 50) if chain.idle_ns else (0,)
    walks = (ROWS, COLUMNS, LATER) if walked_bytes(chain, LATER) >= MIB else (ROWS, COLUMNS)

    def asked(params: Params) -> int:
        return min(int(params["depth_mib"]) * MIB, walked_bytes(chain, str(params["walk"])))

    return VariantSpace(
        PREFETCH,
        (
            Parameter(
                "depth_mib",
                depths,
                max((each for each in depths if each <= reach), default=depths[0]),
                "MiB of the consumers' weights that are asked for, in the order in which they are read",
            ),
            Parameter("grid", (8, 16, 32, 64), 32, "blocks, of which one thread each asks"),
            Parameter("chunk_kib", (4, 16), 16, "KiB of a request at most"),
            Parameter("carveout", (0, FULL), FULL, "percent of an SM's L1 that the kernel wants as shared memory"),
            Parameter("start_percent", starts, 0, "share of the idle phase that passes before the first request"),
            Parameter(
                "walk",
                walks,
                ROWS,
                "rows: weights as they lie; columns: the same share of every row, from what the first consumer asks "
                "for itself on; later: as they lie, from the second consumer on",
            ),
            *_common(kinds(chain)),
        ),
        (
            EARLY_RULE,
            Constraint(
                "walk",
                "behind the first consumer there are no more weights",
                lambda p: int(p["depth_mib"]) <= whole_mib(chain, str(p["walk"])),
            ),
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
