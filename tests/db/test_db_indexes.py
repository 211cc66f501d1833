"""No query of the store or of the queries reads measurements other than by the index that is meant for it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from contextlib import closing

import pytest
from db_examples import BASELINE
from db_examples import OPERATOR
from db_examples import REGIME
from db_examples import TARGET
from db_examples import measured
from db_examples import workload
from filled_examples import fill
from sqlalchemy import event
from sqlalchemy.orm import Session

from megatune_db import connection
from megatune_db import queries
from megatune_db import store
from megatune_db.connection import Mode
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.session import Database
from megatune_db.session import open_database

PLANNING = "INDEX ix_megatune_measurements_planning"
SEARCH = "INDEX uq_megatune_measurements_search"
FINAL = "INDEX uq_megatune_measurements_final"
BY_ID = "INTEGER PRIMARY KEY"
KEYS = {"target": TARGET, "regime": REGIME}
ONE = {"workload": workload(0), "provenance": Provenance.MEASURED}
SHAPE = queries.ShapeRow(
    TARGET,
    REGIME,
    Provenance.MEASURED,
    OPERATOR,
    "k=7168,n=6288",
    {"k": 7168, "n": 6288},
    "bf16",
    1,
    "none",
    tuple((tokens, workload(tokens)) for tokens in range(3)),
)

QUERIES: dict[str, tuple[Callable[[Session], object], set[str]]] = {
    "contenders": (
        lambda s: queries.contenders(s, **KEYS, provenances=[Provenance.MEASURED], baselines=[BASELINE]),
        {PLANNING},
    ),
    "contenders of an operator": (
        lambda s: queries.contenders(s, **KEYS, provenances=[*Provenance], baselines=[BASELINE], operator=OPERATOR),
        {PLANNING},
    ),
    "refuted": (lambda s: queries.refuted(s, **KEYS, provenances=[*Provenance]), {PLANNING, FINAL}),
    "targets": (queries.targets, {PLANNING}),
    "workloads": (lambda s: queries.workloads(s, **KEYS, operator=OPERATOR), {PLANNING}),
    "status_by_workload": (lambda s: queries.status_by_workload(s, **KEYS, operator=OPERATOR), {PLANNING}),
    "known_measurements": (lambda s: queries.known_measurements(s, **KEYS, **ONE), {SEARCH}),
    "final_sessions": (lambda s: queries.final_sessions(s, **KEYS, **ONE), {FINAL}),
    "export_rows": (lambda s: list(queries.export_rows(s, **KEYS)), {PLANNING, SEARCH, FINAL}),
    "samples": (lambda s: queries.samples(s, [1, 2]), {BY_ID}),
    "measurements": (lambda s: queries.measurements(s, [1, 2]), {BY_ID}),
    "campaigns": (queries.campaigns, {BY_ID}),
    "status_counts": (lambda s: queries.status_counts(s, 1), {BY_ID}),
    "trials": (lambda s: queries.trials(s, 1, workload=workload(0)), {BY_ID}),
    "outcomes": (lambda s: queries.outcomes(s, 1, [BASELINE]), {BY_ID}),
    "incumbents": (
        lambda s: queries.incumbents(s, workload=workload(0), regime=REGIME, baselines=[BASELINE]),
        {SEARCH},
    ),
    "measured_shapes": (queries.measured_shapes, {PLANNING}),
    "shapes_version": (lambda s: queries.shapes_version(s, (SHAPE,)), {PLANNING}),
    "parameter_curves": (
        lambda s: queries.parameter_curves(s, SHAPE, variant="simt", parameter="rows"),
        {PLANNING},
    ),
    "failure_counts": (queries.failure_counts, {PLANNING}),
    "failing_configs": (queries.failing_configs, {PLANNING}),
    "failures": (queries.failures, {PLANNING, BY_ID}),
    "failures of a campaign": (lambda s: queries.failures(s, campaign_id=1), {PLANNING, BY_ID}),
    "stored_samples": (lambda s: queries.stored_samples(s, 1), {BY_ID}),
    "contenders of workloads": (
        lambda s: queries.contenders(
            s, **KEYS, provenances=[Provenance.MEASURED], baselines=[BASELINE], workloads=[workload(0)]
        ),
        {PLANNING},
    ),
    "add_measurement, search": (lambda s: store.add_measurement(s, measured(0, 0)), {SEARCH}),
    "add_measurement, final": (lambda s: store.add_measurement(s, measured(0, 0, stage=Stage.FINAL)), {FINAL}),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with open_database(tmp_path_factory.mktemp("filled") / "tuned.db") as database:
        fill(database)
        yield database


@pytest.mark.parametrize("analyzed", [False, True], ids=["as it is", "analyzed"])
@pytest.mark.parametrize("name", QUERIES)
def test_measurements_are_read_by_the_intended_index(filled: Database, name: str, analyzed: bool) -> None:
    query, intended = QUERIES[name]
    statements: list[tuple[str, object]] = []

    def remember(_: object, __: object, sql: str, parameters: object, *___: object) -> None:
        statements.append((sql, parameters))

    with filled.engine.begin() as raw:
        raw.exec_driver_sql("ANALYZE" if analyzed else "DROP TABLE IF EXISTS sqlite_stat1")
    filled.engine.dispose()
    event.listen(filled.engine, "before_cursor_execute", remember)
    try:
        with filled.session() as session:
            query(session)
    finally:
        event.remove(filled.engine, "before_cursor_execute", remember)
    steps = []
    with closing(connection.connect(filled.location.path, Mode.READ)) as raw:
        for sql, parameters in statements:
            if sql.lstrip().startswith(("SELECT", "WITH")):
                steps += [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]
    reads = [step for step in steps if "megatune_measurements" in step]
    assert reads
    for step in reads:
        assert any(index in step for index in intended), step
        assert step.startswith("SEARCH") or name == "targets", step
    if not analyzed:  # with statistics SQLite knows that these tables are small, or wanted whole
        scans = {step.split()[1] for step in steps if step.startswith("SCAN") and "CONSTANT" not in step}
        listed = {"megatune_workloads"} if name == "measured_shapes" else set()
        assert scans <= {"megatune_campaigns", "megatune_targets", "megatune_measurements"} | listed
