"""A model of a reduction's latency: what measured cells say of worlds and tokens that were not measured.

A launch of a variant takes

    hop latency x hops + link bytes / bandwidth + cost of a token x tokens,

with the hops and link bytes of its pattern: full fan-out makes one hop and sends its whole partial to every peer,
two-stage makes two and sends a share of it twice. The three coefficients are fitted for each variant, none of them
negative, to the measured cells of one machine by robust least squares of the relative error. What cells cannot tell
apart is not fitted: with one width a token costs nothing beside its bytes, and with one world neither does a peer.

A prediction is marked as one and has an interval: the error of each measured cell when the model is fitted without it.
At a world that was not measured the interval also spans what one world cannot tell: whether a hop grows with the ranks,
and whether the bytes wait for the links or for the GPU. Where there is nothing to judge by, the model refuses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_kernels.statistics import Interval

MIN_CELLS = 5
"""Fewer cannot say how wrong a model of up to three coefficients is."""
REACH = 4
"""A world this many times the largest measured one is the last that is predicted."""
HOP_GROWTH = Interval(1.1, 1.0, 1.3)
"""How a hop grows each time the ranks double: published all-reduces of 4 KiB take 1.05 to 1.28 times as long on 4 ranks
of a host as on 2, and on 8 as on 4, mostly 1.1 times (``published/figures.json``, entries ``aic-ar-…``)."""
COVERAGE = 0.95
HUBER = 1.345
"""Residuals up to so many of their spread count in full (P. J. Huber, Robust Statistics: 95 % efficient for normal
errors)."""


class Pattern(NamedTuple):
    """How a variant moves a partial."""

    hops: int
    shares: bool
    """Whether each rank is sent its share of the columns, instead of the whole partial."""

    def link_bytes(self, world: int, payload: float) -> float:
        """What a rank sends over its links, for a partial of ``payload`` bytes."""
        return 2 * payload * (world - 1) / world if self.shares else payload * (world - 1)

    def local_bytes(self, world: int, payload: float) -> float:
        """What a rank reads of the partials that it has been sent."""
        return 2 * payload if self.shares else payload * world


FAN_OUT = Pattern(1, shares=False)
TWO_STAGE = Pattern(2, shares=True)
PATTERNS = {
    "full_fanout": FAN_OUT,
    "two_stage": TWO_STAGE,
    "torch_one_shot": FAN_OUT,
    "torch_two_shot": TWO_STAGE,
    "one_shot": FAN_OUT,
    "two_shot": TWO_STAGE,
}
"""Of the variants and baselines whose traffic is known; NCCL chooses its own."""


@dataclass(frozen=True)
class Cell:
    """A measured latency."""

    variant: str
    world: int
    width: int
    """Elements of a row."""
    tokens: int
    item_bytes: int
    us: Interval

    @property
    def payload(self) -> int:
        """Bytes of one rank's partial."""
        return self.tokens * self.width * self.item_bytes


class Prediction(NamedTuple):
    """A latency that was not measured. Microseconds a launch."""

    median_us: float
    low_us: float
    high_us: float
    provenance: Provenance
    beyond: bool
    """Whether the world lies outside the measured ones."""


class CellError(NamedTuple):
    """A measured cell, and what the model says of it when it is fitted without it."""

    cell: Cell
    predicted_us: float
    error: float
    """Predicted over measured, less 1."""


@dataclass(frozen=True)
class VariantModel:
    """The model of one variant on one machine."""

    variant: str
    pattern: Pattern
    hop_us: float
    """Latency of a hop."""
    us_a_byte: float
    """Microseconds a byte that a rank sends; 0 where bytes cost nothing that shows."""
    token_us: float
    """Cost of a token beside its bytes."""
    worlds: tuple[int, ...]
    """Measured, ascending."""
    tokens: Mapping[int, tuple[int, int]]
    """By width: the fewest and the most tokens that were measured."""
    item_bytes: int
    errors: tuple[CellError, ...]
    """Of every cell, ascending in world, width and tokens."""

    @property
    def link_gbps(self) -> float:
        """10^9 bytes a second that a rank sends; infinite where bytes cost nothing that shows."""
        return 1e-3 / self.us_a_byte if self.us_a_byte else math.inf

    @property
    def spread(self) -> float:
        """Logarithm of the factor within which ``COVERAGE`` of the cells were predicted."""
        sizes = sorted(abs(math.log1p(each.error)) for each in self.errors)
        # The order statistic that bounds the next error as well as these (split conformal prediction).
        return sizes[min(len(sizes), math.ceil(COVERAGE * (len(sizes) + 1))) - 1]

    def predict(self, world: int, width: int, tokens: int, *, beyond: bool = False) -> Prediction:
        """The latency of the variant's best.

        :param width: elements of a row; one that was measured.
        :param beyond: whether a world outside the measured ones is asked for on purpose.
        :raises MegatuneError: outside what the model was fitted to.
        """
        possible = self.possible_us(world, width, tokens, beyond=beyond)
        factor = math.exp(self.spread)
        return Prediction(
            median_us=possible[0],
            low_us=min(possible) / factor,
            high_us=max(possible) * factor,
            provenance=Provenance.PREDICTED,
            beyond=world not in self.worlds,
        )

    def possible_us(self, world: int, width: int, tokens: int, *, beyond: bool = False) -> list[float]:
        """The latency under each assumption on what the measured worlds leave open, the likeliest first.

        The assumptions are the same, and in the same order, for every variant. Arguments and errors are those of
        ``predict``.
        """
        self._check(world, width, tokens, beyond=beyond)
        payload = tokens * width * self.item_bytes
        near = min(self.worlds, key=lambda each: abs(math.log(world / each)))
        doublings = 0.0 if world in self.worlds else math.log2(world / near)
        hops = [self.hop_us * self.pattern.hops * growth**doublings for growth in HOP_GROWTH]
        linked = self.us_a_byte * self.pattern.link_bytes(world, payload)
        local = self.pattern.local_bytes(world, payload) / self.pattern.local_bytes(near, payload)
        handled = self.us_a_byte * self.pattern.link_bytes(near, payload) * local
        if world in self.worlds:
            handled = linked
        return [hop + moved + self.token_us * tokens for moved in (linked, handled) for hop in hops]

    def _check(self, world: int, width: int, tokens: int, *, beyond: bool) -> None:
        measured = f"{self.variant} was measured at world {', '.join(map(str, self.worlds))}"
        if width not in self.tokens:
            widths = ", ".join(map(str, sorted(self.tokens)))
            raise MegatuneError(f"no prediction for width {width}: {self.variant} was measured at width {widths}")
        low, high = self.tokens[width]
        if not low <= tokens <= high:
            raise MegatuneError(
                f"no prediction for {tokens} tokens: {self.variant} was measured from {low} to {high} tokens at width "
                f"{width}"
            )
        if world in self.worlds:
            return
        if not beyond:
            raise MegatuneError(f"no prediction for world {world} unless one beyond is asked for: {measured}")
        if not 2 <= world <= REACH * self.worlds[-1]:
            raise MegatuneError(
                f"no prediction for world {world}: {measured}, which says something of worlds from 2 to "
                f"{REACH * self.worlds[-1]}"
            )


def fit(cells: Iterable[Cell]) -> dict[str, VariantModel]:
    """The models of the variants whose pattern is known, by name.

    :param cells: measured on one machine, all of one provenance; each (variant, world, width, tokens) once.
    :raises MegatuneError: when there are too few cells of every variant, or their elements differ in size.
    """
    by_variant: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.variant, cell.world, cell.width, cell.tokens)):
        if cell.variant in PATTERNS:
            by_variant.setdefault(cell.variant, []).append(cell)
    found = {variant: _fit(mine) for variant, mine in by_variant.items() if len(mine) >= MIN_CELLS}
    if not found:
        counts = ", ".join(f"{len(mine)} of {variant}" for variant, mine in by_variant.items()) or "none"
        raise MegatuneError(
            f"too few cells for a model: it takes {MIN_CELLS} of one variant, there are {counts}; known are "
            f"{', '.join(PATTERNS)}"
        )
    return found


def _fit(cells: Sequence[Cell]) -> VariantModel:
    sizes = {cell.item_bytes for cell in cells}
    if len(sizes) > 1:
        raise MegatuneError(f"one model is of one dtype: the cells' elements have {', '.join(map(str, sizes))} bytes")
    pattern = PATTERNS[cells[0].variant]
    features = np.array([_features(cell, pattern) for cell in cells])
    used = _separable(features)
    times = np.array([cell.us.median for cell in cells])
    errors = []
    for left_out, cell in enumerate(cells):
        others = np.arange(len(cells)) != left_out
        predicted = float(features[left_out] @ _solve(features[others], times[others], used))
        errors.append(CellError(cell, predicted, predicted / cell.us.median - 1))
    hop, byte, token = _solve(features, times, used).tolist()
    widths = sorted({cell.width for cell in cells})
    return VariantModel(
        variant=cells[0].variant,
        pattern=pattern,
        hop_us=hop,
        us_a_byte=byte,
        token_us=token,
        worlds=tuple(sorted({cell.world for cell in cells})),
        tokens={width: _range(cell.tokens for cell in cells if cell.width == width) for width in widths},
        item_bytes=sizes.pop(),
        errors=tuple(errors),
    )


def _features(cell: Cell, pattern: Pattern) -> tuple[float, float, float]:
    return (pattern.hops, pattern.link_bytes(cell.world, cell.payload), cell.tokens)


def _range(values: Iterable[int]) -> tuple[int, int]:
    found = sorted(values)
    return found[0], found[-1]


def _separable(features: NDArray[np.float64]) -> list[int]:
    """The columns that the cells can tell apart, the earlier ones first."""
    used: list[int] = []
    scaled = features / np.maximum(np.abs(features).max(axis=0), 1e-300)
    for column in range(features.shape[1]):
        if np.linalg.matrix_rank(scaled[:, [*used, column]], tol=1e-6 * math.sqrt(len(features))) == len(used) + 1:
            used.append(column)
    return used


def _solve(features: NDArray[np.float64], times: NDArray[np.float64], used: Sequence[int]) -> NDArray[np.float64]:
    """Coefficients, none negative, with the least Huber loss of the relative errors."""
    rows = features / times[:, None]
    weights = np.ones(len(times))
    found = np.zeros(features.shape[1])
    for _ in range(20):
        found = _non_negative(rows * weights[:, None], weights, used)
        residuals = np.abs(rows @ found - 1)
        spread = max(float(np.median(residuals)) / 0.6745, 1e-6)
        weights = np.sqrt(np.minimum(1, HUBER * spread / np.maximum(residuals, 1e-12)))
    return found


def _non_negative(rows: NDArray[np.float64], wanted: NDArray[np.float64], used: Sequence[int]) -> NDArray[np.float64]:
    """Least squares with coefficients of 0 or more: the best over every choice of which are not 0."""
    best, least = np.zeros(rows.shape[1]), float(wanted @ wanted)
    for count in range(1, len(used) + 1):
        for columns in combinations(used, count):
            solution = np.linalg.lstsq(rows[:, columns], wanted, rcond=None)[0]
            loss = float(np.sum((rows[:, columns] @ solution - wanted) ** 2))
            if (solution >= 0).all() and loss < least:
                best, least = np.zeros(rows.shape[1]), loss
                best[list(columns)] = solution
    return best
