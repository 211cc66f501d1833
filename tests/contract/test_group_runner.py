"""Runners ``group`` and ``emulated`` over real processes whose ranks need no GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from megatune_db.records import CampaignState
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_tuner.campaign import run_campaign
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.compiling import Built
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.runners.group import EmulatedRunner
from megatune_tuner.runners.group import GroupRunner
from megatune_tuner.runners.group import Limits
from tests.contract.plugin import fake_ranks
from tests.contract.runner_contract import COLD_GRAPH
from tests.contract.runner_contract import RunnerContract

WORLD = 3
LIMITS = Limits(start_s=60.0, prepare_s=3.0, measure_s=2.0)
"""Long enough for a machine whose cores are all busy."""
START_S = 10.0
AGAIN_S = 60.0
"""Within which a new group has to measure after one that hung."""
FAKE = "fake_ranks:FakeRank"
KINDS = {"group": GroupRunner, "emulated": EmulatedRunner}


def request(variant: str, rank: int = 1, tokens: int = 4) -> Request:
    workload = Workload.of("faulty", {"n": 1 << 16}, tokens, world=WORLD)
    return Request(workload, Config.of(variant, {"rank": rank}), COLD_GRAPH, Artifact("key", "sm_90a", "e", b"", 0, 0))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shared(kind: str) -> Iterator[GroupRunner]:
    """Processes start slowly: tests that leave them as they were share them."""
    with KINDS[kind](WORLD, limits=LIMITS, rank_class=FAKE) as made:
        yield made


class TestGroupRunner(RunnerContract):
    failures = (Status.WRONG_RESULT, Status.INFEASIBLE, Status.OUT_OF_MEMORY, Status.CRASH, Status.HANG)

    @pytest.fixture
    def runner(self, kind: str, shared: GroupRunner) -> GroupRunner:
        self.provenance = Provenance.MEASURED if kind == "group" else Provenance.EMULATED
        return shared

    def good(self, runner: Runner) -> list[Request]:
        return [request("good"), request("better"), request("baseline")]

    def failing(self, runner: Runner, status: Status) -> Request:
        variants = {
            Status.WRONG_RESULT: "wrong",
            Status.INFEASIBLE: "infeasible",
            Status.OUT_OF_MEMORY: "memory",
            Status.CRASH: "crash",
            Status.HANG: "hang",
        }
        return request(variants[status])

    def test_closing_twice_is_once(self, runner: Runner) -> None:
        assert isinstance(runner, GroupRunner)
        first, second = runner.measure(request("good")), runner.processes
        runner._end()
        assert first.status is Status.OK
        assert not any(map(is_running, second))


def test_a_sample_is_the_slowest_ranks(shared: GroupRunner) -> None:
    measurement = shared.measure(request("good"))
    slowest = fake_ranks.LAUNCH_US + fake_ranks.A_RANK_US * (WORLD - 1)
    assert measurement.samples_us == (slowest,) * 7
    assert measurement.sm_clock_mhz == 1980 - (WORLD - 1)
    assert measurement.launches_a_sample == fake_ranks.LAUNCHES
    assert shared.facts == {"link_bytes_a_us": 100.0 - (WORLD - 1)}


def test_parts_of_a_chain_are_prepared_on_all_ranks_before_any_launches_them(shared: GroupRunner) -> None:
    slowest = fake_ranks.LAUNCH_US + (WORLD - 1) * fake_ranks.A_RANK_US
    # Whatever ran before, with and without what is known of the parts by then.
    for asked in ("chain", "chain"):
        measured = shared.measure(request(asked))
        assert (measured.status, measured.reason) == (Status.OK, "")
        assert measured.parts_us == (("consumer1", slowest), ("reduction", 2 * slowest))


def test_the_target_is_that_of_the_group(kind: str, shared: GroupRunner) -> None:
    hardware = shared.target.hardware
    assert (hardware.world, hardware.links) == (WORLD, "fake" if kind == "group" else "emulated")


@pytest.mark.parametrize(
    ("variant", "status", "reason"),
    [
        ("wrong", Status.WRONG_RESULT, "rank 1: 3 of 8 outputs differ"),
        ("late", Status.WRONG_RESULT, "rank 1: 3 of 8 outputs differ with other values"),
        ("differ", Status.WRONG_RESULT, "the ranks' outputs differ: rank 0 0, rank 1 -1, rank 2 0"),
        ("infeasible", Status.INFEASIBLE, "rank 1: no room for so many blocks"),
        ("memory", Status.OUT_OF_MEMORY, "rank 1: CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_what_one_rank_finds_all_leave_together(shared: GroupRunner, variant: str, status: Status, reason: str) -> None:
    before = shared.measure(request("good"))
    pids = shared.processes
    measurement = shared.measure(request(variant))
    assert (measurement.status, measurement.reason) == (status, reason)
    assert shared.measure(request("good")).samples_us == before.samples_us
    assert shared.processes == pids


@pytest.mark.parametrize("rank", range(WORLD))
def test_operands_of_all_ranks_are_of_one_age_also_behind_a_job_that_one_could_not_load(
    shared: GroupRunner, rank: int
) -> None:
    # Whether operands that are kept have seen an odd number of changes depends on what ran before.
    for _ in range(2):
        assert shared.measure(request("good")).status is Status.OK
        assert shared.measure(request("infeasible", rank=rank, tokens=8)).status is Status.INFEASIBLE
        measured = shared.measure(request("good"))
        assert (measured.status, measured.reason) == (Status.OK, "")


def recovers(runner: GroupRunner) -> None:
    """A new group measures, soon."""
    began = time.monotonic()
    assert runner.measure(request("good")).status is Status.OK
    assert time.monotonic() - began < AGAIN_S


@pytest.mark.parametrize("kind", ["group"], indirect=True)
@pytest.mark.parametrize(
    ("variant", "status", "reason"),
    [
        ("hang", Status.HANG, "no progress for 2 s: rank 1 stopped in verify, ranks 0 and 2 waited"),
        ("stall", Status.HANG, "no progress for 3 s: rank 1 stopped in prepare, ranks 0 and 2 waited"),
        ("crash", Status.CRASH, "rank 1: killed by signal SIGABRT"),
        ("killed", Status.CRASH, "rank 1: killed by signal SIGKILL"),
        ("illegal", Status.CRASH, "rank 1: CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("abandon", Status.CRASH, "rank 1: CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("disagree", Status.CRASH, "the ranks disagree on what to launch, so nothing was: rank 0 "),
    ],
)
def test_a_group_that_is_lost_costs_one_config(shared: GroupRunner, variant: str, status: Status, reason: str) -> None:
    assert shared.measure(request("good")).status is Status.OK
    pids = shared.processes
    measurement = shared.measure(request(variant))
    assert measurement.status is status
    assert measurement.reason.startswith(reason)
    assert not any(map(is_running, pids))
    recovers(shared)
    assert not set(pids) & set(shared.processes)


@pytest.mark.parametrize("kind", ["emulated"], indirect=True)
def test_ranks_of_one_process_have_phases_of_their_own(shared: GroupRunner) -> None:
    measurement = shared.measure(request("hang"))
    assert measurement.reason == "no progress for 2 s: rank 1 stopped in verify, ranks 0 and 2 waited"
    recovers(shared)


@pytest.mark.parametrize("kind", ["group"], indirect=True)
def test_a_process_that_is_killed_between_measurements_costs_nothing(shared: GroupRunner) -> None:
    assert shared.measure(request("good")).status is Status.OK
    os.kill(shared.processes[2], signal.SIGKILL)
    time.sleep(0.2)
    recovers(shared)


@pytest.mark.parametrize("kind", ["group"], indirect=True)
def test_a_process_that_is_still_dying_costs_nothing_either(shared: GroupRunner) -> None:
    assert shared.measure(request("good")).status is Status.OK
    # It takes the signal only once it runs again: until then it looks alive, and what it is sent is never answered.
    os.kill(shared.processes[2], signal.SIGSTOP)
    time.sleep(0.2)
    os.kill(shared.processes[2], signal.SIGTERM)
    threading.Timer(0.5, os.kill, (shared.processes[2], signal.SIGCONT)).start()
    recovers(shared)


@pytest.mark.parametrize("kind", ["group"], indirect=True)
def test_a_rank_that_takes_no_message_is_a_hang(shared: GroupRunner) -> None:
    assert shared.measure(request("good")).status is Status.OK
    os.kill(shared.processes[0], signal.SIGSTOP)
    measurement = shared.measure(request("good"))
    assert measurement.reason == "no progress for 2 s: rank 0 stopped in idle, ranks 1 and 2 waited"
    recovers(shared)


def test_finalists_are_stressed_and_those_that_fail_leave_the_others_in(shared: GroupRunner) -> None:
    found = shared.finalists([request("good"), request("wrong"), request("late"), request("better")])
    assert [one.status for one in found] == [Status.OK, Status.WRONG_RESULT, Status.WRONG_RESULT, Status.OK]
    assert [len(one.samples_us) for one in found] == [31, 0, 0, 31]


@pytest.mark.parametrize("kind", ["group"], indirect=True)
@pytest.mark.parametrize(("variant", "status"), [("hang", Status.HANG), ("abandon", Status.CRASH)])
def test_a_finalist_that_ends_the_group_leaves_the_others_in(shared: GroupRunner, variant: str, status: Status) -> None:
    found = shared.finalists([request("good"), request(variant), request("better")])
    assert [one.status for one in found] == [Status.OK, status, Status.OK]
    assert len({one.session for one in found}) == 1
    assert {one.stage for one in found} == {Stage.FINAL}


def test_stress_says_how_many_launches_it_took(shared: GroupRunner) -> None:
    outcome = shared.stress(request("good"), 20)
    assert (outcome.status, outcome.launches) == (Status.OK, fake_ranks.LAUNCHES)
    assert shared.stress(request("late"), 20).status is Status.WRONG_RESULT


class Builder:
    """Artifacts without code."""

    processes = 1

    def submit(self, operator: Operator, workload: Workload, config: Config) -> Future[Built]:
        future: Future[Built] = Future()
        future.set_result(Built(Artifact(config.digest, "sm_90a", "e", b"", 0, 0), Status.OK, "", 0.1))
        return future


@pytest.mark.parametrize("kind", ["group"], indirect=True)
def test_a_campaign_goes_on_whatever_ranks_do(shared: GroupRunner, tmp_path: Path) -> None:
    text = f"""
name = "faults"
tokens = [1]
variants = ["good", "wrong", "crash", "hang"]
[[shapes]]
operator = "faulty_sum"
n = 4096
world = {WORLD}
[budget]
trials = 8
[runner]
kind = "group"
"""
    with open_database(tmp_path / "db.sqlite") as database:
        summary = run_campaign(parse_campaign(text), shared, database, builder=Builder())
    # Each variant has two configs; beside them the baseline, and the finals of the good ones and the baseline.
    assert summary.statuses == {Status.OK: 6, Status.WRONG_RESULT: 2, Status.CRASH: 2, Status.HANG: 2}
    assert (summary.state, summary.measured, summary.finals) == (CampaignState.FINISHED, 9, 3)


COORDINATOR = """
import sys
from megatune_tuner.runners.group import GroupRunner
from tests.contract.test_group_runner import FAKE, WORLD, request
runner = GroupRunner(WORLD, rank_class=FAKE)
print(*runner.processes, flush=True)
runner.measure(request(sys.argv[1]))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("variant", ["stall", "hang"])
def test_an_interrupted_coordinator_leaves_no_process(variant: str, how: signal.Signals) -> None:
    command = [sys.executable, "-c", COORDINATOR, variant]
    # Tests that run in the background of a shell ignore the interrupt, and what they start would too.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as coordinator:
        assert coordinator.stdout is not None
        ranks = [int(pid) for pid in coordinator.stdout.readline().split()]
        assert len(ranks) == WORLD
        time.sleep(0.5)
        assert all(map(is_running, ranks))
        coordinator.send_signal(how)
        coordinator.wait(20)
    until = time.monotonic() + 10
    while any(map(is_running, ranks)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_running, ranks))


@pytest.fixture
def starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Says how a rank starts next."""
    path = tmp_path / "starting"
    monkeypatch.setenv(fake_ranks.STARTING, str(path))
    return path.write_text  # type: ignore[return-value]


@pytest.mark.parametrize("word", ["sleep", "abort", "refuse"])
def test_a_rank_that_does_not_start_again_ends_no_campaign(starting: Callable[[str], None], word: str) -> None:
    with GroupRunner(WORLD, limits=replace(LIMITS, start_s=START_S), rank_class=FAKE) as runner:
        assert runner.measure(request("crash")).status is Status.CRASH
        starting(f"{word} 2")
        recovers(runner)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "sleep",
            "cannot start a group of 3: no progress for 10 s: rank 2 stopped in start, ranks 0 and 1 waited",
        ),
        ("abort", "cannot start a group of 3: rank 2: killed by signal SIGABRT"),
        ("refuse", "cannot start a group of 3: rank 2: too little memory is free; see megatune doctor"),
    ],
)
def test_a_group_that_never_starts_is_one_line(starting: Callable[[str], None], word: str, message: str) -> None:
    starting(f"{word} 2")
    with pytest.raises(MegatuneError) as caught:
        GroupRunner(WORLD, limits=replace(LIMITS, start_s=START_S), rank_class=FAKE)
    assert str(caught.value).startswith(message)
