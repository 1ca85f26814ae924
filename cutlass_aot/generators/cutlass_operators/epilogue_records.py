"""Kernel records of fused epilogues on the CUTLASS Operator API's GEMM with a programmable epilogue.

It imports nothing of the package; operators are passed in. What needs the DSL is in
:mod:`cutlass_aot.generators.cutlass_operators.epilogue`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cutlass_aot.errors import CompileError
from cutlass_aot.generators.cutlass_operators import records
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import DTYPES as DTYPES_OF_OPERANDS
from cutlass_aot.schema.kernels.epilogue import (
    ELEMENT,
    EXTENTS,
    MATRIX,
    NUMBER,
    STRIDED_COLUMN,
    STRIDED_ROW,
    Epilogue,
    EpilogueOperand,
    parse_epilogue,
)
from cutlass_aot.schema.kernels.formula import ROTATION, operations_in
from cutlass_aot.schema.kernels.kernel import Kernel

FAMILY = "PersistentDenseGemmEFC"
"""The family whose kernel takes any epilogue."""

TRANSPORTS = "transports"
"""Name in a kernel's design of how operands move where it is not by TMA: ``C=sync_gmem_load,F=...``."""

STRIDED = (STRIDED_ROW, STRIDED_COLUMN)
"""Extents of vectors that TMA cannot load, as their stride is free."""

_TMA_BYTES = 16  # what TMA and 128-bit copies move at once, and so align to


def enumerate_kernels(
    operators: Iterable[Any], problem: Problem, target: str, device: DeviceProfile
) -> Iterator[Kernel]:
    """Every kernel for a problem with an epilogue, from the package's operators for the one without it."""
    epilogue = problem.epilogue
    if epilogue is None or problem.accumulator == "f16":
        return  # the kernel cannot take a value of f16 out of tensor memory as f32
    if any(operand.block > 1 or operand.dtype not in DTYPES_OF_OPERANDS for operand in epilogue.operands):
        return  # a thread has no whole blocks of columns, and the kernel stores no elements below a byte
    if epilogue.halves:
        return  # the kernel's output has as many columns as its tiles
    moved = ",".join(
        f"{operand.name}={operand.transport}" for operand in epilogue.operands if operand.transport
    )
    transports = {TRANSPORTS: moved} if moved else {}
    rotates = any(ROTATION in operations_in(found.expression) for found in epilogue.statements)
    for operator in operators:
        if records.family(operator) != FAMILY:
            continue
        plain = records.record(operator, target, device)
        if rotates and not _has_pairs(dict(plain.design)):
            continue
        yield Kernel.make(
            operation=plain.operation,
            generator=plain.generator,
            operands=(*plain.operands, *constraints(epilogue, problem.layouts[2], dict(plain.design))),
            accumulator=plain.accumulator,
            epilogue=epilogue.formula,
            design={**dict(plain.design), **transports},
            target=target,
            constants=dict(plain.constants),
            accumulation=plain.accumulation,
        )


def _has_pairs(design: Mapping[str, DesignValue]) -> bool:
    """Whether a thread has neighbouring columns: a single block's tile of 64 rows gives it each fourth one.

    Source: PTX ISA, shape ``.16x256b`` of ``tcgen05.ld``; the compiled kernel checks it.
    """
    return bool(design["use_2cta_mma"]) or shapes(design)[0][0] > 64


def epilogue_of(kernel: Kernel) -> Epilogue:
    """The epilogue that a kernel's record describes."""
    moved = str(dict(kernel.design).get(TRANSPORTS, ""))
    transports = dict(word.split("=") for word in moved.split(",") if word)
    names = {extents: name for name, extents in EXTENTS.items()}
    operands: dict[str, dict[str, object]] = {}
    for operand in kernel.operands[3:]:
        if operand.extents not in names:
            continue  # scale factors, or offsets of groups
        entries: dict[str, object] = {"dtype": operand.dtype, "extents": names[operand.extents]}
        if operand.extents == MATRIX:
            entries["layout"] = operand.layout
        if operand.name in transports:
            entries["transport"] = transports[operand.name]
        operands[operand.name] = entries
    return parse_epilogue(kernel.epilogue, operands)


def constraints(
    epilogue: Epilogue, out_layout: str, design: Mapping[str, DesignValue]
) -> tuple[OperandConstraint, ...]:
    """What a kernel demands of an epilogue's operands, which are sorted by name.

    ``out_layout``, ``t`` or ``n``, is that of matrices which name none; ``design`` gives the kernel's tiles.
    """
    tile, cluster = shapes(design)
    # A cluster works on all its tiles at once; the tile of a pair of blocks is that of both.
    blocks = cluster[0] // 2 if design["use_2cta_mma"] else cluster[0]
    whole = {"M": tile[0] * blocks, "N": tile[1] * cluster[1]}
    return tuple(_constraint(operand, out_layout, whole) for operand in epilogue.operands)


def shapes(design: Mapping[str, DesignValue]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A design's tile and cluster."""
    tile, cluster = design["tile_shape"], design["cluster_shape"]
    if not isinstance(tile, tuple) or not isinstance(cluster, tuple):
        raise CompileError(f"expected the shapes of a tile and a cluster, got {tile!r} and {cluster!r}")
    return tile, cluster


def _constraint(operand: EpilogueOperand, out_layout: str, whole: Mapping[str, int]) -> OperandConstraint:
    bytes_ = DTYPES[operand.dtype].bytes
    # A vector's length is free: TMA demands 16 bytes of strides, and it has none. Of a matrix, the contiguous
    # extent of a batch of one is the stride of the next mode.
    divisibility = _TMA_BYTES // bytes_ if operand.extents == MATRIX else 1
    contiguous = {"t": -1, "n": -2}[operand.layout or out_layout] if operand.extents == MATRIX else -1
    reduction = operand.written and operand.extents != MATRIX
    by_element = reduction or operand.extents in (NUMBER, ELEMENT, *STRIDED)
    return OperandConstraint(
        name=operand.name,
        dtype=operand.dtype,
        extents=operand.extents,
        contiguous=0 if operand.extents == NUMBER else contiguous,
        divisibility=divisibility,
        alignment=bytes_ if by_element else _TMA_BYTES,
        written=operand.written,
        # TMA knows where a tensor ends; the other transports move whole tiles.
        multiples=tuple(whole.get(str(extent), 1) for extent in operand.extents)
        if transport_of(operand) != "tma"
        else (),
    )


def transport_of(operand: EpilogueOperand) -> str:
    """How an operand moves: one of :data:`~cutlass_aot.schema.kernels.epilogue.TRANSPORTS`."""
    return "sync_gmem_load" if operand.extents in STRIDED else operand.transport or "tma"
