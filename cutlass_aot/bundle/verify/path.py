"""Verify a bundle, a wheel, or what another checker recognises; list everything that is wrong."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.bundle.verify.directory import Findings, look_at_bundle
from cutlass_aot.bundle.wheel.verify import look_at_wheel
from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.files.signatures import PublicKey
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME


@dataclass(frozen=True, slots=True)
class Checker:
    """One kind of thing that can be verified.

    Attributes:
        looks_like: how to recognise one, in words, for the error that lists what was expected.
        recognises: whether a path is one, judged without reading its contents.
        look_at: verifies it; if keys are given, one of them must have signed it.
    """

    kind: str
    looks_like: str
    recognises: Callable[[Path], bool]
    look_at: Callable[[Path, Sequence[PublicKey]], Findings]


def is_file(path: Path) -> bool:
    """Whether a file is there; False also if that cannot be told, and then :func:`look_at` says why."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


CHECKERS = (
    Checker(
        kind="bundle",
        looks_like=f"a directory with {MANIFEST_NAME} or {CATALOG_NAME}",
        recognises=lambda path: any(is_file(path / name) for name in (MANIFEST_NAME, CATALOG_NAME)),
        look_at=look_at_bundle,
    ),
    Checker(
        kind="wheel",
        looks_like="a file *.whl",
        recognises=lambda path: path.suffix == ".whl" and is_file(path),
        look_at=look_at_wheel,
    ),
)
"""What this layer can verify. The command line adds a checker of stores."""


def look_at(path: Path, keys: Sequence[PublicKey] = (), checkers: Sequence[Checker] = CHECKERS) -> Findings:
    """Verify what is at ``path`` by the first of ``checkers`` that recognises it.

    ``keys`` and errors are those of :func:`.look_at_bundle`; :class:`BundleError` also if no checker
    recognises it.
    """
    for checker in checkers:
        if checker.recognises(path):
            return checker.look_at(path, keys)
    found = _what_is_at(path)
    expected = "; ".join(f"{checker.kind}: {checker.looks_like}" for checker in checkers)
    raise BundleError(f"{path} cannot be verified: {found}; expected one of: {expected}")


def _what_is_at(path: Path) -> str:
    """What is at a path, in words, for the error that it cannot be verified."""
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return "it is another file"
        # A directory that may not be entered raises another OSError here.
        with contextlib.suppress(FileNotFoundError):
            (path / MANIFEST_NAME).stat()
    except (FileNotFoundError, NotADirectoryError):
        return "nothing is there"
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"
    # A path with a NUL, or with characters that the file system's encoding does not have.
    except ValueError as error:
        return f"there can be no such path ({error})"
    return "it is another directory"
