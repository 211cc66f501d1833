"""Artifacts at a URL: written once, verified when they are read, with a folder in front."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest

from megatune_kernels.artifact import ArtifactStore
from megatune_kernels.artifact import decode
from megatune_kernels.artifact import encode
from megatune_kernels.artifact_store import SharedStore
from megatune_kernels.artifact_store import StoreError
from megatune_kernels.artifact_store import open_store
from megatune_kernels.artifact_store import shown
from megatune_kernels.artifact_store import store_location
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact

KEY = "ab12"


def artifact(code: bytes = b"\x7fELF\n\0code", key: str = KEY) -> Artifact:
    return Artifact(key, "sm_90a", "entry", code, 40, 8)


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/artifacts"


def stored(url: str, key: str = KEY) -> str:
    return f"{url}/{key[:2]}/{key}.artifact"


def test_an_object_is_the_artifact_or_nothing() -> None:
    content = encode(artifact())
    assert decode(content, KEY) == artifact()
    assert decode(content, "ab13") is None
    for at in range(len(content)):
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        assert decode(changed, KEY) is None
    assert all(decode(content[:end], KEY) is None for end in range(len(content)))


def test_what_one_machine_keeps_another_finds(url: str, tmp_path: Path) -> None:
    compiles, measures = open_store(url, tmp_path / "a"), open_store(url, tmp_path / "b")
    assert measures.get(KEY) is None
    assert compiles.put(artifact()) == artifact()
    assert measures.get(KEY) == artifact()
    # From now on it is in the folder in front.
    fsspec.filesystem("memory").rm(stored(url))
    assert measures.get(KEY) == artifact()
    assert ArtifactStore(tmp_path / "b").get(KEY) == artifact()


def test_the_first_one_stays(url: str, tmp_path: Path) -> None:
    one, other = open_store(url, tmp_path / "a"), open_store(url, tmp_path / "b")
    one.put(artifact(b"first"))
    assert other.put(artifact(b"second")).cubin == b"first"
    assert other.get(KEY) == artifact(b"first")


def test_a_damaged_object_is_as_if_it_was_never_there(url: str, tmp_path: Path) -> None:
    one, other = open_store(url, tmp_path / "a"), open_store(url, tmp_path / "b")
    one.put(artifact())
    content = fsspec.filesystem("memory").cat_file(stored(url))
    fsspec.filesystem("memory").pipe_file(stored(url), content[:-1] + b"!")
    assert other.get(KEY) is None
    assert other.put(artifact(b"again")).cubin == b"again"
    assert open_store(url, tmp_path / "c").get(KEY) == artifact(b"again")


def test_many_machines_that_keep_one_key_keep_the_same_code(url: str, tmp_path: Path) -> None:
    kept: list[bytes] = []

    def keep(number: int) -> None:
        kept.append(open_store(url, tmp_path / str(number)).put(artifact(b"code %d" % number)).cubin)

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = open_store(url, tmp_path / "last").get(KEY)
    assert last is not None
    assert last.cubin in kept


def test_a_file_url_and_a_path_are_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "with a space"
    open_store(folder.as_uri()).put(artifact())
    assert open_store(folder).get(KEY) == artifact()
    assert type(open_store(folder.as_uri())) is ArtifactStore


def test_storage_that_does_not_answer_is_one_line(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(url, tmp_path)
    assert isinstance(store, SharedStore)

    def broken(*_: Any, **__: Any) -> bytes:
        raise ConnectionError("no route to host\nand more")

    for name in ("cat_file", "pipe_file"):
        monkeypatch.setattr(store, "_files", type("Broken", (), {name: broken, "makedirs": lambda *_, **__: None})())
        with pytest.raises(StoreError, match=r"^cannot use the artifacts at memory://.*: no route to host$"):
            store.get(KEY) if name == "cat_file" else store.put(artifact())


def test_a_url_that_nothing_opens_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match=r"^MEGATUNE_ARTIFACTS: nothing here opens nosuch://bucket/x: .*nosuch$"):
        open_store("nosuch://me:secret@bucket/x", tmp_path)


def test_no_password_is_shown() -> None:
    assert shown("s3://key:secret@bucket/a") == "s3://bucket/a"
    assert shown("s3://key:sec/ret@bucket/a?token=secret") == "s3://bucket/a"
    assert shown("memory://a/b") == "memory://a/b"


def test_storage_that_repeats_its_url_tells_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://key:sec/ret@bucket/a"
    store = open_store(url, tmp_path)

    def broken(*_: Any, **__: Any) -> bytes:
        raise ConnectionError(f"no answer of {url} for key:sec/ret")

    monkeypatch.setattr(store, "_files", type("Broken", (), {"cat_file": broken})())
    with pytest.raises(StoreError) as raised:
        store.get(KEY)
    assert str(raised.value) == "cannot use the artifacts at memory://bucket/a: no answer of … for …"


def test_the_environment_names_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATUNE_ARTIFACTS", "s3://bucket/a")
    assert store_location() == "s3://bucket/a"
    monkeypatch.delenv("MEGATUNE_ARTIFACTS")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert store_location() == "/cache/megatune/artifacts"
