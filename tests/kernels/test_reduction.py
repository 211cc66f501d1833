"""The reduction without a GPU: workloads, space, the memory that a config moves, and the protocol between ranks."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from math import gcd

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from reduction_model import Broken
from reduction_model import Ranks
from reduction_model import choose
from reduction_model import reduced

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import operator
from megatune_kernels.reduction.geometry import FLAG
from megatune_kernels.reduction.geometry import FLAG_BYTES
from megatune_kernels.reduction.geometry import SENTINEL
from megatune_kernels.reduction.geometry import FullFanout
from megatune_kernels.reduction.geometry import TwoStage
from megatune_kernels.reduction.space import MOST_WORKSPACE_BYTES
from megatune_kernels.reduction.space import tiles_of
from megatune_kernels.space import Config
from megatune_kernels.target import architecture

SM90 = architecture("sm_90a")
REDUCTION = operator("reduction")


EXAMPLE = FullFanout(
    tokens=2,
    width=64,
    world=2,
    blocks=2,
    threads=8,
    vector=16,
    columns=64,
    tile_tokens=1,
    parities=2,
    signal=SENTINEL,
    backoff=0,
    ahead=1,
    pdl=False,
)


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


@st.composite
def shapes(draw: st.DrawFn, most_tokens: int = 12, most_vectors: int = 12) -> FullFanout | TwoStage:
    """Small reductions of any shape that the kernels know, with fewer threads than a block has."""
    kind = draw(st.sampled_from([FullFanout, TwoStage]))
    world = draw(st.integers(2, 5))
    vector = draw(st.sampled_from([8, 16]))
    extent = vector // 2 * draw(st.integers(1, most_vectors))
    tokens = draw(st.integers(1, most_tokens))
    columns = draw(st.sampled_from([d for d in divisors(extent) if 2 * d % vector == 0]))
    return kind(
        tokens=tokens,
        width=extent * (world if kind is TwoStage else 1),
        world=world,
        blocks=draw(st.integers(1, 12)),
        threads=draw(st.integers(1, 16)),
        vector=vector,
        columns=columns,
        tile_tokens=draw(st.integers(1, tokens)) if columns == extent else 1,
        parities=draw(st.integers(2, 4)),
        signal=draw(st.sampled_from([SENTINEL, FLAG])),
        backoff=0,
        ahead=draw(st.integers(1, 4)),
        pdl=False,
    )


@given(shapes(), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=150)
def test_every_element_is_sent_summed_and_stored_once(tiles: FullFanout | TwoStage, seed: int) -> None:
    partials = np.random.default_rng(seed).integers(0, 1 << 40, (tiles.world, tiles.tokens, tiles.width))
    outputs = reduced(tiles, partials)
    assert (outputs == partials.sum(axis=0)).all()


@given(shapes(most_tokens=40, most_vectors=40))
def test_mailboxes_and_flags_lie_apart_and_aligned(tiles: FullFanout | TwoStage) -> None:
    workspace = tiles.workspace
    assert workspace.alignment % 32 == 0
    assert workspace.bytes == tiles.parities * tiles.parity_bytes
    assert tiles.parity_bytes % workspace.alignment == tiles.box_bytes % workspace.alignment == 0
    spans = [
        (box * tiles.box_bytes + tiles.box_byte(tile, 0), tiles.tile_bytes)
        for box in range(tiles.boxes)
        for tile in range(tiles.tiles)
    ]
    if tiles.signal == FLAG:
        flags = [tiles.flag_byte(box, tile) for box in range(tiles.boxes) for tile in range(tiles.tiles)]
        assert all(flag % FLAG_BYTES == 0 for flag in flags)
        spans += [(flag, FLAG_BYTES) for flag in flags]
    spans.sort()
    assert all(first + size <= following for (first, size), (following, _) in pairwise(spans))
    assert spans[0][0] == 0
    assert sum(spans[-1]) <= tiles.parity_bytes


@given(st.integers(2, 16), st.data())
def test_a_rank_and_its_peer_mean_the_same_mailbox(world: int, data: st.DataObject) -> None:
    tiles = replace(EXAMPLE, world=world)
    rank, peer = data.draw(st.integers(0, world - 1)), data.draw(st.integers(0, world - 2))
    there = tiles.peer_rank(rank, peer, choose)
    assert there == (rank + 1 + peer) % world
    assert tiles.box_rank(there, tiles.box_at_peer(rank, peer, choose), choose) == rank


@given(shapes(most_tokens=4, most_vectors=3), st.integers(2, 5), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=100)
def test_no_order_of_blocks_and_stores_breaks_the_protocol(
    tiles: FullFanout | TwoStage, launches: int, chance: random.Random
) -> None:
    Ranks(tiles, launches, chance).run()


@pytest.mark.parametrize("kind", [FullFanout, TwoStage])
def test_one_parity_is_too_few(kind: type[FullFanout] | type[TwoStage]) -> None:
    """That the model finds what is wrong: with one parity a rank overwrites what its peer has not read."""
    columns = EXAMPLE.width // (2 if kind is TwoStage else 1)
    tiles = kind(**{**vars(EXAMPLE), "parities": 1, "columns": columns, "tokens": 1})

    def run() -> None:
        for seed in range(1000):
            Ranks(tiles, 3, random.Random(seed)).run()

    with pytest.raises(Broken, match=r"overwrites|instead of"):
        run()


def test_waiting_before_sending_ends_in_all_waiting() -> None:
    """That the model finds a hang: a block that waits for a tile before it has sent its own."""

    class Early(Ranks):
        def _block(self, rank, number, block):  # type: ignore[no-untyped-def]
            return sorted(super()._block(rank, number, block), key=lambda step: step[0] == "store")

    with pytest.raises(Broken, match="all wait"):
        Early(EXAMPLE, 1, random.Random(0)).run()


@pytest.mark.parametrize(
    ("dims", "tokens", "rest", "message"),
    [
        ({"k": 64}, 1, {}, "has the dim width, got k"),
        ({}, 1, {}, "has the dim width, got none"),
        ({"width": 7172}, 1, {}, "multiple of 8"),
        ({"width": 1 << 17}, 1, {}, "at most 65536"),
        ({"width": 64}, 0, {}, "1 to 512 tokens"),
        ({"width": 64}, 513, {}, "1 to 512 tokens"),
        ({"width": 64}, 1, {"world": 1}, "2 to 16 ranks"),
        ({"width": 64}, 1, {"world": 17}, "2 to 16 ranks"),
        ({"width": 64}, 1, {"dtype": "fp8"}, "allowed: bf16"),
    ],
)
def test_impossible_workloads_are_refused(
    dims: dict[str, int], tokens: int, rest: dict[str, object], message: str
) -> None:
    with pytest.raises(MegatuneError, match=message):
        REDUCTION.workload(dims, tokens, **rest)  # type: ignore[arg-type]


def test_the_workloads_of_a_model_are_its_widths_over_the_tensor_parallel_ranks() -> None:
    kimi = model("kimi-k3")
    found = REDUCTION.workloads(kimi, Parallel(8), [1, 16])
    assert [(w["width"], w.tokens, w.world) for w in found] == [
        (7168, 1, 8),
        (7168, 16, 8),
        (3584, 1, 8),
        (3584, 16, 8),
    ]
    assert REDUCTION.workloads(kimi, Parallel(1), [1]) == []
    dense = model("deepseek-v3")
    assert dense.latent is None
    assert {w["width"] for w in REDUCTION.workloads(dense, Parallel(2), [1])} == {dense.hidden}


@pytest.mark.parametrize(("width", "world"), [(7168, 2), (7168, 8), (3584, 4), (3584, 16)])
@pytest.mark.parametrize("tokens", [1, 65, 512])
def test_spaces_can_be_searched(width: int, world: int, tokens: int) -> None:
    workload = REDUCTION.workload({"width": width}, tokens, world=world)
    space = REDUCTION.space(workload, SM90)
    assert 300 <= len(space) <= 5000
    assert [config.variant for config in space.defaults()] == ["full_fanout", "two_stage"]
    for config in space.defaults():
        # Everything that is not a matter of the shape is as declared.
        assert (config.params["signal"], config.params["vector"], config.params["pdl"]) == (SENTINEL, 16, True)
    for config in space.configs[::37]:
        launch, workspace = REDUCTION.launch(workload, config), REDUCTION.workspace(workload, config)
        assert launch.resident
        assert launch.grid[0] <= 256
        assert 0 < workspace.bytes <= MOST_WORKSPACE_BYTES
        assert workspace.bytes % workspace.alignment == 0
        assert workspace.armed == (0x80008000 if config.params["signal"] == SENTINEL else 0)
        tiles = tiles_of(workload, config.variant, config.params)
        assert tiles.grid == launch.grid[0]
        assert gcd(tiles.element_byte(tiles.tiles - 1, 0), tiles.box_bytes) % tiles.vector == 0
        assert space.violations(config) == []


PROBED = {
    # Of h200x2_reduction_probe.json: tokens, blocks and threads of the fastest full fan-out and two-stage.
    1: ((8, 128), (4, 128)),
    2: ((32, 128), (8, 128)),
    4: ((64, 128), (16, 128)),
    8: ((64, 128), (32, 128)),
    16: ((64, 256), (64, 128)),
    32: ((64, 512), (32, 512)),
    64: ((132, 512), (32, 512)),
    96: ((132, 256), (132, 512)),
    128: ((132, 512), (132, 256)),
    512: ((64, 512), (132, 512)),
}


@pytest.mark.parametrize("tokens", sorted(PROBED))
def test_the_blocks_and_threads_of_a_sweep_that_was_measured_are_in_the_space(tokens: int) -> None:
    workload = REDUCTION.workload({"width": 7168}, tokens, world=2)
    space = REDUCTION.space(workload, SM90)
    for variant, (blocks, threads) in zip(("full_fanout", "two_stage"), PROBED[tokens], strict=True):
        # Listed no further than the sweep says.
        found = space.restricted([variant], {variant: {"threads": [threads]}}).configs
        # As many blocks, or all but what equal tiles leave over.
        assert any(blocks * 0.85 <= int(config.params["blocks"]) <= blocks * 1.01 for config in found)
        (start,) = (config for config in space.defaults() if config.variant == variant)
        tiles = tiles_of(workload, variant, start.params)
        assert blocks / 4 <= tiles.grid <= 4 * blocks


def test_a_width_that_ranks_do_not_divide_has_one_variant() -> None:
    workload = REDUCTION.workload({"width": 2880}, 4, world=7)
    assert [v.variant for v in REDUCTION.space(workload, SM90).variants] == ["full_fanout"]


def test_cost_counts_what_crosses_links() -> None:
    workload = REDUCTION.workload({"width": 7168}, 4, world=8)
    partial = 2 * 4 * 7168
    one, two = (REDUCTION.cost(workload, Config.of(name, {})) for name in ("full_fanout", "two_stage"))
    assert one.link_bytes == 7 * partial
    assert two.link_bytes == 2 * 7 * partial // 8
    assert one.memory_bytes == two.memory_bytes == 2 * partial
    assert REDUCTION.cost(workload, Config.of("torch_one_shot", {})) == one
    assert REDUCTION.cost(workload, Config.of("nccl", {})) == two


def test_one_gpu_is_no_group() -> None:
    with pytest.raises(MegatuneError, match="choose the runner group"):
        REDUCTION.inputs(REDUCTION.workload({"width": 64}, 1), 1, 0)
    with pytest.raises(MegatuneError, match="allowed: nccl, torch_one_shot, torch_two_shot"):
        REDUCTION.baseline("mpi", REDUCTION.workload({"width": 64}, 1), None, 0)
