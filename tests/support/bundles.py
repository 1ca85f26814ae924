"""Small bundles for tests of the runtime, written with the schema alone; and tensors that claim a GPU."""

from __future__ import annotations

import ctypes
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cutlass_aot.builder.link.packing import group_names
from cutlass_aot.runtime.files.verified_read import MANIFEST_KIND
from cutlass_aot.schema.bundles.catalog import (
    CATALOG_NAME,
    MANIFEST_NAME,
    SCHEMA,
    Catalog,
    FileReference,
    GroupEntry,
    Groups,
    RankingReference,
    VersionRequirements,
    common_alignment,
)
from cutlass_aot.schema.bundles.group_index import CodeSpan, KernelEntry, group_to_bytes
from cutlass_aot.schema.compression import compress
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.artifact import Facts
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.requests.request import OPERATION, CompiledRequest
from cutlass_aot.schema.requests.request_index import requests_to_bytes
from cutlass_aot.schema.tuning.ranking import Ranking
from tests.support.kernels import gemm

HOST = platform.machine()
REQUIREMENTS = VersionRequirements(cuda_driver="12.0", tvm_ffi="0.1.15.post2", glibc="2.28")
FAKE_LIBRARY = b"\x7fELF, but nothing behind it"


def code_of(kernel: Kernel) -> bytes:
    """What stands in for a kernel's GPU code: as long for each."""
    return f"GPU code of {kernel.digest}".encode()


def named_groups(kernels: Iterable[Kernel]) -> dict[str, list[KernelEntry]]:
    """Entries of kernels by the name of their group, in order."""
    kernels = sorted(kernels, key=lambda kernel: (kernel.name, kernel.digest))
    names = group_names(kernels)
    groups: dict[str, list[KernelEntry]] = {}
    for kernel in kernels:
        members = groups.setdefault(names[kernel.group], [])
        members.append(entry(kernel, len(members)))
    return groups


def entry(kernel: Kernel, position: int = 0) -> KernelEntry:
    """A kernel whose code is the one after ``position`` others in its group's."""
    facts = Facts(kernel.target, "13.0", 168, 0, 1024, 40_000)
    code = code_of(kernel)
    return KernelEntry(
        kernel,
        digest(kernel.digest.encode()),
        facts,
        {"generator_version": "1"},
        CodeSpan(position * len(code), len(code), digest(code)),
    )


def put(root: Path, path: str, data: bytes) -> FileReference:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return FileReference(path, len(data), digest(data))


def write_manifest(root: Path, files: Iterable[FileReference]) -> None:
    body = {
        "schema": SCHEMA,
        "kind": MANIFEST_KIND,
        "files": {file.path: {"sha256": file.sha256, "size": file.size} for file in files},
    }
    (root / MANIFEST_NAME).write_text(json.dumps(body, sort_keys=True))


def write_bundle(
    root: Path,
    kernels: Iterable[Kernel],
    *,
    requirements: VersionRequirements = REQUIREMENTS,
    hosts: tuple[str, ...] = (HOST,),
    libraries: Mapping[str, bytes] | None = None,
    launcher: bytes = FAKE_LIBRARY,
    rankings: Sequence[Ranking] = (),
    requests: Sequence[CompiledRequest] = (),
    **catalog_fields: Any,
) -> Path:
    """Write a bundle, rankings unchecked.

    ``libraries`` maps group names to library bytes; others, like ``launcher``, hold nothing that loads.
    Groups of one readable name are told apart as the builder does. Kernels of ``requests`` are written beside
    the others. ``catalog_fields`` go into the catalog.
    """
    by_kernel = {compiled.request.kernel.digest: compiled for compiled in requests}
    groups = named_groups([*kernels, *(compiled.request.kernel for compiled in requests)])
    files, entries = [], []
    for name, members in sorted(groups.items()):
        child = put(root, f"groups/{name}.msgpack", group_to_bytes(members))
        data = (libraries or {}).get(name, FAKE_LIBRARY)
        packed = b"".join(code_of(member.kernel) for member in members)
        code = put(root, f"code/{name}.zst", compress(packed, 3))
        linked = {host: (put(root, f"lib/{host}/{name}.so.zst", compress(data, 3)),) for host in hosts}
        first = members[0].kernel
        own = [ranking for ranking in rankings if ranking.group == first.group]
        ranked = [
            RankingReference(
                ranking.gpu,
                ranking.measured,
                put(root, f"rankings/{name}-{number}.msgpack", ranking.to_bytes()),
            )
            for number, ranking in enumerate(sorted(own, key=lambda r: (not r.measured, r.gpu)))
        ]
        answered = None
        if first.operation == OPERATION:
            answers = [by_kernel[member.kernel.digest] for member in members]
            answered = put(root, f"requests/{name}.msgpack", requests_to_bytes(answers))
            files.append(answered)
        files += [
            child,
            code,
            *(own[0] for own in linked.values()),
            *(reference.file for reference in ranked),
        ]
        entries.append(
            GroupEntry(
                name, first.operation, first.operands, first.accumulator, first.epilogue,
                first.target, len(members), child, code, linked, tuple(ranked), first.parameters, answered,
                first.cost, first.accumulation,
            )
        )  # fmt: skip
    launchers = {host: put(root, f"lib/{host}/launcher.so.zst", compress(launcher, 3)) for host in hosts}
    fields: dict[str, Any] = {
        "name": "small",
        "version": "0.1.0",
        "device": "h200",
        "targets": tuple(sorted({group.target for group in entries})),
        "hosts": hosts,
        "requirements": requirements,
        "provenance": {"nvidia-cutlass-dsl": "4.8.1"},
        "launchers": launchers,
        "groups": Groups.of(entries),
        "alignment": common_alignment(entries),
    }
    catalog = Catalog(**{**fields, **catalog_fields})
    files += [*launchers.values(), put(root, CATALOG_NAME, catalog.to_bytes())]
    write_manifest(root, files)
    return root


def designs(
    tiles: Iterable[tuple[int, int]] = ((64, 128), (128, 128), (128, 256)), **changes: Any
) -> list[Kernel]:
    """Functionally equivalent kernels, one a tile."""
    return [
        gemm(
            design={"family": "F", "tile_shape": (*tile, 64), "cluster_shape": (1, 1), "use_2cta_mma": False},
            **changes,
        )
        for tile in tiles
    ]  # fmt: skip


class ClaimsCuda:
    """Host memory that says through DLPack that it is on a CUDA device; nothing here looks at it."""

    def __init__(self, array: Any, dtype: str, device: int = 0) -> None:
        self.array = array
        self.dtype = dtype
        self.device = device
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.device)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        from cutlass_aot.runtime.launching import dlpack
        from cutlass_aot.runtime.launching.dlpack import DataType, ManagedTensor, capsule_of

        self.streams.append(stream)
        extents = (ctypes.c_int64 * self.array.ndim)(*self.array.shape)
        steps = (ctypes.c_int64 * self.array.ndim)(
            *(stride // self.array.itemsize for stride in self.array.strides)
        )
        pointer = ctypes.POINTER(ctypes.c_int64)
        code, bits = DTYPES[self.dtype].dlpack
        managed = ManagedTensor(
            self.array.ctypes.data, 2, self.device, self.array.ndim, DataType(code, bits, 1),
            ctypes.cast(extents, pointer), ctypes.cast(steps, pointer), 0, None,
            ctypes.cast(dlpack._delete, ctypes.c_void_p),
        )  # fmt: skip
        dlpack._alive[ctypes.addressof(managed)] = (managed, extents, steps, self.array)
        return capsule_of(managed)
