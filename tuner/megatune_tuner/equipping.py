"""What a campaign measures with, and what is known of it before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import closing
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from megatune_kernels.operator import Workload
from megatune_kernels.target import Target
from megatune_kernels.target import architecture_of
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.measuring import Builder
from megatune_tuner.measuring import Configs
from megatune_tuner.recordings import Recording
from megatune_tuner.recordings import recording
from megatune_tuner.recordings import shipped_recordings
from megatune_tuner.runners.base import Runner

if TYPE_CHECKING:
    from megatune_tuner.compiling import CompilePool


@dataclass(frozen=True)
class Equipment:
    """What a campaign measures with."""

    runner: Runner
    builder: Builder | None
    configs: Configs | None
    """The configs of a workload that can be measured; None: every legal one."""
    facts: Mapping[str, float]
    """Figures of the target that were measured beside."""


@contextmanager
def equipment(campaign: Campaign, gpu: int = 0) -> Iterator[Equipment]:
    """The runner that a campaign names, and what it needs; closed at the end of the block.

    :param gpu: index of the GPU to measure on; of a group, the first of as many as it has ranks.
    :raises MegatuneError: when nothing can be measured: no GPU, no recording, or one that lacks what is asked for.
    """
    if campaign.runner.kind == "replay":
        found = recording_of(campaign)
        yield Equipment(replay_runner(found), None, found.configs, found.about.facts)
        return
    with _measuring(campaign, gpu) as runner, closing(compilers(runner.target)) as pool:
        yield Equipment(runner, pool, None, runner.facts)


def runner_of(campaign: Campaign, gpu: int = 0) -> Runner:
    """The runner that a campaign names, for whoever builds nothing; the errors are those of ``equipment``."""
    return replay_runner(recording_of(campaign)) if campaign.runner.kind == "replay" else _measuring(campaign, gpu)


def replay_runner(found: Recording) -> Runner:
    """Answers from a recording."""
    from megatune_tuner.runners.replay import ReplayRunner

    return ReplayRunner(found)


def compilers(target: Target) -> CompilePool:
    """Processes of this machine that build for a target."""
    from megatune_kernels.artifact_store import store_location
    from megatune_tuner.compiling import CompilePool

    return CompilePool(store_location(), architecture_of(target.hardware))


def _measuring(campaign: Campaign, gpu: int) -> Runner:
    """The runner of a campaign that measures."""
    from megatune_tuner.runners.local import local_runner

    if campaign.runner.kind == "group":
        from megatune_tuner.doctor import visible_gpus

        there = len(visible_gpus())
        if gpu + campaign.world > there:
            behind = f" from GPU {gpu} on" if gpu else ""
            raise campaign.fault(
                "runner.kind",
                f"world {campaign.world} takes {campaign.world} GPUs{behind}, this machine shows {there}; "
                'kind = "emulated" measures all ranks on one',
            )
    return local_runner(campaign.runner.kind, campaign.world, gpu)


def recording_of(campaign: Campaign) -> Recording:
    """The recording that a campaign replays; a path is relative to the campaign file's folder."""
    name = campaign.runner.recording or ""
    if name not in shipped_recordings():
        name = str(Path(campaign.source).parent / name)
    found = recording(name)
    if found.about.regime != campaign.measuring_regime():
        raise campaign.fault("regime", f"{found.name} was recorded {found.about.regime}; a replay has to say the same")
    missing = [workload for workload in campaign.workloads() if not found.configs(workload)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise campaign.fault(
            "runner.recording", f"{found.name} has no {missing[0]}{more}; {_recorded(found, missing[0])}"
        )
    return found


def _recorded(found: Recording, like: Workload) -> str:
    """What there is instead: the tokens of that shape, or else its dtypes, worlds and routings, or else the shapes."""
    same = [other for other in found.workloads if (other.operator, other.dims) == (like.operator, like.dims)]
    tokens = sorted({other.tokens for other in same if other.at(like.tokens) == like})
    if tokens:
        return f"recorded tokens: {', '.join(map(str, tokens))}"
    if same:
        kinds = dict.fromkeys(f"{other.dtype} at world {other.world}, routing {other.routing}" for other in same)
        return f"recorded of that shape: {'; '.join(kinds)}"
    shapes = dict.fromkeys(other.shape for other in found.workloads if other.operator == like.operator)
    return f"recorded shapes: {'; '.join(shapes) or 'none of this operator'}"
