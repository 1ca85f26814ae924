"""What tools/torture/torture.py does to a store, and what a check may then say of it."""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.torture import other_files

_YEAR = 365 * 86400
_BLOB = re.compile(r"names blob ([0-9a-f]{64})")
_ASIDE_TWICE = re.compile(r"-[0-9a-f]{8}$")
KINDS = ("flipped", "truncated", "emptied", "removed", "swapped", *other_files.KINDS)


@dataclass
class Damager:
    """Damages files of a store, and remembers which.

    Attributes:
        store: the store's directory.
        rng: decides what happens.
        touched: paths below the store that are not what they were, since :meth:`forget`.
        counts: how often what was done.
    """

    store: Path
    rng: random.Random
    touched: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    def forget(self) -> None:
        """From now on no damage is expected."""
        self.touched.clear()

    def files(self, *folders: str) -> list[Path]:
        """Files below some folders of the store, sorted; all that may be damaged if none is named.

        Not FORMAT: without it a directory is not a store any more.
        """
        chosen = folders or ("blobs", "records", "roots", "logs", "locks", "build_state", "tmp", "durations")
        own: list[Path] = []
        for folder in chosen:
            top = self.store / folder
            own += [path for path in (top, *top.rglob("*")) if _is_own(path)]
        return sorted(own)

    def damage(self, paths: Sequence[Path], count: int) -> None:
        """Damage some of these files, each in one way."""
        for path in self.rng.sample(paths, min(count, len(paths))):
            kind = self.rng.choice(KINDS)
            # What a builder has just written itself, for itself, it does not expect to be something else.
            if kind in other_files.KINDS and self._name(path).startswith("tmp/"):
                kind = "removed"
            other = self.rng.choice([item for item in paths if item != path] or [path])
            try:
                self._do(kind, path, other)
            except OSError:
                continue  # A builder has removed it by now, or the disk is read-only or full.
            self.counts[kind] += 1

    def _do(self, kind: str, path: Path, other: Path) -> None:
        # Noted before it is done: a check may run at any moment.
        self.touched.add(self._name(path))
        if kind == "removed":
            path.unlink()
        elif kind == "swapped":
            self.touched.add(self._name(other))
            path.replace(other)
        elif kind in other_files.KINDS:
            other_files.put(kind, path)
        else:
            with os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b") as file:
                size = file.seek(0, os.SEEK_END)
                if kind == "flipped" and size:
                    position = self.rng.randrange(size)
                    file.seek(position)
                    byte = file.read(1)[0]
                    file.seek(position)
                    file.write(bytes([byte ^ (1 << self.rng.randrange(8))]))
                else:
                    file.truncate(self.rng.randrange(size) if kind == "truncated" and size else 0)

    def remove(self, paths: Iterable[Path], share: float) -> None:
        """Remove a share of these files, so that there is something to build."""
        for path in paths:
            if self.rng.random() < share:
                self.touched.add(self._name(path))
                path.unlink(missing_ok=True)
                self.counts["removed"] += 1

    def date(self, paths: Iterable[Path]) -> None:
        """Give files times long ago and far ahead; that is not damage.

        Not what builders have left on its way: from the future, it would lie there until then.
        """
        for path in paths:
            if not path.name.startswith(".new-") and self.rng.random() < 0.5:
                when = time.time() + self.rng.uniform(-30 * _YEAR, 30 * _YEAR)
                try:
                    os.utime(path, (when, when), follow_symlinks=False)
                except OSError:
                    continue
                self.counts["dated"] += 1

    def age(self) -> None:
        """Have everything look as if it had last been used two days ago; that is not damage.

        Directories too: one that a builder was killed in the middle of making is left for a day.
        """
        when = time.time() - 2 * 86400
        for path in self.store.rglob("*"):
            os.utime(path, (when, when), follow_symlinks=False)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.store).as_posix()

    def unexplained(self, damage: Iterable[Mapping[str, object]], aside: Iterable[str]) -> list[str]:
        """What a check named, or somebody set aside, that was not damaged on purpose.

        Args:
            damage: what ``store check --json`` listed.
            aside: names of the files in ``damaged/``.
        """
        problems = []
        explained = {name.rpartition("/")[2] for name in self.touched}
        for item in damage:
            path, problem = str(item["path"]), str(item["problem"])
            blob = _BLOB.search(problem)
            # A record is not to blame for a blob that is gone.
            through_blob = blob is not None and any(blob.group(1) in name for name in self.touched)
            if path in self.touched or through_blob:
                explained.add(path.rpartition("/")[2])
            else:
                problems.append(f"{path}: {problem}")
        problems += [
            f"damaged/{name}"
            for name in aside
            if not any(
                own == known or own.endswith(f"-{known}")
                for known in explained
                for own in (name, _ASIDE_TWICE.sub("", name))
            )
        ]
        return problems


def _is_own(path: Path) -> bool:
    """Whether this is a file of the store, and no link: a builder links to the installed packages' files."""
    return path.is_file() and not path.is_symlink()


class Disk:
    """The file system that a store is on: full and read-only on demand, where one can be mounted.

    Where it cannot, permissions make the store read-only; they do not bind root.
    """

    SIZE = "400m"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        done = _mount("-t", "tmpfs", "-o", f"size={self.SIZE}", "tmpfs", folder)
        self.mounted = done.returncode == 0
        self.can_be_read_only = self.mounted or os.geteuid() != 0

    def fill(self, spare_bytes: int) -> bool:
        """Leave so much room; False if that cannot be done."""
        if not self.mounted:
            return False
        state = os.statvfs(self.folder)
        used = (state.f_blocks - state.f_bfree) * state.f_frsize
        return _mount("-o", f"remount,size={used + spare_bytes}", self.folder).returncode == 0

    def close_to_writing(self) -> bool:
        """Make it read-only; False if that cannot be done now, such as while a file is being written."""
        if self.mounted:
            return _mount("-o", "remount,ro", self.folder).returncode == 0
        if self.can_be_read_only:
            self._allow_writing(False)
        return self.can_be_read_only

    def restore(self) -> None:
        """Writable, and with room."""
        if self.mounted:
            done = _mount("-o", f"remount,rw,size={self.SIZE}", self.folder)
            if done.returncode:
                raise RuntimeError(f"{self.folder} cannot be made writable again: {done.stderr}")
        else:
            self._allow_writing(True)

    def _allow_writing(self, allowed: bool) -> None:
        self.folder.chmod(0o755)
        for folder in [path for path in self.folder.rglob("*") if path.is_dir()]:
            folder.chmod(0o755 if allowed else 0o555)

    def close(self) -> None:
        """Unmount it."""
        if self.mounted:
            subprocess.run(["umount", str(self.folder)], check=False)


def _mount(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", *map(str, words)], capture_output=True, text=True, check=False)
