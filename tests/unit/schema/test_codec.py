"""The codec: what is written is read, equal values give equal bytes, and nothing of another type is read."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.plan.recipe import Origins, Recipe
from cutlass_aot.builder.records import Selection
from cutlass_aot.errors import CorruptFile, SchemaTooNew
from cutlass_aot.schema.codec import (
    AS_MAP,
    AS_PAIRS,
    AS_ROW,
    OMIT,
    SHARED,
    Check,
    Digest,
    Key,
    codec_of,
    from_plain,
    header,
    row,
    to_plain,
    within,
)
from cutlass_aot.schema.encoding import decode, encode
from cutlass_aot.schema.kernels.artifact import Artifact, Facts
from cutlass_aot.schema.kernels.constraints import ANY_SHAPE, OperandConstraint, Scale
from cutlass_aot.schema.requests.recording import Recording
from cutlass_aot.schema.requests.request import CallByName
from tests.support.kernels import gemm
from tests.support.requests import compiled
from tests.support.tunings import tuning


@row
class Point(NamedTuple):
    x: int
    y: Annotated[float, within(0, 10)] | None = None


class Pair(NamedTuple):
    left: Point
    right: tuple[int, str]


@header(3, "sample")
@dataclass(frozen=True)
class Sample:
    text: str
    number: Annotated[int, within(-5, 5)]
    ratio: float
    switch: bool
    data: bytes
    variant: Literal["a", "b"]
    either: str | int | float | bool | tuple[int, ...] | None
    points: tuple[Point, ...]
    pair: Pair
    flat: Annotated[Pair, AS_ROW]
    table: Mapping[str, Point]
    sorted: Annotated[tuple[tuple[str, int], ...], AS_MAP]
    ordered: Annotated[Mapping[str, int], AS_PAIRS]
    anything: Any
    renamed: Annotated[int, Key("other"), OMIT] = 7
    late: Annotated[tuple[str, ...], OMIT] = ()
    cache: bytes = field(default=b"", init=False, compare=False)

    def validate(self) -> None:
        if self.text == "nonsense":
            raise ValueError("the text is nonsense")


INTEGERS = st.integers(-(2**63), 2**64 - 1)
POINTS = st.builds(Point, INTEGERS, st.none() | st.floats(0, 10))
PAIRS = st.builds(Pair, POINTS, st.tuples(INTEGERS, st.text()))
FLOATS = st.floats(allow_nan=False)
NAMES = st.dictionaries(st.text(), INTEGERS, max_size=3)
SAMPLES = st.builds(
    Sample,
    text=st.text().filter(lambda text: text != "nonsense"),
    number=st.integers(-5, 5),
    ratio=FLOATS,
    switch=st.booleans(),
    data=st.binary(),
    variant=st.sampled_from(["a", "b"]),
    either=st.text() | INTEGERS | FLOATS | st.booleans() | st.lists(INTEGERS).map(tuple) | st.none(),
    points=st.lists(POINTS, max_size=3).map(tuple),
    pair=PAIRS,
    flat=PAIRS,
    table=st.dictionaries(st.text(), POINTS, max_size=3),
    sorted=NAMES.map(lambda names: tuple(sorted(names.items()))),
    ordered=NAMES,
    anything=st.none() | st.lists(st.text()) | st.dictionaries(st.text(), st.binary()),
    renamed=INTEGERS,
    late=st.lists(st.text(), max_size=3).map(tuple),
)
SAMPLE = Sample(
    "text", 1, 0.5, True, b"data", "a", (1, 2), (Point(1), Point(2, 3.0)), Pair(Point(3), (4, "five")),
    Pair(Point(6), (7, "eight")), {"k": Point(9)}, (("a", 1), ("b", 2)), {"z": 1, "a": 2}, [1, {"x": None}],
    8, ("late",),
)  # fmt: skip
SCALE = OperandConstraint("s", "f8e8m0", ANY_SHAPE, -1, 1, 16, False, True, Scale("a", 32), (4,))
SCALED = (*gemm().operands, SCALE)
FACTS = Facts("sm_90a", "13.0", 168, 0, 1024, 9000)
RECORDS = [
    SAMPLE,
    FACTS,
    Artifact("ab" * 32, 7, FACTS, 1.5),
    gemm(operands=SCALED, parameters={"n": 1, "shape": (1, 2)}, constants={"max_active_clusters_1": 132}),
    CallByName(("a", "b"), (1, {"tuple": [1]}), ("c",), {"c": None}, ("b",)),
    Recording((compiled(), compiled(CallByName(("x",)))), ("refused",)),
    KernelObject("text", b"code"),
    Recipe("n", "1", "h200", ("sm_90a",), ("x86_64",), {"t.json": tuning()}),
    Origins({"g": "1"}, "t", {"p": "2"}, "own", {"x86_64": "zig"}),
    Selection((gemm(),), ("warning",), (), {r.request.kernel.digest: r for r in [compiled()]}),
]
STRANGERS = [None, True, 7, 0.5, float("nan"), "text", b"bytes", ["list", 1], {"map": 1}]


@given(SAMPLES)
def test_what_is_written_is_read(sample: Sample) -> None:
    data = encode(to_plain(sample))
    again = from_plain(Sample, decode(data, "it"), "it")
    assert again == sample
    assert list(again.ordered) == list(sample.ordered)
    assert encode(to_plain(again)) == data


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_record_reads_back(record: Any) -> None:
    assert from_plain(type(record), decode(encode(to_plain(record)), "it"), "it") == record
    assert from_plain(type(record), to_plain(record), "it") == record


def test_the_stored_form() -> None:
    assert to_plain(SAMPLE) == {
        "kind": "sample", "schema": 3, "text": "text", "number": 1, "ratio": 0.5, "switch": True,
        "data": b"data", "variant": "a", "either": [1, 2], "points": [[1, None], [2, 3.0]],
        "pair": {"left": [3, None], "right": [4, "five"]}, "flat": [[6, None], [7, "eight"]],
        "table": {"k": [9, None]}, "sorted": {"a": 1, "b": 2}, "ordered": [["z", 1], ["a", 2]],
        "anything": [1, {"x": None}], "other": 8, "late": ["late"],
    }  # fmt: skip


def test_a_default_that_is_left_out_is_read() -> None:
    plain = to_plain(replace(SAMPLE, renamed=7, late=()))
    assert {"other", "renamed", "late", "cache"}.isdisjoint(plain)
    assert from_plain(Sample, plain, "it") == replace(SAMPLE, renamed=7, late=())


def places(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in plain data."""
    yield path
    if isinstance(plain, (dict, list)):
        for key, item in plain.items() if isinstance(plain, dict) else enumerate(plain):
            yield from places(item, (*path, key))


def replaced(plain: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.copy(plain)
    changed[path[0]] = replaced(plain[path[0]], path[1:], value)
    return changed


def same(ours: Any, theirs: Any) -> bool:
    """Whether plain data is the same; where a number is expected, a whole one is."""
    if isinstance(ours, float) and type(theirs) is int:
        return ours == theirs
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    return type(ours) is type(theirs) and repr(ours) == repr(theirs)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_value_of_another_type_is_refused_wherever_it_stands(record: Any) -> None:
    """What is read all the same is a value that the annotation has room for, and is read as it is."""
    plain = decode(encode(to_plain(record)), "it")
    refused = 0
    for path in places(plain):
        for stranger in STRANGERS:
            changed = replaced(plain, path, stranger)
            try:
                found = from_plain(type(record), changed, "it")
            except (CorruptFile, SchemaTooNew):
                refused += 1
                continue
            written = decode(encode(to_plain(found)), "it")
            assert same(written, changed) or same(left_out(written), left_out(changed)), (path, stranger)
    assert refused > 5 * len(list(places(plain))) or isinstance(record, (CallByName, Recording, Selection))


def left_out(plain: Any) -> Any:
    """Without what says nothing."""
    if isinstance(plain, dict):
        return {key: left_out(item) for key, item in plain.items() if item not in (None, False, 7)}
    return [left_out(item) for item in plain] if isinstance(plain, list) else plain


ALLOWED = {
    "text": {str}, "number": {int}, "ratio": {int, float}, "switch": {bool}, "data": {bytes},
    "variant": set(), "either": {str, int, float, bool, type(None)}, "points": set(), "pair": set(),
    "flat": set(), "table": set(), "sorted": {dict}, "ordered": set(), "other": {int}, "late": set(),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_a_field_takes_values_of_its_types_alone(name: str) -> None:
    plain = {**to_plain(SAMPLE), "number": 1}
    for stranger in STRANGERS:
        changed = {**plain, name: 3 if stranger == 7 else stranger}
        if type(stranger) in ALLOWED[name] and stranger == stranger:
            from_plain(Sample, changed, "it")
        else:
            with pytest.raises(CorruptFile, match=f"it is malformed: {name}"):
                from_plain(Sample, changed, "it")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": 6}, "number: found 6, expected a number from -5 to 5"),
        ({"points": [[1, None], [2, "x"]]}, "points[1].y: found 'x', expected a number or nothing"),
        ({"points": [[1, None], [2]]}, "points[1]: found 1 values, expected a list of 2"),
        (
            {"pair": {"left": [1, 11.0], "right": [1, ""]}},
            "pair.left.y: found 11.0, expected a number",
        ),
        ({"pair": {"left": [1, None], "right": [1]}}, "pair.right: found 1 values, expected a list of 2"),
        ({"pair": {"left": [1, None]}}, "pair.right: it is missing"),
        ({"table": {"k": 1}}, "table.'k': found 1, expected a list of 2"),
        ({"table": {b"k": [1, None]}}, "table: found bytes, expected text as the key of a map"),
        ({"ordered": [["a", 1], ["a", 2]]}, "ordered: a name is there twice"),
        ({"variant": "c"}, "variant: found 'c', expected 'a' or 'b'"),
        ({"text": "nonsense"}, "it is malformed: the text is nonsense"),
        ({"more": 1, b"most": 2}, "it is malformed: unknown 'more', bytes"),
        ({"renamed": 1}, "it is malformed: unknown 'renamed'"),
    ],
)
def test_an_error_says_where_what_was_found_and_what_was_expected(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CorruptFile) as caught:
        from_plain(Sample, {**to_plain(SAMPLE), **changes}, "it")
    assert message in str(caught.value)
    assert str(caught.value).endswith("; build or fetch it again")


@pytest.mark.parametrize("name", sorted(set(to_plain(SAMPLE)) - {"other", "late", "kind", "schema"}))
def test_a_missing_field_is_refused(name: str) -> None:
    plain = to_plain(SAMPLE)
    del plain[name]
    with pytest.raises(CorruptFile, match=f"{name}: it is missing"):
        from_plain(Sample, plain, "it")


def test_the_header_is_looked_at_before_the_fields() -> None:
    with pytest.raises(SchemaTooNew, match="it has schema version 4"):
        from_plain(Sample, {"kind": "sample", "schema": 4, "other": "fields"}, "it")
    for head in ({}, {"kind": "other", "schema": 3}, {"kind": "sample"}, {"kind": "sample", "schema": 2}):
        with pytest.raises(CorruptFile, match=r"^it (is not a 'sample' file|has )"):
            from_plain(Sample, {**to_plain(SAMPLE), "kind": None, "schema": None, **head}, "it")
    with pytest.raises(CorruptFile, match="it is not a 'sample' file"):
        from_plain(Sample, [], "it")


def test_equal_records_give_equal_bytes() -> None:
    assert encode(to_plain(Point(True))) == encode(to_plain(Point(1)))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        to_plain(Point(1.5))  # type: ignore[arg-type]


def test_plain_data_can_be_json() -> None:
    assert from_plain(Facts, json.loads(json.dumps(to_plain(FACTS))), "it") == FACTS


@dataclass
class Circle:
    radius: float


@dataclass
class Square:
    side: float


@dataclass
class Drawing:
    shape: Circle | Square
    colours: frozenset[str] = frozenset()


def test_records_of_a_union_are_told_apart_by_their_names() -> None:
    drawing = Drawing(Square(2.0), frozenset({"red", "blue"}))
    plain = {"shape": {"Square": {"side": 2.0}}, "colours": ["blue", "red"]}
    assert to_plain(drawing) == plain
    assert from_plain(Drawing, plain, "it") == drawing
    for shape, error in (
        ({"Oval": {}}, r"shape: found 'Oval', expected one of Circle, Square"),
        ({"Square": {"radius": 2.0}}, r"shape\.Square\.side: it is missing"),
        ({}, r"shape: found a dict, expected a map from one of Circle, Square"),
        ([], r"shape: found a list, expected a map from one of Circle, Square"),
    ):
        with pytest.raises(CorruptFile, match=error):
            from_plain(Drawing, {**plain, "shape": shape}, "it")


@dataclass
class Ambiguous:
    value: tuple[int, ...] | tuple[str, ...]


@dataclass
class Unknown:
    value: set[int]


@pytest.mark.parametrize("kind", [Ambiguous, Unknown])
def test_an_annotation_without_a_stored_form_is_a_mistake(kind: type) -> None:
    with pytest.raises(NotImplementedError, match=r"told apart|no stored form"):
        from_plain(kind, {"value": []}, "it")


def test_a_check_may_refuse_in_words_of_its_own() -> None:
    digests = codec_of(tuple[Digest, ...])
    assert digests.read(["ab" * 32], "it") == ("ab" * 32,)
    with pytest.raises(ValueError, match="is not a SHA-256"):
        digests.read(["ab"], "it")

    def refuse(value: str) -> None:
        raise CorruptFile("words of its own")

    with pytest.raises(CorruptFile, match=r"^words of its own$"):
        codec_of(Annotated[str, Check(refuse)]).read("x", "it")


class Sharing(NamedTuple):
    point: Annotated[Point, SHARED]


def test_equal_values_that_are_shared_are_read_once() -> None:
    one, other, third = (
        from_plain(Sharing, to_plain(Sharing(Point(x, 2.5))), "it") for x in (2**40, 2**40, 2**41)
    )
    assert one == other == Sharing(Point(2**40, 2.5))
    assert one.point is other.point
    assert third.point == Point(2**41, 2.5)


def test_what_is_shared_is_as_strict_as_all_else() -> None:
    assert from_plain(Sharing, {"point": encode([1, 2])}, "it").point == Point(1, 2)
    for strange in ([True, 2], [1.0, 2], [1, 20], [1], None):
        with pytest.raises(CorruptFile, match=r"it is malformed: point"):
            from_plain(Sharing, {"point": encode(strange)}, "it")
    for strange in ([1, 2], None, "text"):
        with pytest.raises(CorruptFile, match=r"it is malformed: point: found .*, expected bytes"):
            from_plain(Sharing, {"point": strange}, "it")
    for strange in (b"", encode([1, 2])[:-1], encode([1, 2]) + b"\0"):
        with pytest.raises(CorruptFile, match=r"it is not readable msgpack"):
            from_plain(Sharing, {"point": strange}, "it")


SEEN: list[float] = []
"""What was checked."""


class CheckedSharing(NamedTuple):
    number: Annotated[float, SHARED, Check(SEEN.append)]


def test_what_is_shared_is_checked_once() -> None:
    for _ in range(2):
        assert from_plain(CheckedSharing, {"number": encode(0.123)}, "it").number == 0.123
    assert SEEN == [0.123]
