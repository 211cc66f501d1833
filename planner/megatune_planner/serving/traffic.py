"""A traffic profile: how often a decode step has how many tokens.

Read from TOML (a table ``traffic`` of tokens = count), from CSV (columns ``tokens`` and ``count``), or from what vLLM
prints at ``/metrics``: its histogram ``vllm:iteration_tokens_total``, which counts the tokens of every engine step,
those of prefill included. A bucket there counts as its upper bound, so that a step is never taken for a smaller one.
"""

from __future__ import annotations

import csv
import io
import math
import re
import tomllib
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatune_kernels.errors import MegatuneError

METRIC = "vllm:iteration_tokens_total"
_SAMPLE = re.compile(
    r"^(?P<name>[^\s{]+)\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\}\s+(?P<value>\S+)(\s+-?[\d.]+)?(\s+#.*)?$"
)
"""A line of Prometheus' text, or of OpenMetrics', which may carry an exemplar behind a hash."""
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Traffic:
    """A histogram of steps by their tokens."""

    counts: Mapping[int, float]
    """Steps by tokens, ascending; none is 0."""
    beyond: float = 0
    """Steps whose tokens are not known but that they exceed the largest bucket: prefill."""
    source: str = ""
    """Where it is from, in a few words."""

    @property
    def steps(self) -> float:
        return sum(self.counts.values())

    @property
    def largest(self) -> int:
        return max(self.counts)

    def share_up_to(self, tokens: int) -> float:
        """Share of the steps that have at most so many tokens."""
        return sum(count for each, count in self.counts.items() if each <= tokens) / (self.steps + self.beyond)


def read_traffic(path: Path) -> Traffic:
    """The profile that a file holds.

    :raises MegatuneError: naming the file and what is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise MegatuneError(f"cannot read the traffic profile {path}: {why}") from None
    try:
        if path.suffix == ".toml":
            return _checked(_of_toml(text), 0, "a table of steps by their tokens")
        if path.suffix == ".csv":
            return _checked(_of_csv(text), 0, "a table of steps by their tokens")
        return _of_prometheus(text)
    except MegatuneError as error:
        raise MegatuneError(f"{path}: {error}") from None


def _of_toml(text: str) -> Iterator[tuple[str, Any]]:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MegatuneError(f"not TOML: {error}") from None
    table = found.get("traffic")
    if not isinstance(table, dict) or len(found) > 1:
        raise MegatuneError("a traffic profile is one table [traffic] of tokens = count, e.g. 8 = 1200")
    yield from table.items()


def _of_csv(text: str) -> Iterator[tuple[str, str]]:
    rows = csv.reader(io.StringIO(text))
    try:
        header = [cell.strip() for cell in next(rows, [])]
        if header != ["tokens", "count"]:
            # Of another kind of file this may be the whole of it.
            there = " ".join(",".join(header).split())[:80] or "none"
            raise MegatuneError(f"the columns are tokens,count, and not {there}")
        for row in rows:
            if not row:
                continue
            if len(row) != 2:
                raise MegatuneError(f"line {rows.line_num} has {len(row)} columns, and not tokens,count")
            yield row[0], row[1]
    except csv.Error as error:
        raise MegatuneError(f"line {rows.line_num} is not CSV: {error}") from None


def _of_prometheus(text: str) -> Traffic:
    """Engines are added up; what a bucket has more than the one below it lies in it."""
    engines: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line.strip())
        if found is None or found["name"] != f"{METRIC}_bucket":
            continue
        labels = dict(_LABEL.findall(found["labels"]))
        bound = _number(labels.pop("le", ""), "a bucket's upper bound", infinite=True)
        buckets = engines.setdefault(tuple(sorted(labels.items())), {})
        if bound in buckets:
            raise MegatuneError(f"the bucket {bound:g} of {METRIC} is there twice")
        buckets[bound] = _number(found["value"], f"the count of bucket {bound:g}")
    if not engines:
        raise MegatuneError(
            f"neither .toml nor .csv, and no vLLM metrics: it has no {METRIC}_bucket; take the text of /metrics"
        )
    counts: dict[int, float] = {}
    beyond = 0.0
    for buckets in engines.values():
        below = 0.0
        for bound, cumulated in sorted(buckets.items()):
            if cumulated < below:
                raise MegatuneError(f"the buckets of {METRIC} fall at {bound:g}: each holds those below it")
            if math.isinf(bound):
                beyond += cumulated - below
            elif cumulated > below:
                tokens = math.floor(bound)
                counts[tokens] = counts.get(tokens, 0) + cumulated - below
            below = cumulated
    what = f"{METRIC} of {len(engines)} engines, tokens of prefill included, a bucket as its upper bound"
    return _checked(iter(counts.items()), beyond, what)


def _checked(items: Iterator[tuple[Any, Any]], beyond: float, source: str) -> Traffic:
    counts: dict[int, float] = {}
    for key, value in items:
        try:
            tokens = int(str(key).strip())
        except ValueError:
            raise MegatuneError(f"{key!r} is no number of tokens") from None
        if tokens < 1:
            raise MegatuneError(f"{tokens} tokens: a step has at least 1")
        if tokens in counts:
            raise MegatuneError(f"{tokens} tokens are there twice")
        counts[tokens] = _number(value, f"the count at {tokens} tokens")
    found = {tokens: count for tokens, count in sorted(counts.items()) if count}
    if not found:
        raise MegatuneError("no steps are counted: a traffic profile needs a count above 0")
    if not math.isfinite(sum(found.values()) + beyond):
        raise MegatuneError("the counts add up to no number: they are too large")
    return Traffic(found, beyond, source)


def _number(value: Any, what: str, *, infinite: bool = False) -> float:
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if math.isnan(found) or (math.isinf(found) and not infinite):
        raise MegatuneError(f"{what} is {value!r}, and no number")
    if found < 0:
        raise MegatuneError(f"{what} is {found:g}: counts are not negative")
    return found
