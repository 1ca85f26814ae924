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
    """Where and how to build; none of it changes what is in a bundle.

    Attributes:
        store: directory of the store.
        jobs: how many workers run at once.
        timeout: seconds one kernel may take.
        tell: called with every event.
        retry: whether kernels that failed before with the same toolchain are compiled again.
        whole: whether to plan in full even if the bundle is up to date.
        upstream: directories of other stores, searched for what the store lacks.
        remote: URL of a store on a web server or in a bucket, searched last.
        remote_read_only: whether nothing is pushed to the remote.
        scheduler: address of the dask scheduler whose workers compile; None to compile on this machine.
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
        """The store, with its upstream stores, at ``path`` if given instead of the settings' directory.

        On exit it waits until everything is pushed, unless there was an error or an interrupt.
        """
        upstream: list[UpstreamStore] = [UpstreamDirectory(root) for root in self.upstream]
        if self.remote is not None:
            # Imported here because few builds have one.
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
