"""Guard rows: bands as rows of a table in which a runtime looks up the nearest key, without a fallback.

A table of what was tuned alone gives every other step the config of the nearest row, however far: a ladder for decode
steps then serves prefills. With rows at both ends of every band a row of the own band is nearer than any other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import TypeVar

Value = TypeVar("Value")

Piece = tuple[int, int | None, Value]
"""First tokens, last tokens (None: without end), and what serves them."""


def guard_rows(pieces: Sequence[Piece[Value]]) -> dict[int, Value]:
    """Rows by tokens, so that the nearest row to any number of tokens holds what its piece says.

    Two rows are equally near only where they are of one piece, so how the runtime breaks ties does not matter. What
    stock means at some tokens the caller says, as pieces like any other.

    :param pieces: ascending and tiling: the first begins at 1, the last has no end. Neighbours that agree become one.
    :raises ValueError: when they do not tile.
    """
    rows: dict[int, Value] = {}
    for lo, hi, value in _merged(pieces):
        rows[lo] = value
        if hi is not None:
            rows[hi] = value
    return rows


def nearest_row(rows: Mapping[int, Value], tokens: int) -> Value:
    """What a runtime with such a lookup finds; of two rows that are equally near the first."""
    return rows[min(rows, key=lambda key: abs(key - tokens))]


def _merged(pieces: Sequence[Piece[Value]]) -> list[Piece[Value]]:
    found: list[Piece[Value]] = []
    expected: int | None = 1
    for lo, hi, value in pieces:
        if lo != expected or (hi is not None and hi < lo):
            raise ValueError(f"pieces must tile the tokens, but one is {lo} to {hi} where {expected} is next")
        if found and found[-1][2] == value:
            lo = found.pop()[0]
        found.append((lo, hi, value))
        expected = None if hi is None else hi + 1
    if expected is not None:
        raise ValueError(f"pieces must tile the tokens, but none covers {expected} and more")
    return found
