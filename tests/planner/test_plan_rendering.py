from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from serving_examples import experts_cases
from serving_examples import serving_plan

from megatune_kernels.errors import MegatuneError
from megatune_planner.figure import latency_figure
from megatune_planner.plan import Plan
from megatune_planner.rendering import decision_text
from megatune_planner.rendering import render_plan
from megatune_planner.rendering import saved_share
from megatune_planner.rendering import tokens_text

SHAPE = "k=7168,n=1536"


def rendered(plan: Plan, width: int) -> str:
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(render_plan(plan))
    return out.getvalue()


def test_a_plan_is_plain_text_where_there_is_no_terminal(plan: Plan) -> None:
    text = rendered(plan, 120)
    assert "\x1b" not in text
    for part in (plan.digest, "projection k=7168,n=1536", "23.4-31.3 %", "6.88-7.72", "65+"):
        assert part in text
    assert "crossover mma" not in text
    assert "crossover simt to mma between 4 and 8 tokens, near 7.46; not measured: 5-7\n" in text
    assert "stock (cublas)" in text
    assert " ".join(text.split()).endswith("execution, features, operator, shape, routing with a graph tokens")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_band_is_there_at_any_width(plan: Plan, width: int) -> None:
    text = rendered(plan, width)
    assert max(map(len, text.splitlines())) <= width
    for shape in plan.operator("projection").shapes:
        for band in shape.bands:
            assert tokens_text(band) in text


def test_reasons_and_rules_say_no_more_than_they_must(plan: Plan) -> None:
    assert "  65+ tokens: more than the 64 tokens that were measured at most\n" in rendered(plan, 80)
    wide = rendered(plan, 160)
    assert "outside tokens projection k=7168,n=1536 above 64 " in wide
    assert "below 1," not in wide


def test_routings_of_a_shape_are_told_apart_and_their_coverage_is_there(tmp_path: Path) -> None:
    cases = experts_cases((1, 8), {"balanced": 20.0, "same": 10.0}, 500.0)
    made = serving_plan(tmp_path, (1,), experts=cases)
    (experts,) = (each for each in made.content.operators if each.name == "experts")
    # One of the baselines did not work anywhere.
    more = experts.model_copy(update={"baselines": ("torch", "vllm-fused-moe")})
    content = made.content.model_copy(
        update={"operators": tuple(more if each is experts else each for each in made.content.operators)}
    )
    text = rendered(made.model_copy(update={"content": content}), 400)
    assert "mxfp4, world 1, routing balanced: saves 96.0% of torch\n" in text
    words = " ".join(text.split())
    for distinct, most in ((128, 1), (16, 8)):
        assert f"distinct experts by tokens: 16 at 1, {distinct} at 8 most tokens of an expert by" in words
        assert f"most tokens of an expert by tokens: 1 at 1, {most} at 8" in words
    for routing in ("balanced", "same"):
        assert f"top=16,width=192, routing {routing}, above 8 stock" in words
    assert "stock its kernels write into this memory" in words
    assert "stock peers write into this memory" in words


def test_a_narrow_terminal_gets_fewer_columns_and_no_cut_ones(plan: Plan) -> None:
    narrow = rendered(plan, 60)
    assert "…" not in narrow
    assert "stock µs" not in narrow
    assert "stock µs" in rendered(plan, 80)


def test_bands_in_words(plan: Plan) -> None:
    shape = next(shape for shape in plan.operator("projection").shapes if shape.shape == SHAPE)
    assert [tokens_text(band) for band in shape.bands] == ["1-4", "5-64", "65+"]
    assert decision_text(shape.bands[0].decision) == "simt block=256 k_unroll=2 pdl rows=2 split_k=2 vector=8"
    assert decision_text(shape.bands[-1].decision) == "stock"
    assert 0.14 < saved_share(shape) < 0.31


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_figure_is_the_same_every_time(plan: Plan, tmp_path: Path, suffix: str) -> None:
    first, second = (tmp_path / f"{name}{suffix}" for name in ("first", "second"))
    latency_figure(plan, "projection", SHAPE, first)
    latency_figure(plan, "projection", SHAPE, second)
    assert first.stat().st_size > 5000
    assert first.read_bytes() == second.read_bytes()


def test_a_figure_needs_a_shape_and_a_format(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match="no shape 'k=1,n=1' of projection; it has k=1536,n=2304"):
        latency_figure(plan, "projection", "k=1,n=1", tmp_path / "a.svg")
    with pytest.raises(MegatuneError, match="no operator 'experts'"):
        latency_figure(plan, "experts", SHAPE, tmp_path / "a.svg")
    with pytest.raises(MegatuneError, match="suffix must be one of"):
        latency_figure(plan, "projection", SHAPE, tmp_path / "a.docx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("megatune_planner.commands", ("sqlalchemy", "pydantic", "numpy", "matplotlib", "torch", "cuda", "cutlass")),
        ("megatune_planner.planning", ("matplotlib", "torch", "cuda", "cutlass")),
        ("megatune_planner.figure", ("matplotlib", "torch", "cuda", "cutlass")),
    ],
)
def test_heavy_packages_wait_until_they_are_needed(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}\nprint([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
