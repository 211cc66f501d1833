"""The reduction's kernels as they are compiled: every value of every parameter, with no GPU."""

from __future__ import annotations

import re

import pytest
from covering import covering

from megatune_kernels.artifact import artifact_key
from megatune_kernels.artifact import compile_for
from megatune_kernels.audit import disassembled
from megatune_kernels.audit import polled
from megatune_kernels.audit import read_sass
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.reduction.geometry import SENTINEL
from megatune_kernels.reduction.space import tiles_of
from megatune_kernels.space import Config
from megatune_kernels.target import ARCHITECTURES
from megatune_kernels.target import architecture

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

SM90 = architecture("sm_90a")
REDUCTION = operator("reduction")


def workload(width: int, tokens: int, world: int) -> Workload:
    return REDUCTION.workload({"width": width}, tokens, world=world)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("shape", "arch"),
    [
        (workload(512, 5, 2), "sm_90a"),
        (workload(7168, 65, 2), "sm_100a"),
        (workload(1440, 33, 3), "sm_90a"),
        (workload(3584, 17, 16), "sm_103a"),
    ],
    ids=str,
)
def test_every_value_of_every_parameter_compiles_passes_the_audit_and_spills_nothing(
    shape: Workload, arch: str
) -> None:
    configs = covering(REDUCTION.space(shape, SM90), seed=0)
    assert {config.variant for config in configs} == {"full_fanout", "two_stage"}
    for config in configs:
        # Whoever compiles audits; what fails raises.
        artifact = REDUCTION.compile(shape, config, architecture(arch))
        assert artifact.local_bytes == 0, config
        assert artifact.registers <= 65536 // int(config.params["threads"]), config


@pytest.mark.parametrize(
    ("arch", "world"), [*((arch, 4) for arch in sorted(ARCHITECTURES)), ("sm_90a", 2), ("sm_100a", 8), ("sm_103a", 16)]
)
def test_defaults_compile_for_every_architecture(arch: str, world: int) -> None:
    shape = workload(7168, 16, world)
    for config in REDUCTION.space(shape, architecture(arch)).defaults():
        artifact = REDUCTION.compile(shape, config, architecture(arch))
        assert artifact.arch == arch
        assert artifact.entry.encode() in artifact.cubin


def default(variant: str, tokens: int, world: int, **changes: object) -> tuple[Workload, Config]:
    shape = workload(7168, tokens, world)
    (config,) = (c for c in REDUCTION.space(shape, SM90).defaults() if c.variant == variant)
    return shape, Config.of(variant, {**config.params, **changes})  # type: ignore[dict-item]


@pytest.mark.parametrize("variant", REDUCTION.variants)
@pytest.mark.parametrize("tokens", [1, 512])
def test_nothing_is_read_or_sent_before_the_predecessor_has_ended(variant: str, tokens: int) -> None:
    for pdl in (False, True)[tokens > 1 :]:
        shape, config = default(variant, tokens, 2, pdl=pdl)
        listing = disassembled(REDUCTION.compile(shape, config, SM90).cubin)
        found = [match.group() for match in re.finditer(r"\b(LDG|STG|RED|ATOMG|ACQBULK|PREEXIT)\b", listing)]
        assert found.count("ACQBULK") == found.count("PREEXIT") == int(pdl)
        if pdl:
            # The next launch may come only when this one waits no more: two are on the GPU, never three.
            assert found[:2] == ["ACQBULK", "PREEXIT"]
        assert REDUCTION.launch(shape, config).programmatic == pdl


@pytest.mark.parametrize("variant", REDUCTION.variants)
@pytest.mark.parametrize("world", [2, 5])
def test_the_entry_takes_addresses_then_rank_and_launch_number(variant: str, world: int) -> None:
    from cutlass import Int32
    from cutlass import Int64
    from cutlass import cute

    from megatune_kernels.reduction import full_fanout
    from megatune_kernels.reduction import two_stage

    shape = workload(320, 3, world)
    (config,) = (c for c in REDUCTION.space(shape, SM90).defaults() if c.variant == variant)
    function = (full_fanout if variant == "full_fanout" else two_stage).launch
    partial, output, heap, *peers = (Int64(0) for _ in range(2 + world))
    compiled = compile_for(
        SM90,
        function,
        partial,
        output,
        heap,
        peers,
        Int32(0),
        Int32(0),
        cute.runtime.make_fake_stream(),
        tiles_of(shape, variant, config.params),
    )
    header = compiled.artifacts.PTX.partition(".entry")[2].partition(")")[0]
    assert re.findall(r"\.param \.(\w+)", header) == ["u64"] * (2 + world) + ["u32"] * 2


@pytest.mark.parametrize("variant", REDUCTION.variants)
def test_one_launch_polls_all_of_a_threads_vectors_together(variant: str) -> None:
    shape, config = default(variant, 64, 4, signal=SENTINEL)
    tiles = tiles_of(shape, variant, config.params)
    code = read_sass(disassembled(REDUCTION.compile(shape, config, SM90).cubin))
    polls = polled("SASS", code)
    stages = tiles.boxes // tiles.peers
    assert len(polls) == stages * tiles.peers * tiles.thread_vectors
    loops = [loop for loop in code.loops() if loop & polls and len(loop) < len(code.instructions) // 2]
    assert sorted(len(loop & polls) for loop in loops) == [tiles.peers * tiles.thread_vectors] * stages


def test_the_key_covers_world_tokens_and_the_rules_of_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, config = default("full_fanout", 8, 2)
    keys = {
        artifact_key(REDUCTION, shape, config, SM90),
        artifact_key(REDUCTION, shape.at(7), config, SM90),
        artifact_key(REDUCTION, workload(7168, 8, 4), config, SM90),
        artifact_key(REDUCTION, shape, config, architecture("sm_100a")),
    }
    monkeypatch.setattr("megatune_kernels.artifact.rules_digest", lambda: "other rules")
    assert len(keys | {artifact_key(REDUCTION, shape, config, SM90)}) == 5
