"""Messages between the builder, its fork server and its workers: length-prefixed msgpack, never pickle."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from cutlass_aot.generators.protocol import Problem, ScaleRequest
from cutlass_aot.schema.encoding import decode, encode
from cutlass_aot.schema.kernels.epilogue import Epilogue, EpilogueOperand

_HEADER = struct.Struct("<I")
_MAX_BYTES = 1 << 28


def pack(message: dict[str, Any]) -> bytes:
    """One message as bytes, ready to be sent.

    Raises:
        TypeError: if it holds something that has no encoding.
        OverflowError: if a number does not fit into 64 bits.
    """
    data = encode(message)
    return _HEADER.pack(len(data)) + data


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Send one message.

    Raises:
        OSError: if the other side is gone.
    """
    channel.sendall(pack(message))


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """Receive one message; None if the other side has closed the channel, also in the middle of one."""
    header = _exactly(channel, _HEADER.size)
    if header is None:
        return None
    (length,) = _HEADER.unpack(header)
    if length > _MAX_BYTES:
        return None
    data = _exactly(channel, length)
    if data is None:
        return None
    message: dict[str, Any] = decode(data, "a message of a worker")
    return message


def problem_record(problem: Problem) -> dict[str, Any]:
    """A problem as plain data."""
    record: dict[str, Any] = {
        "operation": problem.operation,
        "dtypes": problem.dtypes,
        "layouts": problem.layouts,
        "accumulator": problem.accumulator,
        "scales": [None if scale is None else list(scale) for scale in problem.scales],
        "epilogue": None,
    }
    if problem.epilogue is not None:
        record["epilogue"] = {
            "formula": problem.epilogue.formula,
            "operands": [list(astuple(operand)) for operand in problem.epilogue.operands],
        }
    return record


def problem_from_record(record: Mapping[str, Any]) -> Problem:
    """Read what :func:`problem_record` gave."""
    a_scale, b_scale = (None if scale is None else ScaleRequest(*scale) for scale in record["scales"])
    epilogue = record["epilogue"]
    return Problem(
        record["operation"],
        tuple(record["dtypes"]),
        record["layouts"],
        record["accumulator"],
        (a_scale, b_scale),
        None if epilogue is None else _epilogue_from_record(epilogue),
    )


def _epilogue_from_record(record: Mapping[str, Any]) -> Epilogue:
    operands = (
        EpilogueOperand(name, dtype, tuple(extents), *rest)
        for name, dtype, extents, *rest in record["operands"]
    )
    return Epilogue(record["formula"], tuple(operands))


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            chunk = channel.recv(min(count - len(data), 1 << 20))
        except (ConnectionResetError, BrokenPipeError):
            return None
        if not chunk:
            return None
        data += chunk
    return bytes(data)
