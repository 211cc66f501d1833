"""Runners ``group`` and ``emulated``: measure on several ranks, a GPU each, or all of them on one GPU.

The coordinator alone decides what every rank runs: it sends all processes the same message, and waits with one limit.
Where a rank hangs or crashes, all are killed, what happened is the result of the config, and the next one is measured
by a new group.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.connection import wait
from typing import Any

from megatune_db.records import Provenance
from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.target import Target
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.processes import RECYCLE_AFTER
from megatune_tuner.runners.processes import START_LIMIT_S
from megatune_tuner.runners.processes import ProcessRunner
from megatune_tuner.runners.processes import job_of
from megatune_tuner.runners.processes import require_packages
from megatune_tuner.workers.child import Child
from megatune_tuner.workers.child import ChildLostError
from megatune_tuner.workers.gpu_messages import Final
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.gpu_messages import Outcome
from megatune_tuner.workers.gpu_messages import Search
from megatune_tuner.workers.group_messages import CONNECT
from megatune_tuner.workers.group_messages import IDLE
from megatune_tuner.workers.group_messages import PREPARE
from megatune_tuner.workers.group_messages import START
from megatune_tuner.workers.group_messages import Started
from megatune_tuner.workers.group_messages import StartGroup
from megatune_tuner.workers.group_messages import Stress
from megatune_tuner.workers.group_page import Page

GPU_RANK = "megatune_tuner.workers.group_timing:GpuRank"
ENVIRONMENT = {
    # Without multicast: a program that dies in the midst of it can leave a host's GPUs out of service.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    # Ranks that share a GPU need a hardware queue each: behind one another they would wait for ever.
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
}
WATCH_S = 0.1
"""How often a coordinator that waits looks at what the ranks do."""
ANSWER_S = 10.0
"""Limit of taking in a message or an answer that has begun."""
GONE_S = 30.0
"""How long a killed process may keep its GPU, in the hands of the driver."""
SEE = "; see megatune doctor"
RESTARTS = 3
"""How often a group may be started in the place of one that was lost, before nothing can be measured any more."""
RESTART_LIMIT_S = 60.0
"""Limit of each of them: what the first one read from disk, the others find in memory."""
RESTART_PAUSE_S = 1.0


@dataclass(frozen=True)
class Limits:
    """How long a rank may be without progress, in seconds, by what it does."""

    start_s: float = START_LIMIT_S
    prepare_s: float = 60.0
    """Loading artifacts, making operands, and the first call of a library, which connects the ranks in its own way."""
    measure_s: float = 10.0
    """Anything that takes milliseconds."""

    def of(self, phase: str | None) -> float:
        """The limit of a phase; None: it has not begun."""
        if phase in (None, START, CONNECT):
            return self.start_s
        return self.prepare_s if phase == PREPARE else self.measure_s


class _LostError(Exception):
    """A process of the group ended, or the group hung. ``idle``: it ended before it began what it was asked for."""

    def __init__(self, reason: str, *, hung: bool, idle: bool = False) -> None:
        super().__init__(reason)
        self.hung = hung
        self.idle = idle


@dataclass
class _Group:
    """The processes of one group, from their start to their end."""

    page: Page
    children: list[Child]
    ranks: list[tuple[int, ...]]
    """Those that each process hosts."""
    limits: Limits
    calls: int = field(default=0)

    @property
    def is_alive(self) -> bool:
        return all(child.is_alive for child in self.children)

    def ask(self, message: Any) -> list[Any]:
        """Send all processes the message and wait for every answer.

        :raises _LostError: when one does not answer; the group has to be closed then.
        :raises MegatuneError: when one raised it.
        """
        waiting: dict[Any, int] = {}
        for index, child in enumerate(self.children):
            try:
                child.ask(message, ANSWER_S)
            except ChildLostError as lost:
                raise self._lost(index, lost) from lost
            waiting[child.connection] = index
        answers: dict[int, Any] = {}
        refusal: MegatuneError | None = None
        progress, since = self.page.progress(), time.monotonic()
        while waiting:
            for connection in wait(list(waiting), WATCH_S):
                assert isinstance(connection, Connection)
                index = waiting.pop(connection)
                try:
                    answers[index] = self.children[index].answer(ANSWER_S)
                except MegatuneError as error:
                    refusal = refusal or error
                except ChildLostError as lost:
                    raise self._lost(index, lost) from lost
            now = self.page.progress()
            if now != progress:
                progress, since = now, time.monotonic()
            elif waiting:
                self._watch(time.monotonic() - since, list(waiting.values()), refusal)
        if refusal is not None:
            raise refusal
        self.calls += 1
        return [answers[index] for index in sorted(answers)]

    def close(self) -> None:
        """Kill all processes, and wait until their GPUs are free."""
        for child in self.children:
            child.kill()
        until = time.monotonic() + GONE_S
        for child in self.children:
            child.close(max(0.0, until - time.monotonic()))
        self.page.close()

    def _watch(self, idle_s: float, unanswered: list[int], refusal: MegatuneError | None) -> None:
        ranks = [rank for index in unanswered for rank in self.ranks[index]]
        doing = {rank: self.page.doing(rank) for rank in ranks}
        at_work = {rank: one.phase if one else None for rank, one in doing.items() if one is None or not one.waits}
        limit = max(self.limits.of(phase) for phase in at_work.values() or ("wait",))
        if idle_s <= limit:
            return
        if refusal is not None:
            raise refusal
        phases: dict[str | None, list[int]] = {}
        for rank, phase in at_work.items():
            phases.setdefault(phase, []).append(rank)
        stopped = [
            f"{_named(group)} stopped in {phase}" if phase else f"{_named(group)} never started"
            for phase, group in phases.items()
        ]
        others = [rank for rank in range(self.page.world) if rank not in at_work]
        if others and at_work:
            stopped.append(f"{_named(others)} waited")
        raise _LostError(f"no progress for {limit:g} s: {', '.join(stopped or ['all ranks wait'])}", hung=True)

    def _lost(self, index: int, lost: ChildLostError) -> _LostError:
        doing = [self.page.doing(rank) for rank in self.ranks[index]]
        idle = not lost.hung and all(one is not None and one.phase == IDLE for one in doing)
        return _LostError(f"{_named(self.ranks[index])}: {lost}", hung=lost.hung, idle=idle)


class GroupRunner(ProcessRunner):
    """One worker process a rank, on a GPU of its own."""

    provenance = Provenance.MEASURED

    def __init__(
        self, world: int, *, first_gpu: int = 0, limits: Limits | None = None, rank_class: str = GPU_RANK
    ) -> None:
        """
        :param first_gpu: the GPU of rank 0; the others follow.
        :param rank_class: what a rank is made of, as ``module:name``.
        :raises MegatuneError: where nothing can be measured, with what is missing.
        """
        super().__init__()
        if rank_class == GPU_RANK:
            require_packages()
        self.world = world
        self._first_gpu = first_gpu
        self._limits = limits or Limits()
        self._rank_class = rank_class
        self._folder = tempfile.TemporaryDirectory(prefix="megatune-group-")
        self._made = 0
        self._group: _Group | None = None
        try:
            started = self._start(describe=True)
        except BaseException:
            self.close()
            raise
        assert started is not None
        self._target = started.target
        self._facts = dict(started.facts)

    @property
    def target(self) -> Target:
        return self._target

    @property
    def facts(self) -> dict[str, float]:
        return self._facts

    @property
    def processes(self) -> tuple[int, ...]:
        """Ids of the processes that there are."""
        children = self._group.children if self._group is not None else []
        return tuple(child.pid for child in children if child.pid is not None)

    def stress(self, request: Request, replays: int, seed: int = 0) -> Outcome:
        """Verify a config so often with new values and skewed starts; ``launches`` are those of one replay.

        A status beside ok says what went wrong; no samples are taken.
        """
        return self._ask(Stress(job_of(request), replays, seed))[0]

    def close(self) -> None:
        self._end()
        self._folder.cleanup()

    def _search(self, job: Job) -> Outcome:
        return self._ask(Search(job))[0]

    def _final(self, jobs: Sequence[Job], seed: int) -> list[Outcome]:
        outcomes = self._ask(Final(tuple(jobs), seed))
        return outcomes if len(outcomes) == len(jobs) else outcomes * len(jobs)

    def _hosts(self) -> list[tuple[int, ...]]:
        """The ranks of each process."""
        return [(rank,) for rank in range(self.world)]

    def _choices(self) -> Mapping[str, Any]:
        """What a rank is made with, beside its number and the world."""
        return {"first_gpu": self._first_gpu, "shared": False}

    def _ask(self, message: Any) -> list[Outcome]:
        """The outcomes of a message, or the one outcome of a group that was lost on the way."""
        again = True
        while True:
            self._start()
            assert self._group is not None
            began = time.monotonic()
            try:
                answers = self._group.ask(message)
                break
            except _LostError as lost:
                self._end()
                if lost.idle and again:
                    # Who ends a process may do so while it waits, and it takes its time to die: no fault of the job.
                    again = False
                    continue
                status = Status.HANG if lost.hung else Status.CRASH
                return [Outcome(status, str(lost), measure_s=time.monotonic() - began)]
            except BaseException:
                # Interrupted in the midst of it, or no config could be measured: the ranks may be anywhere.
                self._end()
                raise
        # All ranks know the same; whether a process can go on, each knows of itself.
        outcomes: list[list[Outcome]] = [answer if isinstance(answer, list) else [answer] for answer in answers]
        if any(outcome.poisoned for each in outcomes for outcome in each):
            self._end()
        return outcomes[0]

    def _start(self, *, describe: bool = False) -> Started | None:
        """See that there is a group, a new one after many measurements.

        :raises MegatuneError: when none can be started: no config would be measured.
        """
        if self._group is not None and (self._group.calls >= RECYCLE_AFTER or not self._group.is_alive):
            self._end()
        if self._group is not None:
            return None
        attempts = 1 if describe else RESTARTS
        for attempt in range(1, attempts + 1):
            self._group = self._new_group()
            try:
                started: Started = self._group.ask(StartGroup(describe))[0]
            except (_LostError, MegatuneError) as error:
                self._end()
                if attempt == attempts:
                    what = f"cannot {'' if describe else 're'}start a group of {self.world}"
                    # A device that there is not says so too.
                    raise MegatuneError(f"{what}: {str(error).removesuffix(SEE)}{SEE}") from error
                time.sleep(RESTART_PAUSE_S)
            except BaseException:
                self._end()
                raise
            else:
                self._limits = replace(self._limits, start_s=min(self._limits.start_s, RESTART_LIMIT_S))
                return started
        raise AssertionError("unreachable")

    def _new_group(self) -> _Group:
        page = Page.create(self.world)
        self._made += 1
        choices = {**self._choices(), "store": f"{self._folder.name}/{self._made}"}
        children = [
            Child(
                "megatune_tuner.workers.group",
                str(page.file),
                str(self.world),
                ",".join(map(str, ranks)),
                self._rank_class,
                json.dumps(choices),
                environment=ENVIRONMENT,
                inherited=(page.file,),
            )
            for ranks in self._hosts()
        ]
        return _Group(page, children, self._hosts(), self._limits)

    def _end(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None


class EmulatedRunner(GroupRunner):
    """All ranks in one process on one GPU, each with memory, a stream and a share of the blocks of its own.

    It shows that a config is right on real memory; its times say nothing of links.
    """

    provenance = Provenance.EMULATED

    def _hosts(self) -> list[tuple[int, ...]]:
        return [tuple(range(self.world))]

    def _choices(self) -> Mapping[str, Any]:
        return {"first_gpu": self._first_gpu, "shared": True}


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
