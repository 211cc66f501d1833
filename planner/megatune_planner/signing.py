"""Signatures of plans: who holds the private key vouches for the content. The reader verifies, and needs no library.

A key is made by any tool, e.g. ``openssl genpkey -algorithm ed25519 -out key.pem``. Its public half, in hexadecimal or
as PEM, goes to where the plan is served.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from megatune_kernels.errors import MegatuneError
from megatune_planner.plan import Plan
from megatune_planner.plan import Signature
from megatune_planner.reader import PlanError
from megatune_planner.reader import load
from megatune_planner.reader import signed_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def sign(plan: Plan, private_key: bytes) -> Plan:
    """The same plan with a signature in place of any that it had.

    :param private_key: an Ed25519 key as PEM, without a password.
    :raises MegatuneError: when it is none, or the library is missing.
    """
    key = _private_key(private_key)
    value = key.sign(signed_bytes(plan.content.model_dump(mode="json")))
    signature = Signature(key=key.public_key().public_bytes_raw().hex(), value=value.hex())
    signed = plan.model_copy(update={"signature": signature})
    verify(signed, signature.key)
    return signed


def verify(plan: Plan, key: str) -> None:
    """:raises MegatuneError: when the plan is not signed with this public key, or it is none."""
    try:
        load(plan.to_json(), target=None, key=key)
    except PlanError as error:
        raise MegatuneError(str(error)) from None


def read_key(text: str) -> str:
    """A public key as it was given: its 64 hexadecimal digits, or the path of a file that holds it.

    :raises MegatuneError: when there is no such file.
    """
    if len(text) == 64 and not Path(text).exists():
        return text
    try:
        return Path(text).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise MegatuneError(f"cannot read the public key {text}: {why}; give its 64 digits, or a PEM file") from None


def _private_key(data: bytes) -> Ed25519PrivateKey:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise MegatuneError("signing needs a library: pip install 'megatune[sign]'") from None
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise MegatuneError(
            "not an Ed25519 private key without a password: make one with "
            "openssl genpkey -algorithm ed25519 -out key.pem"
        )
    return key
