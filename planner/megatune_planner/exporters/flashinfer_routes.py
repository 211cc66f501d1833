"""Routes of FlashInfer's MNNVL all-reduce by tokens, from what was measured of reductions.

In FlashInfer 0.7.4 a ``StaticProfile`` holds, for one world, hidden size and top-k, an ``MRangeDispatch(upper_bounds,
targets)`` over tokens. Its protocol LL is one-shot, BT is two-shot, and HT needs the RMSNorm that it fuses. The bound
between LL and BT is moved, of the plain all-reduce without the norm: that is what was measured, and FlashInfer refuses
to mix the two. Everything else is as FlashInfer ships it for the same world and hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from megatune_kernels.canonical import canonical_json
from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters import flashinfer_config
from megatune_planner.exporters.base import Exporter
from megatune_planner.exporters.flashinfer_schema import Dispatch
from megatune_planner.exporters.flashinfer_schema import Profile
from megatune_planner.exporters.flashinfer_schema import Profiles
from megatune_planner.exporters.flashinfer_schema import Target
from megatune_planner.exporters.installed import ANY
from megatune_planner.exporters.measured import notes
from megatune_planner.exporters.reduction import label
from megatune_planner.exporters.reduction import limit
from megatune_planner.exporters.reduction import reductions
from megatune_planner.exporters.reduction import width_of
from megatune_planner.exporters.reduction_markdown import heading
from megatune_planner.exporters.reduction_markdown import left_out
from megatune_planner.exporters.reduction_markdown import limits_table
from megatune_planner.exporters.reduction_schema import PlanSource
from megatune_planner.exporters.reduction_schema import Runtime
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan

JSON_FILE = "flashinfer.json"
MARKDOWN_FILE = "flashinfer.md"
LOADER_FILE = "megatune_flashinfer.py"

CAPABILITIES = {"sm_100a": (10, 0), "sm_103a": (10, 3)}
"""FlashInfer's MNNVL kernels are for Blackwell."""


@dataclass(frozen=True)
class Routes:
    """Bounds that FlashInfer ships: LL up to the first, the narrow BT preset up to the second, then the wide one."""

    all_reduce: tuple[int, int]
    finalize: tuple[int, int]


SHIPPED: dict[tuple[int, int, int], Routes] = {
    (4, 5120, 6): Routes((40, 128), (64, 64)),
    (4, 5120, 3): Routes((40, 128), (56, 32)),
    (8, 5120, 6): Routes((28, 512), (28, 96)),
    (8, 5120, 3): Routes((28, 512), (28, 48)),
    (4, 7168, 16): Routes((28, 512), (24, 512)),
    (8, 7168, 16): Routes((12, 256), (12, 512)),
    (8, 8192, 10): Routes((15, 256), (23, 48)),
    (16, 8192, 10): Routes((5, 512), (7, 52)),
}
"""By world, hidden size and top-k: presets of 0.7.4 that have both LL and BT. Those of 5120 were measured without the
norm, the others with it."""

NOTES = (
    "Latencies were measured on Megatune's own kernels, which write to each peer; FlashInfer's LL publishes through "
    "the switch's multicast, which favours one-shot: compare with its own routes before they serve.",
    "Right for create_allreduce_fusion_workspace(backend='mnnvl-cutedsl', apply_rms_norm=False, …) alone: crossovers "
    "move with the fused norm, and FlashInfer refuses a workspace that has it.",
    "Where NCCL won, no route can say so: FlashInfer has its own kernels only.",
    f"{LOADER_FILE} makes FlashInfer's config of {JSON_FILE}: config=megatune_flashinfer.load().",
)


def _presets(tp: int, hidden: int, top_k: int) -> dict[str, tuple[str, str, str]]:
    """Names of the LL preset and of the narrow and the wide BT preset, by operation."""
    of = {"all_reduce": f"ALL_REDUCE_GB300_TP{tp}_H{hidden}", "finalize": f"FINALIZE_GB300_TP{tp}_H{hidden}_K{top_k}"}
    return {name: (f"LL_{word}", f"BT_{word}_PRESET_0", f"BT_{word}_PRESET_1") for name, word in of.items()}


_NAMES = [name for key in SHIPPED for names in _presets(*key).values() for name in names]


class Flashinfer(Exporter):
    """``flashinfer.json``, the same to read, and a loader that makes FlashInfer's config of it."""

    name = "flashinfer"
    what = "a profile of the MNNVL all-reduce of FlashInfer 0.7.4: routes by tokens, without the fused norm"
    runtime = "flashinfer-python"
    runtime_version = "0.7.4"
    relies_on = {  # noqa: RUF012  (nothing writes to it)
        "flashinfer/comm/mnnvl_cutedsl/config.py": dict.fromkeys(
            ("MNNVLCuteDSLConfig", "StaticProfile", "MRangeDispatch", "KernelTarget", "ProtocolKind"), ANY
        ),
        **{
            f"flashinfer/comm/mnnvl_cutedsl/kernel_{protocol}/__init__.py": {
                name: ANY for name in _NAMES if name.startswith(protocol.upper())
            }
            for protocol in ("ll", "bt")
        },
    }

    def files(self, plan: Plan) -> dict[str, str]:
        arch = plan.content.target.hardware["arch"]
        if arch not in CAPABILITIES:
            raise MegatuneError(
                f"{self.name}: FlashInfer's MNNVL kernels run on {' and '.join(CAPABILITIES)}, and the plan holds for "
                f"{arch}"
            )
        found = reductions(plan, self.name)
        profiles, skipped = [], []
        for shape in found:
            try:
                profiles += list(_profiles(shape, CAPABILITIES[arch]))
            except MegatuneError as error:
                skipped.append(f"{label(shape)}: {error}")
        if not profiles:
            raise MegatuneError(f"{self.name}: no shape of the plan has routes: {'; '.join(skipped)}")
        built = Profiles(
            runtime=Runtime(name=self.runtime, version=self.runtime_version),
            plan=PlanSource.of(plan),
            notes=notes(found, NOTES),
            profiles=tuple(profiles),
            skipped=tuple(skipped),
        )
        text = canonical_json(built.model_dump(mode="json")) + "\n"
        Profiles.model_validate_json(text)
        loader = Path(flashinfer_config.__file__).read_text(encoding="utf-8")
        return {JSON_FILE: text, MARKDOWN_FILE: "\n".join(_lines(built)) + "\n", LOADER_FILE: loader}


def _profiles(shape: ShapePlan, capability: tuple[int, int]) -> Iterator[Profile]:
    world, hidden = shape.world, width_of(shape)
    keys = [key for key in SHIPPED if key[:2] == (world, hidden)]
    if not keys:
        known = ", ".join(dict.fromkeys(f"{hidden} at {world} ranks" for world, hidden, _ in SHIPPED))
        raise MegatuneError(f"FlashInfer ships no LL and BT presets for it; it has {known}")
    if shape.dtype != "bf16":
        raise MegatuneError("FlashInfer's MNNVL kernels reduce bf16 only")
    found = limit(shape, "one_shot")
    for key in keys:
        shipped, presets = SHIPPED[key], _presets(*key)
        own, split = shipped.all_reduce
        if found.next_tokens is None and found.tokens <= own:
            raise MegatuneError(
                f"one-shot won at all tokens that were measured, up to {found.tokens}, and FlashInfer's own limit is "
                f"{own}: nothing to change"
            )
        yield Profile(
            tp_size=world,  # type: ignore[arg-type]  # pydantic checks it
            hidden_size=hidden,
            top_k=key[2],
            compute_capability=capability,
            all_reduce_routes=_dispatch(presets["all_reduce"], found.tokens, split),
            finalize_routes=_dispatch(presets["finalize"], *shipped.finalize),
            conversion=(
                f"the bound is in tokens: {found.tokens}, which are {found.payload_bytes} bytes of one rank's tensor "
                f"and {found.traffic_bytes} of one-shot traffic; FlashInfer's own is {own}. LL's mailboxes take three "
                "times that traffic on every rank"
            ),
            limit=found,
        )


def _dispatch(presets: tuple[str, str, str], one_shot_to: int, narrow_to: int) -> Dispatch:
    """LL, the narrow BT preset, the wide one: each where the one before ends, and left out where nothing is left."""
    ll, narrow, wide = presets
    ranges: list[tuple[int | None, Target]] = []
    if one_shot_to:
        ranges.append((one_shot_to, Target(protocol="ll", preset=ll)))
    if narrow_to > one_shot_to:
        ranges.append((narrow_to, Target(protocol="bt", preset=narrow)))
    ranges.append((None, Target(protocol="bt", preset=wide)))
    return Dispatch(upper_bounds=tuple(bound for bound, _ in ranges), targets=tuple(target for _, target in ranges))


def _lines(profiles: Profiles) -> Iterator[str]:
    yield from heading("All-reduce", profiles.runtime, profiles.plan, profiles.notes)
    for profile in profiles.profiles:
        yield ""
        yield f"## TP{profile.tp_size}, hidden size {profile.hidden_size}, top-k {profile.top_k}"
        yield ""
        yield "| tokens to | all-reduce |"
        yield "|---:|---|"
        routes = profile.all_reduce_routes
        for bound, target in zip(routes.upper_bounds, routes.targets, strict=True):
            kind = "one-shot" if target.protocol == "ll" else "two-shot"
            yield f"| {bound or 'all'} | {kind}: {target.preset} |"
        yield ""
        yield f"{profile.conversion[0].upper()}{profile.conversion[1:]}."
        yield ""
        yield from limits_table([profile.limit])
    yield from left_out(profiles.skipped)
