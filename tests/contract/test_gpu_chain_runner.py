"""Chains on a real GPU: the contract of a runner, faults in a part, and what is kept of the parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Status
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture_of
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.runners.gpu import GpuRunner
from tests.contract.runner_contract import COLD_GRAPH
from tests.contract.runner_contract import RunnerContract

pytestmark = pytest.mark.gpu

PREFETCH = operator("prefetch")
CHAIN = PREFETCH.workload({"idle_ns": 5000, "n1": 2112, "k1": 7168, "n2": 2304, "k2": 1536}, 4)
PARTED = PREFETCH.workload(
    {"idle_ns": 3000, "n1": 2112, "k1": 7168, "n2": 2304, "k2": 1536, "n3": 1536, "k3": 7168, "after3": 0}, 2
)
SIMT = PREFETCH.workload({"idle_ns": 3000, "n1": 2048, "k1": 4096}, 4)
"""Of a shape without a recorded winner, whose default is a kernel for so many tokens and no others."""
NONE = Config.of("none", {})


def request(runner: Runner, config: Config, workload: object = CHAIN, regime: Regime = COLD_GRAPH) -> Request:
    arch = architecture_of(runner.target.hardware)
    built: dict[str, Artifact] = {}
    for part in PREFETCH.parts(workload, config):  # type: ignore[arg-type]
        tuned = operator(part.workload.operator)
        built[part.name] = tuned.compile(part.workload, part.config, arch)
    return Request(workload, config, regime, parts=tuple(built.values()))  # type: ignore[arg-type]


def default(runner: Runner, **changes: object) -> Config:
    space = PREFETCH.space(CHAIN, architecture_of(runner.target.hardware))
    (config,) = (c for c in space.defaults() if c.variant == "prefetch")
    return Config.of("prefetch", {**config.params, **changes})  # type: ignore[dict-item]


class TestChainRunner(RunnerContract):
    provenance = Provenance.MEASURED
    failures = (Status.WRONG_RESULT,)

    @pytest.fixture(scope="class")
    def device(self) -> Iterator[GpuRunner]:
        with GpuRunner() as made:
            yield made

    @pytest.fixture
    def runner(self, device: GpuRunner) -> GpuRunner:
        return device

    def good(self, runner: Runner) -> list[Request]:
        configs = [
            default(runner),
            default(runner, pdl=False, consumer="cold", start_percent=50, carveout=0),
            default(runner, depth_mib=1, grid=8, chunk_kib=4, shared="own"),
            default(runner, walk="columns"),
            default(runner, walk="columns", consumer="warm"),
            Config.of("plain", {"pdl": True, "consumer": "early", "shared": "most"}),
            Config.of("plain", {"pdl": False, "consumer": "cold", "shared": "own"}),
        ]
        return [request(runner, config) for config in [*configs, NONE]]

    def failing(self, runner: Runner, status: Status) -> Request:
        """With a consumer that was compiled for fewer tokens, and leaves the other ones' outputs as they are."""
        asked = request(runner, NONE, SIMT)
        consumer = PREFETCH.parts(SIMT, NONE)[-1]
        assert consumer.config.variant == "simt"
        arch = architecture_of(runner.target.hardware)
        fewer = operator("projection").compile(consumer.workload.at(1), consumer.config, arch)
        return replace(asked, parts=(*asked.parts[:-1], fewer))

    def test_the_parts_are_kept_and_operands_are_cold(self, runner: GpuRunner) -> None:
        measured = {}
        for config in (default(runner), NONE):
            found: Measurement = runner.measure(request(runner, config))
            assert found.status is Status.OK, found.reason
            assert found.flush_bytes >= 2 * runner.target.hardware.l2_bytes
            measured[config.variant] = dict(found.parts_us)
        names = {"idle", "probe cold", "probe hot"} | {f"consumer{i} {how}" for i in (1, 2) for how in ("cold", "hot")}
        assert set(measured["none"]) == names
        assert set(measured["prefetch"]) == {*names, "prefetch"}
        # Not a race: a launch of the stand-in lasts as long as it says, and reading from memory is no hit.
        assert measured["none"]["idle"] >= 5.0
        assert measured["none"]["probe cold"] > measured["none"]["probe hot"]

    def test_every_shape_of_a_prefetch_leaves_results_alone(self, runner: GpuRunner) -> None:
        arch = architecture_of(runner.target.hardware)
        configs = [c for c in PREFETCH.space(CHAIN, arch).configs if c.variant == "prefetch"]
        for config in configs[:: max(1, len(configs) // 24)]:
            found = runner.measure(request(runner, config))
            assert (found.status, found.reason) == (Status.OK, ""), config

    def test_consumers_on_streams_of_their_own_are_joined(self, runner: GpuRunner) -> None:
        for config in (default(runner), Config.of("plain", {"pdl": True}), NONE):
            for regime in (COLD_GRAPH, Regime("cold", "eager"), Regime("warm", "graph")):
                found = runner.measure(request(runner, config, PARTED, regime))
                assert (found.status, found.reason) == (Status.OK, ""), (config, regime)
                assert any("cold" in name for name, _ in found.parts_us) is (regime.weights == "cold")

    def test_a_chain_takes_at_least_its_idle_phase(self, runner: GpuRunner) -> None:
        longer = PREFETCH.workload({**dict(CHAIN.dims), "idle_ns": 50_000}, CHAIN.tokens)
        found = runner.measure(request(runner, NONE, longer))
        assert found.status is Status.OK, found.reason
        assert found.median_us is not None
        assert found.median_us > 50
