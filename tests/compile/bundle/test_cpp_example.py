"""examples/cpp: builds without warnings, refuses operands without a GPU, does what its README says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.errors import DeviceError
from cutlass_aot.runtime.machine import cuda_driver
from tests.support.paths import C_SOURCES, REPOSITORY

pytestmark = pytest.mark.compile

EXAMPLE = REPOSITORY / "examples" / "cpp"
SYSTEM = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
COMPILER = SYSTEM or f"{sys.executable} -m ziglang c++"
KERNEL = "gemm-bf16.bf16.bf16-f32-tnt-sm_90a"
ENVIRONMENT = {
    **os.environ,
    "CXX": COMPILER,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": os.fspath(REPOSITORY),
}


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=REPOSITORY,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def good(*command: object, **environment: str) -> str:
    result = run(*command, **environment)
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("example") / "launch_gemm"
    good("make", "-C", EXAMPLE, f"OUTPUT={path}", f"CXX={COMPILER}")
    return path


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """Library, GPU code and symbol of a kernel of the smoke bundle."""
    good("cutlass-aot", "build", "manifests/smoke.toml")
    bundle = REPOSITORY / "build" / "bundles" / "smoke"
    unpacked = tmp_path_factory.mktemp("example") / "unpacked"
    good("cutlass-aot", "bundle", "unpack", bundle, unpacked, "--kernel", KERNEL)
    (record,) = json.loads((unpacked / "index.json").read_text())
    return unpacked / record["libraries"]["x86_64"], unpacked / record["code"], record["symbol"]


@pytest.fixture(scope="module")
def pretended(tmp_path_factory):
    """A driver, and a GEMM, in host memory."""
    path = tmp_path_factory.mktemp("pretended") / "libcuda.so.1"
    include, libraries = (good("tvm-ffi-config", option).strip() for option in ("--includedir", "--libdir"))
    source = C_SOURCES / "host_gemm.cpp"
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", f"-I{include}"]
    good(*COMPILER.split(), *flags, source, "-o", path, f"-L{libraries}", "-ltvm_ffi")
    return path


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="bundles have libraries for x86_64")
def test_compiled_code_explains_what_it_refuses_without_a_gpu(program, kernel):
    output = good(program, *kernel, 512, 256, 512, "--explain-error")
    dtype, extent, layout = (output.splitlines()[index] for index in (1, 3, 5))
    assert "argument #0" in dtype
    assert dtype.endswith("expected dtype=bfloat16")
    assert "Mismatched b.shape[1] on argument #1" in extent
    assert "Mismatched b.strides[1] on argument #1" in layout


def test_without_a_driver_it_says_so(program, kernel):
    try:
        cuda_driver.driver_version()
    except DeviceError:
        result = run(program, *kernel, 512, 256, 512)
        assert result.returncode == 1
        assert "no NVIDIA driver on this machine: libcuda.so.1" in result.stderr
    else:
        pytest.skip("there is a driver")


@pytest.mark.parametrize(
    ("size", "layout"), [((512, 264, 136), "tnt"), ((8, 8, 8), "ttt"), ((1, 72, 40), "ttt")]
)
def test_what_it_does_with_a_gpu(program, pretended, size, layout):
    folder = str(pretended.parent)
    output = good(
        program,
        pretended,
        EXAMPLE / "Makefile",
        "host_gemm",
        *size,
        "--layout",
        layout,
        LD_LIBRARY_PATH=folder,
    )
    correct, rate = output.splitlines()
    assert re.fullmatch(r"correct: largest error [\d.]+e[+-]\d+, bound 7.8e-03", correct)
    # The pretended clock says 1 ms for 50 launches.
    assert rate.startswith("20.0 us a launch, ")


def test_a_wrong_result_and_a_failing_driver_are_errors(program, pretended):
    folder = str(pretended.parent)
    command = (program, pretended, EXAMPLE / "Makefile", "host_gemm", 64, 64, 64)
    result = run(*command, LD_LIBRARY_PATH=folder, HOST_GEMM_WRONG="1")
    assert (result.returncode, result.stdout) == (1, "")
    assert "wrong result: error nan" in result.stderr
    result = run(*command, LD_LIBRARY_PATH=folder, HOST_GEMM_NO_DEVICE="1")
    assert result.returncode == 1
    assert "cuInit: a pretended error (100)" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("missing.so", "Makefile", "s", "8", "8", "8"), 1, "missing.so: cannot open shared object file"),
        (("libc.so.6", "Makefile", "s", "8", "8", "8"), 1, "undefined symbol: __tvm_ffi_s"),
        (("libc.so.6", "absent", "s", "8", "8", "8"), 1, "absent: cannot be read"),
        (("libc.so.6", "Makefile", "s", "8", "8", "0"), 2, "expected an extent of at least 1, got 0"),
        (("libc.so.6", "Makefile", "s", "8", "8", "8x"), 2, "expected an extent of at least 1, got 8x"),
        (("libc.so.6", "Makefile", "s", "8", "8", "9999999999"), 2, "got 9999999999"),
        (("libc.so.6", "Makefile", "s", "8", "8"), 2, "usage: launch_gemm LIBRARY CODE SYMBOL M N K"),
        (
            ("libc.so.6", "Makefile", "s", "8", "8", "8", "--layout", "nnn"),
            2,
            "expected --layout tnt or ttt, got 'nnn'",
        ),
        (("libc.so.6", "Makefile", "s", "8", "8", "8", "--fast"), 2, "unknown option --fast"),
    ],
)
def test_wrong_use(program, arguments, code, message):
    result = run(program, *arguments)
    assert result.returncode == code
    assert message in result.stderr


def test_the_readme_runs_as_it_is_written():
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(bash[^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    script = "\n".join(commands for language, commands in blocks if language == "bash")
    try:
        output = good("bash", "-euo", "pipefail", "-c", script)
    finally:
        (EXAMPLE / "launch_gemm").unlink(missing_ok=True)
    assert "make -C examples/cpp" in script
    promised = re.findall(r"^    (a is f16:)\n      (.*?), \.\.\.\)`(.*)$", text, re.MULTILINE)
    assert promised
    assert all(part in output for part in promised[0])
