"""Spaces: what is legal, how it is enumerated, restricted and approached."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.space import Constraint
from megatune_kernels.space import Parameter
from megatune_kernels.space import Params
from megatune_kernels.space import Space
from megatune_kernels.space import VariantSpace
from megatune_kernels.space import derived
from megatune_kernels.target import ARCHITECTURES
from megatune_kernels.target import architecture

SMALL = Space(
    (
        VariantSpace(
            "a",
            (Parameter("x", (1, 2, 4, 8), 2, ""), Parameter("y", (False, True), True, "")),
            (Constraint("odd", "x of 8 needs y", lambda p: p["x"] != 8 or bool(p["y"])),),
        ),
        VariantSpace("b", (Parameter("z", ("p", "q"), "p", ""),)),
    )
)

workloads = st.builds(
    lambda n, k, tokens: operator("projection").workload({"n": n, "k": 8 * k}, tokens),
    st.integers(1, 30000),
    st.integers(1, 2048),
    st.integers(1, 64),
)


def test_the_order_of_enumeration_is_fixed() -> None:
    assert [str(config) for config in SMALL.configs][:3] == ["a x=1 y=False", "a x=1 y=True", "a x=2 y=False"]
    assert len(SMALL) == 9


def test_violations_name_the_parameter_the_rule_and_what_is_allowed() -> None:
    assert SMALL.violations(Config.of("a", {"x": 8, "y": False})) == ["odd: x of 8 needs y"]
    assert SMALL.violations(Config.of("a", {"x": 3, "y": True})) == ["x=3: allowed are 1, 2, 4, 8"]
    assert SMALL.violations(Config.of("a", {"x": 1})) == ["y: missing"]
    assert SMALL.violations(Config.of("a", {"x": 1, "y": True, "q": 1})) == ["q: not a parameter of a"]
    assert SMALL.violations(Config.of("c", {})) == ["variant c: allowed are a, b"]
    assert SMALL.violations(Config.of("a", {"x": 8, "y": True})) == []


def test_the_nearest_config_counts_steps_along_the_axes() -> None:
    assert SMALL.nearest(Config.of("a", {"x": 8, "y": False})) == Config.of("a", {"x": 4, "y": False})
    # A value that no axis knows is as far as the axis is long, and the rest decides.
    assert SMALL.nearest(Config.of("a", {"x": 99, "y": True})) == Config.of("a", {"x": 1, "y": True})
    assert SMALL.nearest(Config.of("c", {})) is None


def test_a_restriction_keeps_what_is_named_and_refuses_what_is_not_there() -> None:
    restricted = SMALL.restricted(["a"], {"a": {"x": [4, 8]}})
    assert {str(config) for config in restricted.configs} == {"a x=4 y=False", "a x=4 y=True", "a x=8 y=True"}
    assert restricted.defaults() == (Config.of("a", {"x": 4, "y": True}),)
    for variants, values, words in (
        (["c"], {}, "unknown variant 'c'; allowed: a, b"),
        (None, {"a": {"w": [1]}}, "unknown parameter a.w; allowed: x, y"),
        (None, {"a": {"x": [3]}}, "a.x cannot be"),
        (None, {"a": {"x": []}}, "a.x cannot be empty"),
    ):
        with pytest.raises(MegatuneError, match=words):
            SMALL.restricted(variants, values)


def test_what_constraints_derive_is_made_once_for_each_config() -> None:
    made: list[int] = []

    def make(params: Params) -> int:
        made.append(int(params["x"]))
        return made[-1]

    get = derived(make)
    one, two = {"x": 1}, {"x": 2}
    assert [get(one), get(one), get(two), get(one)] == [1, 1, 2, 1]
    assert made == [1, 2, 1]


@settings(max_examples=25, deadline=None)
@given(workload=workloads, arch=st.sampled_from(sorted(ARCHITECTURES)), data=st.data())
def test_every_legal_projection_config_fits_the_hardware(workload: Workload, arch: str, data: st.DataObject) -> None:
    limits = architecture(arch)
    space = operator("projection").space(workload, limits)
    if not space.configs:
        return
    config = data.draw(st.sampled_from(space.configs))
    assert space.violations(config) == []
    launch = operator("projection").launch(workload, config)
    threads = launch.block[0]
    assert threads % 32 == 0
    assert threads <= 1024
    assert launch.shared_bytes <= limits.shared_bytes_a_block
    assert launch.grid[1] == launch.cluster[1] <= limits.cluster_blocks
    rows = config.params["rows"]
    assert isinstance(rows, int)
    # Every row belongs to a block, and no block is without one.
    assert (launch.grid[0] - 1) * rows < workload["n"] <= launch.grid[0] * rows


@settings(max_examples=50, deadline=None)
@given(workload=workloads)
def test_defaults_are_legal_and_a_workload_without_k_tiles_has_no_mma(workload: Workload) -> None:
    space = operator("projection").space(workload, architecture("sm_90a"))
    for config in space.defaults():
        assert config in space
    if workload["k"] % 32:
        assert "mma" not in space.by_variant


@pytest.mark.parametrize("dims", [{"n": 0, "k": 64}, {"n": 2**31, "k": 64}, {"n": 64, "k": 2**31}, {"n": 64, "k": 20}])
def test_impossible_shapes_are_refused(dims: dict[str, int]) -> None:
    with pytest.raises(MegatuneError, match="impossible"):
        operator("projection").workload(dims, 1)


@given(workloads)
@settings(max_examples=20, deadline=None)
def test_a_variant_has_configs_or_is_left_out(workload: Workload) -> None:
    for variant in operator("projection").space(workload, architecture("sm_90a")).variants:
        assert variant.has_configs
        assert next(variant.configs(), None) is not None


def test_a_variant_whose_defaults_are_not_legal_can_have_configs_all_the_same() -> None:
    odd = Constraint("odd", "", lambda p: p["x"] != 2)
    none = Constraint("none", "", lambda p: False)
    parameters = (Parameter("x", (1, 2), 2, ""),)
    assert VariantSpace("a", parameters, (odd,)).has_configs
    assert not VariantSpace("a", parameters, (none,)).has_configs


@given(
    data=st.data(),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    rules=st.lists(st.tuples(st.integers(0, 15), st.integers(1, 4), st.booleans()), max_size=4),
)
def test_rules_that_say_what_they_look_at_give_the_same_configs(
    data: st.DataObject, sizes: list[int], rules: list[tuple[int, int, bool]]
) -> None:
    parameters = tuple(Parameter(f"p{i}", tuple(range(size)), 0, "") for i, size in enumerate(sizes))
    names = [parameter.name for parameter in parameters]
    constraints = []
    for which, modulus, says in rules:
        of = [name for i, name in enumerate(names) if which >> i & 1] or names
        holds = _not_a_multiple(of, modulus)
        constraints.append(Constraint("rule", "", holds, frozenset(of) if says else frozenset()))
    variant = VariantSpace("v", parameters, tuple(constraints))
    points = [dict(zip(names, values, strict=True)) for values in itertools.product(*(p.values for p in parameters))]
    legal = [Config.of("v", point) for point in points if all(rule.holds(point) for rule in constraints)]
    assert list(variant.configs()) == legal
    if points:
        point = data.draw(st.sampled_from(points))
        assert (Config.of("v", point) in legal) == (not variant.violations(point))


def _not_a_multiple(names: list[str], modulus: int) -> Callable[[Params], bool]:
    return lambda params: sum(int(params[name]) + 1 for name in names) % (modulus + 1) != 0
