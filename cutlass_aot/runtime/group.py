"""One group of an open bundle: its child index and its library, each loaded when first needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cutlass_aot.errors import CorruptFile, Incompatible
from cutlass_aot.runtime.files import read_file
from cutlass_aot.runtime.library import Library
from cutlass_aot.schema.catalog import GroupEntry, KernelEntry, group_from_bytes


class Group:
    """A group's index and library.

    Args:
        root: the bundle.
        entry: the group's entry in the parent index.
        library: what has its kernels on this machine's CPU architecture, None if nothing has.
        require: called with a target and a device before anything is mapped; raises where it cannot run.
    """

    def __init__(
        self, root: Path, entry: GroupEntry, library: Library | None, require: Callable[[str, int], None]
    ) -> None:
        self.entry = entry
        self._root = root
        self._require = require
        self._kernels: tuple[KernelEntry, ...] | None = None
        self._library = library

    @property
    def kernels(self) -> tuple[KernelEntry, ...]:
        """The group's kernels, in the order of its index; decoded once.

        Raises:
            CorruptFile: if the index is not what the parent says.
            BundleError: if it cannot be read.
        """
        if self._kernels is None:
            # Without a lock, which a forked child could inherit held: two threads decode the same twice.
            self._kernels = self._read()
        return self._kernels

    def _read(self) -> tuple[KernelEntry, ...]:
        entry = self.entry
        what = str(self._root / entry.child.path)
        kernels = group_from_bytes(read_file(self._root, entry.child), what)
        shared = (entry.operation, entry.operands, entry.accumulator, entry.epilogue, entry.target)
        for found in kernels:
            kernel = found.kernel
            if shared != (
                kernel.operation,
                kernel.operands,
                kernel.accumulator,
                kernel.epilogue,
                kernel.target,
            ):
                raise CorruptFile(f"{what} has a kernel of another group: build the bundle again")
        if len(kernels) != entry.count:
            raise CorruptFile(
                f"{what} has {len(kernels)} kernels, the catalog says {entry.count}: build the bundle again"
            )
        return kernels

    def function(self, kernel: KernelEntry, device: int) -> Any:
        """The ``tvm_ffi.Function`` of one of the group's kernels.

        Raises:
            Incompatible: if it cannot run on this machine and device.
            CorruptFile: if the library is not what the catalog says.
            BundleError: if the library cannot be read or mapped.
        """
        self._require(self.entry.target, device)
        if self._library is None:
            raise Incompatible(
                f"{self._root}: group {self.entry.name} has no library for this machine, only for "
                f"{', '.join(sorted(self.entry.libraries)) or 'no host'}"
            )
        return self._library.function(kernel.kernel.symbol)
