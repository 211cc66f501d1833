"""How a config becomes samples on one GPU: verify, heat, time, verify again. Imports torch and cuda.core.

The clock is that of the GPU: an event before and one after each replay of a graph of many launches. A sample is that
time divided by the launches, so what lies between two launches is part of it, as it is in a decode step.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from typing import Any
from typing import cast

import torch
from cuda.core import EventOptions
from cuda.core import launch

from megatune_db.records import Status
from megatune_kernels.buffers import Buffers
from megatune_kernels.buffers import ChainBuffers
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import operator
from megatune_tuner.workers.failures import Infeasible
from megatune_tuner.workers.failures import WrongResult
from megatune_tuner.workers.failures import failed
from megatune_tuner.workers.gpu_chain import Alone
from megatune_tuner.workers.gpu_chain import Chain
from megatune_tuner.workers.gpu_device import GpuDevice
from megatune_tuner.workers.gpu_launch import capture
from megatune_tuner.workers.gpu_launch import check_resident
from megatune_tuner.workers.gpu_launch import load
from megatune_tuner.workers.gpu_launch import passing
from megatune_tuner.workers.gpu_memory import Apart
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.gpu_messages import Outcome
from megatune_tuner.workers.held import Held
from megatune_tuner.workers.sampling import ASSUMED_BYTES_A_US
from megatune_tuner.workers.sampling import ASSUMED_LAUNCH_US
from megatune_tuner.workers.sampling import FINAL_ROUNDS
from megatune_tuner.workers.sampling import FIRST_SAMPLES
from megatune_tuner.workers.sampling import HEAT_S
from megatune_tuner.workers.sampling import MOST_LAUNCHES
from megatune_tuner.workers.sampling import MOST_SAMPLES
from megatune_tuner.workers.sampling import PAUSE_S
from megatune_tuner.workers.sampling import RETAKES
from megatune_tuner.workers.sampling import SAMPLE_US
from megatune_tuner.workers.sampling import SAMPLING_S
from megatune_tuner.workers.sampling import SEED
from megatune_tuner.workers.sampling import WATCH_S
from megatune_tuner.workers.sampling import WATCH_SHARE
from megatune_tuner.workers.sampling import Samples
from megatune_tuner.workers.sampling import another_process

FLUSH_L2 = 2.2
"""Operands rotate over this many times the L2: twice, and a margin for what a launch leaves behind."""
MEMORY_SPEED = 1.15
"""Times what a copy reaches that no reader of memory does: a copy also writes, and turns around for it. On an H200
projections read up to 1.04 times as fast."""
MOST_COPIES = 1 << 14
"""Sets of operands beyond which making them, and launching once over each, takes longer than measuring."""


@dataclass
class _Ready:
    """A job that can be replayed."""

    job: Job
    buffers: Buffers
    launches: int
    replay: Callable[[], None]
    flush_bytes: int
    close: Callable[[], None]
    code: Callable[[Any, int], None]
    """What enqueues a launch. Held, because the code that a graph launches is unloaded with it."""
    chain: Chain | None = None
    """Of a config of several kernels."""


class Bench:
    """Times jobs on one GPU. Keeps operands of workloads as long as there is room."""

    def __init__(self, index: int) -> None:
        self.device = GpuDevice(index)
        self._stream = self.device.device.create_stream()
        self._beside: list[Any] = []
        """Streams of chains beside the first one."""
        torch.cuda.set_stream(torch.cuda.ExternalStream(int(self._stream.handle)))
        options = EventOptions(timing_enabled=True)
        self._events = [self.device.device.create_event(options) for _ in range(2 * MOST_SAMPLES)]
        self._held: Held[Buffers] = Held()
        self._alone_us: dict[Hashable, float] = {}
        """How long launches of single parts take over the operands of a workload."""
        self._copied: float | None = None
        self._last_busy = -math.inf
        self._next_watch = -math.inf

    def copy_bytes_a_us(self) -> float:
        """Bytes read and written a µs by a copy of 1 GiB between two buffers, best of several, clocks steady."""
        if self._copied is None:
            self._copied = self._copy()
        return self._copied

    def _copy(self) -> float:
        source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
        replay = partial(torch.empty_like(source).copy_, source)
        self._heat(replay)
        times = self._time(replay, 15)
        return 2 * (1 << 30) / min(times)

    def search(self, job: Job) -> Outcome:
        """Verify, sample until the interval is narrow, verify again with other inputs."""
        started = time.monotonic()
        ready: _Ready | None = None
        try:
            ready = self._ready(job)
            self._verify(ready)
            self._heat(ready.replay)
            samples = Samples(ready.launches)
            deadline = time.monotonic() + SAMPLING_S
            while True:
                taken = self._undisturbed(ready.replay, samples.wanted)
                samples.add(taken, hot=self.device.throttled(), clock_mhz=self.device.sm_clock_mhz())
                if samples.are_enough or time.monotonic() > deadline:
                    break
            self._verify(ready, after=True)
            parts_us = self._parts_us(ready)
            found = samples.outcome(flush_bytes=ready.flush_bytes, measure_s=time.monotonic() - started)
            return replace(found, parts_us=parts_us)
        except Exception as error:  # noqa: BLE001 - whatever a config does to the device is its result
            return self._failed(error, started)
        finally:
            if ready is not None:
                self._close([ready])

    def final(self, jobs: Sequence[Job], seed: int) -> list[Outcome]:
        """Sample all jobs in rounds, each round in a random order of its own.

        A job that fails leaves the others in. One that ends the context ends all: the others then have the status
        ``crash`` too, without being poisoned.
        """
        started = time.monotonic()
        order = random.Random(seed)
        outcomes: dict[int, Outcome] = {}
        ready: dict[int, _Ready] = {}
        try:
            for i, job in enumerate(jobs):
                try:
                    ready[i] = self._ready(job)
                    self._verify(ready[i])
                except Exception as error:  # noqa: BLE001 - as in search
                    outcomes[i] = self._failed(error, started)
                    if outcomes[i].poisoned:
                        beside = Outcome(Status.CRASH, f"beside another that ended the context: {outcomes[i].reason}")
                        return [outcomes.get(j, beside) for j in range(len(jobs))]
            alive = [i for i in ready if i not in outcomes]
            samples = {i: Samples(ready[i].launches) for i in alive}
            for i in alive:
                self._heat(ready[i].replay)
            for _ in range(FINAL_ROUNDS):
                order.shuffle(alive)
                hot, clock_mhz = self.device.throttled(), self.device.sm_clock_mhz()
                for i in alive:
                    samples[i].add(self._undisturbed(ready[i].replay, 1), hot=hot, clock_mhz=clock_mhz)
            for i in alive:
                try:
                    self._verify(ready[i], after=True)
                    parts_us = self._parts_us(ready[i])
                    seconds = time.monotonic() - started
                    found = samples[i].outcome(flush_bytes=ready[i].flush_bytes, measure_s=seconds)
                    outcomes[i] = replace(found, parts_us=parts_us)
                except Exception as error:  # noqa: BLE001 - as in search
                    outcomes[i] = self._failed(error, started)
            return [outcomes[i] for i in range(len(jobs))]
        finally:
            self._close(list(ready.values()))

    def _ready(self, job: Job) -> _Ready:
        _phase("prepare", job)
        tuned = operator(job.workload.operator)
        buffers = self._buffers(job)
        cost = tuned.cost(job.workload, job.config)
        guess_us = ASSUMED_LAUNCH_US + cost.memory_bytes / ASSUMED_BYTES_A_US
        launches = min(MOST_LAUNCHES, max(buffers.copies, math.ceil(SAMPLE_US / guess_us)))
        launches = -(-launches // buffers.copies) * buffers.copies
        chain = self._chain(job, buffers) if job.parts else None
        enqueue: Callable[[Any, int], None]
        if chain is not None:
            enqueue = chain.enqueue
        else:
            enqueue = self._baseline(job, buffers) if job.artifact is None else self._kernel(job, buffers)

        def run(stream: Any) -> None:
            for i in range(launches):
                enqueue(stream, i % buffers.copies)

        flush = buffers.copies * tuned.rotating_bytes(job.workload) if job.cold else 0
        if not job.graph:
            return _Ready(job, buffers, launches, lambda: run(self._stream), flush, lambda: None, enqueue, chain)
        memory = Apart()
        with memory.used():
            graph = capture(self._stream, run)

        def close() -> None:
            graph.close()
            memory.close()

        return _Ready(job, buffers, launches, lambda: graph.launch(self._stream), flush, close, enqueue, chain)

    def _buffers(self, job: Job) -> Buffers:
        tuned = operator(job.workload.operator)
        rotating = tuned.rotating_bytes(job.workload)
        copies = max(2, math.ceil(FLUSH_L2 * self.device.l2_bytes / rotating)) if job.cold else 1
        if copies > MOST_COPIES:
            raise Infeasible(
                f"{rotating} bytes of operands stay in an L2 of {self.device.l2_bytes >> 20} MiB unless {copies} sets "
                f"of them take turns, and {MOST_COPIES} are the most: measure it warm"
            )
        return self._held.get((job.workload, copies), lambda: tuned.inputs(job.workload, copies, SEED))

    def _kernel(self, job: Job, buffers: Buffers) -> Callable[[Any, int], None]:
        assert job.artifact is not None
        shape = operator(job.workload.operator).launch(job.workload, job.config)
        kernel, config = load(job.artifact, shape, self.device.device.device_id)
        if shape.resident:
            check_resident(kernel, config, shape, self.device.device, self._stream)
        if shape.parameters:
            return passing(kernel, shape, [buffers.pointers(copy) for copy in range(buffers.copies)])
        scalars = [ctypes.c_int32(value) for value in shape.scalars]
        arguments = [(*buffers.pointers(copy), *scalars) for copy in range(buffers.copies)]

        def enqueue(stream: Any, copy: int) -> None:
            launch(stream, config, kernel, *arguments[copy])

        return enqueue

    def _chain(self, job: Job, buffers: Buffers) -> Chain:
        parts = operator(job.workload.operator).parts(job.workload, job.config)
        while len(self._beside) < max(part.stream for part in parts):
            self._beside.append(self.device.device.create_stream())
        return Chain(
            parts,
            job.parts,
            cast(ChainBuffers, buffers),
            [self._stream, *self._beside],
            self.device.device.create_event,
            self.device.device.device_id,
        )

    def _parts_us(self, ready: _Ready) -> tuple[tuple[str, float], ...]:
        """Of a chain, the time of each part alone by name, and of the probe.

        A reader that is no faster over hot operands does not tell where they were. What tells is the memory, which
        gives nothing faster than it can.

        :raises Infeasible: when the probe finds that operands are not cold.
        """
        if ready.chain is None:
            return ()
        _phase("time parts", ready.job)
        found = {alone.name: self._alone(alone, ready.job) for alone in ready.chain.alone(self.device.l2_bytes)}
        probe = ready.chain.probe(self.device.l2_bytes)
        if probe is not None:
            cold, hot = self._alone(probe.cold, ready.job), self._alone(probe.hot, ready.job)
            least = probe.bytes / (MEMORY_SPEED * self.copy_bytes_a_us())
            if cold < least:
                raise Infeasible(
                    f"operands are not cold: {probe.bytes} bytes are read in {cold:.2f} us in turns over all copies, "
                    f"which from memory takes {least:.2f} us and more; again at once they take {hot:.2f} us"
                )
            found |= {probe.cold.name: cold, probe.hot.name: hot}
        return tuple(sorted(found.items()))

    def _alone(self, alone: Alone, job: Job) -> float:
        """Median time of a launch in µs; what was timed over the same operands before is not timed again."""
        key = (job.workload, job.cold, alone.key)
        if key not in self._alone_us:
            graph = capture(self._stream, lambda _: alone.enqueue()) if job.graph else None
            try:
                replay = alone.enqueue if graph is None else partial(graph.launch, self._stream)
                self._heat(replay)
                times = self._undisturbed(replay, FIRST_SAMPLES)
            finally:
                if graph is not None:
                    graph.close()
            self._alone_us[key] = statistics.median(times) / alone.launches
        return self._alone_us[key]

    def _baseline(self, job: Job, buffers: Buffers) -> Callable[[Any, int], None]:
        tuned = operator(job.workload.operator)

        def enqueue(_: Any, copy: int) -> None:
            tuned.baseline(job.config.variant, job.workload, buffers, copy)

        # Libraries make handles and workspaces when first called, which a graph must not hold.
        enqueue(None, 0)
        self._stream.sync()
        return enqueue

    def _verify(self, ready: _Ready, *, after: bool = False) -> None:
        _phase("verify after timing" if after else "verify", ready.job)
        if after:
            ready.buffers.refresh()
        ready.buffers.poison()
        ready.replay()
        self._stream.sync()
        wrong = ready.buffers.check()
        if wrong:
            raise WrongResult(wrong)

    def _heat(self, replay: Callable[[], None]) -> None:
        """Replay until the clocks are up, if the GPU was idle long enough for them to drop."""
        now = time.monotonic()
        if now - self._last_busy < PAUSE_S:
            return
        while time.monotonic() - now < HEAT_S:
            replay()
            self._stream.sync()
        self._last_busy = time.monotonic()

    def _time(self, replay: Callable[[], None], count: int) -> list[float]:
        """Times of ``count`` replays in µs.

        One more goes first, untimed: behind it the GPU is never idle between an event and what follows it, and caches
        hold what they hold in the midst of many replays, not what ran before.
        """
        replay()
        for i in range(count):
            self._stream.record(self._events[2 * i])
            replay()
            self._stream.record(self._events[2 * i + 1])
        self._stream.sync()
        self._last_busy = time.monotonic()
        return [(self._events[2 * i + 1] - self._events[2 * i]) * 1e3 for i in range(count)]

    def _undisturbed(self, replay: Callable[[], None], count: int) -> list[float]:
        """``_time``, taken again while another process computes on the GPU.

        :raises MegatuneError: when it stays.
        """
        for attempt in range(RETAKES):
            times = self._time(replay, count)
            began = time.monotonic()
            if began < self._next_watch:
                return times
            others = self.device.others()
            if not others:
                ended = time.monotonic()
                self._next_watch = ended + min(WATCH_S, (ended - began) / WATCH_SHARE)
                return times
            time.sleep(0.5 * (attempt + 1))
            self._heat(replay)
        raise MegatuneError(another_process(others[0]))

    def _failed(self, error: Exception, started: float) -> Outcome:
        outcome = failed(error, time.monotonic() - started, self._is_usable)
        if outcome.status is Status.OUT_OF_MEMORY:
            self._held.drop()
        return outcome

    def _is_usable(self) -> bool:
        try:
            self._stream.sync()
        except Exception:  # noqa: BLE001 - the context is gone, whatever it says
            return False
        return True

    def _close(self, ready: list[_Ready]) -> None:
        for one in ready:
            # What cannot be given back goes with the process, which a context that is gone ends anyway.
            with contextlib.suppress(Exception):
                one.close()


def _phase(name: str, job: Job) -> None:
    """Leave word of what is being done: after a hang it is the last line that the coordinator finds."""
    with contextlib.suppress(OSError):  # a full disk is no fault of the job
        os.write(sys.stderr.fileno(), f"{name}: {job.workload} {job.config}\n".encode())
