"""``megatune doctor`` on machines that lack things, by stand-ins for what the driver brings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from megatune_dashboard.command import app
from megatune_db.session import open_database
from megatune_tuner import doctor
from megatune_tuner.doctor import Report
from megatune_tuner.doctor import State
from megatune_tuner.doctor import examine

H200 = {"capability": "9.0", "memory_bytes": 150 * 10**9, "sms": 132, "l2_bytes": 60 * 2**20}

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Sets what the driver's interface and its tool answer; None for either: it is not there."""

    def make(probed: list[dict[str, Any]] | str | None, listed: str | None, topology: str = "") -> None:
        asked = doctor._run

        def run(command: Any) -> tuple[str, str | None]:
            if command[0] == "nvidia-smi":
                return asked(command)
            if "-c" in command:  # imports of the DSL and of torch, which take seconds
                return "13.0", None
            if isinstance(probed, list):
                gpus = [{"index": i, "name": "NVIDIA H200", **gpu} for i, gpu in enumerate(probed)]
                return json.dumps({"cuda": "13.0", "gpus": gpus}), None
            return "", probed or "No module named 'cuda'"

        monkeypatch.setattr(doctor, "_run", run)
        monkeypatch.setenv("PATH", str(tmp_path))
        if listed is not None:
            tool = tmp_path / "nvidia-smi"
            answer = {"listed": listed, "topology": topology}
            tool.write_text(
                f"#!{sys.executable}\nimport sys\nanswer = {answer!r}\n"
                "text = answer['topology' if sys.argv[1] == 'topo' else 'listed']\n"
                "sys.exit(text) if 'fail' in text else print(text)\n"
            )
            tool.chmod(0o755)

    return make


def state(report: Report, subject: str) -> State:
    (found,) = [finding for finding in report.findings if finding.subject == subject]
    assert found.state is State.OK or found.remedy or subject == "database"  # whose detail says what to do
    return found.state


def detail(report: Report, subject: str) -> str:
    return next(finding.detail for finding in report.findings if finding.subject == subject)


def test_a_machine_without_a_driver(machine: Machine) -> None:
    machine(None, None)
    report = examine()
    assert state(report, "gpu") is State.MISSING
    assert "no NVIDIA driver" in detail(report, "gpu")
    assert not report.can_measure
    assert report.driver is None


def test_a_machine_with_two_gpus(machine: Machine) -> None:
    rows = "0, NVIDIA H200, 9.0, 143771, 580.95.05\n1, NVIDIA H200, 9.0, 143771, 580.95.05"
    machine([H200, H200], rows, "\x1b[4m\tGPU0\tGPU1\x1b[0m\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n\nLegend:\n")
    report = examine()
    assert [gpu.sms for gpu in report.gpus] == [132, 132]
    assert (report.driver, report.cuda) == ("580.95.05", "13.0")
    assert state(report, "gpu 1") is State.OK
    assert detail(report, "gpu 1") == "NVIDIA H200, 140 GiB, 132 SMs, 60 MiB of L2, sm_90a"
    assert [line.split() for line in report.links] == [
        ["GPU0", "GPU1"],
        ["GPU0", "X", "NV18"],
        ["GPU1", "NV18", "X"],
    ]


def test_gpus_that_reach_one_another_can_be_measured_together(machine: Machine) -> None:
    linked = [{**H200, "nvlinks": 18, "peers": [1 - index]} for index in (0, 1)]
    machine(linked, None)
    report = examine()
    assert state(report, "group") is State.OK
    assert detail(report, "group") == "2 GPUs reach one another's memory, 18 NVLinks each"
    assert json.loads(json.dumps(report.to_dict()))["gpus"][0]["peers"] == [1]

    machine(linked[:1], None)
    assert not [finding for finding in examine().findings if finding.subject == "group"]


def test_gpus_that_do_not_reach_one_another_are_named(machine: Machine) -> None:
    machine([{**H200, "nvlinks": 0, "peers": peers} for peers in ([1], [], [0, 1])], None)
    report = examine()
    assert state(report, "group") is State.BROKEN
    assert detail(report, "group") == ("GPU 0 cannot reach the memory of GPU 2 (and 2 more pairs), 0 NVLinks each")

    machine(None, "0, NVIDIA H200, 9.0, 143771, 580.95.05\n1, NVIDIA H200, 9.0, 143771, 580.95.05")
    assert state(examine(), "group") is State.MISSING


def test_one_gpu_that_works_is_enough(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine([{**H200, "memory_bytes": None}, H200], None)
    monkeypatch.setattr(doctor, "_version", lambda distribution: "1.0")
    assert [state(examine(), f"gpu {index}") for index in (0, 1)] == [State.BROKEN, State.OK]
    assert examine().can_measure


def test_a_driver_without_the_gpu_extra(machine: Machine) -> None:
    machine(None, "0, NVIDIA H200, 9.0, 143771, 580.95.05")
    report = examine()
    assert state(report, "gpu 0") is State.OK
    assert report.gpus[0].sms is None


@pytest.mark.parametrize("memory", ["[N/A]", "[Not Supported]", "[Unknown Error]"])
def test_a_gpu_whose_memory_cannot_be_read(machine: Machine, memory: str) -> None:
    machine("the driver does not start: CUDA_ERROR_UNKNOWN", f"0, NVIDIA H200, 9.0, {memory}, 580.95.05")
    report = examine()
    assert state(report, "gpu 0") is State.BROKEN
    assert "its memory cannot be read" in detail(report, "gpu 0")
    assert not report.can_measure


def test_a_tool_that_fails(machine: Machine) -> None:
    machine("the driver does not start: CUDA_ERROR_UNKNOWN", "fail: couldn't communicate with the NVIDIA driver.")
    report = examine()
    assert state(report, "gpu") is State.MISSING
    assert "couldn't communicate with the NVIDIA driver" in detail(report, "gpu")


def test_a_tool_that_answers_with_something_else(machine: Machine) -> None:
    machine(None, "No devices were found")
    assert "No devices were found" in detail(examine(), "gpu")


def test_gpus_that_are_hidden(machine: Machine) -> None:
    machine([], "0, NVIDIA H200, 9.0, 143771, 580.95.05")
    assert "CUDA_VISIBLE_DEVICES" in detail(examine(), "gpu")


def test_a_gpu_that_no_kernel_is_built_for(machine: Machine) -> None:
    machine([{**H200, "capability": "8.0"}], None)
    report = examine()
    assert state(report, "gpu 0") is State.MISSING
    assert "8.0" in detail(report, "gpu 0")


def test_topology_that_cannot_be_read(machine: Machine) -> None:
    machine([H200, H200], "0, NVIDIA H200, 9.0, 143771, 580.95.05", "fail: topology")
    assert examine().links == ("unknown: fail: topology",)


def test_a_question_that_is_never_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.2)
    assert doctor._run([sys.executable, "-c", "import time; time.sleep(60)"]) == ("", "no answer within 0 s")


def test_packages_that_are_not_installed(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    machine([H200], None)
    monkeypatch.setattr(doctor, "_version", lambda distribution: None)
    report = examine()
    for subject in ("launching", "compiling", "torch"):
        assert state(report, subject) is State.MISSING
        assert any(f.remedy == "pip install 'megatune[gpu]'" for f in report.findings if f.subject == subject)


def test_packages_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda distribution: "1.0")
    monkeypatch.setattr(doctor, "_run", lambda command: ("", "ImportError: libcudart.so: no such file"))
    report = examine()
    for subject in ("compiling", "torch"):
        assert state(report, subject) is State.BROKEN
        assert "libcudart.so" in detail(report, subject)


def test_torch_for_the_cpu_alone_is_no_baseline_on_a_gpu(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    machine([H200], None)
    asked = doctor._run
    monkeypatch.setattr(doctor, "_version", lambda distribution: "1.0")
    monkeypatch.setattr(doctor, "_run", lambda command: ("\n", None) if "-c" in command else asked(command))
    assert state(examine(), "torch") is State.BROKEN
    assert "CPU alone" in detail(examine(), "torch")


def test_a_disk_that_is_nearly_full(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    machine(None, None)
    monkeypatch.setattr(doctor, "FREE_BYTES", 2**80)
    assert state(examine(), "disk") is State.BROKEN


def test_databases(machine: Machine, tmp_path: Path) -> None:
    machine(None, None)
    path = tmp_path / "tuned.db"
    assert state(examine(path), "database") is State.MISSING
    open_database(path).close()
    assert state(examine(path), "database") is State.OK
    path.write_bytes(b"no database" * 1000)
    assert state(examine(path), "database") is State.BROKEN


def test_the_command_prints_tables_and_json(machine: Machine) -> None:
    machine([H200], "0, NVIDIA H200, 9.0, 143771, 580.95.05")
    runner = CliRunner(env={"COLUMNS": "200"})
    table = runner.invoke(app, ["doctor"])
    assert table.exit_code == 0
    assert "NVIDIA driver 580.95.05, CUDA up to 13.0" in table.stdout
    report = json.loads(runner.invoke(app, ["doctor", "--json"]).stdout)
    assert report["gpus"][0]["sms"] == 132
    assert {"can_measure", "findings", "driver", "cuda", "links"} <= report.keys()


@pytest.mark.skipif(doctor._version("nvidia-cutlass-dsl") is None, reason="needs nvidia-cutlass-dsl")
def test_the_dsl_is_imported_in_a_process_of_its_own() -> None:
    assert doctor._compiling().state is State.OK


def test_the_probe_is_one_line_or_json_on_this_machine() -> None:
    output, trouble = doctor._run([sys.executable, "-m", "megatune_tuner.gpu_probe"])
    assert trouble or json.loads(output)["gpus"] is not None
    assert os.linesep not in (trouble or "")
