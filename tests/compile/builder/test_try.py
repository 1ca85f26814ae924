"""`cutlass-aot try`: one kernel, compiled from its file; what it needs, and why it does not compile."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.compile


def cutlass_aot(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `new` has written both kinds of package."""
    made = tmp_path_factory.mktemp("try")
    for kind, name in (("kernel", "soft_cap"), ("generator", "blend")):
        done = cutlass_aot(made, "new", kind, name)
        assert done.returncode == 0, done.stderr
    return made


def tried(folder: Path, *arguments: str) -> dict[str, object]:
    done = cutlass_aot(folder, "try", *arguments, "--json", "--no-run")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_new_kernel_compiles_without_being_installed(folder: Path) -> None:
    found = tried(
        folder, "soft_cap/soft_cap_kernels/declared.py", "--target", "sm_90a", "--where", "threads=256"
    )
    assert str(found["kernel"]).startswith("soft_cap-f32.f32.f32.f32-ttts-sm_90a-f32-threads256-")
    assert (found["matching"], found["spill_bytes"], found["dynamic_shared_memory_bytes"]) == (2, 0, 0)
    assert found["threads"] == 256
    assert found["occupancy"] == {"blocks": 8, "limit": "threads", "most_warps": 64, "warps": 64}
    assert (found["run"], found["not_run"]) == (None, "not asked for")
    assert sorted(path.name for path in folder.iterdir()) == ["blend", "soft_cap"]


def test_a_new_generator_compiles_for_the_operands_that_it_is_asked_for(folder: Path) -> None:
    source = "blend/blend_kernels/generator.py:blend"
    operands = ("--dtypes", "f32.f32.f32", "--layouts", "ttt", "--accumulator", "f32")
    assert tried(folder, source, *operands)["threads"] == 128
    done = cutlass_aot(folder, "try", source, "--target", "sm_80")
    assert done.returncode == 1
    assert (
        "has no kernel for blend on sm_80: it has some with all operands of f32 and accumulator f32, layouts "
        "ttt; --dtypes, --layouts and --accumulator name operands"
    ) in done.stderr
    done = cutlass_aot(folder, "try", source, *operands[:3], "tnt", *operands[4:])
    assert done.returncode == 1
    assert "it has some with layouts ttt" in done.stderr


def test_the_lines_say_what_the_kernel_needs(folder: Path) -> None:
    done = cutlass_aot(folder, "try", "soft_cap/soft_cap_kernels/declared.py", "--no-run")
    assert done.returncode == 0
    names = [line[:15].strip() for line in done.stdout.splitlines()]
    assert names == [
        "kernel", "operands", "", "", "", "target", "compiled in", "registers", "spills", "shared memory",
        "block", "occupancy", "run",
    ]  # fmt: skip
    assert "; the first of 4 that match" in done.stdout
    times = re.search(r"compiled in +([0-9.]+) s; ([0-9.]+) s in all, .* took ([0-9.]+) s", done.stdout)
    assert times is not None
    compiled, whole, imported = map(float, times.groups())
    assert whole >= compiled + imported - 0.1
    assert imported > 0
    assert re.fullmatch("importing the DSL\ncompiling soft_cap-.*\n", done.stderr)


def test_what_does_not_compile_shows_the_reason_and_the_line(folder: Path) -> None:
    kernels = folder / "soft_cap" / "soft_cap_kernels" / "kernels.py"
    right = kernels.read_text()
    kernels.write_text(right.replace("if i < out.shape[0]:", "if i < out.shape[0] + nowhere:"))
    try:
        done = cutlass_aot(folder, "try", "soft_cap/soft_cap_kernels/declared.py", "--no-run")
    finally:
        kernels.write_text(right)
    assert done.returncode == 1
    assert "does not compile:\nDSLUserCodeError: error: NameError" in done.stderr
    assert "name 'nowhere' is not defined" in done.stderr
    assert "if i < out.shape[0] + nowhere:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_declaration_that_a_worker_finds_has_one_prefix(folder: Path) -> None:
    declared = folder / "soft_cap" / "soft_cap_kernels" / "declared.py"
    right = declared.read_text()
    declared.write_text(right.replace('Operand("y", dtype,', 'Operand("y", "f31",'))
    line = right[: right.index("@cutlass_aot.kernel")].count("\n") + 1
    try:
        tried = cutlass_aot(folder, "try", "soft_cap/soft_cap_kernels/declared.py", "--no-run")
        checked = cutlass_aot(folder, "check", "soft_cap/soft_cap_kernels/declared.py")
    finally:
        declared.write_text(right)
    assert (tried.returncode, checked.returncode) == (1, 1)
    # Before the error, both say that the DSL is imported.
    tried_error, checked_error = (done.stderr[done.stderr.index("error: ") :] for done in (tried, checked))
    assert tried_error.partition("threads=")[0] == checked_error.partition("threads=")[0]
    assert tried_error.startswith(
        f"error: kernel soft_cap(dtype='f32', threads=128) ({declared.resolve()}:{line}): operand `y`: "
        "unknown element type 'f31'"
    )
    assert len(tried_error.splitlines()) == len(checked_error.splitlines()) == 1


def test_what_no_gpu_can_launch_is_said(folder: Path) -> None:
    kernels = folder / "soft_cap" / "soft_cap_kernels" / "kernels.py"
    right = kernels.read_text()
    kernels.write_text(right.replace("stream=stream\n", "smem=400 * 1024, stream=stream\n"))
    try:
        done = cutlass_aot(
            folder, "try", "soft_cap/soft_cap_kernels/declared.py", "--no-run", "--target", "sm_80"
        )
    finally:
        kernels.write_text(right)
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1]
        == "error: a block asks for 409.6 KB of shared memory, and can have 166.9 KB"
    )
    assert "0 blocks an SM" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nothing_of_this_name",), "unknown generator or declared kernel 'nothing_of_this_name'"),
        (("missing.py",), "missing.py: no such file"),
        (("soft_cap/soft_cap_kernels/declared.py", "--target", "sm_89"), "is for sm_80, sm_90a, sm_100a"),
        (("soft_cap/soft_cap_kernels/declared.py", "--where", "threads"), "expected a name, = and a value"),
        (
            ("soft_cap/soft_cap_kernels/declared.py", "--where", "threads=64"),
            "has threads = ['64']: there is threads = 128, 256\n",
        ),
        (("soft_cap/soft_cap_kernels/declared.py", "--extent", "N=x"), "expected a whole number from 1"),
        (
            ("soft_cap/soft_cap_kernels/declared.py", "--extent", "n=5"),
            "expected one of N; did you mean 'N'?",
        ),
    ],
)
def test_what_cannot_be_tried_is_refused(folder: Path, arguments: tuple[str, ...], problem: str) -> None:
    done = cutlass_aot(folder, "try", *arguments, "--no-run")
    assert done.returncode in (1, 2)
    assert problem in done.stderr
    assert "compiling" not in done.stderr
