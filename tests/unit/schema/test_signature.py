"""The record of a signature: one form, bounded, and nothing but it is read."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_aot.errors import CorruptFile, SchemaTooNew
from cutlass_aot.schema.bundles.signature import (
    MAX_SIGNATURE_FILE,
    Signature,
    Terms,
    TrustPolicy,
    is_signature_path,
    key_id,
    signed_message,
)
from cutlass_aot.schema.encoding import digest

SIGNATURES = st.builds(Signature, st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64))
GOOD = Signature(bytes(range(32)), bytes(range(64)))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=130),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=4,
)


@given(signature=SIGNATURES)
def test_what_is_written_is_read_again(signature: Signature) -> None:
    data = signature.to_bytes()
    assert Signature.from_bytes(data, "x") == signature
    assert Signature.from_bytes(data, "x").to_bytes() == data
    assert is_signature_path(signature.path)
    assert signature.path == f"signatures/{digest(signature.public_key)[:16]}.json"


@given(one=SIGNATURES, other=SIGNATURES)
def test_other_signatures_have_other_bytes(one: Signature, other: Signature) -> None:
    assert (one == other) == (one.to_bytes() == other.to_bytes())


@given(signature=SIGNATURES, data=st.data())
def test_a_flipped_bit_gives_another_signature_or_an_error(signature: Signature, data: st.DataObject) -> None:
    bad = bytearray(signature.to_bytes())
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptFile, SchemaTooNew):
        assert Signature.from_bytes(bytes(bad), "x") != signature


@given(data=st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises((CorruptFile, SchemaTooNew)):
        Signature.from_bytes(data, "x")


@settings(max_examples=300)
@given(data=st.data())
def test_any_contents_are_read_or_refused(data: st.DataObject) -> None:
    body = json.loads(GOOD.to_bytes())
    name = data.draw(st.sampled_from([*body, "more"]))
    body[name] = data.draw(VALUES)
    text = json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"
    try:
        assert Signature.from_bytes(text, "x").to_bytes() == text
    except (CorruptFile, SchemaTooNew):
        assert text != GOOD.to_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": "rsa"},
        {"kind": "cutlass-aot bundle"},
        {"schema": 0},
        {"schema": True},
        {"public_key": "00" * 31},
        {"public_key": "AB" * 32},
        {"public_key": "\u0660" * 64},
        {"signature": "00" * 65},
        {"signature": None},
        {"comment": "trust me"},
        {"sequence": -1},
        {"sequence": 1 << 53},
        {"sequence": "7"},
        {"sequence": True},
        {"expires": "tomorrow"},
        {"expires": "2027-13-01"},
        {"expires": "2027-06-30T00:00"},
        {"expires": "\u0662027-06-30"},
        {"expires": 20270630},
    ],
)
def test_what_is_no_signature_is_refused(change: dict[str, object]) -> None:
    body = {**json.loads(GOOD.to_bytes()), **change}
    with pytest.raises(CorruptFile, match=r"^x"):
        Signature.from_bytes(json.dumps(body, indent=1, sort_keys=True).encode() + b"\n", "x")


def test_a_newer_one_says_so() -> None:
    body = {**json.loads(GOOD.to_bytes()), "schema": 3}
    with pytest.raises(SchemaTooNew, match="x has schema version 3, this cutlass-aot reads up to 2"):
        Signature.from_bytes(json.dumps(body).encode(), "x")


@pytest.mark.parametrize(
    "data",
    [
        GOOD.to_bytes().strip(),
        GOOD.to_bytes() + b"\n",
        GOOD.to_bytes().replace(b'{\n "algorithm"', b'{\n "kind": "x",\n "algorithm"'),
        b"[" * 50_000,
        b" " * MAX_SIGNATURE_FILE + GOOD.to_bytes(),
    ],
)
def test_other_forms_of_the_same_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptFile):
        Signature.from_bytes(data, "x")


def test_the_message_says_what_it_is_for_and_differs_for_other_bytes() -> None:
    assert signed_message(b"{}") == (
        b"cutlass-aot signature 2: MANIFEST.json sha256 "
        b"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a sequence 0 expires never\n"
    )
    assert signed_message(b"{}", Terms(7, "2027-06-30")).endswith(b" sequence 7 expires 2027-06-30\n")
    assert signed_message(b"{}") != signed_message(b"{}\n")
    # What keys of services are asked to sign may have 4096 bytes.
    assert len(signed_message(b"x" * 100_000)) < 200


def test_a_key_is_called_by_the_digest_of_its_bytes() -> None:
    assert key_id(bytes(32)) == digest(bytes(32))[:16]


@pytest.mark.parametrize(
    "path",
    ["signatures/x.json", "signatures/" + "0" * 16, "signatures/" + "0" * 16 + ".json\n",
     "signatures/a/" + "0" * 16 + ".json", "0" * 16 + ".json", "signatures/" + "A" * 16 + ".json"],
)  # fmt: skip
def test_other_names_are_no_signatures(path: str) -> None:
    assert not is_signature_path(path)


@pytest.mark.parametrize(
    "change",
    [
        {"minimum_sequence": -1},
        {"minimum_sequence": "7"},
        {"require_expiry": 1},
        {"minimum_seqence": 7},
        {"kind": "cutlass-aot signature"},
        {"schema": 0},
    ],
)
def test_a_policy_with_anything_else_is_refused(change: dict[str, object]) -> None:
    """A demand that is misspelt must not be none."""
    body = {"schema": 1, "kind": "cutlass-aot trust policy", "minimum_sequence": 7, "require_expiry": True}
    assert TrustPolicy.from_bytes(json.dumps(body).encode(), "x") == TrustPolicy(7, True)
    with pytest.raises(CorruptFile, match=r"^x"):
        TrustPolicy.from_bytes(json.dumps({**body, **change}).encode(), "x")
