"""A million measurements: how much processor time importing and planning take, and how much memory."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from db_examples import BASELINE
from db_examples import REGIME
from db_examples import TARGET
from db_examples import measured
from db_examples import put_examples

from megatune_db import queries
from megatune_db import store
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.session import open_database

TOKENS = 1000
CONFIGS = 1000


def _rows() -> Iterator[Measurement]:
    for tokens in range(TOKENS):
        for number in range(CONFIGS):
            median = 10.0 + (number * 7919 + tokens) % 9973 / 1000
            yield measured(tokens, number, median, samples_us=(median,) * 30)


def plan(path: str) -> None:
    """What planning reads, in a process of its own; prints contenders, seconds and bytes."""
    with open_database(path, read_only=True) as database, database.session() as session:
        began = time.process_time()
        found = queries.contenders(
            session, target=TARGET, regime=REGIME, provenances=[Provenance.MEASURED], baselines=[BASELINE]
        )
        print(len(found), time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


@pytest.mark.slow
def test_a_million_measurements(path: Path) -> None:
    with open_database(path) as database, database.session() as session:
        put_examples(session, tokens=TOKENS, configs=CONFIGS)
        began = time.process_time()
        assert store.add_measurements(session, _rows()) == TOKENS * CONFIGS
        assert time.process_time() - began < 120
    done = subprocess.run([sys.executable, __file__, path], check=True, capture_output=True, text=True)
    contenders, seconds, peak_bytes = map(float, done.stdout.split())
    assert contenders > TOKENS * CONFIGS / 3
    assert seconds < 30
    assert peak_bytes < 1e9


if __name__ == "__main__":
    plan(sys.argv[1])
