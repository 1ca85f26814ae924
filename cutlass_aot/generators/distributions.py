"""The files of an installed distribution, for kernels whose code depends on a whole one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from cutlass_aot.errors import GeneratorError

MAX_FILES = 100_000
_NOT_SOURCES = ("site-packages", "dist-packages", "node_modules", "__pycache__")


class Installed(NamedTuple):
    """An installed distribution.

    Attributes:
        files: by their paths in the distribution: what it installed, without byte code, scripts and its
            metadata; for one that is installed as editable, the Python sources of its project.
        record: the file that says which files these are; None for an editable one, whose folders do.
    """

    files: Mapping[str, Path]
    record: Path | None

    @property
    def folders(self) -> set[str]:
        """Folders in which a new file may belong to it."""
        return {str(path.parent) for path in self.files.values()}


def installed(name: str) -> Installed:
    """Find the files of a distribution.

    Raises:
        GeneratorError: if it is not installed, or does not say what its files are.
    """
    try:
        found = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        raise GeneratorError(
            f"distribution {name!r} is not installed: install it, or name it as `pip list` does"
        ) from None
    project = _editable_project(found)
    if project is not None:
        files = {path.relative_to(project).as_posix(): path for path in _sources(project)}
        record = None
    else:
        files, record = _recorded(found)
    if not files or len(files) > MAX_FILES:
        raise GeneratorError(
            f"distribution {name!r} lists {len(files)} files, expected 1 to {MAX_FILES}: name the modules "
            "that the code depends on under `modules`"
        )
    return Installed(dict(sorted(files.items())), record)


def _recorded(found: metadata.Distribution) -> tuple[dict[str, Path], Path | None]:
    """The files of ``RECORD``, and that file."""
    files: dict[str, Path] = {}
    record = None
    for listed in found.files or ():
        path = Path(os.path.normpath(str(found.locate_file(listed))))
        metadata_folder = listed.parts[0].endswith(".dist-info")
        if metadata_folder and listed.name == "RECORD":
            record = path
        if metadata_folder or listed.parts[0] == ".." or listed.suffix == ".pyc" or not path.is_file():
            continue
        files[listed.as_posix()] = path
    return files, record


def _editable_project(found: metadata.Distribution) -> Path | None:
    """The project of an editable installation; see PEP 610, ``dir_info.editable``."""
    try:
        data = json.loads(found.read_text("direct_url.json") or "{}")
        editable = data.get("dir_info", {}).get("editable") is True
        return Path(unquote(urlsplit(data["url"]).path)) if editable else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _sources(project: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(project):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NOT_SOURCES]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))
