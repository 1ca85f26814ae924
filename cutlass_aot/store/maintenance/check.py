"""Read a whole store, and set aside damaged files."""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cutlass_aot.errors import CorruptFile, SchemaTooNew, StoreError
from cutlass_aot.runtime.files.regular_file import kind_of, open_regular
from cutlass_aot.schema.compression import decompress
from cutlass_aot.store.blobs import check_digest
from cutlass_aot.store.build_state import BUILD_STATE, state_problem
from cutlass_aot.store.durations import durations_problem
from cutlass_aot.store.files import entries, identity, is_there, obstacle, read, reported, set_aside, tree
from cutlass_aot.store.layout import (
    BLOBS,
    DURATIONS_NAME,
    LOCKS,
    LOGS,
    MAX_BLOB_BYTES,
    MAX_RECORD_BYTES,
    RECORDS,
    ROOTS,
    WORKSPACES,
    record_limit,
    record_name,
)
from cutlass_aot.store.record import Record
from cutlass_aot.store.roots import read_root
from cutlass_aot.store.store import Store

Problem = Callable[[Path], str | None]
"""Says what is wrong with a file or a directory; None if nothing is."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged file in a store; ``path``, relative to the store, is where it was before it was set aside."""

    path: str
    problem: str
    set_aside: bool


def check(store: Store, *, repair: bool = False) -> Iterator[Damage]:
    """Read a store, without upstream stores, and yield damaged files and incomplete records.

    They are set aside if ``repair``. A damaged root is reported but stays: it stops a collection, which
    without it would remove all that the root kept. Builders and collections may run meanwhile: unfinished and
    removed files are not damage. One blob is read at a time, piece by piece.
    """

    with reported("read", store.root):
        for path, problem_of in _checks(store):
            seen = _seen(path)
            movable = seen is not None and store.root / ROOTS not in (path, path.parent)
            try:
                problem = problem_of(path)
            except SchemaTooNew as error:
                problem, movable = str(error), False
            if problem:
                moved = repair and movable and set_aside(store.root, path, seen and identity(seen))
                yield Damage(str(path.relative_to(store.root)), problem, moved)


def _checks(store: Store) -> Iterator[tuple[Path, Problem]]:
    """What a store has finished, blobs first, each with the function that says what is wrong with it."""
    bad_blobs: set[Path] = set()

    def blob_problem(path: Path) -> str | None:
        problem = _blob_problem(store, path)
        if problem:
            bad_blobs.add(path)
        return problem

    def whole(found: Iterable[os.DirEntry[str]]) -> Iterator[Path]:
        return (Path(entry.path) for entry in found if not entry.name.startswith("."))

    def files(folder: Path, problem_of: Problem) -> Iterator[tuple[Path, Problem]]:
        for path in whole(tree(folder, strange=True)):
            yield path, in_folders if path.parent == folder else _of_a_file(problem_of)

    root = store.root
    in_folders = partial(_folder_problem, root)
    blobs = BLOBS.partition("/")[0]
    for name in (blobs, BLOBS, RECORDS, ROOTS, BUILD_STATE, LOGS, LOCKS, WORKSPACES):
        yield root / name, in_folders
    yield from files(root / BLOBS, blob_problem)
    for kind in whole(entries(root / RECORDS)):
        yield kind, in_folders
        yield from files(kind, partial(_record_problem, store, kind.name, bad_blobs))
    for path in whole(entries(root / ROOTS)):
        yield path, partial(_root_problem, store)
    for path in whole(entries(root / BUILD_STATE)):
        yield path, _of_a_file(lambda path: state_problem(root, path.name))
    yield from files(root / LOGS, lambda _path: None)
    yield root / DURATIONS_NAME, _of_a_file(lambda _path: durations_problem(store))


def _folder_problem(root: Path, path: Path) -> str | None:
    found = obstacle(root, path / "any")
    return f"{kind_of(found[1].st_mode)}, expected a directory" if found and found[0] == path else None


def _of_a_file(problem_of: Problem) -> Problem:
    """What ``problem_of`` says of a regular file; of anything else, which is not read, what it is."""

    def problem(path: Path) -> str | None:
        seen = _seen(path)
        if seen is not None and not stat.S_ISREG(seen.st_mode):
            return f"{kind_of(seen.st_mode)}, expected a regular file"
        return problem_of(path)

    return problem


def _seen(path: Path) -> os.stat_result | None:
    """The status of a file before it is read, so that no other is set aside; None if it is gone."""
    try:
        return path.lstat()
    except OSError as error:
        # Something else stands for a directory above, which is named itself.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def _blob_problem(store: Store, path: Path) -> str | None:
    sha256 = path.name.partition(".")[0]
    try:
        if store.blob_path(sha256) != path:
            return "a file that stands in the wrong place"
        hasher = hashlib.sha256()
        with os.fdopen(open_regular(path), "rb") as file:
            for piece in decompress(file, MAX_BLOB_BYTES):
                hasher.update(piece)
        check_digest(hasher.hexdigest(), sha256)
    except ValueError:
        return "a file that is not a blob"
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        return str(error)
    except OSError as error:
        if error.errno == errno.ESTALE:
            # Another client of a network file system has replaced or removed it; the new file is whole.
            return None
        if error.errno != errno.EIO:
            raise
        return f"it cannot be read ({os.strerror(errno.EIO)})"
    return None


def _root_problem(store: Store, path: Path) -> str | None:
    try:
        read_root(store, path.name)
    except (CorruptFile, StoreError) as error:
        forget = f"`cutlass-aot store forget {shlex.quote(path.name)}`"
        return f"a damaged root ({error}): build its bundle again, or {forget}"
    return None


def _record_problem(store: Store, kind: str, bad_blobs: set[Path], path: Path) -> str | None:
    if store.root / record_name(kind, path.name) != path:
        return "a file that stands in the wrong place"
    while True:
        try:
            data = read(path, record_limit(kind))
            if data is None:
                return None
            record = Record.from_bytes(data, kind, path.name, "it")
        except CorruptFile as error:
            return f"an unreadable record ({error})"
        except StoreError as error:
            # A file that cannot be read for lack of permission or of file descriptors is not damaged.
            if isinstance(error.__cause__, OSError) and error.__cause__.errno != errno.EIO:
                raise
            return f"an unreadable record ({error})"
        missing = next((name for name in sorted(record.blobs) if not _is_there(store, name, bad_blobs)), None)
        if missing is None:
            return None
        # A collection may have removed the record, before its blobs, or a builder replaced it: look again.
        if _unchanged(path, data):
            gone = "is damaged" if store.blob_path(missing) in bad_blobs else "is not there"
            return f"a record that names blob {missing}, which {gone}"


def _is_there(store: Store, sha256: str, bad_blobs: set[Path]) -> bool:
    path = store.blob_path(sha256)
    return path not in bad_blobs and is_there(path)


def _unchanged(path: Path, data: bytes) -> bool:
    return read(path, MAX_RECORD_BYTES) == data
