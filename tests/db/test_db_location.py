from __future__ import annotations

from pathlib import Path

import pytest

from megatune_db import location
from megatune_db.errors import DatabaseError
from megatune_db.errors import NetworkFileSystemError
from megatune_db.location import file_system
from megatune_db.location import locate
from megatune_db.location import refuse_network_file_system
from megatune_db.location import sqlite_path
from megatune_db.session import open_database


def test_a_path_and_its_url_name_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = tmp_path / "a.db"
    assert sqlite_path("a.db") == expected
    assert sqlite_path(Path("a.db")) == expected
    assert sqlite_path("sqlite:///a.db") == expected
    assert sqlite_path(f"sqlite:///{expected}") == expected
    assert sqlite_path(f"sqlite+pysqlite:///{expected}") == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("mysql://me:secret@host/megatune", "mysql databases are not supported: use a path, sqlite:///PATH or"),
        ("nonsense+driver://host:port/x", "nonsense+driver databases are not supported"),
        ("postgresql://me:secret@host", "postgresql://me@host names no database"),
        ("postgresql://me:se@cret@host/megatune", "write an @ of the password"),
        ("postgresql:/me:secret@host/megatune", "neither named by a path nor by a URL"),
        ("jdbc:postgresql://me:secret@host/megatune", "neither named by a path nor by a URL"),
        ("host=db user=me password=secret", "neither named by a path nor by a URL"),
        (" postgresql://me:secret@host", "postgresql://me@host names no database"),
        ("sqlite:///a.db?mode=ro", "without options"),
        ("sqlite://host/a.db", "without a host"),
        ("sqlite://", "needs a file"),
        (":memory:", "needs a file"),
        ("file:a.db", "needs a file"),
        ("", "needs a file"),
        ("what?.db", "question mark"),
    ],
)
def test_what_cannot_be_opened_is_said_in_one_line(given: str, message: str) -> None:
    with pytest.raises(DatabaseError) as raised:
        locate(given)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "cret" not in str(raised.value).replace("secret", "")


def test_a_directory_is_not_a_database(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=r"is a directory: name a file in it, e\.g\. .*megatune\.db"):
        open_database(tmp_path)


@pytest.mark.parametrize("name", ["a b.db", "100%.db", "{x}.db", "é#&.db", "%41.db"])
def test_odd_names_are_taken_literally(tmp_path: Path, name: str) -> None:
    with open_database(tmp_path / name) as opened:
        opened.optuna_storage().get_all_studies()
    with open_database(f"sqlite:///{tmp_path / name}", create=False, read_only=True) as again:
        assert again.location.path == tmp_path / name
    assert {found.name for found in tmp_path.iterdir()} >= {name}
    assert all(found.name.startswith(name) for found in tmp_path.iterdir())


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lines = [
        "overlay / overlay rw 0 0",
        f"server:/a {tmp_path}/shared\\040data nfs4 rw 0 0",
        f"tmpfs {tmp_path}/shared\\040data/local tmpfs rw 0 0",
        f"//server/b {tmp_path}/b cifs rw 0 0",
        f"ext4 {tmp_path}/b ext4 rw 0 0",
    ]
    table = tmp_path / "mounts"
    table.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(location, "_MOUNTS", table)
    return tmp_path


def test_network_file_systems_are_refused(mounts: Path) -> None:
    with pytest.raises(
        NetworkFileSystemError, match=r"network file system \(nfs4 at .*shared data\).*use a local disk"
    ):
        open_database(mounts / "shared data" / "a.db")
    assert not (mounts / "shared data").exists()


def test_the_innermost_and_latest_mount_counts(mounts: Path) -> None:
    assert file_system(mounts / "shared data" / "local" / "a.db")[1] == "tmpfs"
    assert file_system(mounts / "b" / "a.db") == (f"{mounts}/b", "ext4")
    assert file_system(mounts / "shared datum" / "a.db") == ("/", "overlay")
    refuse_network_file_system(mounts / "b" / "a.db")


def test_without_a_table_of_mounts_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(location, "_MOUNTS", tmp_path / "none")
    refuse_network_file_system(tmp_path / "a.db")


def test_a_link_counts_for_where_it_leads(mounts: Path) -> None:
    (mounts / "link").symlink_to(mounts / "shared data")
    with pytest.raises(NetworkFileSystemError):
        refuse_network_file_system(mounts / "link" / "a.db")
