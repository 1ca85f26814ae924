"""A kernel against its author's reference, on a GPU that is none."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from cutlass_aot import Operand
from cutlass_aot.errors import LaunchError, OperandError, TuningError
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.schema.kernels.operands import packed
from cutlass_aot.schema.tuning.ranking import Extents, OwnExtents
from cutlass_aot.schema.tuning.tuning import TunedProblem
from cutlass_aot.tuning.gpu import GpuBench
from cutlass_aot.tuning.reference_run import NUMBER, run, usual_extents
from cutlass_aot.tuning.search import Effort
from cutlass_aot.tuning.session import Job
from tests.support.pretend_gpu import PretendGpu

AXPY = tuple(
    operand.constraint()
    for operand in (
        Operand("x", "bf16", ("M", "N")),
        Operand("out", "bf16", ("M", "N"), written=True, contiguous=-2),
        Operand("index", "i32", ("M",)),
        Operand("alpha", "f32", ()),
    )
)


class AxpyKernel:
    """Adds ``alpha * x`` to ``out``, in two microseconds."""

    seconds = 2e-6
    digest = ""

    def __init__(self, gpu: PretendGpu, scale: float = 1.0, operands: Any = AXPY) -> None:
        self.gpu = gpu
        self.scale = scale
        self.group = SimpleNamespace(operands=operands)
        self.calls: list[Any] = []

    def launch(self, x: Any, out: Any, index: Any, alpha: float) -> None:
        self.gpu.now += self.seconds
        self.calls.append((x, out, index, alpha))
        if len(self.calls) == 1:
            out.add_(self.scale * alpha * x)


class Refusing(AxpyKernel):
    def launch(self, x: Any, out: Any, index: Any, alpha: float) -> None:
        raise LaunchError("refused")


def reference(x: Any, out: Any, index: Any, alpha: float) -> Any:
    return out.float() + alpha * x.float()


EXTENTS = {"M": 64, "N": 96}


def test_a_kernel_that_is_right_is_timed() -> None:
    gpu = PretendGpu()
    kernel = AxpyKernel(gpu)
    outcome = run(gpu, 0, kernel, reference, EXTENTS)  # type: ignore[arg-type]
    assert outcome.good
    assert outcome.error is not None
    assert 0 < outcome.error < outcome.allowed == 4 * 2.0**-8
    assert outcome.microseconds == pytest.approx(2.0)
    assert outcome.megabytes == pytest.approx((2 * 64 * 96 * 2 + 64 * 4) / 1e6)
    assert outcome.gigabytes_per_second == pytest.approx(outcome.megabytes / 2 * 1e3)
    x, out, index, alpha = kernel.calls[0]
    assert (x.stride(), out.stride(), alpha) == ((96, 1), (1, 64), NUMBER)
    assert set(index.tolist()) <= {0, 1}


def test_a_kernel_that_is_wrong_is_found() -> None:
    gpu = PretendGpu()
    outcome = run(gpu, 0, AxpyKernel(gpu, scale=1.5), reference, EXTENTS)  # type: ignore[arg-type]
    assert not outcome.good


def test_what_was_not_written_is_wrong() -> None:
    gpu = PretendGpu()
    outcome = run(gpu, 0, AxpyKernel(gpu, scale=math.nan), reference, EXTENTS)  # type: ignore[arg-type]
    assert outcome.error == math.inf


@pytest.mark.parametrize(("scale", "good"), [(1.0, True), (1.5, False)])
def test_infinities_that_the_reference_has_too_are_right(scale: float, good: bool) -> None:
    gpu = PretendGpu()

    class Infinite(AxpyKernel):
        def launch(self, x: Any, out: Any, index: Any, alpha: float) -> None:
            super().launch(x, out, index, alpha)
            out[0, 0] = -math.inf

    def infinite(x: Any, out: Any, index: Any, alpha: float) -> Any:
        found = reference(x, out, index, alpha)
        found[0, 0] = -math.inf
        return found

    assert run(gpu, 0, Infinite(gpu, scale=scale), infinite, EXTENTS).good is good  # type: ignore[arg-type]


def test_without_a_reference_it_is_timed_alone() -> None:
    gpu = PretendGpu()
    outcome = run(gpu, 0, AxpyKernel(gpu), None, EXTENTS)  # type: ignore[arg-type]
    assert (outcome.error, outcome.good) == (None, True)


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (lambda *_: None, "expected the tensors out, which the kernel writes"),
        (lambda x, *_: (x, x), "the reference returned 2 of Tensor, Tensor"),
        (
            lambda x, out, *_: out.to("meta"),
            "returned a tensor on meta, expected cpu, as its operands",
        ),
        (
            lambda x, out, *_: out @ x,
            r"function <lambda> \(.*test_reference_run.py:[0-9]+\) failed: RuntimeE",
        ),
        (lambda x, *_: x.other, "failed: AttributeError: 'Tensor' object has no attribute 'other'"),
        (lambda x: x, "failed: TypeError: "),
        (lambda x, *_: x[:1], r"a tensor of shape \(1, 96\), expected \(64, 96\)"),
    ],
)
def test_a_reference_that_returns_something_else_is_refused(returned: Any, problem: str) -> None:
    gpu = PretendGpu()
    with pytest.raises(TuningError, match=problem):
        run(gpu, 0, AxpyKernel(gpu), returned, EXTENTS)  # type: ignore[arg-type]


def test_an_element_type_that_torch_has_not_is_refused() -> None:
    gpu = PretendGpu()
    operands = (Operand("x", "f4e2m1", ("N",)).constraint(), *AXPY[1:])
    with pytest.raises(OperandError, match="operand `x`: torch makes no random elements of f4e2m1"):
        run(gpu, 0, AxpyKernel(gpu, operands=operands), None, EXTENTS)  # type: ignore[arg-type]


def test_an_operand_that_is_none_is_none_in_both_calls() -> None:
    gpu = PretendGpu()
    given: list[Any] = []

    class WithoutLse(AxpyKernel):
        def launch(self, x: Any, out: Any, lse: Any) -> None:  # type: ignore[override]
            given.append(lse)
            out.copy_(x)

    operands = tuple(
        operand.constraint()
        for operand in (
            Operand("x", "f32", ("B", "S")),
            Operand("out", "f32", ("B", "S"), written=True),
            Operand("lse", None, ("B", "S"), written=True),
        )
    )

    def own(x: Any, out: Any, lse: Any) -> Any:
        given.append(lse)
        return x

    outcome = run(gpu, 0, WithoutLse(gpu, operands=operands), own, {"B": 2, "S": 3})  # type: ignore[arg-type]
    assert outcome.error == 0
    assert set(given) == {None}


def test_extents_are_those_given_and_usual_ones() -> None:
    assert usual_extents(AXPY, {"N": 7}) == {"M": 4096, "N": 7}
    with pytest.raises(OperandError, match="no operand has an extent 'K': expected one of M, N"):
        usual_extents(AXPY, {"K": 1})


def test_a_name_that_stands_in_relations_alone_is_an_extent() -> None:
    operands = tuple(
        operand.constraint()
        for operand in (
            Operand("x", "f32", ("4 * G", "D")),
            Operand("out", "f32", ("2 * G", "D"), written=True),
        )
    )
    assert [found.shape for found in packed(operands, usual_extents(operands, {"G": 3}))] == [
        (12, 4096),
        (6, 4096),
    ]


def test_the_bench_ranks_what_is_right_and_names_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "l2_bytes", lambda ordinal: 1 << 16)
    monkeypatch.setattr(cuda_driver, "bus_id", lambda ordinal: "0000:00:00.0")
    monkeypatch.setattr("cutlass_aot.tuning.gpu.WARM_UP_SECONDS", 0.0)
    gpu = PretendGpu()
    members = [AxpyKernel(gpu), AxpyKernel(gpu, scale=2.0), Refusing(gpu), AxpyKernel(gpu)]
    for index, member in enumerate(members):
        member.digest = str(index) * 64
    members[3].seconds = 1e-6
    extents = OwnExtents.of(EXTENTS)
    job = Job("0" * 64, "axpy", tuple(members), (extents,), reference)  # type: ignore[arg-type]
    with GpuBench(gpu, 0, Effort()) as bench:
        found = bench.measure(job, extents)
    assert isinstance(found, TunedProblem)
    assert [(digest[0], time) for digest, time in found.ranked] == [
        ("3", pytest.approx(1.0)),
        ("0", pytest.approx(2.0)),
    ]
    assert [digest[0] for digest, _ in found.failed] == ["1", "2"]
    assert found.failed[0][1].endswith("expected at most 0.016")
    assert found.failed[1][1] == "refused"
    assert found.extents == Extents(1, 64, 96, 1)
