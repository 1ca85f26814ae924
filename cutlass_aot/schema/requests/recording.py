"""A recording: the requests of one run of a program, and the file that carries them with what they compiled
to.

The file is sealed msgpack (:mod:`~cutlass_aot.schema.encoding`)::

    requests    one row a request, sorted by digest: the request, how its function is called, the object
    refusals    why other requests could not be keyed

A compiled object is one zstd frame.
"""

from collections.abc import Mapping
from typing import NamedTuple

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.compression import compress, decompressed
from cutlass_aot.schema.encoding import MALFORMED, digest, encode, seal, unseal
from cutlass_aot.schema.requests.request import CompiledRequest

RECORDING_KIND = "cutlass-aot recording"
SCHEMA = 1
MAX_RECORDING_BYTES = 1 << 30
"""Of a file, and of all objects in it together, unpacked."""

MAX_OBJECT_BYTES = 1 << 28
"""Of one object, unpacked."""

_LEVEL = 9


class Recording(NamedTuple):
    """The requests of one run.

    Attributes:
        requests: what compiled, sorted by digest.
        refusals: why others cannot be keyed, each once, sorted.
    """

    requests: tuple[CompiledRequest, ...]
    refusals: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is kept under in a store."""
        return digest(encode(to_plain(self)))


def recording_to_bytes(recording: Recording, objects: Mapping[str, bytes]) -> bytes:
    """The file of a recording. Equal recordings give equal bytes.

    Args:
        recording: its requests.
        objects: what each of them compiled to, by its digest.
    """
    rows = [[*to_plain(item), compress(objects[item.request.digest], _LEVEL)] for item in recording.requests]
    body = {"requests": rows, "refusals": list(recording.refusals)}
    return seal(RECORDING_KIND, SCHEMA, body)


def recording_from_bytes(data: bytes, what: str) -> tuple[Recording, dict[str, bytes]]:
    """Read what :func:`recording_to_bytes` gave: the recording, and the objects by the digests of their
    requests.

    Raises:
        CorruptFile: if it is truncated, altered, too large or malformed.
        SchemaTooNew: if a newer release wrote it.
    """
    body = unseal(data, RECORDING_KIND, SCHEMA, what)
    requests, objects, total = [], {}, 0
    try:
        for request, call, packed in body["requests"]:
            item = from_plain(CompiledRequest, [request, call], what)
            data = decompressed(packed, min(MAX_OBJECT_BYTES, MAX_RECORDING_BYTES - total))
            total += len(data)
            requests.append(item)
            objects[item.request.digest] = data
        if len(objects) != len(requests):
            raise ValueError("a request twice")
        refusals = tuple(map(str, body["refusals"]))
    except MALFORMED as error:
        raise CorruptFile(f"{what} is malformed: {error!r}") from None
    return Recording(tuple(requests), refusals), objects
