"""Artifacts built ahead, in a pool of processes that can be killed one by one."""

from __future__ import annotations

import os
import queue
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from megatune_db.records import Status
from megatune_kernels.artifact import ArtifactStore
from megatune_kernels.artifact import artifact_key
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


def store_root() -> Path:
    """Where artifacts are kept: ``MEGATUNE_ARTIFACTS``, else the user's cache."""
    configured = os.environ.get("MEGATUNE_ARTIFACTS")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(configured) if configured else cache / "megatune" / "artifacts"


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
    a key that is in the works returns the future that is there.
    """

    def __init__(
        self, root: Path, arch: Architecture, *, processes: int | None = None, limit_s: float = COMPILE_LIMIT_S
    ) -> None:
        self._store = ArtifactStore(root)
        self._arch = arch
        self._limit_s = limit_s
        # One core stays free for the process that drives the GPU, one for the coordinator.
        self.processes = processes or max(1, (os.cpu_count() or 2) - 2)
        self._threads = ThreadPoolExecutor(self.processes, thread_name_prefix="compile")
        self._idle: queue.SimpleQueue[Child] = queue.SimpleQueue()
        self._children = []
        for _ in range(self.processes):
            child = Child("megatune_tuner.workers.compiler", str(root), arch.name, nice=COMPILER_NICE)
            self._children.append(child)
            self._idle.put(child)
        self._pending: dict[str, Future[Built]] = {}

    def submit(self, operator: Operator, workload: Workload, config: Config) -> Future[Built]:
        """Start building, unless it is built or in the works.

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
            child.close()
        self._threads.shutdown(wait=True)

    def _build(self, key: str, operator: Operator, workload: Workload, config: Config) -> Built:
        found = self._store.get(key)
        if found is not None:
            return Built(found, Status.OK, "", 0.0)
        child = self._idle.get()
        try:
            artifact, reason, seconds = child.call((operator, workload, config), self._limit_s)
        except ChildLostError as lost:
            if lost.hung:
                reason = f"not compiled within {self._limit_s:g} s"
                return Built(None, Status.COMPILE_TIMEOUT, reason, self._limit_s)
            return Built(None, Status.COMPILE_ERROR, f"the compiler's process ended: {lost}", 0.0)
        finally:
            self._idle.put(child)
        if artifact is None:
            return Built(None, Status.COMPILE_ERROR, reason, seconds)
        return Built(artifact, Status.OK, "", seconds)
