"""On a GPU: `cutlass-aot try` runs a new package's kernel against its reference, and times it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.gpu

SOURCE = "soft_cap/soft_cap_kernels/declared.py"


def cutlass_aot(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, capability: tuple[int, int]) -> Path:
    if capability not in ((8, 0), (9, 0), (10, 0)):
        pytest.skip(f"the package is not for compute capability {capability}")
    made = tmp_path_factory.mktemp("try")
    for kind, name in (("kernel", "soft_cap"), ("generator", "blend")):
        assert cutlass_aot(made, "new", kind, name).returncode == 0
    return made


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_new_kernel_is_right_and_timed(folder: Path, dtype: str) -> None:
    done = cutlass_aot(folder, "try", SOURCE, "--where", f"dtype={dtype}", "--extent", "N=1000001", "--json")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["run"]
    assert run["good"]
    assert run["error"] <= run["allowed"]
    assert run["microseconds"] > 1
    assert 1 < run["gigabytes_per_second"] < 20_000


def test_a_new_generators_kernel_is_right(folder: Path) -> None:
    operands = ("--dtypes", "f32.f32.f32", "--layouts", "ttt", "--accumulator", "f32")
    done = cutlass_aot(folder, "try", "blend/blend_kernels/generator.py", *operands)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", good: rounding explains" in done.stdout


def test_a_wrong_result_is_an_exit_status_of_one(folder: Path) -> None:
    declared = folder / "soft_cap" / "soft_cap_kernels" / "declared.py"
    right = declared.read_text()
    declared.write_text(right.replace("return alpha * x + y", "return alpha * x - y"))
    try:
        done = cutlass_aot(folder, "try", SOURCE)
    finally:
        declared.write_text(right)
    assert done.returncode == 1
    assert "WRONG" in done.stdout
