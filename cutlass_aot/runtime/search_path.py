"""Bundles at hand: those that were installed as wheels, and those in directories of the search path.

A wheel of a bundle has an entry point in the group ``cutlass_aot.bundles``: its name is
the bundle's, its value a package, which has the bundle's files in the folder ``bundle``. It is found without
importing the package.

A directory of the search path is a bundle, or holds some: as they were built (``DIRECTORY/NAME``), or as a
wheel unpacks (``DIRECTORY/PACKAGE/bundle``). It may be read-only.

A search reads nothing of a bundle. What a wheel's metadata announce is not what was signed: who opens one
checks it against the catalog (:func:`~cutlass_aot.runtime.installed.open_located`).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from cutlass_aot.errors import CutlassAotError
from cutlass_aot.runtime.files.verified_read import read_catalog
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME
from cutlass_aot.schema.entry_points import BUNDLES
from cutlass_aot.schema.versions import order

FOLDER = "bundle"

ENVIRONMENT_VARIABLE = "CUTLASS_AOT_BUNDLE_PATH"
"""Directories of the search path, between ``os.pathsep``; read at each search."""


@dataclass(frozen=True, slots=True)
class InstalledBundle:
    """A bundle at hand.

    Attributes:
        name: of the bundle; of its directory, where that is not read, or cannot be.
        version: of the distribution it was installed from, or of the bundle in a directory; ``""`` where it
            is not known.
        distribution: name of that distribution; ``""`` in a directory of the search path.
        package: package that holds its files; likewise.
        path: the bundle's directory; None if it is not there.
        place: where on the search path it was found, 0 first.
        problem: why its name or version could not be read; ``""`` if they could.
    """

    name: str
    version: str
    distribution: str
    package: str
    path: Path | None
    place: int = 0
    problem: str = ""

    @property
    def announced(self) -> bool:
        """Whether its name is that of an entry point, and not one that its own catalog has."""
        return bool(self.package)


def installed_bundles(paths: Iterable[str | os.PathLike[str]] = ()) -> list[InstalledBundle]:
    """Every bundle at hand, sorted by name, version and place.

    It is a list and no more: nothing is loaded, and no signature is checked of what is in a directory,
    whose catalog is read for its name and version.

    Args:
        paths: directories that come before those of ``CUTLASS_AOT_BUNDLE_PATH``, which come before what is
            installed.
    """
    return sorted(
        map(_named, located(paths)),
        key=lambda item: (item.name, order(item.version), item.place, str(item.path)),
    )


def located(paths: Iterable[str | os.PathLike[str]] = ()) -> list[InstalledBundle]:
    """Where bundles lie, in the order of the search path; nothing of them is read.

    Those in directories have no version, and the name of their directory: what they are stands in their
    catalog, which is read once somebody who is trusted is found to have signed it.

    Args:
        paths: see :func:`installed_bundles`.
    """
    listed = os.environ.get(ENVIRONMENT_VARIABLE, "").split(os.pathsep)
    directories = [Path(path) for path in (*paths, *filter(None, listed))]
    found: dict[str, InstalledBundle] = {}
    for place, directory in enumerate(directories):
        for bundle in _in_directory(directory, place):
            found.setdefault(_where(bundle.path or directory), bundle)
    for bundle in _of_wheels(len(directories)):
        # A distribution that is found twice (a path listed twice) counts once.
        where = _where(bundle.path) if bundle.path else f"{bundle.package} {bundle.version}"
        found.setdefault(where, bundle)
    return list(found.values())


def _named(item: InstalledBundle) -> InstalledBundle:
    """With the name and version that its catalog has, if it lies in a directory."""
    if item.announced or item.problem or item.path is None:
        return item
    try:
        catalog = read_catalog(item.path)
    except CutlassAotError as error:
        return replace(item, problem=str(error))
    return replace(item, name=catalog.name, version=catalog.version)


def _where(path: Path) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:
        # A null byte; that it cannot be read is said elsewhere.
        return str(path)


def _of_wheels(place: int) -> Iterator[InstalledBundle]:
    for point in metadata.entry_points(group=BUNDLES):
        distribution, version = (_field(point.dist, name) for name in ("Name", "Version"))
        # What an interrupted uninstall leaves behind has no metadata any more.
        problem = "" if version else (
            f"bundle {point.name!r} (package {point.value}) is of a distribution that has no version: its "
            "METADATA is gone or damaged; install the wheel again, or remove what is left of it"
        )  # fmt: skip
        yield InstalledBundle(
            point.name, version, distribution, point.value, _folder(point.value), place, problem
        )


def _field(distribution: metadata.Distribution | None, name: str) -> str:
    """A field of a distribution's metadata, ``""`` where there is none."""
    try:
        fields = distribution.metadata if distribution else None
        # Asked first: a field that is not there is None, which is to become an error.
        return fields[name] if fields and name in fields else ""
    except (OSError, ValueError):
        return ""


def _in_directory(directory: Path, place: int) -> Iterator[InstalledBundle]:
    """What a directory of the search path holds; itself with a problem, if that is nothing."""
    try:
        inside = sorted(item for item in directory.iterdir() if not item.name.startswith("."))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else ""
        yield _unreadable(directory, place, f"cannot be read: {reason or error}")
        return
    candidates = [directory, *(item for folder in inside for item in (folder, folder / FOLDER))]
    bundles = [folder for folder in candidates if os.path.lexists(folder / MANIFEST_NAME)]
    if not bundles:
        yield _unreadable(directory, place, f"holds no bundle: expected {MANIFEST_NAME} in it or below it")
    for folder in bundles:
        yield InstalledBundle(folder.name, "", "", "", folder, place)


def _unreadable(directory: Path, place: int, problem: str) -> InstalledBundle:
    return InstalledBundle(directory.name, "", "", "", directory, place, f"{directory} {problem}")


def _folder(package: str) -> Path | None:
    """Where a package's bundle lies; the package is located, not imported."""
    top, *inner = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location).joinpath(*inner, FOLDER)
        try:
            if folder.is_dir():
                return folder
        except OSError:
            # It must not be looked into: opening it says so.
            return folder
    return None
