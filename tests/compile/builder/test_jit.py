"""Policy ``jit`` with the real compiler, on operands that only claim to be on a GPU of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("no_gpu")]


# The DSL reads CUTE_DSL_ARCH once, at its first import: hence a process of its own.
PROGRAM = """
import sys, warnings
from pathlib import Path
import numpy
import cutlass_aot
from cutlass_aot import policy
from cutlass_aot.runtime.machine import cuda_driver as device
from tests.compile.generators.test_families import aligned
from tests.support.bundles import ClaimsCuda, write_bundle
from tests.support.kernels import gemm

device.compute_capability = lambda ordinal: (9, 0)
device.sm_count = lambda ordinal: 132
device.device_name = lambda ordinal: "NVIDIA H200"
bundle = cutlass_aot.open(write_bundle(Path(sys.argv[1]), [gemm(dtypes=("bf16",) * 3)]))


def tensors(dtype, width, m=64, n=96, k=160):
    element = numpy.dtype(f"u{width}")
    shapes = (m, k), (n, k), (m, n)
    a, b, out = (aligned(shape, element) for shape in shapes)
    return [ClaimsCuda(array, dtype) for array in (a, b.T, out)]


with policy.use("jit"), warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for dtype, width in (("f16", 2), ("f64", 8), ("f16", 2)):
        try:
            bundle.gemm(*tensors(dtype, width))
        except cutlass_aot.CutlassAotError as error:
            print(type(error).__name__, error)
    for warning in caught:
        if issubclass(warning.category, policy.MissWarning):
            print("warned", warning.message)
print("misses", policy.misses().total)
"""


def run(tmp_path, architecture):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("CUTE_DSL_ARCH", None)
    if architecture:
        environment["CUTE_DSL_ARCH"] = architecture
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "bundle")],
        env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_kernels_of_both_generators_are_compiled_and_called(tmp_path):
    lines = run(tmp_path, "sm_90a")
    # The call passes the checks of compiled code and ends where the driver is asked for.
    errors = [line for line in lines if line.startswith("DeviceError")]
    assert len(errors) == 3, lines
    assert all("cudaErrorInsufficientDriver" in line for line in errors)
    assert "kernel gemm-f16.f16.f16-f32-tnt-sm_90a-Sm90" in errors[0]
    assert "kernel gemm-f64.f64.f64-f64-tnt-sm_90a-SimtF64Gemm-" in errors[1]
    assert errors[2] == errors[0]
    assert sum(line.startswith("warned") for line in lines) == 2
    assert lines[-1] == "misses 3"


def test_a_process_whose_dsl_is_for_another_gpu_says_so(tmp_path):
    lines = run(tmp_path, "sm_80")
    assert lines[0].startswith("CompileError gemm-f16.f16.f16-f32-tnt-sm_90a-Sm90")
    assert "the DSL's architecture is sm_80; unset CUTE_DSL_ARCH" in lines[0]
