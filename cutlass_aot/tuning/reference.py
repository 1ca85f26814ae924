"""Reference results to check candidates on the GPU: random operands, their product, the error allowed.

The product is computed by torch in f64 where it is small or the output is f64, else in f32. Integer operands
are even and so small that every sum is exact in f32; results are then multiples of 4, and compared exactly.
The error allowed for floating results, relative to the element's magnitude plus the root mean square of the
product, is

    (unit roundoff of the output) + 4 * sqrt(K) * (roundoff of the accumulation) + 1e-13

The second term allows for errors of random sign that add up along K. The roundoff of the accumulation is the
accumulator's, times 4 because tensor cores truncate instead of rounding; for FP8 operands it is 2^-13, since
Hopper's tensor cores keep about that many bits of their sums (DeepSeek-V3 technical report, section 3.3.2).
Where they add up no more than 128 of K, and registers the rest, K counts as no more in that term.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cutlass_aot.schema.kernels.constraints import OperandConstraint, extent_of
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.tuning.rotation import FACTORS_OF, Place

UNIT_ROUNDOFF = {
    "f64": 2.0**-53,
    "f32": 2.0**-24,
    "f16": 2.0**-11,
    "bf16": 2.0**-8,
    "f8e4m3": 2.0**-4,
    "f8e5m2": 2.0**-3,
}
"""Largest relative error of rounding to nearest."""

FP8_ACCUMULATION = 2.0**-13
PROMOTED = 128
"""Elements along K that tensor cores add up, where registers add up the rest."""

INTEGER_POISON = -113
"""Odd, as no result is."""

_FP8_NAN = 0x7F
"""NaN in both FP8 formats."""

_EXACT_SUM = 2**24
"""Magnitude up to which f32 represents every whole number."""

_SMALL_WORK = 2**31
"""Multiply-adds up to which f64 is affordable on a GPU that has little of it."""

_CHUNK = 1 << 26
"""Elements compared at a time, so that temporaries stay small."""


def is_integer(dtype: str) -> bool:
    """Whether an element type is an integer type."""
    return dtype not in UNIT_ROUNDOFF


def tolerance(
    operands: Sequence[OperandConstraint], accumulator: str, extents: Extents, *, promoted: bool = False
) -> float:
    """Largest error allowed (see the module's description); 0 for an integer output.

    Operands are a, b, out and factors. ``promoted`` is true if sums of FP8 leave the tensor cores every 128.
    """
    a, b, out = operands[:3]
    if is_integer(out.dtype):
        return 0.0
    accumulation = 4 * UNIT_ROUNDOFF.get(accumulator, 0.0)
    on_tensor_cores = 0.0
    if any(operand.dtype.startswith("f8") for operand in (a, b)):
        on_tensor_cores = FP8_ACCUMULATION * math.sqrt(min(extents.k, PROMOTED) if promoted else extents.k)
    if reference_dtype(operands, extents) == "f32":
        accumulation += UNIT_ROUNDOFF["f32"]
    along_k = max(math.sqrt(extents.k) * accumulation, on_tensor_cores)
    return UNIT_ROUNDOFF[out.dtype] + 4 * along_k + 1e-13


def reference_dtype(operands: Sequence[OperandConstraint], extents: Extents) -> str:
    """Element type in which the product is computed."""
    work = extents.batch * extents.m * extents.n * extents.k
    wide = any(operand.dtype == "f64" for operand in operands)
    return "f64" if wide or work <= _SMALL_WORK else "f32"


def integer_range(operands: Sequence[OperandConstraint], k: int) -> tuple[int, int]:
    """How to fill integer operands, so that neither an f32 nor the output overflows.

    Returns the largest magnitude, an even number, and the step along K between elements that are not zero.
    """
    a, b, out = (operand.dtype for operand in operands[:3])
    largest = min(_EXACT_SUM, _largest(out)) if is_integer(out) else _EXACT_SUM
    inputs = min(_largest(dtype) for dtype in (a, b) if is_integer(dtype))
    magnitude = min(math.isqrt(largest // k), inputs) // 2 * 2
    return (magnitude, 1) if magnitude else (2, -(-4 * k // largest))


def _largest(dtype: str) -> int:
    bits = DTYPES[dtype].bits
    return (1 << (bits if dtype.startswith("u") else bits - 1)) - 1


def fill(
    torch: Any, memory: Any, position: int, operands: Sequence[OperandConstraint], extents: Extents
) -> None:
    """Fill an operand with random values.

    ``memory`` is (batch, major, minor) of the operand, contiguous; ``position`` is 0 for a, 1 for b, and that
    of scale factors.
    """
    operand = operands[position]
    if operand.name in FACTORS_OF:
        memory.uniform_(0.5, 1.5)
        return
    out = operands[2]
    if not is_integer(operand.dtype):
        # FP8 outputs overflow early, so elements of the product get a variance of 1.
        spread = extents.k**-0.25 if out.dtype.startswith("f8") else 1.0
        if operand.dtype.startswith("f8"):
            values = torch.empty(memory.shape, dtype=torch.float16, device=memory.device)
            memory.copy_(values.normal_(std=spread))
        else:
            memory.normal_(std=spread)
        return
    magnitude, every = integer_range(operands, extents.k)
    least = 0 if "u8" in (operand.dtype, out.dtype) else -(magnitude // 2)
    memory.random_(least, magnitude // 2 + 1)
    memory.mul_(2)
    if every > 1:
        mode = operand.extents.index("K") - len(operand.extents)
        along = torch.arange(extents.k, device=memory.device) % every == 0
        # K is the last mode of the memory if it is the contiguous one.
        memory.mul_(along if mode == operand.contiguous else along.unsqueeze(-1))


def poison(torch: Any, memory: Any) -> None:
    """Fill an output with a value that no result has: NaN, or an odd number."""
    if not memory.is_floating_point():
        memory.fill_(INTEGER_POISON % 256 if memory.dtype == torch.uint8 else INTEGER_POISON)
    elif memory.dtype.itemsize == 1:
        memory.view(torch.uint8).fill_(_FP8_NAN)
    else:
        memory.fill_(math.nan)


def scaled(
    torch: Any, values: Sequence[Any], operands: Sequence[OperandConstraint], dtype: str
) -> tuple[Any, Any]:
    """a and b in an element type, each times its factors: what tensor operands of a problem stand for."""
    wide = getattr(torch, DTYPES[dtype].torch)
    found = [values[0].to(wide), values[1].to(wide)]
    for factors, constraint in zip(values[3:], operands[3:], strict=True):
        position = FACTORS_OF[constraint.name]
        relations = [extent_of(str(extent)) for extent in constraint.extents]
        names = [relation.name for relation in relations if relation is not None]
        for mode, relation in enumerate(relations):
            if relation is not None and relation.is_quotient:
                factors = factors.repeat_interleave(relation.divisor, mode)
        # Those of b have its columns first.
        factors = factors.permute([names.index(str(extent)) for extent in operands[position].extents])
        batch, rows, columns = found[position].shape
        # Not in place: values of this element type are the caller's own.
        found[position] = found[position] * factors[:batch, :rows, :columns]
    return found[0], found[1]


class Reference:
    """The product of (batch, m, k) and (batch, k, n), in their element type.

    float32 products have to be set to full precision. If ``exact``, as for integers, errors are absolute.
    """

    def __init__(self, torch: Any, a: Any, b: Any, out: Place, *, exact: bool) -> None:
        product = torch.matmul(a, b)
        # In the order of the output's memory, so that no transposition is needed to compare.
        self._product = (product.transpose(1, 2) if out.transposed else product).contiguous().view(-1)
        self._scale = None
        if not exact:
            mean_square = torch.linalg.vector_norm(self._product) / math.sqrt(self._product.numel())
            self._scale = self._product.abs().add_(mean_square)
        self._torch = torch

    def error(self, memory: Any) -> Any:
        """Largest error of an output (contiguous), as a tensor on the GPU; NaN where it was not written."""
        found = []
        for begin in range(0, self._product.numel(), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            difference = memory.view(-1)[part].to(self._product.dtype).sub_(self._product[part]).abs_()
            if self._scale is not None:
                difference.div_(self._scale[part])
            found.append(difference.amax())
        return self._torch.stack(found).amax()
