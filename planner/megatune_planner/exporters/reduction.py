"""What an all-reduce setting may rest on: the decisions of a plan's bands, read at measured tokens only.

Runtimes ask one question in many units: up to which size is one-shot right? The answer here is the largest measured
number of tokens up to which every measured one was won by the algorithm asked for. It is never interpolated upwards: a
crossover that lies somewhere between two measured numbers of tokens leaves the tokens in between to the other side. A
contested crossover leaves all of its range to the other side, and one that is suspect carries no limit at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from megatune_kernels.errors import MegatuneError
from megatune_planner.band_schema import BandPoint
from megatune_planner.crossover_schema import Crossover
from megatune_planner.crossovers import ITEM_BYTES
from megatune_planner.exporters.measured import require_links
from megatune_planner.exporters.measured import require_measured
from megatune_planner.exporters.reduction_schema import Limit
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan

OPERATOR = "reduction"
FULL_FANOUT = "full_fanout"
TWO_STAGE = "two_stage"

Algorithm = Literal["one_shot", "two_shot"]

ALGORITHMS: dict[str, Algorithm] = {
    FULL_FANOUT: "one_shot",
    "torch_one_shot": "one_shot",
    TWO_STAGE: "two_shot",
    "torch_two_shot": "two_shot",
}
"""What each variant and baseline is; NCCL is neither, and decides for itself."""


@dataclass(frozen=True)
class Served:
    """What the plan runs at one measured number of tokens."""

    point: BandPoint
    name: str
    """The variant; where the plan says stock, the fastest baseline."""

    @property
    def tokens(self) -> int:
        return self.point.tokens

    @property
    def algorithm(self) -> Algorithm | None:
        return ALGORITHMS.get(self.name)


def reductions(plan: Plan, exporter: str) -> tuple[ShapePlan, ...]:
    """The plan's shapes of the operator ``reduction``, by world and width.

    :raises MegatuneError: when the plan has none, or counts figures as evidence that no group of GPUs has shown.
    """
    shapes = plan.operator(OPERATOR).shapes
    require_measured(plan, shapes, exporter)
    require_links(plan, exporter)
    return tuple(sorted(shapes, key=lambda shape: (shape.world, -width_of(shape))))


def width_of(shape: ShapePlan) -> int:
    """Elements of one token's partial."""
    return shape.dims["width"]


def label(shape: ShapePlan) -> str:
    """For people, e.g. ``width 7168 bf16, world 8``."""
    return f"width {width_of(shape)} {shape.dtype}, world {shape.world}"


def served(shape: ShapePlan) -> Iterator[Served]:
    """What the plan runs at every measured number of tokens, ascending."""
    for band in shape.bands:
        for point in band.points:
            yield Served(point, point.baseline if band.decision.kind == "stock" else band.decision.variant)


def trust(crossover: Crossover) -> None:
    """:raises MegatuneError: when the crossover is suspect."""
    if crossover.suspect:
        raise MegatuneError(
            f"the crossover from {crossover.below} to {crossover.above} is suspect, so measure both again: "
            f"{crossover.suspect_reason}"
        )


def contested(crossover: Crossover) -> str:
    """What to say of a crossover with several changes of sides; empty for any other."""
    if crossover.kind != "contested":
        return ""
    return (
        f"contested: {crossover.below} and {crossover.above} change sides {len(crossover.changes)} times from "
        f"{crossover.tokens_lo} to {crossover.tokens_hi} tokens"
    )


def limit(shape: ShapePlan, *algorithms: Algorithm) -> Limit:
    """Up to which tokens one of these algorithms won at every measured number of tokens.

    :raises MegatuneError: when 1 token was not measured, because a limit also speaks for everything below it; when a
        crossover of these algorithms to others is suspect; and when the dtype's bytes are not known.
    """
    if shape.dtype not in ITEM_BYTES:
        raise MegatuneError(f"how many bytes {shape.dtype} has is not known; known are {', '.join(ITEM_BYTES)}")
    points = list(served(shape))
    if points[0].tokens != 1:
        raise MegatuneError(
            f"a limit holds from 1 token on, and measured were {points[0].tokens} and more: measure 1 token too"
        )
    warnings, end = [], points[-1].tokens
    for crossover in shape.crossovers:
        is_in = [ALGORITHMS.get(name) in algorithms for name in (crossover.below, crossover.above)]
        if is_in[0] == is_in[1]:
            continue
        trust(crossover)
        if crossover.kind == "contested":
            warnings.append(f"{contested(crossover)}: the limit ends before the first change")
            end = min(end, crossover.tokens_lo if is_in[0] else 0)
    wins = [each.algorithm in algorithms and each.tokens <= end for each in points]
    count = wins.index(False) if False in wins else len(points)
    last, loss = points[count - 1] if count else None, points[count] if count < len(points) else None
    tokens = last.tokens if last else 0
    if loss is None:
        warnings.append(
            f"nothing was measured beyond {tokens} tokens: the limit is where measuring ended, no crossover"
        )
    elif loss.tokens > tokens + 1:
        warnings.append(
            f"{_span(tokens + 1, loss.tokens - 1)} tokens were not measured, and are left to the other side"
        )
    bytes_a_token = width_of(shape) * ITEM_BYTES[shape.dtype]
    return Limit(
        world=shape.world,
        width=width_of(shape),
        dtype=shape.dtype,
        algorithms=algorithms,
        tokens=tokens,
        bytes_a_token=bytes_a_token,
        payload_bytes=tokens * bytes_a_token,
        traffic_bytes=tokens * bytes_a_token * shape.world,
        next_tokens=loss.tokens if loss else None,
        next_serves=loss.name if loss else None,
        measured_to=points[-1].tokens,
        provenance=tuple(sorted({provenance for each in points for provenance in each.point.provenance})),
        evidence=tuple(sorted({id_ for each in (last, loss) if each for id_ in each.point.evidence})),
        warnings=tuple(warnings),
    )


def _span(lo: int, hi: int) -> str:
    return str(lo) if lo == hi else f"{lo} to {hi}"
