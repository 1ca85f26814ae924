"""Elements narrower than a byte: bits in bytes, and values of codes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from cutlass_aot import narrow
from cutlass_aot.errors import OperandError

torch = pytest.importorskip("torch")

BITS = {"f4e2m1": 4, "i4": 4, "f6e2m3": 6, "f6e3m2": 6}


@pytest.mark.parametrize("dtype", BITS)
def test_packed_bytes_are_one_long_number(dtype):
    bits = BITS[dtype]
    codes = torch.randint(0, 1 << bits, (3, 5, 24), generator=torch.Generator().manual_seed(1))
    packed = narrow.pack(codes, dtype)
    assert packed.dtype == torch.uint8
    assert packed.shape == (3, 5, 24 * bits // 8)
    for row, expected in zip(packed.reshape(-1, packed.shape[-1]), codes.reshape(-1, 24), strict=True):
        number = int.from_bytes(bytes(row.tolist()), "little")
        assert [number >> (bits * place) & ((1 << bits) - 1) for place in range(24)] == expected.tolist()
    assert torch.equal(narrow.unpack(packed, dtype), codes.to(torch.uint8))


def test_torch_pairs_are_read_as_bytes():
    codes = torch.arange(16).reshape(2, 8)
    pairs = narrow.pack(codes, "f4e2m1").view(torch.float4_e2m1fn_x2)
    assert torch.equal(narrow.unpack(pairs, "f4e2m1"), codes.to(torch.uint8))


def test_values_are_those_of_the_specification():
    assert narrow.decode(torch.arange(8), "f4e2m1").tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert narrow.decode(torch.arange(16), "i4").tolist() == [*range(8), *range(-8, 0)]
    for dtype, largest, smallest in (("f6e2m3", 7.5, 0.125), ("f6e3m2", 28.0, 0.0625)):
        values = narrow.decode(torch.arange(32), dtype)
        assert values[-1] == largest
        assert values[1] == smallest
        assert torch.equal(values, values.sort().values)
        assert torch.equal(narrow.decode(torch.arange(32, 64), dtype), -values)


@pytest.mark.parametrize("dtype", BITS)
def test_every_code_is_the_nearest_to_its_value(dtype):
    codes = torch.arange(1 << BITS[dtype])
    values = narrow.decode(codes, dtype)
    again = narrow.decode(narrow.encode(values, dtype), dtype)
    assert torch.equal(again, values)


@pytest.mark.parametrize("dtype", BITS)
def test_encode_takes_the_nearest_and_halfway_the_even_code(dtype):
    known = sorted(set(narrow.decode(torch.arange(1 << BITS[dtype]), dtype).tolist()))
    for low, high in pairwise(known):
        for part in (0.25, 0.5, 0.75):
            value = low + part * (high - low)
            code = int(narrow.encode(torch.tensor([value], dtype=torch.float64), dtype)[0])
            found = float(narrow.decode(torch.tensor([code]), dtype)[0])
            if part == 0.5:
                assert found in (low, high)
                assert code % 2 == 0
            else:
                assert found == (low if part < 0.5 else high)


def test_encode_saturates():
    codes = narrow.encode(torch.tensor([1e9, -1e9, math.inf]), "f6e3m2")
    assert narrow.decode(codes, "f6e3m2").tolist() == [28.0, -28.0, 28.0]


def test_refusals():
    with pytest.raises(OperandError, match="7 elements of f4e2m1: expected a multiple of 2"):
        narrow.pack(torch.zeros(7, dtype=torch.int64), "f4e2m1")
    with pytest.raises(OperandError, match="codes from 0 to 16: expected 0 to 15"):
        narrow.pack(torch.tensor([0, 16]), "i4")
    with pytest.raises(OperandError, match="4 bytes of f6e2m3: expected a multiple of 3"):
        narrow.unpack(torch.zeros(4, dtype=torch.uint8), "f6e2m3")
    with pytest.raises(OperandError, match="element type 'f8e4m3': expected one of f4e2m1"):
        narrow.decode(torch.zeros(1), "f8e4m3")


def test_numbers_that_are_no_bytes_are_refused():
    with pytest.raises(OperandError, match=r"expected bytes of f4e2m1, got a tensor of torch\.int64"):
        narrow.unpack(torch.zeros(2, 8, dtype=torch.int64), "f4e2m1")
