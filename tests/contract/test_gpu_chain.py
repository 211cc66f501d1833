"""How the worker enqueues chains and times their parts, over a GPU that only keeps a diary."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import Any

import pytest

from megatune_db.records import Status
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Launch
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.prefetch.ranges import MIB
from megatune_kernels.space import Config
from megatune_kernels.target import Hardware
from megatune_kernels.target import architecture_of
from megatune_tuner.workers.gpu_messages import Job

pytestmark = pytest.mark.torch

PREFETCH = operator("prefetch")
ARCH = architecture_of(Hardware("NVIDIA H200", "sm_90a", "2335", 132, 1 * MIB, 140 << 30, "none"))
CHAIN = PREFETCH.workload({"idle_ns": 3000, "n1": 1024, "k1": 256, "n2": 32, "k2": 64, "n3": 48, "k3": 64}, 2)
"""Of half a MiB of weights, and 12 KiB more: half the L2 of the GPU of these tests."""


@dataclass
class Launched:
    """One launch, and what had to have ended before it."""

    kernel: str
    arguments: tuple[int, ...]
    after: frozenset[int]


@dataclass
class Gpu:
    """Runs nothing; knows what waits for what, unless there is too much of it."""

    ordered: bool = True
    launched: list[Launched] = field(default_factory=list)
    streams: int = 0

    def create_stream(self) -> Stream:
        self.streams += 1
        return Stream(self)

    def create_event(self, *_: Any) -> Event:
        return Event()


class Event:
    def __init__(self) -> None:
        self.after: frozenset[int] | None = None

    def __sub__(self, other: Event) -> float:
        return 0.5


class Stream:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.after: frozenset[int] = frozenset()

    def record(self, event: Event) -> None:
        event.after = self.after

    def wait(self, event: Event) -> None:
        assert event.after is not None, "an event that nobody recorded"
        self.after |= event.after

    def sync(self) -> None:
        """Nothing runs."""


def launch(stream: Stream, config: Any, kernel: str, *arguments: Any) -> None:
    number = len(stream.gpu.launched)
    values = tuple(each if isinstance(each, int) else each.value for each in arguments)
    stream.gpu.launched.append(Launched(kernel, values, stream.after))
    if stream.gpu.ordered:
        stream.after |= {number}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    from megatune_tuner.workers import gpu_chain

    monkeypatch.setattr(gpu_chain, "launch", launch)
    monkeypatch.setattr(gpu_chain, "load", lambda artifact, shape, device: (artifact.key, shape))
    return Gpu()


@pytest.fixture
def buffers() -> Any:
    from megatune_kernels.prefetch.buffers import ChainBuffers

    return ChainBuffers(CHAIN, 3, 1, "cpu")


def artifacts(workload: Workload, config: Config) -> tuple[Artifact, ...]:
    """Named for their parts."""
    return tuple(Artifact(part.name, "sm_90a", "entry", b"", 0, 0) for part in PREFETCH.parts(workload, config))


def default(**changes: object) -> Config:
    (config,) = (c for c in PREFETCH.space(CHAIN, ARCH).defaults() if c.variant == "prefetch")
    return Config.of("prefetch", {**config.params, **changes})  # type: ignore[dict-item]


def chain_on(gpu: Gpu, buffers: Any, config: Config, workload: Workload = CHAIN) -> Any:
    from megatune_tuner.workers.gpu_chain import Chain

    parts = PREFETCH.parts(workload, config)
    streams = [gpu.create_stream() for _ in range(1 + max(part.stream for part in parts))]
    return Chain(parts, artifacts(workload, config), buffers, streams, gpu.create_event, 0)


def test_the_prefetch_runs_beside_the_idle_phase_and_ends_before_the_next_chain(gpu: Gpu, buffers: Any) -> None:
    chain = chain_on(gpu, buffers, default())
    for copy in (0, 1, 2, 0):
        chain.enqueue(None, copy)
    names = ["prefetch", "idle", "consumer1", "consumer2", "consumer3"]
    assert [one.kernel for one in gpu.launched] == names * 4
    for turn in range(4):
        first = 5 * turn
        everything = frozenset(range(first))
        prefetch, idle, *consumers = gpu.launched[first : first + 5]
        assert prefetch.after == idle.after == everything
        for i, consumer in enumerate(consumers):
            assert consumer.after == everything | {first + 1 + j for j in range(i + 1)}


def test_every_launch_has_the_operands_of_its_copy(gpu: Gpu, buffers: Any) -> None:
    config = default(grid=8, chunk_kib=4, depth_mib=1, start_percent=50)
    chain = chain_on(gpu, buffers, config)
    for copy in (1, 2):
        gpu.launched.clear()
        chain.enqueue(None, copy)
        given = {one.kernel: one.arguments for one in gpu.launched}
        assert given["prefetch"] == (*buffers.pointers(copy), 0, 3, 1, 4096, 0, 0, 1500)
        assert given["idle"] == (3000,)
        for name in ("consumer1", "consumer2", "consumer3"):
            assert given[name][:3] == buffers.part_pointers(name, copy)


def test_without_a_prefetch_there_is_one_stream(gpu: Gpu, buffers: Any) -> None:
    chain = chain_on(gpu, buffers, Config.of("none", {}))
    chain.enqueue(None, 0)
    chain.enqueue(None, 1)
    assert gpu.streams == 1
    assert [one.kernel for one in gpu.launched] == ["idle", "consumer1", "consumer2", "consumer3"] * 2
    assert [len(one.after) for one in gpu.launched] == list(range(8))


def test_consumers_that_part_are_joined(gpu: Gpu, buffers: Any) -> None:
    parted = PREFETCH.workload({**dict(CHAIN.dims), "after3": 0}, 2)
    chain = chain_on(gpu, buffers, default(), parted)
    chain.enqueue(None, 0)
    chain.enqueue(None, 1)
    assert gpu.streams == 3
    first, second = gpu.launched[:5], gpu.launched[5:]
    by_name = {one.kernel: one for one in first}
    assert by_name["consumer3"].after == {1}
    assert by_name["consumer2"].after == {1, 2}
    assert all(one.after >= set(range(5)) for one in second)


def alone(gpu: Gpu, chain: Any, name: str) -> list[Launched]:
    (found,) = (each for each in chain.alone(MIB) if each.name == name)
    gpu.launched.clear()
    found.enqueue()
    assert len(gpu.launched) == found.launches >= 32
    return gpu.launched


def test_parts_alone_are_cold_over_all_weights_and_hot_over_one_piece(gpu: Gpu, buffers: Any) -> None:
    chain = chain_on(gpu, buffers, default())
    names = {each.name for each in chain.alone(MIB)}
    consumers = ("consumer1", "consumer2", "consumer3")
    assert names == {"prefetch", "idle", *(f"{c} {how}" for c in consumers for how in ("cold", "hot"))}
    weights = PREFETCH.rotating_bytes(CHAIN)
    for name in consumers:
        cold, hot = alone(gpu, chain, f"{name} cold").copy(), alone(gpu, chain, f"{name} hot").copy()
        assert {one.kernel for one in cold + hot} == {name}
        size = 2 * cold[0].arguments[3] * cold[0].arguments[4]
        # Before a piece is read again, all others were.
        places = [one.arguments[1] for one in cold]
        turn = places.index(places[0], 1) if places.count(places[0]) > 1 else len(places)
        assert len(set(places[:turn])) == turn
        assert places == (places[:turn] * (len(places) // turn))
        assert turn * size > 3 * weights - 3 * size
        assert len({one.arguments for one in hot}) == 1
    assert [one.arguments for one in alone(gpu, chain, "idle")] == [(3000,)] * len(gpu.launched)
    tables = [one.arguments[0] for one in alone(gpu, chain, "prefetch")]
    assert tables[:4] == [buffers.pointers(copy)[0] for copy in (0, 1, 2, 0)]


def test_what_does_not_fit_is_not_called_hot_and_what_does_not_rotate_not_cold(gpu: Gpu, buffers: Any) -> None:
    from megatune_kernels.prefetch.buffers import ChainBuffers

    small = {each.name for each in chain_on(gpu, buffers, default()).alone(MIB // 2)}
    assert "consumer1 cold" in small
    assert "consumer1 hot" not in small
    assert "consumer2 hot" in small
    warm = chain_on(gpu, ChainBuffers(CHAIN, 1, 1, "cpu"), default())
    assert not any("cold" in each.name for each in warm.alone(MIB))
    assert warm.probe(MIB) is None


def test_the_probe_reads_pieces_of_a_quarter_of_the_l2(gpu: Gpu, buffers: Any) -> None:
    probe = chain_on(gpu, buffers, default()).probe(MIB)
    assert MIB // 8 < probe.bytes <= MIB // 4
    probe.cold.enqueue()
    places = [one.arguments[1] for one in gpu.launched]
    assert {one.kernel for one in gpu.launched} == {"consumer1"}
    assert len(set(places)) * probe.bytes > 2.8 * PREFETCH.rotating_bytes(CHAIN) - 3 * probe.bytes
    gpu.launched.clear()
    probe.hot.enqueue()
    assert len({one.arguments for one in gpu.launched}) == 1


def test_no_launch_of_the_probe_hides_behind_the_one_before(
    gpu: Gpu, buffers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatune_tuner.workers import gpu_chain

    shapes: list[Launch] = []

    def load(artifact: Artifact, shape: Launch, device: int) -> tuple[str, Launch]:
        shapes.append(shape)
        return artifact.key, shape

    monkeypatch.setattr(gpu_chain, "load", load)
    chain = chain_on(gpu, buffers, default(pdl=True))
    assert sum(shape.programmatic for shape in shapes) == 3
    shapes.clear()
    probe = chain.probe(MIB)
    probe.cold.enqueue()
    probe.hot.enqueue()
    assert [shape.programmatic for shape in shapes] == [False]
    (cold,) = (each for each in chain.alone(MIB) if each.name == "consumer1 cold")
    cold.enqueue()
    assert shapes[-1].programmatic


def test_a_share_of_shared_memory_of_the_chain_is_that_of_its_launches(
    gpu: Gpu, buffers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatune_tuner.workers import gpu_chain

    shapes: dict[str, Launch] = {}
    monkeypatch.setattr(
        gpu_chain, "load", lambda artifact, shape, _: shapes.update({artifact.key: shape}) or ("", shape)
    )
    chain_on(gpu, buffers, default(shared="most"))
    assert {shape.carveout for shape in shapes.values()} == {100}
    chain_on(gpu, buffers, default(shared="own"))
    assert {shapes[f"consumer{i}"].carveout for i in (1, 2, 3)} == {None}


def test_equal_launches_have_equal_keys(gpu: Gpu, buffers: Any) -> None:
    def keys(config: Config) -> dict[str, object]:
        return {each.name: each.key for each in chain_on(gpu, buffers, config).alone(MIB)}

    one, other = keys(default(grid=8)), keys(default(grid=16))
    assert {name for name in one if one[name] != other[name]} == {"prefetch"}
    assert keys(default(pdl=True)) != keys(default(pdl=False))


class Device:
    l2_bytes = MIB

    def __init__(self, gpu: Gpu) -> None:
        self.device = gpu
        gpu.device_id = 0  # type: ignore[attr-defined]

    def throttled(self) -> bool:
        return False

    def sm_clock_mhz(self) -> int:
        return 1980

    def others(self) -> list[int]:
        return []


@pytest.fixture
def bench(gpu: Gpu, buffers: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The worker over that GPU, in the eager regime: what would run is only written down."""
    from megatune_tuner.workers import gpu_timing

    monkeypatch.setattr(gpu_timing, "HEAT_S", 0.0)
    monkeypatch.setattr(type(buffers), "check", lambda _: "")
    gpu.ordered = False
    made: Any = object.__new__(gpu_timing.Bench)
    made.device = Device(gpu)
    made._stream = gpu.create_stream()
    made._beside = []
    made._events = [Event() for _ in range(2 * gpu_timing.MOST_SAMPLES)]
    made._buffers = lambda _: buffers
    made._alone_us = {}
    # What a copy gives: a piece of the probe then takes 0.2 µs and more from memory.
    made._copied = 1e6
    made._last_busy = made._next_watch = -float("inf")
    return made


def job(config: Config) -> Job:
    return Job(CHAIN, config, None, cold=True, graph=False, parts=artifacts(CHAIN, config))


def test_a_measurement_of_a_chain_has_the_times_of_its_parts(bench: Any, gpu: Gpu) -> None:
    found = bench.search(job(default()))
    assert (found.status, found.reason) == (Status.OK, "")
    times = dict(found.parts_us)
    assert list(times) == sorted(times)
    assert {"prefetch", "idle", "consumer1 cold", "consumer1 hot", "probe cold", "probe hot"} <= set(times)
    assert all(us > 0 for us in times.values())
    # A replay of half a millisecond, by the 11 times 3 launches that were in it.
    assert times["idle"] == pytest.approx(500 / 33)
    # What was timed is not timed again: another prefetch has new launches of its own alone.
    launches = len(gpu.launched)
    bench.search(job(default(grid=16)))
    again = gpu.launched[launches:]
    count = {name: sum(one.kernel == name for one in again) for name in ("prefetch", "idle", "consumer2")}
    assert count["prefetch"] > count["idle"] == count["consumer2"]


def test_finalists_of_chains_have_parts_too(bench: Any) -> None:
    found = bench.final([job(default()), job(Config.of("none", {}))], 1)
    assert [one.status for one in found] == [Status.OK] * 2
    assert "prefetch" in dict(found[0].parts_us)
    assert "prefetch" not in dict(found[1].parts_us)
    assert dict(found[0].parts_us)["idle"] == dict(found[1].parts_us)["idle"]


@pytest.mark.parametrize(
    ("cold_us", "hot_us", "status"),
    [
        # As fast cold as hot, and slower than memory: the reader waits for something else, and tells nothing.
        (5.0, 5.0, Status.OK),
        (5.0, 5.1, Status.OK),
        (0.3, 0.1, Status.OK),
        # Faster than memory is.
        (0.1, 0.1, Status.INFEASIBLE),
        (0.15, 0.1, Status.INFEASIBLE),
    ],
)
def test_operands_that_come_faster_than_memory_gives_them_are_not_cold(
    bench: Any, monkeypatch: pytest.MonkeyPatch, cold_us: float, hot_us: float, status: Status
) -> None:
    times = {"probe cold": cold_us, "probe hot": hot_us}
    monkeypatch.setattr(bench, "_alone", lambda alone, job: times.get(alone.name, 2.0))
    found = bench.search(job(default()))
    assert found.status is status
    if status is Status.OK:
        # What was seen is kept, and by how much the L2 was flushed.
        assert dict(found.parts_us)["probe cold"] == cold_us
        assert found.flush_bytes == 3 * PREFETCH.rotating_bytes(CHAIN)
    else:
        assert found.reason.startswith("operands are not cold: ")
        assert "from memory takes 0.2" in found.reason


def test_how_fast_memory_is_is_measured_once(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([4e6, 5e6])
    bench._copied = None
    monkeypatch.setattr(bench, "_copy", lambda: next(speeds))
    assert [bench.copy_bytes_a_us() for _ in range(2)] == [4e6, 4e6]
