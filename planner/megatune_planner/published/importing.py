"""Taking published latencies of all-reduces into a database, of provenance ``imported``.

Each entry is a target of its own: figures of two publications are never compared, whatever they say they ran on. What
a source does not state is ``unknown``, or 0 where the field is a number.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from datetime import datetime

from sqlalchemy.orm import Session

from megatune_db import store
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.statistics import Interval
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain
from megatune_planner.published.documents import shipped_entries
from megatune_planner.published.entries import Entry
from megatune_planner.published.entries import Group
from megatune_planner.published.entries import groups

OPERATOR = "reduction"
UNKNOWN = "unknown"
TAKEN = datetime(2026, 11, 30)
"""When the figures were collected; when they were measured the sources do not state."""


def import_published(session: Session, entries: Iterable[Entry] | None = None) -> int:
    """Add the latencies of every entry that is of an all-reduce at a known world; return how many were new.

    :param entries: those that come with Megatune when they are not given.
    """
    added = 0
    for entry in shipped_entries() if entries is None else entries:
        if entry.get("collective") == "all_reduce" and entry.get("figure_kind") == "measured":
            for group in groups(entry):
                if group.where.world is not None and group.where.world > 1:
                    added += store.add_measurements(session, _put(session, entry, group))
    return added


def target_of(entry: Entry, world: int) -> Target:
    """The target that stands for an entry's machine at one world."""
    return Target(
        Hardware(
            gpu=str(entry.get("hardware") or UNKNOWN),
            arch=UNKNOWN,
            device_id=UNKNOWN,
            sms=0,
            l2_bytes=0,
            memory_bytes=0,
            links=str(entry.get("topology") or UNKNOWN),
            world=world,
        ),
        Toolchain(driver=UNKNOWN, cuda=UNKNOWN, dsl=UNKNOWN, torch=f"published as {entry['id']}"),
    )


def regime_of(entry: Entry) -> Regime:
    """Back to back on the same buffers; in a graph where the source says so."""
    return Regime("warm", "graph" if entry.get("execution") == "graph" else "eager")


def _put(session: Session, entry: Entry, group: Group) -> list[Measurement]:
    assert group.where.world is not None
    target = target_of(entry, group.where.world)
    spelled = target.to_dict()
    store.put_target(session, digest=target.digest, hardware=spelled["hardware"], toolchain=spelled["toolchain"])
    found = []
    for workload, mode, us in _latencies(entry, group, group.where.world):
        config = Config.of(mode, {})
        store.put_workload(session, digest=workload.digest, shape=workload.shape, **workload.to_dict())
        store.put_config(session, digest=config.digest, operator=OPERATOR, variant=mode, params={})
        found.append(
            Measurement(
                workload=workload.digest,
                config=config.digest,
                target=target.digest,
                regime=regime_of(entry),
                stage=Stage.SEARCH,
                status=Status.OK,
                provenance=Provenance.IMPORTED,
                session=str(entry["id"]),
                measured_at=TAKEN,
                samples_us=(us.median,),
                median_us=us.median,
                low_us=us.low,
                high_us=us.high,
            )
        )
    return found


def _latencies(entry: Entry, group: Group, world: int) -> Iterator[tuple[Workload, str, Interval]]:
    """Workload, mode and latency of each figure.

    A payload whose rows the source does not state has rows of one element, so that its tokens count elements.
    """
    dtype = str(entry.get("dtype") or UNKNOWN).partition(" ")[0]
    for place, point in sorted(group.points.items()):
        width, tokens = group.where.width, float(place)
        if group.scale.unit != "tokens":
            width = 1
            size = group.where.item_bytes
            payload = group.where.payload_bytes(group.scale.unit, place)
            if group.scale.unit == "elements":
                payload, size = float(place), 1
            if payload is None or size is None:
                continue
            tokens = payload / size
        if width is None or tokens != int(tokens):
            continue
        for mode, us in point.us.items():
            yield Workload.of(OPERATOR, {"width": width}, int(tokens), dtype=dtype, world=world), mode, us
