from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from plan_examples import TARGET

from megatune_kernels.canonical import digest
from megatune_planner import reader as reader_module
from megatune_planner.band_schema import UseConfig
from megatune_planner.plan import Plan
from megatune_planner.reader import Decision
from megatune_planner.reader import PlanError
from megatune_planner.reader import Reader
from megatune_planner.reader import load
from megatune_planner.reader import shape_of

HERE = TARGET.to_dict()


@pytest.fixture(scope="module")
def reader(plan: Plan) -> Reader:
    return load(plan.to_json(), target=HERE)


def test_the_reader_agrees_with_the_plan_at_every_tokens(plan: Plan, reader: Reader) -> None:
    for shape in plan.operator("projection").shapes:
        for tokens in range(1, shape.measured_tokens[-1] + 10):
            band = shape.band(tokens)
            found = reader.select("projection", shape.shape, tokens)
            expected = band.decision
            if isinstance(expected, UseConfig):
                assert found == Decision(
                    expected.variant,
                    expected.params,
                    expected.config,
                    expected.workspace_bytes,
                    expected.workspace_alignment_bytes,
                    expected.alignment_bytes,
                    expected.resident,
                    measured=tokens in shape.measured_tokens,
                )
            else:
                assert found is None
            explained = reader.explain("projection", shape.shape, tokens)
            assert explained.endswith(band.reason)
            assert explained.startswith("stock" if found is None else found.variant)


def test_shapes_are_spelled_alike(plan: Plan, reader: Reader) -> None:
    for shape in plan.operator("projection").shapes:
        assert shape_of(shape.dims) == shape.shape
    assert shape_of({"n": 1536, "k": 7168}) == "k=7168,n=1536"
    assert reader.select("projection", shape_of({"n": 1536, "k": 7168}), 1) is not None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("reduction", "k=7168,n=1536", 1), "no operator 'reduction'"),
        (("projection", "k=7168,n=1537", 1), "no shape 'k=7168,n=1537'"),
        (("projection", "k=7168,n=1536", 1, "fp8"), "dtype 'fp8'"),
        (("projection", "k=7168,n=1536", 1, "bf16", 8), "world 8"),
        (("projection", "k=7168,n=1536", 1, "bf16", 1, "skewed"), "routing 'skewed'"),
        (("projection", "k=7168,n=1536", 0), "0 tokens is not a decode step"),
        (("projection", "k=7168,n=1536", -3), "-3 tokens is not a decode step"),
        (("projection", "k=7168,n=1536", 65), "more than the 64 tokens"),
        (("projection", "k=7168,n=1536", 10**30), "more than the 64 tokens"),
        (("projection", "k=7168,n=1536", float("nan")), "more than the 64 tokens"),
        (("projection", "k=7168,n=1536", None), "not a key of a plan"),
        (("projection", "k=7168,n=1536", "4"), "not a key of a plan"),
        (("projection", ["k"], 4), "not a key of a plan"),
        ((None, None, None), "no operator None"),
    ],
)
def test_whatever_it_does_not_know_is_stock(reader: Reader, arguments: tuple[Any, ...], says: str) -> None:
    assert reader.select(*arguments) is None
    assert reader.explain(*arguments).startswith("stock: ")
    assert says in reader.explain(*arguments)


def test_an_argument_that_cannot_be_compared_is_stock(reader: Reader) -> None:
    """An array has no truth value, and neither has a tensor."""
    array = np.array([1, 2])
    for tokens, context in ((array, None), (4, array), (array, array)):
        arguments = ("projection", "k=7168,n=1536", tokens, "bf16", 1, "none", context)
        assert reader.select(*arguments) is None  # type: ignore[arg-type]
        assert reader.explain(*arguments).startswith("stock: not a key of a plan: ")  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers())),
        min_size=3,
        max_size=6,
    )
)
def test_selecting_never_raises(reader: Reader, arguments: list[Any]) -> None:
    assert reader.select(*arguments) is None
    assert "\n" not in reader.explain("projection", "k=7168,n=1536", 4, *arguments[:3])


def test_another_target_gets_stock_and_the_reason(plan: Plan) -> None:
    for part, name in (
        ("hardware", "device_id"),
        ("hardware", "sms"),
        ("hardware", "arch"),
        ("toolchain", "driver"),
        ("toolchain", "dsl"),
    ):
        other = json.loads(json.dumps(HERE))
        other[part][name] = "other"
        reader = load(plan.to_json(), target=other)
        assert reader.select("projection", "k=7168,n=1536", 1) is None
        assert f"{part}.{name}" in reader.reason
        assert reader.explain("projection", "k=7168,n=1536", 1) == f"stock: {reader.reason}"


@pytest.mark.parametrize("target", [{}, {"hardware": {}}, {"hardware": None, "toolchain": 7}])
def test_a_target_that_says_less_is_another_one(plan: Plan, target: dict[str, Any]) -> None:
    assert load(plan.to_json(), target=target).select("projection", "k=7168,n=1536", 1) is None


def test_without_a_target_the_caller_vouches(plan: Plan) -> None:
    reader = load(plan.to_json(), target=None)
    assert reader.reason == ""
    assert reader.select("projection", "k=7168,n=1536", 1) is not None


def test_a_decision_cannot_be_changed(reader: Reader) -> None:
    found = reader.select("projection", "k=7168,n=1536", 1)
    assert found is not None
    with pytest.raises(TypeError):
        found.params["block"] = 32  # type: ignore[index]


def test_paths_and_texts_are_read_alike(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    assert load(path, target=None).digest == load(str(path), target=None).digest == plan.digest


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("missing.json", "cannot read"),
        ("\0", "cannot read"),
        ("{", "not JSON"),
        ('{"format": 1}', "format"),
        ('{"format": "megatune-plan", "schema_version": 9}', "schema version 9"),
        ('{"format": "megatune-plan", "schema_version": 3}', "no content"),
        ('{"format": "megatune-plan", "schema_version": 3, "content": {}, "digest": "0"}', "changed after its digest"),
    ],
)
def test_what_is_no_plan_is_one_line(text: str, says: str) -> None:
    with pytest.raises(PlanError) as raised:
        load(text, target=None)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [{}, {"operators": 1, "target": 2}, {"operators": [{}], "target": {}}])
def test_signed_nonsense_is_one_line(content: dict[str, Any]) -> None:
    value = {"format": "megatune-plan", "schema_version": 3, "digest": digest(content), "content": content}
    with pytest.raises(PlanError, match="not a plan of schema version 3"):
        load(json.dumps(value), target=None)


_ALONE = """
import sys
import megatune_reader
reader = megatune_reader.load(sys.argv[1], target=None)
found = reader.select("projection", "k=7168,n=1536", 1)
assert found.variant == "simt" and found.measured, found
assert reader.select("projection", "k=7168,n=1536", 65) is None
beside = [name for name in sys.modules if name.split(".")[0] not in sys.stdlib_module_names]
print(sorted(set(beside) - {"megatune_reader", "__main__"}))
"""


def test_a_copy_runs_alone(plan: Plan, tmp_path: Path) -> None:
    """In an interpreter without site packages, environment or this checkout."""
    shutil.copy(reader_module.__file__, tmp_path / "megatune_reader.py")
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{_ALONE}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", code, str(tmp_path / "plan.json")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == "[]"


def test_the_reader_imports_the_standard_library_alone() -> None:
    tree = ast.parse(Path(reader_module.__file__).read_text(encoding="utf-8"))
    names = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names <= sys.stdlib_module_names
