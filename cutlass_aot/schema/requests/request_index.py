"""The index of a program's requests that the kernels of a group answer.

The file is sealed msgpack: ``requests``, one row a kernel, in the order of the group's index. A request is
found by its digest, without decoding any.
"""

from collections.abc import Sequence
from typing import Any

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.bundles.catalog import MAX_INDEX_BYTES, SCHEMA, GroupEntry
from cutlass_aot.schema.bundles.rows import BinaryDigest, Rows
from cutlass_aot.schema.codec import codec_of, from_plain
from cutlass_aot.schema.encoding import MALFORMED, seal, unseal
from cutlass_aot.schema.requests.request import MAX_REQUEST_BYTES, CallByName, CompiledRequest, Request

REQUESTS_KIND = "cutlass-aot requests"


_Row = tuple[BinaryDigest, bytes, CallByName | None]
"""Digest of the request, the encoded request, and how its function takes arguments by name."""


class RequestIndex(Rows[_Row, CompiledRequest]):
    """The requests of a group by position, each decoded when it is first needed.

    The number of rows has to be ``count``, that of the group's kernels, and no request occurs twice. A
    malformed request is a CorruptFile when it is needed.
    """

    def __init__(self, body: Any, count: int, what: str) -> None:
        try:
            rows = body["requests"]
        except MALFORMED as error:
            raise CorruptFile(f"{what} is malformed: {error!r}") from None
        super().__init__(rows, _Row, what)
        if not all(isinstance(row[1], bytes) and len(row[1]) <= MAX_REQUEST_BYTES for row in self._rows):
            raise CorruptFile(f"{what} is malformed: a request of impossible length")
        if len(self) != count:
            raise CorruptFile(
                f"{what} has {len(self)} requests, the group {count} kernels: build the bundle again"
            )
        if len({row[0] for row in self._rows}) != count:
            raise CorruptFile(f"{what} has a request twice: build the bundle again")

    def call(self, position: int) -> CallByName | None:
        """How a request's function takes arguments by name, without decoding the request."""
        record = self._rows[position][2]
        what = f"{self._what}: how a compiled function is called"
        return None if record is None else from_plain(CallByName, record, what)

    def _record(self, position: int, row: _Row) -> CompiledRequest:
        digest, data, call = row
        request = Request.from_bytes(data, f"{self._what}: request {position}")
        if request.digest != digest:
            raise CorruptFile(
                f"{self._what}: request {position} has digest {request.digest}, expected "
                f"{digest}: build the bundle again"
            )
        return CompiledRequest(request, call)


def requests_to_bytes(requests: Sequence[CompiledRequest]) -> bytes:
    """The file of a group's requests, which are given in the order of the group's index.

    Values without an encoding raise as in :meth:`.Request.encoded`.
    """
    rows = [(request.digest, request.encoded(), call) for request, call in requests]
    return seal(REQUESTS_KIND, SCHEMA, {"requests": codec_of(tuple[_Row, ...]).to_plain(rows)})


def requests_from_bytes(data: bytes, group: GroupEntry, what: str) -> RequestIndex:
    """Read what :func:`requests_to_bytes` gave."""
    if len(data) > MAX_INDEX_BYTES:
        raise CorruptFile(f"{what} has {len(data)} bytes, an index has at most {MAX_INDEX_BYTES}")
    return RequestIndex(unseal(data, REQUESTS_KIND, SCHEMA, what), group.count, what)
