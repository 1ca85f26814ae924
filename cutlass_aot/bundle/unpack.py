"""Unpack kernels of a bundle into plain files, for programs that load them without Python.

::

    lib/<host>/*.so         libraries of host code
    code/<symbol>.fatbin    GPU code of each kernel
    index.json              what is where

A program maps the library, writes address and size of the GPU code into the slot
``cutlass_aot_code_<symbol>``, and calls ``__tvm_ffi_<symbol>``. The files have no digests or signatures: a
program that needs them verifies the bundle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cutlass_aot.bundle.replace import create, disk_error, make_folders, synchronise
from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.runtime.bundle import open_bundle
from cutlass_aot.runtime.files.temporary_folder import temporary_folder
from cutlass_aot.runtime.files.verified_read import read_file
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.schema.bundles.catalog import MAX_FILE_BYTES, MAX_LIBRARY_BYTES, FileReference
from cutlass_aot.schema.compression import Unpacking, decompressed
from cutlass_aot.schema.encoding import digest


def unpack_bundle(bundle: Path, output: Path, kernels: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Unpack a bundle, or some of its kernels, verified, into a directory that must not exist.

    It appears when it is complete. ``kernels`` are names, or beginnings of names or digests; none for all.

    Returns:
        The contents of ``index.json``: of each kernel ``name``, ``symbol``, ``target``, ``code`` and
        ``libraries``, host to path; paths are relative to ``output``.
    """
    opened = open_bundle(bundle, check=False)
    handles = [opened.kernel(name) for name in kernels] if kernels else opened.kernels()
    # lexists also finds a link that leads nowhere.
    if os.path.lexists(output):
        raise BundleError(f"{output} exists: name a directory that is to be made, or remove it yourself")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(beside=output) as temporary:
            folder = temporary / "new"
            index = _unpack(bundle, sorted(handles, key=lambda handle: handle.name), folder)
            folder.rename(output)
        synchronise(output.parent)
    except OSError as error:
        raise disk_error(error, output, "unpack again", "the unpacked bundle") from None
    return index


def _unpack(root: Path, handles: Sequence[KernelHandle], folder: Path) -> list[dict[str, Any]]:
    """Write everything to a new folder; whoever may enter it may read all of it."""
    folders = make_folders(folder, [path for handle in handles for path in _paths(handle)])
    files = {file for handle in handles for file in handle.group.files}
    unpacking = Unpacking(sum(file.size for file in files))
    codes: dict[FileReference, bytes] = {}
    index = []

    @contextmanager
    def named(packed: FileReference) -> Iterator[None]:
        try:
            yield
        except CorruptFile as error:
            raise CorruptFile(f"{root / packed.path}: {error}: build or fetch the bundle again") from None

    def opened(packed: FileReference, most: int) -> bytes:
        data = read_file(root, packed)
        with named(packed):
            content = decompressed(data, unpacking.bound(most))
            unpacking.take(len(content))
        return content

    for handle in handles:
        entry, packed = handle.entry, handle.group.code
        if packed not in codes:
            codes[packed] = opened(packed, MAX_FILE_BYTES)
        # Counted as it is written, because kernels could share all of it.
        with named(packed):
            unpacking.take(entry.code.size)
        data = codes[packed][entry.code.offset : entry.code.offset + entry.code.size]
        if digest(data) != entry.code.sha256:
            raise CorruptFile(f"{root / packed.path} lacks the GPU code of {handle.name}: build it again")
        code, libraries = _code(handle), _libraries(handle)
        _write(folder / code, data)
        for host, path in libraries.items():
            if not (folder / path).exists():
                packed = handle.group.libraries[host][entry.library]
                _write(folder / path, opened(packed, MAX_LIBRARY_BYTES))
        index.append(
            {
                "name": handle.name,
                "symbol": entry.kernel.symbol,
                "target": handle.target,
                "code": code,
                "libraries": libraries,
            }
        )
    _write(folder / "index.json", (json.dumps(index, indent=1, sort_keys=True) + "\n").encode())
    for item in folders:
        synchronise(item)
    return index


def _code(handle: KernelHandle) -> str:
    return f"code/{handle.entry.kernel.symbol}.fatbin"


def _libraries(handle: KernelHandle) -> dict[str, str]:
    return {
        host: references[handle.entry.library].path.removesuffix(".zst")
        for host, references in sorted(handle.group.libraries.items())
    }


def _paths(handle: KernelHandle) -> list[str]:
    return [_code(handle), *_libraries(handle).values()]


def _write(path: Path, data: bytes) -> None:
    with create(path) as file:
        file.write(data)
