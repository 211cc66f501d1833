"""Small things to put into a database."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from megatune_db import store
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status

TARGET = "7a" * 8
OPERATOR = "projection"
BASELINE = "cublas"
VARIANTS = ("simt", "mma", BASELINE)
REGIME = Regime()
NOON = datetime(2026, 8, 1, 12)


def workload(tokens: int, operator: str = OPERATOR) -> str:
    """Digest of the example workload with so many tokens."""
    return f"{operator}-{tokens}"


def config(number: int) -> str:
    """Digest of the example config of that number; its variant is ``VARIANTS[number % 3]``."""
    return f"config-{number}"


def put_examples(session: Session, *, tokens: int = 3, configs: int = 6, operator: str = OPERATOR) -> None:
    """The target, workloads of 0, 1, … tokens, and configs 0, 1, …"""
    store.put_target(session, digest=TARGET, hardware={"gpu": "H200"}, toolchain={"driver": "580.1"})
    for count in range(tokens):
        store.put_workload(
            session,
            digest=workload(count, operator),
            operator=operator,
            shape="k=7168,n=6288",
            dims={"k": 7168, "n": 6288},
            tokens=count,
            dtype="bf16",
            world=1,
            routing="none",
        )
    for number in range(configs):
        store.put_config(
            session,
            digest=config(number),
            operator=operator,
            variant=VARIANTS[number % 3],
            params={} if number % 3 == 2 else {"rows": number},
        )


def measured(
    tokens: int,
    number: int,
    median_us: float = 10.0,
    *,
    low_us: float | None = None,
    high_us: float | None = None,
    operator: str = OPERATOR,
    **fields: Any,
) -> Measurement:
    """An ok measurement; its interval is 1 % to each side unless it is given."""
    values: dict[str, Any] = {
        "workload": workload(tokens, operator),
        "config": config(number),
        "target": TARGET,
        "regime": REGIME,
        "stage": Stage.SEARCH,
        "status": Status.OK,
        "provenance": Provenance.MEASURED,
        "session": "first",
        "measured_at": NOON,
        "samples_us": (median_us, median_us),
        "median_us": median_us,
        "low_us": median_us * 0.99 if low_us is None else low_us,
        "high_us": median_us * 1.01 if high_us is None else high_us,
    }
    return Measurement(**values | fields)


def failed(tokens: int, number: int, status: Status = Status.HANG, **fields: Any) -> Measurement:
    """A measurement that ended in another status."""
    nothing: dict[str, Any] = {"samples_us": (), "median_us": None, "reason": f"it was {status}"}
    values = {"status": status, **nothing} | fields
    values.setdefault("workload", workload(tokens))
    return Measurement(
        config=config(number),
        target=TARGET,
        regime=values.pop("regime", REGIME),
        stage=values.pop("stage", Stage.SEARCH),
        provenance=values.pop("provenance", Provenance.MEASURED),
        session=values.pop("session", "first"),
        measured_at=NOON,
        **values,
    )
