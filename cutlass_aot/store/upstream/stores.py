"""Upstream stores, where a store looks for what it lacks. It verifies what comes from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from cutlass_aot.errors import StoreError
from cutlass_aot.store.files import is_there, read, reported
from cutlass_aot.store.layout import FORMAT_NAME, MAX_RECORD_BYTES, check_format

Reader = Callable[[str], bytes | None]
"""Returns the bytes of one of a store's files by its name; None if it is gone."""


class UpstreamStore(Protocol):
    """What a store asks of an upstream store. Names are those of :mod:`cutlass_aot.store.layout`."""

    @property
    def copies(self) -> bool:
        """Whether what is found there is copied into the store; otherwise it is read through."""

    def fetch(self, files: Iterable[tuple[str, int]]) -> Iterator[tuple[str, bytes | None]]:
        """The contents of files, by name and in any order; None for one that cannot be had.

        ``files`` are names, each with the most bytes that the file may have.
        """

    def has(self, name: str) -> bool:
        """Whether a file seems to be there."""

    def reject(self, name: str) -> None:
        """Take note that a file is not what its name says."""

    def forget(self, names: Iterable[str]) -> None:
        """Forget that files were absent: they may be there by now."""

    def offer(self, record: str, data: bytes, blobs: Sequence[str], read: Reader) -> None:
        """Take a new record, by its name, if the upstream store wants it, and the blobs it needs.

        ``read`` gives the bytes of a blob's file; it may be called later, by another thread.
        """

    def close(self) -> None:
        """Finish what is under way, within a bounded time."""

    def abandon(self) -> None:
        """Begin nothing more, and wait for nothing."""


class UpstreamDirectory:
    """Another store directory, which is never written: not even a use is marked there."""

    copies = False

    def __init__(self, root: Path) -> None:
        self.root = root
        with reported("open the store", root):
            marker = read(root / FORMAT_NAME, MAX_RECORD_BYTES)
        if marker is None:
            raise StoreError(
                f"{root} is not a cutlass-aot store: it has no FORMAT file; name the directory of one that a "
                "build has made"
            )
        check_format(marker, str(root))

    def fetch(self, files: Iterable[tuple[str, int]]) -> Iterator[tuple[str, bytes | None]]:
        """Files, one after the other; None for one that cannot be read."""
        for name, limit in files:
            try:
                yield name, read(self.root / name, limit)
            except StoreError:
                yield name, None

    def has(self, name: str) -> bool:
        """Whether the file is there."""
        return is_there(self.root / name)

    def reject(self, name: str) -> None:
        """Do nothing: its owner has to repair it."""

    def forget(self, names: Iterable[str]) -> None:
        """Do nothing: absent files are looked for every time."""

    def offer(self, record: str, data: bytes, blobs: Sequence[str], read: Reader) -> None:
        """Do nothing: it is never written."""

    def close(self) -> None:
        """Nothing is under way."""

    def abandon(self) -> None:
        """Nothing is under way."""
