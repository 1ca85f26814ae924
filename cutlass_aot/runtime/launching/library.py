"""Map a bundle's libraries: read once, verified, and mapped from the very bytes that were verified."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import os
import sys
import threading
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.runtime.files.verified_read import not_for_files, read_file, why_unreadable
from cutlass_aot.schema.bundles.catalog import MAX_LIBRARY_BYTES, FileReference
from cutlass_aot.schema.kernels.artifact import CODE_PREFIX, EXPORT_PREFIX

_ELF = b"\x7fELF"
_serial = itertools.count(1)


class _Mapping:
    __slots__ = ("codes", "functions", "library", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.library: ctypes.CDLL | None = None
        self.functions: dict[str, Any] = {}
        # GPU code that slots of the library point to, by symbol: kept for ever, like the mapping.
        self.codes: dict[str, ctypes.Array[ctypes.c_char]] = {}


class Library:
    """One library of a bundle; unpacked and mapped when its first function is needed, and never unmapped.

    ``reference`` is the packed library.
    """

    def __init__(self, root: Path, reference: FileReference) -> None:
        self._root = root
        self._reference = reference
        # By process: a forked child must not wait for a lock that another thread held at the fork.
        self._mappings: dict[int, _Mapping] = {}

    def function(self, symbol: str) -> Any:
        """The ``tvm_ffi.Function`` of an exported function, such as that of a kernel's symbol."""
        mapping = self._mapping()
        function = mapping.functions.get(symbol)
        if function is None:
            import tvm_ffi

            made = tvm_ffi.Function.__from_extern_c__(self.address(symbol), keep_alive_object=mapping.library)
            # Two threads may both get here: one of two equal functions is kept.
            function = mapping.functions.setdefault(symbol, made)
        return function

    def address(self, symbol: str) -> int:
        """The address in this process of an exported function of TVM-FFI's calling convention."""
        return self.raw_address(EXPORT_PREFIX + symbol)

    def provide(self, symbol: str, code: Callable[[], bytes]) -> None:
        """Give a kernel its GPU code, unless it has it; required before its function is called.

        ``code`` returns the verified code; what it raises is passed on.
        """
        mapping = self._mapping()
        if symbol in mapping.codes:
            return
        slot = (ctypes.c_uint64 * 2).from_address(self.raw_address(CODE_PREFIX + symbol))
        data = code()
        with mapping.lock:
            # Two threads may both get here: the first one's copy is kept. A third launches as soon as it sees
            # the symbol in this dictionary, so the slot is filled first.
            if symbol not in mapping.codes:
                held = ctypes.create_string_buffer(data, len(data))
                slot[1] = len(held)
                slot[0] = ctypes.addressof(held)
                mapping.codes[symbol] = held

    def raw_address(self, name: str) -> int:
        """The address in this process of anything that the library exports."""
        mapping = self._mapping()
        if mapping.library is None:
            with mapping.lock:
                if mapping.library is None:
                    mapping.library = self._map()
        try:
            function = getattr(mapping.library, name)
        except AttributeError:
            raise CorruptFile(
                f"{self._root / self._reference.path} has no symbol {name}: "
                "catalog and library do not belong together, build the bundle again"
            ) from None
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def _mapping(self) -> _Mapping:
        process = os.getpid()
        return self._mappings.get(process) or self._mappings.setdefault(process, _Mapping())

    def _map(self) -> ctypes.CDLL:
        path = self._root / self._reference.path
        try:
            _load_tvm_ffi()
            return map_library(self._copy)
        except (ImportError, OSError) as error:
            if isinstance(error, OSError) and not_for_files(error):
                # Every mapped library keeps a file descriptor open.
                raise BundleError(f"{path} cannot be mapped: {why_unreadable(error)}") from error
            raise BundleError(
                f"{path} cannot be mapped: {error}; see cutlass-aot doctor for what this machine has"
            ) from error

    def _copy(self, descriptor: int) -> None:
        # Imported here: opening a bundle and finding kernels need no zstandard.
        from cutlass_aot.schema.compression import decompressed

        path = self._root / self._reference.path
        packed = read_file(self._root, self._reference)
        try:
            data = decompressed(packed, MAX_LIBRARY_BYTES)
        except CorruptFile as error:
            raise CorruptFile(f"{path}: {error}: build or fetch the bundle again") from None
        if not data.startswith(_ELF):
            raise CorruptFile(f"{path} is not a shared library")
        _write(descriptor, data)


def _load_tvm_ffi() -> None:
    """Load libtvm_ffi.so, which the libraries of a bundle need: they then get the one that is loaded.

    Importing the package does that too, but takes longer than all the rest of a first launch.
    """
    if "tvm_ffi" in sys.modules:
        # Perhaps not yet whole: this waits for another thread that imports it.
        import tvm_ffi

        return
    found = PathFinder.find_spec("tvm_ffi")
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder, "lib", "libtvm_ffi.so")
        if path.is_file():
            ctypes.CDLL(os.fspath(path), ctypes.RTLD_GLOBAL)
            return
    # It lies elsewhere, and the package knows where.
    import tvm_ffi  # noqa: F401


def map_library(copy: Callable[[int], None]) -> ctypes.CDLL:
    """Map a shared library from a copy in memory, so that it cannot be exchanged after it was verified.

    ``copy`` writes the library to a descriptor, and raises if it is not as it should be; its errors are
    passed on. OSError is raised if the loader refuses the library.
    """
    mappers: tuple[Callable[[Callable[[int], None]], ctypes.CDLL], ...] = (_map_memfd, _map_temporary_file)
    if not hasattr(os, "memfd_create"):
        mappers = mappers[1:]
    for mapper in mappers[:-1]:
        try:
            return mapper(copy)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # A temporary file would need a descriptor too, and its directory could not even be removed.
                raise
            # No /proc, or a policy against mapping such memory; the loader's own refusals recur with a file.
            continue
    return mappers[-1](copy)


def _map_memfd(copy: Callable[[int], None]) -> ctypes.CDLL:
    descriptor = os.memfd_create("cutlass-aot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        copy(descriptor)
        fcntl.fcntl(
            descriptor,
            fcntl.F_ADD_SEALS,
            fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL,
        )
        # The descriptor stays open for ever, as the library stays mapped. Code that opens the library's path
        # later, such as that which writes the backtrace of an error, would otherwise open whatever file has
        # the number then; if that is empty, the process dies of SIGBUS.
        return ctypes.CDLL(f"/proc/self/fd/{_unique_steps()}{descriptor}")
    except BaseException:
        os.close(descriptor)
        raise


def _unique_steps() -> str:
    """Path components that change nothing, different at every call.

    The loader takes a path that it has seen for the library already mapped from it, and descriptor numbers
    are reused where a program closes them all. The bits of a serial number, written as ``./`` and ``.//``,
    make each path unique.
    """
    return "".join("./" if bit == "0" else ".//" for bit in f"{next(_serial):b}")


def _map_temporary_file(copy: Callable[[int], None]) -> ctypes.CDLL:
    # Imported here: it imports many modules, and few machines come to this.
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="cutlass-aot-") as folder:
        path = Path(folder) / "library.so"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o500)
        try:
            copy(descriptor)
        finally:
            os.close(descriptor)
        return ctypes.CDLL(os.fspath(path))


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
