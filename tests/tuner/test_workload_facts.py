"""What an operator says of a workload beside its key comes into databases and recordings, and is part of no digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from toy_recordings import ABOUT

from megatune_db import queries
from megatune_db.queries import ExportRow
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import open_database
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.operator import operators
from megatune_tuner.recording_file import write_recording
from megatune_tuner.recording_import import import_recording
from megatune_tuner.recordings import merge
from megatune_tuner.recordings import read_recording
from megatune_tuner.recordings import recording
from megatune_tuner.rows import facts_of

DIMS = {"experts": 64, "k": 1024, "top": 4, "width": 128}
RECORDED = {"distinct experts": 7.0}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """In the place of the toys."""
    operators.cache_clear()
    yield
    operators.cache_clear()


def experts(tokens: int) -> Workload:
    return operator("experts").workload(DIMS, tokens, "bf16")


def row(workload: Workload, facts: dict[str, float] | None) -> ExportRow:
    measured = Measurement(
        workload=workload.digest,
        config="c",
        target=ABOUT.target.digest,
        regime=ABOUT.regime,
        stage=Stage.SEARCH,
        status=Status.OK,
        provenance=Provenance.MEASURED,
        session="s",
        measured_at=recording("reduction-h200x2").latest,
        samples_us=(1.0, 2.0, 3.0),
        median_us=2.0,
        low_us=1.0,
        high_us=3.0,
        launches_a_sample=1,
    )
    its = workload.to_dict()
    return ExportRow(measured, its.pop("operator"), workload.shape, **its, variant="torch", params={}, facts=facts)


def test_experts_say_their_coverage_and_others_nothing() -> None:
    assert facts_of(experts(1)) == {
        "distinct experts": 4.0,
        "tokens an expert": 1.0,
        "most tokens of an expert": 1.0,
    }
    assert facts_of(replace(experts(1), routing="trace_elsewhere")) == {}
    assert facts_of(operator("projection").workload({"n": 64, "k": 64}, 1)) == {}
    assert facts_of(Workload.of("unheard_of", {"n": 1}, 1)) == {}


def test_a_recording_keeps_them_and_an_import_takes_them_or_asks_the_operator(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    write_recording(path, [row(experts(1), RECORDED), row(experts(2), None)], ABOUT)
    found = read_recording(path)
    assert found.about.workload_facts == {experts(1).digest: RECORDED}
    merged = tmp_path / "merged.parquet"
    merge(merged, [found, read_recording(path)])
    assert read_recording(merged).about.workload_facts == found.about.workload_facts
    with open_database(tmp_path / "imported.db") as database:
        with database.session() as session:
            import_recording(session, found)
        with database.session() as session:
            rows = queries.workloads(session, target=ABOUT.target.digest, regime=ABOUT.regime)
            shapes = queries.measured_shapes(session)
    assert {each.tokens: each.facts for each in rows} == {1: RECORDED, 2: facts_of(experts(2))}
    assert [each.facts for each in shapes] == [{1: RECORDED, 2: facts_of(experts(2))}]


def test_files_without_them_are_what_they_were() -> None:
    assert "workload_facts" not in ABOUT.to_json()
    assert recording("reduction-h200x2").about.workload_facts == {}
