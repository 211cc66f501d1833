"""What the measurements of a cell and its neighbours say of the configs that were not measured: a Gaussian process.

The logarithm of a time is modelled as the sum of

* a level of its cell, of which nothing is assumed;
* an offset of its variant, that changes slowly over tokens and dims;
* a smooth function of the config, one part the same everywhere and one that changes over tokens and dims;
* a deviation of the very config that no parameter explains (bank conflicts, wave tails, what the compiler made of it);
* noise.

The deviation is what makes neighbours worth so much: in recorded spaces of projections its standard deviation is some
7 %, and most of it is the same at the next tokens. The variances and lengths below are near those of greatest
likelihood there; a length for each parameter, or fitting them anew, searches no better.

Rasmussen and Williams, Gaussian Processes for Machine Learning, chapters 2 and 5.3 (several tasks).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_tuner.candidates import Catalogue
from megatune_tuner.candidates import Group

Array = NDArray[np.float64]

LEVEL = 1.0
VARIANT = 0.25
VARIANT_HERE = 0.05
SMOOTH = 0.08
SMOOTH_HERE = 0.05
DEVIATION = 0.001
DEVIATION_HERE = 0.0055
NOISE = 1e-4
"""Variances of the parts, of the natural logarithm of a time."""

AXIS_LENGTH = 0.9
"""Of a parameter's whole range."""
OCTAVES = 1.2
"""Of tokens and of each dim."""

MOST_OWN = 400
MOST_A_NEIGHBOUR = 24
"""Measurements that are taken into account, the fastest first: more make the process slow and say little."""
PROMISING = 400
"""Configs whose deviation is worked out, those with the least mean first."""


@dataclass(frozen=True)
class Evidence:
    """What is known of one cell."""

    workload: Workload
    catalogue: Catalogue
    known: Mapping[Config, float | None]
    """Microseconds of every config that was measured; None: it failed."""


_Row = tuple[Evidence, int, int, float]
"""A measurement: of which cell, that cell's number, index of the config, logarithm of the time less the cell's mean."""


@dataclass(frozen=True)
class Posterior:
    """Of the logarithm of the time of every config of a catalogue, up to the cell's level; shape (configs,).

    The mean is infinite where it promises nothing, so that nothing more was worked out.
    """

    mean: Array
    deviation: Array


@dataclass(frozen=True)
class Scale:
    """Factors on what the process assumes, for samplers that vary it."""

    axis_length: float = 1.0
    octaves: float = 1.0
    smooth: float = 1.0
    deviation: float = 1.0


@dataclass(frozen=True)
class _Points:
    """Configs of one variant in one or more cells, one a row."""

    axes: Array
    """Values as shares of each parameter's range, shape (points, parameters)."""
    tasks: Array
    """Binary logarithms of tokens and dims, shape (points, 1 + dims)."""
    cells: NDArray[np.int64]
    """Number of each point's cell, shape (points,)."""
    configs: NDArray[np.int64]
    """Number of each point's config, shape (points,)."""


def posterior(own: Evidence, others: Sequence[Evidence], free: NDArray[np.bool_], scale: Scale) -> Posterior:
    """What is to be expected of the configs of ``own`` that are free.

    :param others: cells of the same operator and dims.
    :param free: shape (configs,).
    """
    numbers: dict[Config, int] = {}
    # Of a variant whose parameters are others elsewhere, nothing is learned from there.
    variants = {group.axes: number for number, group in enumerate(own.catalogue.groups)}
    rows: list[list[_Row]] = [[] for _ in variants]
    for cell, evidence in enumerate((own, *others)):
        found = _fastest(evidence, MOST_A_NEIGHBOUR if cell else MOST_OWN)
        # Levels are free, so a cell's mean may go; the process has then less to explain.
        middle = sum(log for _, log in found) / max(1, len(found))
        for index, log in found:
            variant = variants.get(evidence.catalogue.groups[evidence.catalogue.group_of[index]].axes)
            if variant is not None:
                rows[variant].append((evidence, cell, index, log - middle))
    blocks = [_points(of_variant, group, numbers) for of_variant, group in zip(rows, own.catalogue.groups, strict=True)]
    ends = np.cumsum([0, *(len(block.cells) for block in blocks)]).tolist()
    spans = [slice(*ends[number : number + 2]) for number in range(len(blocks))]
    cells = np.concatenate([block.cells for block in blocks])
    covariance = LEVEL * (cells[:, None] == cells[None]) + NOISE * np.eye(len(cells))
    for block, span in zip(blocks, spans, strict=True):
        covariance[span, span] += _covariance(block, block, scale)
    inverse = np.linalg.inv(covariance)
    weights = inverse @ np.array([log for of_variant in rows for *_, log in of_variant])

    mean = np.full(len(own.catalogue), np.inf)
    deviation = np.zeros(len(own.catalogue))
    shared = []
    for group, block, span in zip(own.catalogue.groups, blocks, spans, strict=True):
        members = group.first + np.flatnonzero(free[group.first : group.first + len(group.ranks)])
        wanted = _points([(own, 0, index, 0.0) for index in members.tolist()], group, numbers)
        # Without the level: it is the same for every config here.
        shared.append((members, span, _covariance(wanted, block, scale)))
        mean[members] = shared[-1][2] @ weights[span]
    limit = np.partition(mean, min(PROMISING, len(mean)) - 1)[min(PROMISING, len(mean)) - 1]
    mean[mean > limit] = np.inf
    prior = VARIANT + VARIANT_HERE + scale.smooth * (SMOOTH + SMOOTH_HERE)
    prior += scale.deviation * (DEVIATION + DEVIATION_HERE)
    for members, span, of_group in shared:
        promising = np.isfinite(mean[members])
        kept = of_group[promising]
        explained = ((kept @ inverse[span, span]) * kept).sum(axis=1)
        deviation[members[promising]] = np.sqrt(np.maximum(prior - explained, NOISE))
    return Posterior(mean, deviation)


def _fastest(evidence: Evidence, most: int) -> list[tuple[int, float]]:
    """The fastest configs by index and logarithm of the time; what failed counts as slow as the slowest."""
    working = {config: us for config, us in evidence.known.items() if us is not None}
    if not working:
        return []
    slowest = max(working.values())
    times = [(slowest if us is None else us, evidence.catalogue.index[config]) for config, us in evidence.known.items()]
    return [(index, math.log(us)) for us, index in sorted(times)[:most]]


def _points(rows: Sequence[_Row], group: Group, numbers: dict[Config, int]) -> _Points:
    """Rows of one variant, that of the group."""
    axes, tasks, cells, configs = [], [], [], []
    for evidence, cell, index, _ in rows:
        there = evidence.catalogue.groups[evidence.catalogue.group_of[index]]
        axes.append(there.shares[index - there.first])
        tasks.append([math.log2(evidence.workload.tokens), *(math.log2(size) for _, size in evidence.workload.dims)])
        cells.append(cell)
        configs.append(numbers.setdefault(evidence.catalogue.configs[index], len(numbers)))
    return _Points(
        np.array(axes).reshape(len(rows), len(group.variant.parameters)),
        np.array(tasks).reshape(len(rows), len(tasks[0]) if tasks else 0),
        np.array(cells, dtype=np.int64),
        np.array(configs, dtype=np.int64),
    )


def _covariance(one: _Points, other: _Points, scale: Scale) -> Array:
    """Between configs of one variant, without level and noise; shape (points of one, points of other)."""
    if not (len(one.cells) and len(other.cells)):
        return np.zeros((len(one.cells), len(other.cells)))
    near = _matern(one.tasks, other.tasks, OCTAVES * scale.octaves)
    alike = _matern(one.axes, other.axes, AXIS_LENGTH * scale.axis_length)
    same = one.configs[:, None] == other.configs[None]
    found = VARIANT + VARIANT_HERE * near + scale.smooth * alike * (SMOOTH + SMOOTH_HERE * near)
    return np.asarray(found + scale.deviation * same * (DEVIATION + DEVIATION_HERE * near))


def _matern(one: Array, other: Array, length: float) -> Array:
    """Matérn's covariance with nu = 5/2."""
    squares = (one * one).sum(axis=1)[:, None] + (other * other).sum(axis=1)[None] - 2 * one @ other.T
    r = np.sqrt(5 * np.maximum(squares, 0.0)) / length
    return np.asarray((1 + r + r * r / 3) * np.exp(-r))
