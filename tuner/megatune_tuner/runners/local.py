"""The runner of a kind, on GPUs of this machine."""

from __future__ import annotations

from megatune_tuner.runners.base import Runner


def local_runner(kind: str, world: int, gpu: int) -> Runner:
    """The runner ``gpu``, ``group`` or ``emulated``.

    :param world: ranks; of no account on one GPU.
    :param gpu: index of the GPU to measure on; of a group, the first of as many as it has ranks.
    :raises MegatuneError: where nothing can be measured, with what is missing.
    """
    match kind:
        case "group":
            from megatune_tuner.runners.group import GroupRunner

            return GroupRunner(world, first_gpu=gpu)
        case "emulated":
            from megatune_tuner.runners.group import EmulatedRunner

            return EmulatedRunner(world, first_gpu=gpu)
    from megatune_tuner.runners.gpu import GpuRunner

    return GpuRunner(gpu)
