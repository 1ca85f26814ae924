"""Where and how to build."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.builder.events import Listener, Notice
from cutlass_aot.store.store import Store
from cutlass_aot.store.upstream.stores import UpstreamDirectory, UpstreamStore


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and how to build; nothing of it decides what a bundle is.

    Attributes:
        store: directory of the store.
        jobs: workers at once.
        timeout: seconds one kernel may take.
        tell: called with every event.
        retry: whether kernels are compiled again that failed before with the same toolchain.
        whole: whether the whole plan is made also where the bundle is up to date.
        upstream: directories of other stores, to look in for what the store lacks.
        remote: URL of a store on a web server or in a bucket, looked in last.
        remote_read_only: whether nothing is to be put there.
        scheduler: address of the dask scheduler whose workers compile; None for workers of this process.
    """

    store: Path
    jobs: int
    timeout: float
    tell: Listener
    retry: bool = False
    whole: bool = False
    upstream: tuple[Path, ...] = ()
    remote: str | None = None
    remote_read_only: bool = False
    scheduler: str | None = None

    @contextmanager
    def open_store(self, path: Path | None = None) -> Iterator[Store]:
        """The store, with its upstream stores; what is to be pushed has been when this ends.

        An error or an interrupt does not wait for that.

        Args:
            path: another directory than the settings name.
        """
        upstream: list[UpstreamStore] = [UpstreamDirectory(root) for root in self.upstream]
        if self.remote is not None:
            # Here, and not above: few builds have one.
            from cutlass_aot.store.upstream.remote import RemoteStore

            push = not self.remote_read_only
            upstream.append(RemoteStore(self.remote, push=push, tell=lambda text: self.tell(Notice(text))))
        store = Store(path or self.store, upstream=upstream)
        try:
            yield store
        except BaseException:
            store.abandon()
            raise
        store.close()
