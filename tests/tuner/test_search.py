"""Many cells: turns, neighbours, and what they learn from each other."""

from __future__ import annotations

from toy import Toy
from toy import true_us
from toy_recordings import workloads

from megatune_kernels.operator import Workload
from megatune_kernels.target import architecture
from megatune_tuner.candidates import Catalogue
from megatune_tuner.cell import Cell
from megatune_tuner.search import EVIDENCE
from megatune_tuner.search import LEAST_A_TURN
from megatune_tuner.search import Neighbourhood
from megatune_tuner.search import Search

SM90 = architecture("sm_90a")


def at(n: int, k: int, tokens: int) -> Workload:
    return Toy().workload({"n": n, "k": k}, tokens)


def test_neighbours_are_the_next_tokens_and_the_nearest_shapes() -> None:
    near = Neighbourhood(workloads())
    found = near.neighbours(at(1536, 7168, 4))
    assert found == [at(1536, 7168, 2), at(1536, 7168, 8), at(3072, 7168, 4), at(7168, 1536, 4)]
    assert near.neighbours(at(1536, 7168, 1))[0] == at(1536, 7168, 2)
    assert near.neighbours(at(3072, 7168, 32))[0] == at(3072, 7168, 16)


def test_evidence_comes_from_the_nearest_cells() -> None:
    found = Neighbourhood(workloads()).nearest(at(1536, 7168, 4))
    assert len(found) == len(set(found)) == EVIDENCE
    assert set(found[:3]) == {at(1536, 7168, 2), at(1536, 7168, 8), at(3072, 7168, 4)}
    assert at(1536, 7168, 4) not in found


def test_other_dtypes_and_worlds_are_no_neighbours() -> None:
    one = at(1536, 7168, 4)
    others = [
        Workload("toy", one.dims, 8, dtype="fp8"),
        Workload("toy", one.dims, 8, world=8),
        Workload("toy", one.dims, 8, routing="skewed"),
        Workload("other", one.dims, 8),
        Workload("toy", (("k", 7168),), 8),
    ]
    near = Neighbourhood([one, *others])
    assert near.neighbours(one) == near.nearest(one) == []


def test_turns_go_round_and_end() -> None:
    cells = workloads(tokens=(1, 2))[:3]
    opened = []

    def open_cell(workload: Workload) -> Cell:
        opened.append(workload)
        return Cell(workload, Catalogue(Toy().space(workload, SM90)), trials=20, seed=0)

    search = Search(cells, open_cell)
    assert not search.done
    turns = []
    while (asked := search.turn()) is not None:
        cell, proposals = asked
        turns.append((cell.workload, len(proposals)))
        for proposal in proposals:
            cell.tell(proposal, true_us(cell.workload, proposal.config))
    assert opened == cells
    assert turns == [(cell, count) for count in (LEAST_A_TURN, LEAST_A_TURN, 4) for cell in cells]
    assert search.done
    assert search.turn() is None


def test_winners_are_tried_in_the_neighbours() -> None:
    cells = workloads(shapes=[(1536, 7168)], tokens=(1, 2))
    search = Search(cells, lambda workload: Cell(workload, Catalogue(Toy().space(workload, SM90)), trials=40, seed=0))
    best, reasons = {}, []
    while (asked := search.turn()) is not None:
        cell, proposals = asked
        for proposal in proposals:
            reasons.append(proposal.reason)
            cell.tell(proposal, true_us(cell.workload, proposal.config))
        best[cell.workload] = cell.ranked()[0]
    assert reasons.count("neighbour") >= 2
    for one, other in ((cells[0], cells[1]), (cells[1], cells[0])):
        # What wins in the one was measured in the other before the last turn.
        assert best[one] in search.cells[other].known or search.cells[other].known[best[other]] is not None
