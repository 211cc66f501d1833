"""Writes the database of the present revision as SQL beside this file, for SQLite and for PostgreSQL: run it once for
each new revision.

python tests/db/upgrade_assets/make_asset.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from db_examples import OPERATOR  # noqa: E402
from db_examples import TARGET  # noqa: E402
from db_examples import config  # noqa: E402
from db_examples import failed  # noqa: E402
from db_examples import measured  # noqa: E402
from db_examples import put_examples  # noqa: E402
from db_examples import workload  # noqa: E402

from megatune_db import backup  # noqa: E402
from megatune_db import connection  # noqa: E402
from megatune_db import election  # noqa: E402
from megatune_db import leases  # noqa: E402
from megatune_db import reviews  # noqa: E402
from megatune_db import schema  # noqa: E402
from megatune_db import store  # noqa: E402
from megatune_db import verifications  # noqa: E402
from megatune_db.embedded import USER  # noqa: E402
from megatune_db.embedded import EmbeddedServer  # noqa: E402
from megatune_db.records import CampaignAction  # noqa: E402
from megatune_db.records import CampaignState  # noqa: E402
from megatune_db.records import JobState  # noqa: E402
from megatune_db.records import Provenance  # noqa: E402
from megatune_db.records import Regime  # noqa: E402
from megatune_db.records import Stage  # noqa: E402
from megatune_db.session import open_database  # noqa: E402


def main() -> None:
    """Make a database that uses every table, and write it down."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tuned.db"
        with open_database(path) as database, database.session() as session:
            put_examples(session, tokens=2, configs=3)
            store.put_config(
                session, digest=config(3), operator=OPERATOR, variant="simt", params={"rows": 8}, changes_bits=True
            )
            store.put_artifact(
                session,
                key="artifact",
                arch="sm_90a",
                entry="entry",
                registers=96,
                local_bytes=0,
                cubin_bytes=20480,
                dsl="4.8.1",
            )
            campaign = store.put_campaign(
                session, name="first", file_text="name: first", file_digest="file", objective={"kind": "mean"}
            )
            rows = [
                measured(
                    1, 0, 10.0, samples_us=(9.5, 10.5), throttled=(False, True), artifact="artifact", revision="r1"
                ),
                failed(1, 1),
                measured(1, 0, 10.0, stage=Stage.FINAL),
                measured(1, 2, 11.0, stage=Stage.FINAL, parts_us=(("idle", 5.25),)),
            ]
            for number, row in enumerate(rows):
                store.add_trial(
                    session,
                    campaign_id=campaign,
                    workload=workload(1),
                    config=row.config,
                    number=number,
                    measurement_id=store.add_measurement(session, row),
                    reason="sampler" if row.stage is Stage.SEARCH else "finalist",
                    reused=False,
                )
            store.set_campaign(
                session,
                campaign,
                state=CampaignState.FINISHED,
                target=TARGET,
                budget={"trials": 4},
                started_at=datetime(2026, 8, 1, 11),
                finished_at=datetime(2026, 8, 1, 13),
                measuring_s=5400.0,
                wall_s=7200.0,
            )
            term = election.elect(session, campaign, holder="node1:1:boot:1")
            assert isinstance(term, election.Term)
            election.beginning(session, term, "basis")
            worker = leases.add_worker(
                session, campaign_id=campaign, target=TARGET, provenance=Provenance.MEASURED, needs_artifacts=True
            )
            job = leases.NewJob(2, Stage.SEARCH, 9, "sampler", Regime(), (leases.JobConfig(1, config(0), "simt", {}),))
            leases.put_jobs(session, campaign, [job], [JobState.QUEUED])
            lease = leases.claim(session, worker, campaign)
            assert lease is not None
            leases.finish(session, lease, [rows[0]])
            store.put_plan(session, digest="plan", name="first", content='{"bands":[]}', target=TARGET)
            reviews.export(session, "plan", reviews.By("somebody", "unreviewed"), exporter="json", files={"a": b"a"})
            reviews.approve(session, "plan", reviews.By("somebody", "as measured"))
            verifications.add_verification(
                session,
                plan="plan",
                target=TARGET,
                at=datetime(2026, 8, 2, 12),
                who="somebody",
                provenance=Provenance.MEASURED,
                verdict="holds",
                reason="as measured",
                document="{}",
            )
            verifications.add_repeat(
                session,
                campaign="first",
                target=TARGET,
                regime=Regime(),
                provenance=Provenance.MEASURED,
                at=datetime(2026, 8, 2, 13),
                who="somebody",
                repeats=2,
                flip_rate=0.25,
                regret=0.5,
                document="{}",
            )
            prior: store.PriorFields = {
                "digest": "prior",
                "format": "vllm-moe-table",
                "source": "E=8,N=64,device_name=NVIDIA_H200.json",
                "place": {"E": 8, "N": 64},
                "tokens": 16,
                "entry": {"BLOCK_SIZE_M": 16},
                "reason": "no operator here reads it",
            }
            store.put_priors(session, [prior])
            reviews.log_campaign(session, "first", CampaignAction.STOP, reviews.By("somebody", "it is enough"))
        dump = connection.connect(path)
        try:
            (HERE / f"{schema.head()}.sql").write_text("\n".join(dump.iterdump()) + "\n")
        finally:
            dump.close()
        dump_for_postgres(path, schema.head())


def dump_for_postgres(path: Path, revision: str) -> None:
    """The same rows, at the same revision, as PostgreSQL tells them."""
    with EmbeddedServer() as server:
        server.execute("CREATE DATABASE told")
        backup.copy(path, server.url("told"))
        done = subprocess.run(
            [
                *(server.binaries / "pg_dump", "--inserts", "--no-owner", "--no-privileges"),
                *("--host", server.folder, "--port", str(server.port), "--username", USER, "told"),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    # What the server's version sets, and words for psql, are nothing of the database's.
    noise = re.compile(r"--|SET |\\|SELECT pg_catalog\.set_config|$")
    lines = [line for line in done.stdout.splitlines() if not noise.match(line)]
    (HERE / "postgres" / f"{revision}.sql").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
