"""Read and write files of a remote store through fsspec: reads are bounded, and files appear whole."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from cutlass_aot.errors import StoreError
from cutlass_aot.runtime.optional_packages import optional
from cutlass_aot.store.layout import NEW

Value = TypeVar("Value")

_WEB = frozenset({"http", "https"})
_FILE_LIKE = frozenset(
    {"file", "local", "sftp", "ssh", "smb", "ftp", "hdfs", "arrow_hdfs", "webhdfs", "webdav"}
)
"""Protocols by which a file is visible while it is being written; object storage shows complete objects."""

_FORBIDDEN = 403
_PAUSE = 0.2  # seconds before something that failed is tried once more


class TooLarge(Exception):
    """A file has more bytes than its limit."""


class Transport:
    """Files below the URL of a directory or prefix."""

    def __init__(self, url: str) -> None:
        self._url = url
        name = shown_url(url)
        if "://" not in url:
            raise StoreError(
                f"{name!r} is not a URL: expected one such as https://host/store or s3://bucket/store; "
                "a directory is given as --upstream"
            )
        url_to_fs = optional("fsspec.core", StoreError, name).url_to_fs
        options: dict[str, Any] = {"skip_instance_cache": True}
        self._headers: dict[str, str] = {}
        if url.partition("://")[0] in _WEB:
            # Files as they are: a blob is not decompressed even if a server declares its compression.
            self._headers = {"Accept-Encoding": "identity"}
            options |= {"client_kwargs": {"auto_decompress": False}, "headers": self._headers}
        try:
            self._files, root = url_to_fs(url, **options)
        except ImportError as error:
            raise StoreError(
                f"{name} needs a package that is not installed: {self.shown(str(error))}"
            ) from None
        except Exception as error:  # Whatever a file system raises for a URL or options that it cannot use.
            raise StoreError(
                f"{name} cannot be used: {self.shown(str(error))}; expected a URL of a protocol that fsspec "
                "knows"
            ) from None
        self._root = root.rstrip("/")
        protocols = self._files.protocol
        known = {protocols} if isinstance(protocols, str) else set(protocols)
        self._web = bool(known & _WEB)
        self._file_like = bool(known & _FILE_LIKE)

    def shown(self, words: str) -> str:
        """An error's text, without the parts of the URL that must not be shown."""
        parts = urlsplit(self._url)
        hidden = [parts.netloc.rpartition("@")[0], parts.password or "", parts.query]
        words = words.replace(self._url, shown_url(self._url))
        for secret in filter(None, [*hidden, *map(unquote, hidden)]):
            words = words.replace(secret, "...")
        return words

    def get(self, name: str, limit: int, deadline: float) -> bytes:
        """A file's bytes, at most ``limit``; ``name`` is its path below the URL.

        From web servers nothing is read after ``deadline`` on the monotonic clock; elsewhere it is ignored.

        Raises:
            FileNotFoundError: if it is not there.
            PermissionError: if it may not be read, or is not there: storage whose files may not be listed
                does not say which.
            TooLarge: if it has more bytes.
            Exception: whatever else the file system raises.
        """
        path = self._path(name)
        if self._web:
            # A web server may ignore a range, and need not say how much it sends.
            sink = _Sink(limit, deadline)
            try:
                self._files.get_file(path, sink)
            except Exception as error:
                if getattr(error, "status", None) == _FORBIDDEN:
                    raise PermissionError(str(error)) from None
                raise
            return sink.getvalue()
        data: bytes = self._files.cat_file(path, start=0, end=limit + 1)
        if len(data) > limit:
            raise TooLarge(f"{name} has more than {limit} bytes")
        return data

    def size(self, name: str) -> int | None:
        """A file's size in bytes; None if it is absent, forbidden, or its size is not known."""
        try:
            size = self._files.info(self._path(name))["size"]
        except (FileNotFoundError, PermissionError):
            return None
        return size if isinstance(size, int) else None

    def put(self, name: str, data: bytes) -> None:
        """Write a file that appears whole, in place of any other; raises what the file system raises."""
        path = self._path(name)
        if self._web:
            headers = {**self._headers, "Content-Length": str(len(data))}
            self._files.put_file(io.BytesIO(data), path, method="put", headers=headers)
        elif self._file_like:
            folder = path.rpartition("/")[0]
            self._files.makedirs(folder, exist_ok=True)
            new = f"{folder}/{NEW}{os.urandom(8).hex()}"
            try:
                self._files.pipe_file(new, data)
                # Not all protocols can move a file over another. That it is absent for a moment is harmless.
                if self._files.exists(path):
                    self._files.rm_file(path)
                self._files.mv(new, path)
            except BaseException:
                if self._files.exists(new):
                    self._files.rm_file(new)
                raise
        else:
            self._files.pipe_file(path, data)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def shown_url(url: str) -> str:
    """A URL without user, password, query and fragment, any of which may be secret."""
    scheme, separator, rest = url.partition("://")
    rest = rest.partition("#")[0].partition("?")[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def persistently(action: Callable[[], Value]) -> Value:
    """Run an action, and once more if it fails, unless the file is absent, forbidden or too large."""
    try:
        return action()
    except (FileNotFoundError, PermissionError, TooLarge):
        raise
    except Exception:  # Any error of any file system; a second one is raised.
        time.sleep(_PAUSE)
        return action()


class _Sink(io.BytesIO):
    """Takes what a server sends, up to a limit and a deadline."""

    def __init__(self, limit: int, deadline: float) -> None:
        super().__init__()
        self._limit = limit
        self._deadline = deadline

    def write(self, data: Any, /) -> int:
        if time.monotonic() > self._deadline:
            raise TimeoutError("it takes too long")
        if self.tell() + len(data) > self._limit:
            raise TooLarge(f"more than {self._limit} bytes are sent")
        return super().write(data)
