"""The benchmark of scale makes its figures, of which a test can say no more than that they are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatune_db.session import open_database
from megatune_kernels.figures import benchmark
from megatune_tuner.scale_benchmark import coordinator_ms
from megatune_tuner.scale_benchmark import trials_a_second

SMALL = """
name = "scale"
tokens = [1]
[[shapes]]
operator = "toy"
n = 1536
k = 7168
[budget]
trials = 12
finalists = 0
[runner]
kind = "replay"
recording = "toy.parquet"
"""


def test_the_coordinators_time(tmp_path: Path) -> None:
    with open_database(tmp_path / "scale.db") as database:
        assert coordinator_ms(database, 40, turns=1) > 0
        assert coordinator_ms(database, 1200, turns=1) > 0


def test_the_rate_with_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chaos import PLUGINS
    from toy_recordings import record_toy
    from toy_recordings import workloads

    record_toy(tmp_path / "toy.parquet", workloads([(1536, 7168)], [1]))
    monkeypatch.setenv("PYTHONPATH", PLUGINS)
    monkeypatch.chdir(tmp_path)
    assert trials_a_second(str(tmp_path / "scale.db"), 2, SMALL) > 0


def test_it_is_registered() -> None:
    assert benchmark("scale").name == "scale"
