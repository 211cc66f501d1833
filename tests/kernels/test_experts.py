"""The experts: routings, workloads, spaces, where things lie, and what the checks see."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from megatune_kernels.errors import MegatuneError
from megatune_kernels.experts.geometry import DOWN
from megatune_kernels.experts.geometry import UP
from megatune_kernels.experts.geometry import Stream
from megatune_kernels.experts.geometry import sorted_routes
from megatune_kernels.experts.routing import NAMES
from megatune_kernels.experts.routing import apart
from megatune_kernels.experts.routing import draw
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.projection.geometry import COPY_BYTES
from megatune_kernels.projection.geometry import WARP
from megatune_kernels.space import Config
from megatune_kernels.target import architecture

EXPERTS = operator("experts")
SM90 = architecture("sm_90a")
KIMI = {"experts": 896, "k": 3584, "top": 16, "width": 384, "beta": 4, "linear_beta": 25}


def workload(tokens: int = 1, dtype: str = "mxfp4", **dims: int) -> Workload:
    return EXPERTS.workload({**KIMI, **dims}, tokens, dtype)


class TestRoutings:
    @settings(max_examples=40, deadline=None)
    @given(name=st.sampled_from(NAMES), tokens=st.integers(1, 64), number=st.integers(0, 5))
    def test_a_token_has_an_expert_once(self, name: str, tokens: int, number: int) -> None:
        ids = draw(name, 96, 8, tokens, number)
        assert ids.shape == (tokens, 8)
        assert ids.min() >= 0
        assert ids.max() < 96
        assert all(len(set(row)) == 8 for row in ids.tolist())
        assert (ids == draw(name, 96, 8, tokens, number)).all()

    def test_loads_are_as_named(self) -> None:
        counts = {name: Counter(draw(name, 896, 16, 64, 0).ravel().tolist()) for name in NAMES}
        assert set(counts["balanced"].values()) == {1, 2}
        assert set(counts["same"].values()) == {64}
        assert len(counts["same"]) == 16
        assert len(counts["power_law_1.2"]) < len(counts["power_law_1.01"]) < 600 < len(counts["balanced"])
        cover = EXPERTS.coverage(EXPERTS.routed(workload(64), "balanced"))
        assert (cover.distinct, cover.most) == (896, 2)
        assert cover.tokens_an_expert == pytest.approx(1024 / 896)

    @settings(max_examples=40, deadline=None)
    @given(used=st.integers(0, 200), tokens=st.integers(1, 16))
    def test_other_experts_leave_the_pattern_as_it_was(self, used: int, tokens: int) -> None:
        ids = draw("power_law_1.2", 64, 4, tokens, 3)
        order = np.random.default_rng(0).permutation(64)
        moved, now = apart(ids, 64, used, order)
        assert now - used == len(set(ids.ravel().tolist())) == len(set(moved.ravel().tolist()))
        pairs = set(zip(ids.ravel().tolist(), moved.ravel().tolist(), strict=True))
        assert len(pairs) == now - used
        assert set(moved.ravel().tolist()) == {int(order[i % 64]) for i in range(used, now)}

    def test_unknown_ones_are_refused(self) -> None:
        for name in ("zipf", "power_law_1", "power_law_-2", "trace_"):
            with pytest.raises(MegatuneError, match=r"is unknown; allowed: balanced, power_law_1.01"):
                EXPERTS.routed(workload(), name)
        with pytest.raises(MegatuneError, match="projection has no routing 'same'"):
            operator("projection").routed(operator("projection").workload({"n": 64, "k": 64}, 1), "same")

    def test_a_recorded_trace_is_taken_step_by_step(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        few = workload(2, experts=16, top=2)
        with pytest.raises(MegatuneError, match="set MEGATUNE_TRACES to the folder that has morning"):
            EXPERTS.routed(few, "trace_morning")
        monkeypatch.setenv("MEGATUNE_TRACES", str(tmp_path))
        with pytest.raises(MegatuneError, match="there is no"):
            EXPERTS.routed(few, "trace_morning")
        steps = [[[1, 2], [3, 4], [5, 6]], [[7, 8]], [[0, 9], [9, 0]]]
        (tmp_path / "morning.json").write_text(json.dumps({"experts": 16, "steps": steps}))
        traced = EXPERTS.routed(few, "trace_morning")
        assert draw(traced.routing, 16, 2, 2, 0).tolist() == [[1, 2], [3, 4]]
        assert draw(traced.routing, 16, 2, 2, 1).tolist() == [[0, 9], [9, 0]]
        with pytest.raises(MegatuneError, match="the top 2 of 16 experts, and the workload has the top 16 of 896"):
            EXPERTS.routed(workload(), "trace_morning")
        with pytest.raises(MegatuneError, match="no step of 4 or more tokens"):
            EXPERTS.routed(few.at(4), "trace_morning")

    @pytest.mark.parametrize(
        ("found", "reason"),
        [
            ({"experts": 16, "steps": [[[1, 1]]]}, "step 0 has a token that goes to an expert twice"),
            ({"experts": 16, "steps": [[[1, 2]], [[1, 16]]]}, "step 1 names an expert that is none of 16"),
            ({"experts": 16, "steps": [[[1, 2]], [[1]]]}, "as many ids each"),
            ({"experts": 16, "steps": []}, "as many ids each"),
            ({"steps": [[[1, 2]]]}, "is no recorded routing: 'experts'"),
            ([], "is no recorded routing"),
        ],
    )
    def test_a_broken_trace_says_where(
        self, found: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MEGATUNE_TRACES", str(tmp_path))
        (tmp_path / "broken.json").write_text(json.dumps(found))
        with pytest.raises(MegatuneError, match=re.escape(reason)):
            EXPERTS.routed(workload(1, experts=16, top=2), "trace_broken")


@settings(max_examples=60, deadline=None)
@given(data=st.data(), group=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_every_route_is_in_one_group_of_its_expert(data: st.DataObject, group: int) -> None:
    experts, top = data.draw(st.integers(2, 12)), 2
    row = st.lists(st.integers(0, experts - 1), min_size=top, max_size=top, unique=True)
    ids = data.draw(st.lists(row, min_size=1, max_size=64))
    groups, order = sorted_routes(ids, experts, group)
    assert sorted(order) == list(range(len(ids) * top))
    covered = [place for _, first, count in groups for place in range(first, first + count)]
    assert covered == list(range(len(order)))
    for expert, first, count in groups:
        assert 1 <= count <= group
        routes = order[first : first + count]
        assert {ids[route // top][route % top] for route in routes} == {expert}
        assert routes == sorted(routes)
    assert [expert for expert, _, _ in groups] == sorted(expert for expert, _, _ in groups)
    distinct = len({expert for each in ids for expert in each})
    assert len(groups) <= min(len(order), distinct + len(order) // group)


def test_routes_to_no_expert_are_left_out() -> None:
    groups, order = sorted_routes([[0, 5], [-1, 1]], 3, 8)
    assert groups == [(0, 0, 1), (1, 1, 1)]
    assert order == [0, 3]


def streams(of: Workload) -> list[Stream]:
    """Some kernels of a workload, defaults first."""
    found: dict[Stream, None] = {}
    for variant in EXPERTS.space(of, SM90).variants:
        for config in list(variant.configs())[::397]:
            for role in (UP, DOWN):
                found[replace(Stream.of(of, variant.variant, role, config.params), grid=0)] = None
    return list(found)


@pytest.mark.parametrize(
    "of",
    [
        workload(1),
        workload(64, width=192),
        EXPERTS.workload({"experts": 128, "k": 4096, "top": 8, "width": 192}, 16, "bf16"),
        EXPERTS.workload({"experts": 16, "k": 512, "top": 4, "width": 128}, 3, "mxfp4"),
    ],
    ids=str,
)
def test_pieces_of_a_stage_have_places_of_their_own_and_lanes_reach_all(of: Workload) -> None:
    for stream in streams(of):
        copies, size = stream.token_copies, stream.k_unroll * stream.token_tile_bytes
        places = [stream.token_place(row, piece) for row in range(copies.rows) for piece in range(copies.pieces)]
        assert len(set(places)) == len(places)
        assert all(at % COPY_BYTES == 0 and 0 <= at <= size - COPY_BYTES for at in places)
        dealt = []
        for lane in range(WARP):
            row, piece = lane // copies.lanes_a_row, lane % copies.lanes_a_row
            for line in range(copies.lines):
                for j in range(copies.copies_a_line):
                    ahead, along = j * copies.rows_a_copy, line * copies.lanes_a_row
                    if row + ahead >= copies.rows:
                        continue
                    dealt.append((row + ahead, piece + along))
                    # A lane's place is its own plus a constant.
                    place = stream.token_place(row + ahead, piece + along)
                    assert place == stream.token_place(row, piece) + stream.token_place(ahead, along)
        assert sorted(dealt) == [(row, piece) for row in range(copies.rows) for piece in range(copies.pieces)]
        assert stream.steps * stream.k_unroll * stream.k_warps == stream.tiles_of_k


class TestWorkloads:
    @pytest.mark.parametrize(("tensor", "width"), [(8, 384), (16, 192)])
    def test_kimi(self, tensor: int, width: int) -> None:
        (found,) = EXPERTS.workloads(model("Kimi-K3"), Parallel(tensor), [8])
        assert found == workload(8, width=width)
        assert (found.dtype, found.routing) == ("mxfp4", "power_law_1.01")

    def test_qwen(self) -> None:
        (found,) = EXPERTS.workloads(model("Qwen3-235B-A22B"), Parallel(8), [1])
        assert found == EXPERTS.workload({"experts": 128, "k": 4096, "top": 8, "width": 192}, 1, "bf16")

    def test_what_the_kernels_do_not_have_is_left_out(self) -> None:
        assert EXPERTS.workloads(model("Nemotron-3-Super-120B-A12B"), Parallel(8), [1]) == []

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"k": 3616}, "k=3616 is impossible: in mxfp4 it must be a multiple of 64"),
            ({"width": 96}, "width=96 is impossible: in mxfp4 it must be a multiple of 64"),
            ({"top": 33}, "top=33 is out of range: 1 to 32 of 896 experts"),
            ({"experts": 0}, "experts=0 is out of range"),
            ({"tokens": 65}, "tokens=65 is out of range: experts have 1 to 64 tokens"),
            ({"rows": 1}, "experts have the dims experts, k, top, width, and beta and linear_beta"),
            ({"beta": 0}, "beta=0 is out of range"),
        ],
    )
    def test_impossible_ones_are_refused(self, change: dict[str, int], reason: str) -> None:
        with pytest.raises(MegatuneError, match=re.escape(reason)):
            workload(**change)
        with pytest.raises(MegatuneError, match="dtype 'fp4' is not supported"):
            workload(dtype="fp4")

    def test_bytes_are_those_of_the_distinct_experts(self) -> None:
        one = (3 * 384 * 3584) * (1 / 2 + 1 / 32)
        assert EXPERTS.rotating_bytes(workload(1)) == 16 * one
        assert EXPERTS.rotating_bytes(EXPERTS.routed(workload(64), "same")) == 16 * one
        assert EXPERTS.rotating_bytes(EXPERTS.routed(workload(64), "balanced")) == 896 * one


@pytest.mark.parametrize(
    ("dtype", "k", "width", "tokens"),
    [
        ("mxfp4", 1024, 64, 1),
        ("mxfp4", 2944, 192, 8),
        ("mxfp4", 8576, 64, 17),
        ("mxfp4", 3648, 704, 5),
        ("fp8", 7168, 256, 4),
        ("bf16", 704, 704, 9),
    ],
)
def test_slices_of_any_size_have_configs(dtype: str, k: int, width: int, tokens: int) -> None:
    assert EXPERTS.space(
        EXPERTS.workload({"experts": 8, "k": k, "top": 2, "width": width}, tokens, dtype), SM90
    ).variants


@settings(max_examples=5, deadline=None)
@given(tokens=st.integers(1, 64), width=st.sampled_from([192, 256, 384]))
def test_spaces_can_be_searched(tokens: int, width: int) -> None:
    of = workload(tokens, width=width)
    space = EXPERTS.space(of, SM90)
    assert [each.variant for each in space.variants] == ["per_route", "grouped"][tokens > 16 :]
    for config in space.defaults():
        assert not space.violations(config)
        up, down = EXPERTS.parts(of, config)
        assert (up.name, down.name) == ("up", "down")
        for part in (up, down):
            assert EXPERTS.launch(of, part.config).shared_bytes <= SM90.shared_bytes_a_block


@pytest.mark.parametrize("variant", ["per_route", "grouped"])
def test_rules_look_at_no_more_than_they_say(variant: str) -> None:
    space = EXPERTS.space(EXPERTS.workload({"experts": 4, "k": 256, "top": 2, "width": 64}, 2, "mxfp4"), SM90)
    found = space.by_variant[variant]
    names = [parameter.name for parameter in found.parameters]
    every = (dict(zip(names, each, strict=True)) for each in itertools.product(*(p.values for p in found.parameters)))
    legal = {Config.of(variant, params) for params in every if all(rule.holds(params) for rule in found.constraints)}
    assert legal
    assert set(found.configs()) == legal
