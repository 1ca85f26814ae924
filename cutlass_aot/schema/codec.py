"""The codec of all records: a record's annotations say how it is stored.

:func:`to_plain` turns a record into plain data for :func:`~cutlass_aot.schema.encoding.encode` or
:func:`json.dumps`; :func:`from_plain` reads it back:

====================================  =====================================================================
annotation                            plain data
====================================  =====================================================================
``str``, ``int``, ``bool``,           the value; a float may be stored as a whole number and cannot be NaN
``float``, ``bytes``, ``None``
``Literal["a", "b"]``                 one of the texts
``A | B``                             either; the alternatives differ in the type of their plain data
``A | B`` of records alone            a map from the name of the class to the record
``tuple[A, ...]``, ``tuple[A, B]``    a list
``frozenset[A]``                      a sorted list
``Mapping[str, A]``, ``dict``         a map; the encoders sort it
a dataclass or a ``NamedTuple``       a map from the names of the fields; a list if the class is a :func:`row`
``Any``                               the value, unread
====================================  =====================================================================

``typing.Annotated`` changes how a field is stored (:data:`OMIT`, :class:`Key`), which values it can have
(:class:`Check`, :func:`within`) or their form (:class:`Form`, such as :data:`AS_MAP`). Fields that
``__init__`` does not take are not stored. A record whose fields have to agree with each other has a method
``validate``, which raises ``ValueError``.

Readers are strict: an unknown field, a missing one or a value of another type is refused, and the error says
where it is. A codec is made when its first value is read or written. Evaluating annotations that are text
takes most of that time, so modules whose records are read when a bundle is opened do not use
``from __future__ import annotations``.
"""

import operator
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ForwardRef, Literal, TypeVar, Union, get_type_hints

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.encoding import MALFORMED, decode, encode, is_digest, shown, without_header

T = TypeVar("T")

Reader = Callable[[Any, str], Any]
"""Makes a value from plain data; the text names the file in errors that are raised later."""

Writer = Callable[[Any], Any]


class Codec:
    """How the values of one annotation are read and written.

    ``read`` raises an error of :data:`~cutlass_aot.schema.encoding.MALFORMED`, ``write`` is None if values
    are plain data already, and ``plain`` has the types of the plain data. Plain data of the type ``same`` is
    the value already, and need not be read.
    """

    __slots__ = ("plain", "read", "same", "write")

    def __init__(
        self,
        read: Reader,
        write: Writer | None = None,
        plain: tuple[type, ...] = (),
        same: type | None = None,
    ) -> None:
        self.read = read
        self.write = write
        self.plain = plain
        self.same = same

    def to_plain(self, value: Any) -> Any:
        """A value as plain data."""
        return value if self.write is None else self.write(value)


class Form:
    """Stores a field with the codec that ``codec`` makes for its annotation."""

    def __init__(self, codec: Callable[[Any], Codec]) -> None:
        self.codec = codec


class Key:
    """Stores a field under another name."""

    def __init__(self, name: str) -> None:
        self.name = name


class Check:
    """A test of values that are read; it raises ValueError to refuse one."""

    def __init__(self, test: Callable[[Any], object]) -> None:
        self.test = test


OMIT = object()
"""Leaves a field out if it has its default."""

SHARED = object()
"""Stores a value as bytes, encoded for itself, so that equal ones, which many records have in common, are
decoded and checked once. It is not None, and never changed."""


def within(least: float, most: float) -> Check:
    """Numbers from ``least`` to ``most``."""

    def test(value: float) -> None:
        if not least <= value <= most:
            raise ValueError(f"found {shown(value)}, expected a number from {least} to {most}")

    return Check(test)


def _digest_test(text: str) -> None:
    if not is_digest(text):
        raise ValueError(f"{shown(text)} is not a SHA-256, expected 64 hexadecimal digits")


Digest = Annotated[str, Check(_digest_test)]
"""A SHA-256 in hexadecimal."""


def check_lines(*texts: str) -> None:
    """Refuse text with line breaks or other control characters, which names and versions do not have.

    They are shown among lines of our own, in errors and listings.
    """
    for text in texts:
        if not text.isprintable():
            raise ValueError(f"found {shown(text)}, expected text of one line without control characters")


Line = Annotated[str, Check(check_lines)]
"""A name or another text of one line."""


class _Malformed(ValueError):
    """Plain data is not what was expected; ``path`` says where."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


def _unexpected(data: Any, expected: str) -> _Malformed:
    return _Malformed(f"found {shown(data)}, expected {expected}")


def _inside(error: Exception, step: str) -> _Malformed:
    if isinstance(error, _Malformed):
        error.path = step + error.path
        return error
    return _Malformed(_words(error), step)


def _words(error: Exception) -> str:
    return str(error) if type(error) in (ValueError, _Malformed) else repr(error)


def to_plain(value: Any) -> Any:
    """A record as plain data."""
    return codec_of(type(value)).to_plain(value)


def from_plain(annotation: type[T], data: Any, what: str, advice: str = "build or fetch it again") -> T:
    """Read a value from untrusted plain data; CorruptFile if :func:`to_plain` cannot have given it.

    The error begins with ``what``, the name of the data, and ends with ``advice``.
    """
    try:
        value: T = codec_of(annotation).read(data, what)
        return value
    except MALFORMED as error:
        place = f"{path.removeprefix('.')}: " if (path := getattr(error, "path", "")) else ""
        raise CorruptFile(f"{what} is malformed: {place}{_words(error)}; {advice}") from None


_ROWS: set[type] = set()


def row(cls: type[T]) -> type[T]:
    """Store a record as a list of its fields, without their names."""
    _ROWS.add(cls)
    return cls


_HEADERS: dict[type, tuple[str, int]] = {}


def header(schema: int, kind: str = "") -> Callable[[type[T]], type[T]]:
    """Store a record's schema version, and its kind if it has one, as ``schema`` and ``kind`` in its map.

    They are checked before the fields: another kind or an older version raises CorruptFile, a newer one
    SchemaTooNew.
    """

    def decorator(cls: type[T]) -> type[T]:
        _HEADERS[cls] = (kind, schema)
        return cls

    return decorator


# -- codecs of annotations ----------------------------------------------------------------------------------


def codec_of(annotation: Any) -> Codec:
    """The codec of an annotation; its first use raises NotImplementedError if there is no stored form."""
    # Not cached: their hash is slow, and few occur twice.
    if type(annotation) is _ANNOTATED:
        return _LazyCodec(annotation)
    codec = _CODECS.get(annotation)
    if codec is None:
        codec = _CODECS[annotation] = _LazyCodec(annotation)
    return codec


_ANNOTATED: Any = type(Annotated[int, None])


class _LazyCodec(Codec):
    """The codec of an annotation, made when the first value is read or written."""

    __slots__ = ("annotation",)

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation

    def __getattr__(self, name: str) -> Any:
        made = _made(self.annotation)
        self.read, self.write, self.plain, self.same = made.read, made.write, made.plain, made.same
        return getattr(self, name)


def _made(annotation: Any) -> Codec:
    if type(annotation) is _ANNOTATED:
        return _annotated(annotation.__origin__, annotation.__metadata__)
    origin: Any = getattr(annotation, "__origin__", None)
    if _is_class_with_fields(annotation):
        return _row(annotation) if annotation in _ROWS else _record(annotation)
    arguments: tuple[Any, ...] = getattr(annotation, "__args__", ())
    if origin is tuple:
        return _list(arguments[0]) if arguments[1:] == (...,) else _fixed(arguments)
    if origin is Union or isinstance(annotation, types.UnionType):
        return _union(arguments)
    if origin in (Mapping, dict) and arguments[0] is str:
        return _map(arguments[1])
    if origin is frozenset:
        return _set(arguments[0])
    if origin is Literal:
        return _literal(arguments)
    raise NotImplementedError(f"{annotation!r} has no stored form")


def _is_class_with_fields(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is None and hasattr(annotation, "__annotations__")


def _annotated(annotation: Any, notes: tuple[Any, ...]) -> Codec:
    codec, tests, shared = None, [], False
    for note in notes:
        if isinstance(note, Check):
            tests.append(note.test)
        elif isinstance(note, Form):
            codec = note.codec(annotation)
        elif note is SHARED:
            shared = True
    if codec is None:
        codec = codec_of(annotation)
    if tests:
        codec = _tested(codec, tests)
    return _shared(codec) if shared else codec


def _tested(codec: Codec, tests: list[Callable[[Any], object]]) -> Codec:
    read_value, same = codec.read, codec.same

    def read(data: Any, what: str) -> Any:
        value = data if type(data) is same else read_value(data, what)
        for test in tests:
            test(value)
        return value

    return Codec(read, codec.write, codec.plain)


_NAMES = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false", bytes: "bytes",
    type(None): "nothing", list: "a list", dict: "a map",
}  # fmt: skip


def _leaf(kind: type, write: Writer | None = None) -> Codec:
    def read(data: Any, _what: str) -> Any:
        if type(data) is not kind:
            raise _unexpected(data, _NAMES[kind])
        return data

    return Codec(read, write, (kind,), kind)


def _number(data: Any, _what: str) -> float:
    if type(data) not in (float, int) or data != data:
        raise _unexpected(data, "a number")
    return float(data)


_CODECS: dict[Any, Codec] = {
    str: _leaf(str),
    # True equals 1, and equal records have to give equal bytes.
    int: _leaf(int, operator.index),
    bool: _leaf(bool, bool),
    bytes: _leaf(bytes),
    float: Codec(_number, None, (float, int)),
    type(None): _leaf(type(None)),
    Any: Codec(lambda data, _what: data),
}


def _union(annotations: tuple[Any, ...]) -> Codec:
    """One of several types, told apart by the plain data's type; int goes before float for whole numbers."""
    codecs = [codec_of(annotation) for annotation in annotations]
    readers = {kind: codec.read for codec in codecs for kind in codec.plain[:1]}
    if len(readers) < len(codecs):
        if all(map(_is_class_with_fields, annotations)):
            return _tagged(annotations)
        raise NotImplementedError(f"{annotations} cannot be told apart by their stored forms")
    for codec in codecs:
        for kind in codec.plain[1:]:
            readers.setdefault(kind, codec.read)
    names = " or ".join(_NAMES[codec.plain[0]] for codec in codecs)

    def read(data: Any, what: str) -> Any:
        reader = readers.get(type(data))
        if reader is None:
            raise _unexpected(data, names)
        return reader(data, what)

    optional = [codec for codec in codecs if codec.plain != (type(None),)]
    write_one = optional[0].write if len(optional) == 1 else _any_to_plain

    def write(value: Any) -> Any:
        return None if value is None or write_one is None else write_one(value)

    return Codec(read, write if write_one is not None else None, tuple(readers))


def _tagged(classes: tuple[Any, ...]) -> Codec:
    """One of several records, told apart by class name."""
    codecs = {cls.__name__: codec_of(cls) for cls in classes}

    def read(data: Any, what: str) -> Any:
        if type(data) is not dict or len(data) != 1:
            raise _unexpected(data, f"a map from one of {', '.join(sorted(codecs))}")
        ((name, fields),) = data.items()
        if name not in codecs:
            raise _unexpected(name, f"one of {', '.join(sorted(codecs))}")
        try:
            return codecs[name].read(fields, what)
        except MALFORMED as error:
            raise _inside(error, f".{name}") from None

    def write(value: Any) -> dict[str, Any]:
        name = type(value).__name__
        return {name: codecs[name].to_plain(value)}

    return Codec(read, write, (dict,))


def _any_to_plain(value: Any) -> Any:
    return list(value) if type(value) is tuple else value


def _literal(values: tuple[Any, ...]) -> Codec:
    def read(data: Any, _what: str) -> Any:
        if type(data) is not str or data not in values:
            raise _unexpected(data, " or ".join(map(repr, values)))
        return data

    return Codec(read, None, (str,))


def _list(annotation: Any) -> Codec:
    codec = codec_of(annotation)

    def read(data: Any, what: str) -> tuple[Any, ...]:
        if type(data) is not list:
            raise _unexpected(data, "a list")
        items: list[Any] = []
        try:
            for item in data:
                items.append(item if type(item) is codec.same else codec.read(item, what))
        except MALFORMED as error:
            raise _inside(error, f"[{len(items)}]") from None
        return tuple(items)

    def write(value: Any) -> list[Any]:
        return list(value) if codec.write is None else [codec.write(item) for item in value]

    return Codec(read, write, (list,))


def _set(annotation: Any) -> Codec:
    inner = _list(annotation)
    return Codec(
        lambda data, what: frozenset(inner.read(data, what)),
        lambda values: inner.to_plain(sorted(values)),
        inner.plain,
    )


def _map(annotation: Any) -> Codec:
    codec = codec_of(annotation)

    def read(data: Any, what: str) -> dict[str, Any]:
        if type(data) is not dict:
            raise _unexpected(data, "a map")
        values = {}
        for key, item in data.items():
            if type(key) is not str:
                raise _unexpected(key, "text as the key of a map")
            try:
                values[key] = codec.read(item, what)
            except MALFORMED as error:
                raise _inside(error, f".{shown(key)}") from None
        return values

    def write(value: Mapping[str, Any]) -> dict[str, Any]:
        return {key: codec.to_plain(item) for key, item in value.items()}

    return Codec(read, write, (dict,))


# -- codecs of records --------------------------------------------------------------------------------------

_KEPT = object()
"""Stands for the default of a field that is never left out."""


def _fields(cls: Any) -> list[tuple[str, str, Codec, Any]]:
    """Name, key, codec and default of each stored field of a dataclass or a named tuple."""
    annotations = cls.__annotations__
    if not {str, ForwardRef}.isdisjoint(map(type, annotations.values())):
        annotations = get_type_hints(cls, include_extras=True)
    fields = []
    # In both kinds of classes these are the arguments of ``__init__``.
    for name in cls.__match_args__:
        annotation = annotations[name]
        key, default = name, _KEPT
        if type(annotation) is _ANNOTATED:
            for note in annotation.__metadata__:
                if isinstance(note, Key):
                    key = note.name
                elif note is OMIT:
                    default = _default(cls, name)
        fields.append((name, key, codec_of(annotation), default))
    return fields


def _default(cls: Any, name: str) -> Any:
    declared = getattr(cls, "__dataclass_fields__", None)
    return cls._field_defaults[name] if declared is None else declared[name].default


def _record(cls: Any) -> Codec:
    fields = _fields(cls)
    validate = getattr(cls, "validate", None)
    kind, schema = _HEADERS.get(cls, ("", 0))
    head = ({"kind": kind} if kind else {}) | ({"schema": schema} if schema else {})

    def read(data: Any, what: str) -> Any:
        if head:
            data = without_header(data, kind, schema, what)
        if type(data) is not dict:
            raise _unexpected(data, "a map")
        values = []
        key = ""
        missing = 0
        try:
            for _, key, codec, default in fields:
                if key in data:
                    item = data[key]
                    values.append(item if type(item) is codec.same else codec.read(item, what))
                elif default is _KEPT:
                    raise _Malformed("it is missing")
                else:
                    values.append(default)
                    missing += 1
        except MALFORMED as error:
            raise _inside(error, f".{key}") from None
        if len(data) + missing != len(values):
            known = {key for _, key, _, _ in fields}
            raise _Malformed(f"unknown {', '.join(sorted(shown(key) for key in data if key not in known))}")
        record = cls(*values)
        if validate is not None:
            validate(record)
        return record

    def write(value: Any) -> dict[str, Any]:
        plain = dict(head)
        for name, key, codec, default in fields:
            item = getattr(value, name)
            if default is _KEPT or item != default:
                plain[key] = codec.to_plain(item)
        return plain

    return Codec(read, write, (dict,))


def _row(cls: Any) -> Codec:
    fields = _fields(cls)
    validate = getattr(cls, "validate", None)
    names = [name for name, *_ in fields]
    read_values, write_values = _sequence(
        [codec for _, _, codec, _ in fields], [f".{name}" for name in names]
    )

    def read(data: Any, what: str) -> Any:
        record = cls(*read_values(data, what))
        if validate is not None:
            validate(record)
        return record

    return Codec(read, lambda value: write_values([getattr(value, name) for name in names]), (list,))


def _fixed(annotations: tuple[Any, ...]) -> Codec:
    codecs = [codec_of(annotation) for annotation in annotations]
    read, write = _sequence(codecs, [f"[{position}]" for position in range(len(codecs))])
    return Codec(read, write, (list,))


def _sequence(codecs: list[Codec], steps: list[str]) -> tuple[Reader, Writer]:
    """Reader and writer of a list whose items have different codecs; ``steps`` name the items in errors."""

    def read(data: Any, what: str) -> tuple[Any, ...]:
        if type(data) is not list or len(data) != len(codecs):
            count = f"{len(data)} values" if type(data) is list else shown(data)
            raise _Malformed(f"found {count}, expected a list of {len(codecs)}")
        values: list[Any] = []
        try:
            for codec, item in zip(codecs, data, strict=True):
                values.append(item if type(item) is codec.same else codec.read(item, what))
        except MALFORMED as error:
            raise _inside(error, steps[len(values)]) from None
        return tuple(values)

    def write(values: Any) -> list[Any]:
        return [codec.to_plain(item) for codec, item in zip(codecs, values, strict=True)]

    return read, write


# -- other forms --------------------------------------------------------------------------------------------


def _as_map(annotation: Any) -> Codec:
    (pairs,) = getattr(annotation, "__orig_bases__", (annotation,))
    inner = _map(pairs.__args__[0].__args__[1])
    make = annotation if hasattr(annotation, "__orig_bases__") else tuple

    def read(data: Any, what: str) -> Any:
        return make(sorted(inner.read(data, what).items()))

    return Codec(read, lambda value: inner.to_plain(dict(value)), inner.plain)


AS_MAP = Form(_as_map)
"""Stores ``tuple[tuple[str, A], ...]``, whose texts are sorted and differ, as a map."""


def _as_pairs(annotation: Any) -> Codec:
    inner = _list(tuple[annotation.__args__])

    def read(data: Any, what: str) -> dict[str, Any]:
        pairs = inner.read(data, what)
        values = dict(pairs)
        if len(values) != len(pairs):
            raise ValueError("a name is there twice")
        return values

    return Codec(read, lambda value: inner.to_plain(value.items()), inner.plain)


AS_ROW = Form(lambda annotation: _row(annotation))
"""Stores a record as a list of its fields, as :func:`row` does for all of a class."""

_MOST_SHARED, _MOST_SHARED_BYTES = 4096, 1024


def _shared(codec: Codec) -> Codec:
    kept: dict[bytes, Any] = {}

    def read(data: Any, what: str) -> Any:
        if type(data) is not bytes:
            raise _unexpected(data, _NAMES[bytes])
        value = kept.get(data)
        if value is None:
            value = codec.read(decode(data, what), what)
            if len(kept) < _MOST_SHARED and len(data) <= _MOST_SHARED_BYTES:
                kept[data] = value
        return value

    return Codec(read, lambda value: encode(codec.to_plain(value)), (bytes,))


AS_FILE = Form(lambda annotation: Codec(annotation.from_bytes, annotation.to_bytes, (bytes,)))
"""Stores a record as the bytes that its ``to_bytes`` gives and its ``from_bytes`` reads."""

AS_PAIRS = Form(_as_pairs)
"""Stores a mapping whose order matters as a list of pairs."""
