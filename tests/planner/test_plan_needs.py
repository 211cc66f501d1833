"""What the kernels of a band need: memory of every rank, and all their blocks on the GPU at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from megatune_kernels.operator import operator
from megatune_kernels.operator import operators
from megatune_kernels.space import Config
from megatune_kernels.target import Hardware
from megatune_kernels.target import architecture_of
from megatune_planner.bands import Segment
from megatune_planner.planning import _needs

H200 = architecture_of(Hardware("NVIDIA H200", "sm_90a", "2335", 132, 50 << 20, 140 << 30, "none"))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """In the place of the toys."""
    operators.cache_clear()
    yield
    operators.cache_clear()


def test_a_router_front_alone_waits_for_its_own_mailbox() -> None:
    tuned = operator("router_front")
    workload = tuned.workload({"experts": 896, "k": 7168, "latent": 448, "top": 16}, 1)
    (config,) = tuned.space(workload, H200).defaults()
    memory, resident = _needs(workload, config, Segment(1, 12, config.digest))
    # At the most tokens of the band, which are padded to 16.
    assert (memory.bytes, memory.alignment, resident) == (16 * 896 * 4, 128, True)


def test_a_chain_of_a_group_has_what_its_reduction_has() -> None:
    tuned = operator("prefetch")
    workload = tuned.workload({"width": 7168, "n1": 2112, "k1": 7168}, 1, world=2)
    segment = Segment(1, 1, "")
    for config in tuned.space(workload, H200).defaults():
        (part,) = (part for part in tuned.parts(workload, config) if part.name == "reduction")
        memory = operator("reduction").workspace(part.workload, part.config)
        assert memory.bytes
        found, resident = _needs(workload, config, segment)
        assert (found.bytes, found.alignment, resident) == (memory.bytes, memory.alignment, True)


def test_what_no_kernel_here_has_needs_nothing_on_one_gpu() -> None:
    tuned = operator("projection")
    workload = tuned.workload({"n": 256, "k": 1024}, 1)
    memory, resident = _needs(workload, Config.of("of another runtime", {}), Segment(1, 1, ""))
    assert (memory.bytes, resident) == (0, False)
