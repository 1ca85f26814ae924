"""Block-scaled GEMMs of the CUTLASS Operator API for Rubin (sm_107), inside a worker.

Rubin multiplies 64 elements of 8 bits, or 128 of 4, along K at once, and can keep a tile of B for a second
product (``enable_breuse``); the kernel has a preferred and a fallback cluster. Scale factors with 5 bits of
exponent and 3 of mantissa, which the package lists too, no framework has: they are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.operators.providers.cutedsl.gemm.sm107_dense_blockscaled_gemm import (
    Sm107DenseBlockScaledGemmOperator,
)
from cutlass.operators.providers.cutedsl.integration_utils.builders import gemm_major_modes

from cutlass_aot.generators import dsl
from cutlass_aot.generators.cutlass_operators import catalogue, operands, records
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import problem_of_kernel
from cutlass_aot.generators.protocol import CompiledFunction, Problem
from cutlass_aot.schema.kernels.dtypes import BY_DSL
from cutlass_aot.schema.kernels.kernel import Kernel


def enumerate_kernels(problem: Problem, target: str, device: DeviceProfile) -> Iterator[Kernel]:
    """Every block-scaled GEMM of Rubin for ``problem`` on ``target``; none if a and b are not both scaled."""
    if problem.operation != "gemm" or None in problem.scales or problem.epilogue is not None:
        return
    for operator in records.launchable(operators_of(problem, target).values(), device):
        yield operands.record(operator, problem, operands.block_scaled(operator, problem), target, device)


def compile_kernel(kernel: Kernel) -> CompiledFunction:
    """Compile one block-scaled GEMM."""
    problem = problem_of_kernel(kernel)
    operator = catalogue.chosen(operators_of(problem, kernel.target), kernel)
    modes = gemm_major_modes(operator.metadata.operands)
    kinds = cutlass.tensor_utils.LayoutEnum
    out = kinds.ROW_MAJOR if problem.layouts[2] == "t" else kinds.COL_MAJOR
    clusters = dict(kernel.constants)
    implementation = operator.impl
    return dsl.compile_for(
        kernel.target,
        block_scaled_gemm,
        *dsl.fake_operands(kernel),
        implementation,
        (modes.A, modes.B, out),
        *(
            clusters[f"max_active_clusters_{rows * columns}"]
            for rows, columns in (
                implementation.preferred_cluster_shape_mn,
                implementation.fallback_cluster_shape_mn,
            )
        ),
        dsl.environment_stream(),
    )


@functools.lru_cache(maxsize=64)
def operators_of(problem: Problem, target: str) -> dict[catalogue.Design, Any]:
    """Operators for a problem with scales, by their design in record form."""

    def fits(metadata: Any) -> bool:
        described = metadata.operands
        return (
            catalogue.runs_on(metadata, target)
            and described.A.scale.dtype.__name__ in BY_DSL
            and operands.problem_of(described, "gemm") == problem
        )

    return catalogue.keyed(Sm107DenseBlockScaledGemmOperator.generate_operators(fits))


@cute.jit  # type: ignore[untyped-decorator]
def block_scaled_gemm(
    a: cute.Tensor,
    b: cute.Tensor,
    out: cute.Tensor,
    a_scale: cute.Tensor,
    b_scale: cute.Tensor,
    implementation: cutlass.Constexpr,
    layouts: cutlass.Constexpr,
    preferred_clusters: cutlass.Constexpr,
    fallback_clusters: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Call the package's kernel, which takes addresses and extents, with tensors.

    All are as for :func:`cutlass_aot.generators.cutlass_operators.block_scaled.block_scaled_gemm`.
    """
    batches, rows, depth = a.shape
    _, _, columns = b.shape
    # 64-bit: the batch's stride is a product of rows or columns, which can exceed 32 bits. K has 32: the
    # kernel prefetches at coordinates of its type, and with 64 the compiler refuses them.
    shape = (cutlass.Int64(rows), cutlass.Int64(columns), depth, batches)
    implementation(
        a.iterator,
        b.iterator,
        a_scale.iterator,
        b_scale.iterator,
        out.iterator,
        layouts,
        shape,
        preferred_clusters,
        fallback_clusters,
        stream,
    )
