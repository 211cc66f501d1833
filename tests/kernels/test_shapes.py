"""The decode GEMM shapes of real models."""

from __future__ import annotations

import pytest

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Model
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.models import models
from megatune_kernels.projection.shapes import projection_shapes

KIMI_K3 = {
    8: {
        "kda_in_proj": (6288, 7168),
        "kda_f_b": (1536, 128),
        "kda_o_proj": (7168, 1536),
        "fused_qkv_a": (2112, 7168),
        "q_b": (2304, 1536),
        "mla_gate": (1536, 7168),
        "o_proj": (7168, 1536),
        "dense_gate_up": (8448, 7168),
        "dense_down": (7168, 4224),
        "shared_gate_up": (1536, 7168),
        "shared_down": (7168, 768),
        "front": (560, 7168),
        "latent_down": (3584, 7168),
        "latent_up": (7168, 3584),
        "lm_head": (20480, 7168),
    },
    16: {
        "kda_in_proj": (3216, 7168),
        "kda_f_b": (768, 128),
        "kda_o_proj": (7168, 768),
        "fused_qkv_a": (2112, 7168),
        "q_b": (1152, 1536),
        "mla_gate": (768, 7168),
        "o_proj": (7168, 768),
        "dense_gate_up": (4224, 7168),
        "dense_down": (7168, 2112),
        "shared_gate_up": (768, 7168),
        "shared_down": (7168, 384),
        "front": (288, 7168),
        "latent_down": (3584, 7168),
        "latent_up": (7168, 3584),
        "lm_head": (10240, 7168),
    },
}

LACKING = {
    "Qwen3-Next-80B-A3B": ["attention.output_gate"],
    "GLM-4.7": ["activation"],
    "Mixtral-8x7B": ["attention.head_dim"],
    "Mixtral-8x22B": ["attention.head_dim"],
    "Llama-4-Maverick-17B-128E": ["shared_experts"],
    "Nemotron-3-Nano-30B-A3B": ["attention.mamba"],
    "MiMo-V2-Flash": ["shared_experts"],
    "Step-3.7-Flash": ["activation"],
    "Gemma-4-26B-A4B": ["dense_layers", "moe_layers", "shared_experts"],
    "DeepSeek-V4.1": [
        "attention.full_layers",
        "attention.kind",
        "dense_layers",
        "moe_layers",
        "shared_experts",
        "vocab",
    ],
}
"""What the sources of these models do not state."""


def shapes(name: str, tensor: int) -> dict[str, tuple[int, int]]:
    return {found.name: (found.n, found.k) for found in projection_shapes(model(name), Parallel(tensor))}


@pytest.mark.parametrize("tensor", KIMI_K3)
def test_kimi_k3(tensor: int) -> None:
    assert shapes("Kimi-K3", tensor) == KIMI_K3[tensor]


def test_kimi_k3_says_how_often_each_runs_and_what_is_whole_on_every_rank() -> None:
    found = projection_shapes(model("Kimi-K3"), Parallel(8))
    assert {one.name: one.layers for one in found if one.layers not in (69, 24, 92)} == {
        "dense_gate_up": 1,
        "dense_down": 1,
        "lm_head": 1,
    }
    assert [one.name for one in found if one.replicated] == ["fused_qkv_a", "latent_down", "latent_up"]
    assert [one.name for one in found if one.stock] == ["latent_down", "latent_up"]


@pytest.mark.parametrize("found", models().values(), ids=models())
def test_every_model_gives_shapes_or_names_what_is_missing(found: Model) -> None:
    if found.name in LACKING:
        with pytest.raises(MegatuneError) as error:
            projection_shapes(found, Parallel(8))
        assert str(error.value) == f"{found.name}: the catalogue lacks {', '.join(LACKING[found.name])}"
        return
    whole = projection_shapes(found, Parallel(1))
    sliced = projection_shapes(found, Parallel(8))
    assert [one.name for one in whole] == [one.name for one in sliced]
    for one, part in zip(whole, sliced, strict=True):
        assert part.n > 0
        assert part.k > 0
        assert part.layers > 0
        assert ((one.n, one.k) == (part.n, part.k)) == one.replicated


def test_latent_attention_with_an_indexer_that_layers_share() -> None:
    found = {one.name: one for one in projection_shapes(model("GLM-5.2"), Parallel(8))}
    assert (found["fused_qkv_a"].n, found["q_b"].n, found["o_proj"].k) == (2048 + 512 + 64, 8 * 256, 8 * 256)
    assert (found["index_q_b"].n, found["index_q_b"].k, found["index_q_b"].layers) == (32 * 128, 2048, 20)


def test_more_ranks_than_key_value_heads_repeat_a_head() -> None:
    assert shapes("Qwen3-235B-A22B", 4)["qkv"] == ((16 + 2) * 128, 4096)
    assert shapes("Qwen3-235B-A22B", 16)["qkv"] == ((4 + 2) * 128, 4096)


def test_a_gated_attention_projects_its_gate_with_the_queries() -> None:
    assert shapes("Qwen3.5-397B-A17B", 1)["qkv"] == ((2 * 32 + 2 * 2) * 256, 4096)


def test_an_activation_without_a_gate_has_an_up_projection_alone() -> None:
    found = shapes("Nemotron-3-Super-120B-A12B", 8)
    assert found["shared_up"] == (672, 4096)
    assert "shared_gate_up" not in found


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("Kimi-K3", 64, r"linear key heads \(96\) cannot be split over 64 ranks; allowed: 1, 2, 4, 8, 16, 32$"),
        ("DeepSeek-V4-Flash", 16, r"output groups \(8\) cannot be split over 16 ranks; allowed: 1, 2, 4, 8$"),
        ("Nemotron-3-Super-120B-A12B", 16, r"Mamba groups \(8\).*allowed: 1, 2, 4, 8$"),
    ],
)
def test_a_size_that_does_not_divide_gets_those_that_do(name: str, tensor: int, message: str) -> None:
    with pytest.raises(MegatuneError, match=message):
        projection_shapes(model(name), Parallel(tensor))
