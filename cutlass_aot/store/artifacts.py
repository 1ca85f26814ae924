"""Results of compiling a kernel, in a store: an artifact, or a failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.errors import CorruptFile, StoreError
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import MALFORMED
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.store.store import Store

_MAX_LOG_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """The failure of a kernel with the toolchain that its key names: reason, compiler's log, versions.

    The reason's first line says what, the others where. A very long log is cut at its beginning. The versions
    are those of installed packages.
    """

    reason: str
    log: str
    versions: Mapping[str, str]


def read_artifact(store: Store | None, kernel_key: str, kernel: Kernel) -> tuple[Artifact | None, str]:
    """The artifact of a kernel in the store, or None; and ``present``, or why there is none, in words."""
    if store is None:
        return None, "there is no store yet"
    record = store.get_record("kernel", kernel_key)
    if record is None:
        return None, "not in the store for this toolchain and generator"
    try:
        found = dict(record)
        if from_plain(Kernel, found.pop("kernel"), "a kernel record") != kernel:
            return None, "its record is another kernel's"
        artifact = from_plain(Artifact, found, "an artifact")
    except (*MALFORMED, CorruptFile):
        return None, "its record is malformed"
    content = store.get_blob(artifact.object_sha256)
    if content is None:
        return None, "its object is missing or damaged"
    if len(content) != artifact.object_bytes:
        return None, "its object has another size than its record says"
    return artifact, "present"


def keep_artifact(store: Store, kernel_key: str, kernel: Kernel, artifact: Artifact, file: Path) -> None:
    """Keep a compiled object, and then its record, which commits it; forget an earlier failure."""
    store.adopt_blob(file, artifact.object_sha256)
    _put(store, kernel_key, kernel, artifact)
    store.drop_record("failure", kernel_key)
    store.drop_log(kernel_key)


def copy_artifact(
    source: Store, destination: Store, kernel_key: str, kernel: Kernel, artifact: Artifact
) -> None:
    """Copy an object and its record from one store to another."""
    data = source.get_blob(artifact.object_sha256)
    if data is None:
        raise StoreError(
            f"{source.root}: the object of {kernel.name} is gone or damaged since it was planned: build again"
        )
    destination.put_blob(data)
    _put(destination, kernel_key, kernel, artifact)


def _put(store: Store, kernel_key: str, kernel: Kernel, artifact: Artifact) -> None:
    store.put_record(
        "kernel",
        kernel_key,
        {"kernel": to_plain(kernel), **to_plain(artifact)},
        blobs={artifact.object_sha256: artifact.object_bytes},
    )


def keep_failure(
    store: Store, kernel_key: str, kernel: Kernel, reason: str, log: str, versions: Mapping[str, str]
) -> Path:
    """Keep why a kernel failed, so that it is not compiled in vain again; returns the path of the log's file.

    Only for errors of the compiler about the kernel: lack of memory, signals, timeouts and errors of the disk
    may not happen again. The key covers the toolchain. For the others see :class:`RecordedFailure`.
    """
    path = store.put_log(kernel_key, log)
    store.put_record(
        "failure",
        kernel_key,
        {
            "kernel": to_plain(kernel),
            "reason": _encodable(reason),
            "log": _encodable(log[-_MAX_LOG_CHARACTERS:]),
            "versions": dict(versions),
        },
    )
    return path


def read_failure(store: Store, kernel_key: str) -> RecordedFailure | None:
    """Why a kernel failed; None if that is not known, or if it was compiled since."""
    record = store.get_record("failure", kernel_key)
    try:
        if record is None or store.has_record("kernel", kernel_key):
            return None
        versions = {str(name): str(version) for name, version in record["versions"].items()}
        return RecordedFailure(str(record["reason"]), str(record["log"]), versions)
    except MALFORMED:
        return None


def _encodable(text: str) -> str:
    """Text that can be encoded: a compiler's output may contain lone surrogates."""
    return text.encode("utf-8", "replace").decode()
