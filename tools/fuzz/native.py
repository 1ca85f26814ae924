"""The native sources of a bundle under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.

    python -m tools.fuzz.native [--calls 300000] [--seconds 600] [--seed 0]

``native.c`` gives anything to the launcher, the dispatch cache and the cost model, and has threads launch and
load over the driver of the tests, ``tests/support/c/fake_driver.c``. Then tests that call the launcher from
Python, and so reach ``python.c``, run on one that is compiled with AddressSanitizer. It needs the extras
``build``, for headers, and ``dev``, and gcc with its sanitizers, no GPU. It prints a line for each program,
and whatever a sanitizer says; it exits with 1 if one said anything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from cutlass_aot.builder import native
from cutlass_aot.builder.link.linker import LinkToolchain

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SOURCES = tuple(native.FOLDER / name for name in ("launcher.c", "dispatch_cache.c", "select.c", "shim.c"))
DRIVER = REPOSITORY / "tests" / "support" / "c" / "fake_driver.c"
FLAGS = ("-std=gnu11", "-g", "-O1", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-pthread")
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
PROGRAMS = (("address", "calls"), ("address", "threads"), ("thread", "threads"))
"""Sanitizer and program; the one thread of ``calls`` races with none."""

TESTS = ("test_native.py", "test_native_launcher.py", "test_native_choice.py", "test_launch.py")
"""Of ``tests/unit/runtime``: what they compile, they compile with ``cc``."""


def compiler() -> str | None:
    """Path of a gcc that has the sanitizers; None if there is none."""
    path = shutil.which("gcc")
    return path if path and all(_links(path, flags) for flags in SANITIZERS.values()) else None


def _links(compiler: str, flags: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.c"
        source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
        command = [compiler, *flags, str(source), "-o", str(Path(folder) / "empty")]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def compile_program(
    compiler: str,
    sanitizer: str,
    folder: Path,
    sources: Sequence[Path] = SOURCES,
    like: Path | None = None,
) -> Path:
    """Compile ``native.c`` with the sources under a sanitizer, and the driver beside it without.

    Args:
        compiler: see :func:`compiler`.
        sanitizer: one of :data:`SANITIZERS`.
        folder: is made.
        sources: those of the package, or others of the same names.
        like: a program of :data:`SOURCES` under the same sanitizer, whose objects serve for equal sources.
    """
    folder.mkdir()
    headers = (native.FOLDER, *LinkToolchain.detect("x86_64").includes)
    includes = [f"-I{path}" for path in headers]
    library, program = folder / "libcuda.so.1", folder / "native"
    # Not under ThreadSanitizer: what it notes for tests is of the last call, whichever thread makes it.
    driver = [*FLAGS, *includes, "-DLIBCUDA", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(DRIVER)]
    linked = ["-ldl", "-lm", "-Wl,--wrap=TVMFFIEnvGetStream", f"-Wl,-rpath,{folder}"]
    flags = [*FLAGS, *SANITIZERS[sanitizer]]
    commands, objects = [[*driver, "-o", str(library)]], []
    for path, ours in zip((HERE / "native.c", *sources), (HERE / "native.c", *SOURCES), strict=True):
        made = like is not None and path.read_bytes() == ours.read_bytes()
        objects.append(str((like.parent if like is not None and made else folder) / f"{path.stem}.o"))
        if not made:
            commands.append([*flags, *includes, "-c", str(path), "-o", objects[-1]])
    commands.append([*flags, *objects, str(library), *linked, "-o", str(program)])
    for command in commands:
        done = subprocess.run([compiler, *command], capture_output=True, text=True, check=False)
        if done.returncode or done.stderr:
            raise click.ClickException(f"{sanitizer}: it does not compile without a word:\n{done.stderr}")
    return program


def run_program(program: Path, what: str, seed: int, calls: int, seconds: float) -> str:
    """Run it; what a sanitizer said, or that it took too long, ``""`` if it said nothing."""
    quiet = program.with_name("suppressions")
    # The driver is not compiled for it, and calls functions of the C library that it looks at.
    quiet.write_text("called_from_lib:libcuda.so.1\n", encoding="utf-8")
    options = {
        "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": f"suppressions={quiet}",
    }
    command = [str(program), what, str(seed), str(calls)]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **options},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it has not ended after {seconds:g} s"
    return done.stderr or (f"it ended with {done.returncode}" if done.returncode else "")


def run_tests(compiler: str, folder: Path, seconds: float) -> str:
    """Run :data:`TESTS` with a ``cc`` that has the sanitizers; their output if one fails, else ``""``."""
    folder.mkdir()
    wrapper = folder / "cc"
    wrapper.write_text(
        f'#!/bin/sh\nexec {compiler} -g {" ".join(SANITIZERS["address"])} "$@"\n', encoding="utf-8"
    )
    wrapper.chmod(0o755)
    # Python itself is not compiled with them, so that their libraries have to be there first.
    asking = [[compiler, f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so")]
    libraries = [subprocess.run(item, capture_output=True, text=True, check=True).stdout for item in asking]
    options = {
        "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "LD_PRELOAD": " ".join(path.strip() for path in libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    tests = [str(REPOSITORY / "tests" / "unit" / "runtime" / name) for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **options},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"they have not ended after {seconds:g} s"
    return f"{done.stdout[-8000:]}{done.stderr[-8000:]}" if done.returncode else ""


@click.command()
@click.option("--calls", default=300_000, show_default=True, help="Turns of each program.")
@click.option("--seconds", default=600.0, show_default=True, help="Most that one program may take.")
@click.option("--seed", default=0, show_default=True)
def main(calls: int, seconds: float, seed: int) -> None:
    """Run the native sources under sanitizers."""
    found = compiler()
    if found is None:
        raise click.ClickException("no C compiler with sanitizers: install gcc (Debian: gcc, libc6-dev)")
    said = False
    with tempfile.TemporaryDirectory() as scratch:
        programs = {name: compile_program(found, name, Path(scratch) / name) for name in SANITIZERS}
        for sanitizer, what in PROGRAMS:
            start = time.monotonic()
            words = run_program(programs[sanitizer], what, seed, calls, seconds)
            said |= bool(words)
            state = f"says\n{words}" if words else "says nothing"
            print(
                f"{sanitizer} {what}: {calls:,} turns, {time.monotonic() - start:.1f} s, {state}", flush=True
            )
        start = time.monotonic()
        words = run_tests(found, Path(scratch) / "bin", seconds)
        said |= bool(words)
        state = f"fail\n{words}" if words else "pass"
        print(f"address {' '.join(TESTS)}: {time.monotonic() - start:.1f} s, {state}", flush=True)
    sys.exit(1 if said else 0)


if __name__ == "__main__":
    main()
