"""Kernel Tuner's files: results in the T4 schema, and the caches that it goes on from and simulates with.

Both hold one kernel's configs with their times in milliseconds. Files that are written here also hold, under the key
``megatune``, what they are of, so that they can be read again without being told. T4 1.0.0 and the caches of Kernel
Tuner 1.5.0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from datetime import UTC
from datetime import datetime
from typing import Any

from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.space import Value

T4_VERSION = "1.0.0"
US_A_MS = 1000.0
LONGEST_US = 1e30
"""Times are kept as float32."""
UNITS = {
    "s": 1e6,
    "seconds": 1e6,
    "ms": 1e3,
    "milliseconds": 1e3,
    "us": 1.0,
    "µs": 1.0,
    "microseconds": 1.0,
    "ns": 1e-3,
}
"""Microseconds of each unit that files name."""
INVALIDITY = {
    Status.OK: "correct",
    Status.INFEASIBLE: "constraints",
    Status.COMPILE_ERROR: "compile",
    Status.COMPILE_TIMEOUT: "timeout",
    Status.WRONG_RESULT: "correctness",
    Status.OUT_OF_MEMORY: "runtime",
    Status.CRASH: "runtime",
    Status.HANG: "timeout",
}
"""T4's word for each status; a status of ours is beside it where words share one."""
STATUSES = {
    "correct": Status.OK,
    "constraints": Status.INFEASIBLE,
    "compile": Status.COMPILE_ERROR,
    "correctness": Status.WRONG_RESULT,
    "runtime": Status.CRASH,
    "timeout": Status.HANG,
}
ERRORS = {
    "InvalidConfig": Status.INFEASIBLE,
    "CompilationFailedConfig": Status.COMPILE_ERROR,
    "RuntimeFailedConfig": Status.CRASH,
    "ErrorConfig": Status.CRASH,
}
"""What a cache says of a config without a time."""
FAILURES = {
    Status.INFEASIBLE: "InvalidConfig",
    Status.COMPILE_ERROR: "CompilationFailedConfig",
    Status.COMPILE_TIMEOUT: "CompilationFailedConfig",
}
OURS = "megatune"
FAULTS = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading raises where a file holds something else than it should."""
NOT_PARAMETERS = ("time", "times", "timestamp", "__error__", "status", "reason")


@dataclass(frozen=True)
class Entry:
    """One config of a kernel, and what became of it."""

    params: Mapping[str, Value]
    status: Status
    reason: str = ""
    samples_us: tuple[float, ...] = ()
    """Microseconds a launch; none where a file tells other figures alone, e.g. what an observer saw."""
    compile_s: float = 0.0
    measure_s: float = 0.0
    measured_at: datetime | None = None
    """UTC, without a time zone."""


@dataclass(frozen=True)
class Tuning:
    """What one file holds."""

    kernel: str
    device: str
    """Name of the GPU; empty where the file does not say."""
    entries: tuple[Entry, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    """Of a file that was written here: operator, dims, tokens, dtype, world, routing, variant, target and regime."""
    problem_size: tuple[int, ...] = ()


def write_t4(tuning: Tuning) -> str:
    """The text of a results file."""
    results = [_t4_result(entry) for entry in tuning.entries]
    metadata = {"timeunit": "milliseconds", "kernel_name": tuning.kernel, "device_name": tuning.device}
    document = {"schema_version": T4_VERSION, "metadata": {**metadata, OURS: dict(tuning.about)}, "results": results}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def write_t4_metadata(hardware: Mapping[str, Any], toolchain: Mapping[str, Any]) -> str:
    """The text of the file beside results that says what they were measured on: hardware and what was installed."""
    requirements = [f"{name}=={version}" for name, version in toolchain.items()]
    metadata = {
        "hardware": {"hardware_description": [dict(hardware)]},
        "environment": {"device_query": dict(hardware), "requirements": requirements},
    }
    return json.dumps({"schema_version": T4_VERSION, "metadata": metadata}, indent=1, allow_nan=False) + "\n"


def _t4_result(entry: Entry) -> dict[str, Any]:
    measurements: list[dict[str, Any]] = [{"name": "status", "value": entry.status.value, "unit": ""}]
    if entry.samples_us:
        measurements.insert(0, {"name": "time", "value": _mean_ms(entry), "unit": "ms"})
    if entry.reason:
        measurements.append({"name": "reason", "value": entry.reason, "unit": ""})
    result: dict[str, Any] = {
        "configuration": dict(entry.params),
        "objectives": ["time"],
        "times": {
            "compilation_time": entry.compile_s * 1e3,
            "benchmark": entry.measure_s * 1e3,
            "runtimes": [us / US_A_MS for us in entry.samples_us],
        },
        "invalidity": INVALIDITY[entry.status],
        "correctness": int(entry.status is Status.OK),
        "measurements": measurements,
    }
    if entry.measured_at is not None:
        result["timestamp"] = _stamp(entry.measured_at)
    return result


def read_t4(text: str, source: str) -> Tuning:
    """What a results file holds.

    :raises MegatuneError: when it is not JSON, or not of the schema.
    """
    try:
        document = json.loads(text)
        metadata = document.get("metadata") or {}
        unit = UNITS[str(metadata.get("timeunit", "milliseconds"))]
        entries = tuple(_t4_entry(result, unit) for result in document["results"])
        about = dict(metadata.get(OURS) or {})
        return Tuning(str(metadata.get("kernel_name", "")), str(metadata.get("device_name", "")), entries, about)
    except FAULTS as error:
        raise _not_a(source, "T4 results file", error) from error


def _t4_entry(result: Mapping[str, Any], unit: float) -> Entry:
    times = result["times"]
    told = {each["name"]: each for each in result.get("measurements") or ()}
    status = STATUSES[result["invalidity"]]
    if "status" in told and told["status"]["value"] in Status._value2member_map_:
        status = Status(told["status"]["value"])
    samples = tuple(float(value) * unit for value in times.get("runtimes") or ())
    if not samples and status is Status.OK:
        samples = tuple(
            float(each["value"]) * UNITS[each.get("unit") or "ms"] for name, each in told.items() if name == "time"
        )
    return _entry(
        dict(result["configuration"]),
        status,
        str(told["reason"]["value"]) if "reason" in told else f"invalidity: {result['invalidity']}",
        samples,
        times.get("compilation_time", times.get("compilation", 0.0)),
        times.get("benchmark", 0.0),
        result.get("timestamp"),
    )


def write_cache(tuning: Tuning) -> str:
    """The text of a cache that Kernel Tuner reads, goes on from and simulates with."""
    names = list(tuning.entries[0].params) if tuning.entries else []
    values = {name: list(dict.fromkeys(entry.params[name] for entry in tuning.entries)) for name in names}
    document = {
        "device_name": tuning.device,
        "kernel_name": tuning.kernel,
        "problem_size": list(tuning.problem_size),
        "tune_params_keys": names,
        "tune_params": values,
        "objective": "time",
        OURS: dict(tuning.about),
        # The entries come last: a process that goes on cuts the two brackets off that close the file.
        "cache": {",".join(map(str, entry.params.values())): _cached(entry) for entry in tuning.entries},
    }
    return json.dumps(document, indent=0, allow_nan=False)


def _cached(entry: Entry) -> dict[str, Any]:
    stored: dict[str, Any] = dict(entry.params)
    if entry.samples_us:
        stored |= {"time": _mean_ms(entry), "times": [us / US_A_MS for us in entry.samples_us]}
    else:
        stored |= {"__error__": FAILURES.get(entry.status, "RuntimeFailedConfig"), "reason": entry.reason}
    stored |= {
        "status": entry.status.value,
        "compile_time": entry.compile_s * 1e3,
        "verification_time": 0.0,
        "benchmark_time": entry.measure_s * 1e3,
        "strategy_time": 0.0,
        "framework_time": 0.0,
    }
    if entry.measured_at is not None:
        stored["timestamp"] = _stamp(entry.measured_at)
    return stored


def read_cache(text: str, source: str) -> Tuning:
    """What a cache holds; one that a process left open is read like one that was closed.

    :raises MegatuneError: when it is not JSON, or no such cache.
    """
    try:
        document = _closed(text)
        names = list(document["tune_params_keys"])
        entries = tuple(_cache_entry(stored, names) for stored in document["cache"].values())
        return Tuning(
            str(document["kernel_name"]), str(document["device_name"]), entries, dict(document.get(OURS) or {})
        )
    except FAULTS as error:
        raise _not_a(source, "cache of Kernel Tuner", error) from error


def _closed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text.rstrip().removesuffix(",") + "}}")


def _cache_entry(stored: Mapping[str, Any], names: Sequence[str]) -> Entry:
    error = next((value for value in stored.values() if isinstance(value, str) and value in ERRORS), None)
    status = Status.OK if error is None else ERRORS[error]
    if stored.get("status") in Status._value2member_map_:
        status = Status(stored["status"])
    samples: tuple[float, ...] = ()
    if status is Status.OK:
        told = stored.get("times") or ([stored["time"]] if "time" in stored else [])
        samples = tuple(float(ms) * US_A_MS for ms in told)
    return _entry(
        {name: stored[name] for name in names},
        status,
        str(stored.get("reason") or error),
        samples,
        stored.get("compile_time", 0.0),
        stored.get("benchmark_time", 0.0),
        stored.get("timestamp"),
    )


def _entry(
    params: dict[str, Value],
    status: Status,
    reason: str,
    samples_us: tuple[float, ...],
    compile_ms: Any,
    benchmark_ms: Any,
    timestamp: str | None,
) -> Entry:
    if status is Status.OK and not all(0 < us < LONGEST_US for us in samples_us):
        raise ValueError(f"a time is not a positive number: {params}")
    return Entry(
        params,
        status,
        "" if status is Status.OK else reason,
        samples_us if status is Status.OK else (),
        _seconds(compile_ms),
        _seconds(benchmark_ms),
        _time_of(timestamp),
    )


def _seconds(ms: Any) -> float:
    """0 where a file has no such figure."""
    found = float(ms or 0.0) / 1e3
    return found if found > 0 and math.isfinite(found) else 0.0


def _mean_ms(entry: Entry) -> float:
    return math.fsum(entry.samples_us) / len(entry.samples_us) / US_A_MS


def _stamp(at: datetime) -> str:
    return str(at.replace(tzinfo=UTC))


def _time_of(timestamp: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(timestamp) if timestamp else None
        return found.astimezone(UTC).replace(tzinfo=None) if found is not None and found.tzinfo is not None else found
    except (ValueError, OverflowError):
        return None


def _not_a(source: str, what: str, error: Exception) -> MegatuneError:
    why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return MegatuneError(f"{source} is no {what}: {' '.join(why.split())}")
