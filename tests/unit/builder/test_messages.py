"""Messages between a builder and its workers: what is written is read, and nothing else is."""

from __future__ import annotations

import socket
import struct

import pytest

from cutlass_aot.builder.compile import messages
from cutlass_aot.builder.compile.messages import (
    Alternatives,
    Compile,
    CompiledRemotely,
    CompileRemotely,
    Enumerate,
    Enumerated,
    FindAlternatives,
    FindVersion,
    Fork,
    Forked,
    Imported,
    Rank,
    Reap,
    Reaped,
    Refused,
    Reply,
    Version,
    WorkerFailure,
    from_bytes,
    receive,
    send,
    to_bytes,
)
from cutlass_aot.errors import CorruptFile
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem, Ranked, ScaleRequest
from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.schema.encoding import encode
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.tuning.ranking import Extents
from tests.support.kernels import gemm
from tests.support.synthetic import FACTS

GENERATOR = GeneratorReference("g", "module:Class")
PROBLEM = Problem("gemm", ("f4e2m1", "f4e2m1", "f32"), "tnt", "f32", (ScaleRequest("f8e8m0", 32), None))
COMPILE = Compile(GENERATOR, gemm(), "x.o")
ARTIFACT = Artifact("0" * 64, 9, FACTS, 1.5)
FAILURE = WorkerFailure(raised=("ValueError", "Exception"), message="no such instruction")
MESSAGES = [
    Imported(None, "cutlass_aot/__init__.py", {"a": "b"}),
    Fork("worker.log"), Forked(7), Reap(7), Reaped(-9),
    Enumerate(GENERATOR, PROBLEM, "sm_90a", load_profile("h200")),
    FindAlternatives(GENERATOR, PROBLEM, "sm_90a", None),
    Rank(GENERATOR, PROBLEM, "sm_90a", (gemm(),), (Extents(1, 2, 3, 4),), "model", "H200"),
    COMPILE,
    FindVersion(GENERATOR, {"a.py": "b"}),
    Reply(Enumerated((gemm(),), ("family",)), 1),
    Reply(Alternatives("it has some with f32 as `out`"), 1),
    Reply(Ranked(frozenset({"b", "a"}), ((("a",), ("b",)), ()), "no answer"), 1),
    Reply(ARTIFACT, 1),
    Reply(Version("1"), 1),
    Reply(FAILURE, 1),
    FAILURE,
    CompileRemotely("k", "0" * 64, COMPILE, None, ("m",), 30.0, "t", "1"),
    CompiledRemotely(ARTIFACT, log="words", pushed=True),
    CompiledRemotely(None, "it failed", machine=True),
    Refused("another toolchain"),
]  # fmt: skip


@pytest.fixture
def channels():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_as_it_was_written(channels, message):
    send(channels[0], message)
    assert receive(channels[1], type(message)) == message


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (to_bytes(Forked(7)), r"found a message Forked, expected Reap or Reaped: have the same cutlass-aot"),
        (encode({"Reap": {"pid": "x"}}), r"malformed: Reap\.pid: found 'x', expected a whole number"),
        (encode({"Reap": {}}), r"malformed: Reap\.pid: it is missing"),
        (encode({"Reap": {"pid": 1, "more": 2}}), r"malformed: Reap: unknown 'more'"),
        (encode({"Reap": {"pid": 1}, "Reaped": {"status": 1}}), r"found a dict, expected a map from one of"),
        (encode({"Other": {}}), r"found 'Other', expected one of Compile, "),
        (encode({}), r"found a dict, expected a map from one of Compile, "),
        (encode([1]), r"found a list, expected a map from one of Compile, "),
        (b"\xc1", r"a message where Reap or Reaped was expected is not readable msgpack"),
    ],
)
def test_what_is_another_message_is_refused(data, error):
    with pytest.raises(CorruptFile, match=error):
        from_bytes(data, Reap, Reaped)


def test_a_channel_that_ends_early_has_no_message(channels):
    channels[0].sendall(struct.pack("<I", 100) + b"half")
    channels[0].close()
    assert receive(channels[1], Reaped) is None


def test_a_message_is_bounded(channels, monkeypatch):
    monkeypatch.setattr(messages, "_MAX_BYTES", 10)
    send(channels[0], Reaped(1))
    assert receive(channels[1], Reaped) is None
