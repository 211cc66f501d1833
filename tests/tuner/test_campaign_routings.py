"""Campaigns of operators for which it matters how tokens are spread over experts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import operators
from megatune_tuner.campaign_file import parse_campaign

MODEL = """
name = "experts"
operators = ["experts", "projection"]
tokens = [1, 8]
{more}
[model]
name = "Kimi-K3"
tensor_parallel = 8
"""
SHAPE = """
name = "experts"
tokens = [4]
{more}
[[shapes]]
operator = "experts"
dtype = "bf16"
experts = 64
k = 1024
top = 4
width = 128
{routing}
"""


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """In the place of the toys."""
    operators.cache_clear()
    yield
    operators.cache_clear()


def routings(text: str) -> list[tuple[str, int, str]]:
    return [(each.operator, each.tokens, each.routing) for each in parse_campaign(text).workloads()]


def test_every_routing_is_a_workload_of_its_own_where_it_matters() -> None:
    found = routings(MODEL.format(more='routings = ["balanced", "same"]'))
    experts = [each for each in found if each[0] == "experts"]
    assert experts == [("experts", tokens, name) for name in ("balanced", "same") for tokens in (1, 8)]
    assert {each[2] for each in found if each[0] == "projection"} == {"none"}
    assert {each[2] for each in routings(MODEL.format(more="")) if each[0] == "experts"} == {"power_law_1.01"}


def test_a_shape_has_the_campaigns_or_its_own() -> None:
    assert routings(SHAPE.format(more="", routing="")) == [("experts", 4, "power_law_1.01")]
    several = SHAPE.format(more='routings = ["same", "power_law_1.2"]', routing="")
    assert routings(several) == [("experts", 4, "same"), ("experts", 4, "power_law_1.2")]
    own = SHAPE.format(more='routings = ["same"]', routing='routing = "balanced"')
    assert routings(own) == [("experts", 4, "balanced")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            SHAPE.format(more='routings = ["zipf"]', routing=""),
            "routings: routing 'zipf' is unknown; allowed: balanced",
        ),
        (SHAPE.format(more="", routing='routing = "zipf"'), "shapes[0].routing: routing 'zipf' is unknown"),
        (
            MODEL.format(more='routings = ["same"]').replace('"experts", ', ""),
            "routings: no operator here depends on how tokens are spread over experts",
        ),
        (
            'name = "p"\ntokens = [1]\n[[shapes]]\noperator = "projection"\nn = 64\nk = 64\nrouting = "same"\n',
            "shapes[0].routing: projection has no routing 'same'",
        ),
    ],
)
def test_what_is_no_routing_is_refused_by_key(text: str, reason: str) -> None:
    with pytest.raises(MegatuneError, match=re.escape(reason)):
        parse_campaign(text).workloads()
