"""What the FP64 generator offers, without the DSL."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import pytest

from cutlass_aot.generators.device_profiles import DeviceProfile, load_profile
from cutlass_aot.generators.protocol import Generator, Problem, ScaleRequest
from cutlass_aot.generators.registry import GeneratorReference, find, version_of
from cutlass_aot.generators.simt_f64_gemm.generator import SimtF64Gemm
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.kernels.epilogue import parse_epilogue
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import describe, supports
from cutlass_aot.schema.targets import KNOWN_TARGETS
from tests.support.replace import replace

PROBLEM = Problem("gemm", ("f64", "f64", "f64"), "ttt", "f64")
LAYOUTS = tuple("".join(letters) for letters in product("tn", repeat=3))


@pytest.fixture
def device() -> DeviceProfile:
    return load_profile("h200")


def test_it_is_a_generator_and_registered() -> None:
    assert isinstance(SimtF64Gemm(), Generator)
    reference = find("simt_f64_gemm")
    assert reference == GeneratorReference(
        "simt_f64_gemm", "cutlass_aot.generators.simt_f64_gemm.generator:SimtF64Gemm"
    )
    assert isinstance(reference.load(), SimtF64Gemm)


def test_its_module_and_its_enumeration_need_no_dsl() -> None:
    script = (
        "import sys\n"
        "from cutlass_aot.generators.simt_f64_gemm.generator import SimtF64Gemm\n"
        "from cutlass_aot.generators.device_profiles import load_profile\n"
        "from cutlass_aot.generators.protocol import Problem\n"
        "problem = Problem('gemm', ('f64', 'f64', 'f64'), 'ttt', 'f64')\n"
        "assert len(list(SimtF64Gemm().enumerate(problem, 'sm_90a', load_profile('h200')))) == 2\n"
        "print(sorted({'cutlass', 'torch', 'tvm_ffi'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_source_file_is_part_of_the_key() -> None:
    generator = SimtF64Gemm()
    assert set(generator.modules) == {
        "cutlass_aot.generators.dsl",
        "cutlass_aot.generators.gemm",
        "cutlass_aot.generators.simt_f64_gemm.generator",
        "cutlass_aot.generators.simt_f64_gemm.kernel",
    }
    assert version_of(generator).startswith("1+")


def test_targets() -> None:
    assert SimtF64Gemm().targets("gemm") == KNOWN_TARGETS
    assert SimtF64Gemm().targets("grouped_gemm") == ()


@pytest.mark.parametrize("target", KNOWN_TARGETS)
@pytest.mark.parametrize("layouts", LAYOUTS)
def test_two_tiles_for_each_layout_and_target(layouts: str, target: str, device: DeviceProfile) -> None:
    kernels = list(SimtF64Gemm().enumerate(replace(PROBLEM, layouts=layouts), target, device))
    assert [dict(kernel.design)["tile_shape"] for kernel in kernels] == [(16, 16), (32, 32)]
    for kernel in kernels:
        assert kernel.layouts == layouts
        assert kernel.target == target
        assert kernel.generator == "simt_f64_gemm"
        assert kernel.constants == ()
        assert kernel.workspace_bytes == 0
        assert from_plain(Kernel, to_plain(kernel), "a kernel record") == kernel


def test_kernels_differ_only_in_design(device: DeviceProfile) -> None:
    small, large = SimtF64Gemm().enumerate(PROBLEM, "sm_90a", device)
    assert small.group == large.group
    assert small.digest != large.digest
    assert small.name.startswith("gemm-f64.f64.f64-f64-ttt-sm_90a-SimtF64Gemm-16x16-")


def test_every_name_in_a_design_can_be_filtered_on(device: DeviceProfile) -> None:
    for kernel in SimtF64Gemm().enumerate(PROBLEM, "sm_90a", device):
        assert dict(kernel.design).keys() == SimtF64Gemm.design.keys()


@pytest.mark.parametrize(
    "problem",
    [
        replace(PROBLEM, operation="grouped_gemm"),
        replace(PROBLEM, dtypes=("f64", "f64", "f32")),
        replace(PROBLEM, dtypes=("f64", "f64")),
        replace(PROBLEM, dtypes=("f64", "f64", "f64", "f64"), layouts="tttt"),
        replace(PROBLEM, layouts="tt"),
        replace(PROBLEM, accumulator="f32"),
        replace(PROBLEM, scales=(ScaleRequest("f64", 32), None)),
        replace(PROBLEM, epilogue=parse_epilogue("D = relu(accum)", {})),
    ],
)
def test_other_problems_have_no_kernel(problem: Problem, device: DeviceProfile) -> None:
    assert list(SimtF64Gemm().enumerate(problem, "sm_90a", device)) == []


def test_an_unknown_target_has_no_kernel(device: DeviceProfile) -> None:
    assert list(SimtF64Gemm().enumerate(PROBLEM, "sm_75", device)) == []


def test_any_extent_is_supported_and_a_mismatch_is_not(device: DeviceProfile) -> None:
    kernel = next(iter(SimtF64Gemm().enumerate(PROBLEM, "sm_90a", device)))
    a, b, out = describe((3, 5, 7), "f64"), describe((3, 7, 11), "f64"), describe((3, 5, 11), "f64")
    assert supports(kernel.operands, [a, b, out])
    verdict = supports(kernel.operands, [a, describe((3, 8, 11), "f64"), out])
    assert not verdict
    assert verdict.reason == "operand `b` is unsupported: expected extent K = 7 as `a` has, got 8"
