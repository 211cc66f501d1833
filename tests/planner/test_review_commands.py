"""approve, reject, rollback, and what export asks of a plan."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from plan_examples import TARGET
from plan_examples import example_cases
from plan_examples import fill
from typer.testing import CliRunner

from megatune_db import queries
from megatune_db import store
from megatune_db.errors import DatabaseError
from megatune_db.errors import PlanStateError
from megatune_db.records import PlanState
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_planner import reviewing
from megatune_planner.commands import app
from megatune_planner.plan import Plan

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command in a directory with the example's database; what a user can mend is raised."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEGATUNE_DB", raising=False)
    with open_database("megatune.db") as database, database.session() as session:
        fill(session, example_cases())

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def loaded(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def planned(run: Run, name: str = "kimi", *options: str) -> str:
    return str(loaded(run("plan", "--name", name, "--json", *options))["digest"])


def log() -> list[tuple[str, str, str, str]]:
    with open_database("megatune.db") as database, database.session() as session:
        rows = queries.reviews(session)[::-1]
    return [(row.plan, row.action.value, row.who, row.comment) for row in rows]


def state(digest: str) -> PlanState:
    with open_database("megatune.db") as database, database.session() as session:
        found = queries.plan(session, digest)
    assert found is not None
    return found.state


def test_a_plan_ships_and_is_rolled_back(run: Run) -> None:
    first = planned(run)
    approved = loaded(run("approve", "kimi", "--comment", "as measured", "--json"))
    assert approved == {
        "plan": first,
        "name": "kimi",
        "action": "approve",
        "state": "approved",
        "who": getpass.getuser(),
        "comment": "as measured",
        "in_service": None,
    }
    exported = loaded(run("export", "kimi", "--to", "json", "--out", "out", "--by", "ana", "--json"))
    assert (exported["state"], exported["recorded"], exported["replaced"]) == ("approved", True, None)
    second = planned(run, "kimi", "--min-gain", "0.2")
    assert second != first
    run("approve", second, "--by", "ben")
    shipped = run("export", second, "--to", "json", "--out", "out", "--by", "ben")
    assert f"it takes the place of {first}, which is retired" in shipped.stderr
    third = planned(run, "kimi", "--min-gain", "0.3")
    # By name it is the one in service that is meant, though a newer draft has the name too.
    back = loaded(run("rollback", "kimi", "--comment", "slower", "--by", "ben", "--json"))
    assert (back["plan"], back["state"], back["in_service"]) == (second, "retired", first)
    assert [state(each).value for each in (first, second, third)] == ["exported", "retired", "draft"]
    printed = run("rollback", first, "--comment", "after all", "--to", second, "--by", "ben").stdout
    assert f"out of service; {second} serves now" in printed
    printed = run("rollback", first if state(first) is PlanState.EXPORTED else second, "--comment", "x").stdout
    assert f"{first} serves now" in printed
    assert "out of service; stock serves now" in run("rollback", first, "--comment", "none of it").stdout
    assert [entry[1] for entry in log()] == [
        *("approve", "export", "approve", "retire", "export", "roll_back", "restore", "roll_back", "restore"),
        *("roll_back", "restore", "retire"),
    ]
    assert log()[1] == (first, "export", "ana", "")


def test_a_draft_is_exported_on_demand_alone(run: Run, tmp_path: Path) -> None:
    digest = planned(run)
    with pytest.raises(MegatuneError, match="nobody approved yet: megatune approve it, or export it with --"):
        run("export", "kimi", "--to", "json", "--out", "out")
    assert not (tmp_path / "out").exists()
    result = run("export", "kimi.json", "--to", "json", "--out", "out", "--unreviewed")
    assert result.exit_code == 0
    assert "warning: the plan is a draft that nobody approved yet" in result.stderr
    assert Plan.load(tmp_path / "out" / "plan.json").digest == digest
    assert state(digest) is PlanState.DRAFT
    assert [entry[:2] for entry in log()] == [(digest, "export")]
    with open_database("megatune.db") as database, database.session() as session:
        (row,) = queries.plan_exports(session)
    assert (row.state, row.exporter, sorted(row.files)) == (
        PlanState.DRAFT,
        "json",
        ["megatune_reader.py", "plan.json"],
    )
    assert json.loads(run("export", "kimi", "--to", "json", "--out", "out", "--unreviewed", "--json").stdout)[
        "recorded"
    ]


def test_a_retired_plan_is_approved_again_before_it_is_exported(run: Run) -> None:
    planned(run)
    assert "rejected by ben" in run("reject", "kimi", "--comment", "suspect", "--by", "ben").stdout
    with pytest.raises(MegatuneError, match="the plan is retired: megatune approve it"):
        run("export", "kimi", "--to", "json", "--out", "out")
    run("approve", "kimi")
    assert run("export", "kimi", "--to", "json", "--out", "out").exit_code == 0


def test_without_a_database_nobody_approved_it(run: Run, tmp_path: Path) -> None:
    planned(run)
    elsewhere = ("--to", "json", "--out", "out", "--db", "elsewhere.db")
    with pytest.raises(MegatuneError, match="the database does not have this plan, so nobody approved it"):
        run("export", "kimi.json", *elsewhere)
    result = run("export", "kimi.json", *elsewhere, "--unreviewed")
    assert result.exit_code == 0
    assert "this export was not written down: elsewhere.db does not have the plan" in result.stderr
    assert not (tmp_path / "elsewhere.db").exists()
    # Another team's database can take the plan in when it is reviewed there.
    with open_database("elsewhere.db"):
        pass
    assert "approved by" in run("approve", "kimi.json", "--db", "elsewhere.db").stdout
    assert run("export", "kimi.json", *elsewhere).exit_code == 0


def test_an_export_that_fails_is_not_written_down(run: Run, tmp_path: Path) -> None:
    digest = planned(run)
    run("approve", "kimi")
    (tmp_path / "out" / "plan.json").mkdir(parents=True)
    with pytest.raises(MegatuneError, match=r"(?i)is a directory"):
        run("export", "kimi", "--to", "json", "--out", "out")
    with pytest.raises(MegatuneError):
        run("export", "kimi", "--to", "vllm-allreduce", "--out", "other")
    assert state(digest) is PlanState.APPROVED
    assert [entry[1] for entry in log()] == ["approve"]


def test_a_plan_of_another_schema_can_be_rejected_and_not_approved(run: Run) -> None:
    made = Plan.load(Path(loaded(run("plan", "--json"))["file"]))
    with open_database("megatune.db") as database, database.session() as session:
        content = made.to_json().replace('"schema_version":3', '"schema_version":99')
        assert content != made.to_json()
        store.put_plan(session, digest="strange", name="strange", content=content, target=made.content.target.digest)
    with pytest.raises(MegatuneError, match="99"):
        run("approve", "strange")
    with pytest.raises(MegatuneError, match="99"):
        run("export", "strange", "--to", "json", "--out", "out", "--unreviewed")
    assert run("reject", "strange", "--comment", "of another program").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("approve", "missing"), "no plan of that name or digest; there are kimi"),
        (("approve", "missing.json"), "cannot read the plan missing.json"),
        (("approve", "kimi", "--by", " "), "--by is somebody's name"),
        (("reject", "kimi", "--comment", " "), "say why: a plan is rejected with a comment"),
        (("rollback", "kimi", "--comment", " "), "say why: a plan is rolled back"),
        (("rollback", "kimi", "--comment", "x", "--to", "missing"), "the database has no plan missing"),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: tuple[str, ...], says: str) -> None:
    planned(run)
    with pytest.raises(MegatuneError) as raised:
        run(*arguments)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert log() == []


def test_what_a_plan_is_not_ready_for(run: Run) -> None:
    planned(run)
    with pytest.raises(PlanStateError, match="is a draft: only a plan in service") as raised:
        run("rollback", "kimi", "--comment", "x")
    assert raised.value.exit_code == 2
    run("approve", "kimi")
    with pytest.raises(PlanStateError, match="is approved: it cannot be approved again"):
        run("approve", "kimi")
    assert [entry[1] for entry in log()] == ["approve"]
    with pytest.raises(DatabaseError, match=r"nowhere\.db"):
        run("approve", "kimi", "--db", "nowhere.db")
    # Typer itself asks for a comment where one is needed.
    assert run("reject", "kimi").exit_code == 2


def test_a_name_in_service_on_two_targets_needs_a_digest(run: Run) -> None:
    planned(run)
    run("approve", "kimi")
    run("export", "kimi", "--to", "json", "--out", "out")
    other = replace(TARGET, hardware=replace(TARGET.hardware, gpu="NVIDIA B300", arch="sm_103a"))
    with open_database("megatune.db") as database, database.session() as session:
        fill(session, example_cases(), target=other)
    digest = planned(run, "kimi", "--target", other.digest)
    run("approve", digest)
    run("export", digest, "--to", "json", "--out", "out")
    with pytest.raises(MegatuneError, match="several plans kimi are in service"):
        run("rollback", "kimi", "--comment", "slower")
    assert run("rollback", digest, "--comment", "slower").exit_code == 0
    assert run("rollback", "kimi", "--comment", "slower").exit_code == 0


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert reviewing.user().startswith("uid ")
