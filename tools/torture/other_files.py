"""What may stand where a regular file or a directory belongs, for the torture, the fuzzer and the tests."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

KINDS = ("named pipe", "directory", "link loop", "dangling link", "link to a file", "socket")


def put(kind: str, path: Path) -> None:
    """Put something of this kind, or ``file`` for a regular one, in the place of whatever is there.

    It appears at once, by a rename, but that nothing is there for a moment where a directory is or is to be.
    """
    beside = path.with_name(f".new-{os.urandom(8).hex()}")
    if kind == "named pipe":
        os.mkfifo(beside)
    elif kind == "directory":
        beside.mkdir()
        (beside / "inside").write_bytes(b"foreign")
    elif kind == "link loop":
        beside.symlink_to(path.name)
    elif kind == "dangling link":
        beside.symlink_to("nowhere")
    elif kind == "link to a file":
        beside.symlink_to("/etc/passwd")
    elif kind == "socket":
        _socket(beside)
    else:
        beside.write_bytes(b"foreign")
    if kind == "directory" or (path.is_dir() and not path.is_symlink()):
        remove(path)
    beside.rename(path)


def remove(path: Path) -> None:
    """Remove whatever is there, if anything is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _socket(path: Path) -> None:
    # An address has 108 bytes at most: a path through the descriptor of the directory is short.
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as own:
            own.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
