"""A few thousand measurements of several targets and regimes, with a campaign."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from db_examples import failed
from db_examples import measured
from db_examples import put_examples

from megatune_db import bulk
from megatune_db import models
from megatune_db import store
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import TrialState
from megatune_db.session import Database

CAMPAIGNS = 40
TRIALS = 50
"""Of each campaign."""


def fill(database: Database) -> None:
    """Put them in, the same ones each time."""
    rng = random.Random(5)
    with database.session() as session:
        put_examples(session, tokens=20, configs=50)
        rows = [
            failed(tokens, number, stage=stage)
            if rng.random() < 0.1
            else measured(tokens, number, 1 + rng.random(), stage=stage)
            for tokens in range(20)
            for number in range(50)
            for stage in Stage
        ]
        store.add_measurements(session, rows)
        # Most of what a database holds is of other targets and regimes.
        store.put_target(session, digest="other", hardware={}, toolchain={})
        store.add_measurements(session, (dataclasses.replace(row, target="other") for row in rows))
        store.add_measurements(session, (dataclasses.replace(row, regime=Regime("warm")) for row in rows))
        for number in range(CAMPAIGNS):
            store.put_campaign(session, name=f"h200-{number}", file_text="", file_digest="1")
        bulk.insert_rows(session, models.Trial, map(_trial, range(CAMPAIGNS * TRIALS)))


def _trial(number: int) -> dict[str, Any]:
    """One of the first campaign, then one of the second, …"""
    return {
        "campaign_id": number % CAMPAIGNS + 1,
        "workload_id": 1,
        "config_id": number // CAMPAIGNS + 1,
        "number": number // CAMPAIGNS,
        "state": TrialState.DONE,
        "measurement_id": number + 1,
        "reason": "sampler",
        "reused": False,
    }
