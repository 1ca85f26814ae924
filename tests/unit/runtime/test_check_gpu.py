"""The pure parts of tools/check/gpu.py, on the host: operands, bounds and what counts as a failure."""

from __future__ import annotations

import json
import math
import types
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.generators.sm90_gemm.generator import SCALES, Sm90Gemm
from cutlass_aot.schema.bundles.catalog import FileReference, GroupEntry
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import supports
from cutlass_aot.schema.tuning.ranking import Extents
from tests.support.kernels import gemm

torch = pytest.importorskip("torch")

DTYPES = [
    ("f64", "f64", "f64", "f64"), ("f32", "f32", "f32", "f32"), ("f16", "f16", "f16", "f32"),
    ("f16", "f16", "f16", "f16"), ("bf16", "bf16", "f32", "f32"), ("f8e4m3", "f8e4m3", "bf16", "f32"),
    ("f8e5m2", "f8e4m3", "f8e4m3", "f32"), ("i8", "i8", "i32", "i32"), ("i8", "i8", "i8", "i32"),
    ("u8", "u8", "u8", "i32"), ("u8", "i8", "i32", "i32"), ("i8", "i8", "f32", "i32"),
]  # fmt: skip


@pytest.fixture(scope="module")
def check_gpu() -> Any:
    from tools.check import gpu

    return gpu


def group_of(kernel: Kernel) -> GroupEntry:
    nothing = FileReference("x", 0, "0" * 64)
    return GroupEntry(
        kernel.group_name,
        "gemm",
        kernel.operands,
        kernel.accumulator,
        "",
        kernel.target,
        1,
        nothing,
        nothing,
        {},
    )


@pytest.fixture
def references(check_gpu: Any) -> Any:
    return check_gpu.References(torch.device("cpu"))


@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("layouts", ["tnt", "ttt", "nnn"])
def test_operands_are_what_the_kernel_supports(
    check_gpu: Any, references: Any, dtypes: tuple[str, ...], layouts: str
) -> None:
    from cutlass_aot.runtime.launching.tensors import describe_operand

    *types_, accumulator = dtypes
    group = group_of(gemm(tuple(types_), layouts, accumulator=accumulator))  # type: ignore[arg-type]
    for padding in (0, 1):
        for broadcast in (False, True):
            problem = references.problem(group, (3, 20, 37, 41), padding=padding, broadcast=broadcast)
            assert problem.size == check_gpu.fit((3, 20, 37, 41), group.operands)
            described = [describe_operand(operand) for operand in problem.operands]
            on_gpu = [type(d)(d.dtype, d.shape, d.strides, 0, 0) for d in described]
            verdict = supports(group.operands, on_gpu)
            assert verdict, verdict.reason
            product = problem.a.double() @ problem.b.double()
            assert torch.allclose(product, problem.reference, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtypes", DTYPES)
def test_a_good_result_passes_and_poison_or_a_wrong_element_fails(
    references: Any, dtypes: tuple[str, ...]
) -> None:
    *types_, accumulator = dtypes
    group = group_of(gemm(tuple(types_), accumulator=accumulator))  # type: ignore[arg-type]
    problem = references.problem(group, (1, 64, 64, 200))
    assert not float(problem.error()) <= problem.bound
    problem.out.copy_(problem.reference.to(problem.out.dtype))
    assert float(problem.error()) <= problem.bound
    # The element that is furthest from zero was not computed.
    index = problem.reference.abs().argmax()
    row, column = divmod(int(index), 64)
    problem.out[0, row, column] = 0
    assert float(problem.error()) > problem.bound


@pytest.mark.parametrize("dtypes", [d for d in DTYPES if d[2] in ("i8", "u8", "i32")])
def test_integer_results_fit_and_differ_from_the_poison(
    check_gpu: Any, references: Any, dtypes: tuple[str, ...]
) -> None:
    *types_, accumulator = dtypes
    group = group_of(gemm(tuple(types_), accumulator=accumulator))  # type: ignore[arg-type]
    problem = references.problem(group, (2, 512, 512, 2048))
    info = torch.iinfo(problem.out.dtype)
    assert info.min <= problem.reference.min() <= problem.reference.max() <= info.max
    assert problem.reference.abs().max() > 0
    check_gpu.poison(problem.out)
    assert not (problem.out.double() == problem.reference).any()


@pytest.mark.parametrize(("dtype", "ends"), [("i8", (-128, 126)), ("u8", (0, 254))])
def test_integers_reach_the_ends_of_their_type(references: Any, dtype: str, ends: tuple[int, int]) -> None:
    problem = references.problem(group_of(gemm((dtype, dtype, "i32"), accumulator="i32")), (1, 64, 64, 512))
    assert (int(problem.a.min()), int(problem.a.max())) == ends
    # A kernel that takes the one type for the other computes something else.
    other = torch.uint8 if dtype == "i8" else torch.int8
    wrong = problem.a.view(other).double() @ problem.b.contiguous().view(other).double()
    assert not torch.equal(wrong, problem.reference)


def test_bounds(check_gpu: Any) -> None:
    def bound(*dtypes: str, k: int = 512, promoted: bool = False) -> float:
        *types_, accumulator = dtypes
        operands = gemm(tuple(types_)).operands  # type: ignore[arg-type]
        return check_gpu.tolerance(operands, accumulator, Extents(1, 64, 64, k), promoted=promoted)

    assert bound("i8", "i8", "i32", "i32") == 0
    assert bound("f16", "f16", "f16", "f32") == pytest.approx(2**-11, rel=0.1)
    assert bound("f16", "f16", "f32", "f32") < 1e-4
    assert bound("f8e4m3", "f8e4m3", "f32", "f32") < 0.02
    # Sums that leave the tensor cores every 128 of K have no larger an error for it.
    assert bound("f8e4m3", "f8e4m3", "f32", "f32", k=65536) > 0.1
    assert bound("f8e4m3", "f8e4m3", "f32", "f32", k=65536, promoted=True) < 0.006
    assert bound("f64", "f64", "f64", "f64") < 1e-12
    assert bound("f16", "f16", "f16", "f16") > bound("f16", "f16", "f16", "f32")


def test_memory_beside_a_padded_output_is_watched(check_gpu: Any, references: Any) -> None:
    for layouts in ("tnt", "tnn"):
        for dtypes in (("f16",) * 3, ("i8", "i8", "i32"), ("f8e4m3",) * 3):
            group = group_of(gemm(dtypes, layouts))  # type: ignore[arg-type]
            problem = references.problem(group, (3, 16, 24, 32), padding=1)
            before = problem.out._base.clone()
            problem.out.copy_(problem.reference.to(problem.out.dtype))
            assert check_gpu.written_outside(problem.out, before) == 0
            problem.out._base[1, 2, -1] = 1
            assert check_gpu.written_outside(problem.out, before) == 1


def test_sizes(check_gpu: Any) -> None:
    assert check_gpu.parse_sizes("512x256x128, 3x8x8x8") == [(1, 512, 256, 128), (3, 8, 8, 8)]
    assert len(check_gpu.parse_sizes(check_gpu.SIZES)) == 3
    for wrong in ("", "512", "8x8x0", "axbxc"):
        with pytest.raises(ValueError, match=r"size|int"):
            check_gpu.parse_sizes(wrong)


class FakeHandle:
    """A kernel that computes on the host, or fails in one of several ways."""

    def __init__(self, name: str) -> None:
        self.name = name

    def launch(self, a: Any, b: Any, out: Any) -> None:
        if self.name == "raises":
            raise RuntimeError("CUDA error")
        if self.name != "does nothing":
            out.copy_((a.double() @ b.double()).to(out.dtype))
        if self.name == "misses the last row":
            out[:, -1] = math.nan


def test_every_kernel_is_judged_alone(check_gpu: Any, references: Any) -> None:
    group = group_of(gemm())
    names = ["good", "does nothing", "raises", "misses the last row", "good too"]
    bundle = types.SimpleNamespace(kernels=lambda group: [FakeHandle(name) for name in names])
    row = check_gpu.Row(group.name, group.target, len(names))
    check_gpu.each_kernel(row, bundle, group, references, (1, 64, 64, 64))
    assert row.checks == 5
    assert sorted(failure.split(" at ")[0] for failure in row.failures) == [
        "does nothing",
        "misses the last row",
        "raises",
    ]
    assert json.loads(json.dumps(row.to_record(), allow_nan=False))["worst"] is None
    text = check_gpu.table([row], "none")
    assert f"| {group.name} | 5 | 5 | 3 | nan |" in text
    assert "| all | 5 | 5 | 3 |" in text


def test_used_wrongly(check_gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        check_gpu.main([str(tmp_path), "--sizes", "8"])
    assert raised.value.code == 2
    assert check_gpu.main([str(tmp_path)]) == 1
    assert "has no MANIFEST.json" in capsys.readouterr().err


def test_factors_are_of_blocks_of_the_operands(check_gpu: Any, references: Any) -> None:
    requested = Problem("gemm", ("f8e4m3", "f8e4m3", "bf16"), "tnt", "f32", scales=SCALES)
    kernel, *_ = Sm90Gemm().enumerate(requested, "sm_90a", load_profile("h200"))
    problem = references.problem(group_of(kernel), (2, 40, 208, 400))
    factors = problem.factors
    a, b = check_gpu.scaled(
        torch, (problem.a, problem.b, problem.out, *factors.values()), kernel.operands, "f64"
    )
    # The last block along each extent is a part of one.
    last = problem.a.double()[1, 39, 384:] * factors["a_scale"][1, 39, 3]
    assert torch.equal(a[1, 39, 384:], last)
    last = problem.b.double()[1, 384:, 128:] * factors["b_scale"][1, 1, 3]
    assert torch.equal(b[1, 384:, 128:], last)
    torch.testing.assert_close(problem.reference, a @ b)
