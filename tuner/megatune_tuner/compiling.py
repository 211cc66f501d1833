"""Artifacts built ahead, in a pool of processes that can be killed one by one."""

from __future__ import annotations

import os
import queue
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from megatune_db.records import Status
from megatune_kernels.artifact import artifact_key
from megatune_kernels.artifact_store import VARIABLE
from megatune_kernels.artifact_store import open_store
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.target import Architecture
from megatune_tuner.workers.child import Child
from megatune_tuner.workers.child import ChildLostError

COMPILE_LIMIT_S = 60.0
"""Hundred times the usual compile: what takes longer is pathological, not slow."""
COMPILER_NICE = 10
"""Compiling yields to the process that drives the GPU."""
COMPILER_ENVIRONMENT = {
    # A compile takes and frees tens of MiB: kept instead of given back, they need no new pages for the next one.
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    # One compile is one thread: what numpy would start only waits.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
ATTEMPTS = 2
"""How often a compiler's process may end without a word, e.g. for want of memory, before the config is blamed."""


def cores() -> int:
    """Cores that this process may use: fewer than the machine has in many containers and batch jobs."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # no such limit; an unlimited quota is the word max
        return allowed


@dataclass(frozen=True)
class Built:
    """What compiling gave: an artifact, or a status and a reason why there is none."""

    artifact: Artifact | None
    status: Status
    reason: str
    compile_s: float
    """Seconds that this build took; 0 when the artifact was there."""


class CompilePool:
    """Builds artifacts in child processes; one thread waits for each child.

    A compile that passes its limit, or that brings its process down, costs that process and nothing else. Submitting
    a key that is in the works returns the future that is there; one that could not be built is not tried again.

    :param store: where artifacts are kept, a folder or a URL.
    """

    def __init__(
        self, store: Path | str, arch: Architecture, *, processes: int | None = None, limit_s: float = COMPILE_LIMIT_S
    ) -> None:
        self._store = open_store(store)
        self._arch = arch
        self._limit_s = limit_s
        # One core stays free for the process that drives the GPU, one for the coordinator.
        self.processes = processes or max(1, cores() - 2)
        self._threads = ThreadPoolExecutor(self.processes, thread_name_prefix="compile")
        # The last one back is the next one out: a process starts only when all that run are busy.
        self._idle: queue.LifoQueue[Child] = queue.LifoQueue()
        self._children = []
        for _ in range(self.processes):
            child = Child(
                "megatune_tuner.workers.compiler",
                arch.name,
                nice=COMPILER_NICE,
                environment={**COMPILER_ENVIRONMENT, VARIABLE: str(store)},
            )
            self._children.append(child)
            self._idle.put(child)
        self._pending: dict[str, Future[Built]] = {}
        self._failed: dict[str, Built] = {}

    def submit(self, operator: Operator, workload: Workload, config: Config) -> Future[Built]:
        """Start building, unless it is built or in the works.

        The future raises ``MegatuneError`` where nothing can be built: a full disk, a pool that is closed.

        :raises MegatuneError: when the artifact has no key.
        """
        key = artifact_key(operator, workload, config, self._arch)
        pending = self._pending.get(key)
        if pending is None:
            pending = self._threads.submit(self._build, key, operator, workload, config)
            self._pending[key] = pending
            pending.add_done_callback(lambda _: self._pending.pop(key, None))
        return pending

    def close(self) -> None:
        """Drop what has not started and end the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            child.end()
        # Each thread has its child to itself until it is through.
        self._threads.shutdown(wait=True)
        for child in self._children:
            child.close()

    def _build(self, key: str, operator: Operator, workload: Workload, config: Config) -> Built:
        found = self._store.get(key)
        if found is not None:
            return Built(found, Status.OK, "", 0.0)
        if key in self._failed:
            return self._failed[key]
        child = self._idle.get()
        try:
            built = self._compile(child, operator, workload, config)
        finally:
            self._idle.put(child)
        if built.artifact is None:
            self._failed[key] = built
        return built

    def _compile(self, child: Child, operator: Operator, workload: Workload, config: Config) -> Built:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return Built(*child.call((operator, workload, config), self._limit_s))
            except ChildLostError as lost:
                if child.is_ended:
                    raise MegatuneError("the pool of compilers is closed") from lost
                if lost.hung:
                    reason = f"not compiled within {self._limit_s:g} s"
                    return Built(None, Status.COMPILE_TIMEOUT, reason, self._limit_s)
                if attempt == ATTEMPTS:
                    return Built(None, Status.COMPILE_ERROR, f"the compiler's process ended: {lost}", 0.0)
        raise AssertionError("unreachable")
