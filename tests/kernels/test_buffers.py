"""Operands and the bound that outputs must keep to, on the CPU."""

from __future__ import annotations

import pytest

from megatune_kernels.projection.operator import Projection

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.torch

WORKLOAD = Projection().workload({"n": 96, "k": 512}, 3)


@pytest.fixture
def buffers():  # type: ignore[no-untyped-def]
    from megatune_kernels.projection.buffers import ProjectionBuffers

    return ProjectionBuffers(WORKLOAD, copies=2, seed=1, device="cpu")


def test_the_baseline_is_within_the_bound(buffers) -> None:  # type: ignore[no-untyped-def]
    for _ in range(3):
        buffers.refresh()
        buffers.poison()
        for copy in range(buffers.copies):
            buffers.torch_mm(copy)
        assert buffers.check() == ""


def test_what_was_not_written_is_found(buffers) -> None:  # type: ignore[no-untyped-def]
    buffers.poison()
    buffers.torch_mm(0)
    assert "288 of 576 outputs" in buffers.check()
    assert "copy 1, token 0, row 0" in buffers.check()


def test_a_result_of_other_inputs_is_found(buffers) -> None:  # type: ignore[no-untyped-def]
    for copy in range(buffers.copies):
        buffers.torch_mm(copy)
    assert buffers.check() == ""
    buffers.refresh()
    assert buffers.check() != ""


def test_one_lost_product_is_found(buffers) -> None:  # type: ignore[no-untyped-def]
    for copy in range(buffers.copies):
        buffers.torch_mm(copy)
    # The largest product of one output: what a tail that is a step short would lose.
    products = buffers._x[0].double() * buffers._w[0, 0].double()
    short = buffers._y[0, 0, 0].double() - products[products.abs().argmax()]
    buffers._y[0, 0, 0] = short.to(torch.bfloat16)
    assert buffers.check().startswith("1 of 576")


def test_copies_and_sets_differ(buffers) -> None:  # type: ignore[no-untyped-def]
    pointers = {pointer for copy in range(buffers.copies) for pointer in buffers.pointers(copy)}
    assert len(pointers) == 5
    assert not torch.equal(buffers._w[0], buffers._w[1])
    assert not torch.equal(buffers._choices[0], buffers._choices[1])
