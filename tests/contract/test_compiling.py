"""The pool that builds artifacts: whatever a config does to the compiler costs that config alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatune_db.records import Status
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_tuner.compiling import CompilePool

LIMIT_S = 8.0


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[CompilePool]:
    pytest.importorskip("cutlass", reason="the artifact's key holds the version of the DSL")
    made = CompilePool(tmp_path, architecture("sm_90a"), processes=2, limit_s=LIMIT_S)
    yield made
    made.close()


@pytest.fixture
def workload() -> Workload:
    return operator("faulty").workload({"n": 1024}, 1)


def test_every_failure_is_a_status_and_the_pool_goes_on(pool: CompilePool, workload: Workload) -> None:
    faulty = operator("faulty")
    names = ("compile_timeout", "compile_crash", "compile_error", "compile_crash")
    futures = [pool.submit(faulty, workload, Config.of(name, {"unit": i})) for i, name in enumerate(names)]
    slow, crashed, wrong, again = (future.result(timeout=60) for future in futures)
    assert (slow.status, slow.artifact) == (Status.COMPILE_TIMEOUT, None)
    assert "8 s" in slow.reason
    assert crashed.status is again.status is Status.COMPILE_ERROR
    assert "SIGABRT" in crashed.reason
    assert wrong.status is Status.COMPILE_ERROR
    assert "no such instruction" in wrong.reason

    projection = operator("projection")
    shape = projection.workload({"n": 64, "k": 256}, 1)
    built = pool.submit(projection, shape, projection.space(shape, architecture("sm_90a")).defaults()[0]).result(60)
    assert built.status is Status.OK
    assert built.artifact is not None


def test_an_artifact_is_built_once_and_then_found(pool: CompilePool) -> None:
    projection = operator("projection")
    arch = architecture("sm_90a")
    narrow, wide = (projection.workload({"n": n, "k": 256}, 8) for n in (64, 128))
    (config,) = (c for c in projection.space(narrow, arch).defaults() if c.variant == "mma")
    first = pool.submit(projection, narrow, config).result(60)
    # The code does not depend on n, so another shape shares the artifact.
    second = pool.submit(projection, wide, config).result(60)
    assert first.artifact == second.artifact
    assert first.compile_s > 0
    assert second.compile_s == 0


def test_closing_ends_a_compile_that_runs(tmp_path: Path, workload: Workload) -> None:
    pytest.importorskip("cutlass", reason="the artifact's key holds the version of the DSL")
    pool = CompilePool(tmp_path, architecture("sm_90a"), processes=1, limit_s=600)
    pool.submit(operator("faulty"), workload, Config.of("compile_timeout", {"unit": 1}))
    time.sleep(2)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 10
