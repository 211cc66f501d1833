"""What the coordinator and the processes of a group say to each other, beside the messages to one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from megatune_kernels.target import Target
from megatune_tuner.workers.gpu_messages import Job

START = "start"
PREPARE = "prepare"
CONNECT = "connect"
IDLE = "idle"
"""Phases that the coordinator knows; the others are measuring."""


@dataclass(frozen=True)
class StartGroup:
    """Ask whether all ranks can be used."""

    describe: bool
    """Whether to measure the facts of the target too."""


@dataclass(frozen=True)
class Started:
    """The answer to ``StartGroup``: the target of the whole group, and facts of it by name."""

    target: Target
    facts: Mapping[str, float]


@dataclass(frozen=True)
class Stress:
    """Ask for many verifications of a job with new values and skewed starts, drawn from ``seed``, and no samples."""

    job: Job
    replays: int
    seed: int
