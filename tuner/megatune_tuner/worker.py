"""A worker: leases jobs of a campaign from the database, measures them on its runner, and delivers what it found.

Every result is committed before the next launch. What a worker leases holds while its heartbeat renews it, however slow
a measurement is; one that is killed loses what it was measuring and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from sqlalchemy.orm import Session

from megatune_db import leases
from megatune_db.errors import DatabaseError
from megatune_db.leases import JobConfig
from megatune_db.leases import Lease
from megatune_db.models import Workload as WorkloadRow
from megatune_db.records import Measurement
from megatune_db.records import Stage
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_tuner.bell import Bell
from megatune_tuner.measuring import request
from megatune_tuner.memory import resident_bytes
from megatune_tuner.rows import put_target
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.transactions import Transactions

LEAK_BYTES = 2 * 2**30
"""Growth of the process from which on it is replaced; beginning takes memory too, so that it counts from a while in."""
SETTLED_AFTER = 32
"""Jobs after which a process has taken what it needs, and what it takes more is a leak."""
FIRST_LOOK_S = 0.05
LONGEST_LOOK_S = 1.0

LEAKED = "its memory grew"
STOPPED = "it was stopped"
IDLE = "there was nothing to do"

Artifacts = Callable[[str], Artifact | None]
"""The artifact of a key; None where it is not to be found."""


class Worker:
    """Measures the jobs of one campaign, one at a time.

    :param work: rings when there may be something to do; without it the worker looks again and again.
    :param delivered: rung for each result.
    :param idle_s: end after so many seconds without work; None: never.
    :param leak_bytes: end when the process has grown so much.
    """

    def __init__(
        self,
        transactions: Transactions,
        campaign_id: int,
        runner: Runner,
        artifacts: Artifacts,
        *,
        work: Bell | None = None,
        delivered: Bell | None = None,
        lease_s: float = leases.LEASE_S,
        idle_s: float | None = None,
        leak_bytes: int | None = None,
    ) -> None:
        self._transactions = transactions
        self._campaign_id = campaign_id
        self._runner = runner
        self._artifacts = artifacts
        self._work = work or Bell()
        self._delivered = delivered or Bell()
        self._lease_s = lease_s
        self._idle_s = idle_s
        self._leak_bytes = leak_bytes
        self._settled_bytes: int | None = None
        self._workloads: dict[int, Workload] = {}
        self._latest: int | None = None
        """Id of the workload that was measured last: its operands are there."""
        self.jobs = 0
        """Results that it delivered."""
        self.id = transactions.read(self._register)

    def run(self, stops: Callable[[], bool]) -> str:
        """Work until there is a reason to end, which is returned.

        :param stops: whether nothing more is to be measured.
        :raises MegatuneError: when nothing can be measured any more; what it was measuring is given back.
        :raises DatabaseError: when the database cannot be used, or is gone for too long.
        """
        over = threading.Event()
        heart = threading.Thread(target=self._beat, args=(over,), name="heartbeat", daemon=True)
        heart.start()
        why = "it failed"
        try:
            why = self._run(stops)
        finally:
            over.set()
            heart.join()
            # Whoever reads the table of workers should know; where that fails, they will notice.
            with suppress(DatabaseError):
                self._transactions.read(lambda session: leases.end_worker(session, self.id, why))
        return why

    def _run(self, stops: Callable[[], bool]) -> str:
        lease: Lease | None = None
        while True:
            lease = lease or self._wait(stops)
            if lease is None:
                return STOPPED if stops() else IDLE
            if stops():
                # It was taken with the last delivery.
                self._give_back(lease)
                return STOPPED
            measurements = self._measure(lease)
            leaks = self._leaks()
            lease = self._deliver(lease, measurements, another=not (stops() or leaks))
            if leaks:
                return LEAKED

    def _register(self, session: Session) -> int:
        put_target(session, self._runner.target)
        return leases.add_worker(
            session,
            campaign_id=self._campaign_id,
            target=self._runner.target.digest,
            provenance=self._runner.provenance,
            needs_artifacts=self._runner.needs_artifacts,
        )

    def _wait(self, stops: Callable[[], bool]) -> Lease | None:
        """The next lease; None when the worker was stopped, or idle for too long."""
        waited_s, look_s = 0.0, FIRST_LOOK_S
        while not stops():
            rang = self._work.count
            lease = self._transactions.read(self._claim)
            if lease is not None:
                return lease
            if self._idle_s is not None and waited_s >= self._idle_s:
                return None
            self._work.wait(rang + 1, look_s)
            waited_s += look_s
            look_s = min(2 * look_s, LONGEST_LOOK_S)
        return None

    def _claim(self, session: Session) -> Lease | None:
        return leases.claim(session, self.id, self._campaign_id, self._lease_s, near=self._latest)

    def _give_back(self, lease: Lease) -> None:
        self._transactions.read(lambda session: leases.give_back(session, lease))

    def _deliver(self, lease: Lease, measurements: list[Measurement], *, another: bool) -> Lease | None:
        """Keep what was measured and take the next job, in one transaction."""
        tried = False

        def deliver(session: Session) -> Lease | None:
            nonlocal tried
            leases.finish(session, lease, measurements)
            if not another:
                return None
            # The first try may have been kept without an answer, and have a lease that nobody knows of.
            found = leases.mine(session, self.id, self._campaign_id) if tried else None
            tried = True
            return found or self._claim(session)

        following = self._transactions.read(deliver)
        self.jobs += 1
        self._delivered.ring()
        return following

    def _measure(self, lease: Lease) -> list[Measurement]:
        try:
            asked = [self._request(lease, config) for config in lease.what.configs]
            if lease.what.stage is Stage.SEARCH:
                found = [self._runner.measure(asked[0])]
            else:
                found = self._runner.finalists(asked)
        except MegatuneError as error:
            why = str(error)
            self._transactions.read(lambda session: leases.fail(session, lease, why))
            raise
        except BaseException:
            with suppress(DatabaseError):
                self._give_back(lease)
            raise
        return [
            measurement if config.revision is None else replace(measurement, revision=config.revision)
            for config, measurement in zip(lease.what.configs, found, strict=True)
        ]

    def _request(self, lease: Lease, config: JobConfig) -> Request:
        found = {key: self._artifacts(key) for key in config.artifacts}
        there = [artifact for key in config.artifacts if (artifact := found[key]) is not None]
        if len(there) < len(config.artifacts):
            raise MegatuneError(
                "an artifact that the coordinator built is not to be found here: set MEGATUNE_ARTIFACTS to the same "
                "place for coordinator and workers"
            )
        self._latest = lease.what.workload_id
        workload = self._workload(lease.what.workload_id)
        runs = None if config.runs is None else Config.of(*config.runs)
        named = Config.of(config.variant, config.params)
        return request(workload, named, lease.what.regime, there, config.compile_s, runs)

    def _workload(self, workload_id: int) -> Workload:
        found = self._workloads.get(workload_id)
        if found is None:
            row = self._transactions.read(lambda session: session.get_one(WorkloadRow, workload_id))
            found = Workload.of(
                row.operator, row.dims, row.tokens, dtype=row.dtype, world=row.world, routing=row.routing
            )
            self._workloads[workload_id] = found
        return found

    def _leaks(self) -> bool:
        if self._leak_bytes is None or self.jobs < SETTLED_AFTER:
            return False
        now = resident_bytes()
        if self._settled_bytes is None:
            self._settled_bytes = now
        return now - self._settled_bytes > self._leak_bytes

    def _beat(self, over: threading.Event) -> None:
        """Renew what is leased; while the database is gone, its next answer has to do."""
        while not over.wait(self._lease_s / 3):
            with suppress(DatabaseError), self._transactions.database.session() as session:
                leases.renew(session, self.id, self._campaign_id, self._lease_s)
