"""A kernel that stores sums from memory as the GEMM for Hopper stores those of its tensor cores."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot import Operand, kernel
from cutlass_aot.generators.sm90_gemm.epilogue import Output
from cutlass_aot.generators.sm90_gemm.generator import in_call
from cutlass_aot.generators.sm90_gemm.launch import with_columns
from cutlass_aot.generators.sm90_gemm.plan import ROWS, THREADS, WARP, WARPS
from cutlass_aot.generators.sm90_gemm.register_store import store_sums
from cutlass_aot.generators.sm90_gemm.tiles import Tile, block_of, corner_of
from cutlass_aot.schema.kernels.dtypes import DTYPES
from tests.support.block_cases import CASES, epilogue_of, plan_of

ELSEWHERE = 1e30
"""A sum of a row or a column that there is not, which must not count."""


@cute.kernel
def store_tiles(sums: cute.Tensor, out: cute.Tensor, operands: Any, case: cutlass.Constexpr) -> None:
    # The DSL makes the kernel's name of what is compiled in, where a formula's text would not do.
    epilogue, plan = epilogue_of(case), plan_of(case)
    row, column, batch = cute.arch.block_idx()
    block = block_of(plan)
    _, rows, columns = out.shape
    tile = Tile(row, column, batch, batch, None, rows)
    corner = corner_of(tile, block, (rows, columns), plan)
    thread = block.thread
    total = cute.make_rmem_tensor(plan.totals, cutlass.Float32)
    own_row = thread // THREADS * ROWS + thread % THREADS // WARP * (ROWS // WARPS) + thread % WARP // 4
    own_column = thread % 4 * 2
    for index in cutlass.range_constexpr(plan.totals):
        # Two neighbours of each eight columns, in two rows.
        at_row = cutlass.Int32(corner.row) + own_row + index // 2 % 2 * 8
        at_column = cutlass.Int32(corner.column) + own_column + index // 4 * 8 + index % 2
        total[index] = cutlass.Float32(ELSEWHERE)
        if (at_row < rows) & (at_column < columns):
            total[index] = sums[batch, at_row, at_column]
    store_sums(total, thread, tile, corner, Output(out, operands, epilogue), plan)


@cute.jit
def launch(
    sums: cute.Tensor,
    out: cute.Tensor,
    bias: cute.Tensor,
    scale: cute.Tensor,
    case: cutlass.Constexpr,
    stream: Any,
) -> None:
    if cutlass.const_expr(epilogue_of(case).halves):
        out = with_columns(out, sums.shape[2])
    # The test has the real grid: the host's code is not run.
    store_tiles(sums, out, (bias, scale), case).launch(
        grid=(1, 1, 1), block=(plan_of(case).warp_groups * THREADS, 1, 1), stream=stream
    )


@kernel(name="store_tiles", params={"case": list(CASES)}, modules=["tests.support.block_kernel"])
def declared(case: str) -> Any:
    """``sums`` (L, M, N) to ``out`` and ``scale``, by the formula of a case."""
    _, dtype, _, _ = CASES[case]
    halves = epilogue_of(case).halves
    (scale,) = (operand for operand in epilogue_of(case).operands if operand.name == "scale")
    extents = in_call(scale.extents, "gemm", halves)
    vector = 16 * 8 // DTYPES[dtype].bits
    operands = [
        Operand("sums", "f32", ("L", "M", "N")),
        Operand(
            "out",
            dtype,
            ("L", "M", "N / 2" if halves else "N"),
            written=True,
            alignment=16,
            divisibility=vector,
        ),
        Operand("bias", "f32", ("N",), alignment=16),
        Operand("scale", scale.dtype, extents, written=True, contiguous=-2 if scale.layout == "n" else -1),
    ]
    return launch, operands, (case,)
