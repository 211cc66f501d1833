"""The grammar of the tables by batch that vLLM's latency-specialised decode reads, strict.

A table is items ``lo[-hi]:value`` separated by commas, both ends included, of which later ones win: ``9-16:1,33-64:1``.
A value is an integer, integers joined by dots, or a name; the empty text is a table without entries. vLLM 0.33.0 takes
more than that, and means little by it: a range whose ends are reversed gives nothing, ``1-2:`` gives empty names, which
count as off, and an item without a colon stops the server. What is accepted here is read there as it is here; all else
is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from megatune_kernels.errors import MegatuneError

MAX_BATCH = 64
"""Rows of the runtime's mailboxes: a step with more tokens never looks into a table."""

Value = int | tuple[int, ...] | str

_ITEM = re.compile(r"(?P<lo>[1-9][0-9]*)(?:-(?P<hi>[1-9][0-9]*))?:(?P<value>[^:]+)", re.ASCII)
_INTEGER = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)


def parse(text: str) -> dict[int, Value]:
    """Value by batch, ascending in tokens.

    :raises MegatuneError: for an item that the grammar does not have, naming it, and for a batch beyond ``MAX_BATCH``.
    """
    table: dict[int, Value] = {}
    for item in text.split(",") if text else ():
        found = _ITEM.fullmatch(item)
        if found is None:
            raise MegatuneError(f"{item!r} is no item of a batch table: it must be LO:VALUE or LO-HI:VALUE")
        lo = int(found["lo"])
        hi = int(found["hi"] or lo)
        if hi < lo:
            raise MegatuneError(f"{item!r}: the range is reversed, and would give nothing")
        if hi > MAX_BATCH:
            raise MegatuneError(f"{item!r}: the runtime's mailboxes end at {MAX_BATCH} tokens")
        table |= dict.fromkeys(range(lo, hi + 1), _value(item, found["value"]))
    return dict(sorted(table.items()))


def spell(table: Mapping[int, Value]) -> str:
    """The shortest text that ``parse`` reads as this table: one item a run of batches with the same value.

    :raises MegatuneError: when the grammar cannot say the table.
    """
    runs: list[tuple[int, int, Value]] = []
    for batch, value in sorted(table.items()):
        if runs and runs[-1][1] == batch - 1 and _same(runs[-1][2], value):
            runs[-1] = (runs[-1][0], batch, value)
        else:
            runs.append((batch, batch, value))
    text = ",".join(f"{lo if lo == hi else f'{lo}-{hi}'}:{_spelled(value)}" for lo, hi, value in runs)
    check(text, table)
    return text


SAMPLES = ("", "1:1", "9-64:1", "1-8:96,4:0", "2-3:96.100,7:-1", "16-32:3.16.3.2.1,64:on", "1-64:1,9-16:0")
"""Every kind of item, and later ones that win: what the runtime has to read as it is read here."""


def check(text: str, table: Mapping[int, Value]) -> None:
    """Compare what a text says with what it should say, batch by batch.

    :raises MegatuneError: naming the first batch at which they differ.
    """
    read = parse(text)
    for batch in sorted({*read, *table}):
        said, meant = read.get(batch), table.get(batch)
        if said is None or meant is None or not _same(said, meant):
            raise MegatuneError(f"the batch table {text!r} says {said!r} at {batch} tokens, and should say {meant!r}")


def _value(item: str, text: str) -> Value:
    parts = text.split(".")
    if all(_INTEGER.fullmatch(part) for part in parts):
        numbers = tuple(map(int, parts))
        return numbers if len(numbers) > 1 else numbers[0]
    if _NAME.fullmatch(text):
        return text
    raise MegatuneError(f"{item!r}: the value must be an integer, integers joined by dots, or a name")


def _spelled(value: Value) -> str:
    return ".".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _same(one: Value, other: Value) -> bool:
    return type(one) is type(other) and one == other
