"""Searching many cells at once: whose turn it is, and what one cell learns from its neighbours.

Cells take turns in a fixed order, a few proposals at a time. So all of them come equally far when time runs out, and
what works in one is tried in its neighbours while they still search: the winners at the next fewer and next more
tokens of the same shape, and of the nearest shapes at the same tokens. Between two turns of a cell, compiling for
it hides behind measuring for others.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence

from megatune_kernels.operator import Workload
from megatune_tuner.cell import Cell
from megatune_tuner.cell import Proposal

TURNS = 8
"""Turns in which a cell spends its trials: more turns share earlier, fewer change the workload less often."""
LEAST_A_TURN = 4
WINNERS = 2
"""Configs that a cell takes from each neighbour: the second best there is the best here often enough."""
SHAPES = 2
"""Neighbouring shapes that a cell takes winners from."""

NEIGHBOUR = "neighbour"


def neighbours(workloads: Sequence[Workload]) -> dict[Workload, list[Workload]]:
    """For each workload the nearest ones of its operator, dtype, world and routing.

    First the next fewer and next more tokens at the same shape, then the ``SHAPES`` nearest shapes (by the ratios of
    their dims) at the same tokens.
    """
    families: dict[tuple[object, ...], list[Workload]] = {}
    for workload in workloads:
        names = tuple(name for name, _ in workload.dims)
        family = (workload.operator, workload.dtype, workload.world, workload.routing, names)
        families.setdefault(family, []).append(workload)
    found = {}
    for family_members in families.values():
        by_shape: dict[str, list[Workload]] = {}
        by_tokens: dict[int, list[Workload]] = {}
        for workload in family_members:
            by_shape.setdefault(workload.shape, []).append(workload)
            by_tokens.setdefault(workload.tokens, []).append(workload)
        for workload in family_members:
            fewer = [other for other in by_shape[workload.shape] if other.tokens < workload.tokens]
            more = [other for other in by_shape[workload.shape] if other.tokens > workload.tokens]
            near = [max(fewer, key=_tokens, default=None), min(more, key=_tokens, default=None)]
            shapes = [other for other in by_tokens[workload.tokens] if other is not workload]
            shapes.sort(key=lambda other: _apart(workload, other))
            found[workload] = [other for other in near if other is not None] + shapes[:SHAPES]
    return found


def _tokens(workload: Workload) -> int:
    return workload.tokens


def _apart(one: Workload, other: Workload) -> float:
    return sum(abs(math.log(a / b)) for (_, a), (_, b) in zip(one.dims, other.dims, strict=True))


class Search:
    """Whose turn it is, over the cells of a campaign.

    :param workloads: in the order in which they take turns.
    :param open_cell: makes the cell of a workload, when its first turn comes.
    """

    def __init__(self, workloads: Sequence[Workload], open_cell: Callable[[Workload], Cell]) -> None:
        self.cells: dict[Workload, Cell] = {}
        self._open_cell = open_cell
        self._neighbours = neighbours(workloads)
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
        near = [self.cells[other] for other in self._neighbours[cell.workload] if other in self.cells]
        ranked = [other.ranked()[:WINNERS] for other in near]
        for place in range(WINNERS):
            for winners in ranked:
                if place < len(winners):
                    cell.enqueue(winners[place], NEIGHBOUR)
        size = max(LEAST_A_TURN, math.ceil((cell.trials or 0) / TURNS))
        proposals: list[Proposal] = []
        while len(proposals) < size and (proposal := cell.ask()) is not None:
            proposals.append(proposal)
        return proposals
