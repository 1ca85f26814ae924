"""Bundles that are installed as wheels: found by entry point, without importing their packages.

A wheel of a bundle has an entry point in the group ``cutlass_aot.bundles``: its name is the bundle's, its
value a package, which has the bundle's files in the folder ``bundle``.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.bundle import Bundle, open_bundle
from cutlass_aot.runtime.trust import KeyFiles

ENTRY_POINTS = "cutlass_aot.bundles"
FOLDER = "bundle"


@dataclass(frozen=True, slots=True, order=True)
class InstalledBundle:
    """An installed bundle.

    Attributes:
        name: of the bundle.
        version: of the distribution it was installed from.
        distribution: name of that distribution.
        package: package that holds its files.
        path: the bundle's directory; None if it is not there.
    """

    name: str
    version: str
    distribution: str
    package: str
    path: Path | None


def installed_bundles() -> list[InstalledBundle]:
    """Every installed bundle, sorted by name and version."""
    # A distribution that is found twice (a path listed twice) counts once.
    found = {
        (point.name, point.dist.version if point.dist else "", point.value): point
        for point in metadata.entry_points(group=ENTRY_POINTS)
    }
    return sorted(
        InstalledBundle(name, version, point.dist.name if point.dist else "", package, _folder(package))
        for (name, version, package), point in found.items()
    )


def open_installed(
    name: str, version: str | None = None, *, check: bool = True, keys: KeyFiles | None = None
) -> Bundle:
    """Open a bundle that was installed as a wheel.

    Args:
        name: of the bundle.
        version: of the bundle; None takes the one that is installed.
        check: see :func:`cutlass_aot.open`.
        keys: likewise.

    Raises:
        BundleError: if there is none of that name and version, with what is installed; or more than one.
        CorruptFile: if a file is truncated, altered or foreign.
        SchemaTooNew: if a newer release wrote it.
        Incompatible: if this machine cannot load it.
        UntrustedBundle: if keys are required and none of them has signed it.
        SignatureError: if keys are required and cannot be read, or the package ``cryptography`` is not there.
    """
    installed = installed_bundles()
    named = [bundle for bundle in installed if bundle.name == name]
    if version is not None:
        named = [bundle for bundle in named if bundle.version == version]
    wanted = name if version is None else f"{name} {version}"
    if not named:
        listed = ", ".join(f"{bundle.name} {bundle.version}" for bundle in installed)
        raise BundleError(
            f"bundle {wanted!r} is not installed: installed are {listed or 'no bundles'}; install its "
            "wheel, or open a directory with cutlass_aot.open"
        )
    if len(named) > 1:
        listed = ", ".join(f"{bundle.distribution} {bundle.version}" for bundle in named)
        raise BundleError(
            f"bundle {wanted!r} is installed more than once ({listed}): name a version, or uninstall one"
        )
    if named[0].path is None:
        raise BundleError(
            f"bundle {wanted!r} is installed by {named[0].distribution}, but package "
            f"{named[0].package} has no folder {FOLDER!r}: install the wheel again"
        )
    return open_bundle(named[0].path, check=check, keys=keys)


def _folder(package: str) -> Path | None:
    """Where a package's bundle lies; the package is located, not imported."""
    top, *inner = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location).joinpath(*inner, FOLDER)
        if folder.is_dir():
            return folder
    return None
