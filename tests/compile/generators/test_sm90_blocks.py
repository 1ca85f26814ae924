"""Scales of blocks of columns, as the GEMM for Hopper stores them: its PTX, run on the CPU, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest

from tests.support.block_cases import CASES
from tests.support.floats import e4m3_values, from_bf16, to_bf16, to_e4m3
from tests.support.ptx_kernels import Kernel, Tensor, compile_kernels

pytestmark = pytest.mark.compile

SMALLEST = {"f32": 2.0**-126, "f8e8m0": 2.0**-127, "f8e4m3": 2.0**-9}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    requests = [("tests.support.block_kernel", "declared", {"case": case}) for case in CASES]
    return dict(zip(CASES, compile_kernels(tmp_path_factory.mktemp("ptx"), requests), strict=True))


def in_blocks(values: Any, columns: int, missing: float) -> Any:
    """(L, M, N) as (L, M, blocks, columns)."""
    batch, rows, width = values.shape
    padded = numpy.full((batch, rows, -(-width // columns) * columns), missing, numpy.float32)
    padded[:, :, :width] = values
    return padded.reshape(batch, rows, -1, columns)


def stored_scale(scale: Any, dtype: str) -> tuple[Any, Any]:
    """A scale as it is stored, as bits of 8 or f32, and as f32."""
    scale = numpy.maximum(scale, numpy.float32(SMALLEST[dtype]))
    if dtype == "f32":
        return scale, scale
    if dtype == "f8e4m3":
        bits = to_e4m3(scale)
        return bits.astype(numpy.uint8), e4m3_values()[bits]
    mantissa, exponent = numpy.frexp(scale)
    exponent = numpy.where(mantissa == 0.5, exponent - 1, exponent)
    return (exponent + 127).astype(numpy.uint8), numpy.ldexp(numpy.float32(1), exponent)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("batch", "rows", "width"), [(1, 3, 16), (2, 131, 272), (1, 64, 384), (1, 70, 144)])
def test_each_block_has_the_scale_of_its_columns(
    kernels: dict[str, Kernel], case: str, batch: int, rows: int, width: int
) -> None:
    _, dtype, entries, tile = CASES[case]
    columns, scale_dtype = int(entries["extents"].removeprefix("MN/")), entries.get("dtype", "f32")
    chance = numpy.random.default_rng(rows)
    pairs = case.startswith("pairs")
    columns_of_sums = 2 * width if pairs else width
    sums = chance.normal(size=(batch, rows, columns_of_sums)) * 2.0 ** chance.integers(
        -12, 12, (batch, rows, 1)
    )
    sums = sums.astype(numpy.float32)
    bias = chance.normal(size=columns_of_sums).astype(numpy.float32)
    # A block of zeros, and numbers below the smallest scale.
    sums[:, 1, :16], bias[:16] = 0, 0
    sums[0, 2] = 1e-40
    if case == "sum":
        # Sums in any order are the same.
        sums = numpy.round(sums)
        blocks = in_blocks(sums, columns, 0)
        most = in_blocks(sums, columns, -math.inf).max(axis=-1)
        largest = (blocks.sum(axis=-1, dtype=numpy.float32) + most) + numpy.float32(1)
    else:
        divisor = {"f8e4m3": 448, "bf16": 6}[dtype]
        if case == "pairs-and-count":
            # Of the columns of the output, the last block having fewer.
            divisor = in_blocks(numpy.ones((1, 1, width)), columns, 0).sum(axis=-1, dtype=numpy.float32)
        x = sums + bias
        if pairs:
            x = numpy.maximum(sums[..., ::2], 0) * x[..., 1::2]
        largest = in_blocks(numpy.abs(x), columns, 0).max(axis=-1) / numpy.asarray(divisor, numpy.float32)
    bits, scale = stored_scale(largest, scale_dtype)
    of_element = numpy.repeat(scale, columns, axis=-1)[:, :, :width]
    result = sums + of_element + bias if case == "sum" else x / of_element
    expected = {"f8e4m3": to_e4m3, "bf16": to_bf16, "f32": lambda value: value}[dtype](result)

    kind = {"f8e4m3": numpy.uint8, "bf16": numpy.uint16, "f32": numpy.float32}[dtype]
    out = numpy.full((batch, rows, width), 0x55, kind)
    shape = (batch, rows, -(-width // columns))
    scales = numpy.full(shape, 0x55, numpy.float32 if scale_dtype == "f32" else numpy.uint8)
    grid = -(-rows // tile[0]), -(-columns_of_sums // tile[1]), batch
    # To the kernel, the output has as many columns as there are sums.
    stored = Tensor(out, True, extents=(batch, rows, columns_of_sums))
    found, found_scales = kernels[case].launch(
        [Tensor(sums), stored, Tensor(bias), Tensor(scales, True, gap=3)], grid
    )
    numpy.testing.assert_array_equal(found_scales, bits)
    numpy.testing.assert_array_equal(found, expected.astype(found.dtype))
    if dtype == "bf16":
        assert numpy.isfinite(from_bf16(found)).all()
