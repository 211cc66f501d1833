"""How bisection compares with a sweep, over recordings of a toy whose crossovers are known."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import crossing_toy
import pyarrow.compute as pc
import pytest
import toy
from campaigns import ToyRunner
from campaigns import campaign
from crossing_toy import CrossingToy
from crossing_toy import crossing

from megatune_db.records import Provenance
from megatune_db.session import open_database
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_tuner.benchmark import sampled_cells
from megatune_tuner.bisection import crossovers
from megatune_tuner.bisection_benchmark import Bisected
from megatune_tuner.bisection_benchmark import Place
from megatune_tuner.bisection_benchmark import bisected
from megatune_tuner.bisection_benchmark import bisection_figures
from megatune_tuner.bisection_benchmark import places
from megatune_tuner.recording_run import record
from megatune_tuner.recordings import Recording
from megatune_tuner.recordings import merge
from megatune_tuner.recordings import read_recording

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SIZES = (100, 640, 1536, 64000)
"""The last one's crossover is beyond the listed tokens."""
SHAPE = CrossingToy().workload({"n": 1536, "k": 7168}, 1).at(0)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with toy.registered(CrossingToy):
        yield


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("swept")
    with toy.registered(CrossingToy), open_database(folder / "swept.db") as database:
        asked = campaign(tokens=TOKENS, shapes=[(n, 7168) for n in SIZES], more="record.around_crossovers = 0.25")
        record(asked, ToyRunner(samples=crossing_toy.samples_us), database, folder / "swept.parquet")
    return read_recording(folder / "swept.parquet")


@pytest.fixture(scope="module")
def found(recording: Recording) -> list[Bisected]:
    with toy.registered(CrossingToy):
        return bisected(recording)


def test_bisection_is_within_a_token_or_five_per_cent_for_a_quarter(found: list[Bisected]) -> None:
    assert [one.shape["n"] for one in found] == [100, 1536, 640]
    for one in found:
        assert one.found is not None
        assert one.sweep is not None
        assert (one.found.below, one.found.above) == ("simt", "mma")
        assert one.off <= 0.05
        assert one.share <= 0.25
        at = crossing(one.shape)
        for place in (one.found, one.sweep):
            assert place.low < at < place.high
            assert abs(place.tokens - at) <= max(1, 0.05 * at)
    off, share = bisection_figures(found, "a toy")
    assert off.met
    assert share.met
    assert off.value == pytest.approx(100 * max(one.off for one in found))
    assert share.value == pytest.approx(100 * max(one.share for one in found))
    assert (off.unit, off.goal, share.goal, off.provenance) == ("%", "<= 5% or one token", "<= 25%", "replayed")
    assert off.how == "worst of 3; a toy"


def test_cells_around_crossovers_are_no_sampled_ones(recording: Recording, tmp_path: Path) -> None:
    assert {(cell["n"], cell.tokens) for cell in sampled_cells(recording)} == {
        (n, one) for n in SIZES for one in TOKENS
    }
    assert len(recording.workloads) > len(SIZES) * len(TOKENS)
    merge(tmp_path / "merged.parquet", [recording, recording])
    assert sampled_cells(read_recording(tmp_path / "merged.parquet")) == sampled_cells(recording)


def test_ranks_that_shared_a_gpu_are_compared_alike(tmp_path: Path) -> None:
    target = replace(toy.TARGET, hardware=replace(toy.TARGET.hardware, links="emulated"))
    runner = ToyRunner(samples=crossing_toy.samples_us, at=target, provenance=Provenance.EMULATED)
    asked = campaign(tokens=TOKENS, more="record.around_crossovers = 0.25")
    with open_database(tmp_path / "emulated.db") as database:
        record(asked, runner, database, tmp_path / "emulated.parquet")
    emulated = read_recording(tmp_path / "emulated.parquet")
    assert emulated.is_emulated
    (one,) = bisected(emulated)
    assert one.off <= 0.05
    assert one.share <= 0.25


def test_a_sweep_that_did_not_come_to_its_end_is_nothing_to_compare_with(
    recording: Recording, found: list[Bisected]
) -> None:
    (one,) = (one for one in found if one.shape == SHAPE)
    assert one.sweep is not None
    lost = json.dumps(SHAPE.at(one.sweep.low + 1).to_dict(), sort_keys=True, separators=(",", ":"))
    table = recording.table()
    ended = Recording("ended", recording.about, table.filter(pc.not_equal(table["workload"], lost)))
    assert len(ended.workloads) == len(recording.workloads) - 1
    assert [each.shape for each in bisected(ended)] == [each.shape for each in found if each.shape != SHAPE]


def test_cells_are_counted(found: list[Bisected]) -> None:
    for one in found:
        assert one.swept == 256
        assert len(TOKENS) < one.measured <= len(TOKENS) + 14
        assert one.share == one.measured / 256


def cells(times: dict[int, tuple[float, float]]) -> Iterator[tuple[Workload, dict[Config, list[float]]]]:
    for tokens, (simt, mma) in times.items():
        yield SHAPE.at(tokens), {Config.of("simt", {}): [simt] * 9, Config.of("mma", {}): [mma] * 9}


def test_crossovers_that_noise_makes_of_one_are_one_place() -> None:
    signs = {64: 1, 90: 1, 91: -1, 92: 1, 93: -1, 128: -1, 256: 1, 257: -1, 300: -1}
    found = places(crossovers(dict(cells({tokens: (2.0 - 0.1 * sign, 2.0) for tokens, sign in signs.items()}))))
    assert [(one.below, one.above, one.low, one.high) for one in found] == [("simt", "mma", 90, 93)]
    assert 91 < found[0].tokens < 92


def test_what_is_missed_misses_the_goal() -> None:
    place = Place("simt", "mma", 90, 93, 91.5)
    missed = Bisected(SHAPE, None, place, 10, 100)
    assert missed.off == math.inf
    off, share = bisection_figures([missed], "a toy")
    assert (off.value, off.met) == (None, False)
    assert "only one of them has" in off.how
    assert (share.value, share.met) == (10.0, True)
    near = Bisected(SHAPE, Place("simt", "mma", 4, 6, 5.0), Place("simt", "mma", 5, 6, 5.9), 10, 100)
    assert near.off == 0.0
    nothing = bisection_figures([], "no recording is swept")
    assert [(figure.value, figure.met, figure.how) for figure in nothing] == [(None, None, "no recording is swept")] * 2
