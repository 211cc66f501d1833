"""Crossovers in plans: of a reduction's two variants beside the baselines, and of a projection's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crossover_examples import BASELINES
from crossover_examples import FANOUT
from crossover_examples import GROUP
from crossover_examples import NCCL
from crossover_examples import ONE_SHOT
from crossover_examples import POWERS
from crossover_examples import REDUCTION
from crossover_examples import TWO_SHOT
from crossover_examples import TWO_STAGE
from crossover_examples import Curve
from crossover_examples import baselines
from crossover_examples import cells
from crossover_examples import default
from crossover_examples import reduction
from crossover_examples import variants
from plan_examples import CUBLAS
from plan_examples import REGIME
from plan_examples import Case
from plan_examples import fill
from plan_examples import mma
from plan_examples import simt
from pydantic import ValidationError
from sqlalchemy.orm import Session

from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.session import open_database
from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_planner.crossover_schema import Crossover
from megatune_planner.crossover_schema import TokenRange
from megatune_planner.crossovers import one_shot_bytes
from megatune_planner.crossovers import refinement
from megatune_planner.figure import latency_figure
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.planning import Options
from megatune_planner.planning import make_plan
from megatune_planner.reader import PlanError
from megatune_planner.reader import load
from megatune_planner.rendering import crossover_text


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with open_database(tmp_path / "measured.db") as database, database.session() as session:
        yield session


def planned(session: Session, **options: Any) -> Plan:
    arguments: dict[str, Any] = {"name": "p", "target": GROUP.digest, "regime": REGIME, "baselines": BASELINES}
    return make_plan(session, **(arguments | options))


def only_shape(plan: Plan) -> ShapePlan:
    (found,) = (shape for operator in plan.content.operators for shape in operator.shapes)
    return found


def of(shape: ShapePlan, *names: str) -> Crossover:
    (found,) = (each for each in shape.crossovers if {each.below, each.above} == set(names))
    return found


def test_a_crossover_says_where_it_lies_in_tokens_and_bytes(session: Session) -> None:
    fill(session, cells(variants() | baselines()), GROUP)
    found = of(only_shape(planned(session)), "full_fanout", "two_stage")
    assert (found.kind, found.below, found.above, found.faster) == ("interval", "full_fanout", "two_stage", None)
    assert (found.tokens_lo, found.tokens_hi) == (64, 128)
    assert found.estimate_tokens == pytest.approx(96.67, abs=0.5)
    assert found.unmeasured == (TokenRange(tokens_lo=65, tokens_hi=127),)
    assert found.traffic is not None
    assert found.traffic.bytes_a_token == 7168 * 2 * 2
    assert (found.traffic.bytes_lo, found.traffic.bytes_hi) == (64 * 28672, 128 * 28672)
    assert found.traffic.estimate_bytes == pytest.approx(found.estimate_tokens * 28672, abs=1)
    assert not found.suspect
    assert all(point.paired for point in found.points)
    assert len(found.evidence) == 4
    assert [point.tokens for point in found.points] == list(POWERS)


def test_measuring_what_refinement_asks_for_narrows_it_to_the_token(session: Session) -> None:
    curves = variants() | baselines()
    fill(session, cells(curves), GROUP)
    rounds = []
    while more := refinement(only_shape(planned(session)).crossovers):
        rounds.append(more)
        fill(session, cells(curves, more), GROUP)
    found = of(only_shape(planned(session)), "full_fanout", "two_stage")
    assert rounds[0] == (96,)
    assert sum(map(len, rounds)) <= 12
    assert found.tokens_lo < 96.67 < found.tokens_hi
    # Within 1 % of each other the two tie, from about 93 to 100 tokens.
    assert found.tokens_hi - found.tokens_lo <= 14
    assert found.tied
    assert found.estimate_tokens == pytest.approx(96.67, abs=0.5)


def test_every_measured_token_gives_a_point(session: Session) -> None:
    steep = {FANOUT: lambda t: 2 + 0.4 * t, TWO_STAGE: lambda t: 4.2 + 0.01 * t}
    fill(session, cells(steep | baselines(), range(1, 11)), GROUP)
    found = of(only_shape(planned(session)), "full_fanout", "two_stage")
    assert (found.kind, found.tokens_lo, found.tokens_hi, found.unmeasured) == ("point", 5, 6, ())
    assert found.estimate_tokens == pytest.approx(2.2 / 0.39, abs=0.02)
    assert refinement([found]) == ()


def test_worlds_and_widths_are_never_pooled(session: Session) -> None:
    """Each has a crossover of its own, and what is missing at one is not taken from another."""
    for width, world, meets in ((7168, 2, 96), (7168, 8, 24), (3584, 2, 192)):
        curves = {
            default("full_fanout", width, world): lambda t, meets=meets: 2 + 0.04 * t * 96 / meets,
            default("two_stage", width, world): lambda t: 5.84,
        }
        fill(session, cells(curves | baselines(), width=width, world=world), GROUP)
    fill(session, cells({default("full_fanout", 3584, 8): lambda t: 2.0} | baselines(), width=3584, world=8), GROUP)
    found = {
        (shape.dims["width"], shape.world): of(shape, "full_fanout", "two_stage")
        for shape in planned(session).operator("reduction").shapes
        if (shape.dims["width"], shape.world) != (3584, 8)
    }
    assert {key: (each.tokens_lo, each.tokens_hi) for key, each in found.items()} == {
        (7168, 2): (64, 128),
        (7168, 8): (16, 32),
        (3584, 2): (128, 256),
    }
    traffic = {key: each.traffic.bytes_a_token for key, each in found.items() if each.traffic}
    assert traffic == {(7168, 2): 28672, (7168, 8): 114688, (3584, 2): 14336}
    (lone,) = (s for s in planned(session).operator("reduction").shapes if (s.dims["width"], s.world) == (3584, 8))
    assert not [each for each in lone.crossovers if "two_stage" in (each.below, each.above)]


def test_a_baseline_that_wins_in_the_middle_has_its_band_and_the_variants_their_crossover(session: Session) -> None:
    def nccl(tokens: int) -> float:
        return 4.0 if 64 <= tokens <= 128 else 40.0

    fill(session, cells(variants() | baselines(nccl)), GROUP)
    plan = planned(session)
    shape = only_shape(plan)
    bands = [(band.tokens_lo, band.tokens_hi, band.decision.kind) for band in shape.bands if band.points]
    # Between measured tokens nothing says where NCCL begins and ceases to win: stock.
    assert bands == [(1, 32, "config"), (33, 255, "stock"), (256, 512, "config")]
    (middle,) = (band for band in shape.bands if band.decision.kind == "stock" and band.points)
    assert middle.decision.kind == "stock"
    assert middle.decision.baseline == NCCL
    assert [point.tokens for point in middle.points] == [64, 128]
    both = of(shape, "full_fanout", "two_stage")
    assert (both.kind, both.tokens_lo, both.tokens_hi) == ("interval", 64, 128)
    assert (of(shape, "full_fanout", NCCL).changes[0].tokens_lo, of(shape, NCCL, "two_stage").kind) == (32, "contested")
    assert [each.kind for each in shape.crossovers] == ["interval", "contested", "contested"]


def test_stock_bands_are_cut_where_another_baseline_is_the_fastest(session: Session) -> None:
    """torch's one-shot up to 48 tokens, then its two-shot; within the noise the neighbour goes on serving."""
    curves = {FANOUT: lambda t: 2.0 if t < 4 else 99.0, TWO_STAGE: lambda t: 98.0}
    fill(session, cells(curves | baselines(), (1, 2, 4, 8, 16, 32, 47, 49, 64)), GROUP)
    shape = only_shape(planned(session))
    stock = [
        (band.tokens_lo, band.tokens_hi, band.decision.baseline)
        for band in shape.bands
        if band.decision.kind == "stock" and band.points
    ]
    assert stock == [(3, 64, ONE_SHOT)]
    faster = {Config.of(TWO_SHOT, {}): lambda t: 12.05 + t / 10 if t < 48 else 10.0}
    fill(session, cells(curves | baselines() | faster, (1, 2, 4, 8, 16, 32, 47, 49, 64), world=4), GROUP)
    (shape,) = (each for each in planned(session).operator("reduction").shapes if each.world == 4)
    stock = [
        (band.points[0].tokens, band.tokens_hi, band.decision.baseline)
        for band in shape.bands
        if band.decision.kind == "stock" and band.points
    ]
    assert stock == [(4, 47, ONE_SHOT), (49, 64, TWO_SHOT)]


def test_no_crossover_in_the_measured_range(session: Session) -> None:
    fill(session, cells({FANOUT: lambda t: 2 + 0.02 * t, TWO_STAGE: lambda t: 3 + 0.03 * t} | baselines()), GROUP)
    found = of(only_shape(planned(session)), "full_fanout", "two_stage")
    assert (found.kind, found.faster, found.tokens_lo, found.tokens_hi) == ("never", "full_fanout", 1, 512)
    assert found.changes == found.unmeasured == ()
    assert refinement([found]) == ()
    text = crossover_text(found)
    assert text.endswith(": full_fanout is faster at all 10 measured places from 1 to 512 tokens")


def test_where_the_faster_one_ties_it_is_not_called_faster(session: Session) -> None:
    fill(session, cells({FANOUT: lambda t: 2 + 0.03 * t, TWO_STAGE: lambda t: 2.1 + 0.03 * t} | baselines()), GROUP)
    found = of(only_shape(planned(session)), "full_fanout", "two_stage")
    assert (found.kind, found.faster, found.tied) == ("never", "full_fanout", (512,))
    assert "full_fanout is faster at 9 of 10 measured places from 1 to 512 tokens, a tie at 512" in crossover_text(
        found
    )


def test_two_variants_that_tie_throughout(session: Session) -> None:
    fill(session, cells({FANOUT: lambda t: 2 + 0.03 * t, TWO_STAGE: lambda t: 2.01 + 0.03 * t} | baselines()), GROUP)
    found = of(only_shape(planned(session)), "full_fanout", "two_stage")
    assert (found.kind, found.faster, found.tied) == ("never", None, POWERS)


def test_a_contested_range(session: Session) -> None:
    def two_stage(tokens: int) -> float:
        return (0.8 if tokens in (16, 128, 256, 512) else 1.2) * (2 + 0.04 * tokens)

    fill(session, cells({FANOUT: lambda t: 2 + 0.04 * t, TWO_STAGE: two_stage} | baselines()), GROUP)
    found = of(only_shape(planned(session)), "full_fanout", "two_stage")
    assert found.kind == "contested"
    assert [(each.tokens_lo, each.tokens_hi) for each in found.changes] == [(8, 16), (16, 32), (64, 128)]
    assert (found.tokens_lo, found.tokens_hi, found.estimate_tokens) == (8, 128, None)
    assert refinement([found]) == (12, 24, 96)


def test_without_pairs_intervals_decide_and_it_is_said(session: Session) -> None:
    searched = [case for case in cells(variants() | baselines()) if case.stage is Stage.SEARCH]
    fill(session, searched, GROUP)
    found = of(only_shape(planned(session)), "full_fanout", "two_stage")
    assert (found.tokens_lo, found.tokens_hi) == (64, 128)
    assert not any(point.paired for point in found.points)


def test_other_provenances_targets_and_regimes_are_no_evidence(session: Session) -> None:
    """Emulated times are never a crossover of measured ones."""
    emulated = [replace(case, provenance=Provenance.EMULATED) for case in cells(variants() | baselines())]
    measured = cells(variants() | baselines(), (1, 2, 4))
    fill(session, [*emulated, *measured], GROUP)
    found = of(only_shape(planned(session)), "full_fanout", "two_stage")
    assert (found.kind, found.tokens_hi) == ("never", 4)
    assert {point.provenance for point in found.points} == {Provenance.MEASURED}
    plan = planned(session, provenances=[Provenance.EMULATED])
    assert {p.provenance for p in of(only_shape(plan), "full_fanout", "two_stage").points} == {Provenance.EMULATED}


def test_the_least_gain_of_a_plan_does_not_move_a_crossover(session: Session) -> None:
    fill(session, cells(variants() | baselines()), GROUP)
    plans = [planned(session, options=Options(min_gain=gain)) for gain in (0.0, 0.2)]
    assert len({of(only_shape(plan), "full_fanout", "two_stage") for plan in plans}) == 1


def test_workspace_and_residency_of_every_band(session: Session) -> None:
    fill(session, cells(variants() | baselines()), GROUP)
    plan = planned(session)
    shape = only_shape(plan)
    for band in shape.bands:
        if band.decision.kind == "config":
            config = Config.of(band.decision.variant, dict(band.decision.params))
            assert band.tokens_hi is not None
            needed = REDUCTION.workspace(reduction(band.tokens_hi), config)
            assert (band.decision.workspace_bytes, band.decision.workspace_alignment_bytes) == (
                needed.bytes,
                needed.alignment,
            )
            assert band.decision.workspace_bytes >= 2 * one_shot_bytes(reduction(1)) > 0  # type: ignore[operator]
            assert band.decision.resident
    rules = {rule.when: rule for rule in plan.content.fallback}
    assert rules["missing_link"].links == "nvlink-18"  # type: ignore[union-attr]
    assert rules["missing_link"].worlds == (2,)  # type: ignore[union-attr]
    most = max(b.decision.workspace_bytes for b in shape.bands if b.decision.kind == "config")
    assert rules["workspace_too_small"].workspace_bytes == most  # type: ignore[union-attr]


def test_a_reader_falls_back_where_the_workspace_is_too_small(session: Session) -> None:
    fill(session, cells(variants() | baselines()), GROUP)
    plan = planned(session)
    needs = sorted(b.decision.workspace_bytes for b in only_shape(plan).bands if b.decision.kind == "config")
    assert needs[0] < needs[-1]
    whole = load(plan.to_json(), target=GROUP.to_dict(), workspace_bytes=needs[-1])
    small = load(plan.to_json(), target=GROUP.to_dict(), workspace_bytes=needs[-1] - 1)
    asked = ("reduction", "width=7168")
    fits = {t for t in POWERS if (found := whole.select(*asked, t, world=2)) and found.workspace_bytes < needs[-1]}
    assert 0 < len(fits) < len(POWERS)
    for tokens in POWERS:
        assert whole.select(*asked, tokens, world=2) is not None
        assert (small.select(*asked, tokens, world=2) is not None) == (tokens in fits)
    too_much = next(tokens for tokens in POWERS if tokens not in fits)
    assert small.explain(*asked, too_much, world=2).endswith(
        f"needs {needs[-1]} bytes of workspace, and there are {needs[-1] - 1}"
    )


def test_a_reader_knows_crossovers_and_their_units(session: Session) -> None:
    fill(session, cells(variants() | baselines()), GROUP)
    plan = planned(session)
    reader = load(plan.to_json(), target=GROUP.to_dict())
    (found,) = reader.crossovers("reduction", "width=7168", world=2)
    assert (found["kind"], found["unit"], found["tokens_lo"], found["tokens_hi"]) == ("interval", "tokens", 64, 128)
    assert (found["traffic"]["unit"], found["traffic"]["bytes_hi"]) == ("bytes", 128 * 28672)
    with pytest.raises(TypeError):
        found["tokens_lo"] = 1  # type: ignore[index]
    # A crossover of one world says nothing of another.
    assert reader.crossovers("reduction", "width=7168", world=8) == ()
    assert load(plan.to_json(), target={}).crossovers("reduction", "width=7168", world=2) == ()


@pytest.mark.parametrize("unit", [None, "elements"])
@pytest.mark.parametrize("place", ["tokens", "traffic"])
def test_a_limit_in_no_known_unit_is_refused(session: Session, unit: str | None, place: str) -> None:
    fill(session, cells(variants() | baselines()), GROUP)
    value = json.loads(planned(session).to_json())
    crossover = value["content"]["operators"][0]["shapes"][0]["crossovers"][0]
    holder = crossover if place == "tokens" else crossover["traffic"]
    if unit is None:
        del holder["unit"]
    else:
        holder["unit"] = unit
    value["digest"] = digest(value["content"])
    with pytest.raises(PlanError, match="unit"):
        load(json.dumps(value), target=None)


def test_kernels_that_are_not_installed_are_no_plan(session: Session) -> None:
    unknown = Config.of("full_fanout", {"magic": 1})
    fill(session, cells({unknown: lambda t: 2.0} | baselines(), (1, 2)), GROUP)
    with pytest.raises(MegatuneError, match="installed kernels have no full_fanout magic=1 for reduction"):
        planned(session)


def test_the_projection_s_variants_cross_in_the_same_way(session: Session) -> None:
    found = []
    for tokens in range(1, 13):
        workload = Workload.of("projection", {"n": 1536, "k": 7168}, tokens)
        for config, us in ((CUBLAS, 12.0), (simt(), 6 + 0.5 * tokens), (mma(), 8.6 + 0.012 * tokens)):
            found.append(Case(workload, config, us, Stage.FINAL, f"finals {tokens}"))
    fill(session, found, GROUP)
    shape = only_shape(planned(session))
    (crossing,) = shape.crossovers
    assert (crossing.kind, crossing.below, crossing.above) == ("point", "simt", "mma")
    assert (crossing.tokens_lo, crossing.tokens_hi, crossing.traffic) == (5, 6, None)


def test_bytes_of_one_shot_traffic() -> None:
    assert one_shot_bytes(reduction(1, world=8)) == 7168 * 2 * 8
    assert one_shot_bytes(reduction(9, world=8)) == 9 * 7168 * 2 * 8
    assert one_shot_bytes(Workload.of("projection", {"n": 1, "k": 8}, 1)) is None
    assert one_shot_bytes(Workload.of("reduction", {"width": 8}, 1, dtype="fp8", world=4)) == 32
    assert one_shot_bytes(Workload.of("reduction", {"width": 8}, 1, dtype="int3", world=4)) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "never"}, "cannot have 1 changes"),
        ({"kind": "contested"}, "cannot have 1 changes"),
        ({"kind": "point"}, "interval where tokens inside were not measured"),
        ({"unmeasured": ()}, "interval where tokens inside were not measured"),
        ({"tokens_hi": 1}, "cannot end"),
        ({"points": ()}, "at least 1"),
    ],
)
def test_a_crossover_that_contradicts_itself_cannot_be_written(
    session: Session, change: dict[str, Any], says: str
) -> None:
    fill(session, cells(variants() | baselines()), GROUP)
    found = of(only_shape(planned(session)), "full_fanout", "two_stage")
    with pytest.raises(ValidationError, match=says):
        Crossover.model_validate(found.model_dump() | change)


@pytest.mark.parametrize("curve", ["crosses", "contested", "never"])
def test_a_figure_shows_the_crossover_of_one_world(session: Session, tmp_path: Path, curve: str) -> None:
    two_stage: dict[str, Curve] = {
        "crosses": lambda t: 3.45 + 0.025 * t,
        "contested": lambda t: (0.8 if t in (16, 256, 512) else 1.2) * (2 + 0.04 * t),
        "never": lambda t: 3 + 0.05 * t,
    }
    for world in (2, 4):
        curves = {default("full_fanout", world=world): lambda t: 2 + 0.04 * t}
        curves[default("two_stage", world=world)] = two_stage[curve]
        fill(session, cells(curves | baselines(), world=world), GROUP)
    plan = planned(session)
    latency_figure(plan, "reduction", "width=7168", tmp_path / "a.svg", world=2)
    text = (tmp_path / "a.svg").read_text()
    assert ("<pattern" in text) == (curve != "never")
    with pytest.raises(MegatuneError, match=r"several times, say which world: width=7168 world 2 bf16; .* world 4"):
        latency_figure(plan, "reduction", "width=7168", tmp_path / "b.svg")
    with pytest.raises(MegatuneError, match="no shape 'width=7168' of reduction at world 8"):
        latency_figure(plan, "reduction", "width=7168", tmp_path / "b.svg", world=8)
