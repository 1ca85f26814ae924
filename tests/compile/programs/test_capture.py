"""Captured, built, and answered under policy ``required``: a program that forks. Needs no GPU.

Nothing is launched: the program compiles, and says what it got.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packages import hide_torch, installed

pytestmark = [pytest.mark.compile, installed("nvidia-cutlass-dsl")]

KERNEL = """\
import cutlass
import cutlass.cute as cute


@cute.kernel
def scale_kernel(x: cute.Tensor, factor: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    x[thread] = x[thread] * factor


@cute.jit
def scale(x: cute.Tensor, factor: cutlass.Constexpr, stream):
    scale_kernel(x, factor).launch(grid=(1, 1, 1), block=(128, 1, 1), stream=stream)
"""
PROGRAM = """\
import os
import sys

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

import scale


def compiled(factor):
    x = make_fake_tensor(cutlass.Float32, (128,), (1,))
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(scale.scale, x, factor, stream, options="--enable-tvm-ffi")


print(type(compiled(2.0)).__name__, flush=True)
child = os.fork()
if child == 0:
    print(type(compiled(3.0)).__name__, flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
sys.exit(int(sys.argv[1]))
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("CUTE_DSL", "CUTLASS_AOT"))
    }
    return subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *words],
        cwd=folder, env={**environment, "CUTE_DSL_ARCH": "sm_90a"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, its recording and its bundle."""
    folder = tmp_path_factory.mktemp("captured")
    hide_torch(folder)
    (folder / "scale.py").write_text(KERNEL)
    (folder / "app.py").write_text(PROGRAM)
    done = run(folder, "capture", "-o", "app.toml", "--name", "app", "--", sys.executable, "app.py", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "app.toml: 2 requests for sm_90a, in app.recording" in done.stdout
    built = run(folder, "build", "app.toml", "--store", "store", "--out", "bundles")
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def answered(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """The program, and each of its requests with what answered it."""
    done = run(
        folder, "run", "--bundle", "bundles/app", "--policy", "required", "--ledger", "ledger.json",
        "--", sys.executable, "app.py", *words,
    )  # fmt: skip
    rows = json.loads((folder / "ledger.json").read_text())["requests"]
    return done, {digest: row["bundle"] for digest, row in rows.items()}


def test_both_processes_of_a_program_are_answered_and_its_status_is_handed_on(captured):
    done, rows = answered(captured, "3")
    assert done.returncode == 3, done.stdout + done.stderr
    assert list(rows.values()) == ["app", "app"]
    assert "TVMFFIJit" not in done.stdout, "compiled, and not answered"
    assert "2 requests answered" in done.stderr
    assert "0 requests of the bundles unused" in done.stderr


def test_an_environment_variable_alone_has_the_program_answered(captured):
    environment = {**os.environ, "CUTE_DSL_ARCH": "sm_90a", "CUTLASS_AOT_SERVE": "bundles/app"}
    done = subprocess.run(
        [sys.executable, "app.py", "0"], cwd=captured, env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TVMFFIJit" not in done.stdout, "compiled, and not answered"
    assert len(done.stdout.splitlines()) == 2


def test_a_program_of_which_nothing_is_answered_is_warned_of(captured):
    done = run(captured, "run", "--bundle", "bundles/app", "--", sys.executable, "-I", "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "warning: no process of the program was answered from bundles" in done.stderr


def test_what_is_missed_is_kept_for_the_next_build(captured):
    counted = "    from cutlass_aot import policy\n    print(dict(policy.misses()))\n    sys.exit(0)"
    program = PROGRAM.replace("3.0", "4.0").replace("2.0", "3.0").replace("    sys.exit(0)", counted)
    (captured / "more.py").write_text(program)
    done = run(
        captured, "run", "--bundle", "bundles/app", "--policy", "jit", "--keep", "more.toml",
        "--", sys.executable, "more.py", "0",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 request answered" in done.stderr
    assert "{'scale:scale for sm_90a': 1}" in done.stdout
    assert "more.toml: 1 request for sm_90a, in more.recording" in done.stdout
    # A server that is started again writes them anew.
    twice = run(
        captured, "run", "--bundle", "bundles/app", "--policy", "jit", "--keep", "more.toml",
        "--", sys.executable, "more.py", "0",
    )  # fmt: skip
    assert "more.toml: 1 request for sm_90a" in twice.stdout, twice.stderr
    built = run(captured, "build", "more.toml", "--store", "store", "--out", "bundles")
    assert built.returncode == 0, built.stdout + built.stderr
    both = ("--bundle", "bundles/app", "--bundle", "bundles/more")
    again = run(
        captured, "run", *both, "--policy", "jit", "--keep", "none.toml", "--", sys.executable, "more.py", "0"
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "2 requests answered" in again.stderr
    assert not (captured / "none.toml").exists()


def test_a_function_that_is_called_directly_and_missed_is_left_to_the_dsl(captured):
    """Host code alone, which runs without a GPU; the DSL compiles it once."""
    (captured / "direct.py").write_text(
        "import cutlass\nfrom cutlass import cute\n\n"
        "@cute.jit\ndef hello(n: cutlass.Int32, added: cutlass.Constexpr):\n"
        "    cute.printf('hello %d', n + added)\n\n"
        "class Greeting:\n    @cute.jit\n    def hello(self, n: cutlass.Int32):\n        hello(n, 20)\n\n"
        # As what watches for compilations does.
        "cute.compile = None\nfor n in (1, 2):\n    hello(n, 10)\nGreeting().hello(3)\n"
    )
    program = ("--", sys.executable, "direct.py")
    done = run(captured, "run", "--bundle", "bundles/app", "--policy", "jit", *program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[:3] == ["hello 11", "hello 12", "hello 23"]
    assert "0 requests answered in 0 ms, 2 missed and compiled" in done.stderr
    # The second call of the first function is missed too, and nothing new.
    warned = run(captured, "run", "--bundle", "bundles/app", "--policy", "warn", *program)
    assert warned.stderr.count("direct.py:15: CompileWarning: no kernel for __main__:hello (") == 1, (
        warned.stderr
    )
    refused = run(captured, "run", "--bundle", "bundles/app", "--policy", "required", *program)
    assert refused.returncode == 1
    assert "RequestNotFound: no kernel for direct:hello" in refused.stderr.replace("__main__", "direct")
    kept = run(captured, "capture", "-o", "direct.toml", *program)
    assert kept.stdout.split("\n")[:3] == ["hello 11", "hello 12", "hello 23"], kept.stdout + kept.stderr
    assert "hello: cutlass_aot" in kept.stderr
    assert "launches no kernel, so that there is nothing to prebuild" in kept.stderr


def test_a_change_of_the_kernel_is_missed(captured):
    whole = (captured / "scale.py").read_text()
    (captured / "scale.py").write_text(whole.replace("x[thread] * factor", "x[thread] + factor"))
    try:
        done, rows = answered(captured, "0")
    finally:
        (captured / "scale.py").write_text(whole)
    assert done.returncode == 1
    assert list(rows.values()) == [""]
    assert "RequestNotFound" in done.stderr
    assert "code.scale" in done.stderr


def test_a_program_that_fails_leaves_what_it_compiled(captured, tmp_path):
    for name in ("scale.py", "app.py"):
        (tmp_path / name).write_text((captured / name).read_text())
    done = run(tmp_path, "capture", "-o", "app.toml", "--", sys.executable, "app.py", "5")
    assert done.returncode == 1
    assert "the program ended with status 5" in done.stderr
    assert (tmp_path / "app.recording").read_bytes() == (captured / "app.recording").read_bytes()
    assert 'file = "app.recording"' in (tmp_path / "app.toml").read_text()


def test_what_cannot_be_recorded_is_compiled_and_named(captured, tmp_path):
    (tmp_path / "scale.py").write_text((captured / "scale.py").read_text())
    (tmp_path / "app.py").write_text(
        PROGRAM.replace('options="--enable-tvm-ffi")', 'options="--enable-tvm-ffi --keep-ptx")')
    )
    done = run(tmp_path, "capture", "-o", "app.toml", "--", sys.executable, "app.py", "0")
    assert done.returncode == 1
    assert done.stdout.count("TVMFFIJit") == 2
    assert "it asks for PTX" in done.stderr
    assert not (tmp_path / "app.toml").exists()
