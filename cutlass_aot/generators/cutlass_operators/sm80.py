"""The SM80 GEMM of the CUTLASS Operator API: compilation, inside a worker."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.generators import dsl
from cutlass_aot.generators.protocol import CompiledFunction
from cutlass_aot.schema.kernels.kernel import Kernel

FAMILY = "Sm80TensorOpGemm"


def compile_kernel(kernel: Kernel, operator: Any) -> CompiledFunction:
    """Compile the kernel of an operator of this family."""
    operands = dsl.fake_operands(kernel)
    return dsl.compile_for(
        kernel.target, sm80_gemm, *operands, operator.impl, _keeps_multiple(kernel), dsl.environment_stream()
    )


def _keeps_multiple(kernel: Kernel) -> bool:
    """Whether the kernel is better off when it knows what K is a multiple of.

    ``tools/check/against_jit.py`` prints the loops of all layouts and targets.
    """
    return kernel.layouts == "ttn" and kernel.target.startswith("sm_12")


@cute.jit  # type: ignore[untyped-decorator]
def sm80_gemm(
    a: cute.Tensor,
    b: cute.Tensor,
    out: cute.Tensor,
    implementation: cutlass.Constexpr,
    keeps_multiple: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Call the package's kernel with a (L, M, K), b (L, K, N) and out (L, M, N).

    K is a multiple of what 16 bytes hold as soon as a or b is contiguous along it, and one symbol says so of
    both. The compiled checks demand it. The kernel is not told: it knows that its addresses are aligned,
    and its loop is longer by up to a third where the compiler derives them from the multiple as well.
    """
    if cutlass.const_expr(not keeps_multiple):
        batches, rows, depth = a.shape
        shape = (batches, rows, cute.assume(depth, 1))
        a = cute.make_tensor(a.iterator, cute.make_layout(shape, stride=a.stride))
    implementation(a, b, out, stream)
