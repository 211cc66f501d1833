"""What an exception says of a config: the status and the reason of its measurement."""

from __future__ import annotations

from collections.abc import Callable

from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_tuner.workers.gpu_messages import Outcome

LONGEST_REASON = 300
REFUSED = ("INVALID_VALUE", "OUT_OF_RESOURCES", "INVALID_CLUSTER_SIZE", "NOT_SUPPORTED", "INVALID_CONFIGURATION")
"""Errors by which the driver refuses a launch before it starts; the context stays good."""
OUT_OF_MEMORY = ("OUT_OF_MEMORY", "ALLOC_FAILED")
"""In the words of the driver and of cuBLAS."""
TORCH_OUT_OF_MEMORY = "OutOfMemoryError"
"""Name of torch's exception; naming it needs no torch."""


class WrongResult(Exception):
    """An output is not within its bound."""


class Infeasible(Exception):
    """The config cannot run on this GPU."""


def failed(error: Exception, measure_s: float, is_usable: Callable[[], bool]) -> Outcome:
    """What became of a job that raised.

    :param is_usable: whether the GPU can still be used by this process, asked where the exception does not say.
    :raises MegatuneError: the exception itself when it is one, because then no config could be measured.
    """
    if isinstance(error, MegatuneError):
        raise error
    text = " ".join(str(error).split())[:LONGEST_REASON]
    if isinstance(error, WrongResult):
        return Outcome(Status.WRONG_RESULT, text, measure_s=measure_s)
    if isinstance(error, Infeasible | NotImplementedError):
        return Outcome(Status.INFEASIBLE, text, measure_s=measure_s)
    if not is_usable():
        return Outcome(Status.CRASH, text or type(error).__name__, measure_s=measure_s, poisoned=True)
    if type(error).__name__ == TORCH_OUT_OF_MEMORY or any(word in text for word in OUT_OF_MEMORY):
        return Outcome(Status.OUT_OF_MEMORY, text, measure_s=measure_s)
    if any(word in text for word in REFUSED):
        return Outcome(Status.INFEASIBLE, text, measure_s=measure_s)
    return Outcome(Status.CRASH, f"{type(error).__name__}: {text}", measure_s=measure_s, poisoned=True)
