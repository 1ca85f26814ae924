"""The file of a recording: round trips, damage, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_aot.errors import CorruptFile, CutlassAotError, SchemaTooNew
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import decode, encode, seal
from cutlass_aot.schema.requests import recording as recordings
from cutlass_aot.schema.requests.recording import Recording, recording_from_bytes, recording_to_bytes
from cutlass_aot.schema.requests.request import CallByName, CompiledRequest
from tests.support.requests import request

REQUESTS = tuple(sorted((request(configuration=n) for n in range(3)), key=lambda item: item.digest))
CALLS = (None, CallByName(("x", "n"), (None,)), CallByName(("x",), ({"tuple": [None, 1]},)))
RECORDING = Recording(
    tuple(CompiledRequest(item, call) for item, call in zip(REQUESTS, CALLS, strict=True)), ("a raw address",)
)
OBJECTS = {item.digest: bytes([index]) * 1000 for index, item in enumerate(REQUESTS)}
FILE = recording_to_bytes(RECORDING, OBJECTS)


def test_a_file_reads_as_it_was_written():
    assert recording_from_bytes(FILE, "it") == (RECORDING, OBJECTS)
    assert recording_to_bytes(*recording_from_bytes(FILE, "it")) == FILE
    assert from_plain(Recording, decode(encode(to_plain(RECORDING)), "it"), "a recording") == RECORDING


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
def test_a_damaged_file_is_refused(place, change):
    damaged = bytearray(FILE)
    damaged[place] ^= change
    with pytest.raises(CutlassAotError):
        recording_from_bytes(bytes(damaged), "it")


@pytest.mark.parametrize("length", [0, 1, 100, len(FILE) - 1])
def test_a_truncated_file_is_refused(length):
    with pytest.raises(CorruptFile):
        recording_from_bytes(FILE[:length], "it")


def test_a_newer_file_is_refused_with_its_version():
    with pytest.raises(SchemaTooNew, match="schema version 2"):
        recording_from_bytes(seal(recordings.RECORDING_KIND, 2, {}), "it")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"requests": 3, "refusals": []},
        {"requests": [[1, 2, 3]], "refusals": []},
        {"requests": [[to_plain(REQUESTS[0]), None, b"no frame"]], "refusals": []},
        {"requests": [], "refusals": 3},
    ],
)
def test_a_malformed_file_is_refused(body):
    with pytest.raises(CorruptFile):
        recording_from_bytes(seal(recordings.RECORDING_KIND, recordings.SCHEMA, body), "it")


def test_a_request_twice_is_refused():
    twice = Recording((RECORDING.requests[0],) * 2)
    with pytest.raises(CorruptFile, match="twice"):
        recording_from_bytes(recording_to_bytes(twice, OBJECTS), "it")


def test_objects_are_bounded_together(monkeypatch):
    monkeypatch.setattr(recordings, "MAX_RECORDING_BYTES", 2500)
    with pytest.raises(CorruptFile):
        recording_from_bytes(FILE, "it")
