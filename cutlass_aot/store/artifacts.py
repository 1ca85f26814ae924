"""Artifacts of kernels in a store: read one, keep one."""

from __future__ import annotations

from pathlib import Path

from cutlass_aot.errors import CorruptFile, StoreError
from cutlass_aot.schema.artifact import Artifact, Facts
from cutlass_aot.schema.kernel import Kernel
from cutlass_aot.store.store import Store


def read_artifact(store: Store | None, kernel_key: str, kernel: Kernel) -> tuple[Artifact | None, str]:
    """What the store has for a kernel under its key, and why it does not count if it does not."""
    if store is None:
        return None, "there is no store yet"
    record = store.get_record("kernel", kernel_key)
    if record is None:
        return None, "not built with this toolchain and generator"
    try:
        if Kernel.from_record(record["kernel"]) != kernel:
            return None, "its record is another kernel's"
        artifact = Artifact(
            object_sha256=str(record["sha256"]),
            object_bytes=int(record["size"]),
            facts=Facts.from_record(record["facts"]),
            seconds=float(record["seconds"]),
        )
    except (KeyError, TypeError, ValueError, CorruptFile):
        return None, "its record is malformed"
    if store.get_blob(artifact.object_sha256) is None:
        return None, "its object is missing or damaged"
    return artifact, "present"


def keep_artifact(store: Store, kernel_key: str, kernel: Kernel, artifact: Artifact, file: Path) -> None:
    """Keep a compiled object and its record. Blob first, record second: the record is the commit."""
    store.adopt_blob(file, artifact.object_sha256)
    _put(store, kernel_key, kernel, artifact)
    store.drop_log(kernel_key)


def copy_artifact(
    source: Store, destination: Store, kernel_key: str, kernel: Kernel, artifact: Artifact
) -> None:
    """Copy an object and its record from one store to another.

    Raises:
        StoreError: if the object is gone from the source, or the disk refuses.
    """
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
        {
            "kernel": kernel.to_record(),
            "sha256": artifact.object_sha256,
            "size": artifact.object_bytes,
            "facts": artifact.facts.to_record(),
            "seconds": artifact.seconds,
        },
    )
