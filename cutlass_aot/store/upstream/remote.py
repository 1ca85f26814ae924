"""An upstream store on a web server or on object storage: pulled from, and pushed to.

It has the layout of a store directory, so a store directory served over HTTP is one. Nothing that it sends is
trusted: the store verifies it. If it cannot be reached, that is told once, and the build goes on without it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from cutlass_aot.errors import CutlassAotError
from cutlass_aot.schema.words import plural
from cutlass_aot.store.layout import FORMAT_NAME, check_format, format_text
from cutlass_aot.store.upstream.stores import Reader
from cutlass_aot.store.upstream.thread_pool import Task, ThreadPool
from cutlass_aot.store.upstream.transport import TooLarge, Transport, persistently, shown_url

TIMEOUT = 10.0
"""Seconds for one file, in addition to what its size takes."""
CLOSE_SECONDS = 300.0
"""Most seconds that the end of a build waits for what is being pushed."""
QUIET_SECONDS = 2.0
"""Seconds of that wait before a message tells of it."""

_PULLERS = 16
_PUSHERS = 4
_SLOWEST = 1 << 20
"""Bytes a second; what is slower counts as hanging."""
_LARGEST = 1 << 26
"""Bytes up to which a file's limit counts as its size; a larger limit says nothing about one file."""
_MAX_FORMAT_BYTES = 1 << 12


class RemoteStore:
    """An upstream store at a URL. What is found there is copied into the store.

    Args:
        url: of a directory or prefix, such as ``https://host/store`` or ``s3://bucket/store``. The attribute
            has only the part that may be shown.
        timeout: seconds that one file may take, in addition to what its size takes.
        push: whether new records of the store are put there too.
        tell: called with a sentence, such as when the remote is given up; maybe by another thread.
    """

    copies = True

    def __init__(
        self,
        url: str,
        timeout: float = TIMEOUT,
        *,
        push: bool = True,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.url = shown_url(url)
        self._transport = Transport(url)
        self._timeout = timeout
        self._tell = tell
        self._pullers = ThreadPool(_PULLERS)
        self._pushers = ThreadPool(_PUSHERS)
        self._pulls = True
        self._pushes = push
        # Whether there is a store to pull from; None before the first look.
        self._exists: bool | None = None
        self._marked = False
        self._said = False
        self._looking = threading.Lock()
        self._absent: set[str] = set()
        self._damaged: set[str] = set()
        self._changed = threading.Condition()
        self._waiting = 0
        self._pushed = 0
        self._patience = timeout

    @property
    def pushed(self) -> int:
        """How many records have been put there."""
        return self._pushed

    def fetch(self, files: Iterable[tuple[str, int]]) -> Iterator[tuple[str, bytes | None]]:
        """Fetch files by several threads at once; they come in the order of ``files``."""
        under_way: deque[tuple[str, float, Task[bytes]]] = deque()
        for name, limit in files:
            if name in self._absent or name in self._damaged or not self._look():
                yield name, None
                continue
            seconds = self._timeout + (limit / _SLOWEST if limit <= _LARGEST else 0)
            under_way.append((name, seconds, self._begin(name, limit, seconds)))
            # This bounds how many answers are in memory at once.
            if len(under_way) > 2 * _PULLERS:
                yield self._finish(*under_way.popleft())
        while under_way:
            yield self._finish(*under_way.popleft())

    def has(self, name: str) -> bool:
        """Whether a file seems to be there."""
        if not self._look():
            return False
        with contextlib.suppress(Exception):
            return self._pullers.begin(partial(self._transport.size, name)).result(self._timeout) is not None
        return False

    def reject(self, name: str) -> None:
        """Count a file as absent from now on, and replace it if it is offered."""
        self._damaged.add(name)

    def forget(self, names: Iterable[str]) -> None:
        """Ask again for files that were absent or damaged."""
        again = set(names)
        self._absent -= again
        self._damaged -= again
        with self._looking:
            # There was no store; there may be one now.
            if self._exists is False:
                self._exists = None

    def offer(self, record: str, data: bytes, blobs: Sequence[str], read: Reader) -> None:
        """Put a record there, after its blobs, in other threads."""
        if self._pushes:
            with self._changed:
                self._waiting += 1
            self._pushers.begin(partial(self._push, record, data, tuple(blobs), read))

    def close(self) -> None:
        """Wait for pushes as long as they make progress, at most :data:`CLOSE_SECONDS`."""
        began = time.monotonic()
        told = False
        heard = began
        with self._changed:
            while self._waiting and self._pushes:
                now = time.monotonic()
                if not told and now >= began + QUIET_SECONDS:
                    told = True
                    records = plural(self._waiting, "record")
                    self._tell(f"waiting for {records} to be put into the store at {self.url}")
                patience = min(heard + self._patience, began + CLOSE_SECONDS) - now
                if patience <= 0:
                    break
                if self._changed.wait(patience if told else min(patience, QUIET_SECONDS)):
                    heard = time.monotonic()
            left = self._waiting
            silent = time.monotonic() >= heard + self._patience
        if left and self._pushes:
            why = "it has stopped answering" if silent else f"a build waits {CLOSE_SECONDS:g} s at most"
            self._stop_pushing(f"{left} records are left, and {why}")

    def abandon(self) -> None:
        """Put nothing more there, and do not wait for what is being put there now."""
        with self._changed:
            self._pushes = False

    # --- pulling

    def _say_that_there_is_none(self) -> None:
        if not self._said:
            self._said = True
            begun = "this build begins one" if self._pushes else "check the URL"
            self._tell(f"there is no store at {self.url}: {begun}")

    def _look(self) -> bool:
        """Whether there is a store to pull from; asked at the first use."""
        with self._looking:
            if self._exists is None and self._pulls:
                self._exists = False
                task = self._begin(FORMAT_NAME, _MAX_FORMAT_BYTES, self._timeout)
                try:
                    check_format(task.result(self._timeout), self.url)
                    self._exists = self._marked = True
                except FileNotFoundError:
                    self._say_that_there_is_none()
                except CutlassAotError as error:
                    self._pushes = False
                    self._stop_pulling(str(error))
                except Exception as error:  # Whatever the file system raises.
                    self._pushes = False
                    self._stop_pulling(self._words(error))
            return self._pulls and bool(self._exists)

    def _begin(self, name: str, limit: int, seconds: float) -> Task[bytes]:
        def get() -> bytes:
            return self._transport.get(name, limit, time.monotonic() + seconds)

        return self._pullers.begin(partial(persistently, get))

    def _finish(self, name: str, seconds: float, task: Task[bytes]) -> tuple[str, bytes | None]:
        """Wait for a file; once one has failed, no other is waited for."""
        if not self._pulls:
            return name, None
        try:
            return name, task.result(seconds)
        except (FileNotFoundError, PermissionError):
            # Storage that lists no files says of absent ones that they are forbidden. FORMAT could be read.
            self._absent.add(name)
        except TooLarge:
            self.reject(name)
        except Exception as error:  # Whatever the file system raises.
            self._stop_pulling(self._words(error))
        return name, None

    def _stop_pulling(self, why: str) -> None:
        self._pulls = False
        self._tell(f"the store at {self.url} is left out from here on: {why}")

    # --- pushing

    def _push(self, record: str, data: bytes, blobs: Sequence[str], read: Reader) -> None:
        try:
            self._mark()
            # A record that was absent when it was requested is not looked for again.
            new = record in self._absent or not self._exists
            for name in blobs:
                content = read(name)
                if content is None:
                    return
                self._put(name, content, new)
            if self._put(record, data, new):
                with self._changed:
                    self._pushed += 1
        except Exception as error:  # Whatever the file system raises, or the store's own disk.
            self._stop_pushing(self._words(error))
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    def _mark(self) -> None:
        """Make a store there if there is none. This build does not pull from a store that it made."""
        self._look()
        with self._looking:
            if self._pushes and not self._marked:
                persistently(partial(self._transport.put, FORMAT_NAME, format_text()))
                self._marked = True

    def _put(self, name: str, data: bytes, new: bool) -> bool:
        """Put a file there unless it is there; False if pushing has stopped."""
        if not self._pushes:
            return False
        if new or name in self._damaged or self._transport.size(name) != len(data):
            with self._changed:
                self._patience = max(self._patience, self._timeout + len(data) / _SLOWEST)
            persistently(partial(self._transport.put, name, data))
            self._damaged.discard(name)
        with self._changed:
            self._changed.notify_all()
        return True

    def _stop_pushing(self, why: str) -> None:
        with self._changed:
            if not self._pushes:
                return
            self._pushes = False
        self._tell(f"nothing more is put into the store at {self.url}: {why}")

    def _words(self, error: BaseException) -> str:
        """An error's text, without the parts of the URL that must not be shown."""
        return self._transport.shown(str(error)) or type(error).__name__
