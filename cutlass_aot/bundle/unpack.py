"""Unpack kernels of a bundle into plain files, for programs that load them without Python.

::

    lib/<host>/*.so         libraries of host code
    code/<symbol>.fatbin    GPU code of each kernel
    index.json              what is where

A program maps the library, writes address and size of the GPU code into the slot
``cutlass_aot_code_<symbol>``, and calls ``__tvm_ffi_<symbol>``. Nothing in the files says that they are what
the bundle had: whoever needs that verifies the bundle.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.runtime.bundle import open_bundle
from cutlass_aot.runtime.files import read_file
from cutlass_aot.runtime.handle import KernelHandle
from cutlass_aot.schema.catalog import MAX_FILE_BYTES, MAX_LIBRARY_BYTES, FileReference
from cutlass_aot.schema.compression import decompressed
from cutlass_aot.schema.encoding import digest


def unpack_bundle(bundle: Path, output: Path, kernels: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Unpack a bundle, or some of its kernels.

    Args:
        bundle: its directory; every byte that is taken is verified.
        output: directory to write, which must not exist: it is whole when it appears there.
        kernels: names, or beginnings of names or digests; none for all.

    Returns:
        What ``index.json`` holds: of each kernel ``name``, ``symbol``, ``target``, ``code`` and
        ``libraries``, host to path; paths are relative to ``output``.

    Raises:
        BundleError: if there is no bundle, no such kernel, something is at ``output``, or the disk refuses.
        CorruptFile: if a file is not what its digest says.
    """
    opened = open_bundle(bundle, check=False)
    handles = [opened.kernel(name) for name in kernels] if kernels else opened.kernels()
    if output.exists():
        raise BundleError(f"{output} exists: name a directory that is to be made")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    except OSError as error:
        raise BundleError(f"cannot unpack to {output}: {error.strerror or error}") from None
    try:
        index = _unpack(bundle, sorted(handles, key=lambda handle: handle.name), folder)
        text = json.dumps(index, indent=1, sort_keys=True) + "\n"
        (folder / "index.json").write_text(text, encoding="utf-8")
        folder.chmod(0o755)
        folder.rename(output)
    except OSError as error:
        raise BundleError(f"cannot unpack to {output}: {error.strerror or error}: make room") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return index


def _unpack(root: Path, handles: Sequence[KernelHandle], folder: Path) -> list[dict[str, Any]]:
    codes: dict[FileReference, bytes] = {}
    index = []
    for handle in handles:
        entry, packed = handle.entry, handle.group.code
        if packed not in codes:
            codes[packed] = decompressed(read_file(root, packed), MAX_FILE_BYTES)
        data = codes[packed][entry.code.offset : entry.code.offset + entry.code.size]
        if digest(data) != entry.code.sha256:
            raise CorruptFile(f"{root / packed.path} lacks the GPU code of {handle.name}: build it again")
        code = Path("code", f"{entry.kernel.symbol}.fatbin")
        _write(folder / code, data)
        libraries = {
            host: _library(root, references[entry.library], folder)
            for host, references in sorted(handle.group.libraries.items())
        }
        index.append(
            {
                "name": handle.name,
                "symbol": entry.kernel.symbol,
                "target": handle.target,
                "code": code.as_posix(),
                "libraries": libraries,
            }
        )
    return index


def _library(root: Path, reference: FileReference, folder: Path) -> str:
    path = reference.path.removesuffix(".zst")
    if not (folder / path).exists():
        _write(folder / path, decompressed(read_file(root, reference), MAX_LIBRARY_BYTES))
    return path


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o644)
