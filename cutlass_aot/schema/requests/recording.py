"""A recording: the requests of one run of a program, and their file, which also has the compiled objects.

The file is sealed msgpack (:mod:`~cutlass_aot.schema.encoding`)::

    requests    one row a request, sorted by digest: the request, how its function is called, the object as
                one zstd frame
    refusals    why other requests have no key
"""

from collections.abc import Mapping

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.compression import compress, decompressed
from cutlass_aot.schema.encoding import MALFORMED, digest, encode, seal, unseal
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.requests.request import CompiledRequest

RECORDING_KIND = "cutlass-aot recording"
SCHEMA = 1
MAX_RECORDING_BYTES = 1 << 30
"""Bytes of a file, and of all its unpacked objects together."""

MAX_OBJECT_BYTES = 1 << 28
"""Bytes of one unpacked object."""

_LEVEL = 9


class Recording(NamedTuple):
    """The requests of one run that compiled, sorted by digest.

    ``refusals`` are the reasons why other requests have no key, each once, sorted.
    """

    requests: tuple[CompiledRequest, ...]
    refusals: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in a store, a digest."""
        return digest(encode(to_plain(self)))


def recording_to_bytes(recording: Recording, objects: Mapping[str, bytes]) -> bytes:
    """The file of a recording and its compiled ``objects``, by the digests of their requests.

    Equal recordings give equal bytes.
    """
    rows = [[*to_plain(item), compress(objects[item.request.digest], _LEVEL)] for item in recording.requests]
    body = {"requests": rows, "refusals": list(recording.refusals)}
    return seal(RECORDING_KIND, SCHEMA, body)


def recording_from_bytes(data: bytes, what: str) -> tuple[Recording, dict[str, bytes]]:
    """The recording and the objects that :func:`recording_to_bytes` gave as bytes."""
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
