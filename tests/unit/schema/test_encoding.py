"""Canonical encoding and sealed envelopes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.errors import CorruptFile, SchemaTooNew
from cutlass_aot.schema.encoding import decode, encode, join_map, seal, unseal

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


@given(VALUES)
def test_decode_gives_back_what_was_encoded(value):
    assert decode(encode(value), "test") == value


@given(st.dictionaries(st.text(), st.integers(0, 9)))
def test_the_order_of_a_map_does_not_matter(value):
    assert encode(dict(reversed(list(value.items())))) == encode(value)


@pytest.mark.parametrize("value", [{1: 2}, {"a": {1, 2}}, object(), [print]])
def test_what_has_no_stable_encoding_is_refused(value):
    with pytest.raises(TypeError):
        encode(value)


def test_too_deep_is_refused():
    value: list[object] = []
    for _ in range(40):
        value = [value]
    with pytest.raises(TypeError, match="nested"):
        encode(value)


@given(st.binary(max_size=300))
def test_any_bytes_decode_or_are_corrupt(data):
    with contextlib.suppress(CorruptFile):
        decode(data, "test")


def test_a_length_field_cannot_claim_more_than_is_there():
    with pytest.raises(CorruptFile):
        decode(b"\xdd\xff\xff\xff\xff", "test")


@given(st.data())
def test_a_sealed_file_with_one_byte_changed_is_refused(data):
    sealed = seal("thing", 1, {"numbers": [1, 2, 3], "text": "abc"})
    position = data.draw(st.integers(0, len(sealed) - 1))
    flip = data.draw(st.integers(1, 255))
    changed = bytearray(sealed)
    changed[position] ^= flip
    with pytest.raises((CorruptFile, SchemaTooNew)):
        assert unseal(bytes(changed), "thing", 1, "test") == {"never": "equal"}


def test_the_digest_of_data_that_were_verified_is_not_computed_again():
    sealed = seal("thing", 1, [1, 2, 3])
    assert unseal(sealed, "thing", 1, "test", verified=True) == [1, 2, 3]
    changed = sealed.replace(b"\x93\x01\x02\x03", b"\x93\x01\x02\x04")
    with pytest.raises(CorruptFile, match="does not match its own digest"):
        unseal(changed, "thing", 1, "test")
    assert unseal(changed, "thing", 1, "test", verified=True) == [1, 2, 4]


@given(st.integers(0, 60))
def test_a_truncated_file_is_refused(cut):
    sealed = seal("thing", 1, [1, 2, 3])
    with pytest.raises(CorruptFile):
        unseal(sealed[: min(cut, len(sealed) - 1)], "thing", 1, "test")


def test_another_kind_is_refused():
    with pytest.raises(CorruptFile, match="'thing' file"):
        unseal(seal("other", 1, []), "thing", 1, "test")


def test_a_newer_schema_is_refused_with_the_version_needed():
    with pytest.raises(SchemaTooNew, match=r"schema version 7.*up to 1: upgrade"):
        unseal(seal("thing", 7, []), "thing", 1, "test")


@given(st.dictionaries(st.text(max_size=8), st.integers(0, 2**40) | st.text(max_size=20), max_size=15))
def test_a_map_joined_from_encodings_is_the_map_encoded(value):
    assert join_map({name: encode(item) for name, item in value.items()}) == encode(value)


def test_a_map_too_large_to_be_joined_is_refused():
    with pytest.raises(ValueError, match="more than 15"):
        join_map({str(number): encode(number) for number in range(16)})
