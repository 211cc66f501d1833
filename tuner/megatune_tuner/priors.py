"""Which configs of a workload others found best: the first ones that a campaign tries, and nothing that it trusts."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy.orm import Session

from megatune_db.queries import imported_configs
from megatune_db.queries import priors
from megatune_kernels.canonical import canonical_json
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Prior
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config

MOST = 8
"""Configs of a cell that are tried because others found them."""


def prior_configs(session: Session, workload: Workload) -> list[Config]:
    """At most ``MOST`` configs: those that others measured, the fastest first, then those of tables and caches.

    They need not be legal here.
    """
    tuned = operator(workload.operator)
    found = [Config.of(variant, params) for variant, params in imported_configs(session, workload.digest, MOST)]
    if tuned.priors_from:
        rows = priors(session, tuned.priors_from)
        entries = [Prior(row.format, row.source, row.place, row.tokens, row.entry) for row in rows]
        for entry in nearest(entries, workload.tokens):
            # What has no such config here was said when it was imported, or is of another shape.
            with suppress(MegatuneError):
                config = tuned.prior(workload, entry)
                if config is not None:
                    found.append(config)
    return list(dict.fromkeys(found))[:MOST]


def nearest(entries: Iterable[Prior], tokens: int) -> list[Prior]:
    """Of each table the entry of the nearest tokens, as the runtimes look them up; what says no tokens stays."""
    tables: dict[str, list[Prior]] = {}
    for number, entry in enumerate(entries):
        alone = number if entry.tokens is None else None
        key = canonical_json([entry.format, entry.source, dict(entry.place), alone])
        tables.setdefault(key, []).append(entry)
    return [_nearest(rows, tokens) for rows in tables.values()]


def _nearest(rows: Sequence[Prior], tokens: int) -> Prior:
    return min(rows, key=lambda row: abs((row.tokens or 0) - tokens))
