"""Operands that are kept as long as there is room, on a GPU that only counts."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.torch

WHOLE = 100


class Memory:
    """Bytes that operands hold, and how often any were made."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.held: Any = None

    def make(self, name: str, size: int) -> tuple[str, int]:
        self.made.append(name)
        if self.used() + size > WHOLE:
            raise torch.cuda.OutOfMemoryError("no room")
        return name, size

    def used(self) -> int:
        return sum(size for _, size in self.held._kept.values())


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    from megatune_tuner.workers.held import Held

    memory = Memory()
    memory.held = Held()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (WHOLE - memory.used(), WHOLE))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return memory


def get(memory: Memory, name: str, size: int = 15) -> str:
    found: tuple[str, int] = memory.held.get(name, lambda: memory.make(name, size))
    return found[0]


def test_cells_that_take_turns_are_made_once(memory: Memory) -> None:
    for name in "abcabcabc":
        assert get(memory, name) == name
    assert memory.made == ["a", "b", "c"]


def test_half_of_the_memory_stays_free_at_the_cost_of_what_was_used_the_longest_ago(memory: Memory) -> None:
    for name in "abcad":
        get(memory, name)
    # For d, b had to go: a was used after it.
    assert memory.made == ["a", "b", "c", "d"]
    assert list(memory.held._kept) == ["c", "a", "d"]


def test_what_was_just_made_has_its_room_for_checking_too(memory: Memory) -> None:
    get(memory, "a", 30)
    get(memory, "b", 40)
    # With a, three tenths would be free: less than b's references may need.
    assert list(memory.held._kept) == ["b"]
    # What is larger than half itself stays, alone.
    get(memory, "c", 55)
    assert list(memory.held._kept) == ["c"]
    assert get(memory, "c", 55) == "c"
    assert memory.made == ["a", "b", "c"]


def test_what_finds_no_room_is_made_in_the_place_of_all_others(memory: Memory) -> None:
    get(memory, "a")
    get(memory, "b")
    assert get(memory, "large", 90) == "large"
    assert memory.made == ["a", "b", "large", "large"]
    memory.held.drop()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        get(memory, "too large", 101)
    assert get(memory, "a") == "a"
