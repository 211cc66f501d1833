"""Taking what other projects found into a database, as configs to try first.

Times come in with provenance ``imported``, each file a target of its own: nobody here has measured them, and they are
never compared with what was. What has no times, or is no config of an operator here, is kept as a prior.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from megatune_db import store
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Prior
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.operator import operators
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.statistics import median_interval
from megatune_kernels.target import ARCHITECTURES
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain
from megatune_tuner.interchange.kernel_tuner import Entry
from megatune_tuner.interchange.kernel_tuner import Tuning
from megatune_tuner.rows import put_config
from megatune_tuner.rows import put_target
from megatune_tuner.rows import put_workload

UNKNOWN = "unknown"
EAGER = Regime("warm", "eager")
"""How Kernel Tuner times: one launch after the other, over the same operands."""
VARIANT = "variant"
"""A parameter of this name says which variant a config is of."""


@dataclass(frozen=True)
class Place:
    """What a file of Kernel Tuner is of, as its user says."""

    workload: Workload
    variant: str | None = None
    regime: Regime = EAGER
    target: Target | None = None


@dataclass
class Imported:
    """What importing has come to."""

    measurements: int = 0
    """Figures of others that the database did not have."""
    priors: int = 0
    """Entries without figures, or of no operator here, that it did not have."""
    there: int = 0
    """Entries that it had."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why entries are no config of an operator here."""


def import_priors(session: Session, found: Iterable[Prior]) -> Imported:
    """Keep entries of tables and caches."""
    read = {kind for each in operators().values() for kind in each.priors_from}
    return _keep(
        session,
        ((prior, "" if prior.format in read else f"no operator here reads {prior.format}") for prior in found),
    )


def import_tuning(session: Session, tuning: Tuning, kind: str, source: str, place: Place | None) -> Imported:
    """Keep the configs and times of a file of Kernel Tuner.

    :param kind: the format's name.
    :param source: the file's name.
    :param place: what it is of; None where nobody says, and everything is kept as priors.
    """
    source = _text(source)
    about = {"kernel": tuning.kernel, "device": tuning.device}
    if place is None:
        why = "nobody said what it is of: give --operator, --shape and --tokens"
        return _keep(session, ((Prior(kind, source, about, None, _plain(entry)), why) for entry in tuning.entries))
    workload = place.workload
    target = _target(tuning, kind, source, place)
    put_target(session, target)
    put_workload(session, workload)
    measurements: dict[str, Measurement] = {}
    others: list[tuple[Prior, str]] = []
    for entry in tuning.entries:
        try:
            config = _config(workload, entry.params, place.variant)
            if entry.status is Status.OK and not entry.samples_us:
                raise MegatuneError("the file tells no time of it")
        except MegatuneError as error:
            where = {**about, **workload.to_dict()}
            others.append((Prior(kind, source, where, workload.tokens, _plain(entry)), str(error)))
            continue
        put_config(session, workload, config)
        measurements.setdefault(config.digest, _measurement(entry, workload, config, target, place.regime, source))
    done = _keep(session, others)
    done.measurements = store.add_measurements(session, measurements.values())
    done.there += len(measurements) - done.measurements
    return done


def place_of(about: Mapping[str, Any]) -> Place | None:
    """What a file says that it is of, where it was written here; None where it says nothing."""
    if "operator" not in about:
        return None
    try:
        chosen = operator(about["operator"])
        workload = chosen.workload(about["dims"], about["tokens"], about["dtype"], about["world"])
        return Place(
            replace(workload, routing=about["routing"]),
            about["variant"],
            Regime.parse(about["regime"]),
            Target.from_dict(about["target"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MegatuneError(f"what the file says of itself cannot be read: {error}") from error


def _keep(session: Session, found: Iterable[tuple[Prior, str]]) -> Imported:
    """Keep priors, each with the reason why it is no config of an operator here; empty where it may be one."""
    done = Imported()
    rows: dict[str, store.PriorFields] = {}
    for prior, reason in found:
        try:
            named = digest([prior.format, prior.source, dict(prior.place), prior.tokens, prior.entry])
        except (TypeError, ValueError, RecursionError) as error:
            raise MegatuneError(f"{prior.source}: an entry is not plain JSON: {error}") from error
        rows[named] = {
            "digest": named,
            "format": prior.format,
            "source": _text(prior.source)[:512],
            "place": dict(prior.place),
            "tokens": prior.tokens,
            "entry": prior.entry,
            "reason": reason,
        }
        if reason:
            done.reasons[reason] += 1
    done.priors = store.put_priors(session, rows.values())
    done.there = len(rows) - done.priors
    return done


def _text(source: str) -> str:
    """A file's name, which need not be text, as it can be kept."""
    return source.encode(errors="replace").decode()


def _config(workload: Workload, params: Mapping[str, Any], variant: str | None) -> Config:
    """:raises MegatuneError: when the operator has no such config on any architecture, with the first reason."""
    values = dict(params)
    chosen = str(values.pop(VARIANT, variant) or "")
    tuned = operator(workload.operator)
    if not chosen and len(tuned.variants) == 1:
        chosen = tuned.variants[0]
    if chosen not in tuned.variants:
        named = f"{chosen!r} is no variant" if chosen else "nobody said of which variant"
        raise MegatuneError(f"{named} of {tuned.name}; allowed: {', '.join(tuned.variants)}")
    faults = []
    for arch in ARCHITECTURES.values():
        space = tuned.space(workload, arch)
        config = Config.of(chosen, _spelled(space, chosen, values))
        violations = space.violations(config)
        if not violations:
            return config
        faults.append(violations[0])
    raise MegatuneError(f"no config of {tuned.name}: {faults[0]}")


def _spelled(space: Space, variant: str, values: Mapping[str, Any]) -> dict[str, Value]:
    """The values as the space spells them: other files have 1 for true, and 4.0 for 4."""
    known = space.by_variant[variant].parameters if variant in space.by_variant else ()
    allowed = {parameter.name: parameter.values for parameter in known}
    spelled: dict[str, Value] = {}
    for name, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise MegatuneError(f"{name}={value!r} is no value of a parameter")
        other = value if not isinstance(value, float) else str(value)
        spelled[name] = next((each for each in allowed.get(name, ()) if each == value), other)
    return spelled


def _measurement(
    entry: Entry, workload: Workload, config: Config, target: Target, regime: Regime, source: str
) -> Measurement:
    figures = median_interval(entry.samples_us) if entry.status is Status.OK else None
    return Measurement(
        workload=workload.digest,
        config=config.digest,
        target=target.digest,
        regime=regime,
        stage=Stage.SEARCH,
        status=entry.status,
        provenance=Provenance.IMPORTED,
        session=f"imported: {source}"[:128],
        measured_at=entry.measured_at or datetime.now(UTC).replace(tzinfo=None),
        samples_us=entry.samples_us,
        median_us=figures.median if figures else None,
        low_us=figures.low if figures else None,
        high_us=figures.high if figures else None,
        reason=entry.reason or ("" if figures else "it did not work there"),
        compile_s=entry.compile_s,
        measure_s=entry.measure_s,
    )


def _target(tuning: Tuning, kind: str, source: str, place: Place) -> Target:
    """The target that stands for a file: figures of two files are never compared."""
    whose = f"imported: {kind} {source} {digest([_plain(entry) for entry in tuning.entries])}"
    if place.target is not None:
        return Target(place.target.hardware, replace(place.target.toolchain, torch=whose))
    hardware = Hardware(tuning.device or UNKNOWN, UNKNOWN, UNKNOWN, 0, 0, 0, UNKNOWN, place.workload.world)
    return Target(hardware, Toolchain(UNKNOWN, UNKNOWN, UNKNOWN, whose))


def _plain(entry: Entry) -> dict[str, Any]:
    return {
        "params": dict(entry.params),
        "status": entry.status.value,
        "reason": entry.reason,
        "samples_us": list(entry.samples_us),
    }


def lines_of(done: Imported) -> Iterator[str]:
    """What a person wants to know of it."""
    there = f", {done.there} were there" if done.there else ""
    yield f"{done.measurements} measurements and {done.priors} configs without figures are new{there}"
    for reason, count in done.reasons.most_common():
        yield f"{count} are no config of an operator here: {reason}"
