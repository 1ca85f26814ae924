"""The built-in SM90 GEMM: which kernels it has.

The kernel is in ``kernel.py`` beside it, its page is docs/reference/sm90-gemm.md. This module imports no DSL.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from cutlass_aot.errors import GeneratorError
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import (
    CONTIGUOUS_MODES,
    EXTENTS,
    GROUPED_EXTENTS,
    GROUPED_GEMM,
    MASKED_GROUPED_GEMM,
    accumulation_of,
    constraints,
    group_constraints,
    has_fast_sums,
    problem_of_kernel,
    scale_constraints,
    scales_of,
)
from cutlass_aot.generators.protocol import CompiledFunction, Problem, ScaleRequest
from cutlass_aot.generators.sm90_gemm.costs import cost_of
from cutlass_aot.generators.sm90_gemm.plan import (
    LINE_BYTES,
    ROWS,
    SCALED_BLOCK,
    THREADS,
    Plan,
    make_plan,
)
from cutlass_aot.schema.kernels.accumulation import EXACT
from cutlass_aot.schema.kernels.constraints import BATCH, OperandConstraint
from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import (
    BLOCKS,
    COLUMN,
    MATRIX,
    NUMBER,
    ROW,
    STORED_DTYPES,
    Epilogue,
    EpilogueOperand,
)
from cutlass_aot.schema.kernels.epilogue import EXTENTS as EPILOGUE_EXTENTS
from cutlass_aot.schema.kernels.kernel import Kernel

FAMILY = "Sm90ClusterGemm"
SCALED_FAMILY = "Sm90BlockScaledGemm"
EXACT_FAMILY = "Sm90ExactGemm"
_FAMILIES = {
    (False, False, False, False): FAMILY,
    (False, False, False, True): "Sm90PingPongGemm",
    (True, False, False, False): SCALED_FAMILY,
    (False, True, False, False): EXACT_FAMILY,
    (False, False, True, False): "Sm90GroupedGemm",
    (False, False, True, True): "Sm90GroupedPingPongGemm",
    (True, False, True, False): "Sm90GroupedBlockScaledGemm",
    (False, True, True, False): "Sm90GroupedExactGemm",
}
"""Families by whether there are scale factors, exact sums of FP8 without factors, groups, and two warp groups
that take turns."""
TARGET = "sm_90a"
INPUTS = {
    "bf16": ("bf16", "f32"),
    "f16": ("f16", "f32"),
    "f8e4m3": ("bf16", "f16", "f32"),
}
"""Element types of A and B, each with those of the output."""
FUSED_OUTPUTS = tuple(dtype for dtype in STORED_DTYPES if dtype != "bool")
"""Element types of the output after an epilogue, whatever A and B are."""
LAYOUTS = ("tnt", "ttt")
SCALES = (ScaleRequest("f32", SCALED_BLOCK), ScaleRequest("f32", SCALED_BLOCK, across=SCALED_BLOCK))
"""Scale factors of FP8 operands: A has one for each row and 128 of K, B one for 128 columns and 128 of K."""

_ALIGNMENT = 16
"""Bytes; what TMA demands of addresses and strides. Source: CUDA driver API, cuTensorMapEncodeTiled."""


_FACTOR_BYTES = 4
"""Bytes; a scale factor is loaded alone, so that there can be any number of rows."""


class _Kind(NamedTuple):
    """What the designs of a table have in common, see :class:`_Design`."""

    swap: bool = False
    persistent: bool = False
    ping_pong: bool = False


@dataclass(frozen=True, slots=True)
class _Design:
    """One design. Extents are those of the output, also if A and B exchange their roles."""

    tile: tuple[int, int, int]
    cluster: tuple[int, int, int]
    blocks: int
    kind: _Kind
    scaled: bool = False
    exact: bool = False
    operation: str = "gemm"

    def values(self) -> dict[str, DesignValue]:
        return {
            "family": _FAMILIES[self.scaled, self.exact, self.groups, self.kind.ping_pong],
            "tile_shape": self.tile,
            "cluster_shape": self.cluster,
            "blocks_per_sm": self.blocks,
            "swap_operands": self.kind.swap,
            "persistent": self.kind.persistent,
        }

    @property
    def groups(self) -> bool:
        """Whether rows of A are of groups."""
        return self.operation in GROUPED_EXTENTS

    @property
    def promoted(self) -> bool:
        """Whether registers add up the sums of each 128 of K."""
        return self.scaled or self.exact

    @property
    def warp_groups(self) -> int:
        """Warp groups that compute: three if they can share the rows equally, else one or two."""
        rows = self.tile[1] if self.kind.swap else self.tile[0]
        if self.kind.ping_pong or (self.promoted and self.blocks == 2):
            return 1
        return 3 if rows % (3 * ROWS) == 0 else min(2, rows // ROWS)

    @property
    def spills_wide(self) -> bool:
        """Whether results that stay f32 take more registers than the sums leave."""
        totals = self.tile[0] * self.tile[1] // (self.warp_groups * THREADS)
        return totals > (80 if self.warp_groups == 3 else 128)

    def constants(self, device: DeviceProfile) -> dict[str, int]:
        """Numbers of the device profile that are compiled in: the bounds of a persistent kernel's grid."""
        if not self.kind.persistent:
            return {}
        size = math.prod(self.cluster)
        return {f"max_active_clusters_{size}": device.active_clusters(size)}

    def has_blocks(self, columns: int) -> bool:
        """Whether threads of one warp hold each block of so many columns of a row, from which they store."""
        return not self.kind.swap and self.cluster[2] == 1 and self.tile[1] % columns == 0

    def plan(self, input_bits: int, output_bits: int, epilogue: Epilogue | None, active: int) -> Plan:
        tile, cluster = self.tile, self.cluster
        if self.kind.swap:
            tile, cluster = (tile[1], tile[0], tile[2]), (cluster[1], cluster[0], cluster[2])
        return make_plan(
            tile=tile,
            cluster=cluster,
            warp_groups=self.warp_groups,
            blocks=self.blocks,
            swap=self.kind.swap,
            active=active,
            input_bits=input_bits,
            output_bits=output_bits,
            fused=epilogue is not None,
            scaled=self.scaled,
            exact=self.exact,
            operation=self.operation,
            scale_columns=columns_of_block(epilogue),
            ping_pong=self.kind.ping_pong,
        )


_EXCHANGED = {
    (8, 64, 2, 2): "1x1x1 1x1x2 1x1x4 1x1x8",
    (16, 64, 2, 1): "1x1x1",
    (16, 64, 2, 2): "1x1x4 1x1x8",
    (24, 64, 1, 2): "1x1x1",
    (32, 64, 2, 1): "1x1x1",
    (32, 64, 1, 2): "1x1x8",
    (48, 64, 1, 1): "2x1x1",
    (56, 64, 1, 1): "1x1x1",
    (64, 64, 1, 1): "1x4x1",
    (72, 64, 1, 1): "1x4x2 2x1x2",
    (80, 64, 1, 1): "1x4x1 2x1x1",
    (88, 64, 1, 1): "1x1x1 1x1x8 1x4x2",
    (104, 64, 1, 1): "1x1x4 1x4x1",
    (120, 64, 1, 1): "1x1x1 1x4x1",
    (136, 64, 1, 1): "1x2x4 1x4x1 1x4x2",
    (144, 64, 1, 1): "1x4x1",
    (216, 64, 1, 1): "1x4x1",
    (8, 128, 1, 1): "1x4x1",
    (16, 128, 1, 1): "1x4x1",
    (16, 128, 1, 2): "1x1x1",
    (32, 128, 1, 2): "1x1x1",
    (80, 128, 1, 1): "1x1x1 2x1x1 2x4x1 4x2x1",
    (88, 128, 1, 1): "1x1x1 1x4x1",
    (104, 128, 1, 1): "2x4x1",
    (112, 128, 1, 1): "1x1x1 1x4x1",
    (128, 128, 1, 1): "1x1x1",
    (184, 128, 1, 1): "1x2x1",
    (200, 128, 1, 1): "1x2x1",
    (16, 192, 1, 1): "1x1x1",
    (40, 192, 1, 1): "1x1x1",
    (72, 192, 1, 1): "1x1x1",
    (80, 192, 1, 1): "4x1x1",
    (88, 192, 1, 1): "1x1x1 2x1x1",
    (112, 192, 1, 1): "2x1x1 2x2x1",
    (152, 192, 1, 1): "2x1x1",
    (160, 192, 1, 1): "1x1x1 1x4x1",
    (96, 256, 1, 1): "1x1x1",
}
"""Tiles of M, N and lines of 128 bytes along K with blocks a multiprocessor, and their clusters. A and B are
exchanged: for few rows, and for numbers of rows that multiples of 64 do not fit."""

_STRAIGHT = {
    (64, 16, 2, 1): "1x1x1 1x1x4",
    (64, 32, 2, 1): "1x1x1 1x1x4",
    (64, 32, 1, 2): "1x1x1",
    (64, 64, 1, 2): "1x1x1 1x1x4 1x1x8 2x1x2",
    (64, 72, 1, 1): "1x2x2",
    (64, 80, 1, 1): "1x1x1",
    (64, 96, 1, 1): "1x1x1 1x2x2 2x1x4 2x2x2 2x4x1 4x1x2",
    (64, 112, 1, 1): "1x1x1 4x1x2",
    (64, 144, 1, 1): "1x1x1 4x1x1",
    (64, 160, 1, 1): "1x1x1 2x4x1",
    (64, 176, 1, 1): "1x4x1",
    (64, 192, 1, 1): "4x1x2",
    (64, 224, 1, 1): "1x1x1",
    (128, 80, 1, 1): "1x1x1 1x4x2",
    (128, 96, 1, 1): "1x4x1 4x2x1",
    (256, 136, 1, 1): "1x2x1",
}
"""The same without an exchange: widths that leave few of 132 multiprocessors without a tile, clusters whose
blocks share both operands, for about one wave of tiles, and clusters that share sums, for few tiles."""

_EXCHANGED_PERSISTENT = {
    (176, 128, 1, 1): "1x1x1 1x4x1",
    (224, 128, 1, 1): "1x2x1",
    (184, 192, 1, 1): "1x2x1",
    (200, 192, 1, 1): "1x1x1",
    (104, 256, 1, 1): "2x1x1",
    (144, 256, 1, 1): "2x1x1",
    (160, 256, 1, 1): "1x2x1",
}
"""The same for persistent kernels with an exchange."""

_PERSISTENT = {
    (128, 144, 1, 1): "1x1x1 2x1x1",
    (128, 160, 1, 1): "1x1x1 2x1x1",
    (128, 176, 1, 1): "1x1x1",
    (128, 192, 1, 1): "1x1x1",
    (128, 208, 1, 1): "2x1x1",
    (128, 224, 1, 1): "2x1x1",
    (192, 112, 1, 1): "1x1x1",
    (192, 144, 1, 1): "1x2x1",
    (192, 160, 1, 1): "1x2x1",
}
"""The same for persistent kernels without one: for many tiles with a short sum."""

_SCALED_EXCHANGED = {
    (8, 64, 1, 3): "1x1x1 1x1x4",
    (16, 64, 1, 3): "1x1x1 1x1x4",
    (32, 64, 1, 2): "1x1x1",
}
"""The same with an exchange, where registers add up the sums of each 128 of K: with factors, or exact."""

_SCALED = {
    (64, 32, 1, 1): "1x1x1",
    (64, 48, 1, 1): "1x1x1",
    (64, 64, 1, 1): "1x1x1",
    (64, 64, 1, 2): "1x1x1",
    (64, 96, 1, 1): "1x1x1",
    (64, 192, 1, 2): "1x1x1",
    (128, 96, 1, 1): "1x1x1",
    (128, 128, 1, 1): "1x1x1",
}
"""The same without an exchange."""

_SCALED_PERSISTENT = {
    (64, 96, 1, 1): "1x1x1",
    (64, 128, 1, 1): "1x1x1",
    (128, 160, 1, 1): "1x1x1",
    (128, 192, 1, 1): "1x1x1",
    (192, 128, 1, 1): "1x1x1",
    (256, 128, 1, 1): "1x1x1",
}
"""The same for many tiles."""

_GROUPED_EXCHANGED = {
    (16, 128, 1, 1): "1x1x1",
    (32, 128, 1, 1): "1x1x1",
    (96, 256, 1, 1): "1x1x1",
    (136, 256, 1, 1): "1x1x1",
    (152, 256, 1, 1): "1x1x1",
}
"""The same for groups: for few rows, and for some 1,000, where multiples of 128 leave the last
wave nearly empty."""

_GROUPED = {
    (128, 128, 1, 1): "1x1x1",
    (128, 192, 1, 1): "1x1x1",
    (128, 256, 1, 1): "1x1x1",
}
"""The same for groups."""

_SCALED_GROUPED_EXCHANGED = {
    (16, 128, 1, 1): "1x1x1",
}
"""The same for groups of few rows where registers add up sums."""

_SCALED_GROUPED = {
    (64, 64, 1, 1): "1x1x1",
    (64, 96, 1, 1): "1x1x1",
    (64, 128, 1, 1): "1x1x1",
    (128, 128, 1, 1): "1x1x1",
    (128, 160, 1, 1): "1x1x1",
    (128, 192, 1, 1): "1x1x1",
    (192, 128, 1, 1): "1x1x1 1x2x1",
}
"""The same for groups."""

_IN_BLOCKS = {
    (64, 128, 1, 1): "1x1x1",
    (64, 256, 1, 1): "1x1x1",
    (128, 128, 1, 1): "1x1x1",
}
"""Further tiles for epilogues with values of blocks of columns, of which a tile has whole ones."""

_IN_BLOCKS_PERSISTENT = {
    (128, 128, 1, 1): "1x1x1",
    (128, 256, 1, 1): "1x1x1",
}
"""The same for many tiles."""

_EXCHANGED_PING_PONG = {
    (104, 128, 1, 1): "1x1x1",
    (112, 128, 1, 1): "1x1x1",
    (120, 128, 1, 1): "1x1x1",
    (136, 128, 1, 1): "1x1x1 1x2x1",
    (144, 128, 1, 1): "1x1x1",
    (152, 128, 1, 1): "1x1x1 1x2x1",
}
"""The same for many tiles with an exchange and a short sum, where two warp groups take turns."""

_PING_PONG = {
    (64, 128, 1, 1): "1x1x1 1x4x1",
    (64, 256, 1, 1): "1x1x1",
    (128, 96, 1, 1): "1x1x1 2x4x1",
    (128, 128, 1, 1): "1x1x1",
    (128, 160, 1, 1): "1x1x1",
}
"""The same without an exchange: for a short sum, or an epilogue that takes long."""

_GROUPED_PING_PONG = {
    (64, 128, 1, 1): "1x1x1",
    (64, 192, 1, 1): "1x1x1",
    (64, 256, 1, 1): "1x1x1",
    (128, 160, 1, 1): "1x1x1",
}
"""The same for groups."""

_Table = dict[tuple[int, int, int, int], str]
_TABLES: dict[tuple[bool, bool], tuple[tuple[_Table, _Kind], ...]] = {
    (False, False): (
        (_EXCHANGED, _Kind(swap=True)),
        (_STRAIGHT, _Kind()),
        (_EXCHANGED_PERSISTENT, _Kind(swap=True, persistent=True)),
        (_PERSISTENT, _Kind(persistent=True)),
        (_EXCHANGED_PING_PONG, _Kind(swap=True, persistent=True, ping_pong=True)),
        (_PING_PONG, _Kind(persistent=True, ping_pong=True)),
    ),
    (True, False): (
        (_SCALED_EXCHANGED, _Kind(swap=True)),
        (_SCALED, _Kind()),
        (_SCALED_PERSISTENT, _Kind(persistent=True)),
    ),
    (False, True): (
        (_GROUPED_EXCHANGED, _Kind(swap=True, persistent=True)),
        (_GROUPED, _Kind(persistent=True)),
        (_GROUPED_PING_PONG, _Kind(persistent=True, ping_pong=True)),
    ),
    (True, True): (
        (_SCALED_GROUPED_EXCHANGED, _Kind(swap=True, persistent=True)),
        (_SCALED_GROUPED, _Kind(persistent=True)),
    ),
}
"""By whether registers add up the sums of each 128 of K, and groups."""


def _designs(
    input_bits: int, scaled: bool, exact: bool, operation: str, in_blocks: bool
) -> Iterator[_Design]:
    line = LINE_BYTES * 8 // input_bits
    promoted, groups = scaled or exact, operation in GROUPED_EXTENTS
    tables = _TABLES[promoted, groups]
    if in_blocks and not (promoted or groups):
        tables += (_IN_BLOCKS, _Kind()), (_IN_BLOCKS_PERSISTENT, _Kind(persistent=True))
    for table, kind in tables:
        for (m, n, lines, blocks), clusters in table.items():
            for cluster in clusters.split():
                tile = m, n, lines * line
                yield _Design(tile, _shape(cluster), blocks, kind, scaled, exact, operation)


def _shape(text: str) -> tuple[int, int, int]:
    m, n, k = map(int, text.split("x"))
    return m, n, k


class Sm90Gemm:
    """Generator of GEMMs for sm_90a: bf16, f16 or FP8 operands, summed in f32, with an epilogue."""

    name = "sm90_gemm"
    version = "1"
    operations = ("gemm", GROUPED_GEMM, MASKED_GROUPED_GEMM)
    modules = (
        "cutlass_aot.generators.dsl",
        "cutlass_aot.generators.epilogue_functions",
        "cutlass_aot.generators.gemm",
        "cutlass_aot.generators.sm90_gemm.blocks",
        "cutlass_aot.generators.sm90_gemm.consumer",
        "cutlass_aot.generators.sm90_gemm.conversions",
        "cutlass_aot.generators.sm90_gemm.costs",
        "cutlass_aot.generators.sm90_gemm.epilogue",
        "cutlass_aot.generators.sm90_gemm.generator",
        "cutlass_aot.generators.sm90_gemm.groups",
        "cutlass_aot.generators.sm90_gemm.kernel",
        "cutlass_aot.generators.sm90_gemm.launch",
        "cutlass_aot.generators.sm90_gemm.mainloop",
        "cutlass_aot.generators.sm90_gemm.plan",
        "cutlass_aot.generators.sm90_gemm.producer",
        "cutlass_aot.generators.sm90_gemm.register_store",
        "cutlass_aot.generators.sm90_gemm.registers",
        "cutlass_aot.generators.sm90_gemm.ring",
        "cutlass_aot.generators.sm90_gemm.scale_factors",
        "cutlass_aot.generators.sm90_gemm.scaled_mainloop",
        "cutlass_aot.generators.sm90_gemm.schedule",
        "cutlass_aot.generators.sm90_gemm.staged_store",
        "cutlass_aot.generators.sm90_gemm.statements",
        "cutlass_aot.generators.sm90_gemm.tiles",
        "cutlass_aot.generators.sm90_gemm.tma",
        "cutlass_aot.generators.sm90_gemm.tma_store",
        "cutlass_aot.generators.sm90_gemm.turns",
        "cutlass_aot.schema.kernels.epilogue",
        "cutlass_aot.schema.kernels.formula",
    )
    design: Mapping[str, str] = {
        "family": f"{FAMILY}, or {_FAMILIES[False, False, False, True]} where two warp groups take turns; "
        f"with scale factors, exact sums of FP8, or groups: {', '.join([*_FAMILIES.values()][2:])}",
        "tile_shape": "rows, columns and depth of a block's tile of the output",
        "cluster_shape": "blocks of a cluster along M and N, that share operands, and K, that share a sum",
        "blocks_per_sm": "blocks that one multiprocessor has room for",
        "persistent": "whether a block computes tile after tile, for many tiles with a short sum",
        "swap_operands": "whether columns of the output run along the tensor core's rows: for few rows",
    }

    def targets(self, operation: str) -> tuple[str, ...]:
        """sm_90a; none for an operation that it has not."""
        return (TARGET,) if operation in self.operations else ()

    def enumerate(self, problem: Problem, target: str, device: DeviceProfile) -> Iterable[Kernel]:
        """Every design that the operands allow; none for operands of other element types or layouts."""
        for design in _offered(problem, target):
            yield _kernel(problem, design, design.constants(device))

    def compile(self, kernel: Kernel) -> CompiledFunction:
        """Compile one kernel."""
        # Imported here, in a worker: the command line imports this module without the DSL.
        from cutlass_aot.generators import dsl
        from cutlass_aot.generators.sm90_gemm.launch import gemm

        # Compiled-in values precede the epilogue's operands, of which there can be any number.
        a, b, out, *others = dsl.fake_operands(kernel)
        compiled_in = epilogue_of(kernel), plan_of(kernel)
        return dsl.compile_for(
            kernel.target, gemm, a, b, out, *compiled_in, *others, dsl.environment_stream()
        )


def plan_of(kernel: Kernel) -> Plan:
    """The plan of a kernel, from its design."""
    epilogue = epilogue_of(kernel)
    problem = problem_of_kernel(kernel, epilogue)
    bits, output_bits = DTYPES[problem.dtypes[0]].bits, DTYPES[problem.dtypes[-1]].bits
    for design in _offered(problem, kernel.target):
        if _kernel(problem, design, dict(kernel.constants)) == kernel:
            active = sum(dict(kernel.constants).values()) * design.blocks
            return design.plan(bits, output_bits, epilogue, active)
    raise GeneratorError(
        f"{Sm90Gemm.name} has no kernel {kernel.name}: expected a record of its enumerate(); plan again"
    )


def epilogue_of(kernel: Kernel) -> Epilogue | None:
    """The epilogue of a kernel, from its text and its operands."""
    if not kernel.epilogue:
        return None
    first = len(EXTENTS) + len(scales_of(kernel))
    halves = kernel.operands[len(EXTENTS) - 1].extents[-1] == _HALF
    operands = (
        EpilogueOperand(
            operand.name,
            operand.dtype,
            _IN_EPILOGUE[kernel.operation, halves, operand.extents],
            # Everything else is row-major, as the output is.
            layout=operand.layout if operand.layout == "n" else "",
            written=operand.written,
        )
        for operand in kernel.operands[
            first : len(kernel.operands) - len(group_constraints(kernel.operation))
        ]
    )
    return Epilogue(kernel.epilogue, tuple(operands))


def columns_of_block(epilogue: Epilogue | None) -> int:
    """Columns of the sums of which an epilogue stores a value for each block; 1 if it does not."""
    if epilogue is None or epilogue.block == 1:
        return 1
    return epilogue.block * (2 if epilogue.halves else 1)


def in_call(extents: tuple[str | int, ...], operation: str, halves: bool) -> tuple[str | int, ...]:
    """Extents of an operand of an epilogue as they are in a call.

    Matrices of a GEMM of groups are as its output is. N are the columns of the sums.
    """
    block = BLOCKS.get(extents, 1)
    if halves and block > 1:
        extents = (*extents[:-1], f"N / {2 * block}")
    batch = GROUPED_EXTENTS.get(operation, EXTENTS)["out"][:-2]
    return (*batch, *extents[1:]) if extents[:1] == (BATCH,) else extents


_IN_EPILOGUE = {
    (operation, halves, in_call(extents, operation, halves)): extents
    for operation in (*GROUPED_EXTENTS, "gemm")
    for halves in (False, True)
    for extents in EPILOGUE_EXTENTS.values()
}
"""Extents of operands of an epilogue by the operation, whether the output has half the columns, and the
extents of a call."""

_HALF = "N / 2"
"""Columns of an output that has half as many as there are sums."""


def _epilogue_constraint(operand: EpilogueOperand, operation: str, halves: bool) -> OperandConstraint:
    matrix = operand.extents == MATRIX
    bits = DTYPES[operand.dtype].bits
    in_vectors = matrix or (operand.extents in (ROW, COLUMN) and not operand.written)
    return OperandConstraint(
        name=operand.name,
        dtype=operand.dtype,
        extents=in_call(operand.extents, operation, halves),
        contiguous=0 if operand.extents == NUMBER else CONTIGUOUS_MODES[operand.layout or "t"],
        divisibility=_ALIGNMENT * 8 // bits if matrix else 1,
        alignment=_ALIGNMENT if in_vectors else bits // 8,
        written=operand.written,
    )


def _fusible(epilogue: Epilogue) -> bool:
    """Whether the kernel can compute an epilogue: matrices row-major, and no transports to choose from.

    Values of blocks of columns are in either order.
    """
    return all(
        (operand.layout in ("", "t") or operand.block > 1) and not operand.transport
        for operand in epilogue.operands
    )


def _offered(problem: Problem, target: str) -> Iterator[_Design]:
    if (
        problem.operation not in Sm90Gemm.operations
        or len(problem.dtypes) != len(EXTENTS)
        or target != TARGET
    ):
        return
    a, b, out = problem.dtypes
    outputs = INPUTS.get(a, ()) if problem.epilogue is None else FUSED_OUTPUTS
    if a not in INPUTS or b != a or out not in outputs or problem.accumulator != "f32":
        return
    bits = DTYPES[a].bits
    # Tensor cores take 8-bit operands with their elements contiguous along K alone.
    if problem.layouts not in (LAYOUTS if bits == 16 else LAYOUTS[:1]):
        return
    scaled = problem.scales != (None, None)
    plain = problem.epilogue is None
    if scaled and (problem.scales != SCALES or bits != 8 or (plain and out == "f16")):
        return
    exact = not scaled and problem.accumulation == EXACT and has_fast_sums(problem, target)
    groups = problem.operation in GROUPED_EXTENTS
    if problem.epilogue is not None and not _fusible(problem.epilogue):
        return
    fast = bits == 8 and not (scaled or exact)
    if groups and (problem.layouts != LAYOUTS[0] or fast or (plain and DTYPES[out].bits != 16)):
        return
    wide = DTYPES[out].bits == 32 or problem.epilogue is not None
    block = columns_of_block(problem.epilogue)
    for design in _designs(bits, scaled, exact, problem.operation, block > 1):
        # If columns of B are contiguous, the part of a tile that each block of a cluster loads has to consist
        # of whole swizzled lines of them.
        if problem.layouts[1] != "n" and design.tile[1] % (32 * design.cluster[0]):
            continue
        # With an exchange, wide results go through shared memory, where all warps of a block meet.
        if wide and (design.spills_wide or (design.kind.ping_pong and design.kind.swap)):
            continue
        if block > 1 and not design.has_blocks(block):
            continue
        yield design


@lru_cache(maxsize=16)
def _operands(problem: Problem) -> tuple[OperandConstraint, ...]:
    """Those that all designs have."""
    return tuple(_each_operand(problem))


def _each_operand(problem: Problem) -> Iterator[OperandConstraint]:
    halves = problem.epilogue is not None and problem.epilogue.halves
    for operand in constraints(problem, _ALIGNMENT):
        if halves and operand.written:
            yield operand._replace(extents=(*operand.extents[:-1], _HALF))
        elif halves and operand.extents[-1] == "N":
            # Of an odd number, the quotient would be of a pair that is not there.
            yield operand._replace(multiples=(*(1 for _ in operand.extents[:-1]), 2))
        else:
            yield operand
    own = scale_constraints(problem, _FACTOR_BYTES), group_constraints(problem.operation)
    names = {operand.name for operands in own for operand in operands}
    yield from own[0]
    for given in problem.epilogue.operands if problem.epilogue else ():
        if given.name in names:
            raise GeneratorError(
                f"the epilogue has an operand {given.name!r}, and {problem.operation} has one of its own: "
                f"expected a name other than {' and '.join(sorted(names))}"
            )
        yield _epilogue_constraint(given, problem.operation, halves)
    yield from own[1]


def _kernel(problem: Problem, design: _Design, constants: Mapping[str, int]) -> Kernel:
    epilogue = problem.epilogue
    return Kernel.make(
        operation=problem.operation,
        generator=Sm90Gemm.name,
        operands=_operands(problem),
        accumulator=problem.accumulator,
        epilogue="" if epilogue is None else epilogue.formula,
        design=design.values(),
        target=TARGET,
        constants=constants,
        accumulation=accumulation_of(problem, TARGET),
        cost=cost_of(problem.operation, DTYPES[problem.dtypes[0]].bits)
        if design.promoted or design.groups
        else "",
    )
