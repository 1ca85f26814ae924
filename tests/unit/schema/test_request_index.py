"""The requests of a group: found by digest, decoded one by one, refused where they are malformed."""

from __future__ import annotations

from typing import Any

import pytest

from cutlass_aot.errors import CorruptFile, SchemaTooNew
from cutlass_aot.schema.bundles.catalog import SCHEMA, FileReference, GroupEntry
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import decode, encode, seal, unseal
from cutlass_aot.schema.requests import request_index as module
from cutlass_aot.schema.requests.request import CallByName, CompiledRequest, Request
from cutlass_aot.schema.requests.request_index import (
    REQUESTS_KIND,
    RequestIndex,
    requests_from_bytes,
    requests_to_bytes,
)
from tests.support.replace import replace
from tests.support.requests import compiled, request

CALL = CallByName(("x", "eps"), (1e-6,))
SOME = [compiled(options={"opt-level": level}, call=CALL if level == 2 else None) for level in range(4)]


def group(count: int = len(SOME)) -> GroupEntry:
    file = FileReference("groups/g.msgpack", 1, "ab" * 32)
    kernel = request().kernel
    return GroupEntry(
        "g", kernel.operation, (), "", "", kernel.target, count, file, file, {"x86_64": (file,)},
        parameters=kernel.parameters, requests=file._replace(path="requests/g.msgpack"),
    )  # fmt: skip


def read(data: bytes, count: int = len(SOME)) -> RequestIndex:
    return requests_from_bytes(data, group(count), "it")


def with_rows(change: Any) -> bytes:
    """The file with its rows changed, sealed again; the rows are decoded."""
    body = unseal(requests_to_bytes(SOME), REQUESTS_KIND, SCHEMA, "it")
    rows = change([decode(row, "a row") for row in body["rows"]])
    return seal(REQUESTS_KIND, SCHEMA, {**body, "rows": [encode(row) for row in rows]})


def with_body(**changes: Any) -> bytes:
    """The file with parts of it changed, sealed again."""
    body = unseal(requests_to_bytes(SOME), REQUESTS_KIND, SCHEMA, "it")
    return seal(REQUESTS_KIND, SCHEMA, {**body, **changes})


def test_requests_are_read_in_their_order() -> None:
    index = read(requests_to_bytes(SOME))
    assert list(index) == SOME
    assert index[1:3] == SOME[1:3]
    assert index[-1] == SOME[-1]
    assert [index.digest(position) for position in range(len(index))] == [c.request.digest for c in SOME]
    with pytest.raises(IndexError):
        index[len(SOME)]


def test_a_request_is_found_by_its_digest_without_decoding_any(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    original = Request.from_bytes.__func__

    def count(cls: type[Request], data: bytes, what: str) -> Request:
        decoded.append(what)
        return original(cls, data, what)

    monkeypatch.setattr(Request, "from_bytes", classmethod(count))
    index = read(requests_to_bytes(SOME))
    position = index.position(SOME[2].request.digest)
    assert position == 2
    assert index.call(position) == CALL
    assert index.position(request(target="sm_100a").digest) is None
    assert decoded == []
    assert index[position] is index[position]
    assert decoded == ["it: request 2"]


def test_another_request_than_its_digest_says_is_refused() -> None:
    def exchanged(rows: Any) -> Any:
        (one, _), (other, _), *rest = rows
        return [[other, None], [one, None], *rest]

    index = read(with_rows(exchanged))
    assert index[2] == SOME[2]
    with pytest.raises(CorruptFile, match=r"request 0 has digest .*, expected .*: build the bundle again"):
        index[0]


def test_an_encoding_that_is_not_the_canonical_one_changes_nothing() -> None:
    """An integer of more bytes than it needs: what counts is the record."""

    def widened(rows: Any) -> Any:
        data = rows[0][0].replace(b"\xa6schema\x01", b"\xa6schema\xcc\x01")
        assert len(data) == len(rows[0][0]) + 1
        return [[data, None], *rows[1:]]

    assert read(with_rows(widened))[0] == SOME[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": None}, {"rows": "text"}, {"rows": []}, {"digests": None}, {"digests": b""},
        {"digests": b"x" * 127}, {"digests": "x" * 128}, {"digests": [b"x" * 32] * 4},
    ],
)  # fmt: skip
def test_a_malformed_body_is_refused(changes: Any) -> None:
    with pytest.raises(CorruptFile, match="it is malformed"):
        read(with_body(**changes))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (None, "expected"), ([], "expected"), ([b"", None, None], "expected"), (["text", None], "expected"),
        ([b"\0" * ((1 << 20) + 1), None], "a request has at most"), ([b"\0", None], "request 0"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_refused_when_it_is_asked_for(row: Any, message: str) -> None:
    index = read(with_rows(lambda rows: [row, *rows[1:]]))
    assert index[2] == SOME[2]
    with pytest.raises(CorruptFile, match=message):
        index[0]


def test_a_digest_is_found_at_its_place_alone() -> None:
    # The bytes from the middle of one digest to the middle of the next are those of the third.
    rows = unseal(requests_to_bytes(SOME), REQUESTS_KIND, SCHEMA, "it")["rows"]
    first, second = bytes(range(32)), bytes(range(32, 64))
    third = (first + second)[16:48]
    index = read(with_body(rows=rows, digests=first + second + third + b"x" * 32))
    assert index.position(third.hex()) == 2
    assert [index.position(item.hex()) for item in (first, second)] == [0, 1]
    assert index.position((second + third)[8:40].hex()) is None


@pytest.mark.parametrize("row", [None, "text", b"", b"\xc1", b"\x90\x90"])
def test_a_row_that_is_not_encoded_is_refused_when_it_is_asked_for(row: Any) -> None:
    rows = unseal(requests_to_bytes(SOME), REQUESTS_KIND, SCHEMA, "it")["rows"]
    index = read(with_body(rows=[*rows[:3], row]))
    assert index[2] == SOME[2]
    with pytest.raises(CorruptFile, match="row 3"):
        index[3]
    with pytest.raises(CorruptFile, match="row 3"):
        index.call(3)


def test_a_body_of_another_kind_is_refused() -> None:
    for body in (None, [], {"rows": []}):
        with pytest.raises(CorruptFile, match="malformed"):
            read(seal(REQUESTS_KIND, SCHEMA, body))


@pytest.mark.parametrize("call", [7, [], [1, 2, 3, 4, 5]])
def test_a_malformed_call_is_refused_when_it_is_asked_for(call: Any) -> None:
    index = read(with_rows(lambda rows: [[rows[0][0], call], *rows[1:]]))
    with pytest.raises(CorruptFile, match="it"):
        index.call(0)
    assert index.call(2) == CALL


def test_another_number_than_kernels_and_a_request_twice_are_refused() -> None:
    with pytest.raises(CorruptFile, match="it has 4 requests, the group 3 kernels: build the bundle again"):
        read(requests_to_bytes(SOME), 3)
    with pytest.raises(CorruptFile, match="it has a request twice"):
        read(requests_to_bytes([*SOME[1:], SOME[1]]))


def test_what_is_too_large_or_too_new_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = requests_to_bytes(SOME)
    with pytest.raises(SchemaTooNew, match="upgrade"):
        read(seal(REQUESTS_KIND, SCHEMA + 1, {}))
    monkeypatch.setattr(module, "MAX_INDEX_BYTES", len(data) - 1)
    with pytest.raises(CorruptFile, match=f"it has {len(data)} bytes, an index has at most {len(data) - 1}"):
        read(data)


def test_equal_requests_give_equal_bytes() -> None:
    shuffled = [
        CompiledRequest(replace(c.request, code=dict(reversed(c.request.code.items()))), c.call) for c in SOME
    ]
    assert requests_to_bytes(shuffled) == requests_to_bytes(SOME)


def test_an_entry_of_the_catalog_has_the_file_or_none() -> None:
    entry = group()
    assert from_plain(GroupEntry, to_plain(entry), "a group") == entry
    assert entry.requests in entry.files
    without = replace(entry, requests=None)
    assert set(entry.files) - set(without.files) == {entry.requests}
    with pytest.raises(CorruptFile, match="neither operands nor requests"):
        from_plain(GroupEntry, to_plain(without), "a group")
    assert group().signature == "cute.compile   sm_90a"
