"""Campaigns whose plans choose over the routings of a shape: what is a finalist at one is measured at all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
import toy
from campaigns import STOCK
from campaigns import ToyRunner
from campaigns import campaign
from campaigns import trials
from test_campaign import StopAfter
from toy import Toy

from megatune_db import queries
from megatune_db.records import CampaignState
from megatune_db.records import Measurement
from megatune_db.records import Stage
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_planner.drafting import draft_plan
from megatune_tuner.campaign import run_campaign
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.coordinator import FINAL_COST
from megatune_tuner.objectives import objective_groups
from megatune_tuner.objectives import objective_row
from megatune_tuner.reasons import SHARED
from megatune_tuner.runners.base import Request
from megatune_tuner.stopping import Stop

WORKLOAD = Workload.of("toy", {"n": 1536, "k": 7168}, 1)
ASKED = 'routings = ["few", "many"]\nobjective = "mean"'


class Routed(Toy):
    """The toy at two routings, at each of which something else is fast."""

    routings = ("few", "many")

    def routed(self, workload: Workload, routing: str) -> Workload:
        return replace(workload, routing=routing)


@pytest.fixture(autouse=True)
def routed() -> Iterator[None]:
    with toy.registered(Routed):
        yield


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "toy.db") as opened:
        yield opened


def samples(workload: Workload, config: Config) -> tuple[float, ...]:
    """As if ``many`` had far more tokens."""
    as_if = workload if workload.routing == "few" else workload.at(workload.tokens * 16)
    return toy.samples_us(replace(as_if, routing="none"), config)


def declared(more: str = ASKED, **other: object) -> Campaign:
    return campaign(tokens=(1,), more=more, **other)  # type: ignore[arg-type]


def found(database: Database, stage: Stage) -> dict[str, set[str]]:
    """Digests of the configs that were measured, by routing."""
    rows = trials(database)
    with database.session() as session:
        row = queries.campaign(session, "toy")
        assert row is not None
        names = {each.digest: each.routing for each in queries.campaign_workloads(session, row.id)}
    measured = [(names[row.workload], row.config) for row in rows if row.stage is stage and row.config != STOCK]
    return {name: {config for of, config in measured if of == name} for name in names.values()}


def test_finalists_of_one_routing_are_finalists_of_all(database: Database) -> None:
    runner = ToyRunner(samples=samples)
    summary = run_campaign(declared(), runner, database)
    assert summary.state is CampaignState.FINISHED
    finals, searched = found(database, Stage.FINAL), found(database, Stage.SEARCH)
    assert finals["few"] == finals["many"] <= searched["few"] & searched["many"]
    assert len(finals["few"]) > 5
    assert len(runner.finals) == 2, "nothing is a finalist twice"
    shared = [row for row in trials(database) if row.reason == SHARED]
    assert shared
    with database.session() as session:
        assert queries.asked_objective(session, target=runner.target.digest) == {
            "kind": "mean",
            "weights": {"few": 1.0, "many": 1.0},
        }


def test_without_an_objective_each_has_its_own(database: Database) -> None:
    run_campaign(declared('routings = ["few", "many"]'), ToyRunner(samples=samples), database)
    finals = found(database, Stage.FINAL)
    assert finals["few"] != finals["many"]
    assert not [row for row in trials(database) if row.reason == SHARED]


@pytest.mark.parametrize("after", [9, 27, 30])
def test_stopped_anywhere_it_comes_to_the_same(tmp_path: Path, after: int) -> None:
    finals, configs = [], []
    for name in ("whole", "stopped"):
        with open_database(tmp_path / f"{name}.db") as database:
            if name == "stopped":
                stop = Stop()
                first = run_campaign(
                    declared(), ToyRunner(samples=samples), database, progress=StopAfter(stop, after), stop=stop
                )
                assert first.interrupted
            last = run_campaign(declared(), ToyRunner(samples=samples), database)
            assert last.state is CampaignState.FINISHED
            finals.append(found(database, Stage.FINAL))
            configs.append(found(database, Stage.SEARCH))
    assert finals[0] == finals[1]
    assert configs[0] == configs[1]


def test_more_budget_searches_on(database: Database) -> None:
    run_campaign(declared(), ToyRunner(samples=samples), database)
    before = found(database, Stage.SEARCH)
    run_campaign(declared(budget="trials = 16"), ToyRunner(samples=samples), database)
    after, finals = found(database, Stage.SEARCH), found(database, Stage.FINAL)
    assert all(len(after[name] - before[name]) >= 4 for name in before)
    assert finals["few"] == finals["many"]


def test_time_is_kept_for_it(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Slow(ToyRunner):
        """A second a measurement, and three a finalist, by the coordinator's clock."""

        def measure(self, request: Request) -> Measurement:
            now[0] += 1.0
            return super().measure(request)

        def finalists(self, requests: Sequence[Request]) -> list[Measurement]:
            now[0] += FINAL_COST * len(requests)
            return super().finalists(requests)

    monkeypatch.setattr("megatune_tuner.coordinator.time", SimpleNamespace(monotonic=lambda: now[0]))
    run_campaign(declared(budget="seconds = 300"), Slow(samples=samples), database)
    finals = found(database, Stage.FINAL)
    assert finals["few"]
    assert finals["few"] == finals["many"]
    assert now[0] <= 300
    assert now[0] > 200, "it was used"


def test_what_a_row_says_is_of_the_campaigns_routings() -> None:
    worst = declared('routings = ["few", "many"]\nobjective = "worst"')
    assert objective_row(worst) == {"kind": "worst", "weights": {"few": 1.0, "many": 1.0}}
    weighted = declared('routings = ["few", "many"]\nobjective = { few = 1, many = 2.5 }')
    assert objective_row(weighted) == {"kind": "mean", "weights": {"few": 1.0, "many": 2.5}}
    assert objective_row(declared('routings = ["few", "many"]')) is None
    (group,) = objective_groups(weighted, weighted.workloads())
    assert [each.routing for each in group] == ["few", "many"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ('objective = "mean"', "objective: it chooses over the routings of a shape, and no shape here has two"),
        ('routings = ["few"]\nobjective = "worst"', "no shape here has two: give routings"),
        (
            'routings = ["few", "many"]\nobjective = { few = 1, none = 1 }',
            "objective: none is not among the routings few, many",
        ),
        ('routings = ["few", "many"]\nobjective = "best"', "objective: has to be one of mean, worst or a table"),
        ('routings = ["few", "many"]\nobjective = { few = 0, many = 1 }', "objective.few: has to be greater than 0"),
        ('routings = ["few", "many"]\nobjective = { few = 1 }', "objective: "),
    ],
)
def test_what_is_no_objective_is_refused_by_key(more: str, reason: str) -> None:
    with pytest.raises(MegatuneError, match=re.escape(reason)):
        declared(more)


@pytest.mark.parametrize("objective", ["mean", "worst"])
def test_what_it_measures_is_what_a_plan_chooses_from(database: Database, objective: str) -> None:
    run_campaign(
        declared(f'routings = ["few", "many"]\nobjective = "{objective}"'), ToyRunner(samples=samples), database
    )
    with database.session() as session:
        plan = draft_plan(session, name="toy")
    assert plan.content.options.objective is not None
    assert plan.content.options.objective.kind == objective
    (shape,) = plan.content.operators[0].shapes
    assert shape.routing == "any"
    assert not shape.gaps
    decision = shape.band(1).decision
    assert decision.kind == "config"
    finals = found(database, Stage.FINAL)
    assert decision.config in finals["few"]
    (point,) = shape.band(1).points
    # The worst of the baseline is at the other routing, so that there are no pairs.
    assert point.paired == (objective == "mean")
    # Nothing that was measured at both is better by more than the noise.
    configs = Toy().space(WORKLOAD, architecture("sm_90a")).configs
    both = {config.digest: config for config in configs if config.digest in finals["few"]}
    combine = {"mean": lambda times: sum(times) / 2, "worst": max}[objective]
    times = {
        digest: combine([median(samples(replace(WORKLOAD, routing=name), config)) for name in ("few", "many")])
        for digest, config in both.items()
    }
    assert times[decision.config] <= 1.01 * min(times.values())
