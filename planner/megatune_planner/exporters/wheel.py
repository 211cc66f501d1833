"""Writes a wheel of pure Python: the same files give the same bytes, on any machine and without a network."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Mapping

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can say."""

_MODE = 0o100644 << 16


def file_name(distribution: str, version: str) -> str:
    """As the format of binary distributions spells it, for any Python 3 and any machine."""
    return f"{distribution.replace('-', '_')}-{version}-py3-none-any.whl"


def version(runtime: str, plan: str, files: Mapping[str, str]) -> str:
    """Of a wheel that an exporter writes: another plan and another exporter have another one, or pip would keep what is
    installed.

    :param runtime: version that the wheel is for.
    :param plan: digest.
    :param files: as ``build`` takes them.
    """
    text = "".join(f"{path}\0{content}\0" for path, content in sorted(files.items()))
    # A letter comes first: pip reads a part of digits alone as a number.
    return f"{runtime}+{plan}.r{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def build(
    distribution: str,
    version: str,
    *,
    summary: str,
    requires_python: str,
    files: Mapping[str, str],
    entry_points: Mapping[str, Mapping[str, str]],
) -> bytes:
    """A wheel with these files.

    :param files: text by path from site-packages on.
    :param entry_points: by group, what each name stands for.
    """
    info = f"{distribution.replace('-', '_')}-{version}.dist-info"
    groups = "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in entry_points.items()
    )
    everything = {
        **files,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.4\nName: {distribution}\nVersion: {version}\nSummary: {summary}\n"
            f"License-Expression: Apache-2.0\nRequires-Python: {requires_python}\n"
        ),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: megatune\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": groups,
    }
    record = f"{info}/RECORD"
    # A name with a comma is quoted, or pip would leave the file behind.
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows(
        [*((path, _hash(text), len(text.encode())) for path, text in everything.items()), (record, "", "")]
    )
    everything[record] = lines.getvalue()
    buffer = io.BytesIO()
    # Stored, because what a compressor makes of the same text depends on its version.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, text in everything.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.create_system, entry.external_attr = 3, _MODE
            archive.writestr(entry, text.encode())
    return buffer.getvalue()


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
