"""Fused epilogues on the CUTLASS Operator API's GEMM with a programmable epilogue: compilation, in a worker.

The package turns a Python function into an epilogue by tracing its source; that supports fewer functions than
its kernel has, and computes in the output's element type. Here the kernel class behind the operator is given
the formula itself: :class:`_Program` loads the operands, evaluates the formula in f32, stores and reduces.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from cutlass.operators.providers.cutedsl.evt import efc
from cutlass.operators.providers.cutedsl.evt.efc._tensor import _op_atomic
from cutlass.operators.providers.cutedsl.evt.efc.dense_gemm.sm100 import DenseGemmEFC

from cutlass_aot.errors import CompileError
from cutlass_aot.generators import dsl
from cutlass_aot.generators.cutlass_operators.epilogue_records import epilogue_of, shapes, transport_of
from cutlass_aot.generators.epilogue_functions import torch_functions
from cutlass_aot.generators.protocol import CompiledFunction
from cutlass_aot.schema.kernels.epilogue import (
    COLUMN,
    ELEMENT,
    MATRIX,
    NUMBER,
    ROW,
    STRIDED_COLUMN,
    STRIDED_ROW,
    Epilogue,
)
from cutlass_aot.schema.kernels.formula import ACCUMULATOR, OUT, ROTATION, Statement, evaluate, names_in
from cutlass_aot.schema.kernels.kernel import Kernel

# Modes of the output (M, N, L) by the modes of an operand; True is a mode that it does not have.
_MODES: Mapping[tuple[str | int, ...], tuple[int | bool, ...]] = {
    ROW: (True, 0, True),
    COLUMN: (0, True, True),
    STRIDED_ROW: (True, 0, True),
    STRIDED_COLUMN: (0, True, True),
    ELEMENT: (True, True, True),
}
_REDUCTIONS = {
    "sum": (cute.ReductionOp.ADD, 0.0),
    "max": (cute.ReductionOp.MAX, -math.inf),
    "min": (cute.ReductionOp.MIN, math.inf),
}  # with the value that changes nothing
_TORCH = torch_functions(torch, columns=1)  # of (M, N, L)
_WARP = 32
_OUT_PARAMETER = "operand0"


class _Program:
    """A formula as the package's kernel calls it: once to learn what is read and written, then to compute."""

    def __init__(self, epilogue: Epilogue) -> None:
        self.operands = {operand.name: operand for operand in epilogue.operands}
        self.statements = epilogue.statements
        self.read = frozenset().union(*(names_in(s.expression) for s in self.statements)) - {ACCUMULATOR}

    def function(self) -> Callable[..., None]:
        """The formula as a function such as the package takes: :meth:`run` with numbered parameters.

        The package derives names of its own from the parameters' names; numbers cannot collide with them.
        """
        names = [_OUT_PARAMETER, *(f"operand{index}" for index in range(1, 1 + len(self.operands)))]
        made: Callable[..., None] = efc.create_named_epilogue(["efc_config", *names], self.run)
        return made

    def run(self, configuration: Any, out: Any, *operands: Any) -> None:
        """Load, compute, store, in the phase of ``configuration``, the package's view of the epilogue.

        ``operands`` are those besides ``out``, sorted by name.
        """
        given = {OUT: out, **dict(zip(self.operands, operands, strict=True))}
        values = {name: self._load(configuration, name, given[name]) for name in sorted(self.read)}
        if configuration.phase is efc.EFC.Phase.ParameterAnalysis:
            # The value does not matter here; the formula might divide by what is not known yet.
            for statement in self.statements:
                self._store(configuration, statement, given[statement.name], 1)
            return
        values[ACCUMULATOR] = configuration.accum()
        on_cpu = configuration.phase is efc.EFC.Phase.PyTorchEvaluation
        functions = _TORCH if on_cpu else self._functions(configuration)
        constant = functools.partial(configuration.full_like, values[ACCUMULATOR])
        for statement in self.statements:
            value = evaluate(statement.expression, values, functions, constant)
            operand = self.operands.get(statement.name)
            if operand is not None and operand.dtype == "bool":
                value = functions["!="](value, constant(0.0))
            self._store(configuration, statement, given[statement.name], value)

    def _functions(self, configuration: Any) -> Mapping[str, Callable[..., Any]]:
        """The functions on a thread's values of a subtile, in the package's order."""
        kernel, context = configuration.efc.kernel, configuration.epilogue_context
        return {**dsl.EPILOGUE_FUNCTIONS, ROTATION: functools.partial(kernel.rotated, context)}

    def _load(self, configuration: Any, name: str, given: Any) -> Any:
        operand = self.operands[name]
        if operand.extents == NUMBER:
            # One value for each element, so that every function takes it.
            return configuration.full_like(configuration.accum(), given)
        source = given
        if operand.extents != MATRIX:
            source = configuration.remap_modes(given, _MODES[operand.extents])
        return source.load(via=efc.Transport(transport_of(operand)))

    def _store(self, configuration: Any, statement: Statement, given: Any, value: Any) -> None:
        operand = self.operands.get(statement.name)
        if operand is None or operand.extents == MATRIX:
            transport = operand.transport if operand else ""
            given.store(value, via=efc.Transport(transport or "tma"))
            return
        operation, neutral = _REDUCTIONS[statement.reduction]
        if configuration.phase is efc.EFC.Phase.ThreadOperation:
            value = configuration.efc.kernel.inside(configuration.epilogue_context, value, neutral)
        configuration.remap_modes(given, _MODES[operand.extents]).reduce(value, op=operation)


@cute.jit  # type: ignore[untyped-decorator]
def _neutral_outside(  # type: ignore[no-untyped-def]
    values, coordinates, rows, columns, neutral: cutlass.Constexpr
) -> None:
    """Overwrite the values of a thread that lie past the last row or column."""
    for index in cutlass.range_constexpr(cute.size(values)):
        row, column, _ = coordinates[index]
        if row >= rows or column >= columns:
            values[index] = cutlass.Float32(neutral)


@cute.jit  # type: ignore[untyped-decorator]
def _combine_with_memory(  # type: ignore[no-untyped-def]
    operation: cutlass.Constexpr,
    folded,
    destination,
    tile: cutlass.Constexpr,
    left,
    barrier,
    thread,
    threads: cutlass.Constexpr,
) -> None:
    """Combine a block's values, one a row or column of its tile, with the destination's first ``left``."""
    barrier.arrive_and_wait()
    for stripe in cutlass.range_constexpr((tile + threads - 1) // threads):
        index = thread + stripe * threads
        if index < tile and index < left:
            _op_atomic(operation, cutlass.Float32, destination + index, folded[index])
    barrier.arrive_and_wait()


class _Gemm(DenseGemmEFC):  # type: ignore[misc]
    """The package's kernel, with reductions that end where the matrix ends.

    The package's own reduce whatever a tile holds, and write a whole tile's rows or columns: past the matrix,
    that overwrites other memory.
    """

    class JIT(DenseGemmEFC.JIT):  # type: ignore[misc]
        """Its host side."""

        def written_tensor_name_with_bigger_element_type(self) -> str:
            """The stored matrix of the widest element type, which decides how tiles are stored.

            The package's own may answer with the destination of a reduction, which is not a matrix.
            """
            stored: list[str] = [
                name
                for name in self.efc.written_tensor_names
                if self.efc.parameter_attributes[name].reduce_op is None
            ]
            return max(stored, key=lambda name: int(self.tensor_dtype[name].width))

    class Kernel(DenseGemmEFC.Kernel):  # type: ignore[misc]
        """Its device side."""

        def copy_and_partition_supplemental_rmem_tensors(
            self, tiled_copy_t2r: Any, tTR_rAcc: Any, epi_tidx: Any, epi_tile: Any
        ) -> None:
            """Prepare a thread's parts of tensors, and of the output's coordinates."""
            super().copy_and_partition_supplemental_rmem_tensors(tiled_copy_t2r, tTR_rAcc, epi_tidx, epi_tile)
            # Always through shared memory: direct reductions do not check bounds.
            self.reduce_use_smem: dict[str, bool] = dict.fromkeys(self.reduce_gReduce_mnl, True)
            self.accumulator_shape = tTR_rAcc.shape
            self.extents = self.parameter[f"{_OUT_PARAMETER}_tma_tensor_written"].shape
            tiles = cute.local_tile(
                cute.make_identity_tensor(self.extents),
                cute.slice_(self.operation.mma_tiler, (None, None, 0)),
                (None, None, None),
            )
            parts = self.operation.thr_mma.partition_C(tiles)[((None, None), 0, 0, None, None, None)]
            self.coordinates = tiled_copy_t2r.get_slice(epi_tidx).partition_D(
                cute.flat_divide(parts, epi_tile)
            )

        def rotated(self, context: Any, value: Any) -> Any:
            """A thread's values of a subtile, with (-y, x) in the place of two columns (x, y) of a row."""
            given = cute.make_rmem_tensor(self.accumulator_shape, cutlass.Float32)
            found = cute.make_rmem_tensor(self.accumulator_shape, cutlass.Float32)
            self.subtile_retile(given).store(value)
            # Where each two neighbours of this order are two columns of a row, the first stride is a column.
            first = cute.flatten(self.coordinates.layout).stride[0]
            if first != cute.E(1):
                raise CompileError(
                    f"{ROTATION} needs two columns of a row in a thread, whose next is {first}"
                )
            for index in range(0, cute.size(given), 2):
                found[index], found[index + 1] = -given[index + 1], given[index]
            return self.subtile_retile(found).load()

        def inside(self, context: Any, value: Any, neutral: float) -> Any:
            """A thread's values of a subtile, with those outside of the output replaced by ``neutral``."""
            # The accumulator's order of values, which is that of the coordinates.
            values = cute.make_rmem_tensor(self.accumulator_shape, cutlass.Float32)
            self.subtile_retile(values).store(value)
            place = (None, None, None, None, None, *context.mma_tile_coord_mnl)
            of_tile = self.coordinates[place]
            of_tile = cute.group_modes(of_tile, 3, cute.rank(of_tile))
            rows, columns, _ = self.extents
            _neutral_outside(values, of_tile[(None, None, None, context.subtile_idx)], rows, columns, neutral)
            return values.load()

        def reduce_smem_flush(self, barrier: Any, mma_tile_coord_mnl: Any) -> None:
            """Combine a block's reductions of its tile with the destinations, within their bounds."""
            warps = self.operation.epilogue_warp_id
            thread = (cute.arch.warp_idx() - warps[0]) * _WARP + cute.arch.lane_idx()

            def combine(name: str, attributes: Any) -> None:
                if attributes.reduce_op is None or attributes.degenerate_to_scalar:
                    return
                (axis,) = attributes.reduce_kept_axes
                first = mma_tile_coord_mnl[axis] * self.operation.mma_tiler[axis]
                place = (None, None, *mma_tile_coord_mnl)
                _combine_with_memory(
                    attributes.reduce_op,
                    self.smem_reduce[name],
                    self.reduce_gReduce_mnl[name][place].iterator,
                    self.reduce_kept_extent[name],
                    self.extents[axis] - first,
                    barrier,
                    thread,
                    len(warps) * _WARP,
                )

            self.efc.foreach_remapped_tensor(combine)


class _Launch:
    """The compiled function: a, b, out and the epilogue's operands in a row, numbers by value."""

    def __init__(self, gemm: _Gemm, max_active_clusters: int) -> None:
        self.gemm = gemm
        self.max_active_clusters = max_active_clusters

    @cute.jit
    def __call__(self, stream, a, b, out, *operands):  # type: ignore[no-untyped-def]
        """Launch the kernel, whose operands have the batch last, and B its columns first."""
        given = (out, *map(dsl.as_bytes, operands))
        self.gemm(
            cute.make_tensor(a.iterator, cute.select(a.layout, [1, 2, 0])),
            cute.make_tensor(b.iterator, cute.select(b.layout, [2, 1, 0])),
            self.max_active_clusters,
            stream,
            *(
                cute.make_tensor(operand.iterator, cute.select(operand.layout, [1, 2, 0]))
                if isinstance(operand, cute.Tensor) and cute.rank(operand) == len(MATRIX)
                else operand
                for operand in given
            ),
        )


def gemm_of(kernel: Kernel) -> _Gemm:
    """The package's kernel for a record with an epilogue."""
    design = dict(kernel.design)
    tile, cluster = shapes(design)
    gemm = _Gemm(
        dsl.dsl_dtype(kernel.accumulator),
        cutlass.Float32,
        bool(design["use_2cta_mma"]),
        tile[:2],
        cluster[:2],
        _Program(epilogue_of(kernel)).function(),
    )
    # The package's kernel takes bool as the bytes that are in memory.
    stored = tuple(
        operand._replace(dtype="u8") if operand.dtype == "bool" else operand for operand in kernel.operands
    )
    gemm.efc.compile(*dsl.fake_operands(replace(kernel, operands=stored))[2:])
    return gemm


def compile_kernel(kernel: Kernel) -> CompiledFunction:
    """Compile one kernel, with shared symbolic extents and the environment's stream."""
    _, cluster = shapes(dict(kernel.design))
    clusters = f"max_active_clusters_{cluster[0] * cluster[1]}"
    if dict(kernel.constants).get(clusters, 0) < 1:
        raise CompileError(f"{kernel.name}: its record lacks {clusters}: plan again, with a device profile")
    launch = _Launch(gemm_of(kernel), dict(kernel.constants)[clusters])
    return dsl.compile_for(kernel.target, launch, dsl.environment_stream(), *dsl.fake_operands(kernel))
