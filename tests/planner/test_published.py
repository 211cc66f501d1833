"""Published figures: what the planner says of each, and of others of the same kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from published_examples import published_answers
from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_planner.planning import make_plan
from megatune_planner.published.answers import answer
from megatune_planner.published.documents import entries_of
from megatune_planner.published.documents import read_entries
from megatune_planner.published.documents import shipped_entries
from megatune_planner.published.importing import import_published
from megatune_planner.published.importing import target_of
from megatune_planner.published.model import Answer
from megatune_planner.published.model import Chosen
from megatune_planner.published.model import PublishedCrossover
from megatune_planner.published.rendering import published_lines

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "published" / "answers.txt"


def entry(points: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    values = {
        "id": "made-up",
        "family": "one_shot_vs_two_shot",
        "figure_kind": "measured",
        "hardware": "GPU",
        "world_size": 8,
        "hidden_size": 7168,
        "dtype": "bf16",
        "modes": ["one_shot", "two_shot"],
        "x_unit": "tokens",
        "points": points,
        "threshold_chosen": None,
        "noise": None,
        "source": "a test",
    }
    return values | fields


def pairs(*rows: tuple[Any, float, float], names: tuple[str, str] = ("one_shot", "two_shot")) -> list[dict[str, Any]]:
    return [{"x": x, "us": dict(zip(names, us, strict=True))} for x, *us in rows]


def only(found: Any) -> PublishedCrossover:
    (each,) = (crossover for part in found.answers for crossover in part.crossovers)
    return each


def shipped(name: str) -> Any:
    return answer(next(each for each in shipped_entries() if each["id"] == name))


def test_every_shipped_answer_is_the_golden_one() -> None:
    """One line a fact: they change on purpose only, see tests/golden/regenerate.py."""
    assert published_answers() == GOLDEN.read_text(encoding="utf-8")


def test_every_entry_with_two_alternatives_has_an_answer() -> None:
    for each in shipped_entries():
        found = answer(each)
        unanswered = not any(part.crossovers for part in found.answers)
        # Caps of libraries, parts of one latency and a table whose figures were not collected are no choice of two.
        assert unanswered == (each["id"] in ("vllm-comm-caps", "trtllm-18505-k3-tail", "trtllm-lut")), each["id"]
        assert not any("form that is not known" in remark for remark in found.remarks)


def test_constants_are_no_measurements() -> None:
    for each in shipped_entries():
        found = answer(each)
        assert found.provenance == "imported"
        assert found.constant == (each["figure_kind"] == "constant_in_code")
        if found.constant:
            assert not any(crossover.measured for part in found.answers for crossover in part.crossovers)


def test_worlds_are_never_pooled() -> None:
    found = shipped("tokenspeed-1234-64tok")
    assert [(part.world, only(answer_of(part)).faster) for part in found.answers] == [(8, "two_shot"), (16, "two_shot")]
    chosen = {(each.label, each.world): each for each in found.chosen}
    tokens = {world: chosen["crossover_traffic_MiB", world].tokens for world in (8, 16)}
    assert [span.hi for span in tokens.values() if span] == [48.46, 20.11]
    assert "contradicted" in chosen["old", None].verdict


def answer_of(part: Answer) -> Any:
    class Found:
        answers = (part,)

    return Found


@pytest.mark.parametrize(
    ("unit", "scale"),
    [("tokens", 1), ("M", 1), ("bytes", 14336), ("KiB", 14), ("bytes per rank", 14336), ("elements", 7168)],
)
def test_units_come_to_the_same_tokens(unit: str, scale: int) -> None:
    found = only(answer(entry(pairs((8 * scale, 5.0, 8.0), (32 * scale, 9.0, 8.5)), x_unit=unit)))
    assert (found.kind, found.below, found.above) == ("interval", "one_shot", "two_shot")
    assert found.tokens is not None
    assert (found.tokens.lo, found.tokens.hi) == (8, 32)
    assert found.traffic_bytes is not None
    assert (found.traffic_bytes.lo, found.traffic_bytes.hi) == (8 * 114688, 32 * 114688)


def test_one_shot_traffic_is_a_unit_of_its_own() -> None:
    unit = "MiB of tokens*hidden*2*world*itemsize"
    crossover = only(answer(entry(figure_kind="constant_in_code", x_unit=unit, threshold_chosen={"8": 42})))
    assert crossover.payload_bytes is not None
    # 42 MiB of twice the traffic of 8 ranks.
    assert crossover.payload_bytes.lo == 42 * 2**20 / 2 / 8
    assert (crossover.kind, crossover.measured) == ("point", False)
    assert (crossover.lo, crossover.hi) == (21 * 2**20, 21 * 2**20 + 1)


def test_what_is_not_known_is_not_converted() -> None:
    found = answer(entry(pairs((4096, 5.0, 8.0), (65536, 9.0, 8.0)), x_unit="bytes", hidden_size=None, world_size=None))
    crossover = only(found)
    assert (crossover.tokens, crossover.traffic_bytes) == (None, None)
    assert len([remark for remark in found.remarks if "does not state" in remark]) == 2
    bare = entry(pairs((4096, 5.0, 8.0)), x_unit="bytes", hidden_size=None, dtype=None)
    assumed = only(answer(bare, width=1024, dtype="bf16"))
    assert assumed.tokens is not None
    assert assumed.tokens.lo == 2
    no_dtype = only(answer(entry(pairs((4, 5.0, 8.0)), dtype=None)))
    assert (no_dtype.payload_bytes, no_dtype.traffic_bytes) == (None, None)


def test_rounding_and_stated_noise_make_ties() -> None:
    whole = only(answer(entry(pairs((1, 10, 11), (2, 11, 10), (4, 14, 10)))))
    assert (whole.kind, whole.faster, whole.tied) == ("never", "two_shot", (1, 2))
    fine = only(answer(entry(pairs((1, 10.01, 11.0), (2, 11.0, 10.0), (4, 14.0, 10.0)))))
    assert (fine.kind, fine.lo, fine.hi) == ("point", 1, 2)
    for noise in ("10 %", {"one_shot": "6%", "two_shot": "6%"}, "0.6 us"):
        noisy = only(answer(entry(pairs((1, 10.01, 11.0), (2, 11.0, 10.0), (4, 14.0, 10.0)), noise=noise)))
        assert (noisy.kind, noisy.faster) == ("never", "two_shot"), noise
    unclear = answer(entry(pairs((1, 10.01, 11.0)), noise=3))
    assert any("noise" in remark for remark in unclear.remarks)
    spread = [{"x": 64, "us": {"one_shot": 11.5, "two_shot": 14.0}, "std_us": {"one_shot": 57, "two_shot": 431}}]
    tied = only(answer(entry(spread)))
    assert (tied.kind, tied.faster) == ("never", None)


def test_winners_alone_are_enough() -> None:
    points = [{"x": 5, "winner": "one_shot"}, {"x": 6, "winner": "two_shot"}]
    found = only(answer(entry(points)))
    assert (found.kind, found.lo, found.hi, found.estimate) == ("point", 5, 6, None)
    lone = only(answer(entry([{"x": 7, "winner": "two_shot"}])))
    assert (lone.kind, lone.faster) == ("never", "two_shot")


def test_ratios_alone_are_enough() -> None:
    points = [
        {"x": 32, "speed_delta_pct": {"two_shot_vs_one_shot": 4.0}},
        {"x": 64, "speed_delta_pct": {"two_shot_vs_one_shot": -5.4}},
    ]
    found = only(answer(entry(points)))
    assert (found.kind, found.below, found.lo, found.hi) == ("interval", "one_shot", 32, 64)
    assert found.estimate == pytest.approx(32 + 32 * 0.0392 / (0.0392 + 0.0555), abs=0.1)


def test_a_third_mode_wins_the_middle() -> None:
    rows = [(8, 5.0, 9.0, 7.0), (16, 7.0, 9.1, 6.0), (32, 12.0, 9.2, 6.5), (64, 20.0, 9.3, 11.0)]
    points = [{"x": x, "us": {"one_shot": a, "two_shot": b, "nccl": c}} for x, a, b, c in rows]
    (found,) = answer(entry(points, modes=["one_shot", "two_shot", "nccl"])).answers
    runs = [(run.mode, run.lo, run.hi) for run in found.winners]
    assert runs == [("one_shot", 8, 8), ("nccl", 16, 32), ("two_shot", 64, 64)]
    assert {(each.below, each.above): (each.lo, each.hi) for each in found.crossovers} == {
        ("one_shot", "two_shot"): (16, 32),
        ("one_shot", "nccl"): (8, 16),
        ("nccl", "two_shot"): (32, 64),
    }


def test_groups_of_points_are_kept_apart() -> None:
    points = [
        {"ws": ws, "x": x, "us": {"one_shot": one, "two_shot": 8.0}}
        for ws, one in ((2, 6.0), (8, 9.0))
        for x in (1024, 2048)
    ]
    found = answer(entry(points, world_size=None, x_unit="elements"))
    assert [(part.group, part.world, only(answer_of(part)).faster) for part in found.answers] == [
        ("ws=2", 2, "one_shot"),
        ("ws=8", 8, "two_shot"),
    ]


def test_a_stated_end_has_no_other_side() -> None:
    points = [{"hw": "H100", "nodes": 8, "wins_up_to": 4, "gain_pct": 6.1}]
    found = only(answer(entry(points, modes=["bidir", "nobidir"], x_unit="MiB", world_size=None)))
    assert (found.kind, found.below, found.lo, found.hi) == ("interval", "bidir", 4 * 2**20, None)


@pytest.mark.parametrize(
    ("stated", "ends"),
    [
        ({"value": 33, "unit": "tokens", "rule": "two_shot for tokens 33..64"}, [("two_shot", 33, 64)]),
        ({"value": 14, "unit": "tokens", "rule": "one_shot through 14"}, [("one_shot", None, 14)]),
        ({"value": 5}, [("one_shot", None, 5)]),
        ({"one_shot_lt_tokens": 9}, [("one_shot", None, 8)]),
        ({"last_one_shot_bytes": 100, "first_two_shot_bytes": 200}, [("one_shot", None, 100), ("two_shot", 200, None)]),
        ({"ws2": "always one_shot"}, [("one_shot", None, None)]),
        ({"adopted": "1 MiB of tokens*hidden*tp*itemsize"}, [("one_shot", None, 2**20)]),
        ({"old": "tokens<=128"}, [("one_shot", None, 128)]),
        ({"two_shot_open_interval": [4, 16]}, [("two_shot", 5, 15)]),
        ({"one_shot_max_MiB": {"sm90": {"8": 0.5}}}, [("one_shot", None, 2**19)]),
        ({"TWOSHOT": {"8": "33-64,128"}}, [("two_shot", 33, 64), ("two_shot", 128, 128)]),
        ({"worlds": [6, 8], "note": "nothing of the kind"}, []),
    ],
)
def test_what_a_source_chose(stated: dict[str, Any], ends: list[tuple[str, int | None, int | None]]) -> None:
    found = answer(entry(threshold_chosen=stated, figure_kind="constant_in_code"))
    assert [(each.mode, each.first, each.last) for each in found.chosen] == ends


def chosen(found: Any) -> Chosen:
    (each,) = found.chosen
    return each


@pytest.mark.parametrize(
    ("value", "says"),
    [(6, "contradicted"), (20, "inside the interval"), (40, "contradicted"), (64, "contradicted")],
)
def test_measurements_judge_what_was_chosen(value: int, says: str) -> None:
    points = pairs((8, 5.0, 9.0), (16, 7.0, 9.0), (32, 11.0, 9.0), (64, 20.0, 9.0))
    assert says in chosen(answer(entry(points, threshold_chosen={"value": value, "unit": "tokens"}))).verdict


def test_limits_in_the_order_of_preference() -> None:
    limits = {"graph": {"one_shot_push_max": 100, "two_shot_pull_max": 1000, "multicast_range": [500, 1000]}}
    modes = ["1shot_push", "2shot_pull_mc", "2shot_pull", "nccl"]
    (found,) = answer(
        entry(threshold_chosen=limits, figure_kind="constant_in_code", modes=modes, x_unit="bytes")
    ).answers
    assert [(run.mode, run.lo, run.hi) for run in found.winners] == [
        ("1shot_push", 1, 100),
        ("2shot_pull", 101, 499),
        ("2shot_pull_mc", 500, 1000),
        ("nccl", 1001, None),
    ]


def test_a_step_at_the_boundary_is_suspect() -> None:
    found = only(answer(entry(pairs((128, 8.1, 9.0), (256, 19.3, 10.0)))))
    assert found.suspect
    assert not only(answer(entry(pairs((128, 8.1, 9.0), (256, 15.0, 10.0))))).suspect


_scalars = st.one_of(st.none(), st.booleans(), st.integers(-5, 10**9), st.floats(allow_nan=True), st.text(max_size=12))
_anything = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_no_form_of_an_entry_is_a_fault(data: st.DataObject) -> None:
    """Whatever a field holds, the entry has an answer or the reason why not, and both can be printed."""
    changed = dict(data.draw(st.sampled_from(shipped_entries())))
    fields = ["points", "threshold_chosen", "world_size", "hidden_size", "dtype", "x_unit", "noise", "modes"]
    name = data.draw(st.sampled_from(fields))
    value: Any = data.draw(_anything)
    if name == "points" and isinstance(changed["points"], list) and changed["points"]:
        point = dict(changed["points"][0])
        point[data.draw(st.sampled_from(sorted(point)))] = value
        value = [point, *changed["points"][1:]]
    changed[name] = value
    try:
        (checked,) = entries_of({"entries": [changed]}, "made-up")
    except MegatuneError:
        return
    found = answer(checked)
    assert list(published_lines(found))
    json.dumps(found.model_dump(mode="json"))


def test_a_file_of_either_format_is_read(tmp_path: Path) -> None:
    table = {"world": 2, "hidden": 7168, "dtype": "bf16", "rows": [{"tokens": 1, "one_shot_us": 7.9, "nccl_us": 14.6}]}
    (tmp_path / "table.json").write_text(json.dumps(table))
    (read,) = read_entries(tmp_path / "table.json")
    assert (read["id"], read["modes"], only(answer(read)).faster) == ("table", ["one_shot", "nccl"], "one_shot")
    (tmp_path / "entries.json").write_text(json.dumps({"entries": [entry(pairs((1, 5.0, 6.0)))]}))
    assert read_entries(tmp_path / "entries.json")[0]["id"] == "made-up"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "no published figures"),
        ("{", "not JSON"),
        ('{"entries": [{"id": 7}]}', "entry 0"),
        ('{"entries": [{"id": "a", "points": [3]}]}', "entry 0"),
        ('{"rows": [{"one_us": 3}]}', "no table"),
        ('{"rows": [3]}', "no table"),
    ],
)
def test_what_is_no_file_of_figures_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "figures.json").write_text(text)
    with pytest.raises(MegatuneError, match=says) as raised:
        read_entries(tmp_path / "figures.json")
    assert "\n" not in str(raised.value)
    with pytest.raises(MegatuneError, match="cannot read"):
        read_entries(tmp_path / "missing.json")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with open_database(tmp_path / "imported.db") as database, database.session() as session:
        yield session


def test_imported_figures_are_targets_of_their_own(session: Session) -> None:
    added = import_published(session)
    assert added > 1000
    assert import_published(session) == 0
    targets = queries.targets(session)
    assert sum(row.measurements[Provenance.IMPORTED] for row in targets) == added
    assert all(set(row.measurements) == {Provenance.IMPORTED} for row in targets)
    own = next(each for each in shipped_entries() if each["id"] == "h200x2-torch-nccl")
    (row,) = (row for row in targets if row.digest == target_of(own, 2).digest)
    assert (row.hardware["gpu"], row.hardware["world"], row.hardware["arch"]) == ("NVIDIA H200", 2, "unknown")
    found = queries.workloads(session, target=row.digest, regime=Regime("warm", "graph"))
    assert [(each.dims, each.world, each.tokens) for each in found][-1] == ({"width": 7168}, 2, 512)


def test_imported_figures_serve_no_plan_unless_asked_for(session: Session) -> None:
    import_published(session)
    own = next(each for each in shipped_entries() if each["id"] == "h200x2-torch-nccl")
    arguments: dict[str, Any] = {
        "name": "p",
        "target": target_of(own, 2).digest,
        "regime": Regime("warm", "graph"),
        "baselines": {"reduction": ("nccl",)},
    }
    with pytest.raises(NothingMeasured):
        make_plan(session, **arguments)


def test_a_flat_payload_has_rows_of_one_element(session: Session) -> None:
    made = entry(pairs((4096, 5.0, 8.0)), x_unit="bytes", hidden_size=None, collective="all_reduce", execution="graph")
    assert import_published(session, [made]) == 2
    (row,) = queries.workloads(session, target=target_of(made, 8).digest, regime=Regime("warm", "graph"))
    assert (row.dims, row.tokens) == ({"width": 1}, 2048)
