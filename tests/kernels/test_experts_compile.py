"""The experts' kernels as they are compiled, with no GPU."""

from __future__ import annotations

import random

import pytest

from megatune_kernels.audit import disassembled
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.target import ARCHITECTURES
from megatune_kernels.target import architecture

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

EXPERTS = operator("experts")
SM90 = architecture("sm_90a")


def kimi(tokens: int, tensor: int = 8) -> Workload:
    (found,) = EXPERTS.workloads(model("Kimi-K3"), Parallel(tensor), [tokens])
    return found


@pytest.mark.parametrize(
    ("name", "arch"),
    [*(("Kimi-K3", arch) for arch in sorted(ARCHITECTURES)), ("DeepSeek-V3", "sm_90a"), ("Qwen3-235B-A22B", "sm_100a")],
)
def test_the_default_compiles_for_every_architecture(name: str, arch: str) -> None:
    (of,) = EXPERTS.workloads(model(name), Parallel(8), [4])
    config = EXPERTS.space(of, architecture(arch)).defaults()[-1]
    for part in EXPERTS.parts(of, config):
        artifact = EXPERTS.compile(of, part.config, architecture(arch))
        assert artifact.arch == arch
        assert artifact.local_bytes == 0


def test_a_sample_spills_nothing_and_has_the_registers_for_its_blocks() -> None:
    chance = random.Random(0)
    for of in (kimi(8), kimi(64, 16)):
        for config in chance.sample(EXPERTS.space(of, SM90).configs, 2):
            for part in EXPERTS.parts(of, config):
                artifact = EXPERTS.compile(of, part.config, SM90)
                assert artifact.local_bytes == 0, (of, part)
                threads = EXPERTS.launch(of, part.config).block[0]
                blocks = part.config.params.get(f"{part.name}_resident", part.config.params.get("up_resident", 1))
                assert artifact.registers * threads * int(blocks) <= 65536, (of, part)


def test_workloads_share_what_does_not_depend_on_them() -> None:
    one, other = kimi(1), EXPERTS.routed(kimi(8), "balanced")
    configs = [c for c in EXPERTS.space(one, SM90).defaults() if c.variant == "grouped"]
    for part in EXPERTS.parts(one, configs[0]):
        assert EXPERTS.specialization(one, part.config) == EXPERTS.specialization(other, part.config)
        assert EXPERTS.specialization(one, part.config) != EXPERTS.specialization(kimi(9), part.config)


def test_weights_go_past_the_registers_to_the_tensor_cores() -> None:
    of = kimi(64)
    config = next(c for c in EXPERTS.space(of, SM90).defaults() if c.variant == "grouped")
    up, _ = EXPERTS.parts(of, config)
    code = disassembled(EXPERTS.compile(of, up.config, SM90).cubin)
    assert "HMMA.16816.F32.BF16" in code
    assert "LDGSTS" in code
    # Eight weights are taken apart in four products and as many masks of either kind.
    assert code.count("HMUL2.BF16") == 2 * code.count("HMMA.16816") * 2
