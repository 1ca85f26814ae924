"""A build with nothing to do, answered from a note of the last one: no plan, no generator, no DSL.

The note lists everything the bundle followed from and everything it consists of: the manifest and the files
it names, the sources of generators and plugins, the compiler's and the linker's files, this package's own,
the folders that packages are installed in, the bundle's files. If each is what it was, so is the bundle. Any
difference leads to the full plan, which says what it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from cutlass_aot.builder.inputs.file_digests import Files, Seen, from_rows, look_into, to_rows
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.store.build_state import note_use, read_note, write_note


class Answer(NamedTuple):
    """A bundle that is up to date.

    Attributes:
        bundle: its directory.
        kernels: number of kernels in it.
    """

    bundle: Path
    kernels: int


def known_answer(manifest: Path, store: Path, output: Path) -> Answer | None:
    """What a build of this manifest would come to, if it would do nothing; None if that is not certain.

    Args:
        manifest: the manifest's path.
        store: directory of the store, which need not exist.
        output: directory under which the bundle's directory is.
    """
    name = _name(manifest, output)
    note = read_note(store, name)
    try:
        if note is None:
            return None
        remembered = from_rows(note["files"])
        files = Files(remembered)
        if any(files.digest(Path(path)) != seen.digest for path, seen in remembered.items()):
            return None
        folders = {
            path: (seen, look_into(path, seen, importable=importable))
            for key, importable in (("search", True), ("folders", False))
            for path, seen in from_rows(note[key]).items()
        }
        if any(before.digest != now.digest for before, now in folders.values()):
            return None
        answer = Answer(output / str(note["bundle"]), int(note["kernels"]))
    except (KeyError, TypeError, ValueError, CutlassAotError):
        return None
    if files.changed() or any(before != now for before, now in folders.values()):
        for key in ("search", "folders"):
            note[key] = to_rows({path: folders[path][1] for path in from_rows(note[key])})
        write_note(store, name, {**note, "files": to_rows(files.used)})
    else:
        note_use(store, name)
    return answer


def keep_answer(
    manifest: Path,
    store: Path,
    answer: Answer,
    followed_from: Mapping[str, Seen],
    packages: Iterable[str],
    made: Mapping[str, str],
) -> None:
    """Note that a bundle is up to date.

    Args:
        manifest: the manifest's path.
        store: directory of the store.
        answer: the bundle.
        followed_from: every file that it follows from, by absolute path.
        packages: folders of packages in which modules were found: another file there may be imported instead.
        made: the bundle's own files with their digests, by absolute path.
    """
    files = {**followed_from}
    for path, sha256 in made.items():
        # Without a stamp: the next build reads it once, and what is trusted is what that one saw.
        files[path] = Seen(sha256, (-1, -1, -1, -1))
    bundle = os.path.abspath(answer.bundle)  # noqa: PTH100 - as the files' names are
    inside = {
        str(folder)
        for path in made
        for folder in (Path(path), *Path(path).parents)
        if folder.is_relative_to(bundle) and folder.is_dir()
    }
    write_note(
        store,
        _name(manifest, answer.bundle.parent),
        {
            "files": to_rows(files),
            "search": to_rows(_looked({*packages, *filter(None, sys.path)}, importable=True)),
            "folders": to_rows(_looked({bundle, *inside}, importable=False)),
            "bundle": answer.bundle.name,
            "kernels": answer.kernels,
        },
    )


def _looked(paths: Iterable[str], *, importable: bool) -> dict[str, Seen]:
    return {path: look_into(path, importable=importable) for path in paths}


def _name(manifest: Path, output: Path) -> str:
    """The note is about one manifest, one output and one Python environment."""
    return digest(
        encode(
            {
                "what": "answer",
                "manifest": os.path.abspath(manifest),  # noqa: PTH100
                "output": os.path.abspath(output),  # noqa: PTH100
                "python": sys.version,
                "prefix": sys.prefix,
                "search": [path for path in sys.path if path],
            }
        )
    )
