"""Processes that need no GPU: ``python -m stand_ins FD NICE KIND`` answers as the children of the tests should."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain
from megatune_tuner.workers.child import serve
from megatune_tuner.workers.gpu_messages import Describe
from megatune_tuner.workers.gpu_messages import Final
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.gpu_messages import Outcome
from megatune_tuner.workers.gpu_messages import Search
from megatune_tuner.workers.gpu_messages import Start

TARGET = Target(Hardware("A GPU", "sm_90a", "0000", 132, 1 << 20, 1 << 30, "none"), Toolchain("1", "13", "4", "2"))
STARTING_S = 1.5
"""Longer than the limit of a measurement in the tests."""


def plain(message: Any) -> Any:
    """Do what the message, a word and a value, says."""
    word, value = message
    match word:
        case "echo":
            return value
        case "write":
            os.write(2, value)
        case "refuse":
            raise MegatuneError(value)
        case "raise":
            raise RuntimeError(value)
        case "end":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(600)
        case "half":
            # The length of an answer that does not come.
            os.write(int(sys.argv[1]), (1 << 20).to_bytes(4, "big"))
            time.sleep(600)
    return None


def gpu(message: Any) -> Any:
    """A GPU whose configs end as their variants say."""
    match message:
        case Describe():
            return TARGET, 1.0
        case Start():
            time.sleep(STARTING_S)
            return None
        case Search(job):
            return _outcome(job)
        case Final(jobs, _):
            return [_outcome(job) for job in jobs]


def no_gpu(message: Any) -> Any:
    raise MegatuneError("no GPU here")


def _outcome(job: Job) -> Outcome:
    match job.config.variant:
        case "crash":
            os.abort()
        case "hang":
            time.sleep(600)
        case "poison":
            return Outcome(Status.CRASH, "illegal address", poisoned=True)
        case "wrong":
            return Outcome(Status.WRONG_RESULT, "it is wrong")
    return Outcome(Status.OK, samples_us=(5.0, 6.0, 7.0), launches=1)


if __name__ == "__main__":
    serve({"plain": plain, "gpu": gpu, "no_gpu": no_gpu}[sys.argv[3]])
