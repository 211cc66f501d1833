"""The ``megatune`` command: help, exit codes, and one line for everything that goes wrong."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from megatune_dashboard import bench as bench_module
from megatune_dashboard.command import app
from megatune_db.errors import DatabaseLockedError
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.figures import Benchmark
from megatune_kernels.figures import Figure
from megatune_kernels.figures import benchmarks


def commands() -> Iterator[tuple[str, ...]]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, (*path, name))

    return walk(typer.main.get_command(app), ())


def run(*arguments: str, **environment: str) -> Any:
    return CliRunner(env={"COLUMNS": "200", **environment}).invoke(app, arguments, prog_name="megatune")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes ``megatune bench`` raise."""

    def make(error: BaseException) -> None:
        def fail() -> None:
            raise error

        monkeypatch.setattr(bench_module, "benchmarks", fail)

    return make


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_has_help_and_an_example(path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    help_text, _, example = result.stdout.partition("Example")
    assert f"megatune {' '.join(path)}".strip() in example
    assert len(help_text.splitlines()) > 4


def test_the_commands_are_those_of_every_folder() -> None:
    assert {path[0] for path in commands() if path} >= {
        "quickstart",
        "run",
        "record",
        "status",
        "plan",
        "show",
        "export",
        "bench",
        "doctor",
        "db",
    }


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("megatune 0.")


def test_help_is_fast_enough_to_be_asked_for() -> None:
    code = (
        "import time; begin = time.perf_counter(); import megatune_dashboard.command; "
        "print(time.perf_counter() - begin)"
    )
    seconds = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)]
    assert min(seconds) < 1.5


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MegatuneError("no such thing; allowed: this"), 2, "megatune: no such thing; allowed: this"),
        (NothingMeasured("nothing was measured"), 3, "megatune: nothing was measured"),
        (DatabaseLockedError("another process writes"), 2, "megatune: another process writes"),
        (KeyboardInterrupt(), 130, "megatune: interrupted; what was measured is kept"),
        (OSError(errno.ENOSPC, "No space left"), 2, "megatune: the disk is full: free some space and run again"),
        (
            OSError(errno.ENOSPC, "No space left", "a.db"),
            2,
            "megatune: the disk is full: free some space for a.db and run again",
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "a.parquet"),
            2,
            "megatune: a.parquet cannot be used (Read-only file system): name another place, or get the permission",
        ),
    ],
)
def test_what_a_user_can_mend_is_one_line(broken: Any, error: BaseException, code: int, message: str) -> None:
    broken(error)
    result = run("bench")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", message + "\n")


@pytest.mark.parametrize("error", [KeyError("x"), OSError(errno.EIO, "Input/output error")])
def test_a_fault_is_one_line_that_says_how_to_report_it(broken: Any, error: Exception) -> None:
    broken(error)
    result = run("bench")
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert type(error).__name__ in line
    assert "megatune --debug" in line


@pytest.mark.parametrize("way", [{"arguments": ["--debug"]}, {"environment": {"MEGATUNE_DEBUG": "1"}}])
def test_a_fault_shows_its_traceback_when_asked_to(broken: Any, way: dict[str, Any]) -> None:
    broken(KeyError("x"))
    result = run(*way.get("arguments", []), "bench", **way.get("environment", {}))
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "in fail" in result.stderr


def test_bad_usage_is_bad_input() -> None:
    assert run("bench", "--no-such-option").exit_code == 2
    assert run("no-such-command").exit_code == 2


def test_an_unknown_benchmark_gets_the_list() -> None:
    result = run("bench", "no-such-benchmark")
    assert result.exit_code == 2
    assert f"allowed: {', '.join(sorted(benchmarks()))}" in result.stderr


def test_benchmarks_are_listed() -> None:
    result = run("bench", "--json")
    names = [one["name"] for one in json.loads(result.stdout)["benchmarks"]]
    assert names == sorted(names)
    assert {"dashboard", "planner", "prefetch", "projection", "reduction", "router", "search", "vllm"} <= set(names)
    assert "planner" in run("bench").stdout


def test_a_benchmark_prints_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = [
        Figure("gain", 1.5, "ratio", ">= 1.25", True, "replayed", "geometric mean [of 3]"),
        Figure("overlap", None, "us", "", None, "measured", "needs a GPU"),
    ]
    monkeypatch.setattr(bench_module, "benchmark", lambda name: Benchmark(name, "what", lambda: figures))
    report = json.loads(run("bench", "toy", "--json").stdout)
    assert report["name"] == "toy"
    assert report["figures"][0] == {
        "figure": "gain",
        "value": 1.5,
        "unit": "ratio",
        "goal": ">= 1.25",
        "met": True,
        "provenance": "replayed",
        "how": "geometric mean [of 3]",
    }
    assert report["figures"][1]["value"] is None
    table = run("bench", "toy").stdout
    assert "1.5 ratio" in table
    assert "[of 3]" in table
