"""What the latency model says of worlds and tokens, as data: always marked as predicted, with its error beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from itertools import groupby
from typing import Any
from typing import Literal

import numpy as np
from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_kernels.crossing import side
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import operator as registered
from megatune_kernels.statistics import Interval
from megatune_kernels.target import Target
from megatune_planner.crossover_schema import TokenRange
from megatune_planner.crossovers import ITEM_BYTES
from megatune_planner.curves import best_of_each
from megatune_planner.evidence import ShapeEvidence
from megatune_planner.evidence import gather
from megatune_planner.latency_model import Cell
from megatune_planner.latency_model import VariantModel
from megatune_planner.latency_model import fit
from megatune_planner.meeting import Compared
from megatune_planner.meeting import meet
from megatune_planner.schema import Microseconds
from megatune_planner.schema import Part
from megatune_planner.schema import Tokens

OPERATOR = "reduction"
MOST_PLACES = 1024
"""A crossover is looked for at every number of tokens, or at so many where there are more."""


class PredictedLatency(Part):
    """A latency that was not measured."""

    variant: str
    """Whose."""
    world: int
    """Ranks."""
    width: int
    """Elements of a row."""
    tokens: Tokens
    """Rows."""
    median_us: Microseconds
    """The likeliest."""
    low_us: Microseconds
    """Lower end of the interval."""
    high_us: Microseconds
    """Upper end of the interval."""
    provenance: Literal["predicted"] = "predicted"
    """Always."""


class PredictedCrossover(Part):
    """Where one variant is predicted to give way to the other at one world and width."""

    kind: Literal["point", "interval", "contested", "never"]
    """As of measured crossovers; here ``point`` says that every number of tokens was predicted."""
    below: str
    """Faster at the small end."""
    above: str
    """The other one."""
    faster: str | None
    """Of ``never``: which is nowhere slower; None where nothing can be told, and for the other kinds."""
    world: int
    """Ranks."""
    width: int
    """Elements of a row."""
    tokens_lo: Tokens
    """The last tokens at which ``below`` is faster whatever is left open; of ``never`` the fewest predicted."""
    tokens_hi: Tokens
    """The first at which ``above`` is; of ``never`` the most."""
    likeliest_tokens: Tokens | None
    """The last tokens at which ``below`` is the likelier to be faster; None where that does not change just once."""
    undecided: tuple[TokenRange, ...]
    """Tokens at which either may be the faster one."""
    traffic_lo_bytes: int
    """One-shot traffic at ``tokens_lo``."""
    traffic_hi_bytes: int
    """One-shot traffic at ``tokens_hi``."""
    provenance: Literal["predicted"] = "predicted"
    """Always."""


class ModelledVariant(Part):
    """The model of one variant, and how wrong it is where the truth is known."""

    variant: str
    """Whose."""
    hops: int
    """Of its pattern."""
    hop_us: float
    """Latency of a hop in microseconds."""
    link_gbps: float | None
    """10^9 bytes a second that a rank sends; None where bytes cost nothing that shows."""
    token_us: float
    """Cost of a token beside its bytes, in microseconds; 0 where one width was measured, which cannot tell it apart."""
    worlds: tuple[int, ...]
    """That it was fitted to."""
    cells: int
    """That it was fitted to."""
    median_error: float
    """Of the cells, each predicted without it: share of the measured latency, without its sign."""
    largest_error: float
    """The largest of them."""
    interval: float
    """Predictions within the measured worlds are right up to this factor, for 95 % of the cells."""


class Report(Part):
    """The models of one machine's variants, and what they say."""

    targets: tuple[str, ...]
    """Digests of the machine's targets."""
    regime: str
    """Of the cells."""
    fitted_to: str
    """Provenance of the cells."""
    models: tuple[ModelledVariant, ...]
    """By variant."""
    latencies: tuple[PredictedLatency, ...]
    """By world, width, variant and tokens."""
    crossovers: tuple[PredictedCrossover, ...]
    """By world and width."""


def report(
    session: Session,
    *,
    targets: Sequence[str],
    regime: Regime,
    provenance: Provenance,
    worlds: Sequence[int] = (),
    widths: Sequence[int] = (),
    tokens: Sequence[int] = (),
    operator: str = OPERATOR,
) -> Report:
    """Fit the models of one machine and predict.

    :param targets: digests; several only where nothing but the world differs.
    :param worlds: to predict for; empty for those that were measured. What is named may lie beyond them.
    :param widths: empty for every measured one.
    :param tokens: empty for the powers of two within what was measured.
    :raises MegatuneError: for what the models say nothing of, and for targets that are none or not of one machine.
    :raises NothingMeasured: when there is no cell.
    """
    cells = cells_of(session, targets=targets, regime=regime, provenance=provenance, operator=operator)
    models = fit(cells)
    latencies, crossovers = [], []
    for world in worlds or sorted({world for model in models.values() for world in model.worlds}):
        for width in widths or sorted({width for model in models.values() for width in model.tokens}):
            known = {name: model for name, model in models.items() if widths or width in model.tokens}
            for model in known.values():
                places = tokens or default_tokens(model, width)
                latencies += [predicted(model, world, width, each, beyond=bool(worlds)) for each in places]
            crossovers += predicted_crossovers(known, world, width, beyond=bool(worlds))
    return Report(
        targets=tuple(targets),
        regime=str(regime),
        fitted_to=str(provenance),
        models=tuple(modelled(model) for model in models.values()),
        latencies=tuple(latencies),
        crossovers=tuple(crossovers),
    )


def cells_of(
    session: Session,
    *,
    targets: Sequence[str],
    regime: Regime,
    provenance: Provenance,
    operator: str = OPERATOR,
    only: Sequence[str] = (),
) -> list[Cell]:
    """Each variant's best at every measured workload of one machine.

    :param targets: digests; several only where nothing but the world differs.
    :param provenance: of every cell; they are never mixed.
    :param only: digests of workloads, for these alone; empty: all of the operator.
    :raises MegatuneError: for an unknown target, for targets of different machines, and for several revisions of the
        kernels.
    :raises NothingMeasured: when there is no cell.
    """
    known = {row.digest: row for row in queries.targets(session, counted=False)}
    unknown = [digest for digest in targets if digest not in known]
    if unknown:
        raise MegatuneError(f"the database has no target {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    found = [Target.from_dict({"hardware": known[d].hardware, "toolchain": known[d].toolchain}) for d in targets]
    if len({replace(each, hardware=replace(each.hardware, world=1)) for each in found}) > 1:
        raise MegatuneError("a model is of one machine: these targets differ in more than their world")
    # Baselines are named as such, because they have no revision of the kernels that would have to agree.
    baselines = {operator: registered(operator).baselines}
    asked: dict[str, Any] = {"regime": regime, "provenances": [provenance], "baselines": baselines, "only": only}
    shapes = [shape for digest in targets for shape in gather(session, target=digest, expresses={}, **asked)]
    revisions = {shape.revision: shape.workload for shape in shapes if shape.revision}
    if len(revisions) > 1:
        which = " and ".join(f"{w.shape} world={w.world} (revision {each[:8]})" for each, w in revisions.items())
        raise MegatuneError(
            f"a model is of one revision of the kernels: {operator} {which} differ; run the older one's campaign again"
        )
    cells = [cell for shape in shapes for cell in _cells(shape)]
    if not cells:
        raise NothingMeasured(
            f"nothing of {operator} is {provenance} on {', '.join(targets)} in regime {regime}: a model needs cells"
        )
    return cells


def _cells(shape: ShapeEvidence) -> Iterator[Cell]:
    dims = dict(shape.workload.dims)
    size = ITEM_BYTES.get(shape.workload.dtype)
    if "width" not in dims or size is None:
        return
    for tokens, measured in sorted(shape.at.items()):
        for name, best in best_of_each(measured).items():
            us = Interval(best.median_us, best.low_us, best.high_us)
            yield Cell(name, shape.workload.world, dims["width"], tokens, size, us)


def modelled(model: VariantModel) -> ModelledVariant:
    """The model as data."""
    errors = sorted(abs(each.error) for each in model.errors)
    return ModelledVariant(
        variant=model.variant,
        hops=model.pattern.hops,
        hop_us=model.hop_us,
        link_gbps=None if math.isinf(model.link_gbps) else model.link_gbps,
        token_us=model.token_us,
        worlds=model.worlds,
        cells=len(errors),
        median_error=errors[len(errors) // 2],
        largest_error=errors[-1],
        interval=math.exp(model.spread),
    )


def predicted(model: VariantModel, world: int, width: int, tokens: int, *, beyond: bool = False) -> PredictedLatency:
    """One prediction as data; it refuses what the model does."""
    found = model.predict(world, width, tokens, beyond=beyond)
    return PredictedLatency(
        variant=model.variant,
        world=world,
        width=width,
        tokens=tokens,
        median_us=found.median_us,
        low_us=found.low_us,
        high_us=found.high_us,
    )


def predicted_crossovers(
    models: Mapping[str, VariantModel], world: int, width: int, *, beyond: bool = False
) -> list[PredictedCrossover]:
    """Of every two variants of the same kind, ours and the baselines apart, at the tokens that both were measured at.

    :param beyond: whether a world outside the measured ones is asked for on purpose.
    :raises MegatuneError: outside what the models were fitted to.
    """
    pairs = [pair for pair in combinations(models, 2) if models[pair[0]].pattern != models[pair[1]].pattern]
    return [_predicted_crossover(models[a], models[b], world, width, beyond=beyond) for a, b in pairs if _kin(a, b)]


def _kin(one: str, other: str) -> bool:
    """Whether two are of one library: its name is what comes before the pattern."""
    return one.startswith("torch_") == other.startswith("torch_")


def _predicted_crossover(
    first: VariantModel, second: VariantModel, world: int, width: int, *, beyond: bool
) -> PredictedCrossover:
    slack = math.exp(math.hypot(first.spread, second.spread))
    certain, likely = [], []
    for tokens in _common_tokens(first, second, width):
        one, other = (model.possible_us(world, width, tokens, beyond=beyond) for model in (first, second))
        ratios = [b / a for a, b in zip(one, other, strict=True)]
        certain.append(Compared(tokens, side(Interval(ratios[0], min(ratios) / slack, max(ratios) * slack))))
        likely.append(Compared(tokens, side(Interval(ratios[0], ratios[0], ratios[0]), least=0.0)))
    met, likeliest = meet(certain), meet(likely)
    below, above = (second, first) if met.swapped else (first, second)
    each = world * width * first.item_bytes
    return PredictedCrossover(
        kind=met.kind,
        below=below.variant,
        above=above.variant,
        faster=below.variant if met.kind == "never" and met.decided else None,
        world=world,
        width=width,
        tokens_lo=met.low,
        tokens_hi=met.high,
        likeliest_tokens=likeliest.low if len(likeliest.changes) == 1 else None,
        undecided=tuple(_runs(certain)),
        traffic_lo_bytes=met.low * each,
        traffic_hi_bytes=met.high * each,
    )


def _runs(points: Sequence[Compared]) -> Iterator[TokenRange]:
    """Neighbouring places without a side."""
    for undecided, run in groupby(points, key=lambda point: point.side == 0):
        if undecided:
            places = [point.at for point in run]
            yield TokenRange(tokens_lo=places[0], tokens_hi=places[-1])


def _common_tokens(first: VariantModel, second: VariantModel, width: int) -> list[int]:
    """Every number of tokens that both say something of, or ``MOST_PLACES`` of them."""
    ranges = [model.tokens[width] for model in (first, second) if width in model.tokens]
    low, high = max((low for low, _ in ranges), default=1), min((high for _, high in ranges), default=0)
    if len(ranges) < 2 or low > high:
        raise MegatuneError(
            f"no prediction for width {width}: {first.variant} and {second.variant} have no measured tokens in common"
        )
    if high - low < MOST_PLACES:
        return list(range(low, high + 1))
    return sorted({low, high, *np.geomspace(low, high, MOST_PLACES).astype(int).tolist()})


def default_tokens(model: VariantModel, width: int) -> list[int]:
    """The powers of two within what was measured of a variant, and the ends; empty for a width that was not."""
    if width not in model.tokens:
        return []
    low, high = model.tokens[width]
    powers = {1 << exponent for exponent in range(high.bit_length())}
    return sorted({low, high, *(power for power in powers if low <= power <= high)})
