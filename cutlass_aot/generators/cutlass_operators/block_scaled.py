"""Block-scaled GEMMs of the CUTLASS Operator API: enumeration and compilation, inside a worker.

The package lists FP6 operands beside ``f8e4m3`` alone. Its kernel spreads each narrow operand over bytes by
itself, and the instruction takes any two of FP8, FP6 and FP4 (PTX ISA, ``tcgen05.mma``,
``.kind::mxf8f6f4``): pairs with FP6 that the package leaves out have the designs of the pair it lists.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import tcgen05
from cutlass.operators.providers.cutedsl.gemm.sm100_dense_blockscaled_static_persistent import (
    PersistentDenseBlockScaledGemmOperator,
)

from cutlass_aot.generators import dsl
from cutlass_aot.generators.cutlass_operators import catalogue, elementwise, operands, records
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import problem_of_kernel
from cutlass_aot.generators.protocol import CompiledFunction, Problem
from cutlass_aot.schema.kernels.kernel import Kernel


def enumerate_kernels(problem: Problem, target: str, device: DeviceProfile) -> Iterator[Kernel]:
    """Every block-scaled GEMM for ``problem`` on ``target``; none if a and b are not both scaled."""
    if problem.operation != "gemm" or None in problem.scales:
        return
    if not operands.is_elementwise(problem.epilogue):
        return
    listed = operators_of(replace(problem, epilogue=None), target).values()
    for operator in records.launchable(listed, device):
        yield operands.record(operator, problem, operands.block_scaled(operator, problem), target, device)


def compile_kernel(kernel: Kernel) -> CompiledFunction:
    """Compile one block-scaled GEMM."""
    problem = problem_of_kernel(kernel)
    operator = catalogue.chosen(operators_of(problem, kernel.target), kernel)
    (a_mode, _), (b_mode, _), (out_layout, _) = operator._major_modes(operator.metadata.operands)
    (clusters,) = dict(kernel.constants).values()
    a, b, out, a_scale, b_scale, *numbers = dsl.fake_operands(kernel)
    layouts = a_mode, b_mode, out_layout
    arguments = (a, b, out, a_scale, b_scale, operator.impl, layouts, clusters)
    return elementwise.compile_kernel(kernel, block_scaled_gemm, arguments, numbers, operator.impl)


@functools.lru_cache(maxsize=64)
def operators_of(problem: Problem, target: str) -> dict[catalogue.Design, Any]:
    """Operators for a problem with scales, by their design in record form."""
    if target not in {arch.name for arch in tcgen05.MmaMXF8Op.admissible_archs}:
        return {}  # sm_103f: the DSL has the instruction for sm_100a, sm_100f and sm_103a
    listed = _listed(problem)
    if listed is None:
        return {}
    return catalogue.by_design(
        PersistentDenseBlockScaledGemmOperator,
        has_operands=lambda described: operands.problem_of(described, "gemm") == listed,
        fits=lambda metadata: catalogue.runs_on(metadata, target),
    )


def _listed(problem: Problem) -> Problem | None:
    """The problem with whose operands the package lists operators for this one; None if there is none.

    Kernels take their element types from the operands, so operators differ only in what they are listed for.
    """
    a, b, out = problem.dtypes
    six = [name.startswith("f6") for name in (a, b)]
    if not any(six) or "f8e4m3" in (a, b):
        return problem
    known = ("f4e2m1", "f8e5m2", "f6e2m3", "f6e3m2")
    # FP4 lies along K, as the package demands of it in every pair.
    if a not in known or b not in known or (a == "f4e2m1" and problem.layouts[0] != "t"):
        return None
    if b == "f4e2m1" and problem.layouts[1] != "n":
        return None
    return replace(problem, dtypes=("f8e4m3", b, out) if six[1] else (a, "f8e4m3", out))


def addresses_and_shape(
    a: cute.Tensor,
    b: cute.Tensor,
    out: cute.Tensor,
    a_scale: cute.Tensor,
    b_scale: cute.Tensor,
    layouts: Any,
    depth: Any,
) -> tuple[Any, ...]:
    """What the package's kernels take instead of tensors.

    All are compact: a (L, M, K), b (L, K, N), out (L, M, N), and the scales of rank 1, arranged as
    :mod:`cutlass_aot.runtime.scales` says. ``layouts`` are the package's names of the layouts of a, b and
    out, and ``depth`` is K in as many bits as the kernel counts it in.
    """
    batches, rows, _ = a.shape
    _, _, columns = b.shape
    # 64-bit on the host: the batch's stride is a product of these, which can exceed 32 bits.
    shape = (cutlass.Int64(rows), cutlass.Int64(columns), depth, batches)
    return a.iterator, b.iterator, a_scale.iterator, b_scale.iterator, out.iterator, layouts, shape


def with_32_bit_extents(implementation: Any) -> Any:
    """A copy of a kernel of the package whose GPU code has extents of 32 bits, whatever the host's are.

    So has what the package compiles just in time; with 64 bits, the code has more instructions. No extent is
    larger, also rounded up to whole tiles: the launcher refuses 2^31 scale factors or more, and there are 128
    or more for each block along K, and 4 or more for each row and column, so that extents are below 2^29.
    """
    narrow = copy.copy(implementation)
    kernel = narrow.kernel
    narrow.kernel = lambda *arguments: kernel(*map(_with_32_bit_shape, arguments))
    return narrow


def _with_32_bit_shape(argument: Any) -> Any:
    """Of a tensor behind a tensor map, whose strides are the map's; anything else is passed as it is."""
    if not isinstance(argument, cute.Tensor):
        return argument
    layout = cute.make_layout(_in_32_bits(argument.shape), stride=argument.stride)
    return cute.make_tensor(argument.iterator, layout)


def _in_32_bits(extent: Any) -> Any:
    if isinstance(extent, tuple):
        return tuple(map(_in_32_bits, extent))
    return cutlass.Int32(extent) if isinstance(extent, cutlass.Int64) else extent


@cute.jit  # type: ignore[untyped-decorator]
def block_scaled_gemm(
    a: cute.Tensor,
    b: cute.Tensor,
    out: cute.Tensor,
    a_scale: cute.Tensor,
    b_scale: cute.Tensor,
    implementation: cutlass.Constexpr,
    layouts: cutlass.Constexpr,
    max_active_clusters: cutlass.Constexpr,
    epilogue: cutlass.Constexpr,
    *others: Any,
) -> None:
    """Call the package's kernel with tensors, see :func:`addresses_and_shape`.

    ``epilogue`` is an :class:`~.elementwise.Elementwise`, or None; ``others`` are its numbers, and the
    stream.
    """
    *numbers, stream = others
    given = addresses_and_shape(a, b, out, a_scale, b_scale, layouts, cutlass.Int64(a.shape[2]))
    arguments = (*given, max_active_clusters, stream)
    if cutlass.const_expr(epilogue is not None):
        epilogue.take(numbers)
        with_32_bit_extents(epilogue.implementation)(*arguments, epilogue)
    else:
        with_32_bit_extents(implementation)(*arguments)
