"""Crossovers: where one variant gives way to another at one shape, and where to measure to say it more narrowly.

Each variant's best at a workload is compared with the other's at the same workload, sample by sample where one session
interleaved them. Nothing is pooled: a crossover holds at its shape, which has one world and one width, on one target,
in one regime and for one revision of the kernels. Nothing is said of tokens outside the measured ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import combinations
from itertools import pairwise

from megatune_kernels.crossing import LEAST_DIFFERENCE
from megatune_kernels.crossing import next_tokens
from megatune_kernels.crossing import side
from megatune_kernels.operator import Workload
from megatune_kernels.statistics import Interval
from megatune_planner.band_schema import Band
from megatune_planner.crossover_schema import Crossover
from megatune_planner.crossover_schema import CrossoverPoint
from megatune_planner.crossover_schema import Ratio
from megatune_planner.crossover_schema import TokenRange
from megatune_planner.crossover_schema import Traffic
from megatune_planner.meeting import Compared
from megatune_planner.meeting import meet
from megatune_planner.ties import Candidate
from megatune_planner.ties import Comparison
from megatune_planner.ties import Samples
from megatune_planner.ties import compare

ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}
"""Of one element of a partial sum, by dtype."""


Best = Mapping[int, Mapping[str, Candidate]]
"""Of one shape, by tokens and name: each variant's best and each baseline."""


def crossovers(
    workload: Workload, best: Best, bands: Sequence[Band], samples: Samples, *, baselines: Sequence[str]
) -> tuple[Crossover, ...]:
    """Of every two variants of a shape, and of each other two that serve in neighbouring bands.

    :param workload: the shape at some number of tokens.
    :param baselines: names.
    """
    variants = sorted({name for known in best.values() for name in known} - set(baselines))
    pairs = dict.fromkeys([*combinations(variants, 2), *(tuple(sorted(pair)) for pair in _giving_way(bands))])
    found = (crossover(workload, best, first, second, samples) for first, second in pairs)
    return tuple(each for each in found if each is not None)


def _giving_way(bands: Sequence[Band]) -> Iterator[tuple[str, str]]:
    """Who serves in each two neighbouring bands, where that is not the same; stock's variant is its baseline."""
    serving = [
        band.decision.variant if band.decision.kind == "config" else band.points[0].baseline
        for band in bands
        if band.points
    ]
    yield from ((below, above) for below, above in pairwise(serving) if below != above)


def crossover(workload: Workload, best: Best, first: str, second: str, samples: Samples) -> Crossover | None:
    """Where one of two variants (or baselines) gives way to the other; None where both were never measured at once.

    :param workload: the shape at some number of tokens.
    """
    found: dict[int, tuple[Candidate, Candidate, Comparison]] = {}
    for tokens, known in sorted(best.items()):
        if first in known and second in known:
            found[tokens] = (known[first], known[second], compare(known[second], known[first], samples))
    if not found:
        return None
    met = meet([_compared(tokens, *each) for tokens, each in found.items()])
    below, above = (second, first) if met.swapped else (first, second)
    return Crossover(
        kind=met.kind,
        below=below,
        above=above,
        faster=below if met.kind == "never" and met.decided else None,
        tokens_lo=met.low,
        tokens_hi=met.high,
        estimate_tokens=met.estimate,
        traffic=_traffic(workload, met.low, met.high, met.estimate),
        changes=tuple(TokenRange(tokens_lo=low, tokens_hi=high) for low, high in met.changes),
        tied=met.tied,
        unmeasured=tuple(TokenRange(tokens_lo=low, tokens_hi=high) for low, high in met.unmeasured),
        least_difference=LEAST_DIFFERENCE,
        suspect=bool(met.suspect),
        suspect_reason=met.suspect,
        points=tuple(_point(tokens, *each, swapped=met.swapped) for tokens, each in found.items()),
    )


def sides(found: Crossover) -> dict[int, int]:
    """By measured tokens: 1 where ``below`` is faster, -1 where ``above`` is, 0 within the noise."""
    value = {found.below: 1, found.above: -1, None: 0}
    return {point.tokens: value[point.faster] for point in found.points}


def refinement(found: Sequence[Crossover]) -> tuple[int, ...]:
    """The tokens of a shape whose measurement narrows its crossovers the most, ascending.

    Measure both variants there, in one session, and ask again: it is empty once each crossover is known to one token,
    or to where the noise begins and ends.
    """
    return tuple(sorted({tokens for each in found for tokens in next_tokens(sides(each))}))


def one_shot_bytes(workload: Workload) -> int | None:
    """Bytes that each rank receives when every rank writes its whole partial to all, itself included.

    That is tokens x width x bytes an element x world, which runtimes compare their limits with; None for an operator
    that reduces nothing.
    """
    dims = dict(workload.dims)
    if workload.world == 1 or "width" not in dims or workload.dtype not in ITEM_BYTES:
        return None
    return workload.tokens * dims["width"] * ITEM_BYTES[workload.dtype] * workload.world


def _traffic(workload: Workload, low: int, high: int, estimate: float | None) -> Traffic | None:
    each = one_shot_bytes(workload.at(1))
    if each is None:
        return None
    return Traffic(
        bytes_a_token=each,
        bytes_lo=low * each,
        bytes_hi=high * each,
        estimate_bytes=None if estimate is None else round(estimate * each, 1),
    )


def _compared(tokens: int, first: Candidate, second: Candidate, ratio: Comparison) -> Compared:
    interval = Interval(ratio.ratio, ratio.low, ratio.high)
    return Compared(tokens, side(interval), interval, _latency(first), _latency(second))


def _latency(candidate: Candidate) -> Interval:
    return Interval(candidate.median_us, candidate.low_us, candidate.high_us)


def _point(tokens: int, first: Candidate, second: Candidate, ratio: Comparison, *, swapped: bool) -> CrossoverPoint:
    faster = {1: first.variant, -1: second.variant, 0: None}[side(Interval(ratio.ratio, ratio.low, ratio.high))]
    below, above = (second, first) if swapped else (first, second)
    spelled = (ratio.ratio, ratio.low, ratio.high)
    median, low, high = (1 / ratio.ratio, 1 / ratio.high, 1 / ratio.low) if swapped else spelled
    return CrossoverPoint(
        tokens=tokens,
        ratio=Ratio(median=median, low=low, high=high),
        faster=faster,
        paired=ratio.paired,
        provenance=below.provenance,
        evidence=(below.measurement_id, above.measurement_id),
    )
