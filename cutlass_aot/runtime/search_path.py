"""List installed bundles: wheels, and directories of the search path.

The wheel of a bundle has an entry point in the group ``cutlass_aot.bundles``: its name is the bundle's, its
value a package with the bundle's files in the folder ``bundle``. It is found without importing the package.

A directory of the search path is a bundle or contains bundles: as they were built (``DIRECTORY/NAME``), or as
a wheel unpacks (``DIRECTORY/PACKAGE/bundle``). It may be read-only.

A search reads no files of bundles. The metadata of a wheel are not signed: whoever opens a bundle checks them
against its catalog (:func:`~cutlass_aot.runtime.installed.open_located`).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from cutlass_aot.errors import BundleError, CutlassAotError, printable
from cutlass_aot.runtime.files.verified_read import read_catalog
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME
from cutlass_aot.schema.entry_points import BUNDLES
from cutlass_aot.schema.versions import order

FOLDER = "bundle"

ENVIRONMENT_VARIABLE = "CUTLASS_AOT_BUNDLE_PATH"
"""Directories of the search path, separated by ``os.pathsep``; read at each search."""


@dataclass(frozen=True, slots=True)
class InstalledBundle:
    """An installed bundle.

    Attributes:
        name: of the bundle; of its directory, if the catalog was not or could not be read.
        version: of the distribution it was installed from, or of the bundle in a directory; ``""`` if not
            known.
        distribution: name of that distribution; ``""`` in a directory of the search path.
        package: package that holds its files; ``""`` in a directory of the search path.
        path: the bundle's directory; None if it does not exist.
        place: position on the search path, 0 first.
        problem: why its name or version could not be read; ``""`` if they could.
        exists: whether there is a bundle at all. A directory of the search path that is missing or holds none
            stands in a list with the problem.
    """

    name: str
    version: str
    distribution: str
    package: str
    path: Path | None
    place: int = 0
    problem: str = ""
    exists: bool = True

    @property
    def announced(self) -> bool:
        """Whether its name comes from an entry point, and not from its own catalog."""
        return bool(self.package)


def installed_bundles(paths: Iterable[str | os.PathLike[str]] = ()) -> list[InstalledBundle]:
    """Every installed bundle, sorted by name, version and place.

    Nothing is loaded. Catalogs of bundles in directories are read for names and versions, without checking
    signatures.

    Args:
        paths: directories that come before those of ``CUTLASS_AOT_BUNDLE_PATH``, which come before wheels.
    """
    return sorted(
        map(_named, located(paths)),
        key=lambda item: (item.name, order(item.version), item.place, str(item.path)),
    )


def installed_directories(name: str, expected: str = "a directory") -> list[Path]:
    """The directories of all installed bundles of a name; at least one.

    Raises:
        BundleError: if none is installed; it says that what was expected is ``expected`` or such a name.
    """
    installed = [bundle for bundle in installed_bundles() if bundle.exists]
    found = [bundle.path for bundle in installed if bundle.name == name and bundle.path is not None]
    if not found:
        from cutlass_aot.schema.words import did_you_mean

        names = list(dict.fromkeys(bundle.name for bundle in installed))
        raise BundleError(
            f"{name!r} is not a bundle: expected {expected}, or the name of an installed bundle "
            f"(installed: {', '.join(names) or 'none'}){did_you_mean(name, names)}"
        )
    return found


def located(paths: Iterable[str | os.PathLike[str]] = ()) -> list[InstalledBundle]:
    """The locations of bundles, in the order of the search path; no file of theirs is read.

    Those in directories have no version, and the name of the directory: their catalog is read only after a
    trusted key is found to have signed it. ``paths`` is as for :func:`installed_bundles`.
    """
    listed = os.environ.get(ENVIRONMENT_VARIABLE, "").split(os.pathsep)
    directories = [Path(path) for path in (*paths, *filter(None, listed))]
    found: dict[str, InstalledBundle] = {}
    for place, directory in enumerate(directories):
        for bundle in _in_directory(directory, place):
            found.setdefault(_where(bundle.path or directory), bundle)
    for bundle in _of_wheels(len(directories)):
        # A distribution may be found twice, if a path is listed twice.
        where = _where(bundle.path) if bundle.path else f"{bundle.package} {bundle.version}"
        found.setdefault(where, bundle)
    return list(found.values())


def _named(item: InstalledBundle) -> InstalledBundle:
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
        # A null byte; reading the directory reports it.
        return str(path)


def _of_wheels(place: int) -> Iterator[InstalledBundle]:
    for point in metadata.entry_points(group=BUNDLES):
        distribution, version = (_field(point.dist, name) for name in ("Name", "Version"))
        # An interrupted uninstall leaves a distribution without metadata.
        problem = "" if version else (
            f"bundle {point.name!r} (package {point.value}) is of a distribution that has no version: its "
            "METADATA is gone or damaged; install the wheel again, or remove what is left of it"
        )  # fmt: skip
        yield InstalledBundle(
            printable(point.name), version, distribution, point.value, _folder(point.value), place, problem
        )


def _field(distribution: metadata.Distribution | None, name: str) -> str:
    try:
        fields = distribution.metadata if distribution else None
        # Tested first: indexing gives None for a missing field, and is to raise an error in future.
        return printable(fields[name]) if fields and name in fields else ""
    except (OSError, ValueError):
        return ""


def _in_directory(directory: Path, place: int) -> Iterator[InstalledBundle]:
    """The bundles in a directory of the search path; if there are none, the directory with a problem."""
    try:
        inside = sorted(item for item in directory.iterdir() if not item.name.startswith("."))
    except FileNotFoundError:
        yield _unreadable(directory, place, "is missing: expected a directory of bundles")
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else ""
        yield _unreadable(directory, place, f"cannot be read: {reason or error}")
        return
    candidates = [directory, *(item for folder in inside for item in (folder, folder / FOLDER))]
    bundles = [folder for folder in candidates if os.path.lexists(folder / MANIFEST_NAME)]
    if not bundles:
        yield _unreadable(directory, place, f"holds no bundle: expected {MANIFEST_NAME} in it or below it")
    for folder in bundles:
        yield InstalledBundle(printable(folder.name), "", "", "", folder, place)


def _unreadable(directory: Path, place: int, problem: str) -> InstalledBundle:
    name, where = printable(directory.name), printable(str(directory))
    return InstalledBundle(name, "", "", "", directory, place, f"{where} {problem}", exists=False)


def _folder(package: str) -> Path | None:
    """The folder of a package's bundle; the package is located, not imported."""
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
            # No permission to look into it; opening the bundle reports that.
            return folder
    return None
