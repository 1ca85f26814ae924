"""The layout of a store: the same names in a directory, on a web server and in a bucket.

::

    FORMAT                            schema version of the store
    blobs/sha256/<2>/<digest>.zst     object code and libraries, compressed, named by their content's digest
    records/<kind>/<2>/<key>          sealed msgpack; written after its blobs: it commits them
    roots/<name>                      records that a collection never removes
    durations                         how long kernels took to compile
    build_state/<digest>              what a builder remembers from one build to the next
    logs/<2>/<key>.txt                the compiler's output for a kernel that failed
    damaged/                          damaged files that were set aside
    locks/                            one for each key that is being compiled
    tmp/                              a workspace for each builder
"""

from __future__ import annotations

import re

from cutlass_aot.errors import SchemaTooNew, StoreError

SCHEMA = 2
"""Version of the store and of its records. 2: blobs are compressed, and records name their blobs."""

SHARED_KINDS = ("kernel", "library", "plan")
"""Kinds of records that upstream stores give and take; failures, and which bundle is where, stay local."""

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
"""The name of a file begins with this until it is whole."""

DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_RECORD_BYTES = 1 << 28
MAX_BLOB_BYTES = 1 << 30
_MAX_FORMAT_BYTES = 64

_MAX_RECORD_BYTES_OF_KIND = {"kernel": 1 << 20, "library": 1 << 20, "failure": 1 << 23}
"""Limits of records of one kernel or library; the longest text in them is the log of a failure."""


def record_limit(kind: str) -> int:
    """Most bytes of a record of a kind; bounded because decoding it takes many times as much memory."""
    return _MAX_RECORD_BYTES_OF_KIND.get(kind, MAX_RECORD_BYTES)


def blob_name(sha256: str) -> str:
    """Path of a blob relative to the store.

    Raises:
        ValueError: if this is not a SHA-256, as may be in a record of untrusted origin.
    """
    if not DIGEST.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is not a SHA-256 in hexadecimal")
    return f"{BLOBS}/{sha256[:2]}/{sha256}{BLOB_SUFFIX}"


def record_name(kind: str, key: str) -> str:
    """Path of a record relative to the store."""
    return f"{RECORDS}/{kind}/{key[:2]}/{key}"


def format_text() -> bytes:
    """The contents of FORMAT."""
    return f"cutlass-aot store {SCHEMA}\n".encode()


def check_format(data: bytes, where: str) -> None:
    """Check the contents of FORMAT; errors call the store ``where``."""
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
