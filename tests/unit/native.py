"""Small C libraries for tests, compiled with what is at hand, and a bundle's launcher among them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.builder import native

LAUNCHER = Path(native.__file__).with_name("launcher.c")


def compile_c(folder: Path, name: str, source: str) -> bytes:
    """A shared library of C source that may use TVM-FFI; any warning is an error."""
    tvm_ffi = pytest.importorskip("tvm_ffi")
    compiler = shutil.which("cc")
    command = [compiler] if compiler else [sys.executable, "-m", "ziglang", "cc"]
    if not compiler:
        pytest.importorskip("ziglang")
    package = Path(tvm_ffi.__file__).parent
    (folder / f"{name}.c").write_text(source)
    subprocess.run(
        [*command, "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers", "-Werror", "-shared", "-fPIC",
         "-O1", "-I", package / "include", folder / f"{name}.c", "-o", folder / f"{name}.so",
         "-L", package / "lib", "-ltvm_ffi"],
        check=True,
    )  # fmt: skip
    return (folder / f"{name}.so").read_bytes()
