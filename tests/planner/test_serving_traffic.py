from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatune_kernels.errors import MegatuneError
from megatune_planner.serving.traffic import METRIC
from megatune_planner.serving.traffic import Traffic
from megatune_planner.serving.traffic import read_traffic

BOUNDS = (1.0, 8.0, 16.0, 32.0, 64.0)
HISTOGRAMS = st.dictionaries(st.integers(1, 10_000), st.integers(0, 10**9), min_size=1, max_size=20).filter(
    lambda counts: any(counts.values())
)


def read(directory: Path, name: str, text: str) -> Traffic:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return read_traffic(path)


def metrics(*engines: list[float]) -> str:
    """As vLLM prints them: cumulated, the last bucket without an end."""
    lines = [f"# TYPE {METRIC} histogram", 'vllm:num_requests_running{engine="0"} 3.0']
    for engine, counts in enumerate(engines):
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
            lines.append(f'{METRIC}_bucket{{engine="{engine}",le="{bound}",model_name="a \\"b\\", c"}} {count}')
        lines.append(f'{METRIC}_count{{engine="{engine}"}} {counts[-1]}')
    return "\n".join(lines) + "\n"


@given(HISTOGRAMS)
def test_toml_and_csv_say_the_same(tmp_path_factory: pytest.TempPathFactory, counts: dict[int, int]) -> None:
    folder = tmp_path_factory.mktemp("traffic")
    rows = counts.items()
    toml = read(folder, "a.toml", "[traffic]\n" + "".join(f"{tokens} = {count}\n" for tokens, count in rows))
    table = read(folder, "a.csv", "tokens,count\n" + "".join(f"{tokens},{count}\n" for tokens, count in rows))
    assert toml == table
    assert dict(toml.counts) == {tokens: count for tokens, count in sorted(rows) if count}
    assert toml.steps == sum(counts.values())
    shares = [toml.share_up_to(tokens) for tokens in toml.counts]
    assert shares == sorted(shares)
    assert shares[-1] == 1


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=6, max_size=6), min_size=1, max_size=3))
def test_metrics_of_several_engines_add_up(tmp_path_factory: pytest.TempPathFactory, engines: list[list[int]]) -> None:
    cumulated = [[float(sum(counts[: i + 1])) for i in range(6)] for counts in engines]
    text = metrics(*cumulated)
    if not any(sum(counts[:5]) for counts in engines):
        with pytest.raises(MegatuneError, match="no steps are counted"):
            read(tmp_path_factory.mktemp("traffic"), "metrics", text)
        return
    found = read(tmp_path_factory.mktemp("traffic"), "metrics", text)
    sums = [sum(counts[i] for counts in engines) for i in range(6)]
    assert dict(found.counts) == {int(bound): count for bound, count in zip(BOUNDS, sums, strict=False) if count}
    assert found.beyond == sums[5]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.toml", "[traffic]\n8 = -1\n", "the count at 8 tokens is -1: counts are not negative"),
        ("a.toml", "[traffic]\n8 = 0\n", "no steps are counted"),
        ("a.toml", "[traffic]\n", "no steps are counted"),
        ("a.toml", "[traffic]\n8 = nan\n", "the count at 8 tokens is nan, and no number"),
        ("a.toml", "[traffic]\n8 = true\n", "the count at 8 tokens is True, and no number"),
        ("a.toml", "[traffic]\n0 = 1\n", "0 tokens: a step has at least 1"),
        ("a.toml", "[traffic]\neight = 1\n", "'eight' is no number of tokens"),
        ("a.toml", "8 = 1\n", "a traffic profile is one table"),
        ("a.toml", "[traffic\n", "not TOML"),
        ("a.csv", "count,tokens\n1,2\n", "the columns are tokens,count, and not count,tokens"),
        ("a.csv", "", "the columns are tokens,count, and not none"),
        ("a.csv", '"tokens\ncount"\n8,1\n', "the columns are tokens,count, and not tokens count"),
        ("a.csv", "tokens,count\n1," + "2" * 140000, "line 2 is not CSV: field larger than"),
        ("a.csv", "tokens,count\n1,2,3\n", "line 2 has 3 columns"),
        ("a.csv", "tokens,count\n8,1\n08,1\n", "8 tokens are there twice"),
        ("a.csv", "tokens,count\n8,many\n", "the count at 8 tokens is 'many', and no number"),
        ("metrics", "hello\n", "no vllm:iteration_tokens_total_bucket"),
        ("metrics", metrics([5, 4, 6, 6, 6, 6]), "fall at 8: each holds those below it"),
        ("metrics", metrics([1, 2, 3, 4, 5, 6], [-1, 0, 0, 0, 0, 0]), "the count of bucket 1 is -1"),
        ("metrics", metrics([0, 0, 0, 0, 0, 7]), "no steps are counted"),
    ],
)
def test_bad_profiles_are_one_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(MegatuneError) as caught:
        read(tmp_path, name, text)
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_an_exemplar_is_no_label(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(
        f'{METRIC}_bucket{{le="1.0",model_name="a}}b"}} 5 # {{trace_id="x"}} 0.5\n{METRIC}_bucket{{le="8.0",'
        f'model_name="a}}b"}} 7 1700000000.5\n'
    )
    assert read_traffic(path).counts == {1: 5.0, 8: 2.0}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match=r"cannot read the traffic profile .*none\.csv"):
        read_traffic(tmp_path / "none.csv")
