"""Operands of a reduction and what finds a wrong result, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from megatune_kernels.operator import operator

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.torch

WORLD = 4
HEAPS = (100, 200, 300, 400)
WORKLOAD = operator("reduction").workload({"width": 256}, 3, world=WORLD)


@pytest.fixture
def ranks() -> list[Any]:
    from megatune_kernels.reduction.buffers import ReductionBuffers

    return [ReductionBuffers(WORKLOAD, rank, HEAPS, seed=1, device="cpu") for rank in range(WORLD)]


EVERY = "46080 of 46080 outputs are wrong"


def total(ranks: list[Any]) -> Any:
    return sum(rank._partials.float() for rank in ranks)


def reduce(ranks: list[Any]) -> None:
    result = total(ranks)
    for rank in ranks:
        rank._outputs.view(-1, *result.shape).copy_(result)


def checks(ranks: list[Any]) -> Iterator[str]:
    return (rank.check() for rank in ranks)


def test_every_rank_knows_the_sum_of_all(ranks: list[Any]) -> None:
    for _ in range(3):
        for rank in ranks:
            rank.refresh()
            rank.poison()
        assert all(EVERY in wrong for wrong in checks(ranks))
        reduce(ranks)
        assert list(checks(ranks)) == [""] * WORLD
        assert len({rank.fingerprint() for rank in ranks}) == 1


def test_a_sum_of_other_values_or_without_one_partial_is_found(ranks: list[Any]) -> None:
    reduce(ranks)
    for rank in ranks:
        rank.refresh()
    assert all(checks(ranks))
    reduce(ranks)
    # In whichever launch it happens.
    ranks[1]._outputs[42, 1, 7] -= ranks[3]._partials[2, 1, 7] or 1
    assert "rank 1: 1 of 46080 outputs are wrong; first: copy 42, token 1, column 7" in ranks[1].check()
    assert [rank.check() for rank in (ranks[0], *ranks[2:])] == [""] * (WORLD - 1)


def test_the_fingerprint_sees_bits_and_places(ranks: list[Any]) -> None:
    reduce(ranks)
    first = ranks[0].fingerprint()
    row = ranks[0]._outputs[1, 0].clone()
    swapped = row.clone()
    i = int((row[1:] != row[0]).nonzero()[0]) + 1
    swapped[[0, i]] = row[[i, 0]]
    ranks[0]._outputs[1, 0] = swapped
    assert ranks[0].fingerprint() != first
    ranks[0]._outputs[1, 0] = row
    assert ranks[0].fingerprint() == first
    ranks[0]._outputs[0, 0, 0] = 0.0
    plus = ranks[0].fingerprint()
    ranks[0]._outputs[0, 0, 0] = -0.0
    assert ranks[0].fingerprint() != plus


def test_sums_of_integers_are_exact_and_negative_zeros_come_alone_and_in_pairs(ranks: list[Any]) -> None:
    exact = total(ranks)[1:]
    assert torch.equal(exact, exact.to(torch.bfloat16).float())
    assert exact.abs().max() <= 240
    bits = ranks[2]._partials.view(torch.int16).flatten()
    negative = bits == -0x8000
    pairs = negative.view(-1, 2)
    assert pairs.all(dim=1).sum() > 20
    assert (pairs.sum(dim=1) == 1).sum() > 20


def test_pointers_and_scalars_follow_the_entry(ranks: list[Any]) -> None:
    rank = ranks[2]
    partial, output, *heaps = rank.pointers(7)
    assert heaps == [300, 400, 100, 200]
    assert partial == rank._partials[2].data_ptr()
    assert output == rank._outputs[7].data_ptr()
    assert rank.pointers(rank.copies) == rank.pointers(0)
    assert rank.scalars(7) == (2, 7)
    # A graph of all copies ends where it began, for every number of parities and the sets.
    assert all(rank.copies % count == 0 for count in (2, 3, 4, len(rank._partials)))


@pytest.mark.parametrize("name", ["nccl", "torch_two_shot"])
def test_what_reduces_in_place_is_checked_where_it_did(ranks: list[Any], name: str) -> None:
    for rank in ranks:
        rank._memories[name] = torch.empty(rank.copies, 3, 256, dtype=torch.bfloat16)
        rank.refresh()
        rank.poison()
    assert all(EVERY in wrong for wrong in checks(ranks))
    result = sum(rank._memories[name].float() for rank in ranks)
    for rank in ranks:
        rank._memories[name].copy_(result)
    assert list(checks(ranks)) == [""] * WORLD
    ranks[3]._memories[name][44, 2, 5] += 2.0
    wrong = "rank 3: 1 of 46080 outputs are wrong; first: copy 44, token 2, column 5"
    assert wrong in ranks[3].check()
    ranks[0]._memories[name][7].copy_(ranks[0]._partials[2])
    assert "of 46080 outputs are wrong; first: copy 7" in ranks[0].check()
    for rank in ranks:
        rank.poison()
    assert all(EVERY in wrong for wrong in checks(ranks))
