"""Records of requests: canonical, of one digest each, and refused where they are malformed."""

from __future__ import annotations

import contextlib
import math
import struct
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.errors import CorruptFile, SchemaTooNew
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import encode
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.requests.request import (
    MAX_REQUEST_BYTES,
    OPERATION,
    REQUEST_SCHEMA,
    CallByName,
    CompiledRequest,
    Request,
    differences,
)
from tests.support.requests import TENSOR, compiled, request

PUBLIC = [field.name for field in fields(Request) if field.init]

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a request."""
    maps = st.dictionaries(st.text(max_size=8), values, max_size=3)
    return {
        "callable": draw(st.text(max_size=20)),
        "configuration": draw(values),
        "arguments": draw(maps),
        "options": draw(maps),
        "target": draw(st.sampled_from(["sm_90a", "sm_100a", "sm_103a"])),
        "device": draw(st.dictionaries(st.text(max_size=8), st.integers(0, 2**63 - 1), max_size=3)),
        "code": draw(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)),
        "state": draw(maps),
    }


def form(value: Any) -> Any:
    """A value so that Python compares it as the encoding does: 1, 1.0 and True apart, NaN equal to itself."""
    if isinstance(value, dict):
        return {name: form(item) for name, item in value.items()}
    if isinstance(value, list):
        return [form(item) for item in value]
    return type(value).__name__, struct.pack("<d", value) if isinstance(value, float) else repr(value)


@given(records())
def test_a_record_that_is_read_again_is_the_same(record: dict[str, Any]) -> None:
    made = Request(**record)
    again = Request.from_bytes(made.encoded(), "it")
    assert again.digest == made.digest
    assert form(to_plain(again)) == form(to_plain(made))
    assert list(again.arguments) == list(made.arguments)
    assert not differences(again, made) or any(map(_has_nan, record.values()))


def _has_nan(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    if isinstance(value, list):
        return any(map(_has_nan, value))
    return isinstance(value, float) and math.isnan(value)


@given(records(), records(), st.sampled_from(PUBLIC))
def test_every_field_changes_the_digest(one: dict[str, Any], other: dict[str, Any], name: str) -> None:
    changed = Request(**{**one, name: other[name]})
    ordered = list(one["arguments"]) == list(changed.arguments)
    same = form(one[name]) == form(other[name]) and ordered
    assert (changed.digest == Request(**one).digest) == same
    assert (changed.kernel.digest == Request(**one).kernel.digest) == same


@pytest.mark.parametrize(
    "different", [1, 1.0, True, "1", b"1", [1], None, {"tuple": [1]}, {"dynamic": "int"}, 0, -1, "", 1 << 40]
)
def test_values_of_like_meaning_stay_apart(different: Any) -> None:
    others = [2, 1.5, False, "2", b"2", [2], {"tuple": [2]}, 0.0, -0.0, 0, "", None]
    digests = {
        request(configuration=other).digest
        for other in [different, *others]
        if form(other) != form(different)
    }
    assert request(configuration=different).digest not in digests
    assert len({request(arguments={"x": value}).digest for value in (1, 1.0, True, "1", b"1", [1])}) == 6


def test_none_and_absent_are_two_and_the_order_of_arguments_counts() -> None:
    arguments = {"mX": TENSOR, "weight": None}
    digests = {
        request(arguments=given).digest
        for given in (arguments, {"mX": TENSOR}, dict(reversed(arguments.items())))
    }
    assert len(digests) == 3
    # Of the other maps the order does not count: it is not the program's.
    assert request(options={"a": 1, "b": 2}).digest == request(options={"b": 2, "a": 1}).digest


def test_differences_say_where_and_what() -> None:
    ours = request()
    tensor = {"tensor": {**TENSOR["tensor"], "dtype": "cutlass.base_dsl.typing:Float16"}}
    theirs = request(arguments={**ours.arguments, "mX": tensor, "weight": tensor}, device={"sm_count": 148})
    assert [difference.path for difference in differences(ours, theirs)] == [
        "arguments.mX.tensor.dtype", "arguments.weight", "device.sm_count",
    ]  # fmt: skip
    assert differences(ours, theirs)[-1] == ("device.sm_count", "132", "148")
    assert differences(ours, ours) == []
    assert [d.other for d in differences(ours, replace(ours, options={}))] == ["nothing"]


def test_the_kernel_of_a_request_stands_for_it_alone() -> None:
    kernel = request().kernel
    assert (kernel.operation, kernel.operands, kernel.target) == (OPERATION, (), "sm_90a")
    assert dict(kernel.design) == {"request": request().digest}
    assert kernel.group_name == "cute.compile-sm_90a-ops.norm.Norm.__call__"
    # Without the request's 64 digits.
    assert kernel.name == f"{kernel.group_name}-{kernel.digest[:8]}"
    assert from_plain(Kernel, to_plain(kernel), "a kernel record").digest == kernel.digest
    assert request(options={}).kernel.group == kernel.group
    assert request(target="sm_100a").kernel.group != kernel.group


def test_an_argument_twice_is_refused() -> None:
    record = to_plain(request())
    record["arguments"] = [["x", 1], ["x", 2]]
    with pytest.raises(CorruptFile, match="arguments: a name is there twice"):
        from_plain(Request, record, "a request")


@pytest.mark.parametrize(
    "name", ["schema", "callable", "arguments", "options", "target", "device", "code", "state"]
)
@pytest.mark.parametrize("value", [None, 7, "text", [1], [[1, 2, 3]], {"x": [[]]}])
def test_a_malformed_field_is_refused_or_gives_another_request(name: str, value: Any) -> None:
    with contextlib.suppress(CorruptFile, SchemaTooNew):
        assert (
            from_plain(Request, {**to_plain(request()), name: value}, "a request").digest != request().digest
        )


@pytest.mark.parametrize("name", ["schema", *PUBLIC])
def test_a_missing_field_is_refused(name: str) -> None:
    record = to_plain(request())
    del record[name]
    with pytest.raises(CorruptFile, match="schema version" if name == "schema" else f"{name}: it is missing"):
        from_plain(Request, record, "a request")


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(CorruptFile, match="malformed"):
        from_plain(Request, {**to_plain(request()), "more": 1}, "a request")


def test_a_newer_schema_says_so() -> None:
    record = {**to_plain(request()), "schema": REQUEST_SCHEMA + 1, "more": 1}
    with pytest.raises(SchemaTooNew, match=f"schema version {REQUEST_SCHEMA + 1}.*upgrade"):
        Request.from_bytes(encode(record), "it")


DEEP = request().encoded().replace(encode(4096), b"\x91" * 40 + b"\x01", 1)
KEYED = request().encoded().replace(encode("stages"), encode(b"stages"))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc1", encode([1]), request().encoded()[:-1], DEEP, KEYED])
def test_bytes_that_are_no_request_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptFile):
        Request.from_bytes(data, "it")


def test_a_request_is_bounded() -> None:
    with pytest.raises(CorruptFile, match=f"it has {MAX_REQUEST_BYTES + 1} bytes; a request has at most"):
        Request.from_bytes(b"\0" * (MAX_REQUEST_BYTES + 1), "it")


CALL = CallByName(("x", "scale"), (1.0,), ("stream",), {"stream": None}, ("x",))


@pytest.mark.parametrize("call", [None, CALL, CallByName(())])
def test_how_a_function_is_called_is_read_again(call: CallByName | None) -> None:
    made = compiled(call)
    assert from_plain(CompiledRequest, to_plain(made), "a compiled request") == made


DEEPER: Any = 1
for _ in range(40):
    DEEPER = [DEEPER]


@pytest.mark.parametrize(
    "record",
    [
        None, [], [1, 2, 3, 4, 5], "text", [["x"], [], [], [], []], [["x"], [1, 2], [], {}, []],
        [["x"], [], [], {"y": 1}, []], [["x"], [], [], {}, ["y"]], [["x"], [DEEPER], [], {}, []],
        [["x"], [{b"k": 1}], [], {}, []],
    ],
)  # fmt: skip
def test_how_a_function_is_called_is_refused_where_it_is_malformed(record: Any) -> None:
    with pytest.raises(CorruptFile, match="how a compiled function is called is malformed"):
        from_plain(CallByName, record, "how a compiled function is called")
    with pytest.raises(CorruptFile):
        from_plain(CompiledRequest, record, "a compiled request")


def test_a_folder_of_a_distribution_stands_for_it() -> None:
    code = {"torch/_native": "2.13.0 ab", "ops": "1.2.0 cd", "model": "- ef"}
    assert request(code=code).distributions == {"torch": "2.13.0", "ops": "1.2.0"}
