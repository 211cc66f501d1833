"""What every exporter of reductions keeps to: how limits are read off bands, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from export_examples import OF_REDUCTIONS
from reduction_examples import FANOUT
from reduction_examples import GROUP
from reduction_examples import NCCL
from reduction_examples import TWO_STAGE
from reduction_examples import Times
from reduction_examples import example_reductions
from reduction_examples import on
from reduction_examples import plan_of
from reduction_examples import reduction_cases
from reduction_examples import sums
from reduction_examples import wins

from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.reduction import limit
from megatune_planner.exporters.reduction import reductions
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan


def shape_of(directory: Path, times: Times, width: int = 7168, world: int = 8) -> ShapePlan:
    (shape,) = reductions(plan_of(directory, reduction_cases(width, world, times)), "test")
    return shape


def changed(plan: Plan, change: Callable[[Any], None]) -> Plan:
    """The plan with a change in its content, as JSON."""
    content = json.loads(plan.content.model_dump_json())
    change(content)
    return Plan.of(type(plan.content).model_validate_json(json.dumps(content)))


def test_a_limit_is_the_last_measured_tokens_before_the_first_loss(tmp_path: Path) -> None:
    found = limit(
        shape_of(tmp_path, wins({1: FANOUT, 8: FANOUT, 20: FANOUT, 24: TWO_STAGE, 64: TWO_STAGE})), "one_shot"
    )
    assert (found.tokens, found.next_tokens, found.next_serves, found.measured_to) == (20, 24, TWO_STAGE, 64)
    assert found.payload_bytes == 20 * 14336
    assert found.traffic_bytes == 20 * 14336 * 8
    assert "21 to 23 tokens were not measured" in "; ".join(found.warnings)


def test_adjacent_tokens_leave_nothing_unsaid(tmp_path: Path) -> None:
    found = limit(shape_of(tmp_path, wins({1: FANOUT, 2: FANOUT, 3: TWO_STAGE})), "one_shot")
    assert (found.tokens, found.next_tokens, found.warnings) == (2, 3, ())


def test_the_evidence_is_of_both_sides_of_the_limit(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, wins({1: FANOUT, 8: FANOUT, 16: TWO_STAGE, 32: TWO_STAGE}))
    points = {point.tokens: point for band in shape.bands for point in band.points}
    assert limit(shape, "one_shot").evidence == tuple(sorted({*points[8].evidence, *points[16].evidence}))


def test_nccl_in_the_middle_ends_a_limit(tmp_path: Path) -> None:
    """A third algorithm has its band, and one-shot that wins again above it is no part of the limit."""
    shape = shape_of(tmp_path, wins({1: FANOUT, 8: FANOUT, 16: NCCL, 32: NCCL, 64: TWO_STAGE}))
    assert limit(shape, "one_shot").tokens == 8
    assert limit(shape, "one_shot", "two_shot").tokens == 8
    assert limit(shape, "one_shot").next_serves == NCCL
    assert limit(shape, "two_shot").tokens == 0


def test_baselines_count_for_their_algorithm(tmp_path: Path) -> None:
    names = (FANOUT, TWO_STAGE, NCCL, "torch_one_shot", "torch_two_shot")
    winners = {1: FANOUT, 8: "torch_one_shot", 16: "torch_two_shot", 32: TWO_STAGE, 64: NCCL}
    shape = shape_of(tmp_path, wins(winners, names))
    assert limit(shape, "one_shot").tokens == 8
    assert limit(shape, "one_shot", "two_shot").tokens == 32


def test_no_crossover_is_said_to_be_none(tmp_path: Path) -> None:
    found = limit(shape_of(tmp_path, wins({1: FANOUT, 64: FANOUT})), "one_shot")
    assert (found.tokens, found.next_tokens) == (64, None)
    assert found.warnings == (
        "nothing was measured beyond 64 tokens: the limit is where measuring ended, no crossover",
    )


def test_a_contested_crossover_ends_the_limit_before_its_first_change(tmp_path: Path) -> None:
    winners = {1: FANOUT, 4: FANOUT, 8: TWO_STAGE, 16: FANOUT, 32: FANOUT, 64: TWO_STAGE}
    shape = shape_of(tmp_path, wins(winners))
    found = limit(shape, "one_shot")
    assert (found.tokens, found.next_tokens) == (4, 8)
    assert "contested: full_fanout and two_stage change sides 3 times from 4 to 64 tokens" in found.warnings[0]


def test_bands_that_hide_a_contested_crossover_do_not_move_the_limit(tmp_path: Path) -> None:
    """Bands may keep one variant through a range where sides change; the limit still ends before the first change."""
    shape = shape_of(tmp_path, wins({1: FANOUT, 4: FANOUT, 8: TWO_STAGE, 16: FANOUT, 32: TWO_STAGE}))
    fanout, *_ = shape.bands
    (crossover,) = [each for each in shape.crossovers if {each.below, each.above} == {FANOUT, TWO_STAGE}]
    points = tuple(
        point.model_copy(update={"tokens": tokens})
        for tokens, point in zip((1, 4, 8, 16), fanout.points * 2, strict=True)
    )
    hidden = shape.model_copy(
        update={"bands": (fanout.model_copy(update={"tokens_hi": 16, "points": points}), *shape.bands[-2:])}
    )
    assert crossover.kind == "contested"
    assert limit(hidden, "one_shot").tokens == 4
    assert limit(hidden, "two_shot").tokens == 0
    turned = crossover.model_copy(update={"below": TWO_STAGE, "above": FANOUT})
    assert limit(hidden.model_copy(update={"crossovers": (turned,)}), "one_shot").tokens == 0


def test_a_suspect_crossover_carries_no_limit(tmp_path: Path) -> None:
    """Two-stage halves its time where the work doubles: one of the two was measured before a change."""
    times = {
        1: {FANOUT: 4.0, TWO_STAGE: 20.0, NCCL: 30.0},
        16: {FANOUT: 8.0, TWO_STAGE: 20.0, NCCL: 30.0},
        20: {FANOUT: 8.5, TWO_STAGE: 5.0, NCCL: 30.0},
    }
    shape = shape_of(tmp_path, times)
    with pytest.raises(MegatuneError, match="full_fanout to two_stage is suspect, so measure both again: "):
        limit(shape, "one_shot")
    assert limit(shape, "one_shot", "two_shot").tokens == 20, "between the two it makes no difference"


def test_a_limit_needs_1_token(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, wins({4: FANOUT, 8: TWO_STAGE}))
    with pytest.raises(MegatuneError, match="measured were 4 and more: measure 1 token too"):
        limit(shape, "one_shot")


def test_bytes_need_a_known_dtype(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, wins({1: FANOUT})).model_copy(update={"dtype": "int4"})
    with pytest.raises(MegatuneError, match="how many bytes int4 has is not known; known are bf16"):
        limit(shape, "one_shot")


def test_noise_is_no_win(tmp_path: Path) -> None:
    """Fan-out ties with NCCL at 16 tokens: the plan says stock there, and the limit ends before."""
    times = {
        1: {FANOUT: 2.0, NCCL: 9.0},
        8: {FANOUT: 5.0, NCCL: 9.0},
        16: {FANOUT: 8.99, NCCL: 9.0},
    }
    assert limit(shape_of(tmp_path, times), "one_shot").tokens == 8


@pytest.mark.parametrize("name", OF_REDUCTIONS)
def test_emulated_evidence_is_never_exported(tmp_path: Path, name: str) -> None:
    cases = [replace(case, provenance=Provenance.EMULATED) for case in example_reductions()]
    plan = plan_of(tmp_path, cases, provenances=(Provenance.EMULATED,))
    with pytest.raises(MegatuneError, match=rf"{name}: the plan counts emulated figures as evidence"):
        exporter(name).files(plan)


@pytest.mark.parametrize("name", OF_REDUCTIONS)
def test_one_emulated_figure_is_enough_to_refuse(tmp_path: Path, name: str) -> None:
    cases = [
        replace(case, provenance=Provenance.EMULATED) if case.workload.tokens == 64 else case
        for case in example_reductions()
    ]
    plan = plan_of(tmp_path, cases, provenances=(Provenance.MEASURED, Provenance.EMULATED))
    hidden = changed(plan, lambda content: content["options"].update(provenances=["measured"]))
    for each in (plan, hidden):
        with pytest.raises(MegatuneError, match="counts emulated figures as evidence"):
            exporter(name).files(each)


@pytest.mark.parametrize("name", OF_REDUCTIONS)
def test_a_recording_of_emulated_ranks_is_not_exported_either(tmp_path: Path, name: str) -> None:
    """Replayed, its figures say that they are replayed; its target still says how its ranks were linked."""
    cases = [replace(case, provenance=Provenance.REPLAYED) for case in example_reductions()]
    plan = plan_of(tmp_path, cases, target=on("sm_103a", links="emulated"))
    with pytest.raises(MegatuneError, match="ranks that were emulated on one GPU"):
        exporter(name).files(plan)


@pytest.mark.parametrize("name", OF_REDUCTIONS)
def test_imported_evidence_is_said(tmp_path: Path, name: str) -> None:
    cases = [replace(case, provenance=Provenance.IMPORTED) for case in example_reductions()]
    files = exporter(name).files(plan_of(tmp_path, cases, provenances=(Provenance.IMPORTED,)))
    (text,) = [text for file, text in files.items() if file.endswith(".json")]
    assert json.loads(text)["notes"][0].startswith("Some of it rests on imported figures")
    assert '"provenance":["imported"]' in text
    assert '"provenance":["measured"' not in text


@pytest.mark.parametrize("name", OF_REDUCTIONS)
def test_a_plan_without_reductions_is_one_line(plan: Plan, name: str) -> None:
    there = changed(plan, lambda content: content.update(target={"digest": GROUP.digest, **GROUP.to_dict()}))
    with pytest.raises(MegatuneError, match="the plan has no operator 'reduction'; it has projection"):
        exporter(name).files(there)


@pytest.mark.parametrize("name", OF_REDUCTIONS)
def test_an_architecture_that_the_runtime_does_not_know_is_refused(tmp_path: Path, name: str) -> None:
    plan = plan_of(tmp_path, example_reductions(), target=on("sm_80"))
    with pytest.raises(MegatuneError, match="sm_80"):
        exporter(name).files(plan)


def test_shapes_come_by_world_and_width(tmp_path: Path) -> None:
    found = reductions(plan_of(tmp_path, example_reductions()), "test")
    assert [(shape.world, shape.dims["width"]) for shape in found] == [
        (4, 7168),
        (8, 7168),
        (8, 3584),
        (16, 7168),
        (16, 3584),
    ]


def test_ties_keep_what_the_band_says(tmp_path: Path) -> None:
    """From 24 to 48 tokens the two are within the noise: the band of the neighbour goes on, and so does the limit."""
    times = sums(
        (1, 16, 24, 32, 48, 64),
        full_fanout=lambda t: 5.0 + 0.1 * t,
        two_stage=lambda t: 5.0 + 0.1 * t + {1: 4, 16: 0.5, 64: -1.0}.get(t, 0.001),
        nccl=lambda t: 30.0,
    )
    shape = shape_of(tmp_path, times)
    (crossover,) = [each for each in shape.crossovers if {each.below, each.above} == {FANOUT, TWO_STAGE}]
    assert crossover.tied
    assert limit(shape, "one_shot").tokens in (16, *crossover.tied)
