"""Where things stand in a store: the same names in a directory, behind a web server and in a bucket.

::

    FORMAT                            schema version of the store
    blobs/sha256/<2>/<digest>.zst     object code and libraries, compressed, named by what they hold
    records/<kind>/<2>/<key>          sealed msgpack; written after the blobs it names: it is the commit
    roots/<name>                      records that are kept however old they are
    durations                         how long kernels took to compile
    build_state/<digest>              what a builder remembers from one build to the next
    logs/<2>/<key>.txt                the compiler's own words about a kernel that failed
    damaged/                          what a reader found altered, set aside
    locks/                            one a key while it is being compiled
    tmp/                              files on their way, a directory for each builder
"""

from __future__ import annotations

import re

from cutlass_aot.errors import SchemaTooNew, StoreError

SCHEMA = 2
"""Version of the store and of its records. 2: blobs are compressed, and records name their blobs."""

SHARED_KINDS = ("kernel", "library", "plan")
"""Kinds that upstream stores serve and take; what failed, and which bundle is where, is its own."""

FORMAT_NAME = "FORMAT"
BLOBS = "blobs/sha256"
RECORDS = "records"
ROOTS = "roots"
LOGS = "logs"
DAMAGED = "damaged"
LOCKS = "locks"
WORKSPACES = "tmp"
DURATIONS_NAME = "durations"
BLOB_SUFFIX = ".zst"
NEW = ".new-"
"""What the name of a file begins with until it is whole."""

DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_RECORD_BYTES = 1 << 28
MAX_BLOB_BYTES = 1 << 30
_MAX_FORMAT_BYTES = 64

_MAX_RECORD_BYTES_OF_KIND = {"kernel": 1 << 20, "library": 1 << 20, "failure": 1 << 23}
"""Of those that one kernel or library has; the longest word in them is the log of a failure."""


def record_limit(kind: str) -> int:
    """Most bytes that a record of a kind has: what is read takes many times as much memory."""
    return _MAX_RECORD_BYTES_OF_KIND.get(kind, MAX_RECORD_BYTES)


def blob_name(sha256: str) -> str:
    """Path of a blob below the store.

    Raises:
        ValueError: if this is not a SHA-256: a record of foreign origin may say anything.
    """
    if not DIGEST.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is not a SHA-256 in hexadecimal")
    return f"{BLOBS}/{sha256[:2]}/{sha256}{BLOB_SUFFIX}"


def record_name(kind: str, key: str) -> str:
    """Path of a record below the store."""
    return f"{RECORDS}/{kind}/{key[:2]}/{key}"


def format_text() -> bytes:
    """What FORMAT holds."""
    return f"cutlass-aot store {SCHEMA}\n".encode()


def check_format(data: bytes, where: str) -> None:
    """Look at what FORMAT holds.

    Args:
        data: the file's bytes.
        where: what to call the store in an error.
    """
    text = data[:_MAX_FORMAT_BYTES].decode("ascii", "replace").strip()
    kind, _, version = text.rpartition(" ")
    if kind != "cutlass-aot store" or not version.isdecimal():
        expected = format_text().decode().strip()
        raise StoreError(
            f"{where} is not a cutlass-aot store: FORMAT says {text!r}, expected {expected!r}; "
            "name another one, or delete it if it was one"
        )
    if int(version) > SCHEMA:
        raise SchemaTooNew(
            f"{where} has store version {version}, this cutlass-aot reads up to {SCHEMA}: "
            "upgrade cutlass-aot or choose another store"
        )
    if int(version) < SCHEMA:
        raise StoreError(
            f"{where} has store version {version}, which this cutlass-aot no longer reads: a store is a "
            "cache, so delete it, or name another one, and build again"
        )
