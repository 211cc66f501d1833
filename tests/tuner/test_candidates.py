"""The catalogue of a cell agrees with the space that it is made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import Toy

from megatune_kernels.errors import MegatuneError
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_tuner.candidates import Catalogue

WORKLOAD = Toy().workload({"n": 1536, "k": 7168}, 4)
SPACE = Toy().space(WORKLOAD, architecture("sm_90a"))
WHOLE = Catalogue(SPACE)

values = st.none() | st.booleans() | st.integers(0, 300) | st.sampled_from(["none", "full", 64, 2, 4])
names = st.sampled_from(["block", "rows", "unroll", "static", "tile", "split", "stages", "swizzle", "other"])
params = st.dictionaries(names, values)


def steps(one: Config, other: Config) -> int:
    """The distance as the space's documentation has it."""
    total = 0
    for parameter in SPACE.by_variant[one.variant].parameters:
        wanted = other.params.get(parameter.name)
        known = wanted in parameter.values
        here = parameter.values.index(one.params[parameter.name])
        total += abs(parameter.values.index(wanted) - here) if known else len(parameter.values)
    return total


def test_it_holds_the_space_in_its_order() -> None:
    assert tuple(WHOLE.configs) == SPACE.configs
    assert [WHOLE.index[config] for config in SPACE.configs] == list(range(len(SPACE)))
    assert [WHOLE.configs[index] for index in WHOLE.defaults()] == list(SPACE.defaults())
    assert WHOLE.by_digest[SPACE.configs[7].digest] == 7


@given(st.sampled_from(["simt", "mma", "other"]), params)
def test_nearest_is_the_spaces(variant: str, wanted: dict[str, int]) -> None:
    config = Config.of(variant, {name: value for name, value in wanted.items() if value is not None})
    found, expected = WHOLE.nearest(config), SPACE.nearest(config)
    if found is None:
        assert expected is None
    else:
        assert expected is not None
        assert steps(WHOLE.configs[found], config) == steps(expected, config)


def test_what_the_space_does_not_have_is_left_out() -> None:
    some = [*SPACE.configs[:3], Config.of("stock", {}), Config.of("simt", {"block": 1}), SPACE.configs[-1]]
    found = Catalogue(SPACE, some)
    assert found.configs == [*SPACE.configs[:3], SPACE.configs[-1]]
    assert [group.name for group in found.groups] == ["simt", "mma"]


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(MegatuneError, match="no legal config"):
        Catalogue(SPACE, [Config.of("stock", {})])
