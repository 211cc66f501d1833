"""The latency model: what it finds in made-up cells, what it says of worlds that others measured, what it refuses."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.statistics import Interval
from megatune_planner.latency_model import PATTERNS
from megatune_planner.latency_model import Cell
from megatune_planner.latency_model import VariantModel
from megatune_planner.latency_model import fit
from megatune_planner.predictions import modelled
from megatune_planner.predictions import predicted
from megatune_planner.predictions import predicted_crossovers
from megatune_planner.published.documents import shipped_entries
from megatune_planner.published.entries import groups

POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def cell(variant: str, us: float, tokens: int, world: int = 2, width: int = 7168) -> Cell:
    return Cell(variant, world, width, tokens, 2, Interval(us, us, us))


def truth(variant: str, tokens: int, world: int, width: int, hop: float, gbps: float, token: float) -> float:
    pattern = PATTERNS[variant]
    return pattern.hops * hop + pattern.link_bytes(world, tokens * width * 2) / (1e3 * gbps) + token * tokens


def cells(
    variant: str,
    *,
    hop: float = 1.9,
    gbps: float = 350.0,
    token: float = 0.0,
    worlds: Iterable[int] = (2,),
    widths: Iterable[int] = (7168,),
    tokens: Iterable[int] = POWERS,
    noise: np.random.Generator | None = None,
) -> list[Cell]:
    return [
        cell(
            variant,
            truth(variant, count, world, width, hop, gbps, token)
            * (1.0 if noise is None else 1 + 0.02 * noise.standard_normal()),
            count,
            world,
            width,
        )
        for world in worlds
        for width in widths
        for count in tokens
    ]


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(["full_fanout", "two_stage"]), st.floats(0.5, 20), st.floats(50, 900), st.floats(0.001, 0.1))
def test_what_the_cells_were_made_of_is_found(variant: str, hop: float, gbps: float, token: float) -> None:
    made = cells(variant, hop=hop, gbps=gbps, token=token, worlds=(2, 4), widths=(3584, 7168))
    (found,) = fit(made).values()
    assert found.hop_us == pytest.approx(hop, rel=1e-3)
    assert found.link_gbps == pytest.approx(gbps, rel=1e-3)
    assert found.token_us == pytest.approx(token, rel=1e-3)
    assert max(abs(each.error) for each in found.errors) < 1e-3
    inside = found.predict(4, 7168, 100)
    assert inside.median_us == pytest.approx(truth(variant, 100, 4, 7168, hop, gbps, token), rel=1e-3)
    assert (inside.provenance, inside.beyond) == (Provenance.PREDICTED, False)


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 100), min_size=5, max_size=10))
def test_no_coefficient_is_negative_and_nothing_is_predicted_below_nothing(times: list[float]) -> None:
    (found,) = fit([cell("two_stage", us, tokens) for us, tokens in zip(times, POWERS, strict=False)]).values()
    assert min(found.hop_us, found.us_a_byte, found.token_us) >= 0
    prediction = found.predict(2, 7168, 1)
    assert 0 <= prediction.low_us <= prediction.median_us <= prediction.high_us


def test_one_width_cannot_tell_tokens_from_bytes() -> None:
    (one,) = fit(cells("full_fanout", token=0.05)).values()
    assert one.token_us == 0
    (two,) = fit(cells("full_fanout", token=0.05, widths=(3584, 7168))).values()
    assert two.token_us == pytest.approx(0.05, rel=1e-3)


def test_one_wild_cell_changes_little() -> None:
    made = cells("full_fanout")
    made[5] = cell("full_fanout", 10 * made[5].us.median, POWERS[5])
    (found,) = fit(made).values()
    assert found.hop_us == pytest.approx(1.9, rel=0.05)
    assert found.link_gbps == pytest.approx(350, rel=0.1)


def test_the_interval_holds_what_was_not_measured() -> None:
    hits = []
    for seed in range(60):
        noise = np.random.default_rng(seed)
        (found,) = fit(cells("two_stage", noise=noise, tokens=range(1, 60, 3))).values()
        for tokens in range(2, 58, 2):
            prediction = found.predict(2, 7168, tokens)
            us = truth("two_stage", tokens, 2, 7168, 1.9, 350.0, 0.0) * (1 + 0.02 * noise.standard_normal())
            hits.append(prediction.low_us <= us <= prediction.high_us)
    assert np.mean(hits) > 0.93


def test_a_world_beyond_has_a_wider_interval_that_grows() -> None:
    (found,) = fit(cells("full_fanout", noise=np.random.default_rng(1))).values()
    widths = []
    for world in (2, 4, 8):
        prediction = found.predict(world, 7168, 64, beyond=True)
        assert prediction.beyond == (world > 2)
        assert prediction.low_us < truth("full_fanout", 64, world, 7168, 1.9, 350.0, 0.0) < prediction.high_us
        widths.append(prediction.high_us / prediction.low_us)
    assert widths == sorted(widths)
    assert widths[1] > 1.2 * widths[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((2, 7168, 513), "no prediction for 513 tokens: full_fanout was measured from 1 to 512 tokens at width 7168"),
        ((2, 3584, 8), "no prediction for width 3584: full_fanout was measured at width 7168"),
        ((4, 7168, 8), "no prediction for world 4 unless one beyond is asked for"),
    ],
)
def test_outside_its_range_it_refuses(arguments: tuple[int, int, int], says: str) -> None:
    (found,) = fit(cells("full_fanout")).values()
    with pytest.raises(MegatuneError, match=says):
        found.predict(*arguments)


@pytest.mark.parametrize("world", [1, 16, 64])
def test_far_worlds_are_refused_even_when_asked_for(world: int) -> None:
    (found,) = fit(cells("full_fanout")).values()
    with pytest.raises(MegatuneError, match=r"says something of worlds from 2 to 8"):
        found.predict(world, 7168, 8, beyond=True)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ([], "too few cells .* there are none"),
        (cells("full_fanout", tokens=POWERS[:4]), "there are 4 of full_fanout"),
        ([cell("nccl", 10.0, tokens) for tokens in POWERS], "known are full_fanout, two_stage"),
        (
            [*cells("two_stage"), Cell("two_stage", 2, 7168, 3, 1, Interval(3.0, 3.0, 3.0))],
            "one model is of one dtype",
        ),
    ],
)
def test_what_no_model_can_be_made_of(made: list[Cell], says: str) -> None:
    with pytest.raises(MegatuneError, match=says):
        fit(made)


def test_patterns_send_what_the_operator_says() -> None:
    reduction = operator("reduction")
    for name in ("full_fanout", "two_stage", "torch_one_shot", "torch_two_shot"):
        for world in (2, 4, 8, 16):
            workload = reduction.workload({"width": 7168}, 64, world=world)
            sent = reduction.cost(workload, Config.of(name, {})).link_bytes
            assert PATTERNS[name].link_bytes(world, 64 * 7168 * 2) == pytest.approx(sent, rel=1e-6)


def test_the_error_is_that_of_cells_the_model_did_not_see() -> None:
    made = cells("full_fanout")
    made[-1] = cell("full_fanout", 2 * made[-1].us.median, 512)
    (found,) = fit(made).values()
    (last,) = (each for each in found.errors if each.cell.tokens == 512)
    assert last.error == pytest.approx(-0.5, abs=0.01)
    report = modelled(found)
    assert report.largest_error == pytest.approx(0.5, abs=0.01)
    assert report.median_error < 0.01
    assert report.interval > 1.5
    assert predicted(found, 2, 7168, 8).provenance == "predicted"


def models(**worlds: Iterable[int]) -> dict[str, VariantModel]:
    made = cells("full_fanout", hop=2.0) + cells("two_stage", hop=1.6, gbps=380.0)
    return fit(made)


def test_a_predicted_crossover_moves_with_the_world() -> None:
    found = {world: predicted_crossovers(models(), world, 7168, beyond=True)[0] for world in (2, 4, 8)}
    # 2 + b/350e3 = 3.2 + b/380e3 at the tokens of one world, where b = 14336 bytes a token.
    assert found[2].likeliest_tokens == pytest.approx(1.2 / (14336 / 350e3 - 14336 / 380e3), abs=1)
    likeliest = [each.likeliest_tokens for each in found.values()]
    assert likeliest == sorted((each for each in likeliest if each), reverse=True)
    for world, each in found.items():
        assert (each.below, each.above, each.provenance) == ("full_fanout", "two_stage", "predicted")
        assert each.likeliest_tokens is not None
        assert each.tokens_lo <= each.likeliest_tokens <= each.tokens_hi
        assert each.traffic_hi_bytes == each.tokens_hi * 14336 * world


def test_a_predicted_crossover_needs_tokens_in_common() -> None:
    made = cells("full_fanout", tokens=POWERS[:5]) + cells("two_stage", tokens=POWERS[5:])
    with pytest.raises(MegatuneError, match="have no measured tokens in common"):
        predicted_crossovers(fit(made), 2, 7168)


def published(name: str, library: str, most_bytes: int = 2**17) -> list[Cell]:
    """One library's all-reduces of one published table, as those of a one-shot: small payloads are."""
    (entry,) = (each for each in shipped_entries() if each["id"] == name)
    (group,) = groups(entry)
    assert group.where.world is not None
    return [
        Cell("one_shot", group.where.world, 1, place // 2, 2, point.us[library])
        for place, point in group.points.items()
        if place <= most_bytes
    ]


@pytest.mark.parametrize("library", ["sglang_0.5.14", "trtllm_1.3.0rc20"])
@pytest.mark.parametrize("gpu", ["h100", "h200", "b200", "b300", "gb200", "gb300"])
def test_two_ranks_say_what_four_and_eight_take(gpu: str, library: str) -> None:
    """On published figures: nothing here was fitted to the larger worlds but how a hop grows."""
    (found,) = fit(published(f"aic-ar-{gpu}-ws2", library)).values()
    for world in (4, 8):
        name = f"aic-ar-{gpu}-ws{world}"
        if not any(entry["id"] == name for entry in shipped_entries()):
            continue
        held = [
            found.predict(world, 1, each.tokens, beyond=True).low_us
            <= each.us.median
            <= found.predict(world, 1, each.tokens, beyond=True).high_us
            for each in published(name, library)
        ]
        assert sum(held) >= len(held) - 1
        errors = [
            abs(found.predict(world, 1, each.tokens, beyond=True).median_us / each.us.median - 1)
            for each in published(name, library)
        ]
        assert sorted(errors)[len(errors) // 2] < 0.2
