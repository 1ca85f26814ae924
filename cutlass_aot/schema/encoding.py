"""Canonical msgpack: the same value always gives the same bytes; readers are bounded.

Maps are written with their keys sorted, tuples as arrays. Only ``None``, ``bool``, ``int``, ``float``,
``str``, ``bytes``, lists, tuples and string-keyed maps can be written: what cannot be keyed is refused.
Format: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import msgpack

from cutlass_aot.errors import CorruptFile, SchemaTooNew

MAX_DEPTH = 32
MAX_ITEMS = 4_000_000

MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What is raised where plain data of untrusted origin is taken apart; the last by text of what is nested."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_SHOWN = 100


_LEAVES = frozenset((str, int, bool, bytes, float, type(None)))


def canonical(value: Any, _depth: int = 0) -> Any:
    """Return ``value`` with maps sorted and tuples as lists.

    Raises:
        TypeError: for a type whose encoding would not be stable.
    """
    # Records are small and there are tens of thousands: leaves cost no call.
    if type(value) in _LEAVES or isinstance(value, (int, float, str, bytes)):
        return value
    if _depth > MAX_DEPTH:
        raise TypeError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, (list, tuple)):
        return [item if type(item) in _LEAVES else canonical(item, _depth + 1) for item in value]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError("only maps with string keys can be encoded")
        return {
            key: item if type(item := value[key]) in _LEAVES else canonical(item, _depth + 1)
            for key in sorted(value)
        }
    raise TypeError(f"{type(value).__name__} has no canonical encoding")


def encode(value: Any, *, within: int = 0) -> bytes:
    """Encode ``value`` canonically.

    Args:
        value: plain data.
        within: levels of what it is to be part of.

    Raises:
        TypeError: for what cannot be encoded, or is nested too deep.
    """
    packed: bytes = msgpack.packb(canonical(value, within), use_bin_type=True)
    return packed


def join_map(parts: Mapping[str, bytes]) -> bytes:
    """The canonical encoding of a map, from the encodings of its values.

    Args:
        parts: fewer than 16; name to what :func:`encode` gave for the value.
    """
    if len(parts) > 15:
        raise ValueError(f"{len(parts)} values: a map of more than 15 has another header")
    return bytes((0x80 | len(parts),)) + b"".join(encode_text(name) + parts[name] for name in sorted(parts))


@functools.lru_cache(maxsize=1024)
def encode_text(text: str) -> bytes:
    """What :func:`encode` gives for a text that occurs again and again."""
    return encode(text)


def decode(data: bytes, what: str) -> Any:
    """Decode msgpack bytes of untrusted origin; no length field can claim more than is there.

    Raises:
        CorruptFile: if the bytes are not one complete msgpack value.
    """
    bound = min(len(data), MAX_ITEMS)
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            use_list=True,
            max_str_len=len(data),
            max_bin_len=len(data),
            max_array_len=bound,
            max_map_len=bound,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(
            f"{what} is not readable msgpack ({str(error) or type(error).__name__}); "
            "it is truncated or altered: build or fetch it again"
        ) from None
    except MemoryError:
        # Room for an array is taken when its length is read, and arrays can be inside each other.
        raise CorruptFile(
            f"{what} claims to hold more than there is memory for: build or fetch it again"
        ) from None


def decode_json(data: bytes, what: str, advice: str = "build or fetch it again") -> Any:
    """Decode JSON of untrusted origin, of a size that is bounded already.

    Raises:
        CorruptFile: if it is not JSON in UTF-8; ``advice`` is its last words.
    """
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{what} is not readable JSON ({error}): {advice}") from None


def shown(value: Any) -> str:
    """A value of untrusted origin for an error: short, printable, and of what holds others the type alone."""
    # Python makes no text of a number of thousands of digits, which TOML has in hexadecimal.
    if isinstance(value, int) and value.bit_length() > 4 * _MAX_SHOWN:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, (str, int, float)):
        text = ascii(value[:_MAX_SHOWN] if isinstance(value, str) else value)
        return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
    return "bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"


def digest(data: bytes) -> str:
    """SHA-256 of ``data`` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """Whether a text is what :func:`digest` gives."""
    return _DIGEST.fullmatch(text) is not None


def seal(kind: str, schema: int, body: Any) -> bytes:
    """Encode ``body`` in an envelope that carries its kind, schema version and digest."""
    payload = encode(body)
    return encode({"kind": kind, "schema": schema, "sha256": digest(payload), "body": payload})


def check_schema(version: Any, newest: int, what: str) -> int:
    """A file's schema version, after a look at it.

    Args:
        version: what the file says.
        newest: the newest that this reader knows.
        what: how to call the file in an error.

    Raises:
        CorruptFile: for what is not a version.
        SchemaTooNew: for one above ``newest``.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CorruptFile(f"{what} has no valid schema version (found {shown(version)})")
    if version > newest:
        raise SchemaTooNew(
            f"{what} has schema version {version}, this cutlass-aot reads up to {newest}: "
            "upgrade cutlass-aot to a release that knows it"
        )
    return version


def without_header(record: Any, kind: str, schema: int, what: str) -> dict[str, Any]:
    """The fields of a record that names its kind and schema version, without those two.

    Args:
        record: plain data of untrusted origin.
        kind: the kind expected; ``""`` for a record that names its schema version alone.
        schema: the schema version this reader knows.
        what: how to call the record in an error.

    Raises:
        CorruptFile: for another kind, or an older version.
        SchemaTooNew: for a schema version above ``schema``.
    """
    found = record.get("kind") if isinstance(record, dict) else record
    if not isinstance(record, dict) or (kind and found != kind):
        raise CorruptFile(
            f"{what} is not a {kind or 'map'!r} file (found {shown(found)}): build or fetch it again"
        )
    version = check_schema(record.get("schema"), schema, what)
    if version < schema:
        raise CorruptFile(
            f"{what} has schema version {version}, which this cutlass-aot no longer reads: "
            f"build it again, with version {schema}"
        )
    head = ("kind", "schema") if kind else ("schema",)
    return {name: value for name, value in record.items() if name not in head}


def unseal(data: bytes, kind: str, schema: int, what: str) -> Any:
    """Open an envelope written by :func:`seal`.

    Args:
        data: the file's bytes.
        kind: the kind expected.
        schema: the schema version this reader knows.
        what: how to call the file in an error.

    Raises:
        CorruptFile: for another kind of file, bytes that do not match their digest, or an older version.
        SchemaTooNew: for a schema version above ``schema``.
    """
    envelope = without_header(decode(data, what), kind, schema, what)
    payload = envelope.get("body")
    if not isinstance(payload, bytes) or envelope.get("sha256") != digest(payload):
        raise CorruptFile(f"{what} does not match its own digest: it was altered after writing")
    return decode(payload, what)
