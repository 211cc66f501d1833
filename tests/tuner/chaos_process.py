"""The command ``megatune`` for processes that are killed: the replay takes its time, and keeps a log of its work.

It is run as a script, with the log's path in ``CHAOS_LOG`` and seconds a measurement in ``CHAOS_SLOW_S``; or forked off
a process that has imported all of it, because hundreds of them are started.
"""

from __future__ import annotations

import os
import random
import sys
import time

import megatune_tuner.execution
import megatune_tuner.serving  # noqa: F401 - imported before the fork
from megatune_db.records import Measurement
from megatune_tuner.commands import app
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.replay import ReplayRunner

_measure = ReplayRunner.measure


def measure(self: ReplayRunner, request: Request) -> Measurement:
    """Replay, slowly."""
    line = f"{request.workload.digest} {request.config.digest}\n".encode()
    descriptor = os.open(os.environ["CHAOS_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)
    time.sleep(float(os.environ["CHAOS_SLOW_S"]) * random.uniform(0.2, 1.8))
    return _measure(self, request)


def main(command: list[str], environment: dict[str, str], log: str, folder: str) -> None:
    """Run the command in a forked process, with this environment and what it says in a file."""
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = [path for path in environment["PYTHONPATH"].split(os.pathsep) if path]
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    ReplayRunner.measure = measure  # type: ignore[method-assign]
    app(command)


if __name__ == "__main__":
    ReplayRunner.measure = measure  # type: ignore[method-assign]
    app()
