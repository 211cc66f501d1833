"""One way to write a value down, so that equal values have equal digests everywhere."""

from __future__ import annotations

import hashlib
import json
from typing import Any

DIGEST_LENGTH = 16
"""Hex digits kept of a SHA-256: 64 bits, ample for the millions of rows of one database."""


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no white space and no NaN; raises ``TypeError`` or ``ValueError`` for anything else."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def digest(value: Any) -> str:
    """The first ``DIGEST_LENGTH`` hex digits of the SHA-256 of the value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:DIGEST_LENGTH]
