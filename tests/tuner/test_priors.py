"""What others found best is tried first, and trusted no more than any other config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toy
from campaigns import ToyRunner
from campaigns import campaign
from campaigns import trials
from toy import Toy
from toy import samples_us

from megatune_db.queries import known_measurements
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Status
from megatune_db.records import TrialState
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Prior
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_tuner.campaign import run_campaign
from megatune_tuner.interchange.importing import Imported
from megatune_tuner.interchange.importing import Place
from megatune_tuner.interchange.importing import import_priors
from megatune_tuner.interchange.importing import import_tuning
from megatune_tuner.interchange.kernel_tuner import Entry
from megatune_tuner.interchange.kernel_tuner import Tuning
from megatune_tuner.priors import MOST
from megatune_tuner.priors import prior_configs
from megatune_tuner.runners.base import Request
from megatune_tuner.stopping import Stop

MOE = "vllm-moe-table"
PLACE = {"N": 1536, "device_name": "NVIDIA_H200"}
TOY_BLOCKS = toy.SIMT[0].values
WORKLOAD = Toy().workload({"n": 1536, "k": 7168}, 4)


class Reading(Toy):
    """A toy that makes configs of fused-MoE tables."""

    priors_from = (MOE,)

    def prior(self, workload: Workload, found: Prior) -> Config | None:
        if found.place["N"] != workload["n"]:
            return None
        if found.entry["BLOCK_SIZE_M"] > 64:
            raise MegatuneError("no tile is so tall")
        # One warp has 32 threads; 7 are no value of the axis.
        block = 32 * found.entry["num_warps"]
        return Config.of("simt", {"block": block, "rows": 1, "unroll": 4, "static": True})


@pytest.fixture
def reading(registered: None) -> Iterator[None]:
    with toy.registered(Reading):
        yield


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "toy.db") as opened:
        yield opened


def table(rows: dict[int, dict[str, Any]], place: dict[str, Any] | None = None) -> list[Prior]:
    return [Prior(MOE, "E=8.json", place or PLACE, tokens, row) for tokens, row in rows.items()]


def keep(database: Database, found: list[Prior]) -> Imported:
    with database.session() as session:
        return import_priors(session, found)


def first_trials(database: Database, workload: Workload) -> list[tuple[str, str]]:
    """Reason and config of the trials of a workload, the first one first."""
    mine = [row for row in trials(database) if row.workload == workload.digest and row.state is TrialState.DONE]
    return [(row.reason, row.config) for row in sorted(mine, key=lambda row: row.number) if row.reason != "baseline"]


def measured(database: Database, workload: Workload) -> dict[str, Measurement]:
    with database.session() as session:
        return known_measurements(
            session, workload=workload.digest, target=toy.TARGET.digest, regime=Regime(), provenance=Provenance.MEASURED
        )


@pytest.mark.usefixtures("reading")
def test_a_table_is_tried_first_and_measured_like_any_config(database: Database) -> None:
    rows = {1: 2, 3: 4, 64: 8}
    done = keep(database, table({tokens: {"BLOCK_SIZE_M": 16, "num_warps": warps} for tokens, warps in rows.items()}))
    assert (done.priors, dict(done.reasons)) == (3, {})
    run_campaign(campaign(tokens=(4,)), ToyRunner(), database)
    (reason, config), *rest = first_trials(database, WORKLOAD)
    # The row of 3 tokens is the nearest.
    wanted = Config.of("simt", {"block": 128, "rows": 1, "unroll": 4, "static": True})
    assert (reason, config) == ("prior", wanted.digest)
    assert "prior" not in {reason for reason, _ in rest}
    assert {reason for reason, _ in rest[:2]} == {"default"}
    taken = measured(database, WORKLOAD)[wanted.digest]
    assert taken.median_us == pytest.approx(sorted(samples_us(WORKLOAD, wanted))[3], rel=1e-6)


@pytest.mark.usefixtures("reading")
def test_the_nearest_legal_config_is_tried_and_what_cannot_be_is_not(database: Database) -> None:
    keep(database, table({4: {"BLOCK_SIZE_M": 16, "num_warps": 7}}))
    keep(database, table({4: {"BLOCK_SIZE_M": 128, "num_warps": 4}}, {**PLACE, "dtype": "fp8_w8a8"}))
    keep(database, table({4: {"BLOCK_SIZE_M": 16, "num_warps": 4}}, {**PLACE, "N": 96}))
    run_campaign(campaign(tokens=(4,)), ToyRunner(), database)
    tried = [config for reason, config in first_trials(database, WORKLOAD) if reason == "prior"]
    # 224 threads are no value: 192 are the nearest, and 256 as near.
    near = [Config.of("simt", {"block": block, "rows": 1, "unroll": 4, "static": True}) for block in TOY_BLOCKS]
    assert len(tried) == 1
    assert tried[0] in {config.digest for config in near}
    assert measured(database, WORKLOAD)[tried[0]].status is Status.OK


def test_without_an_operator_that_reads_it_a_table_is_kept_with_the_reason(database: Database) -> None:
    done = keep(database, table({4: {"BLOCK_SIZE_M": 16, "num_warps": 4}}))
    assert (done.priors, dict(done.reasons)) == (1, {f"no operator here reads {MOE}": 1})
    run_campaign(campaign(tokens=(4,)), ToyRunner(), database)
    assert "prior" not in {reason for reason, _ in first_trials(database, WORKLOAD)}


def theirs(count: int) -> Tuning:
    """A file of Kernel Tuner in which everything is a hundred times as fast as it is."""
    space = [
        Config.of("simt", {"block": block, "rows": rows, "unroll": 4, "static": True})
        for block in (64, 96, 128, 192)
        for rows in (1, 2, 3, 4)
    ]
    entries = [Entry(config.params, Status.OK, samples_us=(0.01 + i / 100,) * 6) for i, config in enumerate(space)]
    return Tuning("toy", "Their GPU", tuple(entries[:count]))


@pytest.mark.parametrize("regime", [Regime(), Regime("warm", "eager")])
def test_figures_of_others_are_measured_again_the_fastest_first(database: Database, regime: Regime) -> None:
    tuning = theirs(16)
    with database.session() as session:
        done = import_tuning(session, tuning, "t4", "theirs.json", Place(WORKLOAD, "simt", regime))
        assert (done.measurements, done.priors) == (16, 0)
        wanted = [Config.of("simt", entry.params) for entry in tuning.entries[:MOST]]
        assert prior_configs(session, WORKLOAD) == wanted
    runner = ToyRunner()
    run_campaign(campaign(tokens=(4,), budget="trials = 12"), runner, database)
    first = first_trials(database, WORKLOAD)
    # At most half of the trials.
    assert first[:6] == [("prior", config.digest) for config in wanted[:6]]
    assert "prior" not in {reason for reason, _ in first[6:]}
    asked = {request.config for request in runner.requests}
    assert set(wanted[:6]) <= asked
    known = measured(database, WORKLOAD)
    for config in wanted[:6]:
        assert (known[config.digest].median_us or 0) > 1


def test_a_campaign_that_goes_on_tries_each_once(tmp_path: Path) -> None:
    found = []
    for stops_after in (None, 3):
        with open_database(tmp_path / f"{stops_after}.db") as database:
            with database.session() as session:
                import_tuning(session, theirs(4), "t4", "theirs.json", Place(WORKLOAD, "simt", Regime()))
            stop = Stop()
            runner = ToyRunner()

            def outcome(
                _: Request, stop: Stop = stop, runner: ToyRunner = runner, last: int | None = stops_after
            ) -> Status:
                if len(runner.requests) == last:
                    stop.request()
                return Status.OK

            runner.outcome = outcome
            run_campaign(campaign(tokens=(4,), budget="trials = 8"), runner, database, stop=stop)
            run_campaign(campaign(tokens=(4,), budget="trials = 8"), ToyRunner(), database)
            taken = first_trials(database, WORKLOAD)
            found.append([config for reason, config in taken if reason == "prior"])
            assert sum(reason != "finalist" for reason, _ in taken) == 8
    assert found[0] == found[1]
    assert len(set(found[0])) == 4
