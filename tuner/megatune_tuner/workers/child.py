"""A killable child process that answers one message at a time."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.connection import Pipe
from typing import Any

from megatune_kernels.errors import MegatuneError

PR_SET_PDEATHSIG = 1
ENDING_S = 5.0
"""How long a process that closed its end, or was killed, may take to exit."""
MOST_WRITTEN_BYTES = 1 << 20
"""What a child wrote is dropped beyond this: the last lines are what tells how it ended."""
TAIL_BYTES = 1 << 14
LONGEST_LINE = 400
SWITCH_S = 0.0005
"""How long a thread may keep the interpreter from others, a tenth of Python's default: an answer waits that long each
time that the thread which waits for it needs the interpreter back, while another computes."""


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

    def __init__(
        self,
        module: str,
        *arguments: str,
        nice: int = 0,
        environment: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        """
        :param environment: variables that the process has beside those of this one.
        :param inherited: open files that the process has under the same numbers.
        """
        self._module = module
        self._arguments = arguments
        self._nice = nice
        self._environment = environment or {}
        self._inherited = tuple(inherited)
        self._ending_lock = threading.Lock()
        self._ended = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._errors: Any = None
        self.calls = 0
        """Calls answered since the process was started."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def is_alive(self) -> bool:
        """Whether there is a process, so that a call starts none."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_ended(self) -> bool:
        """Whether ``end`` was called."""
        return self._ended

    @property
    def connection(self) -> Connection | None:
        """What an answer arrives on, for waiting on several children at once."""
        return self._connection

    def call(self, message: Any, limit_s: float) -> Any:
        """Send a message and wait for the answer.

        :raises ChildLostError: when the child ends, or does not answer within ``limit_s`` seconds and is killed.
        :raises MegatuneError: when the child raised one, with its message.
        """
        self.ask(message, limit_s)
        return self.answer(limit_s)

    def ask(self, message: Any, limit_s: float) -> None:
        """Send a message; ``answer`` waits for what comes back.

        :raises ChildLostError: as ``call``.
        """
        connection = self._start()
        with self._watched(limit_s):
            _limit(connection, limit_s)
            self._drop_output()
            connection.send(message)

    def answer(self, limit_s: float) -> Any:
        """Wait for the answer to what was asked.

        :raises ChildLostError: as ``call``.
        :raises MegatuneError: as ``call``.
        """
        connection = self._connection
        if connection is None:
            raise ChildLostError("closed", hung=False)
        with self._watched(limit_s):
            if not connection.poll(limit_s):
                raise BlockingIOError
            answer = connection.recv()
        self.calls += 1
        if isinstance(answer, _Refused):
            raise MegatuneError(answer.message)
        return answer

    @contextmanager
    def _watched(self, limit_s: float) -> Iterator[None]:
        """What goes wrong with the process on the other end, as ``ChildLostError``."""
        try:
            yield
        except BlockingIOError:
            # The process takes no more of the message, does not answer, or stopped in the middle of its answer.
            reason = f"no answer within {limit_s:g} s{self._last_line()}"
            self.close()
            raise ChildLostError(reason, hung=True) from None
        except (EOFError, OSError) as error:
            raise ChildLostError(self._ending(), hung=False) from error
        except BaseException:
            # Interrupted: the answer that comes later must not be taken for that of the next message.
            self.close()
            raise

    def end(self) -> None:
        """Kill the process for good, from any thread: a call that waits is lost, and so is every later one."""
        with self._ending_lock:
            self._ended = True
            self.kill()

    def kill(self) -> None:
        """Kill the process, if there is one, and wait for nothing; ``close`` has to follow."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self, wait_s: float = ENDING_S) -> None:
        """Kill the process, if there is one; the next call starts another.

        :param wait_s: how long to wait for its end, in seconds.
        """
        self.kill()
        if self._process is not None:
            # A driver that hangs can keep a process beyond its death: it is left to that, not waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
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
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        with self._ending_lock:
            if self._ended:
                raise ChildLostError("closed", hung=False)
            ours, theirs = Pipe()
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            # Appending, so that what was dropped leaves no hole.
            fcntl.fcntl(self._errors, fcntl.F_SETFL, fcntl.fcntl(self._errors, fcntl.F_GETFL) | os.O_APPEND)
            command = [sys.executable, "-m", self._module, str(theirs.fileno()), str(self._nice), *self._arguments]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno(), *self._inherited],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )
            theirs.close()
            self._connection = ours
            return ours

    def _drop_output(self) -> None:
        if os.fstat(self._errors.fileno()).st_size >= MOST_WRITTEN_BYTES:
            os.ftruncate(self._errors.fileno(), 0)

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
        size = os.fstat(self._errors.fileno()).st_size
        tail = os.pread(self._errors.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        lines = tail.decode(errors="replace").strip().splitlines()
        return f": {lines[-1][:LONGEST_LINE]}" if lines else ""


def _limit(connection: Connection, limit_s: float) -> None:
    """Let no single read or write of the connection wait longer than that: both raise ``BlockingIOError`` then."""
    seconds, part = divmod(max(limit_s, 1e-3), 1)
    interval = struct.pack("@ll", int(seconds), int(part * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)


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
