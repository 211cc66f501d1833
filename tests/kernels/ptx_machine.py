"""Runs the PTX of small kernels, thread by thread in an order that chance chooses: what is compiled, with no GPU.

A kernel becomes a generator of Python, which a thread runs until it jumps back, comes to a barrier or to what a warp
does together. Registers hold bits; memory is 32-bit words that all kernels share, where a store is seen at once. What
is copied asynchronously arrives when it is waited for, not earlier. What the kernels of this project do not use is not
known, and raises.
"""

from __future__ import annotations

import math
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

Thread = Generator[Any, Any, None]
WARP = 32
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

    def load_half(self, address: int) -> int:
        return self.load(address & ~3, 1)[0] >> 8 * (address & 2) & 0xFFFF

    def store_half(self, address: int, value: int) -> None:
        (word,) = self.load(address & ~3, 1)
        shift = 8 * (address & 2)
        self.store(address & ~3, [word & ~(0xFFFF << shift) & 0xFFFFFFFF | (value & 0xFFFF) << shift])

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
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def bits_of(value: float) -> int:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return int(struct.unpack("<I", packed)[0])


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


def quotient(a: int, b: int) -> int:
    """Rounded towards zero."""
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def prmt(a: int, b: int, selector: int) -> int:
    pool = (b << 32 | a).to_bytes(8, "little")
    assert selector & 0x8888 == 0, "sign replication"
    return int.from_bytes(bytes(pool[selector >> 4 * i & 7] for i in range(4)), "little")


def bf16_of(value: float) -> int:
    """The nearest BF16, subnormals among them."""
    return rounded_bf16(bits_of(value))


def mul_bf16x2(a: int, b: int) -> int:
    products = (float_of(a >> s << 16 & 0xFFFF0000) * float_of(b >> s << 16 & 0xFFFF0000) for s in (0, 16))
    low, high = (bf16_of(value) for value in products)
    return high << 16 | low


def fma_f32(a: int, b: int, c: int) -> int:
    return bits_of(float_of(a) * float_of(b) + float_of(c))


def sub_f32(a: int, b: int) -> int:
    return bits_of(float_of(a) - float_of(b))


def dp2a_lo(a: int, b: int, c: int) -> int:
    return (c + (a & 0xFFFF) * (b & 0xFF) + (a >> 16) * (b >> 8 & 0xFF)) & 0xFFFFFFFF


def mul_f32(a: int, b: int) -> int:
    return bits_of(float_of(a) * float_of(b))


def ex2_f32(a: int) -> int:
    value = float_of(a)
    return bits_of(math.inf if value > 128 else 2.0**value)


def rcp_f32(a: int) -> int:
    value = float_of(a)
    return bits_of(1.0 / value if value else math.inf)


def mma(lanes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """m16n8k16 of BF16 with FP32 sums; by lane the words of a (4), b (2) and c (4), with fragments as PTX lays them."""
    a, b = np.zeros((16, 16)), np.zeros((16, 8))
    places = [(lane // 4, lane % 4 * 2) for lane in range(WARP)]
    for (group, pair), words in zip(places, lanes, strict=True):
        for i in range(4):
            for half in range(2):
                a[group + i % 2 * 8, pair + half + i // 2 * 8] = float_of(words[i] >> 16 * half << 16 & 0xFFFF0000)
        for i in range(2):
            for half in range(2):
                b[pair + half + 8 * i, group] = float_of(words[4 + i] >> 16 * half << 16 & 0xFFFF0000)
    # Columns without a token are multiplied too, whatever lies there.
    with np.errstate(invalid="ignore", over="ignore"):
        product = a @ b
    return [
        tuple(bits_of(product[group + i // 2 * 8, pair + i % 2] + float_of(words[6 + i])) for i in range(4))
        for (group, pair), words in zip(places, lanes, strict=True)
    ]


def shuffled(how: str, lanes: Sequence[Sequence[int]]) -> list[int]:
    """By lane a value and what says which other lane's value it gets."""
    if how == "up":
        return [lanes[lane - other if lane >= other else lane][0] for lane, (_, other) in enumerate(lanes)]
    return [lanes[lane ^ other if how == "bfly" else other][0] for lane, (_, other) in enumerate(lanes)]


def ballot(lanes: Sequence[Sequence[int]]) -> list[int]:
    return [sum(bool(held) << lane for lane, (held,) in enumerate(lanes))] * WARP


TOGETHER: dict[str, Callable[[Sequence[Sequence[int]]], Sequence[Any]]] = {
    "mma": mma,
    "shfl.idx": lambda lanes: shuffled("idx", lanes),
    "shfl.up": lambda lanes: shuffled("up", lanes),
    "shfl.bfly": lambda lanes: shuffled("bfly", lanes),
    "vote": ballot,
    "sync": lambda lanes: [None] * WARP,
}
"""What the lanes of a warp do together, by name."""


class Copies:
    """A thread's asynchronous copies, by group."""

    def __init__(self) -> None:
        self._groups: list[list[tuple[Any, int, Any, int, int]]] = [[]]

    def start(self, to: Memory, there: int, source: Memory, address: int, size: int) -> None:
        self._groups[-1].append((to, there, source, address, size))

    def commit(self) -> None:
        self._groups.append([])

    def wait(self, left: int) -> None:
        """Until at most ``left`` of the groups that were committed are not done."""
        while len(self._groups) - 1 > left:
            for to, there, source, address, size in self._groups.pop(0):
                to.store(there, source.load(address, size // 4))


PEER_SHIFT = 24
"""Above an address in the shared memory of a cluster: the rank of the block."""

BITS = {"8": 8, "16": 16, "32": 32, "64": 64}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
SIMPLE = {
    "not": "~{}",
    "add": "{} + {}",
    "sub": "{} - {}",
    "and": "{} & {}",
    "or": "{} | {}",
    "xor": "{} ^ {}",
    "neg": "-{}",
}
FUNCTIONS = {
    "add.f32": "add_f32",
    "add.rn.f32": "add_f32",
    "add.rn.bf16x2": "add_bf16x2",
    "mul.f32": "mul_f32",
    "sub.f32": "sub_f32",
    "fma.rn.f32": "fma_f32",
    "mul.rn.bf16x2": "mul_bf16x2",
    "ex2.approx.ftz.f32": "ex2_f32",
    "rcp.approx.ftz.f32": "rcp_f32",
    "prmt.b32": "prmt",
    "dp2a.lo.u32.u32": "dp2a_lo",
}


def kernel_of(ptx: str) -> Kernel:
    """The kernel of a PTX text, as ``kernel(memory, parameters, thread, block, blocks, cluster, peer)``.

    A timer is the memory's ``time``, and what is prefetched its ``prefetch``. ``cluster`` is the shared memory of the
    blocks of a cluster, of which this is block ``peer``.
    """
    statements, labels = ptx_statements(ptx)
    starts = sorted({0, *labels.values()})
    lines = ["def kernel(memory, parameters, thread, block, blocks=1, cluster=(), peer=0):"]
    lines += ["    copies = Copies()", "    shared = cluster[peer] if cluster else None"]
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
    made: dict[str, Kernel] = {}
    exec("\n".join(lines), globals(), made)
    return made["kernel"]


def mask_of(bits: int) -> int:
    return (1 << bits) - 1


def _name(register: str) -> str:
    return "r_" + re.sub(r"\W", "_", register)


def _value(operand: str) -> str:
    if operand == "%tid.x":
        return "thread"
    if operand == "%ctaid.x":
        return "block"
    if operand == "%nctaid.x":
        return "blocks"
    if operand == "%ctaid.y":
        return "peer"
    if operand == "%lanemask_lt":
        return f"((1 << thread % {WARP}) - 1)"
    if operand.startswith("__dynamic_shmem"):
        return "0"
    if re.fullmatch(r"0f[0-9A-F]{8}", operand):
        return f"0x{operand[2:]}"
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
    if kind in ("griddepcontrol", "nanosleep", "fence"):
        return ["pass"]
    if kind == "bra":
        target = labels[args[0]]
        return [f"at = {target}", *(["yield 'back'"] if target <= at else []), "continue"]
    if kind == "ret":
        return ["return"]
    if opcode in ("bar.sync", "barrier.cluster.wait"):
        return [f"yield '{'barrier' if kind == 'bar' else 'cluster'}'"]
    if opcode == "barrier.cluster.arrive":
        return ["pass"]
    if kind in ("shfl", "vote", "mma") or opcode == "bar.warp.sync":
        return _together(opcode, kind, modifiers, args, at)
    if kind == "createpolicy":
        return ["pass"]
    if opcode.removesuffix(".L2::cache_hint") in ("cp.async.cg.shared.global", "cp.async.ca.shared.global"):
        return [f"copies.start(shared, {_address(args[0])}, memory, {_address(args[1])}, {args[2]})"]
    if opcode == "red.shared.or.b32":
        address = _address(args[0])
        return [f"shared.store({address}, [shared.load({address}, 1)[0] | {_value(args[1])} & 0xFFFFFFFF])"]
    if opcode == "atom.relaxed.gpu.global.add.u32":
        address, result = _address(args[1]), _name(args[0])
        lines = [f"{result}, = memory.load({address}, 1)"]
        return [*lines, f"memory.store({address}, [({result} + {_value(args[2])}) & 0xFFFFFFFF])"]
    if kind == "cp" and modifiers[1] in ("commit_group", "wait_group"):
        return ["copies.commit()" if modifiers[1] == "commit_group" else f"copies.wait({args[0]})"]
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
        where, address = "memory", _address(args[1])
        if modifiers[0] == "shared::cluster":
            where, address = f"cluster[{address} >> {PEER_SHIFT}]", f"{address} & {(1 << PEER_SHIFT) - 1}"
        elif modifiers[0] == "shared":
            where = "shared"
        if modifiers[-1] in ("u16", "b16"):
            return [f"{wanted[0]} = {where}.load_half({address})"]
        return [f"{', '.join(wanted)}, = {where}.load({address}, {len(wanted)})"]
    if kind == "st":
        values = [_value(part) for part in _vector(args[1])]
        where = "shared" if modifiers[0] == "shared" else "memory"
        if modifiers[-1] == "b16":
            return [f"{where}.store_half({_address(args[0])}, {values[0]})"]
        return [f"{where}.store({_address(args[0])}, [{', '.join(f'{v} & 0xFFFFFFFF' for v in values)}])"]
    result, *sources = (_value(arg) for arg in args)
    return [f"{result} = {_expression(opcode, kind, modifiers, sources)}"]


def _together(opcode: str, kind: str, modifiers: list[str], args: list[str], at: int) -> list[str]:
    """What a thread says and is told where its warp does something together; all lanes are at the same statement."""
    if kind == "mma":
        values = [_value(part) for arg in args[1:] for part in _vector(arg)]
        results = ", ".join(_name(part) for part in _vector(args[0]))
        return [f"{results} = yield ('mma', {at}, ({', '.join(values)}))"]
    if kind == "bar":
        return [f"yield ('sync', {at}, ())"]
    name = f"shfl.{modifiers[1]}" if kind == "shfl" else "vote"
    values = [_value(arg) for arg in args[1 : 3 if kind == "shfl" else 2]]
    return [f"{_name(args[0])} = yield ('{name}', {at}, ({', '.join(values)},))"]


def _expression(opcode: str, kind: str, modifiers: list[str], sources: list[str]) -> str:
    if opcode in FUNCTIONS:
        return f"{FUNCTIONS[opcode]}({', '.join(f'{s} & 0xFFFFFFFF' for s in sources)})"
    if opcode == "cvt.rn.bf16x2.f32":
        return f"rounded_bf16({sources[0]}) << 16 | rounded_bf16({sources[1]})"
    if modifiers[-1] == "pred":
        if kind in ("mov", "not"):
            return f"{'not ' if kind == 'not' else ''}bool({sources[0]})"
        return "bool(" + SIMPLE[kind].format(*sources) + ")"
    if kind == "mapa":
        return f"{sources[1]} << {PEER_SHIFT} | {sources[0]}"
    if opcode == "cvt.rn.bf16.f32":
        return f"rounded_bf16({sources[0]})"
    if kind == "setp" and modifiers[-1] == "f32" and len(sources) == 2 and modifiers[0] in COMPARE:
        return f"float_of({sources[0]} & 0xFFFFFFFF) {COMPARE[modifiers[0]]} float_of({sources[1]} & 0xFFFFFFFF)"
    if opcode == "setp.num.f32":
        return " and ".join(f"not math.isnan(float_of({source} & 0xFFFFFFFF))" for source in sources)
    type_ = modifiers[-1]
    bits = BITS[type_[1:]]
    if opcode in ("abs.f32", "neg.f32"):
        return f"{sources[0]} & 0x7FFFFFFF" if kind == "abs" else f"({sources[0]} ^ 0x80000000) & 0xFFFFFFFF"
    if kind in ("popc", "bfind"):
        return f"(({sources[0]}) & {mask_of(bits)}).{'bit_count()' if kind == 'popc' else 'bit_length() - 1'}"
    mask = mask_of(bits)

    def typed(source: str) -> str:
        return f"signed({source} & {mask}, {bits})" if type_[0] == "s" else f"({source} & {mask})"

    if kind == "abs":
        return f"abs({typed(sources[0])}) & {mask}"
    if kind == "mov":
        return f"{sources[0]} & {mask}"
    if kind in SIMPLE:
        return f"({SIMPLE[kind].format(*sources)}) & {mask}"
    if kind in ("min", "max"):
        return f"{kind}({typed(sources[0])}, {typed(sources[1])}) & {mask}"
    if kind == "div" and type_[0] == "s":
        return f"quotient({typed(sources[0])}, {typed(sources[1])}) & {mask}"
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

    def __init__(
        self,
        kernel: Kernel,
        grid: int,
        threads: int,
        parameters: Sequence[Sequence[int]],
        *,
        cluster: int = 1,
        shared_bytes: int = 0,
    ) -> None:
        """:param grid: blocks, or clusters of ``cluster`` blocks along the second axis."""
        self._kernel, self._grid, self._threads = kernel, grid, threads
        self._cluster, self._shared_bytes = cluster, shared_bytes
        self._parameters = parameters
        self.done = -1
        self.live: list[tuple[tuple[int, int, int], Thread, Any]] = []
        """Block, rank in its cluster and number; the thread; and what it is told."""
        self._waiting: dict[Any, list[Any]] = {}
        self._left: dict[Any, int] = {}

    def begin(self, memory: Memory) -> bool:
        """Start the next launch; false when there is none."""
        self.done += 1
        if self.done == len(self._parameters):
            return False
        values = self._parameters[self.done]
        self.live, self._waiting, self._left = [], {}, {}
        for block in range(self._grid):
            cluster = [Memory(self._shared_bytes) for _ in range(self._cluster)]
            for peer in range(self._cluster):
                for thread in range(self._threads):
                    code = self._kernel(memory, values, thread, block, self._grid, cluster, peer)
                    self.live.append(((block, peer, thread), code, None))
            self._left[block] = self._cluster * self._threads
            self._left |= {(block, peer): self._threads for peer in range(self._cluster)}
        return True

    def step(self, chance: random.Random) -> bool:
        """Run one thread up to its next jump back, barrier or end, or to what its warp does together.

        Returns whether it came further than to a jump back.
        """
        i = chance.randrange(len(self.live))
        number, thread, told = self.live[i]
        block, peer, _ = number
        try:
            came = thread.send(told)
        except StopIteration:
            came = "end"
        if came == "back":
            self.live[i] = (number, thread, None)
            return False
        self.live[i] = self.live[-1]
        self.live.pop()
        if came == "end":
            self._left[block] -= 1
            self._left[block, peer] -= 1
        elif came in ("barrier", "cluster"):
            self._waiting.setdefault(block if came == "cluster" else (block, peer), []).append((number, thread))
        else:
            self._meet(number, thread, came)
            return True
        for place in (block, (block, peer)):
            if self._waiting.get(place) and len(self._waiting[place]) == self._left[place]:
                self.live += [(*each, None) for each in self._waiting.pop(place)]
        return True

    def _meet(self, number: tuple[int, int, int], thread: Thread, came: tuple[str, int, tuple[int, ...]]) -> None:
        """What a warp does together happens when its last lane has come."""
        block, peer, index = number
        place = ("warp", block, peer, index // WARP)
        waiting = self._waiting.setdefault(place, [])
        waiting.append((number, thread, came))
        assert {said[:2] for _, _, said in waiting} == {came[:2]}, "lanes of a warp do different things together"
        if len(waiting) == WARP:
            lanes = sorted(self._waiting.pop(place), key=lambda each: each[0])
            results = TOGETHER[came[0]]([said[2] for _, _, said in lanes])
            self.live += [(number, thread, told) for (number, thread, _), told in zip(lanes, results, strict=True)]


class Leading(random.Random):
    """Mostly goes on with who came on last: a warp is as far ahead of the others as they let it be."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Any of a range; of as many threads as there are, mostly the last."""
        if stop is None and self.random() < 0.99:
            return start - 1
        return super().randrange(start, stop, step)


LEAD = 3
"""Steps a thread without one that came further, after which a rank that leads lets others run."""


def run(
    memory: Memory, ranks: Sequence[Launches], chance: random.Random, most_steps: int, *, leads: bool = False
) -> None:
    """Run every rank's launches to their end, all at once; whoever begins or lags is chance.

    :param most_steps: how often threads may jump back, come to a barrier or end, all together.
    :param leads: whether every other turn is as long as the rank comes further: it is then as far ahead of the others
        as they let it be.
    :raises AssertionError: when the launches have not ended by then.
    """
    active = [rank for rank in ranks if rank.begin(memory)]
    steps = 0
    while active:
        rank = chance.choice(active)
        left = chance.randrange(1, 200)
        leading = leads and chance.random() < 0.5
        while left > 0:
            if not rank.live:
                if not rank.begin(memory):
                    active.remove(rank)
                    break
                if not leading:
                    break
            went_on = rank.step(chance)
            left = LEAD * len(rank.live) if leading and went_on else left - 1
            steps += 1
            assert steps <= most_steps, "the launches do not end"
        assert steps <= most_steps, "the launches do not end"
