"""Mixed-input GEMMs of the CUTLASS Operator API: enumeration and compilation, inside a worker.

Operand a holds integers, which the kernel converts to b's element type before it multiplies; ``i4`` ones are
scaled too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.operators.providers.cutedsl.gemm.sm100_mixed_input import MixedInputGemmOperator

from cutlass_aot.generators import dsl
from cutlass_aot.generators.cutlass_operators import catalogue, operands, records
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import problem_of_kernel
from cutlass_aot.generators.protocol import CompiledFunction, Problem
from cutlass_aot.schema.kernels.kernel import Kernel


def enumerate_kernels(problem: Problem, target: str, device: DeviceProfile) -> Iterator[Kernel]:
    """Every mixed-input GEMM for ``problem`` on ``target``."""
    if problem.operation != "gemm" or problem.epilogue is not None:
        return
    for operator in records.launchable(operators_of(problem, target).values(), device):
        yield operands.record(operator, problem, operands.mixed_input(operator, problem), target, device)


def compile_kernel(kernel: Kernel) -> CompiledFunction:
    """Compile one mixed-input GEMM."""
    problem = problem_of_kernel(kernel)
    operator = catalogue.chosen(operators_of(problem, kernel.target), kernel)
    scale = problem.scales[0]
    (clusters,) = dict(kernel.constants).values()
    return dsl.compile_for(
        kernel.target,
        mixed_input_gemm if scale is None else scaled_mixed_input_gemm,
        *dsl.fake_operands(kernel),
        operator.impl,
        *(() if scale is None else (scale.block,)),
        clusters,
        dsl.environment_stream(),
    )


@functools.lru_cache(maxsize=64)
def operators_of(problem: Problem, target: str) -> dict[catalogue.Design, Any]:
    """Operators for a problem, by their design in record form."""
    return catalogue.by_design(
        MixedInputGemmOperator,
        has_operands=lambda described: operands.problem_of(described, "gemm") == problem,
        # The package's list for 8-bit integers is that of integer instructions; these kernels multiply in f16
        # or bf16.
        fits=lambda metadata: catalogue.among(
            metadata.design.mma_instruction_type.supported_targets(), target
        ),
    )


@cute.jit  # type: ignore[untyped-decorator]
def mixed_input_gemm(
    a: cute.Tensor,
    b: cute.Tensor,
    out: cute.Tensor,
    implementation: cutlass.Constexpr,
    max_active_clusters: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Call the package's kernel: a is (L, M, K), of integers, b (L, K, N) and out (L, M, N)."""
    implementation(a, None, b, out, max_active_clusters, stream)


@cute.jit  # type: ignore[untyped-decorator]
def scaled_mixed_input_gemm(
    a: cute.Tensor,
    b: cute.Tensor,
    out: cute.Tensor,
    a_scale: cute.Tensor,
    implementation: cutlass.Constexpr,
    block: cutlass.Constexpr,
    max_active_clusters: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Call the package's kernel with operands in our order and the scale factors in their own layout.

    a is (L, M, K), of integers, b (L, K, N) and out (L, M, N). In a_scale, of rank 1 and in the order (L, K /
    block, M), ``block`` elements along K share a factor.
    """
    batches, rows, depth = a.shape
    blocks = depth // block
    layout = cute.make_layout(
        (batches, rows, blocks), stride=(cutlass.Int64(rows) * blocks, 1, cutlass.Int64(rows))
    )
    implementation(a, cute.make_tensor(a_scale.iterator, layout), b, out, max_active_clusters, stream)
