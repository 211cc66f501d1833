"""Where artifacts are kept: in a folder, or at a URL that several machines share, with a folder in front of it.

At a URL every artifact is one object that is written once: where two machines compile the same key, the first one's
stays and both measure it. An object that is read is compared with the digest inside; a damaged one is built again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.parse import urlsplit

from megatune_kernels.artifact import ArtifactStore
from megatune_kernels.artifact import decode
from megatune_kernels.artifact import encode
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact

VARIABLE = "MEGATUNE_ARTIFACTS"
"""Environment variable that names the store."""
SUFFIX = ".artifact"


class StoreError(MegatuneError):
    """Artifacts cannot be kept or fetched, which is no fault of what is compiled."""


def store_location() -> str:
    """The store that ``MEGATUNE_ARTIFACTS`` names, a folder or a URL; else a folder in the user's cache."""
    return os.environ.get(VARIABLE) or str(user_store())


def user_store() -> Path:
    """The folder in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "megatune" / "artifacts"


def open_store(location: str | Path, cache: Path | None = None) -> ArtifactStore:
    """The store at a folder or at a URL.

    :param cache: the folder in front of a URL; by default the one in the user's cache.
    :raises MegatuneError: when there can be no such folder, or nothing here opens such a URL.
    """
    text = str(location)
    if "://" not in text:
        return ArtifactStore(Path(text))
    if text.startswith("file://"):
        return ArtifactStore(Path(unquote(urlsplit(text).path)))
    return SharedStore(text, cache or user_store())


class SharedStore(ArtifactStore):
    """Artifacts at a URL that fsspec opens, e.g. ``s3://bucket/artifacts``; ``root`` is the folder in front."""

    def __init__(self, url: str, cache: Path) -> None:
        """:raises MegatuneError: when the folder cannot be made, or nothing here opens such a URL."""
        super().__init__(cache)
        self.url, self._url = shown(url), url
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MegatuneError(f"artifacts at {self.url} need fsspec: pip install 'megatune[shared]'") from error
        self._files: Any
        try:
            self._files, base = url_to_fs(url)
        except Exception as error:  # each kind of storage raises its own
            raise MegatuneError(f"{VARIABLE}: nothing here opens {self.url}: {_first_line(error, url)}") from error
        self._base = base.rstrip("/")

    def get(self, key: str) -> Artifact | None:
        """The artifact of that key, or None when it was never built or is damaged.

        :raises StoreError: when the storage does not answer.
        """
        found = super().get(key)
        if found is None:
            found = self._fetch(key)
            if found is not None:
                super().put(found)
        return found

    def put(self, artifact: Artifact) -> Artifact:
        """Keep the artifact unless one of its key is there already, and return what is kept.

        :raises StoreError: when the storage does not take it.
        """
        place, content = self._place(artifact.key), encode(artifact)
        with self._answering():
            self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
            try:
                self._files.pipe_file(place, content, mode="create")
            except FileExistsError:
                first = self._fetch(artifact.key)
                if first is not None:
                    return super().put(first)
                self._files.pipe_file(place, content)
        return super().put(artifact)

    def _fetch(self, key: str) -> Artifact | None:
        with self._answering():
            try:
                return decode(self._files.cat_file(self._place(key)), key)
            except FileNotFoundError:
                return None

    def _place(self, key: str) -> str:
        return f"{self._base}/{key[:2]}/{key}{SUFFIX}"

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except MegatuneError:
            raise
        except Exception as error:  # each kind of storage raises its own
            raise StoreError(f"cannot use the artifacts at {self.url}: {_first_line(error, self._url)}") from error


def shown(url: str) -> str:
    """A URL without who signs in to it, and with which password or option."""
    scheme, _, rest = url.partition("://")
    # A password may hold a slash.
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def _first_line(error: Exception, url: str) -> str:
    """What storage says, without what it may repeat of the URL."""
    secrets = {url, url.partition("://")[2].rpartition("@")[0], url.partition("?")[2]} - {""}
    text = str(error)
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    return (text.strip().splitlines() or [type(error).__name__])[0]
