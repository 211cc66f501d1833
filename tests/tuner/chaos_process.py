"""The command ``megatune`` for processes that are killed: the replay takes its time, and keeps a log of its work.

It is run as a script, with the log's path in ``CHAOS_LOG`` and seconds a measurement in ``CHAOS_SLOW_S``.
"""

from __future__ import annotations

import os
import random
import time

from megatune_db.records import Measurement
from megatune_tuner.commands import app
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.replay import ReplayRunner

LOG = os.environ["CHAOS_LOG"]
SLOW_S = float(os.environ["CHAOS_SLOW_S"])

_measure = ReplayRunner.measure


def measure(self: ReplayRunner, request: Request) -> Measurement:
    """Replay, slowly."""
    line = f"{request.workload.digest} {request.config.digest}\n".encode()
    descriptor = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)
    time.sleep(SLOW_S * random.uniform(0.2, 1.8))
    return _measure(self, request)


if __name__ == "__main__":
    ReplayRunner.measure = measure  # type: ignore[method-assign]
    app()
