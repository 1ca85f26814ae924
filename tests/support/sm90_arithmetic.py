"""Call functions of the SM90 GEMM's kernel on the CPU: a program that reads calls, and writes their results.

A call is the name of a function here and its numbers, such as ``["moved", tile, extent, width, multiple]``.
Those that :data:`ARGUMENTS` has no type for are compiled in.
"""

import json
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import cutlass
import cutlass.cute as cute
import numpy
from cutlass.cute.runtime import from_dlpack

from cutlass_aot.generators.sm90_gemm.conversions import as_f8e8m0, bits_of_f4e2m1, from_f8e8m0
from cutlass_aot.generators.sm90_gemm.scale_factors import rows_there
from cutlass_aot.generators.sm90_gemm.tiles import moved_back, place, tiles_of


@cute.jit
def tiles(result: cute.Tensor, extent: cutlass.Int32, width: cutlass.Constexpr) -> None:
    result[0] = tiles_of(extent, width)


@cute.jit
def moved(
    result: cute.Tensor,
    tile: cutlass.Int32,
    extent: cutlass.Int32,
    width: cutlass.Constexpr,
    multiple: cutlass.Constexpr,
) -> None:
    result[0] = moved_back(tile, width, extent, multiple)


@cute.jit
def placed(
    result: cute.Tensor,
    cluster: cutlass.Int32,
    down: cutlass.Int32,
    across: cutlass.Int32,
    band: cutlass.Constexpr,
    most_across: cutlass.Constexpr,
) -> None:
    row, column = place(cluster, down, across, SimpleNamespace(band=band, most_across=most_across))
    result[0] = row * across + column


@cute.jit
def there(result: cute.Tensor, first: cutlass.Int64, rows: cutlass.Int32, count: cutlass.Constexpr) -> None:
    result[0] = rows_there(first, count, rows)


@cute.jit
def f4e2m1(result: cute.Tensor, bits: cutlass.Int32) -> None:
    result[0] = cutlass.Int32(bits_of_f4e2m1(bits.bitcast(cutlass.Float32)))


@cute.jit
def f8e8m0(result: cute.Tensor, bits: cutlass.Int32) -> None:
    result[0] = cutlass.Int32(as_f8e8m0(bits.bitcast(cutlass.Float32)))


@cute.jit
def power(result: cute.Tensor, exponent: cutlass.Int32) -> None:
    result[0] = from_f8e8m0(cutlass.Uint32(exponent)).bitcast(cutlass.Int32)


FUNCTIONS = {
    "tiles": tiles, "moved": moved, "placed": placed, "there": there,
    "f4e2m1": f4e2m1, "f8e8m0": f8e8m0, "power": power,
}  # fmt: skip
ARGUMENTS = {
    "tiles": (cutlass.Int32,),
    "moved": (cutlass.Int32,) * 2,
    "placed": (cutlass.Int32,) * 3,
    "there": (cutlass.Int64, cutlass.Int32),
    "f4e2m1": (cutlass.Int32,),
    "f8e8m0": (cutlass.Int32,),
    "power": (cutlass.Int32,),
}
"""Types of the arguments that are not compiled in."""

MEMORY = numpy.zeros(1, numpy.int32)
RESULT = from_dlpack(MEMORY)


@cache
def compiled(name: str, *compiled_in: int) -> Any:
    return cute.compile(FUNCTIONS[name], RESULT, *(of(0) for of in ARGUMENTS[name]), *compiled_in)


def called(name: str, *numbers: int) -> int:
    count = len(ARGUMENTS[name])
    compiled(name, *numbers[count:])(RESULT, *numbers[:count])
    return int(MEMORY[0])


if __name__ == "__main__":
    json.dump([called(*call) for call in json.load(sys.stdin)], sys.stdout)
