from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.hazmat.primitives.serialization import NoEncryption
from cryptography.hazmat.primitives.serialization import PrivateFormat
from cryptography.hazmat.primitives.serialization import PublicFormat
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_planner import reader as reader_module
from megatune_planner.plan import Plan
from megatune_planner.reader import PlanError
from megatune_planner.reader import load
from megatune_planner.reader import public_key
from megatune_planner.reader import verify_ed25519
from megatune_planner.signing import read_key
from megatune_planner.signing import sign
from megatune_planner.signing import verify

# RFC 8032, section 7.1: public key, message and signature of TEST 1, 2, 3 and SHA(abc).
VECTORS = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe2465"
        "5141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb0"
        "0d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc0"
        "27beceea1ec40a",
    ),
    (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a"
        "9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9"
        "bef1177331a704",
    ),
]
ORDER = reader_module._ORDER


def pem_of(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.fixture(scope="module")
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.mark.parametrize(("public", "message", "signature"), VECTORS)
def test_the_vectors_of_the_standard(public: str, message: str, signature: str) -> None:
    key, text, value = bytes.fromhex(public), bytes.fromhex(message), bytes.fromhex(signature)
    assert verify_ed25519(key, value, text)
    assert not verify_ed25519(key, value, text + b"\0")
    assert not verify_ed25519(bytes.fromhex(VECTORS[1][0]) if public != VECTORS[1][0] else key[::-1], value, text)
    for bit in range(0, 512, 37):
        changed = bytearray(value)
        changed[bit // 8] ^= 1 << bit % 8
        assert not verify_ed25519(key, bytes(changed), text), bit


def test_constants_are_those_of_the_standard() -> None:
    """RFC 8032, section 5.1: the curve -x² + y² = 1 + d x² y², a base point with y = 4/5, of prime order."""
    prime, base = reader_module._PRIME, reader_module._BASE
    x, y = base[:2]
    assert (y * y - x * x - 1 - reader_module._D * x * x * y * y) % prime == 0
    assert 5 * y % prime == 4
    assert x % 2 == 0
    assert reader_module._compressed(reader_module._times(ORDER, base)) == b"\1" + bytes(31)
    assert pow(2, prime - 1, prime) == pow(2, ORDER - 1, ORDER) == 1


@settings(deadline=None, max_examples=60)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200), st.data())
def test_it_says_what_the_library_says(seed: bytes, message: bytes, data: st.DataObject) -> None:
    private = Ed25519PrivateKey.from_private_bytes(seed)
    public = private.public_key().public_bytes_raw()
    value = bytearray(private.sign(message))
    assert verify_ed25519(public, bytes(value), message)
    value[data.draw(st.integers(0, 63))] = data.draw(st.integers(0, 255))
    assert verify_ed25519(public, bytes(value), message) is _library(public, bytes(value), message)


def _library(public: bytes, value: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(value, message)
    except InvalidSignature:
        return False
    return True


def test_a_signature_has_one_spelling(key: Ed25519PrivateKey) -> None:
    """The same scalar plus the order is another number that would satisfy the equation."""
    public, message = key.public_key().public_bytes_raw(), b"plan"
    value = key.sign(message)
    scalar = int.from_bytes(value[32:], "little") + ORDER
    assert not verify_ed25519(public, value[:32] + scalar.to_bytes(32, "little"), message)
    for short in (b"", value[:63], value + b"\0"):
        assert not verify_ed25519(public, short, message)
    assert not verify_ed25519((2**255 - 19).to_bytes(32, "little"), value, message)  # y = 0, spelled as the prime


def test_a_signed_plan_is_read_with_its_key_in_any_form(plan: Plan, key: Ed25519PrivateKey, tmp_path: Path) -> None:
    signed = sign(plan, pem_of(key))
    public = key.public_key()
    path = tmp_path / "plan.json"
    path.write_text(signed.to_json(), encoding="utf-8")
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for form in (public.public_bytes_raw(), public.public_bytes_raw().hex(), pem):
        assert public_key(form) == public.public_bytes_raw()
        assert load(path, target=None, key=form).digest == plan.digest
    assert load(path, target=None).digest == plan.digest
    assert Plan.load(path) == signed
    assert signed.digest == plan.digest
    assert signed.signature is not None
    assert signed.signature.key == public.public_bytes_raw().hex()


def test_another_key_no_signature_or_other_content_is_refused(plan: Plan, key: Ed25519PrivateKey) -> None:
    signed = sign(plan, pem_of(key))
    public = key.public_key().public_bytes_raw().hex()
    with pytest.raises(PlanError, match="not signed, and a key is given: sign it with megatune sign"):
        load(plan.to_json(), target=None, key=public)
    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    with pytest.raises(PlanError, match="not signed with the key that is given"):
        load(signed.to_json(), target=None, key=other.public_key().public_bytes_raw())
    # The key that a plan itself names proves nothing, and a new digest does not help.
    value = json.loads(signed.to_json())
    value["content"]["name"] = "another"
    value["digest"] = digest(value["content"])
    load(json.dumps(value), target=None)
    with pytest.raises(PlanError, match="not signed with the key"):
        load(json.dumps(value), target=None, key=public)
    for bad in ({}, {"value": None}, {"value": "zz"}, {"value": "00"}, [], "x", {"value": 7}):
        value = json.loads(signed.to_json()) | {"signature": bad}
        with pytest.raises(PlanError, match="not signed with the key"):
            load(json.dumps(value), target=None, key=public)
    with pytest.raises(MegatuneError, match="not signed with the key"):
        verify(signed, other.public_key().public_bytes_raw().hex())


@pytest.mark.parametrize("bad", ["", "xyz", "00" * 31, b"short", "ff" * 32, "-----BEGIN PUBLIC KEY-----\n!\n-----END"])
def test_what_is_no_key_is_one_line(plan: Plan, bad: str | bytes) -> None:
    with pytest.raises(PlanError, match="not an Ed25519 public key: give its 64 hexadecimal digits, or its PEM"):
        load(plan.to_json(), target=None, key=bad)


def test_another_private_key_is_one_line(plan: Plan, key: Ed25519PrivateKey) -> None:
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
    rsa = generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for bad in (b"", b"no key", locked, rsa):
        with pytest.raises(MegatuneError, match="not an Ed25519 private key without a password: make one with openssl"):
            sign(plan, bad)


def test_a_key_is_given_as_digits_or_as_a_file(tmp_path: Path) -> None:
    digits = "ab" * 32
    assert read_key(digits) == digits
    (tmp_path / "key.pub").write_text(digits + "\n", encoding="ascii")
    assert read_key(str(tmp_path / "key.pub")).strip() == digits
    with pytest.raises(MegatuneError, match="cannot read the public key nowhere"):
        read_key("nowhere")
    (tmp_path / "key.bin").write_bytes(b"\xff")
    with pytest.raises(MegatuneError, match="it is not text"):
        read_key(str(tmp_path / "key.bin"))
