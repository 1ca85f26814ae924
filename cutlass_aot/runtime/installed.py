"""Open an installed bundle by name; of several, the one that fits this machine best."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cutlass_aot.errors import BundleError, CutlassAotError, DeviceError, UntrustedBundle
from cutlass_aot.runtime.bundle import Bundle, note_opened
from cutlass_aot.runtime.files import trust
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from cutlass_aot.runtime.opened.bundle_directory import BundleDirectory, open_directory
from cutlass_aot.runtime.search_path import FOLDER, InstalledBundle, installed_directories, located
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.versions import order
from cutlass_aot.schema.words import did_you_mean, plural

Capability = tuple[int, int]
"""Compute capability of a GPU, as (major, minor)."""


class Candidate(NamedTuple):
    """An installed bundle that :func:`open_installed` could open.

    ``place`` is its position on the search path, 0 first.
    """

    directory: BundleDirectory
    place: int


class InstalledStatus(NamedTuple):
    """An installed bundle, and whether :func:`open_installed` opens it; ``str`` gives a line for it.

    Fields that cannot be read are empty, except ``name``, which is then that of the directory. ``path`` is
    the directory, or the package that lacks one. ``reason`` says why the bundle is not opened; ``""`` if it
    is.
    """

    name: str
    version: str
    path: str
    targets: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    kernels: int = 0
    reason: str = ""

    def __str__(self) -> str:
        title = f"{self.name} {self.version}".rstrip()
        if not self.targets:
            return f"{title} ({self.path}): not opened: {self.reason}"
        line = f"{title}: {plural(self.kernels, 'kernel')} for {', '.join(self.targets)} ({self.path})"
        return f"{line}: not opened: {self.reason}" if self.reason else line


def open_installed(
    name: str | None = None,
    version: str | None = None,
    *,
    check: bool = True,
    paths: Iterable[str | os.PathLike[str]] = (),
    keys: trust.KeyFiles | None = None,
) -> Bundle:
    """Open a bundle that was installed as a wheel, or is in a directory of the search path.

    If several bundles have the name, such as the wheels that ``cutlass-aot wheel --split targets`` makes, the
    one for this machine's GPUs is opened; among equals the one that is first on the search path, then the
    newest (:func:`precedence`).

    Args:
        name: of the bundle; may be left out if all installed bundles have the same name.
        version: of the bundle; None for the newest.
        check: see :func:`cutlass_aot.open`.
        paths: directories that are searched before those of ``CUTLASS_AOT_BUNDLE_PATH``, see
            :mod:`~cutlass_aot.runtime.search_path`.
        keys: see :func:`cutlass_aot.open`. Required of each bundle; read once.

    Raises:
        BundleError: if no bundle has that name and version (the message lists those installed); if no name is
            given and the installed bundles have several; or if none can be used, for several reasons.
        CorruptFile: if it is truncated, altered or foreign.
        SchemaTooNew: if a newer release wrote it.
        Incompatible: if this machine cannot load it.
        UntrustedBundle: if keys are required and none of them has signed it; or if no bundle has that name
            and version but a directory that no trusted key has signed might be it.
        SignatureError: if keys are required and cannot be read, or the package ``cryptography`` is not
            installed.
    """
    gathered = _gather(located(paths), name, version, check, trust.read_once(keys))
    names = list(dict.fromkeys(candidate.directory.catalog.name for candidate in gathered.candidates))
    if len(names) > 1:
        raise BundleError(
            f"bundles of several names are installed ({', '.join(sorted(names))}): expected one of them, as "
            "in cutlass_aot.open_installed(NAME)"
        )
    if not names:
        raise _nothing(name, version, gathered)
    return note_opened(Bundle(_first(gathered.candidates).directory))


def installed_report(
    name: str | None = None,
    version: str | None = None,
    *,
    paths: Iterable[str | os.PathLike[str]] = (),
) -> list[InstalledStatus]:
    """Every installed bundle, of one name or of all, and whether :func:`open_installed` opens it.

    Takes the arguments of :func:`open_installed`.
    """
    gathered = _gather(located(paths), name, version, True, None)
    by_name: dict[str, list[Candidate]] = {}
    for candidate in gathered.candidates:
        by_name.setdefault(candidate.directory.catalog.name, []).append(candidate)
    found = list(gathered.refused)
    for candidates in by_name.values():
        first = _first(candidates)
        found += [_status(candidate, _behind(first, candidate)) for candidate in candidates]
    return sorted(found, key=lambda item: (item.name, order(item.version), bool(item.reason), item.path))


def directory_of(bundle: str, expected: str = "a directory") -> Path:
    """The directory that a user means: that of a bundle, or an installed bundle of that name.

    Of several that are installed it is the one that :func:`open_installed` opens, machine unchecked. What is
    a path, or is there and no installed bundle's name, is taken as it is, for whoever reads it to refuse.

    Raises:
        BundleError: if nothing is there and no bundle of that name is installed.
    """
    path = Path(bundle)
    try:
        if os.sep in bundle or os.path.lexists(path / MANIFEST_NAME):
            return path
        found = installed_directories(bundle, expected)
    except (BundleError, ValueError):
        if os.path.lexists(path):
            return path
        raise
    return found[0] if len(found) == 1 else open_installed(bundle, check=False).path


def precedence(candidate: Candidate, capabilities: Sequence[Capability]) -> tuple[Any, ...]:
    """Sort key of installed bundles of one name; the greatest is opened.

    It compares, in this order: how many of the machine's GPUs the bundle has a target for; how well its best
    target fits the first of those (exact, then family, then portable); the place on the search path; the
    version. ``capabilities`` are those of the machine's GPUs in order, empty if it has none.
    """
    catalog = candidate.directory.catalog
    fitting = [
        Target.parse(targets[0]).preference(capability)
        for capability in capabilities
        if (targets := runnable_targets(catalog.targets, capability))
    ]
    kind, distance = fitting[0] if fitting else (0, 0)
    return len(fitting), -kind, -distance, -candidate.place, order(catalog.version)


_REASONS = (
    "{first} has kernels for more of this machine's GPUs",
    "{first} has kernels that are built for this machine's GPU",
    "{first} has kernels that are nearer to this machine's GPU",
    "{first} comes earlier on the search path",
    "{first} is newer",
    "{first} is the same version, and its path comes first",
)
"""Why a bundle is not opened, by the first item of :func:`precedence` that differs."""


def _first(candidates: Sequence[Candidate]) -> Candidate:
    capabilities = _capabilities() if len(candidates) > 1 else ()
    # max() takes the first of equal ones.
    by_path = sorted(candidates, key=lambda candidate: str(candidate.directory.path))
    return max(by_path, key=lambda candidate: precedence(candidate, capabilities))


def _capabilities() -> list[Capability]:
    try:
        return [cuda_driver.compute_capability(ordinal) for ordinal in range(cuda_driver.device_count())]
    except DeviceError:
        return []


def _behind(first: Candidate, other: Candidate) -> str:
    """Why a candidate is not opened; ``""`` for the one that is."""
    if first is other:
        return ""
    capabilities = _capabilities()
    keys = zip(precedence(first, capabilities), precedence(other, capabilities), strict=True)
    differing = [number for number, (one, two) in enumerate(keys) if one != two]
    return _REASONS[differing[0] if differing else -1].format(first=first.directory.path)


def open_located(item: InstalledBundle, keys: trust.KeyFiles | None = None) -> BundleDirectory:
    """Open a bundle that a search found, and check its catalog against the announced name and version.

    A signature covers the catalog but not a wheel's metadata: without this check, metadata could present a
    correctly signed bundle under the name of another. Raises BundleError if there is nothing to open, or if
    the names or versions differ.
    """
    if item.problem:
        raise BundleError(item.problem)
    if item.path is None:
        raise BundleError(
            f"bundle {item.name!r} is installed by {item.distribution}, but package {item.package} has no "
            f"folder {FOLDER!r}: install the wheel again"
        )
    directory = open_directory(item.path, keys=keys)
    catalog = directory.catalog
    if item.announced and (item.name, item.version) != (catalog.name, catalog.version):
        raise BundleError(
            f"{item.path} is bundle {catalog.name} {catalog.version}, but "
            f"{item.distribution or item.package} announces {item.name} {item.version}: "
            "expected its own name and version; pack it with cutlass-aot wheel, or get it again from who "
            "made the bundle"
        )
    return directory


class _Gathered(NamedTuple):
    """What is installed.

    Attributes:
        candidates: what can be opened, in the order of the search path.
        refused: what cannot, with the reasons.
        names: names and versions of everything installed, as far as they are known.
        errors: of bundles of the requested name and version.
        unnamed: errors of bundles whose name could not be read; one of them may be the requested one.
    """

    candidates: list[Candidate]
    refused: list[InstalledStatus]
    names: list[tuple[str, str]]
    errors: list[CutlassAotError]
    unnamed: list[CutlassAotError]


def _gather(
    found: Sequence[InstalledBundle],
    name: str | None,
    version: str | None,
    check: bool,
    keys: trust.KeyFiles | None,
) -> _Gathered:
    def matches(its_name: str, its_version: str | None) -> bool:
        return name in (None, its_name) and version in (None, its_version)

    gathered = _Gathered([], [], [], [], [])
    for item in found:
        # If a wheel's version is not known, the name alone decides.
        if item.announced and not matches(item.name, item.version or version):
            gathered.names.append((item.name, item.version))
            continue
        try:
            directory = open_located(item, keys)
        except CutlassAotError as error:
            where = str(item.path or item.package)
            gathered.refused.append(InstalledStatus(item.name, item.version, where, reason=str(error)))
            (gathered.errors if item.announced or name is None else gathered.unnamed).append(error)
            continue
        catalog = directory.catalog
        gathered.names.append((catalog.name, catalog.version))
        if not matches(catalog.name, catalog.version):
            continue
        candidate = Candidate(directory, item.place)
        try:
            if check:
                directory.check_machine()
        except CutlassAotError as error:
            gathered.refused.append(_status(candidate, str(error)))
            gathered.errors.append(error)
            continue
        gathered.candidates.append(candidate)
    return gathered


def _status(candidate: Candidate, reason: str) -> InstalledStatus:
    catalog = candidate.directory.catalog
    count = sum(group.kernel_count for group in catalog.groups)
    path = str(candidate.directory.path)
    return InstalledStatus(catalog.name, catalog.version, path, catalog.targets, catalog.hosts, count, reason)


def _nothing(name: str | None, version: str | None, gathered: _Gathered) -> CutlassAotError:
    if len(gathered.errors) == 1:
        return gathered.errors[0]
    if gathered.errors:
        reasons = "; ".join(map(str, gathered.errors))
        made = f"none of the {len(gathered.errors)} bundles that are installed can be used: {reasons}"
        kinds = {type(error) for error in gathered.errors}
        return kinds.pop()(made) if len(kinds) == 1 else BundleError(made)
    names = sorted(dict.fromkeys(gathered.names), key=lambda item: (item[0], order(item[1])))
    listed = ", ".join(" ".join(item).rstrip() for item in names)
    problems = "".join(f"; {error}" for error in gathered.unnamed)
    missing = f"bundle {f'{name} {version or str()}'.rstrip()!r} is not" if name else "no bundle is"
    untrusted = any(isinstance(error, UntrustedBundle) for error in gathered.unnamed)
    return (UntrustedBundle if untrusted else BundleError)(
        f"{missing} installed (installed bundles: {listed or 'none'}); install its wheel, or open a "
        f"directory with cutlass_aot.open{problems}{did_you_mean(name, [known for known, _ in names])}"
    )
