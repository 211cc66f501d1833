"""The pool that builds artifacts: whatever a config does to the compiler costs that config alone."""

from __future__ import annotations

import concurrent.futures
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_tuner import compiling
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


def test_code_that_may_hang_is_a_wrong_result_with_the_reason(pool: CompilePool, workload: Workload) -> None:
    for unit in (1, 2):
        built = pool.submit(operator("faulty"), workload, Config.of("unsafe", {"unit": unit})).result(60)
        assert (built.artifact, built.status) == (None, Status.WRONG_RESULT)
        assert built.reason == "PTX: a loop waits for what was loaded before: ld.volatile.global.b32 %r1, [%rd1]"


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


def test_what_cannot_be_built_is_not_tried_again(pool: CompilePool, workload: Workload) -> None:
    faulty, config = operator("faulty"), Config.of("compile_timeout", {"unit": 1})
    first = pool.submit(faulty, workload, config).result(60)
    started = time.monotonic()
    # Another workload with the same key: shapes share code.
    again = pool.submit(faulty, workload.at(2), config).result(60)
    assert again == first
    assert first.status is Status.COMPILE_TIMEOUT
    assert time.monotonic() - started < LIMIT_S / 2


def test_few_builds_need_few_processes(pool: CompilePool, workload: Workload) -> None:
    for unit in (1, 2):
        assert pool.submit(operator("faulty"), workload, Config.of("compile_error", {"unit": unit})).result(60).reason
    assert [child.is_alive for child in pool._children].count(True) == 1


def test_what_a_store_signs_in_with_is_in_no_list_of_processes(pool: CompilePool, workload: Workload) -> None:
    pool.submit(operator("faulty"), workload, Config.of("compile_error", {"unit": 1})).result(60)
    (pid,) = [child.pid for child in pool._children if child.pid is not None]
    assert str(pool._store.root) not in Path(f"/proc/{pid}/cmdline").read_text()


def test_a_store_that_cannot_be_written_is_no_fault_of_the_config(tmp_path: Path, workload: Workload) -> None:
    pytest.importorskip("cutlass", reason="the artifact's key holds the version of the DSL")
    root = tmp_path / "store"
    pool = CompilePool(root, architecture("sm_90a"), processes=1, limit_s=60)
    faulty = operator("faulty")
    for started in (False, True):
        if started:
            root.unlink()
            root.mkdir()
            assert pool.submit(faulty, workload, Config.of("compile_error", {"unit": 1})).result(60).reason
        shutil.rmtree(root)
        root.write_text("")
        with pytest.raises(MegatuneError, match=re.escape(f"cannot keep artifacts in {root}: ")):
            pool.submit(faulty, workload, Config.of("compile_crash", {"unit": 1})).result(60)
    with pytest.raises(MegatuneError, match="cannot keep artifacts in"):
        CompilePool(root, architecture("sm_90a"))
    pool.close()


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3})
    monkeypatch.setattr(Path, "read_text", lambda _: "max 100000\n")
    assert compiling.cores() == 3
    monkeypatch.setattr(Path, "read_text", lambda _: "250000 100000\n")
    assert compiling.cores() == 2


def test_nothing_is_built_after_closing(tmp_path: Path, workload: Workload) -> None:
    pytest.importorskip("cutlass", reason="the artifact's key holds the version of the DSL")
    pool = CompilePool(tmp_path, architecture("sm_90a"), processes=2, limit_s=600)
    slow = Config.of("compile_timeout", {"unit": 1})
    futures = [pool.submit(operator("faulty"), workload, slow)]
    projection = operator("projection")
    shape = projection.workload({"n": 64, "k": 256}, 1)
    configs = projection.space(shape, architecture("sm_90a")).configs[:20]
    futures += [pool.submit(projection, shape, config) for config in configs]
    time.sleep(1)
    pool.close()
    assert not any(child.is_alive for child in pool._children)
    for future in futures:
        try:
            assert future.result(0).status is Status.OK
        except (MegatuneError, concurrent.futures.CancelledError):
            continue


def test_closing_ends_a_compile_that_runs(tmp_path: Path, workload: Workload) -> None:
    pytest.importorskip("cutlass", reason="the artifact's key holds the version of the DSL")
    pool = CompilePool(tmp_path, architecture("sm_90a"), processes=1, limit_s=600)
    pool.submit(operator("faulty"), workload, Config.of("compile_timeout", {"unit": 1}))
    time.sleep(2)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 10
