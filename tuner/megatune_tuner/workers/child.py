"""A killable child process that answers one message at a time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.connection import Pipe
from typing import Any

from megatune_kernels.errors import MegatuneError

PR_SET_PDEATHSIG = 1
ENDING_S = 5.0
"""How long a process that closed its end may take to exit."""


class ChildLostError(Exception):
    """The child ended or was ended before it answered. ``hung`` says which."""

    def __init__(self, reason: str, *, hung: bool) -> None:
        super().__init__(reason)
        self.hung = hung


@dataclass(frozen=True)
class _Refused:
    """An answer that stands for a ``MegatuneError`` in the child."""

    message: str


class Child:
    """One process that runs ``python -m MODULE``, started when first called and again after it was lost.

    The child has a session of its own, so a Ctrl-C at the terminal reaches the coordinator alone, and ends with its
    parent, however that ends.
    """

    def __init__(self, module: str, *arguments: str, nice: int = 0) -> None:
        self._module = module
        self._arguments = arguments
        self._nice = nice
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._errors: Any = None
        self.calls = 0
        """Calls answered since the process was started."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def call(self, message: Any, limit_s: float) -> Any:
        """Send a message and wait for the answer.

        :raises ChildLostError: when the child ends, or does not answer within ``limit_s`` seconds and is killed.
        :raises MegatuneError: when the child raised one, with its message.
        """
        connection = self._start()
        try:
            connection.send(message)
            answered = connection.poll(limit_s)
            answer = connection.recv() if answered else None
        except (EOFError, OSError) as error:
            raise ChildLostError(self._ending(), hung=False) from error
        if not answered:
            reason = f"no answer within {limit_s:g} s{self._last_line()}"
            self.close()
            raise ChildLostError(reason, hung=True)
        self.calls += 1
        if isinstance(answer, _Refused):
            raise MegatuneError(answer.message)
        return answer

    def close(self) -> None:
        """Kill the process, if there is one; the next call starts another."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        if self._errors is not None:
            self._errors.close()
        self._process = self._connection = self._errors = None
        self.calls = 0

    def _start(self) -> Connection:
        if self._connection is not None and self._process is not None and self._process.poll() is None:
            return self._connection
        self.close()
        ours, theirs = Pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        command = [sys.executable, "-m", self._module, str(theirs.fileno()), str(self._nice), *self._arguments]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            start_new_session=True,
        )
        theirs.close()
        self._connection = ours
        return ours

    def _ending(self) -> str:
        """How the process ended, and the last line that it wrote."""
        process = self._process
        if process is None:
            return "closed"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
        code = process.poll()
        ending = f"killed by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit {code}"
        ending += self._last_line()
        self.close()
        return ending

    def _last_line(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def serve(answer: Callable[[Any], Any]) -> None:
    """The child's side: answer messages until the parent closes its end.

    A ``MegatuneError`` is raised again in the parent. Anything else that an answer raises ends the process, with the
    exception as its last line: the parent records it.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(int(sys.argv[2]))
    with Connection(int(sys.argv[1])) as connection:
        while True:
            try:
                message = connection.recv()
            except EOFError:
                return
            try:
                reply = answer(message)
            except MegatuneError as error:
                reply = _Refused(str(error))
            connection.send(reply)
