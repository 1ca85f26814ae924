"""Iterate over the bundles that a process has opened, then over those that are installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from cutlass_aot.errors import BundleError, CorruptFile, Incompatible, SchemaTooNew, UntrustedBundle
from cutlass_aot.runtime.bundle import Bundle, note_opened, opened_bundles
from cutlass_aot.runtime.installed import open_located
from cutlass_aot.runtime.search_path import InstalledBundle, located
from cutlass_aot.schema.versions import order

_installed: dict[Path, Bundle] = {}


class BundleSearch:
    """Bundles that are open, the latest first, then those that are installed and not open already.

    Installed bundles come in the order of the search path, then the newest first. A wheel is opened when it
    is reached, a directory as soon as the order needs its name and version. Bundles that cannot be opened are
    skipped.

    Attributes:
        seen: name and version of each bundle that was visited.
        problems: which installed bundles could not be opened, and why.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.problems: list[str] = []

    def __iter__(self) -> Iterator[Bundle]:
        self.seen, self.problems = [], []
        paths: set[Path] = set()
        # Those opened by earlier searches, not by the program, keep the order of installed ones.
        ours = {id(bundle) for bundle in list(_installed.values())}
        for bundle in opened_bundles():
            if id(bundle) not in ours:
                paths.add(bundle.path.absolute())
                yield self._seen(bundle)
        for item in self._in_order(item for item in located() if _absolute(item) not in paths):
            found = self._opened(item)
            if found is not None:
                yield self._seen(found)

    def _in_order(self, found: Iterable[InstalledBundle]) -> list[InstalledBundle]:
        """In search order; directories that cannot be opened are left out."""
        ordered: list[tuple[str, str, InstalledBundle]] = []
        for item in found:
            name, version = item.name, item.version
            if not item.announced:
                bundle = self._opened(item)
                if bundle is None:
                    continue
                name, version = bundle.name, bundle.version
            ordered.append((name, version, item))
        ordered.sort(key=lambda row: (row[0], str(row[2].path)))
        ordered.sort(key=lambda row: order(row[1]), reverse=True)
        ordered.sort(key=lambda row: row[2].place)
        return [item for _, _, item in ordered]

    def _opened(self, item: InstalledBundle) -> Bundle | None:
        """Open an installed bundle; None if that fails."""
        # Kept open here, so that callers need not keep it.
        bundle = None if item.path is None else _installed.get(item.path)
        if bundle is not None:
            return bundle
        try:
            directory = open_located(item)
            directory.check_machine()
        except (BundleError, CorruptFile, Incompatible, SchemaTooNew, UntrustedBundle) as error:
            called = f"installed bundle {item.name} {item.version}".rstrip()
            self.problems.append(f"{called} cannot be opened: {error}" if item.exists else item.problem)
            return None
        return _installed.setdefault(directory.path, note_opened(Bundle(directory)))

    def _seen(self, bundle: Bundle) -> Bundle:
        self.seen.append(f"{bundle.name} {bundle.version}")
        return bundle


def _absolute(item: InstalledBundle) -> Path | None:
    return None if item.path is None else item.path.absolute()
