"""Policy ``jit`` and declared kernels: what is compiled for which GPU, and how it is called."""

from __future__ import annotations

from contextlib import nullcontext

import numpy
import pytest

import cutlass_aot
from cutlass_aot import policy
from cutlass_aot.builder import jit
from cutlass_aot.errors import GeneratorError, KernelNotFound, MisplacedOperand, OperandError
from cutlass_aot.generators import hardware
from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.runtime import bundle_search
from cutlass_aot.runtime.launching.tensors import describe_operand
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.bundles import ClaimsCuda, write_bundle
from tests.support.declared_kernels import scale_rows, without_parameters
from tests.support.kernels import gemm

pytestmark = pytest.mark.filterwarnings("ignore::cutlass_aot.runtime.policy.MissWarning")

COMPUTE_CAPABILITIES = {0: (9, 0), 1: (8, 0)}


class Compiled:
    """What a compilation gives: it records its calls."""

    def __init__(self, kernel):
        self.kernel, self.calls = kernel, []

    def __call__(self, *arguments):
        self.calls.append([getattr(argument, "shape", argument) for argument in arguments])


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Everything that is compiled, in order."""
    made = []

    def compile_kernel(self, kernel):
        made.append(Compiled(kernel))
        return made[-1]

    for name in ("_chosen", "_compiled", "_enumerated"):
        monkeypatch.setattr(jit, name, {})
    for kernel in (scale_rows, without_parameters):
        monkeypatch.setattr(kernel, "_functions", {})
        monkeypatch.setattr(kernel, "_calls", {})
    monkeypatch.setattr(policy, "_process", policy._Process())
    monkeypatch.setattr(jit, "_require_compiler", lambda torch_computes: None)
    monkeypatch.setattr(jit, "dsl_version", lambda: "4.8.1")
    monkeypatch.setattr(bundle_search, "opened_bundles", list)
    monkeypatch.setattr(bundle_search, "located", list)
    monkeypatch.setattr(cuda_driver, "compute_capability", COMPUTE_CAPABILITIES.__getitem__)
    monkeypatch.setattr(cuda_driver, "sm_count", lambda _: 132)
    monkeypatch.setattr(cuda_driver, "device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(DeclaredGenerator, "compile", compile_kernel)
    with policy.use("jit"):
        yield made


def operands(rows=4, n=128, ordinal=0):
    x, out = (ClaimsCuda(numpy.zeros((rows, n), "u2"), "bf16", ordinal) for _ in range(2))
    return x, out, 2.0


def test_it_is_compiled_for_the_best_target_of_the_gpu_and_called_in_order(compiled):
    scale_rows(n=128, fast=False)(*operands())
    (made,) = compiled
    assert (made.kernel.target, dict(made.kernel.parameters)) == ("sm_90a", {"n": 128, "fast": False})
    assert made.calls == [[(4, 128), (4, 128), 2.0]]


def test_it_is_compiled_once_and_the_miss_counted_once(compiled):
    for rows in (4, 5, 6):
        scale_rows(n=128, fast=False)(*operands(rows))
    assert len(compiled) == 1
    assert len(compiled[0].calls) == 3
    assert policy.misses() == {"scale_rows(n=128, fast=False) on GPU 0": 1}


def test_values_that_are_not_listed_are_compiled_too(compiled):
    scale_rows(n=256, fast=False)(*operands(n=256))
    assert dict(compiled[0].kernel.parameters)["n"] == 256


def test_parameters_or_a_gpu_that_there_is_no_kernel_for_are_a_miss(compiled):
    with pytest.raises(
        KernelNotFound, match=r"has no kernel for compute capability 9\.0: it is declared for"
    ):
        scale_rows(n=64, fast=True)(*operands(n=64))
    with pytest.raises(KernelNotFound, match=r"compute capability 8\.0: it is declared for sm_90a, sm_100a"):
        scale_rows(n=128, fast=False)(*operands(ordinal=1))
    assert not compiled


def test_operands_are_looked_at_before_compiled_code_is_called(compiled):
    x, out, factor = operands()
    with pytest.raises(OperandError, match="operand `x` is unsupported: expected an extent of 128"):
        scale_rows(n=128, fast=False)(operands(n=120)[0], out, factor)
    with pytest.raises(OperandError, match="expected element type bf16"):
        scale_rows(n=128, fast=False)(ClaimsCuda(numpy.zeros((4, 128), "u2"), "f16"), out, factor)
    assert [made.calls for made in compiled] == [[]]
    scale_rows(n=128, fast=False)(x, factor=factor, out=out)
    assert len(compiled[0].calls) == 1


def test_operands_that_are_elsewhere_give_the_error_of_every_launch(compiled, tmp_path, monkeypatch):
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", [gemm()]))
    monkeypatch.setattr(jit, "references", lambda: {"scale_rows": Only(scale_rows)})
    x, _, factor = operands()
    on_cpu, there = numpy.zeros((4, 128), "f2"), operands(ordinal=1)[1]
    function, values = scale_rows(n=128, fast=False), {"n": 128, "fast": False}
    with pytest.raises(MisplacedOperand, match="operand `out` is on cpu: kernels run on CUDA devices"):
        function(x, on_cpu, factor)
    with pytest.raises(MisplacedOperand, match="operand `out` is on GPU 1, and `x` on GPU 0"):
        function(x, there, factor)
    # The bundle does not know the operands' names.
    with pytest.raises(MisplacedOperand, match="operand `1` is on cpu: kernels run on CUDA devices"):
        bundle.run("scale_rows", x, on_cpu, factor, parameters=values)
    with pytest.raises(MisplacedOperand, match="operand `out` is on cpu: kernels run on CUDA devices"):
        bundle.run("scale_rows", x, factor=factor, out=on_cpu, parameters=values)


class Only:
    """The one generator there is."""

    def __init__(self, kernel):
        self.load = lambda: DeclaredGenerator(kernel)


def test_a_bundle_that_runs_one_by_name_has_the_kernel_of_its_parameters_compiled(
    compiled, tmp_path, monkeypatch
):
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", [gemm()]))
    monkeypatch.setattr(jit, "references", lambda: {"scale_rows": Only(scale_rows)})
    x, out, factor = operands()
    for fast in (True, False):
        bundle.run("scale_rows", x, out, factor, parameters={"n": 128, "fast": fast})
    bundle.run("scale_rows", x, out, factor=factor, parameters={"n": 128, "fast": False})
    assert [dict(made.kernel.parameters)["fast"] for made in compiled] == [True, False]
    assert [len(made.calls) for made in compiled] == [1, 2]
    assert compiled[1].calls[0] == compiled[1].calls[1] == [(4, 128), (4, 128), 2.0]
    with pytest.raises(KernelNotFound, match=r"no generator \(scale_rows\) has a kernel for scale_rows"):
        bundle.run("scale_rows", x, out, factor, parameters={"n": 128})


def test_an_accumulator_that_the_kernel_has_not_is_a_miss(compiled, tmp_path, monkeypatch):
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", [gemm()]))
    monkeypatch.setattr(jit, "references", lambda: {"scale_rows": Only(scale_rows)})
    with pytest.raises(KernelNotFound, match="accumulator f16"):
        bundle.run("scale_rows", *operands(), accumulator="f16", parameters={"n": 128, "fast": False})
    assert not compiled


def test_torchs_fp4_is_handed_over_in_elements_and_on_torchs_stream(compiled, monkeypatch):
    """One of torch's elements holds two: no view of torch has the kernel's extents."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no FP4")
    memory = torch.zeros(4, 32, dtype=torch.uint8)
    tensor = memory.view(torch.float4_e2m1fn_x2)
    constraint = OperandConstraint("x", "f4e2m1", ("T", "K"), -1, 32, 16)
    described = describe_operand(tensor)
    given = jit._batched(constraint, tensor, described, None)
    assert (tuple(given.shape), tuple(given.strides)) == ((4, 64), (64, 1))
    assert given.data_ptr() == memory.data_ptr()

    streams = []
    monkeypatch.setattr(jit, "current_stream", lambda operands, ordinal: 77)
    monkeypatch.setattr(jit, "call", lambda function, arguments, ordinal, stream: streams.append(stream))
    kernel = Kernel.make(
        operation="o", generator="g", operands=(constraint,), accumulator="", design={}, target="sm_100a"
    )
    jit._launch(jit.Compiled(kernel, None), [tensor], [described], 0, None, None)
    assert streams == [77]


def test_nothing_is_called_where_nothing_is_written(compiled):
    function = scale_rows(n=128, fast=False)
    for rows in (4, 0):
        function(*operands(rows))
    assert [len(made.calls) for made in compiled] == [1]
    with pytest.raises(OperandError, match="expected an extent of 128"):
        function(*operands(0, 64))


def test_a_kernel_that_asks_for_the_gpu_has_the_numbers_of_the_one_at_hand(compiled, monkeypatch):
    monkeypatch.setattr(scale_rows, "device", True)
    monkeypatch.setattr(hardware, "answered", lambda constants, advice: nullcontext())
    scale_rows(n=128, fast=False)(*operands())
    (made,) = compiled
    assert dict(made.kernel.constants)["sm_count"] == 132
    with pytest.raises(GeneratorError, match="asks for numbers of a GPU: name a device profile"):
        DeclaredGenerator(scale_rows).kernel({"n": 128, "fast": False}, "sm_90a")
