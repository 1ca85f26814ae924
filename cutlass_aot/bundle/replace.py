"""Replace a bundle: make the new one beside it, complete and synchronised, and then swap it in."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cutlass_aot.bundle.files import exchange
from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.files.file_lock import Lock
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME
from cutlass_aot.schema.bundles.signature import SIGNATURES
from cutlass_aot.schema.words import few

WAIT_SECONDS = 3600.0
"""How long a writer waits for another one, which may be pulling a large bundle over a slow network."""

_POLL_SECONDS = 0.05

TOP_LEVEL = frozenset(
    {
        CATALOG_NAME,
        MANIFEST_NAME,
        SIGNATURES,
        "code",
        "groups",
        "lib",
        "licenses",
        "rankings",
        "requests",
        "sbom",
    }
)
"""What a bundle's directory holds. A directory with anything else in it is never replaced."""


def replace_bundle(output: Path, fill: Callable[[Path], None], is_there: Callable[[Path], bool]) -> bool:
    """Put the bundle that ``fill`` makes at ``output``; False if ``is_there`` finds exactly it there already.

    An empty directory or another bundle there is replaced, with its signatures, in one step and only when the
    new one is complete; a symbolic link is followed. Writers of one output take turns, by the file
    ``.NAME.lock`` beside it, which is removed at the end. Where the file system cannot exchange two
    directories, there is no bundle for a moment.

    ``fill`` gets the path of a directory that is not there yet, and makes it with everything in it, by
    :func:`make_folders` and :func:`create`. If it raises, nothing of it stays.

    Raises:
        BundleError: for anything else at ``output``.
        OSError: if the disk refuses; what was at ``output`` stays. Convert it by :func:`disk_error`.
    """
    # The target of a link is replaced, so that the link goes on working.
    output = Path(os.path.realpath(output))
    # Before the lock is taken, so that no lock file is left where nothing is or may be written.
    if is_there(output):
        return False
    _check_replaceable(output, locked=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    with _turn(output) as alone:
        return _replace_alone(output, fill, is_there, alone=alone)


@contextmanager
def _turn(output: Path) -> Iterator[bool]:
    """Wait until no other process writes ``output``; False where the file system has no locks to tell."""
    lock = Lock(output.parent / f".{output.name}.lock")
    deadline = time.monotonic() + WAIT_SECONDS
    try:
        # Polled: with a blocking lock, a process that is stopped would block all others for ever.
        while not lock.try_acquire():
            if time.monotonic() > deadline:
                raise BundleError(
                    f"another process has been writing {output} for {WAIT_SECONDS:.0f} s, or {lock.path} is "
                    "of a user who lets nobody else open it: end that process, or remove the file"
                )
            time.sleep(_POLL_SECONDS)
        yield lock.supported
    finally:
        lock.release()


def check_output(output: Path) -> None:
    """Raise at once if :func:`replace_bundle` would not replace ``output``, or cannot write there."""
    try:
        path = Path(os.path.realpath(output))
        _check_replaceable(path, locked=False)
        check_folder(path.parent)
    except OSError as error:
        raise disk_error(error, output, "try again") from error


def check_folder(folder: Path) -> None:
    """Raise ``OSError`` unless a directory can be made in ``folder``, which need not be there yet."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    # Tried, since permissions alone do not tell.
    try:
        Path(tempfile.mkdtemp(prefix=".cutlass-aot-", dir=folder)).rmdir()
    except OSError as error:
        error.filename = os.fspath(folder)
        raise


def disk_error(error: OSError, output: Path, advice: str, what: str = "the bundle") -> BundleError:
    """The error for a disk that refused ``what`` at ``output``; ``advice`` is for when there is room."""
    where = error.filename if error.filename is not None else output
    return BundleError(
        f"cannot write {what} {output}: {where}: {error.strerror or error}; "
        f"check permissions and free space, or name another output, and {advice}"
    )


def make_folders(folder: Path, paths: Iterable[str]) -> list[Path]:
    """Make ``folder`` and the folders of ``paths`` in it, with fixed modes; returns them, outer ones first.

    The caller synchronises them, by :func:`synchronise`, when their files are written.
    """
    folders = {folder}
    for path in paths:
        folders.update((folder / path).parents)
    made = sorted(item for item in folders if item == folder or folder in item.parents)
    for item in made:
        item.mkdir()
        item.chmod(0o755)
    return made


@contextmanager
def create(path: Path) -> Iterator[BinaryIO]:
    """Create a file with a fixed mode, and synchronise it to the disk at the end."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        # The process's umask must not show in a bundle.
        os.fchmod(descriptor, 0o644)
        yield file
        file.flush()
        os.fsync(descriptor)


def synchronise(folder: Path) -> None:
    """Synchronise a directory's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_replaceable(output: Path, *, locked: bool = True) -> None:
    """Refuse what is not a bundle.

    Without the lock, another writer may be removing an old bundle: half a bundle passes, and is checked again
    with the lock.
    """
    try:
        mode = output.lstat().st_mode
        names = {path.name for path in output.iterdir()} if stat.S_ISDIR(mode) else set()
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        if not names or (names <= TOP_LEVEL and (not locked or names & {CATALOG_NAME, MANIFEST_NAME})):
            return
        extra = sorted(names - TOP_LEVEL)
        found = (
            f"a directory that holds {few(map(repr, extra))}" if extra else "a directory that is not a bundle"
        )
    else:
        found = "something that is not a directory"
    raise BundleError(
        f"{output} is {found}; expected nothing, an empty directory or a bundle to replace: "
        "name another output, or remove it yourself"
    )


def _replace_alone(
    output: Path, fill: Callable[[Path], None], is_there: Callable[[Path], bool], *, alone: bool
) -> bool:
    """Write and swap in; if ``alone``, every other writer has finished or died."""
    prefix = f".{output.name}.staging-"
    if alone:
        _clear_up(output, prefix)
    _check_replaceable(output)
    if is_there(output):
        return False
    staging = Path(tempfile.mkdtemp(prefix=prefix, dir=output.parent))
    try:
        fill(staging / "new")
        _swap_in(staging, output)
    finally:
        # An old bundle that could not be put back is the only copy.
        if not (staging / "old").exists() or output.exists():
            shutil.rmtree(staging, ignore_errors=True)
    return True


def _clear_up(output: Path, prefix: str) -> None:
    """Remove what killed writers left beside ``output``, and put back the bundle that one had moved aside."""
    # The whole name has to match: names of another bundle may begin with the prefix too.
    ours = re.compile(re.escape(prefix) + "[a-z0-9_]+")
    for staging in sorted(output.parent.iterdir()):
        if not ours.fullmatch(staging.name) or not stat.S_ISDIR(staging.lstat().st_mode):
            continue
        if (staging / "old").exists() and not output.exists():
            (staging / "old").rename(output)
        shutil.rmtree(staging, ignore_errors=True)


def _swap_in(staging: Path, output: Path) -> None:
    """Move ``staging/new`` to ``output``, and what was there into ``staging``; or fail and change nothing."""
    # Checked again: it may have changed while the new files were written.
    _check_replaceable(output)
    swap_in(staging / "new", output, staging / "old")
    synchronise(output.parent)


def swap_in(new: Path, output: Path, old: Path) -> None:
    """Move the directory ``new`` to ``output``; if that fails, what was there stays.

    Where the file system cannot exchange two directories, what was there is at ``old`` then, else at ``new``.

    Raises:
        BundleError: if what was moved to ``old`` could not be put back.
        OSError: if the disk refuses.
    """
    moved = False
    try:
        if output.exists() and any(output.iterdir()):
            if exchange(new, output):
                return
            moved = True
            output.rename(old)
        new.rename(output)
    except BaseException:
        if moved and not output.exists():
            _put_back(old, output)
        raise


def _put_back(old: Path, output: Path) -> None:
    try:
        old.rename(output)
    except OSError as error:
        raise BundleError(
            f"the new directory could not be put at {output}, and the old one could not be put back "
            f"({error.strerror}): it is whole, at {old}"
        ) from error
