"""What other users and killed builders leave: the next build ends, says what it does, and harms nothing.

    python -m tools.torture.neighbours [--attack NAME]

Needs the build extra, no GPU. Each attack builds a small bundle in a directory of its own and then meets it
with something hostile: it has to end in time, without a traceback, and leave no process, no file and no harm.
Prints a table in Markdown; exits with 1 if one attack did not end like that.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.torture.attacks import attack_command

MANIFEST = """
[bundle]
name = "small"
targets = ["sm_90a", "sm_100a"]
device = { sm_90a = "h200", sm_100a = "b200" }

[[kernels]]
generator = "simt_f64_gemm"
ab = "f64"
"""
SECONDS = 60.0
"""Most that one command may take."""
LOCKS_SECONDS = 90.0
"""Most that held locks may hold up: they are waited for once, for a minute."""
ENDING_SECONDS = 10.0
"""How long processes of a killed builder may live on."""
_PRECIOUS = b"of another user"
_TITLE = "\x1b]0;owned\x07"

_READ = """
import sys
from pathlib import Path
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.runtime.files.verified_read import read_manifest
from cutlass_aot.runtime.launching.gpu_code import Code
from cutlass_aot.schema.bundles.group_index import CodeSpan
root = Path(sys.argv[1])
for name, reference in sorted(read_manifest(root).items()):
    if name.startswith("code/"):
        try:
            Code(root, reference).read(CodeSpan(0, 1, "0" * 64))
        except CutlassAotError as error:
            assert "SHA-256" in str(error), error
"""
"""Reads a byte of each file of GPU code, which is unpacked for it. The digest is of nothing."""


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "cutlass_aot", *words]


def _build(folder: Path) -> list[str]:
    (folder / "small.toml").write_text(MANIFEST, encoding="utf-8")
    return _command(
        "build", str(folder / "small.toml"), "--store", str(folder / "store"), "--out", str(folder / "out")
    )


def _run(command: list[str], **variables: str) -> tuple[int | None, str]:
    """Exit status, None if it did not end, and what was said."""
    try:
        done = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None, "no end"
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace").strip()


def _judged(status: int | None, said: str, expected: int) -> str:
    if status is None:
        return "held"
    if "Traceback" in said or status != expected:
        return f"exit status {status}: {said[-200:]}"
    return ""


def links_for_locks(folder: Path) -> str:
    """Somebody has put links to a file in the places of all locks."""
    build = _build(folder)
    _run(build)
    precious = folder / "precious"
    precious.write_bytes(_PRECIOUS)
    places = {path for path in folder.rglob("*") if path.suffix == ".lock" or path.parent.name == "locks"}
    for path in {*places, folder / "out" / ".small.lock"}:
        path.unlink(missing_ok=True)
        path.symlink_to(precious)
    _remove_records(folder)
    shutil.rmtree(folder / "out" / "small")
    status, said = _run(build)
    if precious.read_bytes() != _PRECIOUS:
        return "the target of a link was changed"
    return _judged(status, said, 0 if status == 0 else 1)


def _remove_records(folder: Path) -> None:
    """Have the next build compile again."""
    for name in ("records", "build_state"):
        for path in (folder / "store" / name).rglob("*"):
            if path.is_file():
                path.unlink()


def held_locks(folder: Path) -> str:
    """Somebody holds the lock of each file of unpacked code."""
    _run(_build(folder))
    bundle = folder / "out" / "small"
    script = folder / "read.py"
    script.write_text(_READ, encoding="utf-8")
    cache = folder / "cache"
    read = [sys.executable, str(script), str(bundle)]
    status, said = _run(read, CUTLASS_AOT_CACHE=str(cache))
    if status:
        return said
    for path in cache.glob("*.code"):
        path.unlink()
    with contextlib.ExitStack() as held:
        # What reads unpacked code locks files of these names.
        for path in sorted((bundle / "code").iterdir()):
            name = f".{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.lock"
            file = held.enter_context((cache / name).open("wb"))
            fcntl.flock(file, fcntl.LOCK_EX)
        start = time.monotonic()
        with subprocess.Popen(read, env={**os.environ, "CUTLASS_AOT_CACHE": str(cache)}) as process:
            try:
                process.wait(LOCKS_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return f"held for more than {LOCKS_SECONDS:g} s"
        if process.returncode:
            return f"exit status {process.returncode} after {time.monotonic() - start:.0f} s"
    return ""


def stopped_and_killed(folder: Path) -> str:
    """All processes of a builder are stopped, and the builder is killed; then the next build comes."""
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    build = _build(folder)
    with subprocess.Popen(
        build, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as builder:
        own: list[int] = []
        while len(own) < 3 and builder.poll() is None:
            own = _below(builder.pid)
            time.sleep(0.02)
        for pid in own:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        builder.kill()
    if len(own) < 3:
        return "the builder ended before it had a worker"
    end = time.monotonic() + ENDING_SECONDS
    while (left := [pid for pid in own if _lives(pid)]) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if left:
        return f"{len(left)} processes live on"
    for path in temporary.glob("cutlass-aot-*"):
        # Younger ones may be another builder's that is only beginning.
        os.utime(path, (1, 1))
    status, said = _run(build, TMPDIR=str(temporary))
    if lying := sorted(path.name for path in temporary.glob("cutlass-aot-*")):
        return f"{len(lying)} directories are left"
    return _judged(status, said, 0)


def _below(pid: int) -> list[int]:
    """The processes that a process has started, with those that they have, and itself."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(words[1]), []).append(int(path.name))
    found, more = [], [pid]
    while more:
        found.append(more.pop())
        more += parents.get(found[-1], [])
    return found


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def output_that_cannot_be_written(folder: Path) -> str:
    """Nothing is compiled for a bundle that has no place."""
    (folder / "file").write_bytes(_PRECIOUS)
    build = _build(folder)
    build[-1] = str(folder / "file" / "out")
    status, said = _run(build)
    if list((folder / "store").rglob("records/kernel/*/*")):
        return "kernels were compiled"
    return _judged(status, said, 1)


def what_is_left_beside(folder: Path) -> str:
    """A build leaves a bundle in the user's folder, and nothing else."""
    status, said = _run(_build(folder))
    names = sorted(path.name for path in (folder / "out").iterdir())
    return _judged(status, said, 0) or ("" if names == ["small"] else f"{', '.join(names)} are there")


def escape_sequences(folder: Path) -> str:
    """A name that turns the terminal's title."""
    (folder / _TITLE).mkdir()
    for command in ("ls", "verify", "doctor"):
        status, said = _run(_command(command, str(folder / _TITLE)))
        if "\x1b" in said or "\x07" in said:
            return f"{command} printed it as it is"
        if wrong := _judged(status, said, 1):
            return wrong
    return ""


ATTACKS: Mapping[str, Callable[[Path], str]] = {
    attack.__name__.replace("_", " "): attack
    for attack in (
        links_for_locks, held_locks, stopped_and_killed, output_that_cannot_be_written, what_is_left_beside,
        escape_sequences,
    )
}  # fmt: skip
"""Each returns what is wrong, or nothing."""


def met(name: str, folder: Path) -> tuple[float, str, list[str]]:
    """Seconds that an attack takes, and what is wrong."""
    start = time.monotonic()
    wrong = ATTACKS[name](folder)
    return time.monotonic() - start, wrong, []


if __name__ == "__main__":
    attack_command("Build beside hostile neighbours and after killed builders.", ATTACKS, met, "withstood")()
