"""Campaign files: what they mean, and what is said of broken ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatune_db.records import Regime
from megatune_kernels.errors import MegatuneError
from megatune_kernels.target import architecture
from megatune_tuner.campaign_file import load_campaign
from megatune_tuner.campaign_file import parse_campaign

SM90 = architecture("sm_90a")

GOOD = """
name = "toy"
tokens = [1, 4, 32]
[model]
name = "Kimi-K3"
tensor_parallel = [8, 16, 8]
[budget]
trials = 10
"""

SHAPES = """
name = "toy"
tokens = [1, 4, 32]
[[shapes]]
operator = "toy"
n = 1536
k = 7168
[budget]
trials = 10
"""


def test_a_model_at_two_degrees() -> None:
    campaign = parse_campaign(GOOD)
    found = campaign.workloads()
    assert [(w["n"], w.tokens) for w in found] == [(n, tokens) for n in (896, 448) for tokens in (1, 4, 32)]
    assert campaign.measuring_regime() == Regime("cold", "graph")
    assert campaign.text == GOOD


def test_a_shape_can_have_tokens_of_its_own() -> None:
    text = 'name="x"\ntokens=[1, 2]\n[[shapes]]\noperator="toy"\nn=8\nk=8\n'
    campaign = parse_campaign(f'{text}[[shapes]]\noperator="toy"\nn=16\nk=8\ntokens=[2, 5]\n')
    assert [(workload["n"], workload.tokens) for workload in campaign.workloads()] == [(8, 1), (8, 2), (16, 2), (16, 5)]
    with pytest.raises(MegatuneError, match=r"shapes\[0\].tokens: has to be a list, not 3$"):
        parse_campaign(f"{text}tokens=3\n")


def test_explicit_shapes_follow_the_model_and_are_not_repeated() -> None:
    text = GOOD + '[[shapes]]\noperator="toy"\nn=448\nk=7168\n[[shapes]]\noperator="toy"\nn=8\nk=8\ndtype="fp8"\n'
    found = parse_campaign(text).workloads()
    assert len(found) == len(set(found)) == 9
    assert [(w["n"], w.dtype) for w in found[6:]] == [(8, "fp8")] * 3


def test_spaces_are_restricted_by_variant_and_value() -> None:
    campaign = parse_campaign(SHAPES + "[space.simt]\nblock = [64]\nstatic = [true]\n[space.mma]\nsplit = [1]\n")
    spaces = campaign.spaces(SM90)
    # Listing what is legal takes its time: it is done once.
    assert all(campaign.spaces(SM90)[workload] is space for workload, space in spaces.items())
    one, _, many = spaces.values()
    assert {c.params["block"] for c in one.configs if c.variant == "simt"} == {64}
    assert {v.variant for v in one.variants} == {"simt", "mma"}
    # Above 16 tokens the operator has no simt variant: its restrictions do not hurt.
    assert {c.variant for c in many.configs} == {"mma"}


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "campaign.toml"
    path.write_text(GOOD)
    assert load_campaign(path).source == str(path)
    with pytest.raises(MegatuneError, match=r"cannot read campaign file .*nowhere"):
        load_campaign(tmp_path / "nowhere.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(MegatuneError, match="not UTF-8"):
        load_campaign(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "file.toml: not TOML: Invalid value"),
        ("", "file.toml: name: missing (and 1 more)"),
        (GOOD + "trails = 3", "budget.trails: unknown key, did you mean 'trials'?; allowed: trials, minutes, "),
        ("token = [1]\n" + GOOD, "file.toml: token: unknown key, did you mean 'tokens'?; allowed: name, tokens, "),
        ('"a\\nb" = 1\n' + GOOD, "'a\\nb': unknown key; allowed: name, "),
        (GOOD.replace("trials = 10", "finalists = 2"), "budget: a campaign has to end: give trials (a cell), minutes"),
        (GOOD.replace("tokens", "toknes"), "toknes: unknown key, did you mean 'tokens'?; allowed: name, tokens, "),
        (GOOD.replace("10", "0"), "budget.trials: has to be greater than 0, not 0"),
        (GOOD.replace("10", "true"), "budget.trials: has to be a whole number, not true"),
        (GOOD.replace("10", '"ten"'), "budget.trials: has to be a whole number, not 'ten'"),
        (GOOD.replace("trials = 10", 'minutes = "ten"'), "budget.minutes: has to be a number, not 'ten'"),
        (GOOD.replace("trials = 10", "minutes = inf"), "budget.minutes: has to be a finite number, not inf"),
        (GOOD + "[crossovers]\nrefin = true", "crossovers.refin: unknown key, did you mean 'refine'?; allowed: refine"),
        (GOOD + "[crossovers]\nrefine = 1", "crossovers.refine: has to be true or false, not 1"),
        (
            GOOD + "finalists = 0\n[crossovers]\nrefine = true",
            "file.toml: crossovers.refine compares finalists: budget.finalists has to be at least 1",
        ),
        (GOOD + "[record]\naround_crossovers = 25", "record.around_crossovers: has to be less than 1.0, not 25"),
        (GOOD + "[record]\naround_crossovers = 0", "record.around_crossovers: has to be greater than 0.0, not 0"),
        (
            GOOD + "finalists = 0\n[record]\naround_crossovers = 0.25",
            "file.toml: record.around_crossovers compares finalists: budget.finalists has to be at least 1",
        ),
        (GOOD.replace("[1, 4, 32]", "[]"), "tokens: has to be a list with at least one value, not []"),
        (GOOD.replace("[1, 4, 32]", "8"), "tokens: has to be a list, not 8"),
        (GOOD.replace("[1, 4, 32]", "[1, -4]"), "tokens[1]: has to be greater than 0, not -4"),
        (GOOD.replace("[model]", "[[model]]"), "model: has to be a table, not a list of tables; write [model]"),
        (SHAPES.replace("[[shapes]]", "[shapes]"), "shapes: has to be a list, not a table"),
        ("space = 1\n" + SHAPES, "space: has to be a table, not 1"),
        (
            GOOD.replace("Kimi-K3", "Kimi-K33"),
            "model.name: no model 'Kimi-K33' in the catalogue; did you mean: Kimi-K3",
        ),
        (GOOD.replace("[8, 16, 8]", "0"), "model.tensor_parallel: has to be greater than 0 or a list, not 0"),
        (GOOD.replace("[8, 16, 8]", "[8, 0]"), "file.toml: model.tensor_parallel[1]: has to be greater than 0, not 0"),
        (
            GOOD.replace("[8, 16, 8]", "{a = 1}"),
            "model.tensor_parallel: has to be a whole number or a list, not a table",
        ),
        (GOOD.replace('"toy"', '"to y"'), "name: has to be 1 to 100 letters, digits, dots, dashes and underscores"),
        (GOOD.replace('"toy"', "1"), "name: has to be text in quotes, not 1"),
        (
            GOOD.replace("[model]", 'operators = ["tyo"]\n[model]'),
            "operators: unknown operator 'tyo'; allowed: toy, did",
        ),
        (SHAPES.replace("k = 7168", "k = 7169"), "shapes[0] at tokens 1: k=7169: has to be a multiple of 8"),
        (SHAPES.replace("k = 7168", "kk = 7168"), "shapes[0] at tokens 1: toy needs the dims k, n, not kk, n"),
        (SHAPES.replace("k = 7168", "k = 1.5"), "shapes[0].k: has to be a whole number, not 1.5"),
        (
            SHAPES.replace("operator", "operater"),
            "shapes[0].operater: has to be a whole number, not 'toy', did you mean ",
        ),
        (SHAPES.replace('operator = "toy"', ""), "shapes[0].operator: missing"),
        ('name = "x"\ntokens = [1]\n[budget]\ntrials = 1', "file.toml: nothing to tune: give [model] or [[shapes]]"),
        (SHAPES + '[sampler]\nkind = "tpee"', "random, not 'tpee', did you mean 'tpe'?"),
        (SHAPES + '[runner]\nkind = "replay"', 'runner: kind = "replay" needs a recording'),
        (SHAPES + '[runner]\nrecording = "x"', 'runner: kind = "replay" needs a recording'),
        (SHAPES + "[[runner]]", "runner: has to be a table, not a list of tables; write [runner]"),
        (SHAPES + '[regime]\nweights = "hot"', "regime.weights: has to be one of cold, warm, not 'hot'"),
        (SHAPES + "[space.simt]\nblock = []", "space.simt.block: has to be a list with at least one value, not []"),
        (
            SHAPES + "[space.simt]\nblock = [1.5]",
            "space.simt.block[0]: has to be true or false or a whole number or text in quotes, not 1.5",
        ),
    ],
)
def test_broken_files_are_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(MegatuneError) as caught:
        parse_campaign(text, source="file.toml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("file.toml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'variants = ["smit"]\n' + SHAPES,
            "variants: unknown variant 'smit', did you mean 'simt'?; allowed: simt, mma",
        ),
        (
            SHAPES + "[space.smit]\nblock = [64]",
            "space.smit: unknown variant, did you mean 'simt'?; allowed: simt, mma",
        ),
        (
            SHAPES + "[space.simt]\nblocks = [64]",
            "space.simt.blocks: unknown parameter, did you mean 'block'?; allowed",
        ),
        (SHAPES + "[space.simt]\nblock = [65]", "space.simt.block: 65 is no value; allowed: 32, 64, 96"),
        (SHAPES + "[space.simt]\nstatic = [1]", "space.simt.static: 1 is no value; allowed: false, true"),
        ('variants = ["simt"]\n' + SHAPES, "variants: no legal config is left for toy k=7168,n=1536 tokens=32"),
        (
            SHAPES + "[space.mma]\ntile=[128]\nstages=[6]",
            "space: no legal config is left for toy k=7168,n=1536 tokens=32",
        ),
        ('arch = "sm_100a"\n' + SHAPES, "arch: sm_100a is asked for, but the runner's target is sm_90a"),
    ],
)
def test_broken_spaces_are_said_in_one_line(text: str, message: str) -> None:
    campaign = parse_campaign(text, source="file.toml")
    with pytest.raises(MegatuneError, match=re.escape(f"file.toml: {message}")):
        campaign.spaces(SM90)


def test_an_arch_in_the_file_checks_the_spaces_at_once() -> None:
    with pytest.raises(MegatuneError, match=r"x.toml: space.simt.block: 65 is no value"):
        parse_campaign('arch = "sm_90a"\n' + SHAPES + "[space.simt]\nblock = [65]", "x.toml")
    with pytest.raises(MegatuneError, match=r"x.toml: arch: no kernels for architecture 'sm_1'"):
        parse_campaign('arch = "sm_1"\n' + SHAPES, "x.toml")


scalars = st.integers(-3, 40) | st.sampled_from(["", "toy", "tpe", "x y", "é"]) | st.booleans()
keys = st.sampled_from(
    [
        "name",
        "tokens",
        "model",
        "budget",
        "trials",
        "seconds",
        "shapes",
        "operator",
        "n",
        "k",
        "space",
        "simt",
        "block",
        "sampler",
        "kind",
        "seed",
        "runner",
        "recording",
        "regime",
        "weights",
        "arch",
        "operators",
        "variants",
        "nonsense",
    ]
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)


def as_toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {as_toml(each)}" for key, each in value.items()) + "}"
    return str(value)


@given(st.dictionaries(keys, values, max_size=6), st.booleans())
def test_any_file_is_a_campaign_or_one_line(table: dict[str, object], from_good: bool) -> None:
    good = {"name": "x", "tokens": [1], "shapes": [{"operator": "toy", "n": 8, "k": 8}], "budget": {"trials": 1}}
    merged = {**good, **table} if from_good else table
    text = "\n".join(f"{key} = {as_toml(value)}" for key, value in merged.items())
    said = ""
    try:
        parse_campaign(text).spaces(SM90)
    except MegatuneError as error:
        said = str(error)
    assert "\n" not in said
