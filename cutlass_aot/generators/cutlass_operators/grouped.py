"""Grouped GEMMs of the CUTLASS Operator API: enumeration and compilation, inside a worker."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.operators.providers.cutedsl.gemm.sm100_contiguous_offset_2d3d_dense_gemm import (
    ContiguousOffset2D3DGemmDenseOperator,
)

from cutlass_aot.generators import dsl
from cutlass_aot.generators.cutlass_operators import catalogue, elementwise, operands, records
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import problem_of_kernel
from cutlass_aot.generators.protocol import CompiledFunction, Problem
from cutlass_aot.schema.kernels.kernel import Kernel


def enumerate_kernels(problem: Problem, target: str, device: DeviceProfile) -> Iterator[Kernel]:
    """Every grouped GEMM for ``problem`` on ``target``."""
    if problem.operation != "grouped_gemm" or not operands.is_elementwise(problem.epilogue):
        return
    listed = operators_of(replace(problem, epilogue=None), target).values()
    for operator in records.launchable(listed, device):
        yield operands.record(operator, problem, operands.grouped(operator, problem), target, device)


def compile_kernel(kernel: Kernel) -> CompiledFunction:
    """Compile one grouped GEMM."""
    problem = problem_of_kernel(kernel)
    operator = catalogue.chosen(operators_of(problem, kernel.target), kernel)
    (clusters,) = dict(kernel.constants).values()
    a, b, out, offsets, *numbers = dsl.fake_operands(kernel)
    arguments = (a, b, out, offsets, operator.impl, clusters)
    return elementwise.compile_kernel(kernel, grouped_gemm, arguments, numbers, operator.impl)


@functools.lru_cache(maxsize=64)
def operators_of(problem: Problem, target: str) -> dict[catalogue.Design, Any]:
    """Operators for a problem, by their design in record form."""
    return catalogue.by_design(
        ContiguousOffset2D3DGemmDenseOperator,
        has_operands=lambda described: operands.problem_of(described, "grouped_gemm") == problem,
        fits=lambda metadata: catalogue.runs_on(metadata, target),
    )


@cute.jit  # type: ignore[untyped-decorator]
def grouped_gemm(
    a: cute.Tensor,
    b: cute.Tensor,
    out: cute.Tensor,
    offsets: cute.Tensor,
    implementation: cutlass.Constexpr,
    max_active_clusters: cutlass.Constexpr,
    epilogue: cutlass.Constexpr,
    *others: Any,
) -> None:
    """Call the package's kernel with tensors.

    a is (M, K) and out (M, N), with the groups one after the other along M; b is (G, K, N); offsets, (G,),
    has the end of each group along M. ``epilogue`` is an :class:`~.elementwise.Elementwise`, or None;
    ``others`` are its numbers, and the stream.
    """
    *numbers, stream = others
    if cutlass.const_expr(epilogue is not None):
        epilogue.take(numbers)
        epilogue.implementation(a, b, out, offsets, max_active_clusters, stream, epilogue)
    else:
        implementation(a, b, out, offsets, max_active_clusters, stream)
