"""Device-side building blocks of the reduction kernels, as single PTX instructions and loops. Imports the DSL.

Every function is called while a kernel is traced; addresses are ``Int64`` of global memory. Instruction semantics are
those of the PTX ISA 8.8 reference. What a peer writes or reads is accessed with relaxed, release or acquire at system
scope: such accesses go to the memory of the GPU that owns the address and can be neither merged nor hoisted. Each
32-bit word of a vector is whole, the vector need not be.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32
from cutlass import Int32
from cutlass import Int64
from cutlass import Uint32
from cutlass.cute.arch import inline_ptx

from megatune_kernels.reduction.geometry import ARMED
from megatune_kernels.reduction.geometry import RAISED
from megatune_kernels.reduction.geometry import SENTINEL

CHAINS = 4
"""Predicates among which the comparisons of a poll are divided, so that they do not wait for one another."""


def _list(names: list[str]) -> str:
    return f"{{{', '.join(names)}}}" if len(names) > 1 else names[0]


def _kind(words: int) -> str:
    return f"v{words}.b32" if words > 1 else "b32"


def load(address: Int64, words: int) -> list[Uint32]:
    """Load a vector that no other kernel writes meanwhile."""
    loaded = inline_ptx(
        f"ld.global.{_kind(words)} {_list([f'{{$w{i}}}' for i in range(words)])}, [{{$r0}}];",
        write_only_types=[Uint32] * words,
        read_only_args=[address],
    )
    return list(loaded) if words > 1 else [loaded]


def _store(address: Int64, values: list[Uint32], path: str) -> None:
    names = _list([f"{{$r{i + 1}}}" for i in range(len(values))])
    inline_ptx(f"st{path}.global.{_kind(len(values))} [{{$r0}}], {names};", read_only_args=[address, *values])


def store(address: Int64, values: list[Uint32]) -> None:
    """Store a vector that no kernel reads before this one has ended."""
    _store(address, values, "")


def send(address: Int64, values: list[Uint32]) -> None:
    """Store a vector into a mailbox, a peer's or this rank's own."""
    _store(address, values, ".relaxed.sys")


def wait_for_words(addresses: list[Int64], offsets: list[int], words: int, backoff: int) -> list[list[list[Uint32]]]:
    """Load the vectors at every address plus every offset, all at once, until none has a word that is the sentinel.

    :param backoff: ns to sleep before looking again.
    :returns: by address and offset, the words.
    """
    count = len(addresses) * len(offsets) * words
    chains = min(CHAINS, count)
    names = [f"{{$w{i}}}" for i in range(count)]
    lines = [f".reg .pred missing<{chains}>;", "again:"]
    at = 0
    for i in range(len(addresses)):
        for offset in offsets:
            lines.append(
                f"ld.relaxed.sys.global.{_kind(words)} {_list(names[at : at + words])}, [{{$r{i}}} + {offset}];"
            )
            at += words
    for i, name in enumerate(names):
        chain = f"missing{i % chains}"
        lines.append(
            f"setp.eq.b32 {chain}, {name}, {ARMED[SENTINEL]:#x};"
            if i < chains
            else f"setp.eq.or.b32 {chain}, {name}, {ARMED[SENTINEL]:#x}, {chain};"
        )
    lines += [f"or.pred missing0, missing0, missing{i};" for i in range(1, chains)]
    loaded = inline_ptx(_again(lines, "missing0", backoff), write_only_types=[Uint32] * count, read_only_args=addresses)
    held = list(loaded) if count > 1 else [loaded]
    vectors = [held[i : i + words] for i in range(0, count, words)]
    return [vectors[i : i + len(offsets)] for i in range(0, len(vectors), len(offsets))]


def _again(body: list[str], condition: str, backoff: int) -> str:
    """The body in a scope of its own, repeated while the condition holds. It begins with ``again:``."""
    if backoff:
        ending = [f"@!{condition} bra done;", f"nanosleep.u32 {backoff};", "bra again;", "done:"]
    else:
        ending = [f"@{condition} bra again;"]
    return "\n".join(["{", *body, *ending, "}"])


def raise_flag(address: Int64) -> None:
    """Store a flag behind everything that this thread, and those it has met at a barrier, stored before."""
    inline_ptx("st.release.sys.global.b32 [{$r0}], {$r1};", read_only_args=[address, Uint32(RAISED)])


def lower_flag(address: Int64) -> None:
    inline_ptx("st.relaxed.sys.global.b32 [{$r0}], {$r1};", read_only_args=[address, Uint32(0)])


def wait_for_flag(address: Int64, backoff: int) -> None:
    """Return when the flag is raised; what was stored before it is then visible to this thread."""
    body = [
        ".reg .pred missing;",
        ".reg .b32 flag;",
        "again:",
        "ld.acquire.sys.global.b32 flag, [{$r0}];",
        f"setp.ne.b32 missing, flag, {RAISED};",
    ]
    inline_ptx(_again(body, "missing", backoff), read_only_args=[address])


def without_negative_zero(word: Uint32) -> Uint32:
    """Two BF16, with +0.0 for -0.0: adding +0.0 changes nothing else but the payload of a NaN."""
    return inline_ptx(
        "{ .reg .b32 zero; mov.b32 zero, 0; add.rn.bf16x2 {$w0}, {$r0}, zero; }",
        write_only_types=[Uint32],
        read_only_args=[word],
    )


def bf16_pair(word: Uint32) -> tuple[Float32, Float32]:
    """The two BF16 of a word as FP32, the lower half first: BF16 is the upper half of an FP32."""
    return (word << Uint32(16)).bitcast(Float32), (word & Uint32(0xFFFF0000)).bitcast(Float32)


def packed(low: Float32, high: Float32) -> Uint32:
    """Two FP32 rounded to the nearest BF16, ties to even."""
    return inline_ptx("cvt.rn.bf16x2.f32 {$w0}, {$r0}, {$r1};", write_only_types=[Uint32], read_only_args=[high, low])


def ranked_sum(own: list[Uint32], others: list[list[Uint32]], rank: Int32) -> list[Uint32]:
    """The sum of every rank's vector in FP32, added in the order of ranks and rounded once.

    :param others: the other ranks' in the order of their ranks; ``own`` has its place among them.
    """
    world = len(others) + 1
    result = []
    for i, mine in enumerate(own):
        if world == 2:
            # Two terms need no order.
            ordered = [mine, others[0][i]]
        else:
            ordered = []
            for source in range(world):
                value = mine
                if source > 0:
                    value = Uint32(cutlass.select_(rank < Int32(source), others[source - 1][i], value))
                if source < world - 1:
                    value = Uint32(cutlass.select_(rank > Int32(source), others[source][i], value))
                ordered.append(value)
        low, high = bf16_pair(ordered[0])
        for value in ordered[1:]:
            more_low, more_high = bf16_pair(value)
            low, high = low + more_low, high + more_high
        result.append(without_negative_zero(packed(low, high)))
    return result
