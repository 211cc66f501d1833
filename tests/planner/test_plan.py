from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from plan_examples import example_cases
from plan_examples import example_plan
from pydantic import BaseModel

from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_planner import differences
from megatune_planner import gate
from megatune_planner import inputs
from megatune_planner import plan as plan_module
from megatune_planner import predictions
from megatune_planner import reader
from megatune_planner import rules
from megatune_planner import runtimes
from megatune_planner import survey
from megatune_planner.band_schema import Band
from megatune_planner.exporters import vllm_table_schema
from megatune_planner.exporters.base import exporters
from megatune_planner.plan import Created
from megatune_planner.plan import Plan
from megatune_planner.published import model
from megatune_planner.published import units
from megatune_planner.rendering import render_plan


def altered(plan: Plan, change: Callable[[dict[str, Any]], None], *, sign: bool = True) -> str:
    """The plan's JSON after a change, with a digest that fits it unless it is not to be signed."""
    value = json.loads(plan.to_json())
    change(value)
    if sign and isinstance(value.get("content"), dict):
        value["digest"] = digest(value["content"])
    return json.dumps(value)


def test_a_plan_survives_its_file(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    assert Plan.load(path) == plan
    assert Plan.load(path).to_json() == plan.to_json()


def test_the_digest_covers_the_content_alone(plan: Plan) -> None:
    later = Plan(
        digest=plan.digest, created=Created(at="2030-01-01T00:00:00+00:00", by="another"), content=plan.content
    )
    assert Plan.from_json(later.to_json()).digest == plan.digest
    assert Plan.of(plan.content).digest == plan.digest


def test_the_same_measurements_give_the_same_digest_in_any_order(plan: Plan, tmp_path: Path) -> None:
    again = example_plan(tmp_path)
    assert again == plan
    # Other ids of the same measurements are other evidence, but nothing else may change.
    (tmp_path / "turned").mkdir()
    turned = example_plan(tmp_path / "turned", reversed(example_cases()))
    assert _without_evidence(turned) == _without_evidence(plan)


def _without_evidence(plan: Plan) -> Any:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: strip(part) for name, part in value.items() if name != "evidence"}
        return [strip(part) for part in value] if isinstance(value, list) else value

    return strip(plan.content.model_dump(mode="json"))


def test_reader_and_plan_know_the_same_format(plan: Plan) -> None:
    assert (plan.format, plan.schema_version) == (reader.FORMAT, reader.SCHEMA_VERSION)
    assert len(plan.digest) == reader.DIGEST_LENGTH


def _set(*path: str | int) -> Callable[[Any], Callable[[dict[str, Any]], None]]:
    def with_value(new: Any) -> Callable[[dict[str, Any]], None]:
        def change(value: dict[str, Any]) -> None:
            part: Any = value
            for step in path[:-1]:
                part = part[step]
            part[path[-1]] = new

        return change

    return with_value


SHAPE: tuple[str | int, ...] = ("content", "operators", 0, "shapes", 0)
BANDS: tuple[str | int, ...] = (*SHAPE, "bands")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_set("schema_version")(2), "schema version 2"),
        (_set("format")("other"), "not a plan"),
        (_set("content")([]), "no content"),
        (_set("content", "surprise")(1), "content.surprise"),
        (_set("content", "regime")(7), "content.regime"),
        (_set("content", "regime")("lukewarm-graph"), "no such regime: lukewarm, graph"),
        (_set("content", "units")({"tokens": "blocks"}), "units"),
        (_set("content", "fallback")([]), "last fallback rule"),
        (_set("content", "fallback", -1, "then")("band"), "otherwise leads to stock"),
        (_set("content", "fallback", -1, "when")("never"), "never"),
        (_set("content", "target", "hardware", "sms")(131), "target's digest"),
        (_set("content", "target", "hardware")({}), "not a target"),
        (_set("content", "target", "hardware", "arch")([]), "not a target: arch is [], no str"),
        (_set("content", "target", "hardware", "sms")(True), "not a target: sms is True, no int"),
        (_set(*BANDS, 0, "tokens_lo")(2), "leave a gap: 0 tokens, then 2"),
        (_set(*BANDS, -1, "tokens_hi")(70), "no last one"),
        (_set(*BANDS, 0, "decision", "kind")("magic"), "magic"),
        (_set(*BANDS, 0, "decision", "workspace_bytes")(-1), "workspace_bytes"),
        (_set(*BANDS, 0, "decision", "params", "block")(256), "is not that of its params, which is"),
        (_set(*BANDS[:-1], "curves", 0, "points", 0, "params", "block")(256), "is not that of its params, which is"),
        (_set(*BANDS[:-1], "dims", "n")(1537), "it is no key of its dims, which is k=1536,n=1537"),
        (_set(*BANDS, 0, "points", 0, "latency", "median_us")(99.0), "an interval must hold its median"),
        (_set(*BANDS, 0, "points", 0, "tokens")(4), "must ascend"),
        (_set(*SHAPE, "measured_tokens", 0)(2), "the measured tokens are not those of the bands' points"),
        (_set(*BANDS, 0, "decision", "config")("a\nb"), "the config a b is not that of its params"),
        (_set(*BANDS)([]), "no last one"),
    ],
)
def test_a_malformed_plan_is_one_line(
    plan: Plan, tmp_path: Path, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(altered(plan, change), encoding="utf-8")
    with pytest.raises(MegatuneError) as raised:
        Plan.load(path)
    message = str(raised.value)
    assert says in message
    assert "\n" not in message
    assert str(path) in message


def test_a_changed_plan_is_refused(plan: Plan) -> None:
    text = altered(plan, _set(*BANDS, 0, "points", 0, "gain")(0.9), sign=False)
    with pytest.raises(MegatuneError, match="changed after its digest"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    "text", ["", "no JSON", "{", "[]", "null", "{}", '{"format": "megatune-plan"}', "\x00", "[" * 10**5]
)
def test_what_is_no_plan_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MegatuneError) as raised:
        Plan.load(path)
    assert "\n" not in str(raised.value)
    assert ("does not begin with a brace" in str(raised.value)) is not text.startswith("{")


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
    for name, why in (
        ("missing.json", "No such file or directory"),
        ("", "Is a directory"),
        ("bytes.json", "it is not UTF-8 text"),
    ):
        with pytest.raises(MegatuneError, match=rf"cannot read the plan [^:]*: {why}$"):
            Plan.load(tmp_path / name)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_no_damage_gives_anything_but_one_line(plan: Plan, data: st.DataObject) -> None:
    """Whatever part is replaced by whatever value: a plan that is read at all can be shown and exported, or not."""
    value = json.loads(plan.to_json())
    part: Any = value["content"]
    while True:
        step = data.draw(st.sampled_from(sorted(part) if isinstance(part, dict) else list(range(len(part)))))
        inner = part[step]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        part = inner
    part[step] = data.draw(st.one_of(st.none(), st.integers(-2, 3), st.floats(), st.text(max_size=3), st.just({})))
    try:
        text = json.dumps(value | {"digest": digest(value["content"])})
    except ValueError:
        text = json.dumps(value)
    messages = []
    try:
        found = Plan.from_json(text)
        render_plan(found)
        for each in exporters().values():
            with suppress(MegatuneError):
                each.files(found)
    except MegatuneError as error:
        messages.append(str(error))
    assert "\n" not in "".join(messages)


def test_a_band_that_is_slower_than_its_baseline_cannot_be_written(plan: Plan) -> None:
    band = plan.content.operators[0].shapes[0].bands[0].model_dump()
    band["points"][0]["latency"] = {"median_us": 99.0, "low_us": 98.0, "high_us": 99.5}
    with pytest.raises(ValueError, match="slower than its baseline"):
        Band.model_validate(band)


@pytest.mark.parametrize(
    "module",
    [plan_module, differences, gate, inputs, rules, runtimes, survey, predictions, model, units, vllm_table_schema],
    ids=lambda module: module.__name__,
)
def test_every_field_is_documented(module: ModuleType) -> None:
    models = [
        found
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, BaseModel) and found.__module__ == module.__name__
    ]
    assert models
    for each in models:
        assert [name for name, field in each.model_fields.items() if not field.description] == [], each
