"""vLLM's own kernel on a real GPU, through the runner: right results at every kind of launch, and beside its table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatune_db.records import Regime
from megatune_db.records import Status
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture_of
from megatune_kernels.vllm_skinny_gemm import modules
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.gpu import GpuRunner
from tests.contract.runtime_wheels import unpack
from tests.contract.runtime_wheels import wheel

pytestmark = pytest.mark.gpu

TUNED = operator("vllm-skinny-gemm")
NEEDED = ("vllm/model_executor/kernels/linear/cute_dsl/", "vllm/models/kimi_k3/")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuRunner]:
    with pytest.MonkeyPatch.context() as patch:
        # The worker's process reads it, too.
        if not os.environ.get(modules.ENVIRONMENT):
            place: Path = unpack(wheel("vllm"), tmp_path_factory.mktemp("vllm"), NEEDED)
            patch.setenv(modules.ENVIRONMENT, str(place))
        with GpuRunner() as made:
            yield made


def request_of(runner: GpuRunner, workload: Workload, config: Config) -> Request:
    arch = architecture_of(runner.target.hardware)
    runs = TUNED.stands_for(workload, config, arch)
    parts = TUNED.parts(workload, runs)
    artifact = TUNED.compile(workload, parts[0].config, arch) if parts else None
    return Request(workload, config, Regime(), artifact, runs=runs)


@pytest.mark.parametrize(("n", "k", "tokens"), [(2304, 1536, 1), (768, 128, 16), (6288, 7168, 3), (2113, 1536, 2)])
def test_results_are_right(runner: GpuRunner, n: int, k: int, tokens: int) -> None:
    """Of one config with K told and one with K compiled in, each with the widest loads that K allows."""
    workload = TUNED.workload({"n": n, "k": k}, tokens)
    space = TUNED.space(workload, architecture_of(runner.target.hardware))
    for static_k in (False, True):
        config = next((each for each in reversed(space.configs) if each.params["static_k"] is static_k), None)
        if config is not None:
            found = runner.measure(request_of(runner, workload, config))
            assert found.status is Status.OK, (config, found.reason)


def test_the_table_and_cublas_are_measured_beside(runner: GpuRunner) -> None:
    workload = TUNED.workload({"n": 2304, "k": 1536}, 2)
    tuned = TUNED.space(workload, architecture_of(runner.target.hardware)).defaults()[0]
    requests = [request_of(runner, workload, config) for config in (tuned, *map(Config, TUNED.baselines))]
    found = runner.finalists(requests)
    assert [each.status for each in found] == [Status.OK] * 3
    assert [each.config for each in found] == [request.config.digest for request in requests]
    # The table's config is launched as a kernel, cuBLAS as a library.
    assert [bool(each.artifact) for each in found] == [True, False, True]


def test_another_kernel_of_the_table_is_not_passed_off_as_cublas(runner: GpuRunner) -> None:
    workload = TUNED.workload({"n": 1536, "k": 7168}, 8)
    found = runner.measure(request_of(runner, workload, Config("shipped")))
    if runner.target.hardware.arch == "sm_90a":
        assert (found.status, "dsv3_fused_a" in found.reason) == (Status.INFEASIBLE, True)
