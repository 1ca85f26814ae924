"""TF32 GEMMs: enumeration and compilation, inside a worker."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from cutlass_aot.generators import dsl
from cutlass_aot.generators.cutlass_operators import catalogue, records
from cutlass_aot.generators.cutlass_operators.worker import gemm_arguments
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import constraints, problem_of_kernel
from cutlass_aot.generators.protocol import CompiledFunction, Problem
from cutlass_aot.generators.tf32_gemm import NAME
from cutlass_aot.generators.tf32_gemm.operators import OPERATORS, Sm90Tf32PersistentGemmOperator
from cutlass_aot.schema.kernels.kernel import Kernel

_OUTPUTS = ("f32", "bf16", "f16")
_ALIGNMENT = 16


def enumerate_kernels(problem: Problem, target: str, device: DeviceProfile) -> Iterator[Kernel]:
    """Every TF32 GEMM for ``problem`` on ``target``."""
    for operator in records.launchable(operators_of(problem, target).values(), device):
        design = records.design(operator)
        yield Kernel.make(
            operation="gemm",
            generator=NAME,
            operands=constraints(problem, _ALIGNMENT),
            accumulator="f32",
            design=design,
            target=target,
            constants=records.constants(design, device),
        )


def compile_kernel(kernel: Kernel) -> CompiledFunction:
    """Compile one kernel."""
    operator = catalogue.chosen(operators_of(problem_of_kernel(kernel), kernel.target), kernel)
    operands = dsl.fake_operands(kernel)
    stream = dsl.environment_stream()
    clusters = next((value for _, value in kernel.constants), None)
    if isinstance(operator, Sm90Tf32PersistentGemmOperator):
        return dsl.compile_for(kernel.target, operator.impl, *operands, clusters, stream)
    return dsl.compile_for(
        kernel.target, operator.impl, *operands, stream, clusters, operator.impl.epilogue_op
    )


@functools.lru_cache(maxsize=64)
def operators_of(problem: Problem, target: str) -> dict[catalogue.Design, Any]:
    """Operators for a problem by their design in record form; empty if it is not one of TF32."""
    if (
        problem.operation != "gemm"
        or problem.dtypes[:2] != ("tf32", "tf32")
        or len(problem.dtypes) != 3
        or problem.dtypes[2] not in _OUTPUTS
        or problem.accumulator != "f32"
        or problem.scales != (None, None)
        or problem.epilogue is not None
    ):
        return {}
    # f32 in torch, as TF32 operands are in memory.
    arguments = gemm_arguments(problem)
    architecture = target.removeprefix("sm_")
    return catalogue.keyed(
        operator
        for kind in OPERATORS
        for operator in kind.generate_operators(None, args=arguments)
        # A portable target can be compiled for others that run its code, such as sm_100f for sm_103f.
        if any(supported.is_portable_to(architecture) for supported in operator.metadata.supported_targets)
    )
