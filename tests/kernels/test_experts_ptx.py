"""The compiled kernels of the experts, run instruction by instruction on the host, against float64 references."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import numpy as np
import pytest
from ptx_machine import Launches
from ptx_machine import Leading
from ptx_machine import Memory
from ptx_machine import kernel_of
from ptx_machine import run

from megatune_kernels.audit import ptx_statements
from megatune_kernels.experts.geometry import FAULT_WORDS
from megatune_kernels.experts.geometry import PAIR_BITS
from megatune_kernels.experts.geometry import ROW_BYTES
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

pytestmark = pytest.mark.torch

EXPERTS = operator("experts")
SM90 = architecture("sm_90a")
SITU = {"beta": 4, "linear_beta": 25}
MOST_STEPS = 5_000_000
BLOCKS = 2
"""Of ``up``, fewer than units, so that each takes several. ``down`` has one for all rows."""


def compiled_ptx(workload: Workload, config: Config, monkeypatch: pytest.MonkeyPatch) -> str:
    found: list[str] = []

    def kept(compiled: Any, *_: Any, **__: Any) -> None:
        found.append(compiled.artifacts.PTX)

    monkeypatch.setattr("megatune_kernels.experts.operator.from_compiled", kept)
    EXPERTS.compile(workload, config, SM90)
    return found[0]


class Machine:
    """Operands of a workload, where the machine's memory has them and where the checks look."""

    def __init__(self, workload: Workload) -> None:
        from megatune_kernels.experts.buffers import ExpertBuffers

        self.workload = workload
        self.buffers = ExpertBuffers(workload, 1, seed=3, device="cpu")
        held = self.buffers
        self._tensors = {
            "x": held._x,
            "w13": held._w13.packed,
            "s13": held._w13.packed_scales,
            "w2": held._w2.packed,
            "s2": held._w2.packed_scales,
            "ids": held._ids,
            "shares": held._shares,
            "y": held._y,
            "hidden": held._hidden,
            "faults": held._faults,
        }
        self._places: dict[str, int] = {}
        at = 256
        for name, tensor in self._tensors.items():
            self._places[name] = at
            at += -(-tensor.numel() * tensor.element_size() // 256) * 256
        self._memory = Memory(at)
        self.pulled: list[tuple[int, int]] = []
        """Where what was asked for begins and how many bytes it has, since the last start."""
        self._memory.prefetch = lambda address, size: self.pulled.append((address, size))

    def launches(self, part: str, config: Config, ptx: str) -> Launches:
        names = {
            "up": ("x", "w13", "s13", "w2", "s2", "ids", "shares", "hidden", "faults"),
            "down": ("hidden", "w2", "s2", "ids", "shares", "y", "faults"),
            "both": ("x", "w13", "s13", "w2", "s2", "ids", "shares", "hidden", "y", "faults"),
        }[part]
        shape = EXPERTS.launch(self.workload, config)
        calls = [[*(self._places[name] for name in names), *shape.scalars]]
        blocks = BLOCKS if part == "up" else shape.grid[0]
        return Launches(kernel_of(ptx), blocks, shape.block[0], calls, shared_bytes=shape.shared_bytes)

    def go_to(self, ids: list[list[int]]) -> None:
        """Have the tokens go to other experts, whatever the activations."""
        self.buffers._ids_choices[:] = torch.tensor(ids)
        self.buffers._ids.copy_(torch.tensor(ids))

    def run(self, config: Config, codes: dict[str, str], chance: random.Random) -> str:
        """Poison, launch both kernels and check."""
        self.buffers.poison()
        self.pulled.clear()
        for name, tensor in self._tensors.items():
            raw = tensor.contiguous().flatten().view(torch.uint8).numpy()
            words = np.zeros(-(-len(raw) // 4) * 4, np.uint8)
            words[: len(raw)] = raw
            self._memory.store_all(self._places[name], words.view(np.uint32))
        for part in EXPERTS.parts(self.workload, config):
            launches = self.launches(part.name, part.config, codes[part.name])
            run(self._memory, [launches], chance, MOST_STEPS)
        for name in ("y", "faults"):
            tensor = self._tensors[name]
            size = tensor.numel() * tensor.element_size()
            words = self._memory.load_all(self._places[name], -(-size // 4) * 4)
            tensor.copy_(torch.from_numpy(words.view(np.uint8)[:size].copy()).view(tensor.dtype).view(tensor.shape))
        # Who counted arrivals left them as they were.
        assert self.buffers._faults[1:].tolist() == [0] * (FAULT_WORDS - 1)
        return self.buffers.check()


PLAIN: dict[str, Any] = {
    "launches": 2,
    "grid": 132,
    "up_split": "k",
    "up_steals": False,
    "up_depth_mib": 0,
    "up_resident": 1,
    "up_row_tiles": 2,
    "up_stages": 3,
    "down_stages": 3,
}


def config_of(workload: Workload, variant: str, **wanted: Any) -> Config:
    space = EXPERTS.space(workload, SM90)
    start = next(config for config in space.defaults() if config.variant == variant)
    config = Config.of(variant, {**start.params, **PLAIN, **wanted})
    assert not space.violations(config), space.violations(config)
    return config


def pulled_experts(machine: Machine, matrix: str) -> dict[int, int]:
    """Of a matrix, how often each byte of an expert was asked for, by expert; a part of one is an error."""
    tensor = machine._tensors[matrix]
    each = tensor[0, 0].numel()
    first = machine._places[matrix]
    bytes_of: dict[int, int] = {}
    for address, size in machine.pulled:
        if first <= address < first + each * tensor.shape[1]:
            expert = (address - first) // each
            assert address + size <= first + (expert + 1) * each
            bytes_of[expert] = bytes_of.get(expert, 0) + size
    assert all(count % each == 0 for count in bytes_of.values())
    return {expert: count // each for expert, count in bytes_of.items()}


SMALL = {"experts": 4, "k": 256, "top": 2, "width": 64}
WIDE = {"experts": 3, "k": 256, "top": 1, "width": 128}


@pytest.mark.parametrize(
    ("dims", "dtype", "tokens", "variant", "params"),
    [
        # Two warps that divide K, several units a block, several groups of one expert.
        (SMALL | SITU, "mxfp4", 4, "grouped", {"group": 2, "up_warps": 2, "up_k_unroll": 2, "up_stages": 2}),
        (
            SMALL | SITU,
            "mxfp4",
            2,
            "per_route",
            {"up_warps": 2, "down_warps": 2, "up_k_unroll": 2, "up_row_tiles": 1, "launches": 1},
        ),
        # Warps that have units of their own.
        (SMALL | SITU, "mxfp4", 4, "grouped", {"group": 2, "up_warps": 4, "up_k_unroll": 2, "up_split": "units"}),
        # Warps that take what units are left, while w2 is pulled into the L2, in one launch and in two.
        (
            SMALL | SITU,
            "mxfp4",
            4,
            "grouped",
            {"group": 2, "up_warps": 2, "up_k_unroll": 2, "up_stages": 2, "up_split": "units", "up_steals": True},
        ),
        (
            SMALL | SITU,
            "mxfp4",
            3,
            "per_route",
            {
                "up_warps": 2,
                "down_warps": 2,
                "up_k_unroll": 2,
                "up_stages": 2,
                "up_row_tiles": 1,
                "launches": 1,
                "up_split": "units",
                "up_steals": True,
                "up_depth_mib": 8,
            },
        ),
        (SMALL, "bf16", 9, "grouped", {"group": 8, "up_warps": 4, "up_k_unroll": 1, "cache": "evict_first"}),
        (WIDE, "fp8", 2, "grouped", {"group": 2, "up_warps": 1, "down_k_unroll": 2, "up_row_tiles": 1}),
        (
            WIDE | SITU,
            "mxfp4",
            2,
            "grouped",
            {"group": 2, "up_warps": 2, "down_warps": 2, "down_k_unroll": 2, "launches": 1},
        ),
    ],
)
def test_both_kernels_keep_to_the_bounds(
    dims: dict[str, int],
    dtype: str,
    tokens: int,
    variant: str,
    params: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = EXPERTS.workload(dims, tokens, dtype)
    config = config_of(workload, variant, **params)
    codes = {part.name: compiled_ptx(workload, part.config, monkeypatch) for part in EXPERTS.parts(workload, config)}
    machine = Machine(workload)
    # Normals; and where they make sums that are known bit by bit, those.
    for chance in (random.Random(0), Leading(1))[: 1 + (dtype == "mxfp4")]:
        assert machine.run(config, codes, chance) == ""
        machine.buffers.refresh()


def test_experts_of_any_warp_have_the_tokens_of_any_word(monkeypatch: pytest.MonkeyPatch) -> None:
    dims = {"experts": 70, "k": 128, "top": 2, "width": 64}
    workload = EXPERTS.workload(dims | SITU, 35, "mxfp4")
    params = {"group": 32, "up_warps": 2, "up_k_unroll": 2, "up_row_tiles": 4, "up_split": "units", "down_warps": 2}
    config = config_of(workload, "grouped", **params)
    codes = {part.name: compiled_ptx(workload, part.config, monkeypatch) for part in EXPERTS.parts(workload, config)}
    machine = Machine(workload)
    # Two experts a thread, those of the second warp from 64 on: one of them has more tokens than a group and a word.
    machine.go_to([[1, 68] if token else [68, 69] for token in range(35)])
    assert machine.run(config, codes, random.Random(0)) == ""


@pytest.mark.parametrize(
    ("variant", "launches", "steals"), [("per_route", 2, False), ("grouped", 1, False), ("grouped", 2, True)]
)
def test_what_is_no_route_is_told_and_left_out(
    variant: str, launches: int, steals: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = EXPERTS.workload({"experts": 3, "k": 128, "top": 2, "width": 64}, 2, "bf16")
    params = {"up_warps": 1, "down_warps": 1, "up_k_unroll": 1, "up_row_tiles": 4, "launches": launches}
    if steals:
        params |= {"up_stages": 2, "up_steals": True, "up_depth_mib": 8}
    config = config_of(workload, variant, **params)
    codes = {part.name: compiled_ptx(workload, part.config, monkeypatch) for part in EXPERTS.parts(workload, config)}
    machine = Machine(workload)
    right = []
    for first, told in (
        (0, ""),
        (3, "copy 0: id 0 of token 0 is 3: there are 3 experts"),
        (-1, "copy 0: id 0 of token 0 is -1: there are 3 experts"),
        *([(1, "a token goes to an expert twice")] if variant == "grouped" else []),
    ):
        machine.go_to([[first, 1], [2, 0]])
        assert machine.run(config, codes, random.Random(0)) == told
        right.append(machine.buffers._y[0, 1].tolist())
    assert all(row == right[0] for row in right)
    # Where there is no route at all, no warp has a unit.
    machine.go_to([[-1, 3], [3, -1]])
    assert machine.run(config, codes, random.Random(0)) == "copy 0: id 0 of token 0 is -1: there are 3 experts"
    assert not machine.buffers._y.any()
    assert not machine.pulled


def test_which_tokens_go_together_changes_the_order_of_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = EXPERTS.workload({"experts": 4, "k": 128, "top": 3, "width": 64}, 4, "bf16")
    found = []
    for group in (2, 4):
        params = {"group": group, "up_warps": 2, "up_k_unroll": 1, "up_row_tiles": 4, "down_warps": 2}
        config = config_of(workload, "grouped", **params)
        parts = EXPERTS.parts(workload, config)
        codes = {part.name: compiled_ptx(workload, part.config, monkeypatch) for part in parts}
        machine = Machine(workload)
        machine.go_to([[0, 1, 2]] * 4)
        # All experts give the same, and the shares of two of them cancel.
        for weights in (machine.buffers._w13.packed, machine.buffers._w2.packed):
            weights[:] = weights[:, :1].clone()
        machine.buffers._shares[:] = torch.tensor([2.0**30, 1, -(2.0**30)])
        machine.run(config, codes, random.Random(0))
        found.append(machine.buffers._y.clone())
    assert found[0].isfinite().all()
    assert not torch.equal(*found)
    (parameter,) = [p for p in EXPERTS.space(workload, SM90).by_variant["grouped"].parameters if p.name == "group"]
    assert parameter.changes_bits


OPCODES = {
    "griddepcontrol.wait": "w",
    "griddepcontrol.launch_dependents": "d",
    "ld.global": "l",
    "ld.acquire.gpu": "q",
    "cp.async.cg": "c",
    "cp.async.ca": "a",
    "st.global": "s",
    "bar.sync": "b",
    "fence.acq_rel.gpu": "f",
    "atom.relaxed.gpu": "t",
}
"""Of BF16: weights go past the L1, and activations through it."""


@pytest.mark.parametrize(
    ("launches", "part", "order"),
    [
        # Nothing is read before the predecessor is done.
        (2, "up", "wd[^w]+"),
        # Of warps that take what is left: a block is through once all of its warps have their last answer.
        (2, "up stealing", "wdl[^wf]*t[^f]*s+bfts{2}"),
        # Weights are; activations are not, nor is anything written.
        (2, "down", "d[^as]*c[^as]*w[^w]*a[^w]*s+"),
        # All that a block stored is behind a fence before it is counted; what others stored is read by all threads
        # after one has seen the count.
        (1, "both", "wd[^wf]*s+bft[^as]*c[^as]*qts+b[^s]*a[^s]*s+"),
    ],
)
def test_what_waits_for_other_kernels_and_blocks(
    launches: int, part: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine above sees every store at once, and runs kernels one after the other."""
    workload = EXPERTS.workload(SMALL, 2, "bf16")
    part, _, stealing = part.partition(" ")
    steals = {"up_split": "units", "up_steals": True, "up_k_unroll": 1} if stealing else {}
    config = config_of(workload, "grouped", **{"up_warps": 2, "down_warps": 2, "launches": launches, **steals})
    (config,) = [each.config for each in EXPERTS.parts(workload, config) if each.name == part]
    statements, _ = ptx_statements(compiled_ptx(workload, config, monkeypatch))
    found = [letter for each in statements for start, letter in OPCODES.items() if each.startswith(start)]
    assert re.fullmatch(order, "".join(found))


def test_interleaved_bits_are_those_of_the_checkpoint() -> None:
    from megatune_kernels.experts.weights import interleaved

    # All pairs of codes at every place, in the order of checkpoints: the even element in the lower half of a byte.
    stored = torch.arange(256, dtype=torch.uint8).repeat(3, 5)[:, :1024]
    codes = torch.stack([stored & 15, stored >> 4], dim=-1).flatten(-2).unflatten(-1, (-1, 8)).to(torch.int32)
    taken = interleaved(stored)
    assert taken.shape == stored.shape
    words = taken.view(torch.int32)
    for element, bit in itertools.product(range(8), range(4)):
        place = PAIR_BITS[element // 2][bit] + element % 2 * 16
        assert torch.equal((words >> place) & 1, (codes[..., element] >> bit) & 1)


def test_numbers_of_mxfp4_are_those_of_its_format() -> None:
    from megatune_kernels.experts.weights import Weights

    stored = torch.arange(256, dtype=torch.uint8).repeat(16, 2)
    codes = torch.stack([stored & 15, stored >> 4], dim=-1).flatten(-2)
    scales = torch.arange(120, 136, dtype=torch.uint8).repeat(16, 2)[None, None]
    weights = Weights.of("mxfp4", stored[None, None], scales, gated=False)
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
    signed = magnitudes[(codes & 7).long()] * torch.where(codes >= 8, -1.0, 1.0)
    factors = 2.0 ** (scales[0, 0].double() - 127).repeat_interleave(32, dim=-1)
    for dtype in (torch.float64, torch.bfloat16):
        assert torch.equal(weights.as_numbers(0, 0, dtype), (signed * factors).to(dtype))


@pytest.mark.parametrize("dtype", ["mxfp4", "fp8", "bf16"])
@pytest.mark.parametrize("gated", [False, True])
def test_packed_weights_are_where_lanes_look_for_them(dtype: str, gated: bool) -> None:
    from megatune_kernels.experts.weights import packed
    from megatune_kernels.experts.weights import packed_scales

    rows, tiles, row_bytes = 32, 3, ROW_BYTES[dtype]
    values = torch.randint(0, 256, (2, rows, tiles * row_bytes), dtype=torch.uint8)
    scales = torch.randint(0, 256, (2, rows, tiles * 2), dtype=torch.uint8)
    found, found_scales = packed(values, dtype, gated=gated), packed_scales(scales, gated=gated)
    assert found.shape == (2, rows * tiles * row_bytes)
    lane_bytes = row_bytes // 4
    for row_tile, tile, lane in itertools.product(range(rows // 16), range(tiles), range(32)):
        row, quarter = lane // 4, lane % 4
        own = (
            (8 * row_tile + row, rows // 2 + 8 * row_tile + row)
            if gated
            else (16 * row_tile + row, 16 * row_tile + row + 8)
        )
        first = tile * row_bytes + quarter * lane_bytes
        expected = torch.cat([values[1, each, first : first + lane_bytes] for each in own])
        at = (row_tile * tiles + tile) * 16 * row_bytes + lane * 16
        pieces = [found[1, at + piece * 512 : at + piece * 512 + 16] for piece in range(row_bytes // 32)]
        assert torch.equal(torch.cat(pieces), expected)
        at = (row_tile * tiles + tile) * 32 + (2 * row + quarter // 2) * 2
        assert found_scales[1, at : at + 2].tolist() == [int(scales[1, each, 2 * tile + quarter // 2]) for each in own]


STEALING = {"group": 2, "up_warps": 2, "up_k_unroll": 1, "up_split": "units", "up_steals": True, "up_depth_mib": 8}
SOME_TWICE = [[3, 0], [3, 2], [4, 3], [0, 2]]
"""Expert 3 has two groups, expert 1 has nobody."""


def run_stealing(dims: dict[str, int], dtype: str, stages: int, monkeypatch: pytest.MonkeyPatch) -> Machine:
    workload = EXPERTS.workload(dims, 4, dtype)
    config = config_of(workload, "grouped", up_stages=stages, **STEALING)
    codes = {part.name: compiled_ptx(workload, part.config, monkeypatch) for part in EXPERTS.parts(workload, config)}
    machine = Machine(workload)
    machine.go_to(SOME_TWICE)
    stored: list[int] = []
    store = machine._memory.store_half

    def counted(address: int, value: int) -> None:
        stored.append(address)
        store(address, value)

    monkeypatch.setattr(machine._memory, "store_half", counted)
    assert machine.run(config, codes, random.Random(2)) == ""
    # Nobody takes a unit that somebody had: every element of hidden and of y is stored once.
    assert len(stored) == len(set(stored)) == machine.buffers._hidden.numel() + machine.buffers._y.numel()
    return machine


@pytest.mark.parametrize(("stages", "legal"), [(2, True), (3, False)])
def test_who_steals_has_units_no_shorter_than_what_is_on_its_way(stages: int, legal: bool) -> None:
    workload = EXPERTS.workload({"experts": 5, "k": 256, "top": 2, "width": 64}, 4, "bf16")
    space = EXPERTS.space(workload, SM90)
    start = next(config for config in space.defaults() if config.variant == "grouped")
    # Two stages a unit.
    params = {**start.params, **PLAIN, **STEALING, "up_k_unroll": 2, "up_stages": stages}
    assert (not space.violations(Config.of("grouped", params))) == legal


@pytest.mark.parametrize(
    ("dims", "dtype", "stages", "requests"),
    [
        # A whole piece and the rest of one, and scales, which are less than one.
        ({"k": 320, "width": 64} | SITU, "mxfp4", 4, 3),
        # Whole pieces, and no scales.
        ({"k": 256, "width": 128}, "fp8", 3, 4),
    ],
)
def test_what_down_reads_is_pulled_once_and_nothing_else(
    dims: dict[str, int], dtype: str, stages: int, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = run_stealing(dims | {"experts": 5, "top": 2}, dtype, stages, monkeypatch)
    wanted = dict.fromkeys((0, 2, 3, 4), 1)
    assert pulled_experts(machine, "w2") == wanted
    if dtype == "mxfp4":
        assert pulled_experts(machine, "s2") == wanted
    assert len(machine.pulled) == len(set(machine.pulled)) == 4 * requests


def test_no_more_is_pulled_than_the_config_says(monkeypatch: pytest.MonkeyPatch) -> None:
    # A MiB is so small here that there are four requests, the last for the first piece of the second expert.
    monkeypatch.setattr("megatune_kernels.experts.units.MIB", 4 * 1024)
    machine = run_stealing({"experts": 5, "k": 320, "top": 2, "width": 64} | SITU, "mxfp4", 4, monkeypatch)
    first, scales = machine._places["w2"], machine._places["s2"]
    assert sorted(machine.pulled) == [
        (first, 8192),
        (first + 8192, 2048),
        (first + 2 * 10240, 8192),
        (scales, 640),
    ]
