from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_examples import BASELINES
from plan_examples import CUBLAS
from plan_examples import REGIME
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import example_cases
from plan_examples import fill
from plan_examples import mma
from plan_examples import simt
from sqlalchemy.orm import Session

from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.target import architecture
from megatune_planner.band_schema import UseConfig
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.planning import Options
from megatune_planner.planning import make_plan
from megatune_planner.preferred import defaults_on
from megatune_planner.preferred import incumbents_of


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with open_database(tmp_path / "measured.db") as database, database.session() as session:
        yield session


def planned(session: Session, **options: Any) -> Plan:
    arguments: dict[str, Any] = {
        "name": "p",
        "target": TARGET.digest,
        "regime": REGIME,
        "baselines": BASELINES,
    }
    return make_plan(session, **(arguments | options))


def at(tokens: int, n: int = 1536, k: int = 7168, **rest: Any) -> Workload:
    return Workload.of("projection", {"n": n, "k": k}, tokens, **rest)


def only_shape(plan: Plan) -> ShapePlan:
    (shape,) = plan.operator("projection").shapes
    return shape


def serving(plan: Plan) -> list[tuple[int, int | None, str]]:
    return [
        (band.tokens_lo, band.tokens_hi, band.decision.config if isinstance(band.decision, UseConfig) else "stock")
        for band in only_shape(plan).bands
    ]


def test_the_example_has_both_kinds_of_bands(plan: Plan) -> None:
    shapes = {shape.shape: shape for shape in plan.operator("projection").shapes}
    wide = [(band.tokens_lo, band.tokens_hi, band.decision.kind) for band in shapes["k=7168,n=1536"].bands]
    assert wide == [(1, 4, "config"), (5, 64, "config"), (65, None, "stock")]
    narrow = [(band.tokens_lo, band.tokens_hi, band.decision.kind) for band in shapes["k=1536,n=2304"].bands]
    assert narrow == [(1, 4, "config"), (5, 64, "stock"), (65, None, "stock")]


def test_every_point_carries_its_evidence(plan: Plan) -> None:
    for shape in plan.operator("projection").shapes:
        points = [point for band in shape.bands for point in band.points]
        assert [point.tokens for point in points] == list(shape.measured_tokens)
        for band in shape.bands:
            for point in band.points:
                stock = band.decision.kind == "stock"
                assert len(point.evidence) == (1 if stock else 2)
                assert point.paired is not stock
                assert (point.gain == 0) is stock
                assert point.provenance == (Provenance.MEASURED,)
            if band.tokens_hi is not None:
                share = len(band.points) / (band.tokens_hi - band.tokens_lo + 1)
                assert band.measured_share == pytest.approx(share)
                assert band.predicted_share == pytest.approx(1 - share)


def test_fallback_rules_are_complete_and_in_order(plan: Plan) -> None:
    kinds = [rule.when for rule in plan.content.fallback]
    assert kinds[:4] == ["other_hardware", "other_toolchain", "other_deployment", "other_workload"]
    assert kinds[-2:] == ["covered", "otherwise"]
    assert kinds.count("outside_tokens") == 2
    assert all(rule.then == ("band" if rule.when == "covered" else "stock") for rule in plan.content.fallback)
    (won,) = [rule for rule in plan.content.fallback if rule.when == "stock_won"]
    assert (won.shape, won.tokens_lo, won.tokens_hi) == ("k=1536,n=2304", 8, 64)
    assert len(won.evidence) == 4


def test_the_crossover_lies_between_the_bands(plan: Plan) -> None:
    shapes = {shape.shape: shape for shape in plan.operator("projection").shapes}
    (found,) = shapes["k=7168,n=1536"].crossovers
    assert (found.below, found.above, found.tokens_lo, found.tokens_hi) == ("simt", "mma", 4, 8)
    assert found.estimate_tokens is not None
    assert 4 < found.estimate_tokens < 8
    assert not found.suspect
    (to_stock,) = shapes["k=1536,n=2304"].crossovers
    assert (to_stock.below, to_stock.above) == ("simt", "cublas")


def test_a_crossover_where_a_curve_steps_is_suspect(session: Session) -> None:
    cases = []
    for tokens, simt_us, mma_us in ((4, 5.0, 9.0), (5, 5.2, 9.0), (6, 5.3, 4.0), (7, 5.4, 4.0)):
        cases += [Case(at(tokens), config, us) for config, us in ((CUBLAS, 10), (simt(), simt_us), (mma(), mma_us))]
    fill(session, cases)
    (found,) = only_shape(planned(session)).crossovers
    assert (found.tokens_lo, found.tokens_hi, found.suspect) == (5, 6, True)


def test_only_the_last_session_of_finalists_decides(session: Session) -> None:
    finals = [
        Case(at(4), config, us, Stage.FINAL, name)
        for name, times in (("monday", (10, 5)), ("tuesday", (10, 9.95)))
        for config, us in zip((CUBLAS, simt()), times, strict=True)
    ]
    fill(session, [Case(at(4), CUBLAS, 10), Case(at(4), simt(), 5), *finals])
    with pytest.raises(NothingMeasured, match="no gain worth shipping"):
        planned(session)


@pytest.mark.parametrize("status", [Status.WRONG_RESULT, Status.HANG, Status.CRASH])
def test_what_fails_the_finalists_longer_test_serves_nowhere(session: Session, status: Status) -> None:
    """However fast it was while it was searched, and whatever it does at other tokens."""
    cases = []
    for tokens in (1, 2):
        for config, us in ((simt(), 2.0), (mma(), 4.0), (CUBLAS, 8.0)):
            cases.append(Case(at(tokens), config, us))
            failed = config == simt() and tokens == 1
            cases.append(Case(at(tokens), config, us, Stage.FINAL, "f", status=status if failed else Status.OK))
    fill(session, cases)
    shape = only_shape(planned(session, expresses={"any": lambda workload, config: True}))
    served = {tokens: shape.band(tokens).decision for tokens in (1, 2)}
    assert {t: d.variant for t, d in served.items() if isinstance(d, UseConfig)} == {1: "mma", 2: "simt"}
    (exported,) = (curve for curve in shape.curves if curve.kind == "exporter")
    assert [point.variant for point in exported.points] == ["mma", "simt"]


def test_finalists_that_all_ended_together_are_what_the_search_found(session: Session) -> None:
    """Whoever killed the processes, or which of them did, nobody knows."""
    searched = [Case(at(1), config, us) for config, us in ((simt(), 2.0), (CUBLAS, 8.0))]
    lost = [replace(case, stage=Stage.FINAL, session="f", status=Status.CRASH) for case in searched]
    fill(session, searched + lost)
    decision = only_shape(planned(session)).band(1).decision
    assert isinstance(decision, UseConfig)
    assert decision.variant == "simt"


def test_the_search_s_own_baseline_judges_what_only_the_search_measured(session: Session) -> None:
    """The device was slower when the finalists met: against their baseline the beaten config would seem to win."""
    cases = []
    for tokens, lucky in ((4, 9.70), (8, 9.40)):
        cases += [Case(at(tokens), CUBLAS, 9.75), Case(at(tokens), simt(), 9.69), Case(at(tokens), mma(), lucky)]
        cases += [Case(at(tokens), config, 10.0, Stage.FINAL, "finals") for config in (CUBLAS, simt())]
    fill(session, cases)
    assert serving(planned(session)) == [(1, 7, "stock"), (8, 8, mma().digest), (9, None, "stock")]


def test_what_is_beaten_here_can_serve_from_next_door(session: Session) -> None:
    """At 4 tokens config b is far behind the best of its variant, but it wins, and saves a config."""
    a, b = simt(block=64), simt(block=128)
    cases = [
        *(Case(at(2), config, us) for config, us in ((CUBLAS, 10), (a, 8), (b, 5))),
        *(Case(at(4), config, us) for config, us in ((CUBLAS, 10), (a, 5), (b, 6))),
    ]
    fill(session, cases)
    thrifty = planned(session, options=Options(config_cost_us=1.0))
    assert serving(thrifty) == [(1, 1, "stock"), (2, 4, b.digest), (5, None, "stock")]
    lavish = planned(session, options=Options(config_cost_us=0.0))
    assert serving(lavish) == [(1, 1, "stock"), (2, 2, b.digest), (3, 4, a.digest), (5, None, "stock")]


def test_provenances_are_never_mixed_at_one_workload(session: Session) -> None:
    cases = [Case(at(4), CUBLAS, 10), Case(at(4), simt(), 8)]
    recorded = [replace(case, us=case.us / 4, provenance=Provenance.REPLAYED) for case in cases]
    fill(session, [*cases, *recorded, *(replace(case, workload=at(8)) for case in recorded)])
    shape = only_shape(planned(session))
    assert [point.provenance for band in shape.bands for point in band.points] == [
        (Provenance.MEASURED,),
        (Provenance.REPLAYED,),
    ]
    assert planned(session).content.coverage.measurements == {Provenance.MEASURED: 2, Provenance.REPLAYED: 2}
    shape = only_shape(planned(session, provenances=[Provenance.REPLAYED]))
    assert {point.baseline_latency.median_us for band in shape.bands for point in band.points} == {2.5}


def test_revisions_of_the_kernels_are_never_mixed(session: Session) -> None:
    """The older kernels were faster, and measured at more tokens: none of it says anything of the newer ones."""
    old = [
        Case(at(tokens), config, us, revision="" if config is CUBLAS else "old")
        for tokens in (4, 8, 16)
        for config, us in ((CUBLAS, 10), (simt(), 3), (simt(block=256), 4), (mma(), 3.5))
    ]
    new = [Case(at(8), simt(), 5, revision="new"), Case(at(8), simt(block=64), 6, revision="new")]
    fill(session, [*old, *new])
    shape = only_shape(planned(session))
    assert shape.revision == "new"
    assert serving(planned(session)) == [(1, 7, "stock"), (8, 8, simt().digest), (9, 16, "stock"), (17, None, "stock")]
    assert {
        (curve.name, point.tokens, point.latency.median_us) for curve in shape.curves for point in curve.points
    } == {
        *(("cublas", tokens, 10) for tokens in (4, 8, 16)),
        ("simt", 8, 5),
    }
    assert [(found.kind, found.below, found.above) for found in shape.crossovers] == [("never", "simt", "cublas")]
    assert [(gap.tokens, gap.reason) for gap in shape.gaps] == [
        (tokens, "measured with another revision of the kernels alone: measure again") for tokens in (4, 16)
    ]


def test_what_was_not_asked_for_is_no_evidence(session: Session) -> None:
    emulated = Provenance.EMULATED
    fill(session, [Case(at(4), CUBLAS, 10, provenance=emulated), Case(at(4), simt(), 5, provenance=emulated)])
    with pytest.raises(NothingMeasured, match="nothing was measured"):
        planned(session)
    assert planned(session, provenances=[emulated])


def test_other_dtypes_worlds_and_routings_are_other_shapes(session: Session) -> None:
    workloads = [at(4), at(4, dtype="fp8"), at(4, world=8), at(4, routing="skewed")]
    fill(session, [Case(w, config, us) for w in workloads for config, us in ((CUBLAS, 10), (simt(), 5))])
    shapes = planned(session).operator("projection").shapes
    assert {shape.key[1:] for shape in shapes} == {
        ("bf16", 1, "none"),
        ("fp8", 1, "none"),
        ("bf16", 8, "none"),
        ("bf16", 1, "skewed"),
    }


def test_gaps_are_listed(session: Session) -> None:
    fill(
        session,
        [Case(at(2), CUBLAS, 10), Case(at(4), CUBLAS, 10), Case(at(4), simt(), 5), Case(at(8), simt(), 5)],
    )
    shape = only_shape(planned(session))
    assert [(gap.tokens, gap.reason.split(":")[0]) for gap in shape.gaps] == [
        (2, "no config was measured"),
        (8, "no baseline was measured"),
    ]
    assert shape.measured_tokens == (2, 4)


def test_the_fastest_baseline_is_the_one_to_beat(session: Session) -> None:
    other = replace(CUBLAS, variant="table")
    fill(session, [Case(at(4), CUBLAS, 10), Case(at(4), other, 6), Case(at(4), simt(), 5)])
    plan = planned(session, baselines={"projection": ("cublas", "table")})
    (point,) = [point for band in only_shape(plan).bands for point in band.points]
    assert point.baseline == "table"
    assert point.gain == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("cases", "says"),
    [
        ([], "no target"),
        ([Case(at(4), simt(), 5)], "no baseline was measured"),
        ([Case(at(4), CUBLAS, 10)], "no gain worth shipping"),
        ([Case(at(4), CUBLAS, 10), Case(at(4), simt(), 9.99)], "no gain worth shipping"),
    ],
    ids=["nothing", "no baseline", "no config", "no gain"],
)
def test_nothing_to_ship_is_said_so(session: Session, cases: list[Case], says: str) -> None:
    if cases:
        fill(session, cases)
    with pytest.raises(MegatuneError, match=says) as raised:
        planned(session)
    assert raised.value.exit_code == (3 if cases else 2)


def test_another_regime_is_nothing(session: Session) -> None:
    fill(session, example_cases())
    with pytest.raises(NothingMeasured, match="warm-graph"):
        planned(session, regime=Regime("warm"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": ""}, "name"),
        ({"name": "n" * 300}, "name"),
        ({"provenances": []}, "evidence"),
        ({"provenances": [Provenance.PREDICTED]}, "evidence"),
        ({"target": "unknown"}, "no target 'unknown'"),
    ],
)
def test_bad_input_is_one_line(session: Session, arguments: dict[str, Any], says: str) -> None:
    fill(session, example_cases())
    with pytest.raises(MegatuneError, match=says):
        planned(session, **arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"min_gain": 1.0},
        {"min_gain": -0.1},
        {"min_gain": float("nan")},
        {"tie_slack": 2},
        {"config_cost_us": -1},
        {"config_cost_us": float("inf")},
        {"traffic": {0: 1}},
        {"traffic": {1: -1}},
        {"traffic": {1: float("nan")}},
    ],
)
def test_bad_options_are_one_line(options: dict[str, Any]) -> None:
    with pytest.raises(MegatuneError):
        Options(**options)


def test_the_incumbent_wins_ties(session: Session, tmp_path: Path) -> None:
    old, new = simt(block=256), simt(block=64)
    fill(session, [Case(at(4), CUBLAS, 10), Case(at(4), old, 5)])
    serves_today = planned(session)
    fill(session, [Case(at(4), new, 4.99)])
    assert serving(planned(session))[1] == (4, 4, new.digest)
    incumbent = incumbents_of(serves_today)
    assert serving(planned(session, preferred=incumbent))[1] == (4, 4, old.digest)
    assert incumbent(at(64)) == frozenset()
    assert incumbent(at(4, n=8)) == frozenset()


def test_defaults_are_those_of_the_registered_operator() -> None:
    preferred = defaults_on("sm_90a")
    space = operator("projection").space(at(4), architecture("sm_90a"))
    legal = {config.digest for variant in space.variants for config in variant.configs()}
    assert len(preferred(at(4))) == len(space.variants)
    assert preferred(at(4)) <= legal
    assert preferred(Workload.of("unheard", {"n": 1}, 4)) == frozenset()
    assert defaults_on("sm_20")(at(4)) == frozenset()


def test_the_best_that_an_exporter_can_express_is_kept(session: Session) -> None:
    fast, able, slow = simt(split_k=4), simt(block=256), simt(block=64)
    fill(session, [Case(at(4), c, us) for c, us in ((CUBLAS, 10), (fast, 4), (able, 6), (slow, 7))])
    plan = planned(session, expresses={"plain": lambda workload, config: config.params["split_k"] == 1})
    curve = only_shape(plan).curve("exporter", "plain")
    assert curve is not None
    point = curve.at(4)
    assert point is not None
    assert point.config == able.digest
    assert curve.at(5) is None
    assert only_shape(plan).curve("exporter", "other") is None


def test_a_finalist_stands_for_its_config_in_an_exporter_s_curve(session: Session) -> None:
    able = simt(block=256)
    cases = [Case(at(4), c, us) for c, us in ((CUBLAS, 10), (able, 5.0))]
    fill(session, [*cases, *(replace(c, us=1.1 * c.us, stage=Stage.FINAL, session="s") for c in cases)])
    curve = only_shape(planned(session, expresses={"any": lambda workload, config: True})).curve("exporter", "any")
    assert curve is not None
    assert [(point.stage, point.latency.median_us) for point in curve.points] == [(Stage.FINAL, pytest.approx(5.5))]
