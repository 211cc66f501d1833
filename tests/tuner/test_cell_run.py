"""A cell of a running campaign: who its finalists are."""

from __future__ import annotations

import pytest

from megatune_kernels.space import Config
from megatune_tuner.finals import finalists

A1, A2, A3, A4 = (Config.of("a", {"rows": rows}) for rows in (1, 2, 3, 4))
B1, B2 = (Config.of("b", {"tile": tile}) for tile in (16, 32))
C1 = Config.of("c", {})


@pytest.mark.parametrize(
    ("ranked", "count", "expected"),
    [
        ([A1, A2, A3, B1, B2, A4], 2, [A1, A2, B1]),
        ([A1, B1, A2, B2], 2, [A1, B1]),
        ([A1, B1, A2, B2], 3, [A1, B1, A2]),
        ([A1, A2, A3, A4], 2, [A1, A2]),
        ([A1, A2, C1, A3, B1], 1, [A1, C1, B1]),
        ([A1, B1], 10, [A1, B1]),
        ([A1, B1], 0, []),
        ([], 4, []),
    ],
)
def test_finalists_are_the_best_few_and_the_best_of_each_variant(
    ranked: list[Config], count: int, expected: list[Config]
) -> None:
    assert finalists(ranked, count) == expected


@pytest.mark.parametrize(
    ("curve_of", "expected"),
    [("", [A1, B1, C1]), ("rows", [A1, A2, B1, A3, C1]), ("tile", [A1, B1, B2, C1]), ("none_has_it", [A1, B1, C1])],
)
def test_the_best_of_each_value_of_a_curve_is_a_finalist(curve_of: str, expected: list[Config]) -> None:
    slower = Config.of("a", {"rows": 1, "tile": 8})
    ranked = [A1, A2, B1, B2, slower, A3, C1]
    chosen = finalists(ranked, 1, curve_of)
    assert [config for config in chosen if config != slower] == expected
    assert (slower in chosen) is (curve_of == "tile")
