"""The audit of code that polls: what is right passes, and each way to be wrong is found, in PTX and in machine code."""

from __future__ import annotations

import time
from typing import Any

import pytest

from megatune_kernels import audit as audited
from megatune_kernels.audit import FailedAudit
from megatune_kernels.audit import audit
from megatune_kernels.audit import disassembled
from megatune_kernels.audit import polled
from megatune_kernels.audit import read_ptx
from megatune_kernels.audit import read_sass
from megatune_kernels.control_flow import Code
from megatune_kernels.control_flow import Instruction
from megatune_kernels.errors import MegatuneError
from megatune_kernels.target import architecture

HEAD = """
.version 8.8 .target sm_90a .address_size 64
.visible .entry kernel(.param .u64 kernel_param_0)
{
    .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<3>;
    ld.param.b64 %rd1, [kernel_param_0];
"""
POLL = {
    "relaxed": "{ .reg .pred p; again: ld.relaxed.sys.global.b32 %r1, [%rd1]; setp.eq.b32 p, %r1, 0; @p bra again; }",
    "volatile": "{ .reg .pred p; again: ld.volatile.global.b32 %r1, [%rd1]; setp.eq.b32 p, %r1, 0; @p bra again; }",
    "acquire": "{ .reg .pred p; again: ld.acquire.gpu.b32 %r1, [%rd1]; setp.eq.b32 p, %r1, 0; @p bra again; }",
    "exchange": "{ .reg .pred p; again: atom.relaxed.sys.global.exch.b32 %r1, [%rd1], 0; setp.eq.b32 p, %r1, 0; "
    "@p bra again; }",
    "vector": "{ .reg .pred p; again: ld.relaxed.sys.global.v2.b32 {%r1, %r2}, [%rd1 + 16]; setp.eq.b32 p, %r1, 0; "
    "setp.eq.or.b32 p, %r2, 0, p; @p bra again; }",
    "backoff": "{ .reg .pred p; again: ld.relaxed.sys.global.b32 %r1, [%rd1]; setp.eq.b32 p, %r1, 0; @!p bra done; "
    "nanosleep.u32 20; bra again; done: }",
    "bounded": "mov.b32 %r2, 0; { .reg .pred p; again: ld.relaxed.sys.global.b32 %r1, [%rd1]; add.u32 %r2, %r2, 1; "
    "setp.eq.b32 p, %r1, 0; @!p bra done; setp.lt.u32 p, %r2, 9; @p bra again; done: }",
    "nested": "mov.b32 %r2, 0; outer: { .reg .pred p; again: ld.relaxed.sys.global.b32 %r1, [%rd1]; "
    "setp.eq.b32 p, %r1, 0; @p bra again; } ld.global.b32 %r3, [%rd1 + 64]; add.u32 %r2, %r2, 1; "
    "setp.lt.u32 %p1, %r2, 9; @%p1 bra outer;",
    "counted": "ld.global.b32 %r4, [%rd1 + 64]; mov.b32 %r2, 0; outer: { .reg .pred p; again: "
    "ld.relaxed.sys.global.b32 %r1, [%rd1]; setp.eq.b32 p, %r1, 0; @p bra again; } add.u32 %r2, %r2, 1; "
    "setp.lt.u32 %p1, %r2, %r4; @%p1 bra outer;",
}
BROKEN = {
    "plain": (
        "{ .reg .pred p; again: ld.global.b32 %r1, [%rd1]; setp.eq.b32 p, %r1, 0; @p bra again; }",
        "can be moved out of it: ld.global.b32",
    ),
    "of the block alone": (
        "{ .reg .pred p; again: ld.relaxed.cta.global.b32 %r1, [%rd1]; setp.eq.b32 p, %r1, 0; @p bra again; }",
        "can be moved out of it: ld.relaxed.cta",
    ),
    "hoisted": (
        "{ .reg .pred p; ld.relaxed.sys.global.b32 %r1, [%rd1]; again: setp.eq.b32 p, %r1, 0; @p bra again; }",
        "waits for what was loaded before: ld.relaxed.sys",
    ),
    "hoisted out of the inner loop": (
        "mov.b32 %r2, 0; outer: { .reg .pred p; ld.relaxed.sys.global.b32 %r1, [%rd1]; again: setp.eq.b32 p, %r1, 0; "
        "@p bra again; } add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 9; @%p1 bra outer;",
        "waits for what was loaded before: ld.relaxed.sys",
    ),
    "hoisted, with backoff": (
        "{ .reg .pred p; ld.relaxed.sys.global.b32 %r1, [%rd1]; setp.eq.b32 p, %r1, 0; again: @!p bra done; "
        "nanosleep.u32 20; bra again; done: }",
        "waits for what was loaded before: ld.relaxed.sys",
    ),
    "one of two words": (
        "{ .reg .pred p; ld.relaxed.sys.global.b32 %r2, [%rd1 + 4]; again: ld.relaxed.sys.global.b32 %r1, [%rd1]; "
        "setp.eq.b32 p, %r1, 0; setp.eq.or.b32 p, %r2, 0, p; @p bra again; }",
        "waits for what was loaded before: ld.relaxed.sys.global.b32 %r2",
    ),
    "one of two words, weakly": (
        "{ .reg .pred p; ld.global.b32 %r2, [%rd1 + 4]; again: ld.relaxed.sys.global.b32 %r1, [%rd1]; "
        "setp.eq.b32 p, %r1, 0; setp.eq.or.b32 p, %r2, 0, p; @p bra again; }",
        "waits for what was loaded before: ld.global.b32 %r2",
    ),
    "a word that nobody waits for": (
        "{ .reg .pred p; ld.relaxed.sys.global.b32 %r2, [%rd1 + 4]; again: ld.relaxed.sys.global.b32 %r1, [%rd1]; "
        "setp.eq.b32 p, %r1, 0; @p bra again; }",
        "not in the loop that waits: ld.relaxed.sys.global.b32 %r2",
    ),
    "answered by a cache": (
        "again: ld.acquire.cta.global.b32 %r1, [%rd1]; setp.eq.b32 %p1, %r1, 0; @%p1 bra again;",
        "can be moved out of it",
    ),
    "looked at once": (
        "{ .reg .pred p; ld.relaxed.sys.global.b32 %r1, [%rd1]; setp.eq.b32 p, %r1, 0; @p bra done; done: }",
        "no loop polls",
    ),
    "not at all": ("ld.global.b32 %r1, [%rd1];", "no loop polls"),
    "indirect": ("brx.idx %r1, targets;", "cannot be followed"),
}


def ptx(body: str) -> str:
    return f"{HEAD} {body} st.global.b32 [%rd1 + 128], %r1; ret; }}"


@pytest.mark.parametrize("name", sorted(POLL))
def test_ptx_that_polls_passes(name: str) -> None:
    code = read_ptx(ptx(POLL[name]))
    assert {code.instructions[i].strong for i in polled("PTX", code)} == {True}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_ptx_that_may_hang_fails_and_says_where(name: str) -> None:
    body, reason = BROKEN[name]
    with pytest.raises(FailedAudit, match=f"PTX: .*{reason}"):
        audit(ptx(body), b"")


def test_names_belong_to_their_scope() -> None:
    # The same loop twice: without scopes the second label would be the first one's.
    code = read_ptx(ptx(POLL["relaxed"] + POLL["relaxed"]))
    assert len(polled("PTX", code)) == 2
    assert len(list(code.loops())) == 2


SASS = """
kernel:
.text.kernel:
        /*0000*/                   LDC.64 R2, c[0x0][0x210] ;
        /*0010*/                   ULDC.64 UR4, c[0x0][0x208] ;
        /*0020*/                   BSSY B0, `(.L_x_0) ;
{body}
.L_x_0:
        /*0100*/                   STG.E desc[UR4][R2.64], R4 ;
        /*0110*/                   EXIT ;
.L_x_2:
        /*0120*/                   BRA `(.L_x_2);
"""
SASS_POLL = """
.L_x_1:
        /*0030*/                   LDG.E.128.STRONG.SYS R4, desc[UR4][R2.64] ;
        /*0040*/                   ISETP.NE.U32.AND P0, PT, R5, 0x1, PT ;
        /*0050*/                   ISETP.NE.U32.OR P1, PT, R6, 0x1, P0 ;
        /*0060*/               @P1 BRA `(.L_x_1) ;
        /*0070*/                   BSYNC B0 ;
"""
SASS_TRIED_FIRST = """
        /*0030*/                   LDG.E.STRONG.SYS R4, desc[UR4][R2.64] ;
        /*0040*/                   ISETP.NE.U32.AND P0, PT, R4, 0x1, PT ;
        /*0050*/              @!P0 BRA `(.L_x_3) ;
.L_x_1:
        /*0060*/                   NANOSLEEP 0x14 ;
        /*0070*/                   LDG.E.STRONG.SYS R4, desc[UR4][R2.64] ;
        /*0080*/                   ISETP.NE.U32.AND P0, PT, R4, 0x1, PT ;
        /*0090*/               @P0 BRA `(.L_x_1) ;
.L_x_3:
        /*00a0*/                   BSYNC B0 ;
"""
SASS_HOISTED = """
        /*0030*/                   LDG.E.STRONG.SYS R4, desc[UR4][R2.64] ;
        /*0040*/                   ISETP.NE.U32.AND P0, PT, R4, 0x1, PT ;
.L_x_1:
        /*0050*/               @P0 BRA `(.L_x_1) ;
        /*0060*/                   BSYNC B0 ;
"""


def test_machine_code_that_polls_passes() -> None:
    for body in (SASS_POLL, SASS_TRIED_FIRST):
        assert len(polled("SASS", read_sass(SASS.format(body=body)))) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (SASS_POLL.replace(".STRONG.SYS", ""), "can be moved out of it: LDG.E.128 R4"),
        (SASS_POLL.replace(".STRONG.SYS", ".STRONG.SM"), "can be moved out of it: LDG.E.128.STRONG.SM"),
        (SASS_HOISTED, "waits for what was loaded before: LDG"),
        (SASS_HOISTED.replace("LDG.E.STRONG.SYS", "LDG.E"), "waits for what was loaded before: LDG"),
        ("", "no loop polls"),
        ("        /*0030*/                   BRX R4 -0x40 ;", "cannot be followed: BRX"),
    ],
)
def test_machine_code_that_may_hang_fails_and_says_where(body: str, reason: str) -> None:
    with pytest.raises(FailedAudit, match=f"SASS: .*{reason}"):
        polled("SASS", read_sass(SASS.format(body=body)))


def test_what_is_left_of_a_register_counts_and_not_what_was_in_it_before() -> None:
    # R4 holds an ordinary load, then the poll's: only the latter decides.
    body = "        /*0028*/                   LDG.E.128 R4, desc[UR4][R2.64] ;\n" + SASS_POLL
    assert len(polled("SASS", read_sass(SASS.format(body=body)))) == 1


def test_loops_are_found_whatever_way_leads_in() -> None:
    def one(text: str, *targets: str, falls: bool = True, guarded: bool = False) -> Instruction:
        return Instruction(text, targets=targets, falls=falls, guarded=guarded)

    # 0 -> 2; 1 -> 2; 2 -> 1 or 3: the head, 2, is in the middle.
    code = Code(
        (one("enter", "test", falls=False), one("body"), one("test", "body", guarded=True), one("end", falls=False)),
        {"body": 1, "test": 2},
    )
    assert list(code.loops()) == [frozenset({1, 2})]
    assert code.exits(frozenset({1, 2})) == [2]


def _compiled(body: str) -> Any:
    """A kernel whose one thread waits as ``body`` says, with ``{$w0}`` for the word and ``{$r0}`` for the address."""
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    import reduction_broken

    from megatune_kernels.artifact import compile_for

    return reduction_broken.compiled(compile_for, architecture("sm_90a"), body)


RIGHT = "{ .reg .pred p; again: ld.relaxed.sys.global.b32 {$w0}, [{$r0}]; setp.eq.b32 p, {$w0}, 0; @p bra again; }"
WRONG = {
    "hoistable": RIGHT.replace("relaxed.sys.", ""),
    "outside": "{ .reg .pred p; ld.relaxed.sys.global.b32 {$w0}, [{$r0}]; again: setp.eq.b32 p, {$w0}, 0; "
    "@p bra again; }",
}


def test_a_kernel_that_polls_passes_both() -> None:
    compiled = _compiled(RIGHT)
    audit(compiled.artifacts.PTX, compiled.artifacts.CUBIN)


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_broken_kernel_fails_both(name: str) -> None:
    compiled = _compiled(WRONG[name])
    with pytest.raises(FailedAudit, match="PTX: a loop waits"):
        audit(compiled.artifacts.PTX, compiled.artifacts.CUBIN)
    with pytest.raises(FailedAudit, match="SASS: "):
        polled("SASS", read_sass(disassembled(compiled.artifacts.CUBIN)))


def test_machine_code_that_lost_a_poll_of_the_source_fails() -> None:
    right, twice = _compiled(RIGHT), _compiled(RIGHT + RIGHT)
    with pytest.raises(FailedAudit, match="SASS: 1 polled loads where the PTX has 2"):
        audit(twice.artifacts.PTX, right.artifacts.CUBIN)


def test_what_is_no_cubin_fails() -> None:
    with pytest.raises(FailedAudit, match="not disassembled"):
        disassembled(b"no ELF")


def test_without_the_disassembler_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    audited.disassembler.cache_clear()
    monkeypatch.setattr(audited, "find_spec", lambda _: None)
    monkeypatch.setattr(audited.shutil, "which", lambda _: None)
    with pytest.raises(MegatuneError, match=r"pip install 'megatune\[gpu\]'"):
        disassembled(b"")
    audited.disassembler.cache_clear()


def test_reading_the_code_of_a_large_kernel_takes_no_time() -> None:
    code = SASS.format(body=SASS_POLL + "        /*0080*/                   IADD3 R7, P0, R8, R9, RZ ;\n" * 2000)
    started = time.process_time()
    polled("SASS", read_sass(code))
    assert time.process_time() - started < 1.0
