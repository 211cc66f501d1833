"""Where a database lies: paths, URLs, and file systems on which SQLite cannot be trusted."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from megatune_db.errors import DatabaseError
from megatune_db.errors import NetworkFileSystemError

_NETWORK_FILE_SYSTEMS = re.compile(
    r"9p|afs|beegfs|ceph|cifs|glusterfs|gpfs|lustre|ncpfs|nfs4?|orangefs|panfs|pvfs2|smb3|smbfs|wekafs"
    r"|fuse\.(ceph|ceph-fuse|glusterfs|s3fs|sshfs)"
)
_MOUNTS = Path("/proc/self/mounts")
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


def sqlite_path(url_or_path: str | os.PathLike[str]) -> Path:
    """The absolute path, without links, of the SQLite file that a path or a ``sqlite:///…`` URL names.

    :raises DatabaseError: for another kind of URL, and for names that SQLite or SQLAlchemy would read as options.
    """
    text = os.fspath(url_or_path)
    if _SCHEME.match(text):
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):
            raise DatabaseError(f"{text} is not a database URL: use a path or sqlite:///PATH") from None
        if url.get_backend_name() != "sqlite":
            raise DatabaseError(f"{url.get_backend_name()} databases are not supported: use a path or sqlite:///PATH")
        if url.query or url.host:
            raise DatabaseError(f"{text}: write the URL as sqlite:///PATH, without a host and without options")
        text = url.database or ""
    if text in ("", ":memory:") or text.startswith("file:"):
        raise DatabaseError("a database needs a file, because it outlives the process: use a path or sqlite:///PATH")
    if "?" in text:
        raise DatabaseError(f"{text}: a database's path cannot hold a question mark; use another path")
    # SQLite keeps its log, and we our lock, beside the file that links lead to.
    path = Path(text).expanduser().resolve()
    if path.is_dir():
        raise DatabaseError(f"{path} is a directory: name a file in it, e.g. {path / 'megatune.db'}")
    return path


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
