"""One cell: what is asked, in which order, and when it ends."""

from __future__ import annotations

from functools import cache

from optuna.trial import TrialState
from toy import Toy
from toy import true_us

from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_tuner.candidates import Catalogue
from megatune_tuner.cell import Cell
from megatune_tuner.cell import Proposal
from megatune_tuner.cell import cell_seed

WORKLOAD = Toy().workload({"n": 1536, "k": 7168}, 4)


@cache
def catalogue() -> Catalogue:
    return Catalogue(Toy().space(WORKLOAD, architecture("sm_90a")))


def ask(cell: Cell) -> Proposal:
    proposal = cell.ask()
    assert proposal is not None
    return proposal


def test_defaults_come_first_then_what_is_enqueued_then_the_sampler() -> None:
    cell = Cell(WORKLOAD, catalogue(), trials=5)
    simt, mma, wanted = (catalogue().configs[index] for index in (*catalogue().defaults(), 9))
    cell.enqueue(wanted, "incumbent")
    cell.enqueue(simt, "incumbent")  # is queued already
    asked = [ask(cell) for _ in range(5)]
    reasons = [(proposal.config, proposal.reason) for proposal in asked]
    assert reasons[:3] == [(simt, "default"), (mma, "default"), (wanted, "incumbent")]
    assert [proposal.reason for proposal in asked[3:]] == ["sampler", "sampler"]
    assert len({proposal.config for proposal in asked}) == 5
    assert cell.done
    assert cell.ask() is None


def test_an_illegal_config_is_enqueued_as_the_nearest_legal_one() -> None:
    cell = Cell(WORKLOAD, catalogue(), trials=None)
    cell.enqueue(Config.of("simt", {"block": 256, "rows": 4, "unroll": 8, "static": True}), "neighbour")
    cell.enqueue(Config.of("unheard", {}), "neighbour")
    third = [ask(cell) for _ in range(4)][2]
    assert third.reason == "neighbour"
    assert third.config in (
        Config.of("simt", {"block": 256, "rows": 3, "unroll": 4, "static": True}),
        Config.of("simt", {"block": 256, "rows": 4, "unroll": 4, "static": True}),
    )


def test_what_is_forgotten_is_not_proposed() -> None:
    cell = Cell(WORKLOAD, catalogue(), trials=None)
    cell.enqueue(catalogue().configs[9], "neighbour")
    cell.enqueue(catalogue().configs[11], "incumbent")
    cell.forget("neighbour")
    assert [ask(cell).config for _ in range(3)][2] == catalogue().configs[11]


def test_what_is_known_costs_nothing_and_is_never_proposed() -> None:
    known = {config: true_us(WORKLOAD, config) for config in catalogue().configs[:-3]}
    failed = catalogue().configs[-3]
    cell = Cell(WORKLOAD, catalogue(), trials=None)
    for config, us in known.items():
        cell.learn(config, us)
        cell.learn(config, 0.001)  # a second time does not count
    cell.learn(failed, None)
    cell.learn(Config.of("stock", {}), 1.0)
    assert cell.spent == 0
    assert cell.best_us == min(known.values())
    assert {ask(cell).config, ask(cell).config} == set(catalogue().configs[-2:])
    assert cell.done
    states = [trial.state for trial in cell.study.trials]
    assert states.count(TrialState.COMPLETE) == len(known)
    assert states.count(TrialState.FAIL) == 1


def test_failures_are_told_as_failures() -> None:
    cell = Cell(WORKLOAD, catalogue(), trials=None)
    good, bad = ask(cell), ask(cell)
    cell.tell(good, 5.0)
    cell.tell(bad, None)
    assert [trial.state for trial in cell.study.trials] == [TrialState.COMPLETE, TrialState.FAIL]
    assert [trial.value for trial in cell.study.trials] == [5.0, None]
    assert cell.ranked() == [good.config]
    assert cell.known == {good.config: 5.0, bad.config: None}


def test_patience_ends_a_cell_that_comes_no_further() -> None:
    cell = Cell(WORKLOAD, catalogue(), trials=None, patience=3)
    told: list[str] = []
    while (proposal := cell.ask()) is not None:
        told.append(proposal.reason)
        # Half a percent is noise, not progress; the fourth is a leap.
        cell.tell(proposal, 5.0 if len(told) < 4 else 4.0 - 0.001 * len(told))
    assert told == ["default"] * 2 + ["sampler"] * 5


def test_ties_are_ranked_in_the_order_of_measuring() -> None:
    cell = Cell(WORKLOAD, catalogue(), trials=4)
    asked = [ask(cell) for _ in range(4)]
    for proposal, us in zip(asked, (3.0, 2.0, 3.0, 2.0), strict=True):
        cell.tell(proposal, us)
    assert cell.ranked() == [asked[1].config, asked[3].config, asked[0].config, asked[2].config]


def test_seeds_differ_by_cell_and_by_progress() -> None:
    seeds = {cell_seed(seed, WORKLOAD.at(tokens), spent) for seed in (0, 1) for tokens in (1, 2) for spent in (0, 5)}
    assert len(seeds) == 8
