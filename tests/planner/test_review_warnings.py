"""What a reviewer is told first, and every number with its unit."""

from __future__ import annotations

import json
from dataclasses import asdict
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from plan_examples import CUBLAS
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import example_cases
from plan_examples import example_plan
from plan_examples import simt
from reduction_examples import example_reduction_plan

from megatune_db.queries import TargetRow
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_kernels.operator import Workload
from megatune_kernels.target import Target
from megatune_planner.against_stock import against_stock
from megatune_planner.plan import Content
from megatune_planner.plan import Plan
from megatune_planner.review_warnings import ReviewWarning
from megatune_planner.review_warnings import review_warnings
from megatune_planner.thresholds import thresholds


def row(target: Target, measured: int = 1) -> TargetRow:
    counts = {Provenance.MEASURED: measured} if measured else {}
    return TargetRow(target.digest, asdict(target.hardware), asdict(target.toolchain), datetime(2026, 12, 1), counts)


def of(found: list[ReviewWarning], kind: str) -> list[ReviewWarning]:
    return [each for each in found if each.kind == kind]


def test_a_stale_toolchain(plan: Plan) -> None:
    newer = replace(TARGET, toolchain=replace(TARGET.toolchain, driver="590.10", dsl="4.9.0"))
    elsewhere = replace(TARGET, hardware=replace(TARGET.hardware, gpu="NVIDIA B300"))
    (warning,) = of(review_warnings(plan, [row(TARGET), row(newer), row(elsewhere)]), "toolchain")
    assert "driver 580.00 to 590.10" in warning.text
    assert "dsl 4.8.1 to 4.9.0" in warning.text
    assert "cuda" not in warning.text
    for targets in ([], [row(TARGET)], [row(newer), row(TARGET)], [row(TARGET), row(newer, 0)], [row(elsewhere)]):
        assert of(review_warnings(plan, targets), "toolchain") == []


def test_predicted_bands_are_named_with_their_share(plan: Plan) -> None:
    found = of(review_warnings(plan), "prediction")
    assert [each.where for each in found] == ["projection k=1536,n=2304 bf16", "projection k=7168,n=1536 bf16"]
    assert "25% of band 1-4" in found[1].text
    assert found[1].evidence


def test_thin_margins_and_unpaired_ones(tmp_path: Path) -> None:
    workload = Workload.of("projection", {"n": 512, "k": 512}, 1)
    finals = [Case(workload, config, us, Stage.FINAL, "finals") for config, us in ((CUBLAS, 10.0), (simt(), 9.85))]
    search = [Case(workload, config, us) for config, us in ((CUBLAS, 10.0), (simt(), 9.85))]
    (thin,) = of(review_warnings(example_plan(tmp_path / "thin", search + finals)), "margin")
    assert thin.where == "projection k=512,n=512 bf16, 1 token"
    assert thin.text.startswith("saves 1.5% of cublas: 9.85 (9.81-9.89) against 10.00 (9.96-10.04) µs")
    assert "overlap" not in thin.text
    assert len(thin.evidence) == 2
    clear = [replace(each, us=9.0 if each.config == simt() else each.us) for each in search]
    found = review_warnings(example_plan(tmp_path / "clear", clear))
    assert of(found, "margin") == []
    assert of(found, "pairing")[0].text == "not interleaved with the baseline at 1 tokens"


def test_what_was_not_measured_here_is_said(tmp_path: Path) -> None:
    cases = [replace(case, provenance=Provenance.REPLAYED) for case in example_cases()]
    (warning,) = of(review_warnings(example_plan(tmp_path, cases)), "provenance")
    assert warning.text == "35 replayed of 35 measurements in evidence: not measured on this target"


def test_a_suspect_crossover_comes_first(plan: Plan) -> None:
    raw = plan.model_dump(mode="json")["content"]
    for operator in raw["operators"]:
        for shape in operator["shapes"]:
            for crossover in shape["crossovers"]:
                crossover |= {"suspect": True, "suspect_reason": "mma steps from 9 to 5 µs"}
    suspect = Plan.of(Content.model_validate_json(json.dumps(raw)))
    first = review_warnings(suspect)[0]
    assert first.kind == "crossover"
    assert "suspect: mma steps from 9 to 5 µs" in first.text
    assert first.evidence


def test_a_plan_without_weaknesses_has_no_warnings(tmp_path: Path) -> None:
    cases = [case for case in example_cases() if case.workload.tokens == 1 and case.workload["n"] == 2304]
    assert review_warnings(example_plan(tmp_path, cases), [row(TARGET)]) == []


def test_every_threshold_has_a_unit(plan: Plan) -> None:
    found = thresholds(plan)
    assert {each.unit for each in found} == {"tokens"}
    wide = [(each.what, each.value, each.low, each.high) for each in found if "n=1536" in each.where]
    assert ("last tokens of simt", 4, None, None) in wide
    assert ("stock above", 64, None, None) in wide
    (crossover,) = [each for each in wide if each[0] == "crossover of simt and mma"]
    assert crossover[2:] == (4, 8)
    assert crossover[2] < crossover[1] < crossover[3]
    assert all(each.evidence for each in found if each.what.startswith("last tokens of simt"))


def test_thresholds_in_bytes(tmp_path: Path) -> None:
    found = thresholds(example_reduction_plan(tmp_path))
    assert {"tokens", "bytes"} == {each.unit for each in found}
    assert any(each.what.startswith("stock where a rank's workspace is below") for each in found)
    assert any("one-shot traffic" in each.what for each in found)


def test_what_a_plan_saves_under_its_traffic(plan: Plan, tmp_path: Path) -> None:
    (_, wide) = against_stock(plan)
    stock = [10.0 + 0.02 * tokens for tokens in (1, 2, 4, 8, 16, 32, 64)]
    assert wide.stock_us == pytest.approx(sum(stock) / 7)
    assert wide.plan_us is not None
    assert wide.plan_us < sum(stock) / 7
    options = plan.content.options.model_copy(update={"traffic": {"1": 3.0, "64": 1.0, "5": 9.0}})
    weighed = plan.model_copy(update={"content": plan.content.model_copy(update={"options": options})})
    assert against_stock(weighed)[1].stock_us == pytest.approx((3 * 10.02 + 11.28) / 4)
    nowhere = options.model_copy(update={"traffic": {"5": 1.0}})
    weighed = plan.model_copy(update={"content": plan.content.model_copy(update={"options": nowhere})})
    assert (against_stock(weighed)[1].stock_us, against_stock(weighed)[1].plan_us) == (None, None)
