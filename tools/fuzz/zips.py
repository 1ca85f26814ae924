"""Ways to have a zip file hold what its index does not list, or say of a file what the index does not say.

Installers that read a zip file from its front see something else in these than those that read its index.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping

EVIL = "evil.pth"
"""The file that is hidden: a line of code, which Python would run at its start."""
_LISTED, _END = b"PK\x01\x02", b"PK\x05\x06"


def hidden_entry() -> bytes:
    """A file with its header, as installers that read a zip file from its front see it."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(EVIL, "import os\n")
    data = archive.getvalue()
    return data[: data.index(_LISTED)]


def moved(data: bytes, at: int, more: bytes) -> bytes:
    """A zip file with more bytes at an offset, before a file's header or the index, which allows for them."""
    changed = bytearray(data)
    end = changed.rindex(_END)
    index = int.from_bytes(changed[end + 16 : end + 20], "little")
    place = index
    while place < end:
        offset = int.from_bytes(changed[place + 42 : place + 46], "little")
        if offset >= at:
            changed[place + 42 : place + 46] = (offset + len(more)).to_bytes(4, "little")
        lengths = (int.from_bytes(changed[place + x : place + x + 2], "little") for x in (28, 30, 32))
        place += 46 + sum(lengths)
    changed[end + 16 : end + 20] = (index + len(more)).to_bytes(4, "little")
    return bytes(changed[:at] + more + changed[at:])


def _second_offset(data: bytes) -> int:
    """Where the second file's header begins."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return sorted(info.header_offset for info in archive.infolist())[1]


def _index_offset(data: bytes) -> int:
    """Where the index begins."""
    end = data.rindex(_END)
    return int.from_bytes(data[end + 16 : end + 20], "little")


def _with_header(at: int, value: bytes) -> Callable[[bytes], bytes]:
    """The header of the first file with another number than the index has."""
    return lambda data: data[:at] + value + data[at + len(value) :]


HIDDEN: Mapping[str, Callable[[bytes], bytes]] = {
    "a hidden file first": lambda data: moved(data, 0, hidden_entry()),
    "a hidden file between others": lambda data: moved(data, _second_offset(data), hidden_entry()),
    "a hidden file last": lambda data: moved(data, _index_offset(data), hidden_entry()),
    "a script in front": lambda data: b"#!/bin/sh\n" + data,
    "a script that the index allows for": lambda data: moved(data, 0, b"#!/bin/sh\n"),
    "another zip file in front": lambda data: data + data,
    "bytes behind": lambda data: data + b"more",
    "a hidden file behind": lambda data: data + hidden_entry(),
    "a comment": lambda data: data[:-2] + len(b"comment").to_bytes(2, "little") + b"comment",
    "another CRC": _with_header(14, b"\x00\x00\x00\x01"),
    "another packed size": _with_header(18, b"\x01\x00\x00\x00"),
    "another unpacked size": _with_header(22, b"\x01\x00\x00\x00"),
    "another name": _with_header(30, b"X"),
    "a time of its own": _with_header(10, b"\x01"),
    "further fields": _with_header(28, b"\x01"),
}
"""What is wrong with it, to what makes a sound zip file so."""
