"""Searching many cells at once: whose turn it is, and what one cell learns from its neighbours.

Cells take turns in a fixed order, some proposals at a time. So all of them come equally far when time runs out, and
what is found in one serves its neighbours while they still search: their winners are tried, and their measurements are
the model's evidence. Between two turns of a cell, compiling for it hides behind measuring for others.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence

from megatune_kernels.operator import Workload
from megatune_tuner.cell import Cell
from megatune_tuner.cell import Proposal

TURNS = 4
"""Turns in which a cell spends its trials: more change the workload more often and find nothing better."""
LEAST_A_TURN = 8
KNOWN_A_TURN = 32
"""A turn has one proposal for so many measurements of the cell: what a turn costs grows with them up to some hundreds,
so that a trial costs less than 20 ms however many there are."""
WINNERS = 1
"""Configs that a cell takes from each neighbour."""
SHAPES = 2
"""Neighbouring shapes that a cell takes winners from."""
EVIDENCE = 12
"""Nearest cells whose measurements are evidence."""

NEIGHBOUR = "neighbour"


class Neighbourhood:
    """Which workloads are near to which: of the same operator, dims, dtype, world and routing, by the ratios of their
    tokens and dims."""

    def __init__(self, workloads: Sequence[Workload]) -> None:
        self._families: dict[tuple[object, ...], list[Workload]] = {}
        for workload in workloads:
            self._families.setdefault(_family(workload), []).append(workload)

    def nearest(self, workload: Workload) -> list[Workload]:
        """The ``EVIDENCE`` nearest ones."""
        others = [other for other in self._families[_family(workload)] if other != workload]
        return sorted(others, key=lambda other: _octaves(workload, other))[:EVIDENCE]

    def neighbours(self, workload: Workload) -> list[Workload]:
        """Whose winners are worth a trial: the next fewer and next more tokens at the same shape, then the ``SHAPES``
        nearest shapes at the same tokens."""
        family = self._families[_family(workload)]
        fewer = [other for other in family if other.dims == workload.dims and other.tokens < workload.tokens]
        more = [other for other in family if other.dims == workload.dims and other.tokens > workload.tokens]
        next_ones = [max(fewer, key=_tokens, default=None), min(more, key=_tokens, default=None)]
        shapes = [other for other in family if other.tokens == workload.tokens and other != workload]
        shapes.sort(key=lambda other: _octaves(workload, other))
        return [other for other in next_ones if other is not None] + shapes[:SHAPES]


def _family(workload: Workload) -> tuple[object, ...]:
    names = tuple(name for name, _ in workload.dims)
    return (workload.operator, workload.dtype, workload.world, workload.routing, names)


def _tokens(workload: Workload) -> int:
    return workload.tokens


def _octaves(one: Workload, other: Workload) -> float:
    """How far apart in tokens and dims, in factors of two."""
    ratios = [one.tokens / other.tokens, *(a / b for (_, a), (_, b) in zip(one.dims, other.dims, strict=True))]
    return math.hypot(*(math.log2(ratio) for ratio in ratios))


def largest_first(workloads: Sequence[Workload]) -> list[Workload]:
    """The same workloads, those with the most tokens of each shape before all others.

    Whatever grows with the tokens, such as a workspace, is largest there: where time can end a campaign early, that
    has to be seen before the ones in between, which neighbours can speak for.
    """
    largest: dict[Workload, Workload] = {}
    for workload in workloads:
        largest[workload.at(0)] = max(largest.get(workload.at(0), workload), workload, key=_tokens)
    return list(dict.fromkeys([*largest.values(), *workloads]))


def turn_size(cell: Cell) -> int:
    """How many proposals a cell makes in its next turn."""
    return max(LEAST_A_TURN, math.ceil((cell.trials or 0) / TURNS), len(cell.known) // KNOWN_A_TURN)


class Search:
    """Whose turn it is, over the cells of a campaign.

    :param workloads: in the order in which they take turns.
    :param open_cell: makes the cell of a workload, when its first turn comes.
    """

    def __init__(self, workloads: Sequence[Workload], open_cell: Callable[[Workload], Cell]) -> None:
        self.cells: dict[Workload, Cell] = {}
        self._open_cell = open_cell
        near = Neighbourhood(workloads)
        self._neighbours = {workload: near.neighbours(workload) for workload in workloads}
        self._nearest = {workload: near.nearest(workload) for workload in workloads}
        self._waiting = deque(workloads)

    @property
    def done(self) -> bool:
        """Whether every cell has proposed all that it will."""
        return all(workload in self.cells and self.cells[workload].done for workload in self._waiting)

    def turn(self) -> tuple[Cell, list[Proposal]] | None:
        """The next cell and what it proposes, at least one config; None when every cell is done."""
        while self._waiting:
            workload = self._waiting.popleft()
            if workload not in self.cells:
                self.cells[workload] = self._open_cell(workload)
            cell = self.cells[workload]
            proposals = self._propose(cell)
            if proposals:
                self._waiting.append(workload)
                return cell, proposals
        return None

    def _propose(self, cell: Cell) -> list[Proposal]:
        # Winners change while the neighbours search, so only the latest are worth a trial.
        cell.forget(NEIGHBOUR)
        cell.neighbours = [self.cells[other] for other in self._nearest[cell.workload] if other in self.cells]
        near = [self.cells[other] for other in self._neighbours[cell.workload] if other in self.cells]
        ranked = [other.ranked()[:WINNERS] for other in near]
        for place in range(WINNERS):
            for winners in ranked:
                if place < len(winners):
                    cell.enqueue(winners[place], NEIGHBOUR)
        size = turn_size(cell)
        proposals: list[Proposal] = []
        cell.begin_turn()
        while len(proposals) < size and (proposal := cell.ask()) is not None:
            proposals.append(proposal)
        return proposals
