"""The up-to-date check: whether a build would do nothing. It needs no plan, no generator and no DSL.

The last build has recorded everything that the bundle depends on or consists of: the manifest and the files
it names, the sources of generators and plugins, the files of the compiler and the linker, those of this
package, the folders that packages are installed in, and the bundle's files. If all of them are unchanged, the
bundle is up to date. Any difference leads to a full plan, which says what differs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from cutlass_aot.builder.inputs.file_digests import Files, Seen, look_into
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.store.build_state import mark_used, read_state, write_state


class UpToDateBundle(NamedTuple):
    """The directory of a bundle that is up to date, and how many kernels it has."""

    bundle: Path
    kernels: int


@dataclass(frozen=True, slots=True)
class _State:
    """What the last build recorded.

    Attributes:
        files: every file that the bundle depends on or consists of, by absolute path.
        search: folders that modules are imported from.
        folders: the bundle's own.
        bundle: name of the bundle's directory.
        kernels: how many the bundle has.
    """

    files: dict[str, Seen]
    search: dict[str, Seen]
    folders: dict[str, Seen]
    bundle: str
    kernels: int


def up_to_date(manifest: Path, store: Path, output: Path) -> UpToDateBundle | None:
    """The bundle that a build of this manifest would find up to date; None if that is not certain.

    ``store`` is the store's directory, which need not exist; ``output`` is the directory that holds the
    bundle's.
    """
    name = _name(manifest, output)
    try:
        before = from_plain(_State, read_state(store, name), "build state")
        files = Files(before.files)
        if any(files.digest(Path(path)) != seen.digest for path, seen in before.files.items()):
            return None
    except CutlassAotError:
        return None
    search = {path: look_into(path, seen, importable=True) for path, seen in before.search.items()}
    folders = {path: look_into(path, seen) for path, seen in before.folders.items()}
    for known, now in ((before.search, search), (before.folders, folders)):
        if any(known[path].digest != seen.digest for path, seen in now.items()):
            return None
    state = replace(before, files=files.used, search=search, folders=folders)
    if state != before:
        write_state(store, name, to_plain(state))
    else:
        mark_used(store, name)
    return UpToDateBundle(output / state.bundle, state.kernels)


def remember_build(
    manifest: Path,
    store: Path,
    built: UpToDateBundle,
    dependencies: Mapping[str, Seen],
    packages: Iterable[str],
    made: Mapping[str, str],
) -> None:
    """Record what a bundle depends on and consists of, for the next build's check.

    Args:
        dependencies: every file that the bundle depends on, by absolute path.
        packages: folders of packages in which modules were found: a new file there may be imported instead.
        made: the bundle's own files with their digests, by absolute path.
    """
    files = {**dependencies}
    for path, sha256 in made.items():
        # Without a stamp, so that the next build reads the file once and takes the stamp then.
        files[path] = Seen(sha256, (-1, -1, -1, -1))
    bundle = os.path.abspath(built.bundle)  # noqa: PTH100 - as the files' names are
    inside = {
        str(folder)
        for path in made
        for folder in (Path(path), *Path(path).parents)
        if folder.is_relative_to(bundle) and folder.is_dir()
    }
    write_state(
        store,
        _name(manifest, built.bundle.parent),
        to_plain(
            _State(
                files=files,
                search={path: look_into(path, importable=True) for path in {*packages, *sys.path} if path},
                folders={path: look_into(path) for path in {bundle, *inside}},
                bundle=built.bundle.name,
                kernels=built.kernels,
            )
        ),
    )


def _name(manifest: Path, output: Path) -> str:
    """Name of the state kept for a manifest, an output and a Python environment."""
    return digest(
        encode(
            {
                "what": "up to date",
                "manifest": os.path.abspath(manifest),  # noqa: PTH100
                "output": os.path.abspath(output),  # noqa: PTH100
                "python": sys.version,
                "prefix": sys.prefix,
                "search": [path for path in sys.path if path],
            }
        )
    )
