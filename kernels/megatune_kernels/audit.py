"""What is checked in the compiled code of a kernel whose blocks wait for one another.

Such a kernel polls: it loads in a loop until another kernel has written. A compiler that takes that load for an
ordinary one may move it out of the loop, and the kernel hangs, or only does on another day. So, in the PTX that the
assembler got and in the machine code that it made:

- what decides whether a loop ends is loaded in that loop, or does not come from global memory;
- such a load is volatile, relaxed at system scope, or acquire at that or the GPU's: one that memory answers, every
  time;
- there is such a load, and in the PTX none outside of the loop that waits for it.

``control_flow`` has the analysis, which is the same for both; here is how either text is read.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from megatune_kernels import control_flow
from megatune_kernels.canonical import digest
from megatune_kernels.control_flow import Code
from megatune_kernels.control_flow import Instruction
from megatune_kernels.errors import MegatuneError

LONGEST_TEXT = 80


class FailedAudit(Exception):
    """The compiled code may hang, or read what is not there yet: one line that says where."""


def audit(ptx: str, cubin: bytes) -> None:
    """Check the one kernel of an artifact that polls.

    :raises FailedAudit: when it breaks a rule.
    :raises MegatuneError: when the disassembler is not installed.
    """
    source = read_ptx(ptx)
    asked = polled("PTX", source)
    # Not so in machine code: the assembler may try once before it enters the loop.
    beside = [i for i, one in enumerate(source.instructions) if one.strong and i not in asked]
    if beside:
        raise FailedAudit(f"PTX: polled, but not in the loop that waits: {source.instructions[min(beside)].text}")
    made = polled("SASS", read_sass(disassembled(cubin)))
    if len(made) < len(asked):
        raise FailedAudit(f"SASS: {len(made)} polled loads where the PTX has {len(asked)}")


@cache
def rules_digest() -> str:
    """Digest of the rules: part of the key of every artifact that passed them.

    :raises MegatuneError: when the disassembler is not installed, so that nothing can pass.
    """
    disassembler()
    sources = (Path(module.__file__ or "").read_text() for module in (sys.modules[__name__], control_flow))
    return digest(list(sources))


def polled(kind: str, code: Code) -> set[int]:
    """The loads on which it depends whether a loop goes on.

    :raises FailedAudit: when there is none, or one can be moved out of its loop or is not in it.
    """
    loads: set[int] = set()
    for loop in code.loops():
        for leaving in code.exits(loop):
            origins = code.origins(leaving)
            found = {i for i in origins if code.instructions[i].load}
            before = found - loop
            # Of several words that a loop waits for, all are loaded in it; the assembler may load them once before.
            one_of_several = kind == "PTX" and bool(found & loop)
            if before and (one_of_several or (not found & loop and not code.changes(origins, loop))):
                raise FailedAudit(f"{kind}: a loop waits for what was loaded before: {_text(code, before)}")
            loads |= found & loop
    weak = {i for i in loads if not code.instructions[i].strong}
    if weak:
        raise FailedAudit(f"{kind}: a loop waits for a load that can be moved out of it: {_text(code, weak)}")
    if not loads:
        raise FailedAudit(f"{kind}: blocks wait for one another, and no loop polls")
    return loads


def _text(code: Code, found: set[int]) -> str:
    return code.instructions[min(found)].text[:LONGEST_TEXT]


def split_operands(text: str) -> list[str]:
    """Split at the commas that are not in brackets."""
    found, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "[{(":
            depth += 1
        elif c in "]})":
            depth -= 1
        elif c == "," and depth == 0:
            found.append(text[start:i].strip())
            start = i + 1
    return [*found, text[start:].strip()]


_PTX_TOKEN = re.compile(r"\s*(?:(?P<scope>[{}])|(?P<label>[\w$%]+)\s*:(?!:)|(?P<statement>[^;{}][^;]*);)")
_PTX_DECLARED = re.compile(r"([%$\w]+)(?:<(\d+)>)?")
_PTX_NAME = re.compile(r"[%$]*[A-Za-z_][\w$]*(?:@\d+)?")
_PTX_GUARD = re.compile(r"@!?([%$\w@]+)\s+(.+)")
_PTX_LOADS = ("ld", "ldu", "atom")
_PTX_ELSEWHERE = frozenset(("param", "const", "shared", "local", "shared::cta", "shared::cluster", "param::entry"))
_PTX_NO_RESULT = frozenset(("st", "red", "bra", "bar", "barrier", "fence", "membar", "nanosleep", "prefetch"))
_PTX_ENDS = frozenset(("ret", "exit", "trap"))


def ptx_statements(text: str) -> tuple[list[str], dict[str, int]]:
    """The statements of the first kernel of a PTX text, and before which of them each label stands.

    Names belong to their scope: a loop that is written into the code twice has the same names twice. So names of inner
    scopes, and all labels, end in ``@`` and the number of their scope.

    :raises FailedAudit: where the text cannot be read.
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    at = text.index("{", text.index(".entry"))
    found: list[tuple[str, tuple[int, ...]]] = []
    labels: dict[str, int] = {}
    names: list[set[str]] = []
    scope: tuple[int, ...] = ()
    while True:
        match = _PTX_TOKEN.match(text, at)
        if match is None:
            raise FailedAudit(f"PTX: cannot be read at {' '.join(text[at:].split())[:LONGEST_TEXT]!r}")
        at = match.end()
        if match["scope"] == "{":
            scope = (*scope, len(names))
            names.append(set())
        elif match["scope"]:
            scope = scope[:-1]
            if not scope:
                break
        elif match["label"]:
            names[scope[-1]].add(match["label"])
            labels[f"{match['label']}@{scope[-1]}"] = len(found)
        else:
            statement = " ".join(match["statement"].split())
            if statement.startswith(".reg"):
                for declared in _PTX_DECLARED.finditer(statement.split(maxsplit=2)[2]):
                    numbers = range(int(declared[2])) if declared[2] and scope[1:] else [""]
                    names[scope[-1]] |= {f"{declared[1]}{number}" for number in numbers}
            elif not statement.startswith("."):
                found.append((statement, scope))

    def renamed(scope: tuple[int, ...], name: re.Match[str]) -> str:
        return next((f"{name[0]}@{i}" for i in reversed(scope) if name[0] in names[i]), name[0])

    return [_PTX_NAME.sub(partial(renamed, scope), text) for text, scope in found], labels


def read_ptx(text: str) -> Code:
    """The first kernel of a PTX text.

    :raises FailedAudit: where it cannot be read, or jumps or calls so that it cannot be followed.
    """
    statements, labels = ptx_statements(text)
    return Code(tuple(_ptx_instruction(statement) for statement in statements), labels)


def _ptx_instruction(text: str) -> Instruction:
    guard = _PTX_GUARD.fullmatch(text)
    opcode, _, rest = (guard[2] if guard else text).partition(" ")
    reads = set(_PTX_NAME.findall(guard[1])) if guard else set()
    kind, *modifiers = opcode.split(".")
    if kind in ("brx", "call"):
        raise FailedAudit(f"PTX: cannot be followed: {text[:LONGEST_TEXT]}")
    if kind == "bra":
        return Instruction(
            text, reads=frozenset(reads), guarded=guard is not None, targets=(rest,), falls=guard is not None
        )
    first, *others = split_operands(rest) if rest else [""]
    writes = set() if kind in _PTX_NO_RESULT else set(_PTX_NAME.findall(first))
    for operand in [*others, first] if kind in _PTX_NO_RESULT else others:
        reads |= set(_PTX_NAME.findall(operand))
    load = kind in _PTX_LOADS and not _PTX_ELSEWHERE & set(modifiers)
    relaxed = "relaxed" in modifiers and "sys" in modifiers
    # Narrower scopes may be answered by a cache that the writer does not see.
    acquires = bool({"acquire", "acq_rel"} & set(modifiers)) and bool({"gpu", "sys"} & set(modifiers))
    return Instruction(
        text,
        frozenset(writes),
        frozenset(reads),
        guarded=guard is not None,
        falls=guard is not None or kind not in _PTX_ENDS,
        load=load,
        strong=load and ("volatile" in modifiers or acquires or relaxed),
    )


_SASS_LABEL = re.compile(r"(\.L_[\w.]+):")
_SASS_LINE = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@(!?U?P[T\d]+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_SASS_REGISTER = re.compile(r"\b(UR|UP|R|P|B)(\d+)\b")
_SASS_PREDICATE = re.compile(r"U?P[T\d]+")
_SASS_TARGET = re.compile(r"`\((\.L_[\w.]+)\)")
_SASS_LOADS = frozenset(("LDG", "LD", "ATOM", "ATOMG"))
_SASS_NO_RESULT = frozenset(("ST", "STG", "STS", "STL", "RED", "REDG", "BRA", "BSYNC", "EXIT", "NANOSLEEP", "BAR"))
_SASS_ENDS = frozenset(("EXIT", "RET", "KILL", "BPT"))
_SASS_WIDTH = re.compile(r"\.(64|128|256)\b")


def read_sass(text: str) -> Code:
    """What the disassembler printed of one kernel.

    :raises FailedAudit: where it jumps or calls so that it cannot be followed.
    """
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    # Where threads that part at a branch go on together, by the register that counts them.
    joins: dict[str, str] = {}
    for line in text.splitlines():
        label = _SASS_LABEL.match(line)
        match = _SASS_LINE.match(line)
        if label:
            labels[label[1]] = len(instructions)
        elif match:
            guard, opcode, rest = match[1] or "", match[2], match[3]
            if opcode.startswith("BSSY"):
                register, target = split_operands(rest)
                joins[register] = target
            elif opcode.startswith("BSYNC"):
                # Goes on where the nearest BSSY of its register says.
                rest = joins.get(rest, "")
            instructions.append(_sass_instruction(match[0].split("*/")[1].strip(), guard, opcode, rest))
    return Code(tuple(instructions), labels)


def _sass_instruction(text: str, guard: str, opcode: str, rest: str) -> Instruction:
    kind, *modifiers = opcode.split(".")
    operands = split_operands(rest) if rest else []
    guarded = guard not in ("", "PT", "UPT")
    reads = _sass_registers(guard)
    if kind in ("BRX", "BRXU", "JMX", "JMXU", "CALL"):
        raise FailedAudit(f"SASS: cannot be followed: {text[:LONGEST_TEXT]}")
    if kind in ("BRA", "JMP"):
        conditions = [operand for operand in operands if not _SASS_TARGET.search(operand)]
        for condition in conditions:
            reads |= _sass_registers(condition)
        guarded = guarded or bool(reads) or "DIV" in modifiers
        targets = tuple(_SASS_TARGET.findall(rest))
        return Instruction(text, reads=frozenset(reads), guarded=guarded, targets=targets, falls=guarded)
    if kind == "BSYNC":
        targets = tuple(_SASS_TARGET.findall(rest))
        return Instruction(text, reads=frozenset(reads), targets=targets, falls=guarded or not targets)
    writes: set[str] = set()
    if kind not in _SASS_NO_RESULT:
        results = _sass_results(kind, operands)
        wide = _SASS_WIDTH.search(opcode)
        for operand in operands[:results]:
            writes |= _sass_registers(operand, int(wide[1]) // 32 if wide else 2 if "WIDE" in modifiers else 1)
        operands = operands[results:]
    for operand in operands:
        reads |= _sass_registers(operand)
    load = kind in _SASS_LOADS
    return Instruction(
        text,
        frozenset(writes),
        frozenset(reads),
        guarded=guarded,
        falls=guarded or kind not in _SASS_ENDS,
        load=load,
        strong=load and "STRONG" in modifiers and bool({"SYS", "GPU"} & set(modifiers)),
    )


def _sass_results(kind: str, operands: list[str]) -> int:
    """How many of the first operands are results: a predicate and what is beside it, or a register and its carries."""
    if operands and _SASS_PREDICATE.fullmatch(operands[0]):
        return 2
    carries = 2 if kind in ("IADD3", "UIADD3") else 1
    for i in range(carries):
        if not _SASS_PREDICATE.fullmatch((operands[i + 1 : i + 2] or [""])[0]):
            return 1 + i
    return 1 + carries


def _sass_registers(operand: str, count: int = 1) -> set[str]:
    """Registers of an operand; general ones stand for ``count`` of them from the first on."""
    found = set()
    for kind, number in _SASS_REGISTER.findall(operand):
        found |= {f"{kind}{int(number) + i}" for i in range(count if kind in ("R", "UR") else 1)}
    return found


@cache
def disassembler() -> str:
    """The path of NVIDIA's disassembler.

    :raises MegatuneError: when it is not installed.
    """
    found = find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found else ():
        beside = Path(folder) / "cu13" / "bin" / "nvdisasm"
        if beside.is_file():
            return str(beside)
    installed = shutil.which("nvdisasm")
    if installed is None:
        raise MegatuneError(
            "nvdisasm is not installed, so kernels that poll cannot be checked: pip install 'megatune[gpu]'"
        )
    return installed


def disassembled(cubin: bytes) -> str:
    """The machine code of a cubin.

    :raises FailedAudit: when the disassembler does not know it.
    :raises MegatuneError: when there is no disassembler.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        # Without its own analysis of control flow, which takes as long again.
        command = [disassembler(), "--no-dataflow", "--print-code", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FailedAudit(f"SASS: not disassembled: {' '.join(done.stderr.split())[-LONGEST_TEXT:]}")
    return done.stdout
