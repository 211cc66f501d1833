from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_examples import CUBLAS
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import example_cases
from plan_examples import fill
from plan_examples import simt
from typer.testing import CliRunner

from megatune_db import queries
from megatune_db.errors import DatabaseError
from megatune_db.records import PlanState
from megatune_db.records import Provenance
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_planner.commands import app
from megatune_planner.plan import Plan

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command in an empty directory and returns its output; what a user can mend is raised."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEGATUNE_DB", raising=False)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def measured(path: Path, cases: list[Case] | None = None, **rest: Any) -> None:
    with open_database(path) as database, database.session() as session:
        fill(session, example_cases() if cases is None else cases, **rest)


def test_plan_show_export(run: Run, tmp_path: Path) -> None:
    measured(tmp_path / "megatune.db")
    printed = run("plan", "--name", "kimi")
    assert "written to kimi.json" in printed
    plan = Plan.load(tmp_path / "kimi.json")
    assert {curve.kind for shape in plan.operator("projection").shapes for curve in shape.curves} == {
        "baseline",
        "variant",
        "exporter",
    }
    with open_database("megatune.db") as database, database.session() as session:
        (row,) = queries.plans(session)
    assert (row.digest, row.name, row.state, row.content) == (plan.digest, "kimi", PlanState.DRAFT, plan.to_json())

    shown = run("show", "kimi.json")
    for part in (plan.digest, "NVIDIA H200", "k=7168,n=1536", "simt", "mma", "crossover", "otherwise"):
        assert part in shown
    assert run("show", "kimi") == run("show", plan.digest) == shown
    assert run("show", "kimi", "--json") == plan.to_json()

    run("approve", "kimi.json")
    assert run("export", "kimi.json", "--to", "json", "--out", "out").split() == [
        str(Path("out") / "plan.json"),
        str(Path("out") / "megatune_reader.py"),
    ]
    assert Plan.load(tmp_path / "out" / "plan.json") == plan
    exported = json.loads(run("export", "kimi", "--to", "vllm-low-latency-table", "--out", "out", "--json"))
    assert exported["state"] == "exported"
    assert exported["plan"] == plan.digest
    assert all(Path(file).exists() for file in exported["files"])


def test_the_plan_as_json_for_programs(run: Run, tmp_path: Path) -> None:
    measured(tmp_path / "tuned.db")
    found = json.loads(run("plan", "--db", "tuned.db", "--out", "deep/p.json", "--json"))
    assert found["file"] == str(Path("deep") / "p.json")
    assert found["digest"] == Plan.load(tmp_path / "deep" / "p.json").digest
    assert found["coverage"]["measurements"] == {"measured": 35}
    assert [shape["bands"] for shape in found["shapes"]] == [3, 3]


def test_the_database_can_come_from_the_environment(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(tmp_path / "elsewhere.db")
    monkeypatch.setenv("MEGATUNE_DB", str(tmp_path / "elsewhere.db"))
    assert "elsewhere.db" in run("plan")


def test_planning_again_gives_the_same_plan(run: Run, tmp_path: Path) -> None:
    measured(tmp_path / "megatune.db")
    assert json.loads(run("plan", "--json"))["digest"] == json.loads(run("plan", "--json"))["digest"]
    with open_database("megatune.db") as database, database.session() as session:
        assert len(queries.plans(session)) == 1


def test_options_reach_the_plan(run: Run, tmp_path: Path) -> None:
    measured(tmp_path / "megatune.db")
    run("plan", "--name", "first")
    options = ("--min-gain", "0.2", "--config-cost-us", "0.5", "--traffic", "1:5,8:2.5", "--provenance", "measured")
    run("plan", "--name", "p", "--operator", "projection", "--incumbent", "first.json", *options)
    made = Plan.load(tmp_path / "p.json").content.options
    assert (made.min_gain, made.config_cost_us, made.traffic) == (0.2, 0.5, {"1": 5.0, "8": 2.5})
    assert made.provenances == (Provenance.MEASURED,)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("plan", "--regime", "tepid"), "no such regime: 'tepid'; allowed: cold-graph"),
        (("plan", "--provenance", "predicted"), "'predicted' is no evidence; allowed: measured"),
        (("plan", "--traffic", "1=2"), "not '1=2'"),
        (("plan", "--traffic", "0:1"), "at least 1"),
        (("plan", "--min-gain", "2"), "least gain"),
        (("plan", "--target", "nowhere"), "no target 'nowhere'; the database has"),
        (("plan", "--operator", "magic"), "unknown operator 'magic'"),
        (("plan", "--incumbent", "magic"), "no file magic"),
        (("show", "missing.json"), "cannot read the plan missing.json"),
        (("show", "missing"), "no file missing, and no plan of that name or digest; there are none"),
        (("export", "missing", "--to", "magic", "--out", "out"), "unknown exporter 'magic'; allowed: flash"),
    ],
)
def test_bad_input_is_one_line(run: Run, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    measured(tmp_path / "megatune.db")
    with pytest.raises(MegatuneError) as raised:
        run(*arguments)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2
    assert not (tmp_path / "plan.json").exists()
    assert not (tmp_path / "out").exists()


def test_without_a_database_there_is_a_reason(run: Run) -> None:
    with pytest.raises(DatabaseError, match=r"megatune\.db"):
        run("plan")
    with pytest.raises(MegatuneError, match=r"no database megatune\.db"):
        run("show", "kimi")


@pytest.mark.parametrize(
    "cases", [[], [Case(Workload.of("projection", {"n": 1536, "k": 7168}, 4), CUBLAS, 10.0)]], ids=["empty", "no gain"]
)
def test_nothing_to_ship_exits_with_three_and_writes_nothing(run: Run, tmp_path: Path, cases: list[Case]) -> None:
    measured(tmp_path / "megatune.db", cases)
    with pytest.raises(MegatuneError) as raised:
        run("plan")
    assert raised.value.exit_code == 3
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".json"] == []


def test_several_targets_need_a_choice(run: Run, tmp_path: Path) -> None:
    other = replace(TARGET, hardware=replace(TARGET.hardware, gpu="NVIDIA B300", arch="sm_103a"))
    measured(tmp_path / "megatune.db")
    measured(tmp_path / "megatune.db", target=other)
    with pytest.raises(MegatuneError, match="choose one with --target") as raised:
        run("plan")
    assert "NVIDIA B300" in str(raised.value)
    assert json.loads(run("plan", "--target", other.digest, "--json"))["target"] == other.digest


def test_a_name_is_no_path(run: Run, tmp_path: Path) -> None:
    measured(tmp_path / "megatune.db")
    assert "written to -..-up-a-b.json" in run("plan", "--name", "/../up a/b")
    assert simt().digest


def test_each_command_has_help_with_an_example(run: Run) -> None:
    for command in ("plan", "show", "export", "approve", "reject", "rollback"):
        assert f"Example: megatune {command}" in run(command, "--help")
