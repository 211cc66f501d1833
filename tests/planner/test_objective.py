"""Plans that choose over the routings of a shape: by the mean, the worst, or a weighted mix."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from plan_examples import BASELINES
from plan_examples import CUBLAS
from plan_examples import REGIME
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import candidate
from plan_examples import fill
from plan_examples import measurement
from plan_examples import mma
from plan_examples import samples_of
from plan_examples import simt

from megatune_db import store
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_planner.drafting import draft_plan
from megatune_planner.mixing import join
from megatune_planner.objective import ANY
from megatune_planner.objective import Mix
from megatune_planner.objective import Objective
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.planning import Options
from megatune_planner.planning import make_plan
from megatune_planner.preferred import incumbents_of
from megatune_planner.reader import load
from megatune_planner.rendering import render_plan
from megatune_planner.repeating import decisions_of
from megatune_planner.repeating import judge_repeats
from megatune_planner.repeating import to_measure
from megatune_planner.routings import changes_text
from megatune_planner.verifying.checks import checks_of
from megatune_planner.verifying.judging import Again
from megatune_planner.verifying.judging import judge
from megatune_planner.verifying.verification import Verdict
from megatune_planner.verifying.verification import Verification

MEAN, WORST = Objective.of("mean"), Objective.of("worst")
Times = Mapping[str, Mapping[Config, float]]
"""Microseconds by routing and config."""


def at(routing: str, tokens: int = 4) -> Workload:
    return Workload.of("projection", {"n": 1024, "k": 1024}, tokens, routing=routing)


def finals(times: Times, tokens: int = 4, revision: str = "") -> list[Case]:
    return [
        Case(at(routing, tokens), config, us, Stage.FINAL, f"{routing} {tokens}", revision=revision)
        for routing, mine in times.items()
        for config, us in mine.items()
    ]


def planned(directory: Path, cases: Sequence[Case], objective: Objective | None) -> Plan:
    with open_database(directory / "tuned.db") as database, database.session() as session:
        fill(session, cases)
        return make_plan(
            session,
            name="mixed",
            target=TARGET.digest,
            regime=REGIME,
            baselines=BASELINES,
            options=Options(objective=objective),
        )


def shape_of(plan: Plan) -> ShapePlan:
    (operator,) = plan.content.operators
    (shape,) = operator.shapes
    return shape


def serves(shape: ShapePlan, tokens: int = 4) -> str:
    decision = shape.band(tokens).decision
    return decision.variant if decision.kind == "config" else "stock"


UNLIKE = {
    "balanced": {simt(): 10.0, mma(): 14.0, simt(rows=4): 11.5, CUBLAS: 20.0},
    "same": {simt(): 16.0, mma(): 9.0, simt(rows=4): 10.5, CUBLAS: 20.0},
}


def test_each_routing_has_bands_of_its_own_unless_something_else_is_asked_for(tmp_path: Path) -> None:
    plan = planned(tmp_path, finals(UNLIKE), None)
    shapes = plan.content.operators[0].shapes
    assert [(shape.routing, serves(shape)) for shape in shapes] == [("balanced", "simt"), ("same", "mma")]
    written = plan.to_json()
    assert not any(f'"{name}"' in written for name in ("mix", "objective", "routings", "facts"))
    each = planned(tmp_path, [], Objective.of("each"))
    assert each.digest == plan.digest


@pytest.mark.parametrize(
    ("objective", "winner", "us"),
    [
        (MEAN, simt(rows=4), 11.0),
        (WORST, simt(rows=4), 11.5),
        (Objective.parse("balanced:1,same:9"), mma(), 9.5),
        (Objective.parse("balanced:9,same:1"), simt(), 10.6),
    ],
)
def test_the_best_over_the_routings_serves(tmp_path: Path, objective: Objective, winner: Config, us: float) -> None:
    plan = planned(tmp_path, finals(UNLIKE), objective)
    shape = shape_of(plan)
    band = shape.band(4)
    assert (shape.routing, band.decision.kind) == (ANY, "config")
    assert band.decision.kind == "config"
    assert band.decision.config == winner.digest
    (point,) = band.points
    assert point.latency.median_us == pytest.approx(us)
    assert point.baseline_latency.median_us == pytest.approx(20.0)
    assert {each.routing: each.latency.median_us for each in point.routings} == {
        routing: times[winner] for routing, times in UNLIKE.items()
    }
    assert set(point.evidence) == {each for routing in point.routings for each in routing.evidence}
    assert len(point.evidence) == 4
    assert Plan.from_json(plan.to_json()) == plan


def test_pairs_of_every_routing_are_pairs_of_the_mean_and_of_the_same_worst(tmp_path: Path) -> None:
    for number, objective in enumerate((MEAN, WORST)):
        folder = tmp_path / str(number)
        folder.mkdir()
        times = {name: {simt(): us, mma(): 0.997 * us, CUBLAS: 1.02 * us} for name, us in (("a", 9.0), ("b", 12.0))}
        (point,) = shape_of(planned(folder, finals(times), objective)).band(4).points
        # The intervals of both overlap; only pairs can tell them apart.
        assert point.paired
        assert point.tie_set_size == 1


def test_a_config_that_lacks_a_routing_cannot_be_chosen(tmp_path: Path) -> None:
    times = {
        "balanced": {simt(): 5.0, mma(): 14.0, CUBLAS: 20.0},
        "same": {mma(): 9.0, CUBLAS: 20.0},
    }
    shape = shape_of(planned(tmp_path, finals(times), MEAN))
    assert serves(shape) == "mma"
    (gap,) = shape.gaps
    assert gap.reason == "the fastest at routing balanced (simt) was not measured at same, and cannot be chosen"


def test_a_search_that_measured_it_is_enough(tmp_path: Path) -> None:
    times = {"balanced": {mma(): 14.0, CUBLAS: 20.0}, "same": {mma(): 9.0, CUBLAS: 20.0}}
    # The second best at each, beaten beyond doubt at both, and the best of the mean.
    middle = simt(rows=4)
    cases = [
        *finals(times | {"balanced": times["balanced"] | {simt(): 8.0}}),
        *(
            Case(at("balanced"), config, us)
            for config, us in ((simt(), 8.0), (middle, 8.5), (mma(), 14.0), (CUBLAS, 20))
        ),
        *(Case(at("same"), config, us) for config, us in ((simt(), 16.0), (middle, 9.6), (mma(), 9.0), (CUBLAS, 20))),
    ]
    shape = shape_of(planned(tmp_path, cases, MEAN))
    decision = shape.band(4).decision
    assert decision.kind == "config"
    assert decision.config == middle.digest
    assert not shape.band(4).points[0].paired
    assert not shape.gaps


@pytest.mark.parametrize(
    ("cases", "reason"),
    [
        (finals({"balanced": UNLIKE["balanced"]}, 8), "not measured at routing same"),
        (
            [
                Case(at(name, 8), config, us, provenance=provenance)
                for (name, times), provenance in zip(
                    UNLIKE.items(), (Provenance.MEASURED, Provenance.REPLAYED), strict=True
                )
                for config, us in times.items()
            ],
            "measured at balanced, replayed at same: figures of two clocks make no objective",
        ),
        (
            finals({"balanced": {simt(): 5.0, CUBLAS: 20.0}, "same": {simt(): 5.0}}, 8),
            "no baseline was measured at each of balanced, same",
        ),
    ],
)
def test_tokens_at_which_a_routing_lacks_are_gaps(tmp_path: Path, cases: list[Case], reason: str) -> None:
    shape = shape_of(planned(tmp_path, [*finals(UNLIKE), *cases], MEAN))
    assert shape.measured_tokens == (4,)
    assert [(gap.tokens, gap.reason) for gap in shape.gaps] == [(8, reason)]


def test_routings_of_another_revision_are_not_mixed_with(tmp_path: Path) -> None:
    cases = [
        *finals({"balanced": UNLIKE["balanced"]}, revision="old"),
        *finals({"same": UNLIKE["same"]}, revision="new"),
        *finals(UNLIKE, 8, revision="new"),
    ]
    cases = [
        case if case.config != CUBLAS else Case(case.workload, CUBLAS, case.us, case.stage, case.session)
        for case in cases
    ]
    shape = shape_of(planned(tmp_path, cases, MEAN))
    assert (shape.revision, shape.measured_tokens) == ("new", (8,))
    assert shape.gaps[0].tokens == 4
    assert "balanced" in shape.gaps[0].reason


def test_a_band_says_at_which_routing_alone_another_would_win(tmp_path: Path) -> None:
    band = shape_of(planned(tmp_path, finals(UNLIKE), MEAN)).band(4)
    text = changes_text(band)
    assert text.startswith("the winner changes with the routing: balanced has simt ")
    assert "; same has mma " in text
    with_ties = {name: {simt(): us, mma(): 1.0001 * us, CUBLAS: 20.0} for name, us in (("a", 9.0), ("b", 8.0))}
    folder = tmp_path / "ties"
    folder.mkdir()
    shape = shape_of(planned(folder, finals(with_ties), MEAN))
    assert [changes_text(band) for band in shape.bands] == ["", "", ""]


def test_nothing_over_the_baseline_at_the_mean_is_stock(tmp_path: Path) -> None:
    times = {"balanced": {simt(): 10.0, CUBLAS: 20.0}, "same": {simt(): 31.0, CUBLAS: 20.0}}
    with pytest.raises(NothingMeasured, match="no gain worth shipping"):
        planned(tmp_path, finals(times), MEAN)


def test_people_see_the_mix_and_every_routing(tmp_path: Path) -> None:
    from rich.console import Console

    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(render_plan(planned(tmp_path, finals(UNLIKE), Objective.parse("balanced:1,same:3"))))
    text = captured.get()
    assert "mean of balanced 25% and same 75%" in text
    assert "objective" in text
    assert "mean over balanced 1, same 3" in text
    assert "14.00 of 20.00 µs at balanced; 9.00 of 20.00 µs at same" in text
    assert "the winner changes with the routing" in text


def test_readers_ask_for_any_routing(tmp_path: Path) -> None:
    plan = planned(tmp_path, finals(UNLIKE), MEAN)
    reader = load(plan.to_json(), target=None)
    found = reader.select("projection", "k=1024,n=1024", 4, routing=ANY)
    assert found is not None
    assert found.variant == "simt"
    assert reader.select("projection", "k=1024,n=1024", 4, routing="same") is None


def test_an_incumbent_for_all_routings_wins_ties_at_each(tmp_path: Path) -> None:
    preferred = incumbents_of(planned(tmp_path, finals(UNLIKE), MEAN))
    assert preferred(at("same")) == preferred(at("balanced")) == {simt(rows=4).digest}


def test_a_draft_is_made_as_the_campaign_asks_and_people_can_say_otherwise(tmp_path: Path) -> None:
    with open_database(tmp_path / "tuned.db") as database, database.session() as session:
        fill(session, finals(UNLIKE))
        campaign = store.put_campaign(
            session, name="c", file_text="", file_digest="", objective={"kind": "worst", "weights": {}}
        )
        store.set_campaign(session, campaign, target=TARGET.digest)

        def draft(objective: Objective | None) -> list[str]:
            options = Options(objective=objective)
            made = draft_plan(session, name="d", only_operators=["projection"], options=options)
            asked = made.content.options.objective
            return [asked.kind if asked else "each", *(shape.routing for shape in made.content.operators[0].shapes)]

        assert draft(None) == ["worst", ANY]
        assert draft(MEAN) == ["mean", ANY]
        assert draft(Objective.of("each")) == ["each", "balanced", "same"]
        with pytest.raises(MegatuneError, match="no shape was measured at all of the routings same, zipf"):
            draft(Objective.parse("same:1,zipf:1"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("best", "an objective is each, mean, worst or weights of routings, not 'best'"),
        ("balanced:x", "an objective is routing:weight"),
        ("balanced:0,same:1", "positive weight for each routing, not 0.0 for balanced"),
        ("balanced:inf,same:1", "positive weight"),
        ("same:1", "over two routings or more, and same is one"),
    ],
)
def test_what_is_no_objective_is_refused(text: str, reason: str) -> None:
    with pytest.raises(MegatuneError, match=reason):
        Objective.parse(text)


positive = st.floats(0.1, 1000)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["mean", "worst"]),
    weights=st.lists(positive, min_size=2, max_size=4),
    data=st.data(),
)
def test_a_joint_config_lies_between_its_parts_and_its_interval_holds_it(
    kind: str, weights: list[float], data: st.DataObject
) -> None:
    names = [f"r{number}" for number in range(len(weights))]
    mix = Objective.of(kind, dict(zip(names, weights, strict=True))).mix(names)
    assert mix is not None
    assert sum(mix.shares.values()) == pytest.approx(1)
    times = [data.draw(positive) for _ in names]
    parts = [candidate(simt(), us, id_=1 + number, session="s") for number, us in enumerate(times)]
    found = join(mix, parts)
    assert min(times) * (1 - 1e-9) <= found.median_us <= max(times) * (1 + 1e-9)
    assert found.low_us <= found.median_us <= found.high_us
    if kind == "worst":
        assert found.median_us == max(times)
        assert parts[times.index(max(times))].measurement_id == found.measurement_id
    assert found.measured == tuple(parts)
    # One that is faster everywhere is never worse.
    faster = join(mix, [candidate(mma(), 0.9 * us, id_=9, session="s") for us in times])
    assert faster.median_us < found.median_us
    assert found.stage is Stage.FINAL
    searched = join(mix, [*parts[:-1], candidate(simt(), times[-1])])
    assert (searched.stage, searched.session) == (Stage.SEARCH, "")


def test_the_mix_of_a_shape_follows_from_where_it_was_measured() -> None:
    assert MEAN.mix(["same"]) is None
    assert MEAN.mix(["same", "balanced"]) == Mix(kind="mean", shares={"balanced": 0.5, "same": 0.5})
    weighted = Objective.parse("balanced:1,same:3")
    assert weighted.mix(["balanced", "power_law_1.2"]) is None
    assert weighted.mix(["balanced", "power_law_1.2", "same"]) == Mix(
        kind="mean", shares={"balanced": 0.25, "same": 0.75}
    )
    assert len(samples_of(1.0, 0.1)) == 20


def test_reviewers_see_the_mix_and_every_routing(tmp_path: Path) -> None:
    from megatune_dashboard.app.plans import band_rows

    row = next(row for row in band_rows(shape_of(planned(tmp_path, finals(UNLIKE), MEAN))) if row["at tokens"] == 4)
    assert row["at each routing"] == "11.50 of 20.00 µs at balanced; 10.50 of 20.00 µs at same"
    assert "the winner changes with the routing" in row["why"]


def again(plan: Plan, times: Times) -> Verification:
    checks = checks_of(plan)
    assert {check.workload.routing for check in checks.to_measure} == set(times)
    cases = finals(times) + finals(times, 1)
    measured = {
        (case.workload, case.config): Again(1 + number, replace(measurement(case), stage=Stage.VERIFY))
        for number, case in enumerate(cases)
    }
    return judge(plan, checks, measured, TARGET, Provenance.MEASURED, datetime(2026, 12, 1))


@pytest.mark.parametrize("objective", [MEAN, WORST], ids=["mean", "worst"])
def test_it_is_verified_at_each_routing_and_judged_by_the_same_objective(tmp_path: Path, objective: Objective) -> None:
    # Slower than another at each routing alone, which drifts nothing.
    plan = planned(tmp_path, [*finals(UNLIKE), *finals(UNLIKE, 1)], objective)
    found = again(plan, UNLIKE)
    assert found.verdict is Verdict.HOLDS, found.reason
    (band,) = [band for band in found.bands if band.ends]
    assert band.ends[0].now_us == pytest.approx(11.0 if objective is MEAN else 11.5)
    assert len(band.ends[0].evidence) > 4
    slower = {name: {**mine, simt(rows=4): 1.3 * mine[simt(rows=4)]} for name, mine in UNLIKE.items()}
    assert again(plan, slower).verdict is Verdict.DRIFTED


def test_repeats_that_choose_otherwise_are_measured_at_each_routing(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    mine = planned(tmp_path, finals(UNLIKE), MEAN)
    other = planned(tmp_path / "other", finals({n: {**t, mma(): 8.0} for n, t in UNLIKE.items()}), MEAN)
    decisions = decisions_of([mine, other], [at(name) for name in UNLIKE])
    checks = to_measure(decisions)
    assert [check.workload for check in checks] == [at("balanced"), at("same")]
    measured = {
        (check.workload, config): measurement(
            Case(check.workload, config, UNLIKE[check.workload.routing][config], Stage.VERIFY, check.workload.routing)
        )
        for check in checks
        for config in check.configs
    }
    found = judge_repeats("c", [0, 1], [mine, other], decisions, measured, Provenance.MEASURED)
    (flip,) = found.flips
    assert (flip.routing, flip.kind) == (ANY, "better")
    assert flip.ratio is not None
    assert flip.ratio.median == pytest.approx(11.0 / 11.5)
