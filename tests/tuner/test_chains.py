"""Campaigns over chains, with the real operators: every part is built, one chain is one measurement."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from campaigns import ToyBuilder
from campaigns import ToyRunner
from campaigns import trials

from megatune_db.queries import artifacts
from megatune_db.queries import known_measurements
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.artifact import revision_of
from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Part
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.operator import operators
from megatune_kernels.prefetch.ahead import ahead_bytes
from megatune_kernels.prefetch.consumers import config_of
from megatune_kernels.space import Config
from megatune_kernels.target import architecture_of
from megatune_tuner.campaign import run_campaign
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.campaign_file import load_campaign
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.consumer_table import consumer_table
from megatune_tuner.consumer_table import table_text
from megatune_tuner.recording_run import record
from megatune_tuner.recordings import read_recording
from megatune_tuner.recordings import recording
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.replay import ReplayRunner

CHAIN = """
[[shapes]]
operator = "prefetch"
idle_ns = 5000
n1 = 2112
k1 = 7168
n2 = 2304
k2 = 1536
"""
NONE = Config.of("none", {})
BEST_MIB = 16


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """In the place of the toys."""
    operators.cache_clear()
    yield
    operators.cache_clear()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "tuned.db") as opened:
        yield opened


def chain_us(workload: Workload, config: Config) -> float:
    """An idle phase and two reads: deeper is better until what was asked for gets into the way."""
    if config.variant != "prefetch":
        return 18.0 if config.params.get("pdl") else 20.0
    depth, grid = int(config.params["depth_mib"]), int(config.params["grid"])
    return 14.0 + 0.02 * abs(depth - BEST_MIB) + 0.1 * abs(grid - 8) / 8 + (0 if config.params["pdl"] else 1.5)


class ChainRunner(ToyRunner):
    """Measures a curve with one best depth, and one part beside."""

    def _answer(self, request: Request, stage: Stage, session: str) -> Measurement:
        made = super()._answer(request, stage, session)
        return replace(made, parts_us=(("idle", 5.5),)) if made.status is Status.OK else made


def runner() -> ChainRunner:
    return ChainRunner(
        needs_artifacts=True,
        samples=lambda workload, config: tuple(chain_us(workload, config) + 0.001 * i for i in range(8)),
    )


def campaign(more: str = "", trials: int = 24) -> Campaign:
    text = f'name = "chains"\ntokens = [1]\n{more}\n{CHAIN}\n[budget]\ntrials = {trials}\nfinalists = 2\n'
    return parse_campaign(text, source="chains.toml")


def test_every_part_of_every_config_is_built_and_measured_as_one(database: Database) -> None:
    asked, on, builder = campaign(), runner(), ToyBuilder()
    (workload,) = asked.workloads()
    tuned = operator("prefetch")
    summary = run_campaign(asked, on, database, builder=builder)
    (finals,) = on.finals
    assert summary.statuses == {Status.OK: 24 + 1 + len(finals)}
    # The finals compare the best of each depth.
    depths = {request.config.params.get("depth_mib") for request in on.requests}
    assert {request.config.params.get("depth_mib") for request in finals} == depths
    assert len(depths) > 4
    for request in [*on.requests, *(request for requests in on.finals for request in requests)]:
        parts = tuned.parts(workload, request.config)
        assert request.artifact is None
        assert [artifact.key for artifact in request.parts] == [part.config.digest for part in parts]
        assert request.artifact_key == digest([part.config.digest for part in parts])
    submitted = {(w.operator, config) for w, config in builder.submitted}
    assert {name for name, _ in submitted} == {"prefetch", "projection"}
    with database.session() as session:
        known = known_measurements(
            session, workload=workload.digest, target=on.target.digest, regime=Regime(), provenance=Provenance.MEASURED
        )
        kept = artifacts(session, [config.digest for _, config in submitted])
    # The baseline is made of the same kernels: it is of their revision too, and measured again when they change.
    assert known[NONE.digest].revision == revision_of(tuned)
    assert {one.revision for one in known.values()} == {revision_of(tuned)}
    assert {one.parts_us for one in known.values()} == {(("idle", 5.5),)}
    assert len(kept) == len({config for _, config in submitted})
    best = min((row for row in trials(database, "chains") if row.median_us), key=lambda row: row.median_us or 0)
    assert best.variant == "prefetch"
    assert best.params["pdl"] is True
    assert summary.speedup is not None
    assert summary.speedup > 1.3


def test_a_part_that_cannot_be_built_costs_the_config_alone(database: Database) -> None:
    asked, on = campaign(trials=8), runner()
    (workload,) = asked.workloads()
    tuned = operator("prefetch")
    (start, _) = asked.spaces(architecture_of(on.target.hardware))[workload].defaults()
    (bad,) = (part.config for part in tuned.parts(workload, start) if part.name == "consumer2")
    builder = ToyBuilder(lambda config: Status.COMPILE_ERROR if config == bad else Status.OK)
    summary = run_campaign(asked, on, database, builder=builder)
    assert summary.statuses[Status.COMPILE_ERROR] >= 1
    launched = {request.config for request in on.requests}
    assert start not in launched
    assert all(bad not in [p.config for p in tuned.parts(workload, config)] for config in launched)
    assert NONE in launched


def test_other_kernels_of_a_consumer_mean_that_chains_are_measured_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = campaign(trials=6)
    first = run_campaign(asked, runner(), database, builder=ToyBuilder())
    assert run_campaign(asked, runner(), database, builder=ToyBuilder()).measured == 0
    for where in ("measuring", "ledger"):
        monkeypatch.setattr(f"megatune_tuner.{where}.revision_of", lambda _: "changed")
    on = runner()
    again = run_campaign(asked, on, database, builder=ToyBuilder())
    assert again.measured == first.measured == 7
    assert NONE in {request.config for request in on.requests}


def test_a_recording_of_chains_replays_with_the_times_of_parts(database: Database, tmp_path: Path) -> None:
    asked, path = campaign("[record]\nsample = 20"), tmp_path / "chains.parquet"
    record(asked, runner(), database, path, builder=ToyBuilder())
    found = read_recording(path)
    (workload,) = found.workloads
    assert workload == asked.workloads()[0]
    assert NONE in found.configs(workload)
    replayed = ReplayRunner(found).measure(Request(workload, NONE, Regime()))
    assert (replayed.status, replayed.parts_us) == (Status.OK, (("idle", 5.5),))
    with open_database(tmp_path / "again.db") as other:
        summary = run_campaign(campaign(), ReplayRunner(found), other, configs=found.configs)
    assert summary.provenance == "replayed"
    assert summary.outcomes[0].baseline_us == pytest.approx(20, abs=0.01)


def test_chains_are_measured_where_they_are_named() -> None:
    table = '[model]\nname = "Kimi-K3"\ntensor_parallel = 8\n'
    all_of_one = parse_campaign(f'name = "x"\ntokens = [1]\n{table}', source="x.toml")
    found = {w.operator for w in all_of_one.workloads()}
    assert "projection" in found
    assert "prefetch" not in found
    named = parse_campaign(f'name = "x"\ntokens = [1]\noperators = ["prefetch"]\n{table}', source="x.toml")
    assert {w.operator for w in named.workloads()} == {"prefetch"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("after1 = 2\n", "shapes[0] at tokens 1: after1=2, after2=1: a cycle"),
        ("after2 = 5\n", "shapes[0] at tokens 1: after2=5: there is no consumer 5"),
        ("n4 = 64\nk4 = 64\n", "shapes[0] at tokens 1: n3: consumer 3 of 4 is missing"),
        ("[space.prefetch]\ndepth_mib = [200]\n", "space.prefetch.depth_mib: 200 is no value; allowed: 1, 2"),
        ('world = 2\n[runner]\nkind = "group"\n', "shapes[0]"),
    ],
)
def test_a_chain_that_cannot_be_is_an_error_that_names_the_key(more: str, said: str) -> None:
    def spaces() -> None:
        declared = parse_campaign(f'name = "x"\ntokens = [1]\n{CHAIN}{more}', source="x.toml")
        declared.spaces(architecture_of(runner().target.hardware))

    with pytest.raises(MegatuneError) as raised:
        spaces()
    assert f"x.toml: {said}" in str(raised.value)


def test_a_target_whose_l2_is_unknown_is_an_error_before_anything_is_measured(database: Database) -> None:
    on = runner()
    on.at = replace(on.at, hardware=replace(on.at.hardware, l2_bytes=0))
    with pytest.raises(MegatuneError, match=r"l2_bytes: the size of the L2 is not known"):
        run_campaign(campaign(), on, database, builder=ToyBuilder())
    assert on.requests == []


def shipped(name: str) -> Campaign:
    return load_campaign(str(files("megatune_tuner").joinpath("data", "campaigns", f"{name}.toml")))


def test_the_shipped_campaign_has_chains_of_both_degrees_at_one_to_eight_tokens() -> None:
    found = shipped("kimi-k3-prefetch-h200").workloads()
    assert {w.tokens for w in found} == {1, 2, 3, 4, 6, 8}
    assert {w["idle_ns"] for w in found} == {3000, 5000, 10000}
    assert {w["n1"] for w in found} == {6288, 2112, 560, 3216, 288}
    assert len(found) == 2 * 3 * 3 * 6


def test_the_campaign_of_warm_weights_has_the_shapes_of_all_chains() -> None:
    warm = shipped("kimi-k3-warm-h200")
    assert warm.measuring_regime() == Regime("warm", "graph")
    consumers = {part.workload for part in _consumers()}
    assert set(warm.workloads()) >= consumers
    assert {workload.at(1) for workload in warm.workloads()} == {workload.at(1) for workload in consumers}


def test_the_table_of_winners_is_what_the_shipped_recordings_say() -> None:
    table = files("megatune_kernels").joinpath("prefetch", "consumers.json").read_text()
    cold, warm, reduction = map(recording, ("kimi-k3-h200", "kimi-k3-warm-h200", "reduction-h200x2"))
    made = {"cold": cold, "warm": warm, "early": cold, "reduction": reduction}
    assert table_text(consumer_table(made)) == table
    assert set(json.loads(table)) == set(made)
    assert set(json.loads(table)["reduction"]) == {"3584 over 2", "7168 over 2"}
    recorded = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    for kind, tokens in (("cold", recorded), ("early", recorded), ("warm", tuple(range(1, 9)))):
        found = json.loads(table)[kind]
        assert set(found) == {f"{c.workload['n']}x{c.workload['k']}" for c in _consumers()}
        assert {tuple(map(int, by_tokens)) for by_tokens in found.values()} == {tokens}


def test_early_consumers_are_slower_by_less_than_they_ask_for_ahead() -> None:
    found = recording("kimi-k3-h200")
    hardware, speed = found.about.target.hardware, found.about.facts["copy_bytes_a_us"]
    arch = architecture_of(hardware)
    for part in _consumers():
        for tokens in (1, 4, 8):
            workload = part.workload.at(tokens)
            times = found.times_us(workload)
            cold, early = (config_of(kind, workload, True) for kind in ("cold", "early"))
            ahead = {
                config: min(ahead_bytes(workload, config, arch, hardware.sms), 5 * speed) / speed
                for config in (cold, early)
            }
            assert times[early] >= times[cold]
            assert times[early] - ahead[early] <= times[cold] - ahead[cold]


def test_early_consumers_need_to_know_how_fast_memory_is() -> None:
    found = recording("kimi-k3-h200")
    found.about = replace(found.about, facts={})
    with pytest.raises(MegatuneError, match="kimi-k3-h200 does not hold copy_bytes_a_us"):
        consumer_table({"early": found})


def _consumers() -> list[Part]:
    chains = shipped("kimi-k3-prefetch-h200").workloads()
    return [p for w in chains for p in operator("prefetch").parts(w, NONE) if p.workload.operator == "projection"]
