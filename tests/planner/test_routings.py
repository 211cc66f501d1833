"""Plans of a shape that was measured at several routings."""

from __future__ import annotations

from pathlib import Path

from plan_examples import CUBLAS
from plan_examples import Case
from plan_examples import example_plan
from plan_examples import mma
from plan_examples import simt
from rich.console import Console

from megatune_db.records import Stage
from megatune_kernels.operator import Workload
from megatune_planner.crossover_commands import _lines as lines_of
from megatune_planner.differences import ShapeDifference
from megatune_planner.lineage_commands import _shape as difference_of
from megatune_planner.plan import ShapePlan
from megatune_planner.survey import ShapeCrossovers
from megatune_planner.thresholds import thresholds
from megatune_planner.verifying.rendering import render_verification
from megatune_planner.verifying.verification import BandVerdict
from megatune_planner.verifying.verification import EndVerdict
from megatune_planner.verifying.verification import Machine
from megatune_planner.verifying.verification import Verdict
from megatune_planner.verifying.verification import Verification


def shapes(directory: Path, *finals: tuple[str, int, float, float]) -> dict[str, ShapePlan]:
    """By routing, planned from finals: routing, tokens, and the times of one config and another."""
    cases = []
    directory.mkdir(exist_ok=True)
    for routing, tokens, one, other in finals:
        workload = Workload.of("projection", {"n": 1024, "k": 1024}, tokens, routing=routing)
        times = {simt(): one, mma(): other, CUBLAS: 20.0}
        cases += [Case(workload, config, us, Stage.FINAL, f"{routing} {tokens}") for config, us in times.items()]
    plan = example_plan(directory, cases)
    (operator,) = plan.content.operators
    return {shape.routing: shape for shape in operator.shapes}


def test_a_band_whose_winner_changes_with_the_routing_says_so(tmp_path: Path) -> None:
    found = shapes(
        tmp_path,
        *(("balanced", tokens, 10.0, 12.0) for tokens in (1, 2, 4)),
        *(("same", tokens, 12.0 if tokens > 1 else 10.0, 10.0 if tokens > 1 else 12.0) for tokens in (1, 2, 4)),
    )
    (balanced, beyond) = found["balanced"].bands
    assert "the winner changes with the routing: same has mma " in balanced.reason
    assert balanced.reason.endswith("at 2 to 4 tokens")
    assert "routing" not in beyond.reason
    first, second, _ = found["same"].bands
    assert "routing" not in first.reason
    assert "balanced has simt " in second.reason


def test_one_that_does_not_says_nothing(tmp_path: Path) -> None:
    found = shapes(tmp_path, ("balanced", 1, 10.0, 12.0), ("same", 1, 8.0, 12.0))
    assert all("routing" not in band.reason for shape in found.values() for band in shape.bands)


def test_another_routing_is_told_by_its_variant_or_by_what_differs_in_the_same_one(tmp_path: Path) -> None:
    cases = []
    for routing, winner in {"balanced": simt(rows=2), "same": simt(rows=4), "power_law_1.2": mma()}.items():
        workload = Workload.of("projection", {"n": 1024, "k": 1024}, 1, routing=routing)
        times = {simt(rows=2): 12.0, simt(rows=4): 12.0, mma(): 12.0, CUBLAS: 20.0} | {winner: 10.0}
        cases += [Case(workload, config, us, Stage.FINAL, routing) for config, us in times.items()]
    (operator,) = example_plan(tmp_path, cases).content.operators
    found = {shape.routing: shape.bands[0].reason.partition("; ")[2] for shape in operator.shapes}
    assert found["balanced"] == (
        "the winner changes with the routing: power_law_1.2 has mma at 1 tokens; same has simt rows=4 at 1 tokens"
    )
    assert "same has simt at 1 tokens" in found["power_law_1.2"]


def test_what_ties_with_the_winner_of_another_routing_is_no_change(tmp_path: Path) -> None:
    near, far = (
        shapes(tmp_path / name, ("balanced", 1, 10.5, 10.0), ("same", 1, 10.0, other))
        for name, other in (("near", 10.001), ("far", 10.5))
    )
    assert [each.bands[0].decision.kind for each in near.values()] == ["config"] * 2
    # Where both are as good the simpler one serves: what serves at the other routing would do as well.
    assert "routing" not in near["balanced"].bands[0].reason
    assert "the winner changes with the routing: same has simt at 1 tokens" in far["balanced"].bands[0].reason
    assert "the winner changes with the routing: balanced has mma at 1 tokens" in near["same"].bands[0].reason


def test_differences_and_thresholds_name_the_routing(tmp_path: Path) -> None:
    cases = []
    for routing in ("balanced", "same"):
        workload = Workload.of("projection", {"n": 1024, "k": 1024}, 1, routing=routing)
        cases += [Case(workload, config, us, Stage.FINAL, routing) for config, us in ((simt(), 10.0), (CUBLAS, 20.0))]
    plan = example_plan(tmp_path, cases)
    places = {each.where for each in thresholds(plan)}
    assert {f"projection k=1024,n=1024, routing {routing}" for routing in ("balanced", "same")} <= places
    assert "projection k=1024,n=1024" not in places
    first = ShapeDifference.model_construct(
        **{"operator": "projection", "shape": "k=1024,n=1024", "dtype": "bf16", "world": 1},
        **{"routing": "same", "presence": "before", "changes": ()},
    )
    heading, _ = difference_of(first)
    assert str(heading) == "projection k=1024,n=1024  bf16, world 1, routing same, only before"


def test_crossovers_and_verifications_name_the_routing() -> None:
    named = {"operator": "experts", "shape": "experts=896,k=3584,width=192", "dtype": "mxfp4", "world": 1}
    bands, crossings = [], []
    for routing in ("balanced", "same"):
        crossings.append(ShapeCrossovers(**named, routing=routing, revision="", crossovers=(), measure_next=(6,)))
        fields = {"tokens_lo": 1, "tokens_hi": 4, "decision": "grouped", "reason": "noise", "verdict": "cannot tell"}
        end = EndVerdict.model_construct(compared=())
        bands.append(BandVerdict.model_construct(**named, routing=routing, ends=(end,), **fields))
    assert [line for line in lines_of(crossings) if line.startswith("experts")] == [
        f"experts experts=896,k=3584,width=192  mxfp4, world 1, routing {routing}" for routing in ("balanced", "same")
    ]
    machine = Machine.model_construct(verdict=Verdict.HOLDS, reason="well")
    verification = Verification.model_construct(
        **dict.fromkeys(("name", "recording", "reason"), "p"),
        **{"bands": tuple(bands), "changed": {}, "machine": machine, "verdict": Verdict.CANNOT_TELL},
        **{"provenance": "replayed", "margin": 0.02, "comparisons": 2},
    )
    console = Console(width=90, no_color=True)
    with console.capture() as captured:
        console.print(render_verification(verification))
    text = captured.get()
    assert "experts experts=896,k=3584,width=192, routing balanced, 1-4 tokens: cannot tell: noise" in text
    # The table folds what does not fit and cuts nothing.
    table = [line.split("│")[2].strip() for line in text.splitlines() if line.startswith("│")]
    assert "".join(table).count("width=192") == 2
