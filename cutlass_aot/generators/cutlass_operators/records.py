"""Operators of the CUTLASS Operator API as kernel records, by one rule for building and for finding.

It imports nothing of the package; operators are passed in. The generator uses it in a worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cutlass_aot.errors import GeneratorError
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import CONTIGUOUS_MODES, EXTENTS, accumulation_of
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.schema.kernels.accumulation import FAST
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.dtypes import BY_DSL
from cutlass_aot.schema.kernels.kernel import Kernel

GENERATOR = "cutlass.operators"
"""Name of the generator whose records these are."""

FAMILIES = {
    "PersistentDenseGemm": "SM100 persistent, CLC or static scheduler",
    "PersistentDenseGemmPreferredCluster": "SM100 persistent with a preferred and a fallback cluster",
    "PersistentDenseGemmEFC": "SM100 persistent, with any fused epilogue or none",
    "Sm107DenseGemm": "SM107 persistent, FP8, with a preferred and a fallback cluster",
    "TgvGemm": "SM100 low latency, for few rows of A",
    "Sm90StaticPersistentGemm": "SM90 persistent, warp-specialised",
    "Sm80TensorOpGemm": "SM80 tensor cores, runs on any target from sm_80 on",
}
"""Families of dense GEMM by the name of their operator class without ``Operator``."""

_SCHEDULERS = {
    "CLCDynamicPersistentTileSchedulerMetadata": "clc",
    "StaticPersistentTileSchedulerMetadata": "static",
}
# Their grid follows from the device profile, whatever scheduler their metadata names.
_ALWAYS_STATIC = (
    "PersistentDenseGemmEFC",
    "Sm90StaticPersistentGemm",
    "PersistentDenseBlockScaledGemm",
    "MixedInputGemm",
    "ContiguousOffset2D3DGemmDense",
    "Sm90Tf32PersistentGemm",
    "Sm107DenseGemm",
    "Sm107DenseBlockScaledGemm",
)
_LAYOUTS = {(0, 0, 1): "t", (0, 1, 0): "n"}


def family(operator: Any) -> str:
    """The name of an operator's class without ``Operator``."""
    return type(operator).__name__.removesuffix("Operator")


def refusal(operator: Any) -> str:
    """Why an operator cannot be a kernel of a bundle; ``""`` if it can.

    Its code has to be what its metadata says: the SM80 family of operators 0.3.0 lists four tiles and
    compiles 128x128x32 for each of them.
    """
    if family(operator) not in FAMILIES:
        return f"{type(operator).__name__} is none of the families {', '.join(FAMILIES)}"
    if getattr(operator.metadata, "epilogue", None) is not None:
        return "it has an epilogue of the package's own: write it in a manifest, as a formula"
    tile = getattr(operator.impl, "cta_tiler", None)
    described = operator.metadata.design.tile_shape
    if tile is not None and tuple(tile) != tuple(described):
        return f"its metadata says tile {tuple(described)}, its code has {tuple(tile)}"
    return ""


def problem_of(operator: Any) -> Problem:
    """The operands of an operator, without extents."""
    operands = operator.metadata.operands
    described = (operands.A, operands.B, operands.out)
    layouts = [_LAYOUTS.get(tuple(operand.stride or ())) for operand in described]
    names = [BY_DSL.get(operand.dtype.__name__) for operand in described]
    accumulator = BY_DSL.get(operands.accumulator_type.__name__)
    if None in (*layouts, *names, accumulator):
        raise GeneratorError(
            f"{operator.metadata.operator_name}: expected dense operands, row- or column-major, of element "
            f"types {', '.join(BY_DSL)}, got {operands}"
        )
    return Problem("gemm", tuple(map(str, names)), "".join(map(str, layouts)), str(accumulator))


def record(operator: Any, target: str, device: DeviceProfile) -> Kernel:
    """The kernel record of an operator without a :func:`refusal`, with the numbers of ``device`` it needs."""
    problem = problem_of(operator)
    chosen = design(operator)
    return Kernel.make(
        operation=problem.operation,
        generator=GENERATOR,
        operands=constraints(operator, problem),
        accumulator=problem.accumulator,
        design=chosen,
        target=target,
        constants=constants(chosen, device),
        accumulation=accumulation_of(replace(problem, accumulation=FAST), target),
    )


def design(operator: Any) -> dict[str, DesignValue]:
    """An operator's design as plain values; what it does not have is left out."""
    metadata = operator.metadata.design
    values: dict[str, DesignValue] = {
        "family": family(operator),
        "tile_shape": tuple(int(extent) for extent in metadata.tile_shape),
        "cluster_shape": tuple(int(extent) for extent in metadata.cluster_shape),
    }
    for name in ("use_2cta_mma", "use_tma_store", "enable_breuse"):
        if getattr(metadata, name, None) is not None:
            values[name] = bool(getattr(metadata, name))
    if getattr(metadata, "num_smem_stages", None) is not None:
        values["num_smem_stages"] = int(metadata.num_smem_stages)
    if getattr(metadata, "fallback_cluster_shape", None) is not None:
        values["fallback_cluster_shape"] = tuple(int(e) for e in metadata.fallback_cluster_shape)
    scheduler = getattr(metadata, "tile_scheduler", None)
    if scheduler is not None:
        values["tile_scheduler"] = _SCHEDULERS[type(scheduler).__name__]
    return values


def constraints(operator: Any, problem: Problem) -> tuple[OperandConstraint, ...]:
    """What an operator demands of its operands, which are those of ``problem``."""
    operands = operator.metadata.operands
    described = (operands.A, operands.B, operands.out)
    return tuple(
        OperandConstraint(
            name=name,
            dtype=dtype,
            extents=extents,
            contiguous=CONTIGUOUS_MODES[letter],
            divisibility=int(constraint.divisibility),
            alignment=int(constraint.ptr_alignment_bytes),
            written=name == "out",
        )
        for (name, extents), dtype, letter, constraint in zip(
            EXTENTS.items(), problem.dtypes, problem.layouts, described, strict=True
        )
    )


def constants(chosen: dict[str, DesignValue], device: DeviceProfile) -> dict[str, int]:
    """Numbers of the device profile that a design compiles in: one for each cluster size in it."""
    if chosen["family"] not in _ALWAYS_STATIC and chosen.get("tile_scheduler") != "static":
        return {}
    sizes = sorted(_cluster_sizes(chosen))
    return {f"max_active_clusters_{size}": device.active_clusters(size) for size in sizes}


def launchable(operators: Iterable[Any], device: DeviceProfile) -> Iterator[Any]:
    """Those of the operators whose clusters fit on the device."""
    for operator in operators:
        if _cluster_sizes(design(operator)) <= device.max_active_clusters.keys():
            yield operator


def _cluster_sizes(chosen: Mapping[str, DesignValue]) -> set[int]:
    shapes = (chosen.get(name) for name in ("cluster_shape", "fallback_cluster_shape"))
    return {shape[0] * shape[1] for shape in shapes if isinstance(shape, tuple)}
