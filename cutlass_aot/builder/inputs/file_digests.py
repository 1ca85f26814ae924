"""Digests of files and folders, to tell whether they have changed.

Reading hundreds of megabytes to find that nothing has changed takes longer than everything else, so a file's
digest is remembered together with its size, times and inode number, as git's index does; the file is read
again only if one of these differs. Times are trusted only if they were old enough when the file was read: a
second write within a clock's tick leaves no trace in them.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cutlass_aot.errors import ToolchainError
from cutlass_aot.runtime.files.regular_file import open_regular
from cutlass_aot.schema.codec import row

MISSING = "missing"
"""In place of the digest of a missing file."""

_SETTLED_NANOSECONDS = 2_000_000_000
"""The coarsest resolution of times of any file system in use (FAT: two seconds)."""
_IMPORTABLE = (".dist-info", ".egg-info", ".egg-link", ".pth", ".py", ".so", ".zip")

Stamp = tuple[int, int, int, int]
_UNTRUSTED: Stamp = (-1, -1, -1, -1)


@row
class Seen(NamedTuple):
    """A file or a folder as it was found.

    ``digest`` is that of the file's bytes or of the names in the folder; :data:`MISSING` if there was none.
    ``stamp`` is size, modification and change time in nanoseconds, and inode number; all -1 if it cannot be
    trusted.
    """

    digest: str
    stamp: Stamp


class Files:
    """Digests of files; each is read at most once, and not at all if its stamp is the remembered one.

    ``remembered`` maps an absolute path to what was found there earlier.
    """

    def __init__(self, remembered: Mapping[str, Seen] | None = None) -> None:
        self._remembered = dict(remembered or {})
        self.used: dict[str, Seen] = {}
        """Every file looked at, by its absolute path."""

    def digest(self, path: Path) -> str:
        """SHA-256 of a file's bytes, in hexadecimal; :data:`MISSING` if there is no such file."""
        name = os.path.abspath(path)  # noqa: PTH100 - a link is a dependency by its own name
        known = self.used.get(name)
        if known is None:
            known = self.used[name] = _look(name, self._remembered.get(name))
        return known.digest

    def changed(self) -> bool:
        """Whether any file was found different from what was remembered, or not remembered."""
        return any(self._remembered.get(name) != found for name, found in self.used.items())


def _look(name: str, remembered: Seen | None) -> Seen:
    now = time.time_ns()
    stamp = _stamp(name)
    if remembered is not None and stamp is not None and stamp == remembered.stamp:
        return remembered
    hasher = hashlib.sha256()
    try:
        with os.fdopen(open_regular(name, follow=True), "rb") as file:
            while chunk := file.read(4 << 20):
                hasher.update(chunk)
    except FileNotFoundError:
        return Seen(MISSING, _UNTRUSTED)
    except OSError as error:
        raise ToolchainError(f"{name} cannot be read: {error.strerror}") from None
    return Seen(hasher.hexdigest(), settled(stamp, now))


def settled(stamp: Stamp | None, now: int) -> Stamp:
    """The stamp if its times are old enough at time ``now`` to show later changes; else an untrusted one."""
    if stamp is None or max(stamp[1], stamp[2]) > now - _SETTLED_NANOSECONDS:
        return _UNTRUSTED
    return stamp


def _stamp(name: str) -> Stamp | None:
    try:
        found = Path(name).stat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def look_into(path: str, remembered: Seen | None = None, *, importable: bool = False) -> Seen:
    """Digest the names in a folder.

    Args:
        remembered: what was found there earlier; if the stamp is the same, it is returned without listing.
        importable: count only names that Python could import or take for an installed package; otherwise
            every file in the current directory would count.
    """
    now = time.time_ns()
    try:
        found = Path(path).stat()
        stamp = (0, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        if remembered is not None and stamp == remembered.stamp:
            return remembered
        with os.scandir(path) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if not importable
                or entry.name.endswith(_IMPORTABLE)
                or (entry.name.isidentifier() and entry.name != "__pycache__" and entry.is_dir())
            )
    except OSError:
        return Seen(MISSING, _UNTRUSTED)
    digest = hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()
    return Seen(digest, settled(stamp, now))
