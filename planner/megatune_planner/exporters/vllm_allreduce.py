"""vLLM's stock all-reduce settings, from what was measured of reductions.

Two settings of vLLM 0.33.0 depend on it, and neither is a crossover between one-shot and two-shot:

- ``VLLM_CUSTOM_ALLREDUCE_ALGO`` makes its own all-reduce use one algorithm for every size that it serves. It is written
  where that algorithm won at every measured number of tokens; one-shot also only where measuring went as far as the
  largest tensor that this all-reduce takes, because it would hold for a prefill too.
- ``pass_config.fi_allreduce_fusion_max_size_mb`` is the largest tensor that FlashInfer's fused all-reduce takes; beyond
  it the stock one serves. It is written as the size up to which one-shot or two-shot beat NCCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters import reduction_markdown
from megatune_planner.exporters.base import Exporter
from megatune_planner.exporters.installed import ANY
from megatune_planner.exporters.measured import notes
from megatune_planner.exporters.reduction import Algorithm
from megatune_planner.exporters.reduction import limit
from megatune_planner.exporters.reduction import reductions
from megatune_planner.exporters.reduction import width_of
from megatune_planner.exporters.reduction_schema import PlanSource
from megatune_planner.exporters.reduction_schema import Runtime
from megatune_planner.exporters.reduction_schema import Setting
from megatune_planner.exporters.reduction_schema import Settings
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan

ALGORITHM_VARIABLE = "VLLM_CUSTOM_ALLREDUCE_ALGO"
FUSION_LIMIT = "pass_config.fi_allreduce_fusion_max_size_mb"
MIB = 1024 * 1024

ALGORITHM_WORLDS = (2, 4, 6, 8)
"""Ranks that vLLM's own all-reduce has kernels for."""

FUSION_WORLDS = (2, 4, 8, 16)
"""Ranks that FlashInfer's fused all-reduce takes."""

CUSTOM_MAX_MIB: dict[str, dict[int, float]] = {
    "sm_90a": {2: 64, 4: 32, 6: 0.5, 8: 0.25},
    "sm_100a": {2: 2, 4: 2, 6: 1, 8: 1},
    "sm_103a": {2: 4, 4: 4, 6: 8, 8: 4},
}
"""Tensors below this size are its own all-reduce's, where symmetric memory is on, which is the default."""

CUSTOM_MAX_BYTES = 8 * MIB
"""The most that it takes anywhere."""

FUSION_SHIPPED_MIB: dict[str, dict[int, float]] = {
    "sm_90a": {2: 64, 4: 2, 8: 0.5},
    "sm_100a": {2: 64, 4: 32, 8: 1, 16: 64},
    "sm_103a": {2: 64, 4: 64, 8: 4, 16: 64},
}
"""vLLM's own limits of the fused all-reduce."""

NOTES = (
    "Latencies were measured on Megatune's own kernels, neither on vLLM's nor on FlashInfer's, and without the RMSNorm "
    "that the latter fuses: compare with the setting left out before it serves.",
    "None of this touches the latency-specialised decode, which has tables of its own: export vllm-specialized-decode.",
    "Within FlashInfer's limit vLLM splits one-shot and two-shot at sizes of its own, which no setting moves.",
)

_UTILS = "vllm/distributed/device_communicators/all_reduce_utils.py"
_FUSION = "vllm/compilation/passes/fusion/allreduce_rms_fusion.py"


class VllmAllreduce(Exporter):
    """``vllm_allreduce.json`` and the same to read: the settings of each world that the plan supports."""

    name = "vllm-allreduce"
    what = f"settings of the stock all-reduce of vLLM 0.33.0: {ALGORITHM_VARIABLE}, fi_allreduce_fusion_max_size_mb"
    runtime = "vllm"
    runtime_version = "0.33.0"
    relies_on = {  # noqa: RUF012  (nothing writes to it)
        "vllm/config/compilation.py": {"fi_allreduce_fusion_max_size_mb": ANY},
        "vllm/distributed/device_communicators/custom_all_reduce.py": {"_SUPPORTED_WORLD_SIZES": [2, 4, 6, 8, 16]},
        _UTILS: {"CUSTOM_ALL_REDUCE_MAX_SIZES": ANY},
        _FUSION: {
            "FI_ALLREDUCE_FUSION_MAX_SIZE_MB": {
                90: FUSION_SHIPPED_MIB["sm_90a"],
                100: FUSION_SHIPPED_MIB["sm_100a"],
                103: FUSION_SHIPPED_MIB["sm_103a"],
                107: {2: 64, 4: 64, 8: 2},
            },
        },
    }

    def files(self, plan: Plan) -> dict[str, str]:
        arch = plan.content.target.hardware["arch"]
        if arch not in CUSTOM_MAX_MIB:
            raise MegatuneError(f"vLLM {self.runtime_version} has no all-reduce limits for {arch}")
        found = reductions(plan, self.name)
        settings, skipped = [], []
        for world, group in groupby(found, key=lambda shape: shape.world):
            shapes = list(group)
            for name, make in ((ALGORITHM_VARIABLE, _algorithm), (FUSION_LIMIT, _fusion_limit)):
                try:
                    settings.append(make(world, shapes, arch))
                except MegatuneError as error:
                    skipped.append(f"world {world}, {name}: {error}")
        if not settings:
            raise MegatuneError(f"{self.name}: the plan supports no setting: {'; '.join(skipped)}")
        return reduction_markdown.files(
            "vllm_allreduce",
            Settings(
                runtime=Runtime(name=self.runtime, version=self.runtime_version),
                plan=PlanSource.of(plan),
                notes=notes(found, NOTES),
                settings=tuple(settings),
                skipped=tuple(skipped),
            ),
        )


def setting_of(plan: Plan, world: int | None, name: str) -> Setting | None:
    """One of the two settings as the plan's reductions of a world support it; None where they do not."""
    arch = plan.content.target.hardware["arch"]
    if world is None or arch not in CUSTOM_MAX_MIB:
        return None
    try:
        shapes = [shape for shape in reductions(plan, VllmAllreduce.name) if shape.world == world]
        if not shapes:
            return None
        return (_algorithm if name == ALGORITHM_VARIABLE else _fusion_limit)(world, shapes, arch)
    except MegatuneError:
        return None


def fusion_of(plan: Plan, world: int | None) -> tuple[bool, str] | None:
    """Whether vLLM's all-reduce should be fused with the norm behind it, and why; None where the plan decides nothing.

    The limit is one of that fusion, and says nothing without it. Where another wins at 1 token already there is none.
    """
    found = setting_of(plan, world, FUSION_LIMIT)
    if found is not None:
        return True, f"the limit beside it is this fusion's; up to {found.payload_bytes} bytes it is not slower"
    try:
        shapes = [shape for shape in reductions(plan, VllmAllreduce.name) if shape.world == world]
        lost = limit(max(shapes, key=width_of), "one_shot", "two_shot") if shapes else None
    except MegatuneError:
        return None
    if world not in FUSION_WORLDS or lost is None or lost.tokens:
        return None
    return False, f"{lost.next_serves} wins at 1 token already"


def _algorithm(world: int, shapes: Sequence[ShapePlan], arch: str) -> Setting:
    if world not in ALGORITHM_WORLDS:
        raise MegatuneError(f"vLLM has no all-reduce of its own for it; it has {', '.join(map(str, ALGORITHM_WORLDS))}")
    for algorithm, value in _ALGORITHM_VALUES.items():
        limits = tuple(limit(shape, algorithm) for shape in shapes)
        if any(each.next_tokens is not None for each in limits):
            continue
        largest = min(int(CUSTOM_MAX_MIB[arch][world] * MIB), CUSTOM_MAX_BYTES)
        measured = min(each.payload_bytes for each in limits)
        short = any(each.payload_bytes + each.bytes_a_token < largest for each in limits)
        if algorithm == "one_shot" and short:
            raise MegatuneError(
                f"one-shot won at all tokens that were measured, up to {measured} bytes, and the variable would hold "
                f"for every tensor below {largest} bytes"
            )
        return Setting(
            world=world,
            where="environment",
            name=ALGORITHM_VARIABLE,
            value=value,
            unit="all sizes at once",
            payload_bytes=None,
            conversion=(
                f"{algorithm.replace('_', '-')} won at all tokens that were measured, up to {measured} bytes of one "
                f"rank's tensor; vLLM's own all-reduce takes those below {largest} bytes"
            ),
            limits=limits,
            warnings=(
                f"holds where symmetric memory is on, the default: without it tensors up to {CUSTOM_MAX_BYTES} bytes "
                "are this all-reduce's",
            ),
        )
    raise MegatuneError("it is one algorithm for all sizes, and none won at all tokens that were measured")


_ALGORITHM_VALUES: dict[Algorithm, str] = {"one_shot": "oneshot", "two_shot": "twoshot"}


def _fusion_limit(world: int, shapes: Sequence[ShapePlan], arch: str) -> Setting:
    if world not in FUSION_WORLDS:
        raise MegatuneError(f"FlashInfer's fused all-reduce has {', '.join(map(str, FUSION_WORLDS))} ranks")
    # What is fused is the all-reduce of the hidden state, the widest of a model's.
    shape = max(shapes, key=width_of)
    found = limit(shape, "one_shot", "two_shot")
    if found.tokens == 0:
        raise MegatuneError(
            f"{found.next_serves} wins at 1 token already: pass_config.fuse_allreduce_rms=false is meant"
        )
    shipped = FUSION_SHIPPED_MIB[arch].get(world)
    if found.next_tokens is None and shipped is not None and shipped * MIB >= found.payload_bytes:
        raise MegatuneError(
            f"NCCL won nowhere up to {found.payload_bytes} bytes, and vLLM's own limit is {shipped} MiB: leave it unset"
        )
    value = found.payload_bytes / MIB
    if int(value * MIB) != found.payload_bytes:
        raise MegatuneError(f"{found.payload_bytes} bytes are not a number of MiB that vLLM reads back")
    own = "none" if shipped is None else f"{shipped} MiB"
    return Setting(
        world=world,
        where="--compilation-config",
        name=FUSION_LIMIT,
        value=value,
        unit="MiB of one rank's tensor, the largest included",
        payload_bytes=found.payload_bytes,
        conversion=(
            f"{found.tokens} tokens x {found.width} elements x {found.bytes_a_token // found.width} bytes = "
            f"{found.payload_bytes} bytes = {value} MiB, exactly; vLLM's own limit is {own}"
        ),
        limits=(found,),
        warnings=(
            f"vLLM divides it by the bytes of a token of the model's hidden state: right for {found.width} only",
        ),
    )
