"""How parts are enqueued: what has ended, and what has not, when a part begins."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Part
from megatune_kernels.operator import Workload
from megatune_kernels.parts import Record
from megatune_kernels.parts import Run
from megatune_kernels.parts import Wait
from megatune_kernels.parts import schedule
from megatune_kernels.space import Config

WORKLOAD = Workload.of("any", {}, 1)


def part(name: str, stream: int = 0, after: Sequence[str] = ()) -> Part:
    return Part(name, WORKLOAD, Config("any"), stream, tuple(after))


def behind(parts: Sequence[Part], times: int = 1) -> dict[str, set[str]]:
    """By part, with the number of its repetition, what has to have ended before it begins; ``end`` is a last launch on
    stream 0. As a device does it: a stream is in order, and an event holds what its stream had."""
    had: dict[int, set[str]] = {}
    events: dict[str, set[str]] = {}
    found: dict[str, set[str]] = {}
    for turn in range(times):
        for step in schedule(parts):
            match step:
                case Run(each):
                    before = had.setdefault(each.stream, set())
                    found[f"{each.name}{turn}"] = set(before)
                    before.add(f"{each.name}{turn}")
                case Record(stream, event):
                    events[event] = set(had.get(stream, set()))
                case Wait(stream, event):
                    had.setdefault(stream, set()).update(events[event])
    return {**found, "end": had[0]}


def test_a_part_on_another_stream_runs_beside_and_is_waited_for_at_the_end() -> None:
    order = behind([part("fetch", 1), part("idle"), part("read")], times=2)
    assert order["fetch0"] == order["idle0"] == set()
    assert order["read0"] == {"idle0"}
    first = {"fetch0", "idle0", "read0"}
    assert order["fetch1"] == order["idle1"] == first
    assert order["read1"] == first | {"idle1"}
    assert order["end"] == first | {"fetch1", "idle1", "read1"}


def test_a_part_can_begin_behind_others_on_other_streams() -> None:
    order = behind([part("idle"), part("one"), part("two", 1, ["idle"]), part("three", 0, ["two"])])
    assert order["two0"] == {"idle0"}
    assert order["three0"] == {"idle0", "one0", "two0"}
    assert order["end"] == {"idle0", "one0", "two0", "three0"}


def test_one_kernel_is_one_step() -> None:
    only = part("only")
    assert schedule([only]) == (Run(only),)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([part("a", 0, ["b"]), part("b", 1)], "part a: after b: there is no such part before it; there are none"),
        ([part("a"), part("b", 1, ["c"])], "part b: after c: there is no such part before it; there are a"),
        ([part("a"), part("a", 1)], "part a: there are two of that name"),
        ([part("begin")], "part begin: there are two of that name"),
    ],
)
def test_parts_that_cannot_be_scheduled_are_named(parts: list[Part], said: str) -> None:
    with pytest.raises(MegatuneError, match=f"^{said}$"):
        schedule(parts)


@st.composite
def many(draw: st.DrawFn) -> list[Part]:
    found: list[Part] = []
    for number in range(draw(st.integers(1, 6))):
        names = [each.name for each in found]
        after = draw(st.lists(st.sampled_from(names), unique=True, max_size=2)) if names else []
        found.append(part(f"p{number}_", draw(st.integers(0, 3)), after))
    return found


@given(many())
def test_every_part_waits_for_what_it_says_and_the_next_launch_for_all(parts: list[Part]) -> None:
    order = behind(parts, times=2)
    first = {f"{each.name}0" for each in parts}
    for each in parts:
        assert {f"{name}0" for name in each.after} <= order[f"{each.name}0"]
        assert first <= order[f"{each.name}1"]
        assert {f"{name}1" for name in each.after} <= order[f"{each.name}1"]
    assert order["end"] == first | {f"{each.name}1" for each in parts}
