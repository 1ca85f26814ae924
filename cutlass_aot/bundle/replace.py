"""Replace a bundle: the new one is made beside it, complete and synchronised, then swapped in at once."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import filelock

from cutlass_aot.bundle.files import exchange
from cutlass_aot.errors import BundleError
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME
from cutlass_aot.schema.bundles.signature import SIGNATURES
from cutlass_aot.schema.words import few

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
    """Put the bundle that ``fill`` makes at ``output``, unless it is there.

    An empty directory or another bundle there is replaced, with its signatures, at once and only when the new
    one is complete; a symbolic link is followed. Writers of one output take turns, by the file ``.NAME.lock``
    beside it, which stays. Where the file system cannot exchange two directories, there is no bundle for a
    moment.

    Args:
        output: the bundle's directory, which need not exist.
        fill: called with a directory that is not there yet and that it makes, with everything in it, by
            :func:`make_folders` and :func:`create`. What it raises ends all, and nothing of it stays.
        is_there: whether exactly this bundle is in a directory already.

    Returns:
        Whether anything was written.

    Raises:
        BundleError: for anything else at ``output``.
        OSError: if the disk refuses; what was at ``output`` stays. Say so by :func:`disk_error`.
    """
    # A link to a bundle is replaced behind the link, so that the link goes on working.
    output = Path(os.path.realpath(output))
    # Without the lock, which is a file: none is left where there is nothing to do or nothing may be done.
    if is_there(output):
        return False
    _check_replaceable(output, locked=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(output.parent / f".{output.name}.lock"):
        return _replace_alone(output, fill, is_there)


def check_output(output: Path) -> None:
    """Refuse what :func:`replace_bundle` would not replace, before any work is done for it."""
    try:
        _check_replaceable(Path(os.path.realpath(output)), locked=False)
    except OSError as error:
        raise disk_error(error, output, "build again: what was compiled is kept") from error


def disk_error(error: OSError, output: Path, advice: str, what: str = "the bundle") -> BundleError:
    """What to raise where the disk refused a bundle, or what is made of one.

    Args:
        error: what it said.
        output: the directory that was to be written.
        advice: what to do once there is room.
        what: how to call what was to be there.
    """
    where = error.filename if error.filename is not None else output
    return BundleError(
        f"cannot write {what} {output}: {where}: {error.strerror or error}; "
        f"make room or name another output, and {advice}"
    )


def make_folders(folder: Path, paths: Iterable[str]) -> list[Path]:
    """Make ``folder`` and what holds ``paths`` in it, with fixed modes, and give them all, outer ones first.

    They are to be synchronised when they are full, by :func:`synchronise`.
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
    """Write a file that is not there yet, with a fixed mode; it is on the disk at the end."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        # The process's umask must not show in a bundle.
        os.fchmod(descriptor, 0o644)
        yield file
        file.flush()
        os.fsync(descriptor)


def synchronise(folder: Path) -> None:
    """See that a directory's entries are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_replaceable(output: Path, *, locked: bool = True) -> None:
    """Refuse what is not a bundle.

    Args:
        output: where the bundle is to be.
        locked: whether no other writer is at work. One that is may be removing what was there, so that
            half a bundle is let pass; it is looked at again with the lock.
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


def _replace_alone(output: Path, fill: Callable[[Path], None], is_there: Callable[[Path], bool]) -> bool:
    """Write and swap in, with the lock held: whatever another writer was doing, it has finished or died."""
    prefix = f".{output.name}.staging-"
    _clear_up(output, prefix)
    _check_replaceable(output)
    if is_there(output):
        return False
    staging = Path(tempfile.mkdtemp(prefix=prefix, dir=output.parent))
    try:
        fill(staging / "new")
        _swap_in(staging, output)
    finally:
        # What could not be put back is the only copy of the bundle that was here.
        if not (staging / "old").exists() or output.exists():
            shutil.rmtree(staging, ignore_errors=True)
    return True


def _clear_up(output: Path, prefix: str) -> None:
    """Remove what killed writers left beside ``output``, and put back the bundle that one had moved aside."""
    # Not a prefix alone: another bundle's name may begin with all of it.
    ours = re.compile(re.escape(prefix) + "[a-z0-9_]+")
    for staging in sorted(output.parent.iterdir()):
        if not ours.fullmatch(staging.name) or not stat.S_ISDIR(staging.lstat().st_mode):
            continue
        if (staging / "old").exists() and not output.exists():
            (staging / "old").rename(output)
        shutil.rmtree(staging, ignore_errors=True)


def _swap_in(staging: Path, output: Path) -> None:
    """Put ``staging/new`` at ``output``, and what was there somewhere in ``staging``, or change nothing."""
    moved = False
    try:
        if output.exists() and any(output.iterdir()):
            # Looked at again: the files were written since, and that takes time.
            _check_replaceable(output)
            if exchange(staging / "new", output):
                synchronise(output.parent)
                return
            moved = True
            output.rename(staging / "old")
        (staging / "new").rename(output)
    except BaseException:
        if moved and not output.exists():
            _put_back(staging / "old", output)
        raise
    synchronise(output.parent)


def _put_back(old: Path, output: Path) -> None:
    try:
        old.rename(output)
    except OSError as error:
        raise BundleError(
            f"the new bundle could not be put at {output}, and the old one could not be put back "
            f"({error.strerror}): it is whole, at {old}"
        ) from error
