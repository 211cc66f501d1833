"""Plans of ranks that share a GPU, where no baseline runs: what their variants gain over each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from crossover_examples import BASELINES
from crossover_examples import GROUP
from crossover_examples import POWERS
from crossover_examples import cells
from crossover_examples import variants
from plan_examples import REGIME
from plan_examples import Case
from plan_examples import fill
from rich.console import Console
from sqlalchemy.orm import Session

from megatune_db.records import Provenance
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.models import model
from megatune_planner.drafting import keep_draft
from megatune_planner.exporters.base import exporter
from megatune_planner.plan import Plan
from megatune_planner.planning import make_plan
from megatune_planner.rendering import render_plan
from megatune_planner.serving.step import step
from megatune_planner.step_review import deployments
from megatune_planner.survey import of_measurements
from megatune_planner.verifying.checks import checks_of

EMULATED = replace(GROUP, hardware=replace(GROUP.hardware, links="emulated"))


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with open_database(tmp_path / "emulated.db") as database, database.session() as session:
        yield session


def planned(session: Session, provenance: Provenance = Provenance.EMULATED) -> Plan:
    options: dict[str, Any] = {"regime": REGIME, "baselines": BASELINES, "provenances": [provenance]}
    return make_plan(session, name="p", target=EMULATED.digest, **options)


def emulated(cases: list[Case]) -> list[Case]:
    return [replace(case, provenance=Provenance.EMULATED) for case in cases]


def test_the_faster_variant_serves_and_the_slower_one_stands_in(session: Session) -> None:
    fill(session, emulated(cells(variants())), EMULATED)
    plan = planned(session)
    ((operator,), (shape,)) = plan.content.operators, plan.content.operators[0].shapes
    assert operator.baselines == ("full_fanout", "two_stage")
    serving = {
        point.tokens: (band.decision.variant if band.decision.kind == "config" else "stock", point)
        for band in shape.bands
        for point in band.points
    }
    assert list(serving) == list(POWERS)
    for tokens, (variant, point) in serving.items():
        assert (variant, point.baseline) == (
            ("full_fanout", "two_stage") if tokens <= 64 else ("two_stage", "full_fanout")
        )
        assert point.latency.median_us < point.baseline_latency.median_us
        assert point.paired
        assert point.provenance == (Provenance.EMULATED,)
    assert {curve.kind for curve in shape.curves} == {"variant"}
    assert [(found.kind, found.below, found.tokens_lo) for found in shape.crossovers] == [
        ("interval", "full_fanout", 64)
    ]
    assert plan.content.coverage.measurements.keys() == {Provenance.EMULATED}
    reasons = [band.reason for band in shape.bands if band.points]
    assert all("less time than" in reason and "share a GPU" in reason for reason in reasons)
    console = Console(width=200, record=True, file=StringIO())
    console.print(render_plan(plan))
    text = console.export_text()
    assert "of full_fanout/two_stage" in text
    assert "the slowest variant stands in for stock" in " ".join(text.split())
    keep_draft(session, plan)
    assert Plan.from_json(plan.to_json()) == plan
    # A plan is verified against what would serve instead, which are variants alone here.
    kinds = {rival.kind for end in checks_of(plan).ends for rival in end.rivals}
    assert kinds == {"variant"}


def test_where_the_variants_tie_stock_is_not_known(session: Session) -> None:
    curves = variants()
    tied = dict.fromkeys(curves, lambda tokens: 5.0)
    fill(session, emulated([*cells(curves, (1, 2)), *cells(tied, (4, 8))]), EMULATED)
    (shape,) = planned(session).content.operators[0].shapes
    (band,) = (band for band in shape.bands if [point.tokens for point in band.points] == [4, 8])
    assert band.decision.kind == "stock"
    assert band.decision.baseline is None
    assert "nothing beat the slowest variant" in band.reason


def test_one_variant_alone_is_compared_with_nothing(session: Session) -> None:
    first, *_ = variants().items()
    fill(session, emulated(cells(dict([first]))), EMULATED)
    with pytest.raises(NothingMeasured, match="no baseline runs on ranks that share a GPU; two variants"):
        planned(session)


@pytest.mark.parametrize("provenance", [Provenance.MEASURED, Provenance.REPLAYED])
def test_what_was_measured_on_a_group_needs_its_baseline(session: Session, provenance: Provenance) -> None:
    fill(session, [replace(case, provenance=provenance) for case in cells(variants())], EMULATED)
    with pytest.raises(NothingMeasured, match=r"without one nothing can be said to win$"):
        planned(session, provenance)


def test_nobody_is_served_from_it(session: Session) -> None:
    fill(session, emulated(cells(variants())), EMULATED)
    plan = planned(session)
    for name in ("json", "sglang", "vllm-allreduce", "vllm-config"):
        with pytest.raises(MegatuneError, match=rf"{name}: the plan counts emulated figures as evidence"):
            exporter(name).files(plan)


def test_no_step_is_predicted_from_it(session: Session) -> None:
    fill(session, emulated(cells(variants())), EMULATED)
    plan = planned(session)
    parts = step(model("Kimi-K3"), plan, EMULATED.hardware.world, 64).parts
    (part,) = [each for each in parts if each.name == "reduction 7168"]
    assert (part.plan_us, part.stock_us, part.provenance) == (None, None, "missing")
    assert "ranks that share a GPU" in part.how
    assert deployments(plan) == []


def test_who_asks_for_measured_figures_is_told_that_there_are_emulated_ones(session: Session) -> None:
    fill(session, emulated(cells(variants())), EMULATED)
    says = r"of provenance measured.* \(some are emulated: ask for them with --provenance\)"
    with pytest.raises(NothingMeasured, match=says):
        planned(session, Provenance.MEASURED)
    with pytest.raises(NothingMeasured, match=says):
        of_measurements(
            session, target=EMULATED.digest, regime=REGIME, provenances=[Provenance.MEASURED], baselines=BASELINES
        )
