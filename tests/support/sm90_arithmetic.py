"""Call functions of the SM90 GEMM's kernel on the CPU: a program that reads calls, and writes their results.

A call is the name of a function here and its numbers, such as ``["moved", tile, extent, width, multiple]``.
Those that :data:`ARGUMENTS` has no type for are compiled in.
"""

import json
import sys
from functools import cache
from typing import Any

import cutlass
import cutlass.cute as cute
import numpy
from cutlass.cute.runtime import from_dlpack

from cutlass_aot.generators.sm90_gemm.scale_factors import rows_there
from cutlass_aot.generators.sm90_gemm.tiles import moved_back, tiles_of


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
def there(result: cute.Tensor, first: cutlass.Int64, rows: cutlass.Int32, count: cutlass.Constexpr) -> None:
    result[0] = rows_there(first, count, rows)


ARGUMENTS = {
    "tiles": (cutlass.Int32,),
    "moved": (cutlass.Int32,) * 2,
    "there": (cutlass.Int64, cutlass.Int32),
}
"""Types of the arguments that are not compiled in."""

MEMORY = numpy.zeros(1, numpy.int32)
RESULT = from_dlpack(MEMORY)


@cache
def compiled(name: str, *compiled_in: int) -> Any:
    function = {"tiles": tiles, "moved": moved, "there": there}[name]
    return cute.compile(function, RESULT, *(of(0) for of in ARGUMENTS[name]), *compiled_in)


def called(name: str, *numbers: int) -> int:
    count = len(ARGUMENTS[name])
    compiled(name, *numbers[count:])(RESULT, *numbers[:count])
    return int(MEMORY[0])


if __name__ == "__main__":
    json.dump([called(*call) for call in json.load(sys.stdin)], sys.stdout)
