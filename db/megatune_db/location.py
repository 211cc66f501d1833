"""Where a database is: a file of SQLite's, or a URL of PostgreSQL's; and file systems that SQLite cannot be trusted on.

Nothing heavy is imported here, so that commands can name databases before they need one.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from urllib.parse import parse_qsl
from urllib.parse import urlencode

from megatune_db.errors import DatabaseError
from megatune_db.errors import NetworkFileSystemError

ENVIRONMENT = "MEGATUNE_DB"
"""Environment variable with the path or URL of the database that commands use."""
FORMS = "use a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE"

_NETWORK_FILE_SYSTEMS = re.compile(
    r"9p|afs|beegfs|ceph|cifs|glusterfs|gpfs|lustre|ncpfs|nfs4?|orangefs|panfs|pvfs2|smb3|smbfs|wekafs"
    r"|fuse\.(ceph|ceph-fuse|glusterfs|s3fs|sshfs)"
)
_MOUNTS = Path("/proc/self/mounts")
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
_SQLITE = ("sqlite", "sqlite+pysqlite")
_MISTYPED = re.compile(r"\s*postgres(ql)?(\+\w+)?:|.*://|(.*\s)?password\s*=", re.IGNORECASE | re.DOTALL)
"""What was meant as a server and is no URL, e.g. ``postgresql:/…`` or ``host=… password=…``: it may hold a password."""
_TOLD = ("host", "port", "sslmode")
"""Options of a URL that messages repeat; others may hold secrets."""


@dataclass(frozen=True)
class Location:
    """A database by its path or URL. ``str`` and ``repr`` tell it without its password."""

    given: str = field(repr=False)
    """As the user wrote it, password and all: for connecting, and for nothing that is shown or kept."""

    @property
    def is_file(self) -> bool:
        """Whether it is SQLite's."""
        return not _SCHEME.match(self.given) or _scheme(self.given) in _SQLITE

    @property
    def path(self) -> Path:
        """The file, absolute and without links; for SQLite alone."""
        return sqlite_path(self.given)

    @property
    def folder(self) -> Path:
        """Where files that belong to it go unless the user says otherwise: beside the file, or here."""
        return self.path.parent if self.is_file else Path()

    @property
    def name(self) -> str:
        """The last part: the file's name, or the database's."""
        return self.path.name if self.is_file else _database(self.given)

    def exists(self) -> bool:
        """Whether there is something to open. A server is only known when it is asked, and is taken to be there."""
        return not self.is_file or self.path.exists()

    def environment(self) -> dict[str, str]:
        """What tells a process of one's own which database to use: its arguments would show the password to all."""
        return {ENVIRONMENT: str(self.path) if self.is_file else self.given}

    def __str__(self) -> str:
        return self.given if self.is_file else without_password(self.given)

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"


Where = str | os.PathLike[str] | Location
"""What ``locate`` and ``open_database`` take."""


def locate(given: Where) -> Location:
    """The database that a path, a ``sqlite:///…`` or a ``postgresql://…`` URL names.

    :raises DatabaseError: for another kind of URL, and for names that SQLite or SQLAlchemy would read as options.
    """
    if isinstance(given, Location):
        return given
    text = os.fspath(given)
    if _SCHEME.match(text.strip()):
        text = text.strip()
    found = Location(text)
    if found.is_file:
        if not _scheme(text) and _MISTYPED.match(text):
            raise DatabaseError(f"the database is neither named by a path nor by a URL: {FORMS}")
        sqlite_path(text)
        return found
    if _scheme(text) not in _POSTGRES:
        raise DatabaseError(f"{_scheme(text)} databases are not supported: {FORMS}")
    user = _parts(text)[0]
    if "@" in user or "/" in user.partition(":")[0]:
        raise DatabaseError(f"{found}: write an @ of the password or of an option as %40")
    if not _database(text):
        raise DatabaseError(f"{found} names no database: write postgresql://USER@HOST/DATABASE")
    return found


def without_password(url: str) -> str:
    """A URL of PostgreSQL as messages may show it: user, host and database, and no option that could be a secret."""
    user, at, place = _parts(url)
    place, _, query = place.partition("?")
    options = [(name, value) for name, value in parse_qsl(query) if name in _TOLD]
    shown = "?" + urlencode(options, safe="/,") if options else ""
    return f"postgresql://{user.partition(':')[0]}{at}{place}{shown}"


def sqlite_path(url_or_path: str | os.PathLike[str]) -> Path:
    """The absolute path, without links, of the SQLite file that a path or a ``sqlite:///…`` URL names.

    :raises DatabaseError: for another kind of URL, and for names that SQLite or SQLAlchemy would read as options.
    """
    text = os.fspath(url_or_path)
    if _SCHEME.match(text):
        if _scheme(text) not in _SQLITE:
            raise DatabaseError(f"{_scheme(text)} databases are not supported: {FORMS}")
        rest = text.partition("://")[2]
        host, _, path = rest.partition("/")
        if host or "?" in path:
            raise DatabaseError("write the URL as sqlite:///PATH, without a host and without options")
        text = path
    if text in ("", ":memory:") or text.startswith("file:"):
        raise DatabaseError("a database needs a file, because it outlives the process: use a path or sqlite:///PATH")
    if "?" in text:
        raise DatabaseError(f"{text}: a database's path cannot hold a question mark; use another path")
    # SQLite keeps its log, and we our lock, beside the file that links lead to.
    path_ = Path(text).expanduser().resolve()
    if path_.is_dir():
        raise DatabaseError(f"{path_} is a directory: name a file in it, e.g. {path_ / 'megatune.db'}")
    return path_


def _scheme(url: str) -> str:
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def _parts(url: str) -> tuple[str, str, str]:
    """User and password, an @ where there are any, and the rest. A password may hold whatever its owner typed."""
    rest = url.partition("://")[2]
    address, mark, query = rest.partition("?")
    if "@" in query:  # of an option, or of a password with a question mark: then nothing before it is told
        address, mark, query = rest, "", ""
    user, at, place = address.rpartition("@")
    return user, at, place + mark + query


def _database(url: str) -> str:
    return _parts(url)[2].partition("?")[0].partition("/")[2]


def refuse_network_file_system(path: Path) -> None:
    """Check that the file lies (or would lie) on a local file system.

    :raises NetworkFileSystemError: where locks and memory mapping are known not to work across hosts.
    """
    mount, kind = file_system(path)
    if _NETWORK_FILE_SYSTEMS.fullmatch(kind):
        raise NetworkFileSystemError(
            f"{path} lies on a network file system ({kind} at {mount}), where SQLite loses data: use a local disk"
        )


def file_system(path: Path) -> tuple[str, str]:
    """(mount point, type) of the file system that holds the path; empty where the system does not say."""
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # only Linux has it
        return "", ""
    resolved = path.resolve()
    best = ("", "")
    for line in mounts.splitlines():
        _, mount, kind, *_ = line.split(" ")
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount)
        # A later mount hides an earlier one at the same point, hence "not shorter" and not "longer".
        if resolved.is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best
