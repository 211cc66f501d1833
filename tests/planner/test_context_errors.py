"""Errors that were measured at lengths of context: from a file to a rule of a plan, and to what a reader answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from plan_examples import example_cases
from plan_examples import fill
from typer.testing import CliRunner

from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_planner.commands import app
from megatune_planner.context_errors import ContextErrors
from megatune_planner.context_errors import read_context_errors
from megatune_planner.fallback import fallback_rules
from megatune_planner.plan import Plan
from megatune_planner.reader import load

SHAPE = "k=7168,n=1536"
LENGTHS = ((1024, 0.001), (4096, 0.002), (16384, 0.011), (32768, 0.001), (65536, 0.03))


def configs(plan: Plan) -> list[str]:
    (shape,) = (each for each in plan.operator("projection").shapes if each.shape == SHAPE)
    return list(dict.fromkeys(band.decision.config for band in shape.bands if band.decision.kind == "config"))


def given(plan: Plan, *, limit: float = 0.01, lengths: Mapping[str, Any] | None = None, **rest: Any) -> dict[str, Any]:
    """A file's content: every config that serves a shape has the same errors, unless ``lengths`` has its own."""
    return {
        "unit": "largest relative error",
        "limit": limit,
        "source": "a test on node 7",
        "target": plan.content.target.digest,
        "errors": [
            {"operator": "projection", "shape": SHAPE, "config": config, "context_tokens": length, "error": error}
            for config in configs(plan)
            for length, error in (lengths or {}).get(config, LENGTHS)
        ],
    } | rest


def text(content: dict[str, Any]) -> str:
    head = "".join(f"{name} = {json.dumps(value)}\n" for name, value in content.items() if name != "errors")
    return head + "".join(
        "[[errors]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in entry.items())
        for entry in content["errors"]
    )


def rule_of(plan: Plan, content: dict[str, Any]) -> Any:
    errors = ContextErrors.model_validate(content)
    rules = fallback_rules(plan.content.target, plan.content.operators, errors)
    found = [each for each in rules if each.when == "context_too_long"]
    assert len(found) <= 1
    return found[0] if found else None


def test_the_rule_follows_from_measured_errors(plan: Plan) -> None:
    found = rule_of(plan, given(plan))
    # What is better again beyond the first that is too large was measured past a failure, and does not count.
    assert (found.above, found.error, found.error_limit, found.source) == (4096, 0.011, 0.01, "a test on node 7")
    assert "0.011 at 16384 tokens of context, 0.01 may serve" in found.reason
    assert len(found.points) == len(LENGTHS) * len(configs(plan))
    assert rule_of(plan, given(plan, limit=0.0001)).above == 0


def test_longer_contexts_than_any_that_was_measured_are_stock(plan: Plan) -> None:
    found = rule_of(plan, given(plan, limit=0.05))
    assert (found.above, found.error) == (65536, None)
    assert found.reason == "no largest relative error was measured at more than 65536 tokens of context"


def test_the_config_with_the_shortest_context_decides(plan: Plan) -> None:
    first, second = configs(plan)
    found = rule_of(plan, given(plan, lengths={first: ((1024, 0.001),), second: ((1024, 0.0), (2048, 0.5))}))
    # Both hold up to 1024 tokens: of the first more was not measured, the second failed.
    assert (found.above, found.error) == (1024, 0.5)
    found = rule_of(plan, given(plan, lengths={first: ((512, 0.001),), second: ((1024, 0.0), (2048, 0.5))}))
    assert (found.above, found.error) == (512, None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"target": "0123456789abcdef"}, "the errors are of target '0123456789abcdef', the plan is of"),
        ({"shape": "k=1,n=1"}, "errors are given of projection k=1,n=1 .* and the plan has no such shape"),
        ({"world": 8}, "the plan has no such shape"),
        ({"config": "another"}, "no error is given of the config [0-9a-f]{16}, which serves too"),
        ({"revision": "other"}, "the errors are of kernels 'other', the plan is of ''"),
    ],
    ids=str,
)
def test_errors_of_what_does_not_serve_are_refused(plan: Plan, change: dict[str, Any], says: str) -> None:
    content = given(plan)
    if "target" in change:
        content |= change
    else:
        content["errors"] = [entry | change for entry in content["errors"]]
        if "config" in change:
            content["errors"] = content["errors"][:1]
    with pytest.raises(MegatuneError, match=says):
        rule_of(plan, content)


def test_a_rule_that_its_errors_do_not_give_is_refused(plan: Plan) -> None:
    content = json.loads(plan.content.model_dump_json())
    rule = json.loads(rule_of(plan, given(plan)).model_dump_json()) | {"above": 8192}
    content["fallback"].insert(4, rule)
    with pytest.raises(ValueError, match="by the measured errors it begins above 4096 tokens, not 8192"):
        type(plan.content).model_validate_json(json.dumps(content))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("unit = ", "not TOML"),
        ("unit = 'u'\nlimit = 1\nsource = 's'\ntarget = 't'\n", "errors: Field required"),
        ("unit = 'u'\nlimit = 1\nsource = 's'\ntarget = 't'\nerrors = []\nmore = 1\n", "errors: "),
        ("unit = 'u'\nlimit = nan\nsource = 's'\ntarget = 't'\nerrors = []\n", "limit: "),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, body: str, says: str) -> None:
    file = tmp_path / "errors.toml"
    file.write_text(body)
    with pytest.raises(MegatuneError, match=says) as error:
        read_context_errors(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_same_point_twice_is_refused(plan: Plan, tmp_path: Path) -> None:
    content = given(plan)
    content["errors"].append(content["errors"][0] | {"error": 0.5})
    file = tmp_path / "errors.toml"
    file.write_text(text(content))
    with pytest.raises(MegatuneError, match="at 1024 tokens of context is there twice"):
        read_context_errors(file)


def test_from_the_command_to_a_reader_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEGATUNE_DB", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    with open_database(tmp_path / "megatune.db") as database, database.session() as session:
        fill(session, example_cases())
    run("plan", "--out", "first.json")
    plan = Plan.load(tmp_path / "first.json")
    file = tmp_path / "errors.toml"
    file.write_text(text(given(plan)))
    run("plan", "--context-errors", "errors.toml", "--out", "second.json")
    assert f"context too long projection {SHAPE} above 4096 tokens of context" in " ".join(
        run("show", "second.json").split()
    )
    reader = load(str(tmp_path / "second.json"), target=None)
    launch = ("projection", SHAPE, 4)
    assert reader.select(*launch, context_tokens=4096) is not None
    assert reader.select(*launch, context_tokens=4097) is None
    assert "0.011 at 16384 tokens of context" in reader.explain(*launch, context_tokens=4097)
    assert reader.select(*launch) is None, "where the server admits any context, the longest decides"
    file.write_text(text(given(plan, target="nowhere")))
    answer = CliRunner().invoke(app, ["plan", "--context-errors", "errors.toml", "--out", "third.json"])
    assert isinstance(answer.exception, MegatuneError)
    assert not (tmp_path / "third.json").exists()


def run(*arguments: str) -> str:
    answer = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output
