"""Parts of vLLM's overlay on their own: agreement over a real store, the watch for imports, and the facts of a GPU."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.abc import Loader
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace
from typing import Any

import pytest

from megatune_planner.exporters.vllm_overlay import driver
from megatune_planner.exporters.vllm_overlay import imports
from megatune_planner.exporters.vllm_overlay import overlay
from megatune_planner.exporters.vllm_overlay import serving
from megatune_planner.exporters.vllm_overlay.agreement import Meeting
from megatune_planner.exporters.vllm_overlay.imports import after_import
from megatune_planner.exporters.vllm_overlay.tables import Differs

WORLD = 4


def asked(statements: dict[int, tuple[str, str]], wait_s: float = 60.0) -> dict[int, str]:
    """What each rank is answered, all of them asking at once over torch's own store, each with a connection of its own.

    :param statements: by rank, what it states and its problem; a rank that is left out has no plan.
    """
    torch = importlib.import_module("torch.distributed")
    timeout = timedelta(seconds=30)
    server = torch.TCPStore("127.0.0.1", 0, None, True, timeout, wait_for_workers=False)
    answers: dict[int, str] = {}

    def ask(rank: int, statement: str, problem: str) -> None:
        store = torch.TCPStore("127.0.0.1", server.port, None, False, timeout, wait_for_workers=False)
        meeting = Meeting(torch.PrefixStore("default_pg", store), "tables", range(WORLD), rank)
        meeting.wait_s = wait_s
        try:
            assert meeting.gather(f"I am {rank}") == [f"I am {each}" for each in range(WORLD)]
        except Differs as error:
            problem = str(error)
        answers[rank] = meeting.agree(statement, problem)

    threads = [threading.Thread(target=ask, args=(rank, *each)) for rank, each in statements.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.mark.torch
def test_ranks_that_state_the_same_agree() -> None:
    assert asked(dict.fromkeys(range(WORLD), ("plan a", ""))) == dict.fromkeys(range(WORLD), "")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ({2: ("plan b", "")}, "rank 0 has plan a, rank 2 plan b"),
        ({1: ("plan a", "another driver")}, "rank 1: another driver"),
        ({0: ("plan b", "")}, "rank 0 has plan b, rank 1 plan a"),
    ],
)
def test_one_odd_rank_stops_all_of_them_alike(odd: dict[int, tuple[str, str]], says: str) -> None:
    found = asked(dict.fromkeys(range(WORLD), ("plan a", "")) | odd)
    assert found == dict.fromkeys(range(WORLD), says)


@pytest.mark.torch
def test_a_rank_without_a_plan_stops_the_others_and_hangs_none() -> None:
    found = asked(dict.fromkeys((0, 1, 3), ("plan a", "")), wait_s=0.4)
    (says,) = set(found.values())
    assert says.endswith("rank 2 has no such plan, or was too late")
    assert set(found) == {0, 1, 3}


@pytest.mark.torch
def test_a_rank_that_is_late_does_as_the_others_did() -> None:
    """They gave up on it: it may not change its tables alone, though it finds that all state the same."""
    torch = importlib.import_module("torch.distributed")
    store = torch.HashStore()
    early, late = (Meeting(store, "tables", (0, 1), rank) for rank in (0, 1))
    early.wait_s = 0.2
    with pytest.raises(Differs, match="rank 1 has no such plan") as error:
        early.gather("rank 0")
    said = early.agree("plan a", str(error.value))
    assert said == "rank 0: rank 1 has no such plan, or was too late"
    assert late.gather("rank 1") == ["rank 0", "rank 1"]
    assert late.agree("plan a", "") == said


@pytest.mark.torch
def test_a_rank_whose_store_fails_changes_as_the_others_do() -> None:
    """Wherever in the exchange its connection breaks: real processes, and torch's own store between them."""
    world, soon, long = 3, 1.0, 120.0
    torch = importlib.import_module("torch.distributed")
    server = torch.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False)
    rounds: list[dict[str, Any]] = [
        {"breaks": None, "wait_s": long},
        # The sixteenth call, or a later one where it waits, says that it knows: up to there nobody keeps anything.
        *({"breaks": call, "wait_s": soon} for call in range(1, 17)),
        {"breaks": "table", "wait_s": long},
        {"breaks": "here", "wait_s": soon},
        {"breaks": "made", "wait_s": soon},
        {"breaks": "known", "wait_s": long},
    ]

    def run(rank: int) -> list[dict[str, bool]]:
        result = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("agreement_process.py"))],
            input=json.dumps({"rank": rank, "world": world, "port": server.port, "rounds": rounds}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        answers: list[dict[str, bool]] = json.loads(result.stdout)
        return answers

    with ThreadPoolExecutor(world) as pool:
        said = list(pool.map(run, range(world)))
    for round_, answers in zip(rounds, zip(*said, strict=True), strict=True):
        assert len({answer["kept"] for answer in answers}) == 1, (round_, answers)
        assert all(answer["kept"] == answer["applied"] for answer in answers)
    kept = {str(round_["breaks"]): answers["kept"] for round_, answers in zip(rounds, said[0], strict=True)}
    # Once all have made their change and one has said that it knows, a lost connection leaves nobody behind.
    assert kept["None"]
    assert kept["known"]
    assert not any(kept[each] for each in kept if each not in ("None", "known"))


@pytest.mark.parametrize(
    ("device_s", "cpu_s", "asked", "wait_s"),
    [
        (None, None, None, 300.0),
        (None, None, "1000", 300.0),
        (None, None, "20", 20.0),
        (60, None, None, 30.0),
        (3600, 40, "1000", 20.0),
    ],
)
def test_no_rank_waits_as_long_as_a_collective(
    monkeypatch: pytest.MonkeyPatch, device_s: int | None, cpu_s: int | None, asked: str | None, wait_s: float
) -> None:
    """A rank without the plan is in its next collective already, and stops the engine when that is over."""
    parallel = SimpleNamespace(distributed_timeout_seconds=device_s, cpu_distributed_timeout_seconds=cpu_s)
    if asked is None:
        monkeypatch.delenv(serving.WAIT, raising=False)
    else:
        monkeypatch.setenv(serving.WAIT, asked)
    assert serving.wait_s(SimpleNamespace(parallel_config=parallel)) == wait_s


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "watched_by_a_test"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "inner.py").write_text("value = 1\n")
    (tmp_path / name / "broken.py").write_text("raise ValueError('its own fault')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(imports, "_WATCHER", imports._Watcher())
    yield name
    for each in [each for each in sys.modules if each.startswith(name)]:
        del sys.modules[each]


def test_a_module_is_seen_when_somebody_imports_it(package: str) -> None:
    seen: list[ModuleType] = []
    after_import(f"{package}.inner", seen.append)
    assert package not in sys.modules
    module = importlib.import_module(f"{package}.inner")
    assert seen == [module]
    assert (module.value, module.__spec__ is not None) == (1, True)
    importlib.import_module(f"{package}.inner")
    assert len(seen) == 1
    after_import(f"{package}.inner", seen.append)
    assert seen == [module, module]


def test_a_module_that_cannot_be_imported_fails_as_it_would(package: str) -> None:
    seen: list[ModuleType] = []
    for name in ("broken", "missing"):
        after_import(f"{package}.{name}", seen.append)
    with pytest.raises(ValueError, match="its own fault"):
        importlib.import_module(f"{package}.broken")
    with pytest.raises(ModuleNotFoundError, match="missing"):
        importlib.import_module(f"{package}.missing")
    assert seen == []


class Shared(MetaPathFinder, Loader):
    """Finds every module of a package, and loads all of them itself; or with a loader that takes no other method."""

    def __init__(self, package: str, *, closed: bool) -> None:
        self.package, self.closed = package, closed

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith(self.package):
            return None
        return ModuleSpec(fullname, Closed() if self.closed else self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["value"] = 1


class Closed:
    __slots__ = ()

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["value"] = 1


@pytest.mark.parametrize("closed", [False, True])
def test_loaders_of_other_kinds(
    package: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, closed: bool
) -> None:
    """One that loads other modules too tells of the one alone; one that cannot be changed loads it all the same."""
    monkeypatch.setattr(sys, "meta_path", [Shared(package, closed=closed), *sys.meta_path])
    seen: list[str] = []
    after_import(f"{package}.inner", lambda module: seen.append(module.__name__))
    importlib.import_module(f"{package}.inner")
    assert importlib.import_module(f"{package}.inner.other").value == 1
    assert seen == ([] if closed else [f"{package}.inner"])
    assert [f"{package}.inner is loaded unseen" in line for line in caplog.messages] == ([True] if closed else [])


@pytest.mark.torch
def test_a_rank_that_did_not_come_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own patience with its start is no longer than two such waits."""
    store = importlib.import_module("torch.distributed").HashStore()
    owner = overlay.Overlay.__new__(overlay.Overlay)
    owner.digest, owner.version, owner.outcome, owner.missing = "a plan", "1", {}, ""
    waits = iter((0.2, 3600.0))
    monkeypatch.setattr(serving, "meeting", lambda name: Meeting(store, name, (0, 1), 0))
    monkeypatch.setattr(serving, "current_config", lambda: None)
    monkeypatch.setattr(serving, "wait_s", lambda config: next(waits))
    monkeypatch.setattr(serving, "whereabouts", lambda: "here")
    says = "changed nothing: rank 0: rank 1 has no such plan, or was too late"
    for name in ("first", "second"):
        group = overlay.Group(owner, [])
        group.name = name
        group.apply()
    assert owner.outcome == {"first": says, "second": says}
    # A rank that comes after all is told so in both.
    for name in ("first", "second"):
        assert f"changed nothing: {Meeting(store, name, (0, 1), 1).agree('a statement', '')}" == says


def test_links_lead_to_a_peer_or_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two links lead to the GPU of bus 1, one to a switch, one to where nobody may know; the fifth is down."""
    leads = {0: (0, 1), 1: (0, 1), 2: (2, None), 3: (0, None), 4: None}

    class Nvml:
        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any) -> int:
                if name.startswith("nvmlDeviceGetNvLink"):
                    _, number, answer = arguments
                    link = leads.get(number.value)
                    if number.value not in leads:
                        return 2
                    if name == "nvmlDeviceGetNvLinkState":
                        answer._obj.value = link is not None
                    elif link is not None and name == "nvmlDeviceGetNvLinkRemoteDeviceType":
                        answer._obj.value = link[0]
                    elif link is not None:
                        answer._obj.bus = link[1] or 0
                        return 0 if link[1] else 3
                return 0

            return call

    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: Nvml())
    assert driver.links_to("uuid", [(0, 1, 0)]) == 4
    assert driver.links_to("uuid", [(0, 2, 0)]) == 2
    assert driver.links_to("uuid", [(0, 1, 0), (0, 2, 0)]) == 2


@pytest.mark.gpu
@pytest.mark.torch
def test_the_facts_of_a_gpu_are_those_of_a_measurement() -> None:
    """A plan's gate compares what serves with what measured: both must ask the GPU alike."""
    from megatune_tuner.workers.gpu_device import GpuDevice

    measured: dict[str, Any] = GpuDevice(0).target().to_dict()
    found = serving.target("none")
    assert found["toolchain"] == measured["toolchain"]
    assert found["hardware"] == {name: value for name, value in measured["hardware"].items() if name != "world"}


@pytest.mark.multi_gpu
@pytest.mark.torch
def test_links_are_counted_as_a_measurement_counts_them() -> None:
    """A plan's rule names what the ranks were measured over, e.g. ``nvlink-18``."""
    from megatune_tuner.workers.gpu_device import GpuDevice

    torch = importlib.import_module("torch")
    here, peer = GpuDevice(0), GpuDevice(1)
    uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in (0, 1)]
    found = driver.links_to(uuids[0], [driver.gpu(uuids[1]).place])
    assert found == here.links_to(peer.device.pci_bus_id)
