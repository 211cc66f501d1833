"""Recordings taken into a database: what a plan or a campaign finds there is what was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatune_db import queries
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.session import open_database
from megatune_tuner.recording_import import import_recording
from megatune_tuner.recordings import Recording
from megatune_tuner.recordings import recording


@pytest.fixture(scope="module")
def shipped() -> Recording:
    return recording("reduction-h200x2")


@pytest.mark.parametrize("provenance", [Provenance.REPLAYED, Provenance.MEASURED])
def test_every_measurement_is_there_once(shipped: Recording, tmp_path: Path, provenance: Provenance) -> None:
    with open_database(tmp_path / "imported.db") as database:
        with database.session() as session:
            assert import_recording(session, shipped, provenance) == len(shipped)
        with database.session() as session:
            assert import_recording(session, shipped, provenance) == 0
            workload = shipped.workloads[0]
            known = queries.known_measurements(
                session,
                workload=workload.digest,
                target=shipped.about.target.digest,
                regime=shipped.about.regime,
                provenance=provenance,
            )
            assert set(known) == {config.digest for config in shipped.configs(workload)}
            rows = queries.export_rows(
                session, target=shipped.about.target.digest, regime=shipped.about.regime, provenance=provenance
            )
            finals = [row for row in rows if row.measurement.stage is Stage.FINAL]
    assert len(finals) == sum(len(one) for place in shipped.workloads for one in shipped.finals(place))


def test_some_workloads_alone(shipped: Recording, tmp_path: Path) -> None:
    some = shipped.workloads[3:5]
    with open_database(tmp_path / "imported.db") as database, database.session() as session:
        import_recording(session, shipped, workloads=some)
        found = queries.workloads(session, target=shipped.about.target.digest, regime=shipped.about.regime)
        assert {row.digest for row in found} == {workload.digest for workload in some}
