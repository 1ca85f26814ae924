"""The index of a program's requests that the kernels of a group answer.

The file is sealed msgpack: ``digests`` of the requests and ``rows``, one a kernel, in the order of the
group's index. A request is found by its digest, without decoding any.
"""

from collections.abc import Sequence
from typing import Any

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.bundles.catalog import MAX_INDEX_BYTES, SCHEMA, GroupEntry
from cutlass_aot.schema.bundles.rows import Rows, rows_to_plain
from cutlass_aot.schema.encoding import seal, unseal
from cutlass_aot.schema.requests.request import CallByName, CompiledRequest, Request

REQUESTS_KIND = "cutlass-aot requests"


_Row = tuple[bytes, CallByName | None]
"""The encoded request, and how its function takes arguments by name."""


class RequestIndex(Rows[_Row, CompiledRequest]):
    """The requests of a group by position, each decoded when it is first needed.

    The number of rows has to be ``count``, that of the group's kernels, and no request occurs twice. A
    malformed request is a CorruptFile when it is needed.
    """

    def __init__(self, body: Any, count: int, what: str) -> None:
        super().__init__(body, _Row, what)
        if len(self) != count:
            raise CorruptFile(
                f"{what} has {len(self)} requests, the group {count} kernels: build the bundle again"
            )
        if len(set(map(self.digest, range(count)))) != count:
            raise CorruptFile(f"{what} has a request twice: build the bundle again")

    def call(self, position: int) -> CallByName | None:
        """How a request's function takes arguments by name, without decoding the request."""
        return self._row(position)[1]

    def _record(self, position: int, row: _Row) -> CompiledRequest:
        digest, (data, call) = self.digest(position), row
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
    rows = [(request.encoded(), call) for request, call in requests]
    return seal(REQUESTS_KIND, SCHEMA, rows_to_plain(_Row, [request.digest for request, _ in requests], rows))


def requests_from_bytes(data: bytes, group: GroupEntry, what: str) -> RequestIndex:
    """Read what :func:`requests_to_bytes` gave."""
    if len(data) > MAX_INDEX_BYTES:
        raise CorruptFile(f"{what} has {len(data)} bytes, an index has at most {MAX_INDEX_BYTES}")
    return RequestIndex(unseal(data, REQUESTS_KIND, SCHEMA, what), group.kernel_count, what)
