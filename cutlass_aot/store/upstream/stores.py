"""Upstream stores, where it looks for what it lacks. It verifies whatever comes from one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from cutlass_aot.errors import StoreError
from cutlass_aot.store.files import is_there, read, reported
from cutlass_aot.store.layout import FORMAT_NAME, MAX_RECORD_BYTES, check_format

Reader = Callable[[str], bytes | None]
"""Gives the bytes of one of a store's files by its name, None if it is gone."""


class UpstreamStore(Protocol):
    """What a store asks of an upstream store. Names are those of :mod:`cutlass_aot.store.layout`.

    Attributes:
        copies: whether what is found there is copied into the store; otherwise it is read through.
    """

    @property
    def copies(self) -> bool:
        """See the class."""

    def fetch(self, files: Iterable[tuple[str, int]]) -> Iterator[tuple[str, bytes | None]]:
        """Files by name, in any order; None for one that cannot be had.

        Args:
            files: names, and how many bytes each may have at most.
        """

    def has(self, name: str) -> bool:
        """Whether a file seems to be there."""

    def reject(self, name: str) -> None:
        """Be told that a file is not what its name says."""

    def forget(self, names: Iterable[str]) -> None:
        """Be told that files may be there by now which were not before."""

    def offer(self, record: str, data: bytes, blobs: Sequence[str], read: Reader) -> None:
        """Be offered a new record.

        Args:
            record: its name.
            data: its bytes.
            blobs: names of the blobs it needs.
            read: gives the bytes of such a blob's file; may be called later, by a thread.
        """

    def close(self) -> None:
        """Finish what is under way, within a bounded time."""

    def abandon(self) -> None:
        """Begin nothing more, and wait for nothing."""


class UpstreamDirectory:
    """Another store directory, never written: not even a use is marked there.

    Args:
        root: the directory.
        copies: whether what is found there is copied into the store.
    """

    def __init__(self, root: Path, *, copies: bool = False) -> None:
        self.root = root
        self.copies = copies
        with reported("open the store", root):
            marker = read(root / FORMAT_NAME, MAX_RECORD_BYTES)
        if marker is None:
            raise StoreError(
                f"{root} is not a cutlass-aot store: it has no FORMAT file; name the directory of one that a "
                "build has made"
            )
        check_format(marker, str(root))

    def fetch(self, files: Iterable[tuple[str, int]]) -> Iterator[tuple[str, bytes | None]]:
        """Files, one after the other; what cannot be read is not there."""
        for name, limit in files:
            try:
                yield name, read(self.root / name, limit)
            except StoreError:
                yield name, None

    def has(self, name: str) -> bool:
        """Whether the file is there."""
        return is_there(self.root / name)

    def reject(self, name: str) -> None:
        """Nothing: this store is somebody else's to mend."""

    def forget(self, names: Iterable[str]) -> None:
        """Nothing: it is looked at every time."""

    def offer(self, record: str, data: bytes, blobs: Sequence[str], read: Reader) -> None:
        """Nothing: it is never written."""

    def close(self) -> None:
        """Nothing is under way."""

    def abandon(self) -> None:
        """Nothing is under way."""
