"""Canonical msgpack: the same value always gives the same bytes; readers are bounded.

Maps are written with sorted keys, tuples as arrays. Only ``None``, ``bool``, ``int``, ``float``, ``str``,
``bytes``, lists, tuples and maps with text keys can be written. In this module, ``what`` is the name of the
data in an error.
Format: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from cutlass_aot.errors import CorruptFile, SchemaTooNew

MAX_DEPTH = 32
MAX_ITEMS = 4_000_000
MAX_CONTAINERS = 1 << 20
"""Lists and maps in one value: an empty one takes one byte of a file and 64 bytes of memory."""

MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Errors of code that reads untrusted plain data; RecursionError comes from the text of nested data."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_SHOWN = 100


_LEAVES = frozenset((str, int, bool, bytes, float, type(None)))


def canonical(value: Any, _depth: int = 0) -> Any:
    """Return ``value`` with maps sorted and tuples as lists; TypeError if it has no stable encoding."""
    # There are tens of thousands of small records, so leaves are handled without a call.
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
    """Encode plain data canonically; the result will be nested in ``within`` further levels.

    Data that cannot be encoded, or is nested too deep including these levels, is a TypeError.
    """
    packed: bytes = msgpack.packb(canonical(value, within), use_bin_type=True)
    return packed


def join_map(parts: Mapping[str, bytes]) -> bytes:
    """The canonical encoding of a map with fewer than 16 values, from the encodings of its values."""
    if len(parts) > 15:
        raise ValueError(f"{len(parts)} values: a map of more than 15 has another header")
    return bytes((0x80 | len(parts),)) + b"".join(encode_text(name) + parts[name] for name in sorted(parts))


@functools.lru_cache(maxsize=1024)
def encode_text(text: str) -> bytes:
    """:func:`encode` for text, cached."""
    return encode(text)


def decode(data: bytes, what: str) -> Any:
    """Decode one complete msgpack value of untrusted origin; length fields are bounded by the data's size."""
    bound = min(len(data), MAX_ITEMS)
    # Only then can there be more.
    hook = _counting_hook() if len(data) > MAX_CONTAINERS else None
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
            list_hook=hook,
            object_hook=hook,
        )
    except (ValueError, msgpack.UnpackException, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(
            f"{what} is not readable msgpack ({str(error) or type(error).__name__}); "
            "it is truncated or altered: build or fetch it again"
        ) from None
    except MemoryError:
        # An array's memory is allocated when its length is read, and arrays can be nested.
        raise CorruptFile(
            f"{what} claims to hold more than there is memory for: build or fetch it again"
        ) from None


def _counting_hook() -> Callable[[Any], Any]:
    """A hook that has msgpack's reader refuse more than :data:`MAX_CONTAINERS` lists and maps."""
    left = MAX_CONTAINERS

    def seen(value: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"more than {MAX_CONTAINERS} lists and maps")
        return value

    return seen


def decode_json(data: bytes, what: str, advice: str = "build or fetch it again") -> Any:
    """Decode untrusted JSON in UTF-8 whose size the caller has bounded; ``advice`` ends the error message."""
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{what} is not readable JSON ({error}): {advice}") from None


def shown(value: Any) -> str:
    """An untrusted value as short, printable text for an error; only the type of a container is shown."""
    # Python refuses to print a number of thousands of digits, which TOML allows in hexadecimal.
    if isinstance(value, int) and value.bit_length() > 4 * _MAX_SHOWN:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, (str, int, float)):
        text = ascii(value[:_MAX_SHOWN] if isinstance(value, str) else value)
        return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
    return "bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"


def digest(data: bytes | memoryview) -> str:
    """SHA-256 of ``data`` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """Whether text has the form of a :func:`digest`."""
    return _DIGEST.fullmatch(text) is not None


def seal(kind: str, schema: int, body: Any) -> bytes:
    """Encode ``body`` in an envelope that carries its kind, schema version and digest."""
    payload = encode(body)
    return encode({"kind": kind, "schema": schema, "sha256": digest(payload), "body": payload})


def check_schema(version: Any, newest: int, what: str) -> int:
    """Return a file's schema version if it is one and at most ``newest``."""
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CorruptFile(f"{what} has no valid schema version (found {shown(version)})")
    if version > newest:
        raise SchemaTooNew(
            f"{what} has schema version {version}, this cutlass-aot reads up to {newest}: "
            "upgrade cutlass-aot to a release that knows it"
        )
    return version


def without_header(record: Any, kind: str, schema: int, what: str) -> dict[str, Any]:
    """Check the kind and schema version in an untrusted record, and return its other fields.

    ``kind`` is ``""`` for a record without a kind. Another kind or an older version is a CorruptFile, a newer
    one SchemaTooNew.
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


def unseal(data: bytes, kind: str, schema: int, what: str, *, verified: bool = False) -> Any:
    """Check and open an envelope written by :func:`seal`.

    Another kind, an older version, or contents that do not match the digest are a CorruptFile. Of data that
    were ``verified`` as a whole, the digest is not computed again.
    """
    envelope = without_header(decode(data, what), kind, schema, what)
    payload = envelope.get("body")
    if not isinstance(payload, bytes) or not (verified or envelope.get("sha256") == digest(payload)):
        raise CorruptFile(f"{what} does not match its own digest: it was altered after writing")
    return decode(payload, what)
