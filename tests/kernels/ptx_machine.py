"""Runs the PTX of small kernels, thread by thread in an order that chance chooses: what is compiled, with no GPU.

A kernel becomes a generator of Python, which a thread runs until it jumps back or comes to a barrier. Registers hold
bits; memory is 32-bit words that all kernels share, where a store is seen at once. What the kernels of this project do
not use is not known, and raises.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Sequence
from typing import Any

import numpy as np

from megatune_kernels.audit import ptx_statements
from megatune_kernels.audit import split_operands

Thread = Generator[str, None, None]
Kernel = Callable[..., Thread]
UNSET = 0xDEADBEEF


class Memory:
    """Words from address 0 on."""

    def __init__(self, size: int) -> None:
        self.words = [UNSET] * (size // 4)

    def load(self, address: int, count: int) -> list[int]:
        return self.words[self._at(address, count)]

    def store(self, address: int, values: Sequence[int]) -> None:
        self.words[self._at(address, len(values))] = values

    def store_all(self, address: int, words: np.ndarray) -> None:
        self.words[address // 4 : address // 4 + len(words)] = words.tolist()

    def load_all(self, address: int, size: int) -> np.ndarray:
        return np.array(self.words[address // 4 : (address + size) // 4], dtype=np.uint32)

    def _at(self, address: int, count: int) -> slice:
        assert address % (4 * count) == 0, "misaligned address"
        first = address // 4
        assert 0 <= first <= len(self.words) - count, "illegal address"
        return slice(first, first + count)


def float_of(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def bits_of(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def add_f32(a: int, b: int) -> int:
    # A sum of two FP32 in float64 is exact enough to be rounded once more without harm.
    return bits_of(float_of(a) + float_of(b))


def rounded_bf16(bits: int) -> int:
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def add_bf16x2(a: int, b: int) -> int:
    halves = (rounded_bf16(add_f32(a >> s << 16 & 0xFFFF0000, b >> s << 16 & 0xFFFF0000)) for s in (0, 16))
    low, high = halves
    return high << 16 | low


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def prmt(a: int, b: int, selector: int) -> int:
    pool = (b << 32 | a).to_bytes(8, "little")
    assert selector & 0x8888 == 0, "sign replication"
    return int.from_bytes(bytes(pool[selector >> 4 * i & 7] for i in range(4)), "little")


def dp2a_lo(a: int, b: int, c: int) -> int:
    return (c + (a & 0xFFFF) * (b & 0xFF) + (a >> 16) * (b >> 8 & 0xFF)) & 0xFFFFFFFF


BITS = {"8": 8, "16": 16, "32": 32, "64": 64}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
SIMPLE = {"add": "{} + {}", "sub": "{} - {}", "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "neg": "-{}"}
FUNCTIONS = {
    "add.f32": "add_f32",
    "add.rn.f32": "add_f32",
    "add.rn.bf16x2": "add_bf16x2",
    "prmt.b32": "prmt",
    "dp2a.lo.u32.u32": "dp2a_lo",
}


def kernel_of(ptx: str) -> Kernel:
    """The kernel of a PTX text, as ``kernel(memory, parameters, thread, block, blocks)``.

    A timer is the memory's ``time``, and what is prefetched its ``prefetch``.
    """
    statements, labels = ptx_statements(ptx)
    starts = sorted({0, *labels.values()})
    lines = ["def kernel(memory, parameters, thread, block, blocks=1):"]
    registers = sorted({_name(r) for s in statements for r in re.findall(r"%?[\w$]+@\d+|%\w+", s) if "." not in r})
    lines += [f"    {' = '.join(registers)} = {UNSET}"]
    lines += ["    at = 0", "    while True:"]
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else len(statements)
        lines.append(f"        {'el' if number else ''}if at == {start}:")
        for i in range(start, end):
            lines += [f"            {line}" for line in _translated(statements[i], i, labels)]
        lines.append(f"            at = {end}")
    lines.append("        else: raise AssertionError('ran out of code')")
    made: dict[str, Any] = {}
    exec("\n".join(lines), globals(), made)
    return made["kernel"]


def _name(register: str) -> str:
    return "r_" + re.sub(r"\W", "_", register)


def _value(operand: str) -> str:
    if operand == "%tid.x":
        return "thread"
    if operand == "%ctaid.x":
        return "block"
    if operand == "%nctaid.x":
        return "blocks"
    if operand == "%globaltimer":
        return "memory.time()"
    if re.fullmatch(r"-?\d+|0[xX][0-9a-fA-F]+U?", operand):
        return operand.rstrip("U")
    return _name(operand)


def _address(operand: str) -> str:
    base, _, offset = operand.strip("[] ").partition("+")
    return f"({_value(base.strip())} + {offset.strip() or 0})"


def _vector(operand: str) -> list[str]:
    return [part.strip() for part in operand.strip("{} ").split(",")]


def _translated(statement: str, at: int, labels: dict[str, int]) -> list[str]:
    guard = re.fullmatch(r"@(!?)([%$\w@]+) (.+)", statement)
    body = guard[3] if guard else statement
    opcode, _, rest = body.partition(" ")
    lines = _plain(opcode, split_operands(rest) if rest else [], at, labels)
    if not guard:
        return lines
    return [f"if {'not ' if guard[1] else ''}{_name(guard[2])}:", *(f"    {line}" for line in lines)]


def _plain(opcode: str, args: list[str], at: int, labels: dict[str, int]) -> list[str]:
    kind, *modifiers = opcode.split(".")
    if kind in ("griddepcontrol", "nanosleep"):
        return ["pass"]
    if kind == "bra":
        target = labels[args[0]]
        return [f"at = {target}", *(["yield 'back'"] if target <= at else []), "continue"]
    if kind == "ret":
        return ["return"]
    if opcode == "bar.sync":
        return ["yield 'barrier'"]
    if kind == "ld" and modifiers[0] == "param":
        index = re.search(r"param_(\d+)\]", args[1])
        assert index
        return [f"{_name(args[0])} = parameters[{index[1]}]"]
    if opcode == "cp.async.bulk.prefetch.L2.global":
        return [f"memory.prefetch({_address(args[0])}, {_value(args[1])})"]
    if kind == "ld" and modifiers[-1] == "b64":
        wanted = [_name(part) for part in _vector(args[0])]
        lines = [f"words = memory.load({_address(args[1])}, {2 * len(wanted)})"]
        return lines + [f"{name} = words[{2 * i}] | words[{2 * i + 1}] << 32" for i, name in enumerate(wanted)]
    if kind == "ld":
        wanted = [_name(part) for part in _vector(args[0])]
        return [f"{', '.join(wanted)}, = memory.load({_address(args[1])}, {len(wanted)})"]
    if kind == "st":
        values = [_value(part) for part in _vector(args[1])]
        return [f"memory.store({_address(args[0])}, [{', '.join(f'{v} & 0xFFFFFFFF' for v in values)}])"]
    result, *sources = (_value(arg) for arg in args)
    return [f"{result} = {_expression(opcode, kind, modifiers, sources)}"]


def _expression(opcode: str, kind: str, modifiers: list[str], sources: list[str]) -> str:
    if opcode in FUNCTIONS:
        return f"{FUNCTIONS[opcode]}({', '.join(f'{s} & 0xFFFFFFFF' for s in sources)})"
    if opcode == "cvt.rn.bf16x2.f32":
        return f"rounded_bf16({sources[0]}) << 16 | rounded_bf16({sources[1]})"
    if modifiers[-1] == "pred":
        return "bool(" + SIMPLE[kind].format(*sources) + ")"
    type_ = modifiers[-1]
    bits = BITS[type_[1:]]
    mask = (1 << bits) - 1

    def typed(source: str) -> str:
        return f"signed({source} & {mask}, {bits})" if type_[0] == "s" else f"({source} & {mask})"

    if kind == "mov":
        return f"{sources[0]} & {mask}"
    if kind in SIMPLE:
        return f"({SIMPLE[kind].format(*sources)}) & {mask}"
    if kind in ("min", "max"):
        return f"{kind}({typed(sources[0])}, {typed(sources[1])}) & {mask}"
    if kind == "div" and type_[0] == "u":
        return f"{typed(sources[0])} // {typed(sources[1])}"
    if kind == "mul" and modifiers[0] == "wide":
        return f"({typed(sources[0])} * {typed(sources[1])}) & {(1 << 2 * bits) - 1}"
    if kind == "mul" and modifiers[0] == "hi":
        return f"({typed(sources[0])} * {typed(sources[1])} >> {bits}) & {mask}"
    if kind == "mul" and modifiers[0] == "lo":
        return f"({sources[0]} * {sources[1]}) & {mask}"
    if kind == "mad" and modifiers[0] == "lo":
        return f"({sources[0]} * {sources[1]} + {sources[2]}) & {mask}"
    if kind == "shl":
        return f"({sources[0]} << {sources[1]}) & {mask}"
    if kind == "shr":
        return f"({typed(sources[0])} >> {sources[1]}) & {mask}"
    if kind == "selp":
        return f"({sources[0]} if {sources[2]} else {sources[1]}) & {mask}"
    if kind == "cvt":
        to = (1 << BITS[modifiers[0][1:]]) - 1
        return f"{typed(sources[0])} & {to}"
    if kind == "setp":
        compared = f"{typed(sources[0])} {COMPARE[modifiers[0]]} {typed(sources[1])}"
        return f"{compared} {modifiers[1]} {sources[2]}" if len(modifiers) == 3 else compared
    raise NotImplementedError(opcode)


class Launches:
    """The launches of one rank, one behind the other."""

    def __init__(self, kernel: Kernel, grid: int, threads: int, parameters: Sequence[Sequence[int]]) -> None:
        self._kernel, self._grid, self._threads = kernel, grid, threads
        self._parameters = parameters
        self.done = -1
        self.live: list[tuple[int, Thread]] = []
        self._waiting: dict[int, list[tuple[int, Thread]]] = {}
        self._left: list[int] = []

    def begin(self, memory: Memory) -> bool:
        """Start the next launch; false when there is none."""
        self.done += 1
        if self.done == len(self._parameters):
            return False
        values = self._parameters[self.done]
        self.live = [
            (block, self._kernel(memory, values, thread, block))
            for block in range(self._grid)
            for thread in range(self._threads)
        ]
        self._left = [self._threads] * self._grid
        self._waiting = {block: [] for block in range(self._grid)}
        return True

    def step(self, chance: random.Random) -> None:
        """Run one thread up to its next jump back, barrier or end."""
        i = chance.randrange(len(self.live))
        block, thread = self.live[i]
        came = next(thread, "end")
        if came == "back":
            return
        self.live[i] = self.live[-1]
        self.live.pop()
        if came == "barrier":
            self._waiting[block].append((block, thread))
        else:
            self._left[block] -= 1
        if len(self._waiting[block]) == self._left[block]:
            self.live += self._waiting[block]
            self._waiting[block] = []


def run(memory: Memory, ranks: Sequence[Launches], chance: random.Random, most_steps: int) -> None:
    """Run every rank's launches to their end, all at once; whoever begins or lags is chance.

    :param most_steps: how often threads may jump back, come to a barrier or end, all together.
    :raises AssertionError: when the launches have not ended by then.
    """
    active = [rank for rank in ranks if rank.begin(memory)]
    steps = 0
    while active:
        rank = chance.choice(active)
        for _ in range(chance.randrange(1, 200)):
            if not rank.live:
                if not rank.begin(memory):
                    active.remove(rank)
                break
            rank.step(chance)
            steps += 1
        assert steps <= most_steps, "the launches do not end"
