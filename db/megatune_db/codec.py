"""How a measurement is laid out in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status

SAMPLE = np.dtype("<f4")
"""Of a sample in the blob: 24 bits are finer than any clock, and half the size."""


def encode_samples(samples_us: Sequence[float]) -> bytes | None:
    """The blob of samples, in microseconds; None for none.

    :raises ValueError: for a sample that is not finite, or too large for float32.
    """
    if not samples_us:
        return None
    with np.errstate(over="ignore"):
        samples = np.asarray(samples_us, SAMPLE)
    if not np.isfinite(samples).all():
        raise ValueError("every sample must be a finite number of microseconds")
    return samples.tobytes()


def decode_samples(blob: bytes | None) -> NDArray[np.float32]:
    """Samples in microseconds; empty for None."""
    return np.frombuffer(blob or b"", SAMPLE)


def encode_throttled(flags: Sequence[bool]) -> bytes | None:
    """One byte a sample; None for none."""
    return bytes(map(bool, flags)) if flags else None


def decode_throttled(blob: bytes | None) -> tuple[bool, ...]:
    """One flag a sample; empty for None."""
    return tuple(map(bool, blob or b""))


def figures(record: Measurement) -> dict[str, Any]:
    """The columns of a row except for the ids of workload, config and target."""
    return {
        "regime": str(record.regime),
        "stage": record.stage.value,
        "status": record.status.value,
        "provenance": record.provenance.value,
        "session": record.session,
        "measured_at": record.measured_at,
        "median_us": record.median_us,
        "low_us": record.low_us,
        "high_us": record.high_us,
        "launches_a_sample": record.launches_a_sample,
        "sm_clock_mhz": record.sm_clock_mhz,
        "flush_bytes": record.flush_bytes,
        # Half a character, or a zero byte, in what a compiler or a driver said must not lose the measurement.
        "reason": record.reason.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}"),
        "compile_s": record.compile_s,
        "measure_s": record.measure_s,
        "artifact": record.artifact,
        "revision": record.revision,
        "throttled": encode_throttled(record.throttled),
        "samples": encode_samples(record.samples_us),
        "parts": dict(record.parts_us) or None,
    }


def record(row: Any, *, workload: str, config: str, target: str) -> Measurement:
    """The measurement that a row (of ``models.Measurement``, or with its columns) holds."""
    return Measurement(
        workload=workload,
        config=config,
        target=target,
        regime=Regime.parse(row.regime),
        stage=Stage(row.stage),
        status=Status(row.status),
        provenance=Provenance(row.provenance),
        session=row.session,
        measured_at=row.measured_at,
        samples_us=tuple(decode_samples(row.samples).tolist()),
        throttled=decode_throttled(row.throttled),
        median_us=row.median_us,
        low_us=row.low_us,
        high_us=row.high_us,
        launches_a_sample=row.launches_a_sample,
        sm_clock_mhz=row.sm_clock_mhz,
        flush_bytes=row.flush_bytes,
        reason=row.reason,
        compile_s=row.compile_s,
        measure_s=row.measure_s,
        artifact=row.artifact,
        parts_us=tuple((row.parts or {}).items()),
        revision=row.revision,
    )
