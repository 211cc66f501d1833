from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatune_planner.guards import Piece
from megatune_planner.guards import guard_rows
from megatune_planner.guards import nearest_row


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece[str]]:
    starts = [1, *sorted(draw(st.sets(st.integers(2, 300), max_size=8)))]
    ends = [*(start - 1 for start in starts[1:]), None]
    return [(lo, hi, draw(st.sampled_from("abc"))) for lo, hi in zip(starts, ends, strict=True)]


@given(pieces())
def test_the_nearest_row_is_what_the_bands_say_at_every_tokens(found: list[Piece[str]]) -> None:
    rows = guard_rows(found)
    turned = dict(reversed(rows.items()))  # another order breaks ties otherwise
    for tokens in (*range(1, 330), 2048, 10**6):
        expected = next(value for lo, hi, value in found if lo <= tokens and (hi is None or tokens <= hi))
        assert nearest_row(rows, tokens) == nearest_row(turned, tokens) == expected


def test_a_decode_ladder_does_not_serve_prefills() -> None:
    ladder = {1: "a", 2: "a", 4: "b", 8: "b"}
    assert nearest_row(ladder, 2048) == "b"  # what tables without guards do
    rows = guard_rows([(1, 2, "a"), (3, 8, "b"), (9, None, "stock")])
    assert rows == {1: "a", 2: "a", 3: "b", 8: "b", 9: "stock"}
    assert nearest_row(rows, 2048) == "stock"


def test_neighbours_that_agree_are_one() -> None:
    assert guard_rows([(1, 4, "a"), (5, 8, "a"), (9, None, "a")]) == {1: "a"}


@pytest.mark.parametrize(
    "bad",
    [[], [(2, None, "a")], [(1, 4, "a")], [(1, 4, "a"), (6, None, "b")], [(1, 4, "a"), (4, None, "b")], [(1, 0, "a")]],
)
def test_pieces_that_do_not_tile_are_refused(bad: list[Piece[str]]) -> None:
    with pytest.raises(ValueError, match="must tile"):
        guard_rows(bad)
