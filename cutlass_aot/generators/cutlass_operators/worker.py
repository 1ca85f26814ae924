"""Kernels of the CUTLASS Operator API: enumeration and compilation, inside a worker.

Dense GEMM stands here; the other families each have a module with the same two functions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import cutlass.cute.runtime
import cutlass.operators
import cutlass.utils
import torch

from cutlass_aot.generators import dsl, hardware
from cutlass_aot.generators.cutlass_operators import (
    block_scaled,
    catalogue,
    epilogue_records,
    grouped,
    mixed_input,
    operands,
    records,
    rubin,
    sm80,
)
from cutlass_aot.generators.cutlass_operators import epilogue as epilogues
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import EXTENTS, has_fast_sums, problem_of_kernel
from cutlass_aot.generators.protocol import CompiledFunction, Problem
from cutlass_aot.schema.kernels.accumulation import EXACT
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel

# Any extents that every tile shape divides: they only decide the major modes.
_SIZES = {"L": 2, "M": 512, "N": 1024, "K": 2048}

_OTHER_FAMILIES: Mapping[str, Any] = {
    operands.BLOCK_SCALED: block_scaled,
    operands.RUBIN_BLOCK_SCALED: rubin,
    operands.MIXED_INPUT: mixed_input,
    operands.GROUPED: grouped,
}


def enumerate_kernels(problem: Problem, target: str, device: DeviceProfile) -> Iterator[Kernel]:
    """Every kernel of the package for ``problem`` on ``target``, without listing the catalogue."""
    if len(problem.dtypes) != len(EXTENTS):
        return
    if _is_dense(problem, target):
        operators = records.launchable(operators_of(replace(problem, epilogue=None), target).values(), device)
        if problem.epilogue is not None:
            yield from epilogue_records.enumerate_kernels(operators, problem, target, device)
        else:
            yield from (records.record(operator, target, device) for operator in operators)
    for family in _OTHER_FAMILIES.values():
        yield from family.enumerate_kernels(problem, target, device)


def _is_dense(problem: Problem, target: str) -> bool:
    """Whether it may be a dense GEMM of the package.

    Torch has its element types as they are, and tensor cores alone add up its sums.
    """
    dtypes = [DTYPES[dtype] for dtype in problem.dtypes]
    return (
        problem.operation == "gemm"
        and not (problem.accumulation == EXACT and has_fast_sums(problem, target))
        and problem.scales == (None, None)
        and all(dtype.torch and not dtype.reads and dtype.torch_packs == 1 for dtype in dtypes)
    )


def compile_kernel(kernel: Kernel) -> CompiledFunction:
    """Compile one kernel with shared symbolic extents and the environment's stream."""
    family = _OTHER_FAMILIES.get(str(dict(kernel.design)["family"]))
    if family is not None:
        elsewhere: CompiledFunction = family.compile_kernel(kernel)
        return elsewhere
    if kernel.epilogue:
        return epilogues.compile_kernel(kernel)
    problem = problem_of_kernel(kernel)
    operator = catalogue.chosen(operators_of(problem, kernel.target), kernel)
    if records.family(operator) == sm80.FAMILY:
        return sm80.compile_kernel(kernel, operator)
    arguments = gemm_arguments(problem)
    wrappers = (arguments.A.tensor, arguments.B.tensor, arguments.out.tensor)
    for wrapper, fake in zip(wrappers, dsl.fake_operands(kernel), strict=True):
        wrapper.compile_time_tensor = fake
    with _answers_from(dict(kernel.constants)):
        compiled: CompiledFunction = operator.compile(
            arguments, target_sm=kernel.target.removeprefix("sm_")
        ).compiled_obj
    return compiled


@functools.lru_cache(maxsize=64)
def operators_of(problem: Problem, target: str) -> dict[catalogue.Design, Any]:
    """Operators for a problem, by their design in record form."""
    found = cutlass.operators.get_operators(gemm_arguments(problem), target_sm=target.removeprefix("sm_"))
    return catalogue.keyed(operator for operator in found if not records.refusal(operator))


def gemm_arguments(problem: Problem, sizes: Mapping[str, int] = _SIZES) -> Any:
    """The package's arguments of a GEMM with these extents by name, on tensors without memory."""
    tensors = []
    for extents, dtype, layout in zip(EXTENTS.values(), problem.dtypes, problem.layouts, strict=True):
        shape = [sizes[extent] for extent in extents]
        element = getattr(torch, DTYPES[dtype].torch)
        if layout == "n":
            shape[1], shape[2] = shape[2], shape[1]
        tensor = torch.empty(shape, dtype=element, device="meta")
        tensors.append(tensor.transpose(1, 2) if layout == "n" else tensor)
    return cutlass.operators.GemmArguments(
        A=tensors[0],
        B=tensors[1],
        out=tensors[2],
        accumulator_type=getattr(torch, DTYPES[problem.accumulator].torch),
    )


@contextmanager
def _answers_from(constants: dict[str, int]) -> Iterator[None]:
    """In this context, hardware questions are answered from ``constants``; streams come from the environment.

    The operators ask the GPU at hand for its occupancy, and a builder has none. They also make a placeholder
    of their own for the stream; ours takes the caller's current stream in native code.
    """

    runtime = cutlass.cute.runtime
    saved = runtime.make_fake_stream
    runtime.make_fake_stream = lambda *_, **__: saved(use_tvm_ffi_env_stream=True)
    try:
        with hardware.answered(constants, "the device profile was not applied when it was enumerated"):
            yield
    finally:
        runtime.make_fake_stream = saved
