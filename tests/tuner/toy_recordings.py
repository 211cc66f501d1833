"""Recordings of the toy: its whole spaces, with failures where a test wants them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from datetime import datetime
from datetime import timedelta
from pathlib import Path

from toy import TARGET
from toy import Toy
from toy import samples_us

from megatune_db.queries import ExportRow
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.statistics import median_interval
from megatune_kernels.target import architecture
from megatune_tuner.recording_file import About
from megatune_tuner.recording_file import write_recording

SHAPES = ((1536, 7168), (3072, 7168), (7168, 1536))
TOKENS = (1, 2, 4, 8, 16, 32)
BASELINE = Config.of("stock", {})
ABOUT = About(TARGET, Regime("cold", "graph"), "0.1.0", "name = 'toy'\n", "the whole space", {"copy_bytes_a_us": 4e6})

Fails = Callable[[Config], Status]


def workloads(shapes: Iterable[tuple[int, int]] = SHAPES, tokens: Iterable[int] = TOKENS) -> list[Workload]:
    return [Toy().workload({"n": n, "k": k}, count) for n, k in shapes for count in tokens]


def works(config: Config) -> Status:
    return Status.OK


def measurement(
    workload: Workload, config: Config, status: Status = Status.OK, *, session: str = "", number: int = 0
) -> Measurement:
    samples = samples_us(workload, config, seed=number) if status is Status.OK else ()
    figures = median_interval(samples) if samples else (None, None, None)
    return Measurement(
        workload=workload.digest,
        config=config.digest,
        target=TARGET.digest,
        regime=ABOUT.regime,
        stage=Stage.FINAL if session else Stage.SEARCH,
        status=status,
        provenance=Provenance.MEASURED,
        session=session or "some",
        measured_at=datetime(2026, 12, 1) + timedelta(milliseconds=11 * number),
        samples_us=samples,
        median_us=figures[0],
        low_us=figures[1],
        high_us=figures[2],
        launches_a_sample=40 if samples else 0,
        sm_clock_mhz=1980 if samples else None,
        flush_bytes=2**28,
        reason="" if status is Status.OK else f"the toy ends {status}",
    )


def row(workload: Workload, config: Config, found: Measurement) -> ExportRow:
    return ExportRow(
        found,
        workload.operator,
        workload.shape,
        dict(workload.dims),
        workload.tokens,
        workload.dtype,
        workload.world,
        workload.routing,
        config.variant,
        config.params,
    )


def rows(
    cells: Iterable[Workload], fails: Fails = works, configs: Callable[[Workload], Iterable[Config]] | None = None
) -> Iterator[ExportRow]:
    arch = architecture("sm_90a")
    number = 0
    for workload in cells:
        chosen = configs(workload) if configs is not None else Toy().space(workload, arch).configs
        for config in (BASELINE, *chosen):
            number += 1
            yield row(workload, config, measurement(workload, config, fails(config), number=number))


def record_toy(path: Path, cells: Iterable[Workload] | None = None, fails: Fails = works) -> Path:
    """A recording of the toy's whole spaces."""
    write_recording(path, rows(workloads() if cells is None else cells, fails), ABOUT)
    return path
