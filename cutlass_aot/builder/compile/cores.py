"""The default number of workers: what the cores and the memory allow.

A container sees the cores and the memory of its whole machine. Its limits are those of its control groups; it
can be in several nested ones, of which the lowest limit counts. Formats: cgroups(7), proc(5), and
Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and scheduler/sched-bwc.rst in the sources of
Linux.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

WORKER_BYTES = 1 << 30
"""Memory to count for each worker; one that has held that much is replaced."""

_ROOT = Path("/")
# Version 1 says "no limit" with the largest number of whole pages.
_NO_LIMIT = 1 << 62


def available_workers() -> int:
    """One worker for each core of this process, as far as they fit into its memory; at least one."""
    return reasonable_workers(len(os.sched_getaffinity(0)), core_quota(_ROOT), available_bytes(_ROOT))


def reasonable_workers(cores: int, quota: float | None, free_bytes: int | None) -> int:
    """How many workers to start.

    Args:
        cores: how many the process may run on.
        quota: CPU time that it may use, in cores, rounded up here; None for no limit.
        free_bytes: memory that it can still get; None if unknown.
    """
    limits = [cores]
    if quota is not None:
        limits.append(-int(-quota // 1))
    if free_bytes is not None:
        limits.append(free_bytes // WORKER_BYTES)
    return max(1, min(limits))


def core_quota(root: Path) -> float | None:
    """CPU time that the control groups of this process allow it, in cores; None for no limit.

    ``root`` is the directory of ``proc`` and ``sys``.
    """
    quotas = []
    for folder in control_groups(root, "cpu"):
        words = (_read(folder / "cpu.max") or "").split()
        if not words:
            words = [(_read(folder / f"cpu.cfs_{name}_us") or "").strip() for name in ("quota", "period")]
        numbers = [int(word) for word in words if word.isascii() and word.isdigit()]
        # "max" and -1 stand for no limit.
        if len(words) == len(numbers) == 2 and numbers[1] > 0:
            quotas.append(numbers[0] / numbers[1])
    return min(quotas, default=None)


def available_bytes(root: Path) -> int | None:
    """Memory that this process can still get; None if the system does not say.

    It is the least of what the system has available and, for each control group with a limit, the limit less
    what is used; files in the page cache count as available. ``root`` is the directory of ``proc`` and
    ``sys``.
    """
    found = []
    fields = _fields(_read(root / "proc" / "meminfo"), ":")
    if "MemAvailable" in fields:
        found.append(fields["MemAvailable"] * 1024)
    for folder in control_groups(root, "memory"):
        for limit_name, usage_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _number(folder / limit_name), _number(folder / usage_name)
            if limit is None or usage is None or limit >= _NO_LIMIT:
                continue
            cache = _fields(_read(folder / "memory.stat")).get(cache_name, 0)
            found.append(max(0, limit - max(0, usage - cache)))
    return min(found, default=None)


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of the control groups that this process is in, each followed by those that contain it.

    ``root`` is the directory of ``proc`` and ``sys``. ``controller`` is ``cpu`` or ``memory``: in version 1
    each has a tree of its own.
    """
    mounts = root / "sys" / "fs" / "cgroup"
    for line in (_read(root / "proc" / "self" / "cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            # Where version 1 is mounted too, version 2 is under unified.
            trees = [mounts, mounts / "unified"]
        elif controller in controllers.split(","):
            trees = [mounts / controllers, mounts / controller]
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for tree in trees:
            # In a namespace the path may lead out of it, or exist on the host only: then the mount point
            # itself is the group.
            inner = [] if ".." in parts else parts
            for length in range(len(inner), -1, -1):
                folder = tree.joinpath(*inner[:length])
                if folder.is_dir():
                    yield folder


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _fields(text: str | None, separator: str = " ") -> dict[str, int]:
    """Read lines of a name and a number, as in /proc/meminfo and memory.stat."""
    found = {}
    for line in (text or "").splitlines():
        name, *words = [*line.replace(separator, " ").split(), ""]
        if words and words[0].isascii() and words[0].isdigit():
            found[name] = int(words[0])
    return found
