"""What tests of the store share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from cutlass_aot.store.store import Store

KEY = "ab" * 32
OTHER_KEY = "cd" * 32


def files(store: Store) -> list[str]:
    """Every file of a store, by its path below it."""
    return sorted(str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file())


def age(path: Path, *, hours: float) -> None:
    """Have a file look as if it had last been used so long ago."""
    moment = time.time() - hours * 3600
    os.utime(path, (moment, moment), follow_symlinks=False)


def age_all(store: Store, *, hours: float) -> None:
    """Have all files of a store look as if they had last been used so long ago."""
    for name in files(store):
        age(store.root / name, hours=hours)


def together(code: str, root: Path, count: int) -> None:
    """Run one script in several processes that begin at the same time; none of them may fail.

    The script finds ``Store`` and ``root``, and its number as ``me``.
    """
    start = root.parent / f"{root.name}.start"
    prelude = (
        "import pathlib, sys, time\n"
        "from cutlass_aot.store.store import Store\n"
        "root, start, me = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])\n"
        "print('ready', flush=True)\n"
        "while not start.exists(): time.sleep(0.001)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", prelude + code, str(root), str(start), str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    start.touch()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    start.unlink()
