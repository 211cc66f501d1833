from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from plan_examples import TARGET

from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_planner import reader as reader_module
from megatune_planner.inputs import INPUTS
from megatune_planner.plan import Plan
from megatune_planner.reader import PlanError
from megatune_planner.reader import Reader
from megatune_planner.reader import load
from megatune_planner.rules import Rule

SHAPES = ("k=7168,n=1536", "k=1536,n=2304")
HERE = TARGET.to_dict()
OF_A_SHAPE = ["operator", "shape", "dtype", "world", "routing"]
RULES = get_args(get_args(Rule)[0])


def signed(content: Mapping[str, Any]) -> str:
    value = {"format": "megatune-plan", "schema_version": reader_module.SCHEMA_VERSION, "signature": None}
    created = {"at": "2026-11-30T12:00:00+00:00", "by": "megatune"}
    return json.dumps(value | {"digest": digest(content), "created": created, "content": content})


def content_of(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan.content.model_dump_json())
    return found


def rule(when: str, shape: str = SHAPES[0], **rest: Any) -> dict[str, Any]:
    """A rule about one shape, as plans spell it."""
    where = {"operator": "projection", "shape": shape, "dtype": "bf16", "world": 1, "routing": "none"}
    (kind,) = [each for each in RULES if each.model_fields["when"].default == when]
    found = {"when": when, "inputs": list(kind.READS), "then": "stock", "reason": f"by {when}", "evidence": []}
    return found | where | rest


def tokens_rule(lo: int, hi: int, shape: str = SHAPES[0]) -> dict[str, Any]:
    return rule("stock_won", shape, unit="tokens", tokens_lo=lo, tokens_hi=hi)


def context(above: int, shape: str = SHAPES[0]) -> dict[str, Any]:
    lengths = [*([(above, 0.001)] if above else []), (above + 1000, 0.02)]
    points = [{"config": "a config", "context_tokens": length, "error": error} for length, error in lengths]
    limit = {"error_unit": "largest relative error", "error_limit": 0.01, "error": 0.02}
    return rule(
        "context_too_long",
        shape,
        unit="tokens",
        above=above,
        **limit,
        source="a test",
        provenance="imported",
        points=points,
    )


# What a plan's rules say, evaluated one after the other as the schema describes them.


@dataclass(frozen=True)
class Step:
    shape: str
    tokens: int
    context: int | None
    longest: int | None
    workspace: int | None
    same_hardware: bool
    same_toolchain: bool
    same_deployment: bool


def oracle(content: Mapping[str, Any], step: Step) -> str | None:
    """The config that serves, or None for stock: the first rule that holds decides."""
    (shape,) = [s for o in content["operators"] for s in o["shapes"] if s["shape"] == step.shape]
    band = next(b for b in shape["bands"] if b["tokens_lo"] <= step.tokens <= (b["tokens_hi"] or inf))
    for each in content["fallback"]:
        if "shape" in each and each["shape"] != step.shape:
            continue
        if _holds(each, band["decision"], step):
            return band["decision"]["config"] if each["then"] == "band" else None
    raise AssertionError("no rule holds")


def _holds(each: Mapping[str, Any], decision: Mapping[str, Any], step: Step) -> bool:
    longest = inf if step.longest is None else step.longest
    at = step.tokens
    return {
        "other_hardware": lambda: not step.same_hardware,
        "other_toolchain": lambda: not step.same_toolchain,
        "other_deployment": lambda: not step.same_deployment,
        "other_workload": lambda: False,
        "workspace_too_small": lambda: (
            step.workspace is not None and decision.get("workspace_bytes", 0) > step.workspace
        ),
        "outside_tokens": lambda: at < each["below"] or at > each["above"],
        "stock_won": lambda: each["tokens_lo"] <= at <= each["tokens_hi"],
        "context_too_long": lambda: (longest if step.context is None else step.context) > each["above"],
        "covered": lambda: decision["kind"] == "config",
        "otherwise": lambda: True,
    }[each["when"]]()


@st.composite
def contents(draw: st.DrawFn, plan: Plan) -> dict[str, Any]:
    """The example's plan with other rules about its shapes, before and after the one that lets bands serve."""
    content = content_of(plan)
    for operator in content["operators"]:
        for shape in operator["shapes"]:
            for band in shape["bands"]:
                if band["decision"]["kind"] == "config":
                    band["decision"]["workspace_bytes"] = draw(st.sampled_from([0, 100, 200]))
    whose = st.sampled_from(SHAPES)
    tokens = st.integers(1, 80)
    made = st.one_of(
        st.builds(lambda a, b, s: tokens_rule(min(a, b), max(a, b), s), tokens, tokens, whose),
        st.builds(
            lambda a, b, s: rule("outside_tokens", s, unit="tokens", below=min(a, b), above=max(a, b)),
            tokens,
            tokens,
            whose,
        ),
        st.builds(lambda above, s: context(above, s), st.sampled_from([0, 4096, 65536]), whose),
    )
    machine = [each for each in content["fallback"] if each["when"].startswith("other_")]
    ends = [each for each in content["fallback"] if each["when"] in ("covered", "otherwise")]
    needs = [rule("workspace_too_small", shape, unit="bytes", workspace_bytes=200) for shape in SHAPES]
    rules = machine + needs + draw(st.lists(made, max_size=4)) + ends[:1] + draw(st.lists(made, max_size=2)) + ends[1:]
    return content | {"fallback": rules}


steps = st.builds(
    Step,
    shape=st.sampled_from(SHAPES),
    tokens=st.integers(1, 90),
    context=st.sampled_from([None, 1, 4096, 4097, 10**6]),
    longest=st.sampled_from([None, 4096, 65536]),
    workspace=st.sampled_from([None, 0, 100, 150, 200]),
    same_hardware=st.sampled_from([True, True, True, False]),
    same_toolchain=st.sampled_from([True, True, True, False]),
    same_deployment=st.sampled_from([True, True, True, False]),
)


def opened(text: str, step: Step) -> Reader:
    target = copy.deepcopy(HERE)
    target["hardware"]["sms"] = 132 if step.same_hardware else 16
    target["toolchain"]["dsl"] = "4.8.1" if step.same_toolchain else "4.9.0"
    deployment = {
        "model": "any",
        "world": 1,
        "dtype": "bf16",
        "execution": "graph" if step.same_deployment else "eager",
        "features": [],
        "max_context_tokens": step.longest,
    }
    return load(text, target=target, deployment=deployment, workspace_bytes=step.workspace)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_the_reader_decides_as_the_first_rule_that_holds(plan: Plan, data: st.DataObject) -> None:
    content = data.draw(contents(plan))
    step = data.draw(steps)
    reader = opened(signed(content), step)
    found = reader.select("projection", step.shape, step.tokens, context_tokens=step.context)
    expected = oracle(content, step)
    assert (found.config if found else None) == expected
    explained = reader.explain("projection", step.shape, step.tokens, context_tokens=step.context)
    assert explained.startswith("stock: ") is (expected is None)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_ranks_that_agree_decide_alike_whatever_else_differs_between_them(plan: Plan, data: st.DataObject) -> None:
    """Each rank loads with what it found; where the agreements are one, so is every decision of every step."""
    text = signed(data.draw(contents(plan)))
    base = data.draw(steps)
    found = st.builds(
        replace,
        st.just(base),
        workspace=st.sampled_from([None, 0, 100, 150, 200, 250]),
        same_hardware=st.sampled_from([True, True, True, False]),
        longest=st.sampled_from([base.longest, base.longest, 4096]),
    )
    ranks = data.draw(st.lists(found, min_size=2, max_size=4))
    readers = [opened(text, rank) for rank in ranks]
    for rank, reader in zip(ranks, readers, strict=True):
        assert opened(text, rank).agreement == reader.agreement  # what a rank found decides, and nothing else
    launches = [
        (shape, tokens, length)
        for shape in SHAPES
        for tokens in (0, *range(1, 90), 10**6)
        for length in (None, 1, 4096, 4097, 10**6)
    ]
    for one, other in pairwise(readers):
        if one.agreement == other.agreement:
            for shape, tokens, length in launches:
                arguments = ("projection", shape, tokens)
                assert one.select(*arguments, context_tokens=length) == other.select(*arguments, context_tokens=length)


def test_bands_serve_where_a_rule_says_so_and_not_beyond_the_last(plan: Plan) -> None:
    """Top down: where no rule leads to a band, the last one holds, which is stock."""
    document = json.loads(plan.to_json())
    shape = document["content"]["operators"][0]["shapes"][0]["shape"]
    assert load(plan.to_json(), target=None).select("projection", shape, 1) is not None
    document["content"]["fallback"] = [rule for rule in document["content"]["fallback"] if rule["when"] != "covered"]
    document["digest"] = digest(document["content"])
    found = load(json.dumps(document), target=None)
    assert found.select("projection", shape, 1) is None
    assert found.explain("projection", shape, 1).startswith("stock: ")


def test_ranks_that_would_decide_otherwise_do_not_agree(plan: Plan) -> None:
    content = content_of(plan)
    content["operators"][0]["shapes"][0]["bands"][0]["decision"]["workspace_bytes"] = 100
    text = signed(content)
    enough, more, less = (load(text, target=HERE, workspace_bytes=size) for size in (100, 200, 99))
    assert enough.agreement == more.agreement != less.agreement
    elsewhere = json.loads(json.dumps(HERE))
    elsewhere["hardware"]["device_id"] = "233b"
    assert load(text, target=elsewhere, workspace_bytes=200).agreement != more.agreement
    assert load(plan.to_json(), target=HERE).agreement != more.agreement


_AGREEMENT = """
import sys
sys.path.insert(0, sys.argv[1])
from megatune_planner.reader import load
reader = load(sys.argv[2], target=None)
print(reader.agreement, reader.select("projection", "k=7168,n=1536", 4).config)
"""


def test_processes_agree_whatever_their_hashes_are(plan: Plan, tmp_path: Any) -> None:
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    folder = str(reader_module.__file__).rsplit("/", 2)[0]
    found = {
        subprocess.run(
            [sys.executable, "-c", _AGREEMENT, folder, str(tmp_path / "plan.json")],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_a_decision_reads_its_arguments_and_what_it_was_loaded_with_alone(plan: Plan) -> None:
    reader = load(plan.to_json(), target=HERE)
    first = [reader.select("projection", SHAPES[0], tokens) for tokens in range(1, 80)]
    for tokens in (3, 64, 1, 1000, 0):
        reader.select("projection", SHAPES[0], tokens, context_tokens=tokens)
    assert [reader.select("projection", SHAPES[0], tokens) for tokens in range(1, 80)] == first


# Inputs.


def test_every_rule_reads_what_ranks_share_and_says_so(plan: Plan) -> None:
    assert {name for name, each in INPUTS.items() if each.scope != "rank"} == reader_module.SHARED_INPUTS
    for kind in RULES:
        assert set(kind.READS) <= reader_module.SHARED_INPUTS, kind
        assert kind.model_fields["inputs"].default == kind.READS
        assert kind.model_fields["when"].default in reader_module._RULES
    for each in plan.content.fallback:
        assert each.inputs == type(each).READS
    assert plan.content.inputs == INPUTS


def test_what_is_frozen_at_capture_is_stated() -> None:
    frozen = {name for name, each in INPUTS.items() if each.fixed == "capture"}
    assert frozen == {"tokens"}
    assert INPUTS["context_tokens"].fixed == "step"
    assert all(each.scope == "agreed" for name, each in INPUTS.items() if name in ("links", "workspace_bytes"))


@pytest.mark.parametrize("local", [name for name, each in INPUTS.items() if each.scope == "rank"] + ["magic"])
def test_a_rule_over_what_ranks_do_not_share_is_refused(plan: Plan, local: str) -> None:
    content = content_of(plan)
    content["fallback"][0]["inputs"] = ["hardware", local]
    with pytest.raises(PlanError, match=f"reads '{local}', which ranks do not share: those that decide unlike wait"):
        load(signed(content), target=None)
    says = "is no input; known are" if local == "magic" else "differs between ranks: ranks that decide unlike wait"
    with pytest.raises(ValueError, match=says):
        type(plan.content).model_validate_json(json.dumps(content))


def test_a_rule_that_hides_what_it_reads_is_refused(plan: Plan) -> None:
    content = content_of(plan)
    content["fallback"][0]["inputs"] = []
    with pytest.raises(MegatuneError, match="the rule other_hardware reads hardware, and must state exactly these"):
        Plan.from_json(signed(content))


# Bad input.


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"when": "whim", "inputs": [], "then": "stock", "reason": ""}, "an unknown rule 'whim': copy the reader"),
        (
            tokens_rule(1, 4) | {"unit": "bytes"},
            "the threshold of the rule stock_won is in tokens, and it says 'bytes'",
        ),
        ({k: v for k, v in tokens_rule(1, 4).items() if k != "unit"}, "is in tokens, and it says None: make it again"),
        ({k: v for k, v in context(8).items() if k != "unit"}, "context_too_long is in tokens, and it says None"),
        (tokens_rule(1, 4) | {"then": "band"}, "the rule stock_won leads to stock, not to 'band'"),
        ({k: v for k, v in tokens_rule(1, 4).items() if k != "tokens_hi"}, "not a plan of schema version 3"),
    ],
    ids=["unknown", "other unit", "no unit", "context without unit", "leads elsewhere", "no end"],
)
def test_a_bad_rule_is_one_line_that_says_what_to_do(plan: Plan, bad: dict[str, Any], says: str) -> None:
    content = content_of(plan)
    content["fallback"].insert(3, bad)
    with pytest.raises(MegatuneError) as raised:
        Plan.from_json(signed(content))
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("bad", [tokens_rule(5, 4), rule("outside_tokens", unit="tokens", below=9, above=8)])
def test_a_reversed_rule_is_refused(plan: Plan, bad: dict[str, Any]) -> None:
    content = content_of(plan)
    content["fallback"].insert(3, bad)
    with pytest.raises(MegatuneError, match="cannot"):
        Plan.from_json(signed(content))


@pytest.mark.parametrize(
    ("index", "change", "says"),
    [
        (1, {"tokens_lo": 3}, "overlap: one begins at 3 tokens, the one before ends at"),
        (0, {"tokens_hi": -1}, "is reversed: it begins at 1 tokens and ends at -1"),
        (1, {"tokens_lo": 70, "tokens_hi": 66}, "is reversed: it begins at 70 tokens and ends at 66"),
        (0, {"tokens_lo": 2}, "leave a gap: 0 tokens, then 2"),
        (-1, {"tokens_hi": 99}, "have no last one, without an end"),
        (0, {"tokens_hi": None}, "overlap: one begins at"),
    ],
    ids=str,
)
def test_bands_that_do_not_tile_are_refused(plan: Plan, index: int, change: dict[str, Any], says: str) -> None:
    content = content_of(plan)
    band = next(s for s in content["operators"][0]["shapes"] if s["shape"] == SHAPES[0])["bands"][index]
    band |= change
    for read in (lambda text: load(text, target=None), Plan.from_json):
        with pytest.raises((PlanError, MegatuneError)) as raised:
            read(signed(content))
        assert says in str(raised.value)
        assert str(raised.value).endswith("make it again with megatune plan")


def test_a_plan_of_an_older_schema_is_to_be_made_again(plan: Plan) -> None:
    for version, says in ((2, "make it again with megatune plan"), (4, "copy the reader that was exported")):
        value = json.loads(plan.to_json()) | {"schema_version": version}
        with pytest.raises(MegatuneError, match=f"schema version {version}, this reader knows 3: {says}"):
            Plan.from_json(json.dumps(value))


# Contexts.


def test_a_context_that_is_too_long_is_stock(plan: Plan) -> None:
    content = content_of(plan)
    content["fallback"].insert(4, context(4096))
    text = signed(content)
    Plan.from_json(text)
    launch = ("projection", SHAPES[0], 4)
    reader = load(text, target=None)
    assert reader.select(*launch, context_tokens=4096) is not None
    assert reader.select(*launch, context_tokens=4097) is None
    assert reader.explain(*launch, context_tokens=4097) == (
        "stock: contexts of more than 4096 tokens: by context_too_long"
    )
    assert reader.select("projection", SHAPES[1], 1, context_tokens=4097) is not None  # another shape
    for bad in (float("nan"), "long", [], object()):
        assert reader.select(*launch, context_tokens=bad) is None  # type: ignore[arg-type]
        assert reader.explain(*launch, context_tokens=bad).startswith("stock: ")  # type: ignore[arg-type]


def test_at_capture_the_longest_context_that_is_admitted_decides(plan: Plan) -> None:
    content = content_of(plan)
    content["fallback"].insert(4, context(4096))
    deployment = {"model": "any", "world": 1, "dtype": "bf16", "execution": "graph", "features": []}
    for longest, serves in ((None, False), (4096, True), (4097, False)):
        reader = load(signed(content), target=HERE, deployment=deployment | {"max_context_tokens": longest})
        assert (reader.select("projection", SHAPES[0], 4) is not None) is serves
