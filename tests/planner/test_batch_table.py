from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from runtime_sources import run
from runtime_sources import source

from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters.batch_table import MAX_BATCH
from megatune_planner.exporters.batch_table import SAMPLES
from megatune_planner.exporters.batch_table import check
from megatune_planner.exporters.batch_table import parse
from megatune_planner.exporters.batch_table import spell

SHIPPED = (
    "33-64:1",
    "17-64:1",
    "",
    "1:96.100,2-3:96,4-7:64,8:32",
    "1-8:1024",
    "9-16:0",
    "1-4:4.14.0.1.0,5-32:16.7.16.5.2,33-64:16.14.16.5.2",
    "9-12:6,13-24:4,25-64:2",
)
"""Tables of vLLM 0.33.0."""

VALUES = st.one_of(
    st.integers(-(2**31), 2**31),
    st.tuples(st.integers(-999, 999), st.integers(0, 999)),
    st.lists(st.integers(0, 99), min_size=2, max_size=6).map(tuple),
    st.sampled_from(["trtllm", "umma_2", "a"]),
)
TABLES = st.dictionaries(st.integers(1, MAX_BATCH), VALUES, max_size=24)
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def as_documented(text: str) -> dict[int, Any]:
    """How vLLM says that it reads a table: item by item, later ones over earlier ones."""
    found: dict[int, Any] = {}
    for item in text.split(",") if text else []:
        batches, value = item.split(":")
        first, *rest = batches.split("-")
        parts = value.split(".")
        try:
            meant: Any = [int(part) for part in parts]
        except ValueError:
            meant = value
        if isinstance(meant, list):
            meant = tuple(meant) if len(meant) > 1 else meant[0]
        for batch in range(int(first), int(rest[0] if rest else first) + 1):
            found[batch] = meant
    return found


@unhurried
@given(TABLES)
def test_what_is_spelled_is_read_back(table: dict[int, Any]) -> None:
    text = spell(table)
    assert parse(text) == as_documented(text) == table


@unhurried
@given(TABLES)
def test_no_shorter_text_says_the_same(table: dict[int, Any]) -> None:
    items = [item for item in spell(table).split(",") if item]
    changes = sum(table.get(batch) != table.get(batch - 1) for batch in table)
    assert len(items) == changes


@pytest.mark.parametrize("text", SHIPPED)
def test_tables_that_vllm_ships_are_read_and_spelled_again(text: str) -> None:
    assert parse(text) == as_documented(text)
    assert spell(parse(text)) == text


def test_later_items_win() -> None:
    assert parse("1-4:1,2-3:0") == as_documented("1-4:1,2-3:0") == {1: 1, 2: 0, 3: 0, 4: 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("16-9:1", "reversed"),
        ("1-2:", "no item"),
        ("16", "no item"),
        (":1", "no item"),
        ("-4:1", "no item"),
        ("1-:1", "no item"),
        ("1:1,", "no item"),
        ("1:1,,2:1", "no item"),
        (",1:1", "no item"),
        ("1:1:1", "no item"),
        ("0:1", "no item"),
        ("01:1", "no item"),
        ("1 :1", "no item"),
        (" 1:1", "no item"),
        ("1_0:1", "no item"),
        ("١:1", "no item"),  # noqa: RUF001  (a digit to Python)
        ("1:1\n", "the value must be"),
        ("1:--5", "the value must be"),
        ("1:1.", "the value must be"),
        ("1:1.a", "the value must be"),
        ("1:On", "the value must be"),
        ("1:-0", "the value must be"),
        ("1:01", "the value must be"),
        ("65:1", "end at 64 tokens"),
        ("9-65:1", "end at 64 tokens"),
        ("1-99999999999999999999:1", "end at 64 tokens"),
    ],
)
def test_what_vllm_reads_as_something_else_is_refused(text: str, says: str) -> None:
    with pytest.raises(MegatuneError, match=says):
        parse(text)


@pytest.mark.parametrize("table", [{0: 1}, {65: 1}, {1: ""}, {1: "a,b"}, {1: "1"}, {1: (1,)}, {1: ()}, {1: True}])
def test_what_the_grammar_cannot_say_is_not_spelled(table: dict[int, Any]) -> None:
    with pytest.raises(MegatuneError):
        spell(table)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("33-64:1", ""),
        ("34-64:1", "says None at 33 tokens, and should say 1"),
        ("32-64:1", "says 1 at 32 tokens, and should say None"),
        ("33-63:1,64:0", "says 0 at 64 tokens, and should say 1"),
        ("33-63:1,64:on", "says 'on' at 64 tokens, and should say 1"),
    ],
)
def test_texts_are_compared_batch_by_batch(text: str, says: str) -> None:
    table = dict.fromkeys(range(33, 65), 1)
    if says:
        with pytest.raises(MegatuneError, match=says):
            check(text, table)
    else:
        check(text, table)


def test_vllm_reads_tables_alike() -> None:
    """The reader of its release runs for real."""
    path = "vllm/models/kimi_k3/nvidia/specialized_decode/cutedsl/common/policy.py"
    policy = run(source("vllm", "0.33.0", path), "policy_of_a_release")

    @unhurried
    @given(TABLES)
    def alike(table: dict[int, Any]) -> None:
        assert policy.batch_table(spell(table)) == table

    alike()
    for text in (*SHIPPED, *SAMPLES, "1-4:1,2-3:0"):
        assert policy.batch_table(text) == parse(text)
