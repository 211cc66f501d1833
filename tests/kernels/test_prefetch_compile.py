"""The kernels of chains as they are compiled, with no GPU."""

from __future__ import annotations

import random
import re

import pytest

from megatune_kernels.artifact import compile_for
from megatune_kernels.audit import disassembled
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.prefetch.ranges import MIB
from megatune_kernels.space import Config
from megatune_kernels.target import ARCHITECTURES
from megatune_kernels.target import Hardware
from megatune_kernels.target import architecture
from megatune_kernels.target import architecture_of

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

PREFETCH = operator("prefetch")
ARCH = architecture_of(Hardware("NVIDIA H200", "sm_90a", "2335", 132, 60 * MIB, 140 << 30, "none"))
CHAIN = PREFETCH.workload({"idle_ns": 5000, "n1": 560, "k1": 7168}, 4)


def own(variant: str) -> Config:
    (config,) = (c for c in PREFETCH.space(CHAIN, ARCH).defaults() if c.variant == "prefetch")
    parts = {part.name: part.config for part in PREFETCH.parts(CHAIN, config)}
    return parts[variant]


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
@pytest.mark.parametrize("variant", ["prefetch", "idle"])
def test_own_kernels_compile_for_every_architecture(variant: str, arch: str) -> None:
    artifact = PREFETCH.compile(CHAIN, own(variant), architecture(arch))
    assert artifact.arch == arch
    assert artifact.entry.encode() in artifact.cubin
    assert artifact.local_bytes == 0
    assert artifact.registers <= 32


def test_all_parts_of_a_sample_of_chains_compile() -> None:
    chance = random.Random(0)
    built: dict[str, Artifact] = {}
    workloads = [w for tensor in (8, 16) for w in PREFETCH.workloads(model("Kimi-K3"), Parallel(tensor), range(1, 9))]
    with_sums = [w for w in workloads if "width" in dict(w.dims)]
    for workload in [*chance.sample([w for w in workloads if w not in with_sums], 3), chance.choice(with_sums)]:
        configs = PREFETCH.space(workload, ARCH).configs
        chosen = [chance.choice([c for c in configs if c.variant == "prefetch"]), configs[-1], Config.of("none", {})]
        for config in chosen:
            for part in PREFETCH.parts(workload, config):
                tuned = operator(part.workload.operator)
                artifact = tuned.compile(part.workload, part.config, ARCH)
                assert artifact.local_bytes == 0, (workload, part)
                launch = tuned.launch(part.workload, part.config)
                assert launch.resident == (part.workload.operator == "reduction")
                assert artifact.registers * launch.block[0] <= 65536
                built[artifact.key] = artifact
    # All configs share one prefetch and one stand-in; what is left are consumers.
    entries = [a.entry for a in built.values()]
    assert sum("_prefetch" in entry for entry in entries) == sum("_idle" in entry for entry in entries) == 1
    assert len(entries) > 8


@pytest.mark.parametrize(("variant", "kinds"), [("prefetch", ["u64", *["u32"] * 7]), ("idle", ["u32"])])
def test_entries_take_addresses_and_32_bit_integers(variant: str, kinds: list[str]) -> None:
    from cutlass import Int32
    from cutlass import Int64
    from cutlass import cute

    from megatune_kernels.prefetch import kernels

    scalars = [Int32(1) for _ in PREFETCH.launch(CHAIN, own(variant)).scalars]
    stream = cute.runtime.make_fake_stream()
    function, pointers = (kernels.launch_idle, []) if variant == "idle" else (kernels.launch_prefetch, [Int64(0)])
    ptx = compile_for(ARCH, function, *pointers, *scalars, stream).artifacts.PTX
    header = ptx.partition(".entry")[2].partition(")")[0]
    assert re.findall(r"\.param \.(\w+)", header) == kinds


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_the_prefetch_asks_in_bulk_and_the_stand_in_touches_no_memory(arch: str) -> None:
    code = {v: disassembled(PREFETCH.compile(CHAIN, own(v), architecture(arch)).cubin) for v in ("prefetch", "idle")}
    opcodes = {
        v: set(re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@\S+\s+)?([A-Z]\w*)", text, re.M)) for v, text in code.items()
    }
    assert "UBLKPF" in opcodes["prefetch"]
    memory = {"LDG", "LD", "STG", "ST", "RED", "ATOM", "ATOMG", "UBLKPF", "UBLKCP"}
    assert opcodes["prefetch"] & memory == {"LDG", "UBLKPF"}
    assert not opcodes["idle"] & memory
    # The timer is read again and again: the loops stay, and what waits for the stand-in may come at once.
    for variant in code:
        assert code[variant].count("SR_GLOBALTIMERLO") == 2
    assert code["idle"].count("PREEXIT") == 1
    assert code["prefetch"].count("PREEXIT") == 0


def test_keys_tell_chains_parts_apart() -> None:
    from megatune_kernels.artifact import artifact_key

    other: Workload = PREFETCH.workload({"idle_ns": 3000, "n1": 288, "k1": 7168}, 8)
    keys = {v: artifact_key(PREFETCH, CHAIN, own(v), ARCH) for v in ("prefetch", "idle")}
    assert keys["prefetch"] != keys["idle"]
    # Lengths, depths and ranges are launch parameters.
    assert artifact_key(PREFETCH, other, own("idle"), ARCH) == keys["idle"]
    assert artifact_key(PREFETCH, CHAIN, own("idle"), architecture("sm_100a")) != keys["idle"]
