"""The one-shot limit of SGLang's custom all-reduce, from what was measured of reductions.

SGLang 0.5.23 compares the bytes of one rank's tensor with thresholds of its own by architecture and world, in the order
one-shot push, two-shot push, one-shot pull, two-shot pull; what none takes is NCCL's. The variable moves the first one
alone. Below one of the later thresholds the runtime therefore goes on with one-shot, by pulling, whatever the variable
says: a limit in there is refused, because it would trade one one-shot for another that nobody measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from megatune_db.records import Regime
from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters import reduction_markdown
from megatune_planner.exporters.installed import ANY
from megatune_planner.exporters.measured import notes
from megatune_planner.exporters.reduction import label
from megatune_planner.exporters.reduction import limit
from megatune_planner.exporters.reduction import reductions
from megatune_planner.exporters.reduction_schema import Limit
from megatune_planner.exporters.reduction_schema import PlanSource
from megatune_planner.exporters.reduction_schema import Runtime
from megatune_planner.exporters.reduction_schema import Setting
from megatune_planner.exporters.reduction_schema import Settings
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan

FILE = "sglang_allreduce"
VARIABLE = "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PUSH_SIZE_KB"
KIB = 1024
MIB = 1024 * KIB

FUSED_PUSH_BYTES = 512 * KIB
"""What Kimi K3's fused all-reduce sends by push at most, whatever the variable says."""


@dataclass(frozen=True)
class Thresholds:
    """Of one architecture, world and kind of execution, in bytes of one rank's tensor."""

    one_shot_push: int
    one_shot_pull: int
    two_shot_push: int = 0


def _row(graph: tuple[float, float], eager: tuple[float, float], two_shot: float = 0) -> dict[str, Thresholds]:
    return {
        execution: Thresholds(int(push * MIB), int(pull * MIB), int(two_shot * MIB))
        for execution, (push, pull) in (("graph", graph), ("eager", eager))
    }


_BLACKWELL = {
    2: _row((8, 32), (16, 128)),
    3: _row((4, 4), (8, 8)),
    4: _row((0.625, 0.625), (0.625, 0.625), two_shot=8),
    5: _row((1.5, 1.5), (2, 2)),
    6: _row((1, 1), (1.25, 1.25)),
    7: _row((0.625, 0.625), (1, 1)),
    8: _row((0.25, 0.25), (0.25, 0.25), two_shot=8),
    16: _row((0.25, 0.25), (0.25, 0.25)),
}
SHIPPED = {
    "sm_90a": {
        2: _row((16, 128), (32, 128)),
        3: _row((1.25, 1.25), (3, 3)),
        4: _row((0.375, 0.375), (0.875, 0.875)),
        5: _row((0.1875, 0.1875), (0.375, 0.375)),
        6: _row((0.125, 0.125), (0.1875, 0.1875)),
        7: _row((0.125, 0.125), (0.125, 0.125)),
        8: _row((0.125, 0.125), (0.125, 0.125)),
    },
    "sm_100a": _BLACKWELL,
    "sm_103a": _BLACKWELL,
}
"""SGLang's own thresholds by architecture, world and execution: ``configs/custom_all_reduce_v2.py`` of 0.5.23."""

NOTES = (
    "Latencies were measured on Megatune's own kernels, which write to peers one by one; SGLang's push may use the "
    "switch's multicast: compare with the setting left out before it serves.",
    "A server has one value for all its all-reduces, in graphs and outside: where a plan has several widths, the "
    "smallest of their limits counts.",
    "The variable also sizes the buffers that other push collectives share: what does not fit takes its own fallback. "
    f"Kimi K3's fused all-reduce pushes up to {FUSED_PUSH_BYTES} bytes at most, whatever the variable says.",
)


RELIES_ON = {
    "sglang/srt/environ.py": {VARIABLE: ANY},
    "sglang/srt/distributed/device_communicators/custom_all_reduce_v2.py": {"_FORCE_PUSH_SIZE_KB": ANY},
    "sglang/srt/distributed/device_communicators/configs/custom_all_reduce_v2.py": {
        "one_shot_push_threshold": ANY,
        "_sm90_configs": ANY,
        "_sm100_configs": ANY,
    },
    "sglang/srt/layers/communication/k3_ar_fusion.py": {"_PUSH_MAX_BYTES": ANY},
}
"""What the thresholds here rest on in SGLang's source."""


def files(plan: Plan, exporter: str, runtime: Runtime) -> dict[str, str]:
    """``sglang_allreduce.json`` and the same to read: one value of the environment variable for each world.

    :raises MegatuneError: when the plan supports no value.
    """
    arch = plan.content.target.hardware["arch"]
    if arch not in SHIPPED:
        raise MegatuneError(f"{exporter}: SGLang {runtime.version} has no thresholds for {arch}")
    execution = Regime.parse(plan.content.regime).execution
    found = reductions(plan, exporter)
    settings, skipped = [], []
    for world, shapes in groupby(found, key=lambda shape: shape.world):
        try:
            settings.append(_setting(world, list(shapes), arch, execution))
        except MegatuneError as error:
            skipped.append(f"world {world}: {error}")
    if not settings:
        raise MegatuneError(f"{exporter}: no world of the plan can be said: {'; '.join(skipped)}")
    return reduction_markdown.files(
        FILE,
        Settings(
            runtime=runtime,
            plan=PlanSource.of(plan),
            notes=notes(found, NOTES),
            settings=tuple(settings),
            skipped=tuple(skipped),
        ),
    )


def serves(nbytes: int, thresholds: Thresholds, forced: int, world: int) -> str:
    """What the runtime runs for one rank's tensor of this many bytes while the variable forces a limit."""
    slot = max(-(-forced // KIB), 1) * KIB
    # A slot holds half a chunk's partials and half its result, in vectors of 16 bytes.
    two_shot_push = min(thresholds.two_shot_push, world * 16 * (slot // 32))
    if nbytes <= forced:
        return "one-shot push"
    if nbytes <= two_shot_push:
        return "two-shot push"
    return "one-shot pull" if nbytes <= thresholds.one_shot_pull else "two-shot pull or NCCL"


def _setting(world: int, shapes: Sequence[ShapePlan], arch: str, execution: str) -> Setting:
    if world not in SHIPPED[arch]:
        known = ", ".join(map(str, SHIPPED[arch]))
        raise MegatuneError(f"SGLang has no custom all-reduce for it on {arch}; it has {known}")
    limits = tuple(_limits(shapes))
    thresholds = SHIPPED[arch][world][execution]
    least = min(limits, key=lambda each: each.payload_bytes)
    value = least.payload_bytes // KIB
    allowed = value * KIB
    if all(each.next_tokens is None for each in limits) and allowed <= thresholds.one_shot_push:
        raise MegatuneError(
            f"one-shot won at all tokens that were measured, up to {allowed} bytes, and SGLang's own limit is "
            f"{thresholds.one_shot_push} bytes: leave the variable unset"
        )
    for each in limits:
        if each.next_tokens is not None:
            lost = each.next_tokens * each.bytes_a_token
            runs = serves(lost, thresholds, allowed, world)
            if runs.startswith("one-shot"):
                raise MegatuneError(
                    f"one-shot loses at {each.next_tokens} tokens of width {each.width}, {lost} bytes, and SGLang goes "
                    f"on with {runs} up to {thresholds.one_shot_pull} bytes whatever {VARIABLE} says"
                )
    return Setting(
        world=world,
        where="environment",
        name=VARIABLE,
        value=value,
        unit="KiB of one rank's tensor, the largest included",
        payload_bytes=allowed,
        conversion=(
            f"{least.tokens} tokens x {least.width} elements x {least.bytes_a_token // least.width} bytes = "
            f"{least.payload_bytes} bytes, rounded down to {value} KiB = {allowed} bytes, which are "
            f"{allowed // least.bytes_a_token} tokens; SGLang's own limit is {thresholds.one_shot_push // KIB} KiB"
        ),
        limits=limits,
        warnings=tuple(_warnings(world, limits, thresholds, allowed)),
    )


def _warnings(world: int, limits: Sequence[Limit], thresholds: Thresholds, allowed: int) -> Iterator[str]:
    yield f"2 x {world} slots of {allowed} bytes are allocated on every rank: {2 * world * allowed} bytes"
    if serves(thresholds.one_shot_pull, thresholds, allowed, world) == "one-shot pull":
        yield (
            f"beyond {allowed} bytes SGLang goes on with one-shot, by pulling, to {thresholds.one_shot_pull} bytes: "
            "nothing was measured there"
        )
    for each in limits:
        fitting = allowed // each.bytes_a_token
        if fitting < each.tokens:
            yield (
                f"width {each.width}: of the {each.tokens} tokens that one-shot won, those above {fitting} are left to "
                "the other side"
            )


def _limits(shapes: Sequence[ShapePlan]) -> Iterator[Limit]:
    for shape in shapes:
        try:
            yield limit(shape, "one_shot")
        except MegatuneError as error:
            raise MegatuneError(f"{label(shape)}: {error}") from None
