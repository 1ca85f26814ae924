"""Dense GEMMs of the CUTLASS Operator API: enumeration and compilation, inside a worker."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import cutlass.cute.runtime
import cutlass.operators
import cutlass.utils
import torch

from cutlass_aot.errors import CompileError
from cutlass_aot.generators import dsl
from cutlass_aot.generators.device import DeviceProfile
from cutlass_aot.generators.protocol import CompiledFunction, Problem
from cutlass_aot.schema.dtypes import DTYPES
from cutlass_aot.schema.kernel import DesignValue, Kernel, OperandConstraint

# Any extents that every tile shape divides: they choose major modes here, nothing else.
_BATCH, _M, _N, _K = 2, 512, 1024, 2048
_EXTENTS = {"a": ("L", "M", "K"), "b": ("L", "K", "N"), "out": ("L", "M", "N")}
_SIZES = {"L": _BATCH, "M": _M, "N": _N, "K": _K}
_SCHEDULERS = {
    "CLCDynamicPersistentTileSchedulerMetadata": "clc",
    "StaticPersistentTileSchedulerMetadata": "static",
}
# These take their grid from the device profile whatever their metadata says of a scheduler.
_ALWAYS_STATIC = ("PersistentDenseGemmEFC", "Sm90StaticPersistentGemm")


def enumerate_kernels(
    problem: Problem, target: str, device: DeviceProfile, families: tuple[str, ...]
) -> Iterator[Kernel]:
    """Every kernel of ``families`` for ``problem`` on ``target``, without listing the catalogue."""
    if problem.operation != "gemm" or len(problem.dtypes) != 3:
        return
    for operator in operators_of(problem, target, families).values():
        design = _design(operator)
        yield Kernel.make(
            operation="gemm",
            generator="cutlass.operators",
            operands=_constraints(operator.metadata.operands, problem),
            accumulator=problem.accumulator,
            design=design,
            target=target,
            constants=_constants(design, device),
        )


def compile_kernel(kernel: Kernel, families: tuple[str, ...]) -> CompiledFunction:
    """Compile one kernel of ``families`` with shared symbolic extents and the environment's stream.

    Raises:
        CompileError: if the installed operators package has no such kernel any more.
    """
    problem = Problem(
        kernel.operation,
        tuple(operand.dtype for operand in kernel.operands),
        kernel.layouts,
        kernel.accumulator,
    )
    operator = operators_of(problem, kernel.target, families).get(kernel.design)
    if operator is None:
        raise CompileError(
            f"{kernel.name}: the installed nvidia-cutlass-operators has no such kernel; plan again"
        )
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
def operators_of(
    problem: Problem, target: str, families: tuple[str, ...]
) -> dict[tuple[tuple[str, DesignValue], ...], Any]:
    """Operators of ``families`` for a problem, by their design in record form."""
    found = cutlass.operators.get_operators(gemm_arguments(problem), target_sm=target.removeprefix("sm_"))
    return {
        tuple(sorted(_design(operator).items())): operator
        for operator in found
        if _family(operator) in families and _is_as_described(operator)
    }


def _is_as_described(operator: Any) -> bool:
    """Whether the code has the tile that its metadata says.

    The SM80 family of operators 0.3.0 lists four tiles and compiles 128x128x32 for each of them.
    """
    tile = getattr(operator.impl, "cta_tiler", None)
    return tile is None or tuple(tile) == tuple(operator.metadata.design.tile_shape)


def _family(operator: Any) -> str:
    return type(operator).__name__.removesuffix("Operator")


def gemm_arguments(problem: Problem, sizes: Mapping[str, int] = _SIZES) -> Any:
    """The package's description of a GEMM whose extents ``sizes`` gives by name; no memory is behind it."""
    tensors = []
    for (_, extents), dtype, layout in zip(_EXTENTS.items(), problem.dtypes, problem.layouts, strict=True):
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


def _design(operator: Any) -> dict[str, DesignValue]:
    """An operator's design as plain values; what it does not have is left out."""
    metadata = operator.metadata.design
    design: dict[str, DesignValue] = {
        "family": _family(operator),
        "tile_shape": tuple(int(extent) for extent in metadata.tile_shape),
        "cluster_shape": tuple(int(extent) for extent in metadata.cluster_shape),
    }
    for name in ("use_2cta_mma", "use_tma_store"):
        if getattr(metadata, name, None) is not None:
            design[name] = bool(getattr(metadata, name))
    if getattr(metadata, "num_smem_stages", None) is not None:
        design["num_smem_stages"] = int(metadata.num_smem_stages)
    if getattr(metadata, "fallback_cluster_shape", None) is not None:
        design["fallback_cluster_shape"] = tuple(int(e) for e in metadata.fallback_cluster_shape)
    scheduler = getattr(metadata, "tile_scheduler", None)
    if scheduler is not None:
        design["tile_scheduler"] = _SCHEDULERS[type(scheduler).__name__]
    return design


def _constraints(operands: Any, problem: Problem) -> tuple[OperandConstraint, ...]:
    described = (operands.A, operands.B, operands.out)
    return tuple(
        OperandConstraint(
            name=name,
            dtype=dtype,
            extents=_EXTENTS[name],
            contiguous=-1 if layout == "t" else -2,
            divisibility=int(constraint.divisibility),
            alignment=int(constraint.ptr_alignment_bytes),
            written=name == "out",
        )
        for name, dtype, layout, constraint in zip(
            _EXTENTS, problem.dtypes, problem.layouts, described, strict=True
        )
    )


def _constants(design: dict[str, DesignValue], device: DeviceProfile) -> dict[str, int]:
    """Numbers of the device profile that a design compiles in: one a cluster size it asks for."""
    if design["family"] not in _ALWAYS_STATIC and design.get("tile_scheduler") != "static":
        return {}
    sizes = set()
    for name in ("cluster_shape", "fallback_cluster_shape"):
        shape = design.get(name)
        if isinstance(shape, tuple):
            sizes.add(shape[0] * shape[1])
    return {f"max_active_clusters_{size}": device.active_clusters(size) for size in sorted(sizes)}


@contextmanager
def _answers_from(constants: dict[str, int]) -> Iterator[None]:
    """Within: hardware questions are answered from ``constants``, streams come from the environment.

    The operators ask the GPU of the machine they run on for its occupancy; a builder has none. They make
    their own placeholder for a stream parameter; ours takes the caller's current stream in native code.
    """

    class HardwareFromConstants:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def get_max_active_clusters(self, cluster_size: int, *_: object, **__: object) -> int:
            name = f"max_active_clusters_{cluster_size}"
            if constants.get(name, 0) < 1:
                raise CompileError(
                    f"the kernel asks for {name}, which its record lacks: the device profile was not "
                    "applied when it was enumerated"
                )
            return constants[name]

    runtime = cutlass.cute.runtime
    saved = cutlass.utils.HardwareInfo, runtime.make_fake_stream
    cutlass.utils.HardwareInfo = HardwareFromConstants
    runtime.make_fake_stream = lambda *_, **__: saved[1](use_tvm_ffi_env_stream=True)
    try:
        yield
    finally:
        cutlass.utils.HardwareInfo, runtime.make_fake_stream = saved
