"""The catalogue: what is known of each model, and how one is found."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Model
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.models import models

EVERY = pytest.mark.parametrize("found", models().values(), ids=models())


def test_the_reference_model_has_the_figures_of_its_configuration() -> None:
    k3 = model("Kimi-K3")
    assert (k3.hidden, k3.layers, k3.vocab) == (7168, 93, 163840)
    assert (k3.dense_layers, k3.dense_intermediate, k3.moe_layers) == (1, 33792, 92)
    assert (k3.experts, k3.top_k, k3.latent, k3.moe_intermediate) == (896, 16, 3584, 3072)
    assert (k3.shared_experts, k3.shared_intermediate) == (2, 6144)
    attention = k3.attention
    assert (attention.full_layers, attention.linear_layers) == (24, 69)
    assert attention.full_layers_at == (*range(4, 93, 4), 93)
    assert attention.linear is not None
    assert (attention.linear.kind, attention.linear.value_heads, attention.linear.value_head_dim) == ("kda", 96, 128)


@EVERY
def test_every_model_names_its_source(found: Model) -> None:
    assert "config.json" in found.source or not found.complete


@EVERY
def test_layers_add_up(found: Model) -> None:
    attention = found.attention
    kinds = (attention.full_layers, attention.linear_layers, attention.mamba_layers)
    if found.layers is None or None in kinds:
        assert not found.complete
        return
    # In a Mamba hybrid experts are layers of their own.
    blocks = found.moe_layers if attention.mamba_layers else 0
    assert sum(count for count in kinds if count) + (blocks or 0) == found.layers
    if not attention.mamba_layers and found.dense_layers is not None:
        assert found.dense_layers + (found.moe_layers or 0) == found.layers


@EVERY
def test_a_model_is_found_by_name_and_by_hugging_face_id_in_any_case(found: Model) -> None:
    assert model(found.name.upper()) is found
    if found.hf_id:
        assert model(found.hf_id.lower()) is found


def test_models_are_values() -> None:
    assert len({hash(found) for found in models().values()}) == len(models())
    with pytest.raises(FrozenInstanceError):
        model("Kimi-K3").hidden = 1  # type: ignore[misc]


def test_an_unknown_name_gets_the_near_misses() -> None:
    with pytest.raises(MegatuneError, match="did you mean: Kimi-K3"):
        model("kimi k3")


def test_a_name_like_no_other_gets_the_whole_list() -> None:
    with pytest.raises(MegatuneError, match=r"allowed: Kimi-K3, .*Mixtral-8x7B"):
        model("?")


def test_a_model_needs_at_least_one_rank() -> None:
    with pytest.raises(MegatuneError, match="at least one rank"):
        Parallel(0)
