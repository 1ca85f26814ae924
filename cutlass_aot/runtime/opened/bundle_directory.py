"""The directory of an open bundle: its catalog, groups and libraries, each loaded when first needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cutlass_aot.errors import Incompatible
from cutlass_aot.runtime.files import trust
from cutlass_aot.runtime.files.verified_read import catalog_of, manifest_bytes
from cutlass_aot.runtime.launching.gpu_code import Code
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.runtime.machine import compatibility, cuda_driver, host
from cutlass_aot.runtime.opened.group import Group
from cutlass_aot.runtime.opened.kernel_handle import KernelHandles
from cutlass_aot.schema.bundles.catalog import Catalog, FileReference, GroupEntry

if TYPE_CHECKING:
    from cutlass_aot.runtime.files.signatures import PublicKey


def open_directory(
    path: Path, *, rankings: bool = True, keys: trust.KeyFiles | None = None
) -> BundleDirectory:
    """Open a bundle's directory, and check its signatures where keys are required.

    Nothing else makes a :class:`BundleDirectory`, so that no bundle is opened unchecked. ``keys`` is what the
    caller requires, besides the keys that :mod:`cutlass_aot.runtime.files.trust` knows of.
    """
    # Read once: everything loaded later has to be verified against the bytes that were signed.
    manifest = manifest_bytes(path)
    keys = trust.read_once(keys)
    signers = trust.check(path, manifest, keys)
    catalog = catalog_of(path, manifest)
    # Recorded before the directory is returned, so that a later call of `trust` checks it.
    signers = trust.note_opened(catalog.name, path, manifest, signers, keys)
    return BundleDirectory(path, catalog, rankings=rankings, signers=signers)


class BundleDirectory:
    """A directory with a bundle's files; made by :func:`open_directory`. May be used from several threads.

    ``rankings`` tells whether the bundle's rankings are used, and ``signers`` are the required keys that have
    signed it.
    """

    def __init__(
        self,
        path: Path,
        catalog: Catalog,
        *,
        rankings: bool = True,
        signers: tuple[PublicKey, ...] = (),
    ) -> None:
        self.path = path
        self.catalog = catalog
        self.uses_rankings = rankings
        self.signers = signers
        self._host = os.uname().machine
        # Made when first needed, without a lock: two threads at once make equal values.
        self._codes: dict[FileReference, Code] = {}
        self._libraries: dict[FileReference, Library] = {}
        self._groups: dict[str, Group] = {}
        self._handles: dict[str, KernelHandles] = {}
        self._machine: compatibility.Machine | None = None
        self._runs: set[tuple[int, str, int]] = set()

    def __repr__(self) -> str:
        return f"<BundleDirectory {self.path}>"

    def handles(self, entry: GroupEntry) -> KernelHandles:
        """The kernels of one of its groups, in the order of the group's index."""
        handles = self._handles.get(entry.name)
        return handles or self._handles.setdefault(entry.name, KernelHandles(self.group(entry)))

    def group(self, entry: GroupEntry) -> Group:
        """One of its groups, open."""
        group = self._groups.get(entry.name)
        if group is None:
            made = Group(
                self.path,
                entry,
                self._code(entry.code),
                [self._library(reference) for reference in entry.libraries.get(self._host, ())],
                self.launcher(),
                self.require,
                self.uses_rankings,
            )
            group = self._groups.setdefault(entry.name, made)
        return group

    def launcher(self) -> Library | None:
        """The library through which its kernels are launched; None if it has none for this host."""
        reference = self.catalog.launchers.get(self._host)
        return None if reference is None else self._library(reference)

    def _code(self, reference: FileReference) -> Code:
        # Cached, since groups of one target may share it.
        code = self._codes.get(reference)
        return code or self._codes.setdefault(reference, Code(self.path, reference))

    def _library(self, reference: FileReference) -> Library:
        # Cached, since groups of one target may share a library.
        library = self._libraries.get(reference)
        return library or self._libraries.setdefault(reference, Library(self.path, reference))

    def check_machine(self) -> None:
        """Refuse a machine on which its libraries cannot be loaded, without regard to GPUs."""
        if self._machine is None:
            here = self._here()
            self._decide(here, self.catalog.targets)
            self._machine = here

    def require(self, target: str, ordinal: int | None) -> None:
        """Refuse a target that cannot be used on this machine and GPU; the answer is remembered.

        If ``ordinal`` is None, only the machine is checked.
        """
        if ordinal is None:
            self.check_machine()
            return
        seen = (os.getpid(), target, ordinal)
        if seen in self._runs:
            return
        self.check_machine()
        self.require_any((target,), ordinal)
        self._runs.add(seen)

    def require_any(self, targets: Sequence[str], ordinal: int) -> None:
        """Refuse a GPU that can use none of these targets, with every reason."""
        gpu = compatibility.Gpu(f"GPU {ordinal}", cuda_driver.compute_capability(ordinal))
        driver = compatibility.Driver(cuda_driver.driver_version())
        self._decide(self._here()._replace(gpus=(gpu,), driver=driver), targets)

    def _here(self) -> compatibility.Machine:
        """The facts about this machine that need no GPU."""
        if self._machine is not None:
            return self._machine
        return compatibility.Machine(
            host=self._host,
            libc=host.c_library(),
            tvm_ffi=host.installed_version("apache-tvm-ffi"),
        )

    def _decide(self, facts: compatibility.Machine, targets: Sequence[str]) -> None:
        requirements = compatibility.Requirements.of(self.catalog)._replace(targets=targets)
        answer = compatibility.decide(facts, requirements)
        if not answer.accepted:
            raise Incompatible(f"bundle {self.catalog.name} ({self.path}) cannot be used here: {answer.why}")
