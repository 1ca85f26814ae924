"""On a GPU: `cutlass-aot try` runs a new package's kernel against its reference, and times it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("cutlass") is None, reason="the DSL is not installed"),
]

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


def test_a_bundle_of_it_is_tuned_by_its_own_extents(folder: Path, tmp_path: Path) -> None:
    package = folder / "soft_cap"
    manifest = package / "tuned.toml"
    manifest.write_text('plugins = ["soft_cap_kernels.declared"]\n' + (package / "soft_cap.toml").read_text())
    (package / "shapes.toml").write_text("[vectors]\nN = [1000, 1000000]\n")
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{package}"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "cutlass_aot", *arguments],
            cwd=package, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("build", "tuned.toml", "--out", str(tmp_path), "--store", str(tmp_path / "store"))
    bundle = str(tmp_path / "soft_cap")
    plugin = ("--plugin", "soft_cap_kernels.declared")
    run("tune", bundle, "--shapes", "shapes.toml", "-o", str(tmp_path / "t.json"), "--apply", bundle, *plugin)
    model = json.loads((tmp_path / "t.json").read_text())["gpu"]
    chosen = run("choose", bundle, "--extent", "N=1000000", "--gpu", model, "--dtypes", "f32*")
    assert "tuned: N = 1000000 was measured: " in chosen
    near = run("choose", bundle, "--extent", "N=1500000", "--gpu", model, "--dtypes", "f32*")
    assert "tuned: N = 1000000, near N = 1500000, was measured" in near
