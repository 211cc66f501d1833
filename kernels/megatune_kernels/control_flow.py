"""Loops of compiled code, and what decides whether they end: control flow and reaching definitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Instruction:
    """As much of an instruction as matters for control flow and for what its operands are made of."""

    text: str
    writes: frozenset[str] = frozenset()
    """Registers."""
    reads: frozenset[str] = frozenset()
    guarded: bool = False
    """Whether it may be skipped."""
    targets: tuple[str, ...] = ()
    """Labels that it may jump to."""
    falls: bool = True
    """Whether the next instruction may follow."""
    load: bool = False
    """Whether it loads from global memory; what it loads is then not looked for in its operands."""
    strong: bool = False
    """Whether that load can be neither moved nor merged."""


@dataclass(frozen=True)
class Code:
    """Instructions in order, and which instruction each label stands before."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    @cached_property
    def _starts(self) -> list[int]:
        """The first instruction of each basic block, and the end."""
        count = len(self.instructions)
        starts = {0, count, *self.labels.values()}
        starts |= {i + 1 for i, one in enumerate(self.instructions) if one.targets or not one.falls}
        return sorted(start for start in starts if start <= count)

    @cached_property
    def _block_of(self) -> list[int]:
        pairs = zip(self._starts, self._starts[1:], strict=False)
        return [block for block, (first, end) in enumerate(pairs) for _ in range(first, end)]

    @cached_property
    def _after(self) -> list[set[int]]:
        """Which blocks can follow each."""
        found = []
        for end in self._starts[1:]:
            last = self.instructions[end - 1]
            following = {self.labels[target] for target in last.targets} | ({end} if last.falls else set())
            found.append({self._block_of[i] for i in following if i < len(self.instructions)})
        return found

    @cached_property
    def _before(self) -> list[set[int]]:
        found: list[set[int]] = [set() for _ in self._after]
        for block, following in enumerate(self._after):
            for after in following:
                found[after].add(block)
        return found

    @cached_property
    def _reached(self) -> set[int]:
        found, waiting = {0}, [0]
        while waiting:
            new = self._after[waiting.pop()] - found
            found |= new
            waiting.extend(new)
        return found

    def _between(self, head: int, tail: int) -> set[int]:
        """The blocks from which ``tail`` is reached without passing ``head``, and both."""
        found, waiting = {head, tail}, [tail] if tail != head else []
        while waiting:
            new = self._before[waiting.pop()] - found
            found |= new
            waiting.extend(new)
        return found

    def loops(self) -> Iterator[frozenset[int]]:
        """The instructions of every loop: what lies between its head and a jump back to it.

        A jump goes back when every way to it has passed the head. Each jump makes a loop of its own: two loops, one
        in the other, can begin with the same instruction.
        """
        for head in sorted(self._reached):
            for tail in sorted(self._before[head] & self._reached):
                body = self._between(head, tail)
                if head == 0 or 0 not in body:
                    yield frozenset(i for block in body for i in range(self._starts[block], self._starts[block + 1]))

    def exits(self, loop: frozenset[int]) -> list[int]:
        """The jumps by which a loop can be left, and those to its head: whether it goes on is their choice."""
        found = []
        for i in loop:
            one = self.instructions[i]
            following = {self.labels[target] for target in one.targets} | ({i + 1} if one.falls else set())
            if (one.targets or not one.falls) and one.guarded and not following <= loop:
                found.append(i)
        return found or [i for i in loop if self.instructions[i].targets]

    def _definitions(self, at: int, register: str) -> set[int]:
        """The instructions whose value of a register may be there before an instruction."""
        found: set[int] = set()
        seen: set[int] = set()
        waiting = [(self._block_of[at], at)]
        while waiting:
            block, end = waiting.pop()
            for i in range(end - 1, self._starts[block] - 1, -1):
                if register in self.instructions[i].writes:
                    found.add(i)
                    if not self.instructions[i].guarded:
                        break
            else:
                new = self._before[block] - seen
                seen |= new
                waiting.extend((b, self._starts[b + 1]) for b in new)
        return found

    def origins(self, at: int) -> dict[int, set[int]]:
        """What an instruction's operands are made of, back to loads: each instruction and what it is made of."""
        found: dict[int, set[int]] = {}
        waiting = [at]
        while waiting:
            i = waiting.pop()
            if i not in found:
                one = self.instructions[i]
                found[i] = set() if one.load else {j for name in one.reads for j in self._definitions(i, name)}
                waiting.extend(found[i])
        return found

    @staticmethod
    def changes(origins: dict[int, set[int]], loop: frozenset[int]) -> bool:
        """Whether something that is made in the loop depends on what the loop made before, as a count does."""
        for start in origins.keys() & loop:
            seen: set[int] = set()
            waiting = list(origins[start] & loop)
            while waiting:
                i = waiting.pop()
                if i == start:
                    return True
                if i not in seen:
                    seen.add(i)
                    waiting.extend(origins[i] & loop)
        return False
