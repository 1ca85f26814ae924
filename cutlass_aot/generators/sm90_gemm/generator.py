"""The built-in SM90 GEMM: which kernels it has.

The kernel is in ``kernel.py`` beside it, its page is docs/reference/sm90-gemm.md. This module imports no DSL.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cutlass_aot.errors import GeneratorError
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import EXTENTS, constraints, problem_of_kernel
from cutlass_aot.generators.protocol import CompiledFunction, Problem
from cutlass_aot.generators.sm90_gemm.plan import LINE_BYTES, ROWS, THREADS, Plan, make_plan
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import COLUMN, MATRIX, NUMBER, ROW, Epilogue, EpilogueOperand
from cutlass_aot.schema.kernels.epilogue import DTYPES as EPILOGUE_DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel

FAMILY = "Sm90ClusterGemm"
TARGET = "sm_90a"
INPUTS = {
    "bf16": ("bf16", "f32"),
    "f16": ("f16", "f32"),
    "f8e4m3": ("bf16", "f16", "f32"),
}
"""Element types of A and B, each with those of the output."""
FUSED_OUTPUTS = tuple(dtype for dtype in EPILOGUE_DTYPES if dtype != "bool")
"""Element types of the output after an epilogue, whatever A and B are."""
LAYOUTS = ("tnt", "ttt")

_ALIGNMENT = 16
"""Bytes; what TMA demands of addresses and strides. Source: CUDA driver API, cuTensorMapEncodeTiled."""


@dataclass(frozen=True, slots=True)
class _Design:
    """One design. Extents are those of the output, also if A and B exchange their roles."""

    tile: tuple[int, int, int]
    cluster: tuple[int, int, int]
    blocks: int
    swap: bool
    persistent: bool = False

    def values(self) -> dict[str, DesignValue]:
        return {
            "family": FAMILY,
            "tile_shape": self.tile,
            "cluster_shape": self.cluster,
            "blocks_per_sm": self.blocks,
            "swap_operands": self.swap,
            "persistent": self.persistent,
        }

    @property
    def warp_groups(self) -> int:
        """Warp groups that compute: three if they can share the rows equally, else one or two."""
        rows = self.tile[1] if self.swap else self.tile[0]
        return 3 if rows % (3 * ROWS) == 0 else min(2, rows // ROWS)

    @property
    def spills_wide(self) -> bool:
        """Whether results that stay f32 take more registers than the sums leave."""
        totals = self.tile[0] * self.tile[1] // (self.warp_groups * THREADS)
        return totals > (80 if self.warp_groups == 3 else 128)

    def constants(self, device: DeviceProfile) -> dict[str, int]:
        """Numbers of the device profile that are compiled in: the bounds of a persistent kernel's grid."""
        if not self.persistent:
            return {}
        size = math.prod(self.cluster)
        return {f"max_active_clusters_{size}": device.active_clusters(size)}

    def plan(self, input_bits: int, output_bits: int, fused: bool, active: int) -> Plan:
        tile, cluster = self.tile, self.cluster
        if self.swap:
            tile, cluster = (tile[1], tile[0], tile[2]), (cluster[1], cluster[0], cluster[2])
        return make_plan(
            tile=tile,
            cluster=cluster,
            warp_groups=self.warp_groups,
            blocks=self.blocks,
            swap=self.swap,
            active=active,
            input_bits=input_bits,
            output_bits=output_bits,
            fused=fused,
        )


_EXCHANGED = {
    (8, 64, 2, 2): "1x1x1 1x1x2 1x1x4 1x1x8",
    (16, 64, 2, 1): "1x1x1",
    (16, 64, 2, 2): "1x1x4 1x1x8",
    (24, 64, 1, 1): "1x2x1",
    (24, 64, 1, 2): "1x1x1",
    (32, 64, 2, 1): "1x1x1",
    (48, 64, 1, 1): "2x1x1",
    (56, 64, 1, 1): "1x1x1 2x1x1",
    (72, 64, 1, 1): "1x4x2 2x1x1 2x1x2",
    (80, 64, 1, 1): "1x4x1 2x1x1",
    (88, 64, 1, 1): "1x1x1 1x4x2",
    (104, 64, 1, 1): "1x4x1 1x4x2",
    (120, 64, 1, 1): "1x1x1 1x4x1",
    (136, 64, 1, 1): "1x2x4 1x4x1 1x4x2",
    (144, 64, 1, 1): "1x4x1",
    (32, 128, 1, 2): "1x1x1",
    (80, 128, 1, 1): "2x1x1",
    (88, 128, 1, 1): "1x1x1 1x4x1 2x1x1",
    (104, 128, 1, 1): "2x1x1",
    (112, 128, 1, 1): "1x1x1 1x4x1",
    (120, 128, 1, 1): "1x2x1 2x1x1",
    (152, 128, 1, 1): "1x2x1",
    (184, 128, 1, 1): "1x2x1",
    (200, 128, 1, 1): "1x2x1",
    (216, 128, 1, 1): "1x1x1",
    (80, 192, 1, 1): "4x1x1",
    (88, 192, 1, 1): "1x1x1 2x1x1",
    (112, 192, 1, 1): "2x2x1",
    (96, 256, 1, 1): "1x1x1",
}
"""Tiles of M, N and lines of 128 bytes along K with blocks a multiprocessor, and their clusters. A and B are
exchanged: for few rows, and for numbers of rows that multiples of 64 do not fit."""

_STRAIGHT = {
    (64, 16, 2, 1): "1x1x1 1x1x4",
    (64, 32, 2, 1): "1x1x1 1x1x4",
    (64, 64, 1, 2): "1x1x1 1x1x4",
    (64, 72, 1, 1): "1x1x4",
    (64, 80, 1, 1): "1x1x1",
    (64, 96, 1, 1): "1x1x1 2x1x1 2x1x4 2x2x2 2x4x1 4x1x2",
    (64, 112, 1, 1): "1x1x1 4x1x2",
    (64, 128, 1, 1): "4x1x1",
    (64, 144, 1, 1): "1x1x1 4x1x1",
    (64, 160, 1, 1): "2x4x1 4x1x1 4x1x2",
    (64, 176, 1, 1): "4x1x1",
    (64, 192, 1, 1): "4x1x2",
    (64, 208, 1, 1): "4x1x1",
    (64, 224, 1, 1): "1x1x1 2x4x1",
    (128, 64, 1, 1): "1x4x2",
    (128, 80, 1, 1): "1x1x1 1x4x2",
    (128, 96, 1, 1): "1x4x1",
    (128, 200, 1, 1): "1x2x1",
    (192, 128, 1, 1): "1x2x1",
    (256, 136, 1, 1): "1x2x1",
}
"""The same without an exchange: widths that leave few of 132 multiprocessors without a tile."""

_EXCHANGED_PERSISTENT = {
    (136, 128, 1, 1): "1x1x1",
    (144, 128, 1, 1): "1x1x1",
    (160, 128, 1, 1): "1x1x1",
    (176, 128, 1, 1): "1x1x1",
    (224, 128, 1, 1): "1x2x1",
    (96, 192, 1, 1): "2x1x1",
    (136, 192, 1, 1): "1x1x1",
    (152, 192, 1, 1): "1x1x1 2x1x1",
    (176, 192, 1, 1): "1x2x1",
    (184, 192, 1, 1): "1x2x1",
    (136, 256, 1, 1): "1x1x1",
    (160, 256, 1, 1): "1x2x1",
    (192, 256, 1, 1): "1x1x1",
}
"""The same for persistent kernels with an exchange."""

_PERSISTENT = {
    (128, 144, 1, 1): "1x1x1",
    (128, 160, 1, 1): "1x1x1 2x1x1",
    (128, 176, 1, 1): "1x1x1",
    (128, 192, 1, 1): "1x1x1",
    (128, 224, 1, 1): "2x1x1",
    (192, 112, 1, 1): "1x1x1",
    (192, 144, 1, 1): "1x2x1",
    (192, 192, 1, 1): "1x2x1",
}
"""The same for persistent kernels without one: for many tiles with a short sum."""


def _designs(input_bits: int) -> Iterator[_Design]:
    line = LINE_BYTES * 8 // input_bits
    for table, swap, persistent in (
        (_EXCHANGED, True, False),
        (_STRAIGHT, False, False),
        (_EXCHANGED_PERSISTENT, True, True),
        (_PERSISTENT, False, True),
    ):
        for (m, n, lines, blocks), clusters in table.items():
            for cluster in clusters.split():
                yield _Design((m, n, lines * line), _shape(cluster), blocks, swap, persistent)


def _shape(text: str) -> tuple[int, int, int]:
    m, n, k = map(int, text.split("x"))
    return m, n, k


class Sm90Gemm:
    """Generator of GEMMs for sm_90a: bf16, f16 or FP8 operands, summed in f32, with an epilogue."""

    name = "sm90_gemm"
    version = "1"
    operations = ("gemm",)
    modules = (
        "cutlass_aot.generators.dsl",
        "cutlass_aot.generators.epilogue_functions",
        "cutlass_aot.generators.gemm",
        "cutlass_aot.generators.sm90_gemm.generator",
        "cutlass_aot.generators.sm90_gemm.epilogue",
        "cutlass_aot.generators.sm90_gemm.kernel",
        "cutlass_aot.generators.sm90_gemm.plan",
        "cutlass_aot.schema.kernels.epilogue",
        "cutlass_aot.schema.kernels.formula",
    )
    design: Mapping[str, str] = {
        "family": f"always {FAMILY}",
        "tile_shape": "rows, columns and depth of a block's tile of the output",
        "cluster_shape": "blocks of a cluster along M and N, that share operands, and K, that share a sum",
        "blocks_per_sm": "blocks that one multiprocessor has room for",
        "persistent": "whether a block computes tile after tile, for many tiles with a short sum",
        "swap_operands": "whether columns of the output run along the tensor core's rows: for few rows",
    }

    def targets(self, operation: str) -> tuple[str, ...]:
        """sm_90a; none for an operation other than ``gemm``."""
        return (TARGET,) if operation in self.operations else ()

    def enumerate(self, problem: Problem, target: str, device: DeviceProfile) -> Iterable[Kernel]:
        """Every design that the operands allow; none for operands of other element types or layouts."""
        for design in _offered(problem, target):
            yield _kernel(problem, design, design.constants(device))

    def compile(self, kernel: Kernel) -> CompiledFunction:
        """Compile one kernel."""
        # Imported here, in a worker: the command line imports this module without the DSL.
        from cutlass_aot.generators import dsl
        from cutlass_aot.generators.sm90_gemm.kernel import gemm

        # Compiled-in values precede the epilogue's operands, of which there can be any number.
        a, b, out, *others = dsl.fake_operands(kernel)
        compiled_in = epilogue_of(kernel), plan_of(kernel)
        return dsl.compile_for(
            kernel.target, gemm, a, b, out, *compiled_in, *others, dsl.environment_stream()
        )


def plan_of(kernel: Kernel) -> Plan:
    """The plan of a kernel, from its design."""
    problem = problem_of_kernel(kernel, epilogue_of(kernel))
    bits, output_bits = DTYPES[problem.dtypes[0]].bits, DTYPES[problem.dtypes[-1]].bits
    for design in _offered(problem, kernel.target):
        if _kernel(problem, design, dict(kernel.constants)) == kernel:
            return design.plan(bits, output_bits, bool(kernel.epilogue), sum(dict(kernel.constants).values()))
    raise GeneratorError(
        f"{Sm90Gemm.name} has no kernel {kernel.name}: expected a record of its enumerate(); plan again"
    )


def epilogue_of(kernel: Kernel) -> Epilogue | None:
    """The epilogue of a kernel, from its text and its operands."""
    if not kernel.epilogue:
        return None
    operands = (
        EpilogueOperand(operand.name, operand.dtype, operand.extents, written=operand.written)
        for operand in kernel.operands[len(EXTENTS) :]
    )
    return Epilogue(kernel.epilogue, tuple(operands))


def _epilogue_constraint(operand: EpilogueOperand) -> OperandConstraint:
    matrix, number = operand.extents == MATRIX, operand.extents == NUMBER
    bytes_ = DTYPES[operand.dtype].bytes
    in_vectors = matrix or (operand.extents in (ROW, COLUMN) and not operand.written)
    return OperandConstraint(
        name=operand.name,
        dtype=operand.dtype,
        extents=operand.extents,
        contiguous=0 if number else -1,
        divisibility=_ALIGNMENT // bytes_ if matrix else 1,
        alignment=_ALIGNMENT if in_vectors else bytes_,
        written=operand.written,
    )


def _fusible(epilogue: Epilogue) -> bool:
    """Whether the kernel can compute an epilogue: matrices row-major, and no transports to choose from."""
    return all(operand.layout in ("", "t") and not operand.transport for operand in epilogue.operands)


def _offered(problem: Problem, target: str) -> Iterator[_Design]:
    if problem.operation != "gemm" or len(problem.dtypes) != len(EXTENTS) or target != TARGET:
        return
    a, b, out = problem.dtypes
    outputs = INPUTS.get(a, ()) if problem.epilogue is None else FUSED_OUTPUTS
    if a not in INPUTS or b != a or out not in outputs or problem.accumulator != "f32":
        return
    bits = DTYPES[a].bits
    # Tensor cores take 8-bit operands with their elements contiguous along K alone.
    if problem.layouts not in (LAYOUTS if bits == 16 else LAYOUTS[:1]) or problem.scales != (None, None):
        return
    if problem.epilogue is not None and not _fusible(problem.epilogue):
        return
    wide = DTYPES[out].bits == 32 or problem.epilogue is not None
    for design in _designs(bits):
        # If columns of B are contiguous, the part of a tile that each block of a cluster loads has to consist
        # of whole swizzled lines of them.
        if problem.layouts[1] != "n" and design.tile[1] % (32 * design.cluster[0]):
            continue
        if wide and design.spills_wide:
            continue
        yield design


def _kernel(problem: Problem, design: _Design, constants: Mapping[str, int]) -> Kernel:
    epilogue = problem.epilogue
    return Kernel.make(
        operation=problem.operation,
        generator=Sm90Gemm.name,
        operands=(
            *constraints(problem, _ALIGNMENT),
            *(map(_epilogue_constraint, epilogue.operands) if epilogue else ()),
        ),
        accumulator=problem.accumulator,
        epilogue="" if epilogue is None else epilogue.formula,
        design=design.values(),
        target=TARGET,
        constants=constants,
    )
