"""What a generator has instead, where it has no kernel for a problem: one thing is changed at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from cutlass_aot.generators.alternatives import alternatives
from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.generators.device_profiles import DeviceProfile, load_profile
from cutlass_aot.generators.protocol import Problem, ScaleRequest
from cutlass_aot.generators.registry import find
from cutlass_aot.schema.kernels.epilogue import Epilogue, parse_epilogue
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.declared_kernels import scale_rows
from tests.support.kernels import gemm

SUM = parse_epilogue("D = relu(accum); s = sum(accum)", {"s": {"extents": "M"}})
COLUMNS = parse_epilogue("D = accum + c", {"c": {"extents": "MN", "layout": "n"}})
TWO = parse_epilogue(
    "D = accum + c * d", {key: {"extents": "MN", "transport": "sync_gmem_load"} for key in "cd"}
)
IN_BLOCKS = parse_epilogue(
    "x = even(accum) * odd(accum); s = max(abs(x)); D = x / s", {"s": {"extents": "MN/128"}}
)
BYTES = parse_epilogue("D = accum + c", {"c": {"extents": "N", "dtype": "i8"}})


def said(
    generator: str,
    dtypes: str,
    layouts: str = "tnt",
    accumulator: str = "f32",
    operation: str = "gemm",
    **more: Any,
) -> str:
    problem = Problem(operation, tuple(dtypes.split(".")), layouts, accumulator, **more)
    return alternatives(find(generator).load(), problem, "sm_90a", load_profile("h200"))


@pytest.mark.parametrize(
    ("generator", "problem", "words"),
    [
        ("sm90_gemm", {"dtypes": "bf16.bf16.f64"}, "it has some with f32 or bf16 as `out`"),
        ("sm90_gemm", {"dtypes": "bf16.f16.f32"}, "it has some with bf16 as `b`, or with f16 as `a`"),
        (
            "sm90_gemm",
            {"dtypes": "f8e4m3.f8e4m3.f32", "layouts": "ttt"},
            "it has some with layouts tnt, or with f16 or bf16 as `a` and `b`",
        ),
        ("sm90_gemm", {"dtypes": "bf16.bf16.f32", "accumulator": "f16"}, "it has some with accumulator f32"),
        (
            "sm90_gemm",
            {"dtypes": "bf16.bf16.f32", "epilogue": COLUMNS},
            "it has some with `c` in layout t, or with `c` as a number, or without the epilogue",
        ),
        (
            "sm90_gemm",
            {"dtypes": "bf16.bf16.f32", "epilogue": TWO},
            "it has some with numbers alone in the epilogue, or without the epilogue",
        ),
        (
            "sm90_gemm",
            {"dtypes": "bf16.bf16.f32", "scales": (ScaleRequest("f8e8m0", 32),) * 2},
            "it has some without scale factors",
        ),
        (
            "sm90_gemm",
            {"dtypes": "f8e4m3.f8e4m3.bf16", "scales": (ScaleRequest("f8e8m0", 32),) * 2},
            "it has some with factors f32 of 128 elements for `a` and 128 x 128 for `b`, "
            "or without scale factors",
        ),
        (
            "sm90_gemm",
            {"dtypes": "f8e4m3.f8e4m3.f8e4m3", "epilogue": IN_BLOCKS},
            "it has some with `s` as a number in the epilogue, or with scales of 32 or 16 columns, "
            'or with accumulation = "fast", or with f16 or bf16 as `a` and `b`',
        ),
        (
            "sm90_gemm",
            {"dtypes": "f8e4m3.f8e4m3.bf16", "operation": "grouped_gemm", "accumulation": "fast"},
            'it has some with accumulation = "exact", '
            "or with factors f32 of 128 elements for `a` and 128 x 128 for `b`, or with bf16 as `a` and `b`",
        ),
        # Two things at once.
        (
            "sm90_gemm",
            {"dtypes": "bf16.bf16.f64", "layouts": "nnn"},
            "it has some for `gemm bf16.bf16.f64 accumulator f32 tnt` with f32 or bf16 as `out`",
        ),
        (
            "simt_f64_gemm",
            {"dtypes": "f32.f32.f32"},
            "it has some with all operands of f64 and accumulator f64, layouts tnt",
        ),
    ],
)
def test_which_change_gives_kernels(generator: str, problem: dict[str, Any], words: str) -> None:
    assert said(generator, **problem) == words


def test_a_kernel_that_fixes_its_operands() -> None:
    generator = DeclaredGenerator(scale_rows)
    problem = Problem("scale_rows", ("f32",), "t", "f32")
    profile = load_profile("h200")
    assert (
        alternatives(generator, problem, "sm_90a", profile) == "it has some without operands that are named"
    )
    problem = Problem("scale_rows", (), "", "")
    assert alternatives(generator, problem, "sm_80", profile) == "it has some for sm_90a or sm_100a"


class _Picky:
    """Has nothing, and raises for what it does not expect."""

    name = "picky"

    def targets(self, operation: str) -> tuple[str, ...]:
        return ("sm_90a",)

    def enumerate(self, problem: Problem, target: str, device: DeviceProfile) -> Iterable[Kernel]:
        if problem.dtypes[0] == "bf16":
            return [gemm()]
        raise KeyError(problem.dtypes)


def test_what_a_generator_raises_counts_as_none() -> None:
    problem = Problem("gemm", ("f16", "f16", "f16"), "tnt", "f32")
    words = alternatives(_Picky(), problem, "sm_90a", load_profile("h200"))  # type: ignore[arg-type]
    assert words.startswith("it has some with bf16 as `a`; ")


def test_other_generators_of_this_package_are_named() -> None:
    epilogue = parse_epilogue("D = relu(accum)", {})
    assert said("cutlass.operators", "bf16.bf16.bf16", epilogue=epilogue) == (
        "it has some without the epilogue, or for sm_100a, sm_100f, sm_103a, sm_103f, sm_107a or sm_110a; "
        "'sm90_gemm' has kernels for it"
    )


class _Narrow(_Picky):
    """Has epilogues whose operands are read, and of f32."""

    def enumerate(self, problem: Problem, target: str, device: DeviceProfile) -> Iterable[Kernel]:
        operands = problem.epilogue.operands if problem.epilogue else ()
        if any(operand.written or operand.dtype != "f32" for operand in operands):
            return []
        return [gemm()] if problem.dtypes == ("bf16", "bf16", "bf16") else []


@pytest.mark.parametrize(
    ("epilogue", "words"),
    [
        (SUM, "it has some without `s = sum(accum)` in the epilogue, or without the epilogue"),
        (BYTES, "it has some with f32 as `c`, or with `c` as a number, or without the epilogue"),
    ],
)
def test_which_change_of_an_epilogue_gives_kernels(epilogue: Epilogue, words: str) -> None:
    problem = Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32", epilogue=epilogue)
    found = alternatives(_Narrow(), problem, "sm_90a", load_profile("h200"))  # type: ignore[arg-type]
    assert found.startswith(words)


def test_nothing_at_all() -> None:
    class Empty(_Picky):
        def enumerate(self, problem: Problem, target: str, device: DeviceProfile) -> Iterable[Kernel]:
            return []

    problem = Problem("gemm", ("f16", "f16", "f64"), "tnt", "f32")
    words = alternatives(Empty(), problem, "sm_90a", load_profile("h200"))  # type: ignore[arg-type]
    assert words == "another element type, layout, scale factor, epilogue or target alone gives none either"
