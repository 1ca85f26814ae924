"""Write ``hashes.txt``: what ``constraints.txt`` pins, with the SHA-256 of each file that pip may take.

``python -m tools.check.hashes`` asks the package index that pip has by default, or that of ``--index``, and
writes the same bytes for the same constraints. A file counts that Linux on x86_64 or aarch64 could take, with
Python 3.10 or newer, source archives among them. A release that one of the Pythons has no file of is refused:
it needs a marker. ``--check`` compares, and exits with 1 if it is another.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
HASHES = ROOT / "hashes.txt"
NOT_HASHED = frozenset({"torch"})
"""Of which there are several builds of one release (CPU alone, each CUDA), from several indexes."""

PYTHONS = (10, 11, 12, 13, 14)
"""Minor versions of the Pythons that can install all of it."""

_HEADER = """\
# What constraints.txt pins, with the SHA-256 of each file that pip may take of it on Linux, x86_64 or
# aarch64, with Python 3.10 or newer. `python -m tools.check.hashes` writes it. `make bundle` installs all of
# it, by `pip install --no-deps --require-hashes`.
#
# Not checked against hashes: torch, of which there are several builds of one release, from several indexes,
# and the libraries of CUDA that its CUDA builds name by their exact versions. constraints.txt pins torch.
"""
_TYPE = "application/vnd.pypi.simple.v1+json"
_SECONDS = 60


class Release(NamedTuple):
    """A line of ``constraints.txt``."""

    name: str
    version: str
    marker: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" + (f"; {self.marker}" if self.marker else "")


def releases(text: str) -> list[Release]:
    """The releases of a file of constraints, in its order."""
    found = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (specifier,) = requirement.specifier
            marker = line.partition(";")[2].strip()
            found.append(Release(requirement.name, specifier.version, marker))
    return found


def is_taken(file_name: str) -> bool:
    """Whether pip may take a file: a source archive, or a wheel for such a Linux and Python."""
    try:
        *_, tags = parse_wheel_filename(file_name)
    except InvalidWheelFilename:
        return file_name.endswith((".tar.gz", ".zip"))
    return any(_suits(tag.interpreter, tag.abi) and _runs(tag.platform) for tag in tags)


def _suits(interpreter: str, abi: str) -> bool:
    match = re.fullmatch(r"(cp|py)(\d)(\d*)", interpreter)
    if match is None or match[2] != "3":
        return False
    minor = int(match[3] or 0)
    # Wheels of the stable interface, and of Python alone, suit newer Pythons too.
    return minor >= 10 or abi in ("abi3", "none")


def _runs(platform: str) -> bool:
    return platform == "any" or (
        platform.startswith(("manylinux", "musllinux", "linux")) and platform.endswith(("x86_64", "aarch64"))
    )


def without_a_file(release: Release, files: Iterable[Mapping[str, Any]]) -> list[str]:
    """The Pythons that a release is pinned for and has no file for, such as ``3.10 on aarch64``."""
    files = [file for file in files if _version(str(file["filename"])) == Version(release.version)]
    marker = Requirement(str(release)).marker
    return [
        f"3.{minor} on {machine}"
        for minor in PYTHONS
        if marker is None or marker.evaluate({"python_version": f"3.{minor}"})
        for machine in ("x86_64", "aarch64")
        if not any(_serves(file, minor, machine) for file in files)
    ]


def _serves(file: Mapping[str, Any], minor: int, machine: str) -> bool:
    # The last release of a Python: files may ask for more than its first.
    if not SpecifierSet(str(file.get("requires-python") or "")).contains(f"3.{minor}.99"):
        return False
    try:
        *_, tags = parse_wheel_filename(str(file["filename"]))
    except InvalidWheelFilename:
        return is_taken(str(file["filename"]))
    return any(_serves_tag(tag, minor, machine) for tag in tags)


def _serves_tag(tag: Tag, minor: int, machine: str) -> bool:
    match = re.fullmatch(r"(cp|py)3(\d*)", tag.interpreter)
    if match is None or not _runs(tag.platform) or tag.platform.startswith("musllinux"):
        return False
    least = int(match[2] or 0)
    newer = tag.abi == "abi3" or (tag.abi == "none" and match[1] == "py")
    own = least == minor and tag.abi in (f"cp3{minor}", "none")
    return (own or (newer and least <= minor)) and (tag.platform == "any" or tag.platform.endswith(machine))


def hashes(release: Release, files: Iterable[Mapping[str, Any]]) -> list[str]:
    """SHA-256 of the files of a pinned release, sorted; LookupError if there are too few."""
    files = list(files)
    if lacking := without_a_file(release, files):
        raise LookupError(f"the index has no file of {release} for Python {', '.join(lacking)}")
    found = set()
    for file in files:
        name = str(file["filename"])
        if _version(name) == Version(release.version) and is_taken(name):
            found.add(str(file["hashes"]["sha256"]))
    return sorted(found)


def _version(file_name: str) -> Version | None:
    try:
        return parse_wheel_filename(file_name)[1]
    except InvalidWheelFilename:
        try:
            return parse_sdist_filename(file_name)[1]
        except InvalidSdistFilename:
            return None


def default_index() -> str:
    """Where pip looks if it is not told otherwise."""
    from pip._internal.models.index import PyPI

    return str(PyPI.simple_url)


def _files(index: str, release: Release) -> list[dict[str, Any]]:
    name = re.sub(r"[-_.]+", "-", release.name).lower()
    request = urllib.request.Request(f"{index.rstrip('/')}/{name}/", headers={"Accept": _TYPE})  # noqa: S310
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310 - the user's own index
        return list(json.load(answer)["files"])


def written(index: str, text: str) -> str:
    """The contents of ``hashes.txt`` for these constraints."""
    hashed = [release for release in releases(text) if release.name not in NOT_HASHED]
    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(lambda release: _files(index, release), hashed))
    blocks = []
    for release, files in zip(hashed, answers, strict=True):
        lines = [str(release), *(f"    --hash=sha256:{sha256}" for sha256 in hashes(release, files))]
        blocks.append(" \\\n".join(lines))
    return _HEADER + "\n".join(blocks) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write or compare; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", default=None)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    text = written(given.index or default_index(), CONSTRAINTS.read_text(encoding="utf-8"))
    if not given.check:
        HASHES.write_text(text, encoding="utf-8")
    elif HASHES.read_text(encoding="utf-8") != text:
        print(f"{HASHES.name} is not what the index has: run python -m tools.check.hashes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
