"""The router front: workloads, spaces, where things lie, and what its checks see."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.models import models
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.router.geometry import Front
from megatune_kernels.space import Config
from megatune_kernels.target import architecture

ROUTER = operator("router_front")
SM90 = architecture("sm_90a")
KIMI = {"experts": 896, "k": 7168, "latent": 448, "top": 16}
PARAMS = {"warps": 4, "rows": 16, "k_unroll": 2, "stages": 4, "split_k": 1, "finishers": 1, "pdl": True}


def workload(tokens: int = 1, world: int = 1, **dims: int) -> Workload:
    return ROUTER.workload({**KIMI, **dims}, tokens, world=world)


def defaults(of: Workload) -> dict[str, Config]:
    return {config.variant: config for config in ROUTER.space(of, SM90).defaults()}


class TestWorkloads:
    @pytest.mark.parametrize(("tensor", "latent", "worlds"), [(8, 448, {1, 8}), (16, 224, {1, 16}), (1, 3584, {1})])
    def test_a_model_has_one_on_a_gpu_and_one_of_a_group(self, tensor: int, latent: int, worlds: set[int]) -> None:
        found = ROUTER.workloads(model("Kimi-K3"), Parallel(tensor), [1, 8])
        assert {each.world for each in found} == worlds
        assert {(each["experts"], each["k"], each["latent"], each["top"]) for each in found} == {
            (896, 7168, latent, 16)
        }

    def test_routers_that_look_at_groups_or_score_otherwise_are_left_out(self) -> None:
        for each in models().values():
            for found in ROUTER.workloads(each, Parallel(8), [1]):
                assert (each.router.scoring, each.router.groups or 1) == ("sigmoid", 1)
                assert found["experts"] == each.experts
        assert ROUTER.workloads(model("DeepSeek-V3"), Parallel(8), [1]) == []

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"experts": 100}, "experts=100 is impossible: a warp reads 128 logits at a time"),
            ({"experts": 2048}, "a multiple of 128, at most 1024"),
            ({"top": 33}, "top=33 is out of range: 1 to 32"),
            ({"k": 40}, "k=40 is impossible: k must be a multiple of 32"),
            ({"latent": 6}, "latent=6 is impossible: four rows are stored at a time"),
            ({"tokens": 65}, "tokens=65 is out of range: a router front has 1 to 64"),
            ({"world": 17}, "world=17 is impossible"),
            ({"rows": 1}, "a router front has the dims experts, k, latent, top, got"),
        ],
    )
    def test_impossible_ones_are_refused(self, change: dict[str, int], reason: str) -> None:
        with pytest.raises(MegatuneError, match=re.escape(reason)):
            workload(**change)


@settings(max_examples=20, deadline=None)
@given(tokens=st.integers(1, 64), world=st.sampled_from([1, 2, 3, 4, 7, 8, 16]))
def test_spaces_can_be_searched(tokens: int, world: int) -> None:
    space = ROUTER.space(workload(tokens, world), SM90)
    shares = world > 1 and 896 % (4 * world) == 0
    assert [each.variant for each in space.variants] == ["redundant", "split"][: 1 + shares]
    for config in space.defaults():
        assert not space.violations(config)
        shape = ROUTER.launch(workload(tokens, world), config)
        assert shape.resident
        assert shape.shared_bytes <= SM90.shared_bytes_a_block


@settings(max_examples=50, deadline=None)
@given(world=st.sampled_from([2, 4, 7, 8, 14, 16]), latent=st.integers(0, 200).map(lambda quads: 4 * quads))
def test_ranks_share_out_all_rows_of_the_router_and_their_own_of_the_latent(world: int, latent: int) -> None:
    of = workload(1, world, latent=latent)
    front = Front.of(of, "split", PARAMS)

    def choose(condition: bool, yes: int, no: int) -> int:
        return yes if condition else no

    rows = [[front.source_row(row, rank, choose) for row in range(front.computed_rows)] for rank in range(world)]
    assert sorted(row for mine in rows for row in mine[: front.own_experts]) == list(range(896))
    assert all(mine[front.own_experts :] == list(range(896, 896 + latent)) for mine in rows)
    whole = Front.of(of, "redundant", PARAMS)
    assert [whole.source_row(row, 3, choose) for row in range(whole.computed_rows)] == list(range(896 + latent))


def test_cost_counts_what_a_rank_reads_and_sends() -> None:
    of = workload(4, 8)
    redundant, split = (ROUTER.cost(of, config) for config in defaults(of).values())
    assert redundant.memory_bytes == 2 * (1344 * 7168 + 4 * (7168 + 448))
    assert split.memory_bytes == 2 * (560 * 7168 + 4 * (7168 + 448))
    assert (redundant.link_bytes, split.link_bytes) == (0, 4 * 4 * 112 * 7)
    assert ROUTER.rotating_bytes(of) == 2 * 1344 * 7168


def test_a_group_has_two_mailboxes_and_a_gpu_alone_one() -> None:
    assert ROUTER.workspace(workload(9, 8), defaults(workload(9, 8))["split"]).bytes == 2 * 16 * 896 * 4
    alone = ROUTER.workspace(workload(9), defaults(workload(9))["redundant"])
    assert (alone.bytes, alone.armed) == (16 * 896 * 4, 0x80008000)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
@pytest.mark.parametrize(("variant", "world"), [("redundant", 1), ("split", 8)])
def test_defaults_compile_pass_the_audit_and_spill_nothing(arch: str, variant: str, world: int) -> None:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    of = workload(8, world)
    artifact = ROUTER.compile(of, defaults(of)[variant], architecture(arch))
    assert artifact.local_bytes == 0
    assert artifact.registers <= 255


@pytest.mark.parametrize(
    ("tokens", "more"),
    [
        (8, {}),
        (8, {"warps": 8, "rows": 48, "split_k": 4}),
        (16, {"rows": 64, "k_unroll": 4}),
        (64, {"rows": 32, "k_unroll": 4, "warps": 2}),
        (64, {"rows": 64, "k_unroll": 4, "warps": 2}),
    ],
)
def test_the_compiler_takes_no_more_registers_than_residency_counts_with(tokens: int, more: dict[str, int]) -> None:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    of = workload(tokens)
    config = Config.of("redundant", {**PARAMS, **more})
    artifact = ROUTER.compile(of, config, SM90)
    assert artifact.local_bytes == 0
    # Registers are given out eight at a time.
    assert artifact.registers <= -(-Front.of(of, config.variant, config.params).likely_registers // 8) * 8


class TestResidency:
    def front(self, **more: int) -> Front:
        return Front.of(workload(8), "redundant", {**PARAMS, **more})

    @pytest.mark.parametrize(
        ("more", "blocks", "sms"),
        [
            # One block a multiprocessor for its shared memory; one or two for their registers.
            ({"rows": 32, "stages": 8}, 42, 42),
            ({"rows": 16, "warps": 8}, 84, 42),
            ({"rows": 16, "warps": 4}, 84, 21),
            # Clusters of two find places everywhere, those of four do not.
            ({"rows": 32, "stages": 8, "split_k": 2}, 84, 84),
            ({"rows": 32, "stages": 8, "split_k": 4}, 168, 187),
        ],
    )
    def test_so_many_multiprocessors_hold_all_blocks(self, more: dict[str, int], blocks: int, sms: int) -> None:
        front = self.front(**more)
        assert front.row_blocks * front.split_k == blocks
        assert front.fits(replace(SM90, sms=sms))
        assert not front.fits(replace(SM90, sms=sms - 1))

    def test_where_no_gpu_is_named_anything_fits(self) -> None:
        assert self.front(split_k=4, stages=8, k_unroll=4).fits(SM90)

    def test_a_space_says_so(self) -> None:
        h200 = replace(SM90, sms=132)
        whole, held = ROUTER.space(workload(8), SM90), ROUTER.space(workload(8), h200)
        assert set(held.configs) < set(whole.configs)
        for config in set(whole.configs) - set(held.configs):
            (reason, *_) = held.violations(config)
            assert reason.startswith(("residency:", "idle:"))
        # What took longest on an H200 is no config: 2 KiB of weights on their way to each block.
        slow = Config.of("redundant", {**PARAMS, "warps": 2, "k_unroll": 1, "stages": 2, "split_k": 2})
        assert any(reason.startswith("on_its_way:") for reason in held.violations(slow))


@pytest.mark.torch
class TestChecks:
    @pytest.fixture
    def held(self) -> Any:
        pytest.importorskip("torch", reason="torch is not installed")
        from megatune_kernels.router.buffers import FrontBuffers

        return FrontBuffers(workload(6, experts=256, k=512, latent=8), 3, seed=1, device="cpu")

    @staticmethod
    def compute(held: Any) -> None:
        """What the operator is, in float64, with equal keys in the order of ids."""
        import torch

        for copy in range(held.copies):
            products = held._x.double() @ held._w[copy].double().T
            scores = products[:, :256].sigmoid()
            keys = scores + held._bias[copy].double()
            ids = torch.sort(keys, dim=1, descending=True, stable=True).indices[:, : held._top]
            weights = scores.gather(1, ids)
            held._ids[copy] = ids.int()
            held._weights[copy] = (weights / weights.sum(1, keepdim=True)).float()
            held._outputs[copy] = products[:, 256:].bfloat16()

    def test_what_is_right_passes_with_either_set_of_activations(self, held: Any) -> None:
        for _ in range(3):
            assert held.check()
            self.compute(held)
            assert held.check() == ""
            held.refresh()
            held.poison()

    def test_exact_copies_have_equal_keys_among_the_chosen(self, held: Any) -> None:
        held.refresh()
        self.compute(held)
        keys = (held._x.double() @ held._w[1].double().T)[:, :256].sigmoid() + held._bias[1].double()
        chosen = keys.gather(1, held._ids[1].long())
        assert int((chosen[:, 1:] == chosen[:, :-1]).sum()) > 0
        assert int((chosen[:, 1:] > chosen[:, :-1]).sum()) == 0

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("swapped", "experts out of order"),
            ("tie swapped", "experts out of order"),
            ("twice", "an expert twice"),
            ("missed", "not the best"),
            ("beyond", "there are 256 experts"),
            ("weight", "weight 3 of token 2"),
            ("latent", "latent of token 5, row 7"),
            ("not written", "latent of token 1, row 0: got nan"),
        ],
    )
    def test_what_is_wrong_is_said(self, held: Any, name: str, reason: str) -> None:
        held.refresh()
        self.compute(held)
        ids = held._ids[1]
        keys = (held._x.double() @ held._w[1].double().T)[:, :256].sigmoid() + held._bias[1].double()
        chosen = keys.gather(1, ids.long())
        equal = chosen[:, 1:] == chosen[:, :-1]
        if name == "swapped":
            ids[0, [0, 15]] = ids[0, [15, 0]]
        elif name == "tie swapped":
            token, place = (int(i) for i in equal.nonzero()[0])
            ids[token, [place, place + 1]] = ids[token, [place + 1, place]]
        elif name == "twice":
            ids[4, 7] = ids[4, 6]
        elif name == "missed":
            ids[3, 15] = int(keys[3].argmin())
        elif name == "beyond":
            ids[1, 1] = 256
        elif name == "weight":
            held._weights[0, 2, 3] += 1e-4
        elif name == "latent":
            held._outputs[2, 5, 7] += 1.0
        else:
            held._outputs[0, 1] = float("nan")
        assert reason in held.check()

    def test_the_fingerprint_sees_the_choice_and_not_the_latent(self, held: Any) -> None:
        self.compute(held)
        first = held.fingerprint()
        held._outputs[0, 0, 0] += 1.0
        assert held.fingerprint() == first
        held._ids[0, 0, [0, 1]] = held._ids[0, 0, [1, 0]]
        assert held.fingerprint() != first

    def test_ranks_hold_one_router_and_latents_of_their_own(self) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        from megatune_kernels.router.buffers import FrontBuffers

        of = workload(2, 2, experts=128, k=64, latent=4)
        one, other = (FrontBuffers(of, 2, seed=1, rank=rank, heaps=(1000, 2000), device="cpu") for rank in range(2))
        assert torch.equal(one._w[:, :128], other._w[:, :128])
        assert torch.equal(one._bias, other._bias)
        assert not torch.equal(one._w[:, 128:], other._w[:, 128:])
        assert (one.pointers(1)[6:], other.pointers(1)[6:]) == ((1000, 2000), (2000, 1000))
        assert other.scalars(1) == (1, 1)
