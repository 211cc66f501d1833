"""Engine ``local``: one worker in the coordinator's process."""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import lru_cache

from megatune_kernels.artifact import ArtifactStore
from megatune_kernels.artifact_store import open_store
from megatune_kernels.artifact_store import store_location
from megatune_kernels.operator import Artifact
from megatune_tuner.engines.base import Engine
from megatune_tuner.engines.base import Site
from megatune_tuner.runners.base import Runner
from megatune_tuner.worker import Artifacts
from megatune_tuner.worker import Worker


class LocalEngine(Engine):
    """A thread that measures on a runner; the runner has processes of its own where a config can do harm."""

    rings = True

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    def start(self, site: Site) -> None:
        worker = Worker(
            site.transactions,
            site.campaign_id,
            self._runner,
            _in_memory_or_stored(site.artifacts),
            work=site.work,
            delivered=site.delivered,
        )

        def work() -> None:
            try:
                worker.run(lambda: self._stopped or site.stop.requested)
            except BaseException as error:  # noqa: BLE001 - the coordinator raises it
                self._failed = error
                site.delivered.ring()

        self._site = site
        # Whoever interrupts twice does not want to wait for the runner.
        self._thread = threading.Thread(target=work, name="worker", daemon=True)
        self._thread.start()

    def check(self) -> Collection[int]:
        if self._failed is not None:
            raise self._failed
        return ()

    def stop(self) -> None:
        self.close()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        self._stopped = True
        if self._thread is not None:
            self._site.work.ring()


def _in_memory_or_stored(artifacts: Artifacts) -> Artifacts:
    """What an earlier process had built is in the store alone."""

    @lru_cache(maxsize=1)
    def store() -> ArtifactStore:
        return open_store(store_location())

    def find(key: str) -> Artifact | None:
        return artifacts(key) or store().get(key)

    return find
