"""Files in a private folder in which the processes of a program leave their results."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.encoding import MALFORMED, decode, digest, encode
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.requests.request import CallByName

_MAX_REFUSAL_BYTES = 1 << 20


class RequestResult(NamedTuple):
    """A ``.result`` file; ``call`` is None if the function takes no arguments by name."""

    artifact: Artifact
    call: CallByName | None


def read_whole(path: Path, limit: int) -> bytes:
    """Read a file of at most ``limit`` bytes that a process of a program wrote."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise CorruptFile(f"{path.name} has more than {limit} bytes")
    return data


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    new = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    new.write_bytes(data)
    new.replace(path)


def note_refusal(folder: Path, reason: str) -> None:
    """Note why a call of ``cute.compile`` makes no request; once for each reason."""
    data = encode({"reason": printable(reason)})
    write_whole(folder / f"{digest(data)[:32]}.refusal", data)


def refusals(folder: Path) -> list[str]:
    """The reasons that were noted, sorted."""
    data = (read_whole(path, _MAX_REFUSAL_BYTES) for path in sorted(folder.glob("*.refusal")))
    try:
        return sorted({str(decode(item, "a refusal")["reason"]) for item in data})
    except MALFORMED as error:
        raise CorruptFile(f"a refusal is malformed: {error!r}") from None


def printable(text: str) -> str:
    """Escape what UTF-8 cannot encode, such as undecodable parts of a file name."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
