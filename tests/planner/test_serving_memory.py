from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.models import models
from megatune_planner.serving.bounds import Bounds
from megatune_planner.serving.bounds import exactly
from megatune_planner.serving.memory import Layout
from megatune_planner.serving.memory import Memory
from megatune_planner.serving.memory import memory
from megatune_planner.serving.weights import weights

K3 = model("Kimi-K3")
H200 = 141 * 2**30

WORKED_OUT = {
    # 92 layers of 896 experts of 3 x 3072 x 3584 elements, half a byte each and a byte of scale for 32
    "experts": (180_807_008_256, 90_403_504_128),
    # 69 layers; rows of the table of local shapes (docs of the model): 6288 and 3216 of 7168
    "kda_in_proj": (2 * 69 * 6288 * 7168, 2 * 69 * 3216 * 7168),
    "kda_f_b": (2 * 69 * 1536 * 128, 2 * 69 * 768 * 128),
    "kda_o_proj": (2 * 69 * 7168 * 1536, 2 * 69 * 7168 * 768),
    "fused_qkv_a": (2 * 24 * 2112 * 7168, 2 * 24 * 2112 * 7168),
    "q_b": (2 * 24 * 2304 * 1536, 2 * 24 * 1152 * 1536),
    "mla_gate": (2 * 24 * 1536 * 7168, 2 * 24 * 768 * 7168),
    "o_proj": (2 * 24 * 7168 * 1536, 2 * 24 * 7168 * 768),
    "shared_gate_up": (2 * 92 * 1536 * 7168, 2 * 92 * 768 * 7168),
    "shared_down": (2 * 92 * 7168 * 768, 2 * 92 * 7168 * 384),
    "latent_down": (2 * 92 * 3584 * 7168, 2 * 92 * 3584 * 7168),
    "latent_up": (2 * 92 * 3584 * 7168, 2 * 92 * 3584 * 7168),
    "router": (2 * 92 * 896 * 7168, 2 * 92 * 896 * 7168),
    "dense_gate_up": (2 * 8448 * 7168, 2 * 4224 * 7168),
    "dense_down": (2 * 7168 * 4224, 2 * 7168 * 2112),
    "lm_head": (2 * 20480 * 7168, 2 * 10240 * 7168),
    "embedding": (2 * 20480 * 7168, 2 * 10240 * 7168),
}
"""Bytes of a rank at 8 and at 16 ranks."""

REFUSED = {
    "Qwen3-Next-80B-A3B": "attention.output_gate",
    "GLM-4.7": "activation",
    "Mixtral-8x7B": "attention.head_dim",
    "Mixtral-8x22B": "attention.head_dim",
    "Llama-4-Maverick-17B-128E": "shared_experts",
    "Nemotron-3-Nano-30B-A3B": "attention.mamba",
    "MiMo-V2-Flash": "shared_experts",
    "Step-3.7-Flash": "activation",
    "Gemma-4-26B-A4B": "dense_layers, moe_layers, shared_experts",
    "DeepSeek-V4.1": "attention.full_layers, attention.kind, dense_layers, moe_layers, shared_experts, vocab",
}
"""What the catalogue lacks of a model."""

PARAMETERS = {
    "DeepSeek-V3": (671e9, 1.0),
    "Kimi-K2-Instruct": (1.03e12, 1.0),
    "Qwen3-235B-A22B": (235e9, 2.0),
    "Qwen3-30B-A3B": (30.5e9, 2.0),
}
"""Parameters as the models are named or announced, and bytes of one; the memory model must come near."""


def held(layout: Layout, **options: object) -> Memory:
    return memory(K3, layout, gpu_bytes=H200, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ranks", "index"), [(8, 0), (16, 1)])
def test_weights_of_kimi_k3_are_those_worked_out_by_hand(ranks: int, index: int) -> None:
    found = {each.name: each for each in weights(K3, Parallel(ranks))}
    assert {name: (each.bytes_.low, each.bytes_.high) for name, each in found.items()} == {
        name: (sizes[index], sizes[index]) for name, sizes in WORKED_OUT.items()
    }
    assert {name for name, each in found.items() if each.replicated} == {
        "fused_qkv_a",
        "latent_down",
        "latent_up",
        "router",
    }
    assert found["experts"].dtype == "mxfp4"
    assert found["q_b"].dtype == "bfloat16"


def test_the_packed_front_comes_on_top_of_what_is_packed() -> None:
    plain, packed = weights(K3, Parallel(8)), weights(K3, Parallel(8), packed=True)
    assert {each.name for each in packed} - {each.name for each in plain} == {"front"}
    assert next(each for each in packed if each.name == "front").bytes_ == exactly(2 * 92 * 560 * 7168)
    redundant = weights(K3, Parallel(8), packed=True, redundant=True)
    assert next(each for each in redundant if each.name == "front").bytes_ == exactly(2 * 92 * (896 + 448) * 7168)


@pytest.mark.parametrize(("ranks", "heads"), [(8, 12), (16, 6)])
def test_state_and_cache_of_kimi_k3(ranks: int, heads: int) -> None:
    found = held(Layout(ranks, sequences=3, context=1000))
    # 69 layers: FP32 state of 128 x 128 a head, and the last 3 rows of queries, keys and values in BF16
    state = 3 * 69 * (heads * 128 * 128 * 4 + 3 * 3 * heads * 128 * 2)
    assert found.of("state") == exactly(state)
    # 24 layers: 512 of the latent and 64 of the rotary part, in BF16, whole on every rank
    assert found.of("cache") == exactly(3 * 1000 * 24 * 576 * 2)
    shared_out = held(Layout(ranks, context_ranks=ranks, sequences=3, context=1000))
    assert shared_out.of("cache") == exactly(3 * -(-1000 // ranks) * 24 * 576 * 2)
    assert shared_out.of("state") == found.of("state")


def test_kimi_k3_does_not_fit_on_eight_h200s_and_fits_on_sixteen() -> None:
    assert not held(Layout(8)).fits
    found = held(Layout(16, sequences=8, context=32768))
    assert found.fits
    assert found.bytes_.high <= found.budget_bytes < found.gpu_bytes


@pytest.mark.parametrize("name", sorted(models()))
def test_every_model_is_told_or_refused_with_what_is_missing(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(MegatuneError, match=f"{name}: the catalogue lacks {REFUSED[name]}$"):
            memory(model(name), Layout(8), gpu_bytes=H200)
        return
    found = memory(model(name), Layout(8), gpu_bytes=H200)
    assert 0 < found.of("weights").low <= found.of("weights").high
    assert found.of("cache").high > 0


@pytest.mark.parametrize("name", PARAMETERS)
def test_weights_come_near_what_models_are_announced_with(name: str) -> None:
    parameters, each = PARAMETERS[name]
    found = memory(model(name), Layout(1), gpu_bytes=H200).of("weights")
    assert found.low * 0.95 < parameters * each < found.high * 1.05


def test_what_does_not_divide_is_said_with_what_does() -> None:
    with pytest.raises(MegatuneError, match=r"Kimi-K3: .* cannot be split over 7 ranks; allowed: 1, 2, 4, 8, 16, 32"):
        held(Layout(7))
    with pytest.raises(MegatuneError, match="context parallelism 3 does not divide the 8 ranks"):
        Layout(8, context_ranks=3)
    with pytest.raises(MegatuneError, match="context parallelism 8 needs as many ranks with the same key-value head"):
        memory(model("MiniMax-M2.5"), Layout(8, context_ranks=8), gpu_bytes=H200)


def test_a_description_without_the_experts_dtype_is_refused_by_name() -> None:
    with pytest.raises(MegatuneError, match="Kimi-K3: the catalogue lacks expert_dtype"):
        memory(replace(K3, expert_dtype=None), Layout(8), gpu_bytes=H200)
    with pytest.raises(MegatuneError, match="how large int3 experts are is not known"):
        memory(replace(K3, expert_dtype="int3"), Layout(8), gpu_bytes=H200)


@pytest.mark.parametrize("head_room", [-0.1, 1, float("nan")])
def test_head_room_is_a_share(head_room: float) -> None:
    with pytest.raises(MegatuneError, match="is no share of the memory"):
        held(Layout(8), head_room=head_room)


@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 512), st.integers(1, 1 << 20))
def test_more_to_hold_never_takes_less(ranks: int, sequences: int, context: int) -> None:
    layout = Layout(ranks, sequences=sequences, context=context)
    size = held(layout).bytes_
    assert held(replace(layout, sequences=sequences + 1)).bytes_.high > size.high
    assert held(replace(layout, context=context + 1)).bytes_.high > size.high
    assert held(replace(layout, tensor=2 * ranks)).bytes_.high < size.high
    assert held(replace(layout, context_ranks=ranks)).bytes_.high <= size.high
    assert size.low <= size.high


def test_an_interval_holds_its_ends() -> None:
    with pytest.raises(ValueError, match="cannot end"):
        Bounds(2, 1)
