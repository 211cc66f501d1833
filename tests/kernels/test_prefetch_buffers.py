"""Operands of a chain: every consumer is checked, and tables say where its weights lie. On the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import operator
from megatune_kernels.prefetch.chain import chain_of
from megatune_kernels.space import Config

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

PREFETCH = operator("prefetch")
CHAIN = PREFETCH.workload(
    {
        "idle_ns": 3000,
        "n1": 64,
        "k1": 128,
        "n2": 32,
        "k2": 64,
        "n3": 48,
        "k3": 64,
        "after1": 3,
        "after3": 0,
        "after2": 1,
    },
    3,
)
COPIES = 3


@pytest.fixture
def buffers() -> Any:
    from megatune_kernels.prefetch.buffers import ChainBuffers

    return ChainBuffers(CHAIN, COPIES, 1, "cpu")


def run(buffers: Any, copies: range = range(COPIES), without: str = "") -> None:
    for name, operands in buffers._operands.items():
        if name != without:
            for copy in copies:
                operands.torch_mm(copy)


def test_tables_have_the_weights_of_each_copy_in_the_order_of_reading(buffers: Any) -> None:
    assert [c.name for c in chain_of(CHAIN).consumers] == ["consumer3", "consumer1", "consumer2"]
    for copy in range(COPIES):
        table = buffers._tables[copy]
        assert buffers.pointers(copy) == (table.data_ptr(),) == buffers.part_pointers("prefetch", copy)
        assert table.data_ptr() % 16 == 0
        assert table.tolist() == [
            [buffers.part_pointers(c.name, copy)[1], 2 * c.k + (c.n << 32)] for c in chain_of(CHAIN).consumers
        ]
    assert buffers.part_pointers("idle", 0) == ()


def test_every_consumer_of_every_copy_has_to_be_right(buffers: Any) -> None:
    for _ in range(3):
        buffers.poison()
        assert "outputs are outside" in buffers.check()
        run(buffers)
        assert buffers.check() == ""
        buffers.refresh()
        # What was right for other activations is not right now.
        assert "outputs are outside" in buffers.check()
    for name in ("consumer1", "consumer2", "consumer3"):
        buffers.poison()
        run(buffers, without=name)
        assert buffers.check().startswith(f"{name}: ")
    buffers.poison()
    run(buffers, range(2))
    assert "copy 2" in buffers.check()


@pytest.mark.parametrize("most", [None, 100, 1000, 4096])
@pytest.mark.parametrize("part", ["consumer1", "consumer2", "consumer3"])
def test_windows_cover_all_weights_once(buffers: Any, part: str, most: int | None) -> None:
    windows = buffers.windows(part, most)
    own = next(c for c in chain_of(CHAIN).consumers if c.name == part)
    assert (windows.workload["k"], windows.workload.tokens) == (own.k, 3)
    assert windows.bytes == 2 * windows.workload["n"] * own.k
    assert windows.workload["n"] == own.n if most is None else windows.bytes <= max(most, 2 * own.k)
    x, _, y = buffers.part_pointers(part, 0)
    assert {(p[0], p[2]) for p in windows.pointers} == {(x, y)}
    places = [p[1] for p in windows.pointers]
    assert len(set(places)) == len(places)
    for c in chain_of(CHAIN).consumers:
        first = buffers.part_pointers(c.name, 0)[1]
        mine = sorted(place for place in places if first <= place < first + COPIES * c.weight_bytes)
        assert mine == list(range(first, first + COPIES * c.weight_bytes - windows.bytes + 1, windows.bytes))
    assert buffers.windows("idle") is None


def test_a_consumer_is_launched_over_a_window_as_the_kernel_that_it_is() -> None:
    tuned = operator("projection")
    for part in PREFETCH.parts(CHAIN, Config.of("plain", {"pdl": True}))[1:]:
        smaller = tuned.workload({"n": 16, "k": part.workload["k"]}, 3)
        assert tuned.specialization(smaller, part.config) == tuned.specialization(part.workload, part.config)


def test_a_range_that_is_not_aligned_is_an_error_before_anything_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatune_kernels.prefetch import buffers

    class Shifted(buffers.ProjectionBuffers):
        def pointers(self, copy: int) -> tuple[int, ...]:
            x, w, y = super().pointers(copy)
            return x, w + 8, y

    monkeypatch.setattr(buffers, "ProjectionBuffers", Shifted)
    with pytest.raises(MegatuneError, match=r"^range 1: address \d+ is not a multiple of 16"):
        buffers.ChainBuffers(CHAIN, 1, 1, "cpu")


def test_ranks_of_a_group_share_sums_and_have_weights_of_their_own() -> None:
    from megatune_kernels.prefetch.buffers import GroupChainBuffers

    workload = PREFETCH.workload({"width": 64, "n1": 32, "k1": 64, "n2": 16, "k2": 32}, 3, world=2)
    ranks = [GroupChainBuffers(workload, rank, (1000, 2000), seed=1, device="cpu") for rank in range(2)]
    first, second = ranks
    assert first.copies % first.sets == 0
    assert first.sets > 1
    # Sets of weights take turns within the launches of a reduction.
    turns = [first.part_pointers("consumer1", copy)[1] for copy in range(first.copies)]
    assert turns == [*turns[: first.sets]] * (first.copies // first.sets)
    assert len({first.part_pointers("reduction", copy)[1] for copy in range(first.copies)}) == first.copies
    assert first.part_pointers("reduction", 7)[2:] == (1000, 2000)
    assert second.part_pointers("reduction", 7)[2:] == (2000, 1000)
    assert (second.part_scalars("reduction", 7), second.part_scalars("consumer1", 7), second.scalars(7)) == (
        (1, 7),
        (),
        (),
    )
    assert first.pointers(first.sets) == first.pointers(0)
    total = sum(rank._reduction._partials.float() for rank in ranks)
    for rank in ranks:
        assert "consumer1" in rank.check()
        rank._reduction._outputs.view(-1, *total.shape).copy_(total)
        for operands in rank._operands.values():
            operands._y.copy_(torch.stack([operands._x.float() @ w.float().T for w in operands._w]))
    assert [rank.check() for rank in ranks] == ["", ""]
    assert first.fingerprint() == second.fingerprint()
    first._reduction._outputs[41, 1, 5] += 4.0
    assert "copy 41, token 1, column 5" in first.check()
    assert first.fingerprint() != second.fingerprint()
    for rank in ranks:
        rank.refresh()
        rank.poison()
    assert "consumer1" in second.check()
    assert not torch.equal(first._operands["consumer1"]._w, second._operands["consumer1"]._w)
