"""The layout of block scales, against a slow reference that places one element after the other."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_aot import scales
from cutlass_aot.errors import OperandError

shapes = st.tuples(st.integers(1, 300), st.integers(1, 700), st.sampled_from([16, 32]))


def placed_one_by_one(plain: numpy.ndarray, k: int, block: int) -> numpy.ndarray:
    """The definition of the layout, element by element, written down apart from the code under test."""
    batches, rows, blocks = plain.shape
    row_tiles, block_tiles = -(-rows // 128), -(-blocks // 4)
    arranged = numpy.zeros(batches * row_tiles * block_tiles * 512, dtype=plain.dtype)
    for batch in range(batches):
        for row in range(rows):
            for column in range(blocks):
                tile = (batch * row_tiles + row // 128) * block_tiles + column // 4
                quarter, lane = divmod(row % 128, 32)
                arranged[tile * 512 + lane * 16 + quarter * 4 + column % 4] = plain[batch, row, column]
    return arranged


def made_up(batch: int, rows: int, k: int, block: int) -> numpy.ndarray:
    return numpy.random.default_rng(rows * k).integers(1, 255, (batch, rows, -(-k // block)), dtype="u1")


@settings(max_examples=40, deadline=None)
@given(shapes, st.integers(1, 3))
def test_arrange_is_the_definition(shape, batch):
    rows, k, block = shape
    plain = made_up(batch, rows, k, block)
    arranged = scales.arrange(plain, rows, k, block)
    assert arranged.shape == (scales.count(rows, k, block, batch=batch),)
    numpy.testing.assert_array_equal(arranged, placed_one_by_one(plain, k, block))


@settings(max_examples=40, deadline=None)
@given(shapes, st.integers(1, 3))
def test_restore_is_the_inverse(shape, batch):
    rows, k, block = shape
    plain = made_up(batch, rows, k, block)
    arranged = scales.arrange(plain, rows, k, block)
    numpy.testing.assert_array_equal(scales.restore(arranged, rows, k, block, batch=batch), plain)
    one = scales.arrange(plain[0], rows, k, block)
    assert scales.restore(one, rows, k, block).shape == plain[0].shape
    numpy.testing.assert_array_equal(scales.restore(one, rows, k, block), plain[0])


@settings(max_examples=40, deadline=None)
@given(shapes, st.data())
def test_position_says_where_an_element_went(shape, data):
    rows, k, block = shape
    plain = made_up(2, rows, k, block)
    arranged = scales.arrange(plain, rows, k, block)
    batch = data.draw(st.integers(0, 1))
    row = data.draw(st.integers(0, rows - 1))
    column = data.draw(st.integers(0, plain.shape[2] - 1))
    where = scales.position(row, column, rows, k, block, batch=batch)
    assert arranged[where] == plain[batch, row, column]


def test_a_tile_is_the_one_of_the_cublas_documentation():
    plain = numpy.arange(512, dtype=numpy.int64).reshape(128, 4).astype("u1")
    arranged = scales.arrange(plain, 128, 128, 32)
    # Its figure begins with the four factors of row 0, then those of rows 32, 64 and 96, then those of row 1.
    for start, row in ((0, 0), (4, 32), (8, 64), (12, 96), (16, 1)):
        assert list(arranged[start : start + 4]) == list(plain[row])


def test_padding_is_zero_bytes():
    arranged = scales.arrange(numpy.full((1, 1), 255, "u1"), 1, 32, 32)
    assert arranged[0] == 255
    assert not arranged[1:].any()


@pytest.mark.parametrize("name", ["float8_e8m0fnu", "float8_e4m3fn", "uint8"])
def test_torch_tensors_keep_type_and_device(name):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    plain = torch.from_numpy(made_up(2, 200, 300, 32)).view(dtype)
    arranged = scales.arrange(plain, 200, 300, 32)
    assert arranged.dtype == dtype
    assert arranged.is_contiguous()
    expected = placed_one_by_one(plain.view(torch.uint8).numpy(), 300, 32)
    numpy.testing.assert_array_equal(arranged.view(torch.uint8).numpy(), expected)
    again = scales.restore(arranged, 200, 300, 32, batch=2)
    assert torch.equal(again.view(torch.uint8), plain.view(torch.uint8))


def test_strides_do_not_matter():
    torch = pytest.importorskip("torch")
    plain = torch.from_numpy(made_up(1, 200, 320, 32)[0])
    transposed = plain.t().contiguous().t()
    assert not transposed.is_contiguous()
    assert torch.equal(scales.arrange(transposed, 200, 320, 32), scales.arrange(plain, 200, 320, 32))


def test_refusals_say_what_was_expected():
    plain = numpy.zeros((200, 10), "u1")
    with pytest.raises(OperandError, match=r"expected \(200, 20\), or a batch of them"):
        scales.arrange(plain, 200, 320, 16)
    with pytest.raises(OperandError, match="expected one of one byte"):
        scales.arrange(plain.astype("f4"), 200, 320, 32)
    with pytest.raises(OperandError, match="expected 3072 elements"):
        scales.restore(plain, 200, 320, 32)
    with pytest.raises(OperandError, match="rows = 0: expected at least 1"):
        scales.count(0, 320, 32)
    with pytest.raises(OperandError, match=r"got builtins\.list"):
        scales.restore(ListWithShape([0]), 1, 1, 32)


class ListWithShape(list):
    shape = (512,)


ListWithShape.__module__, ListWithShape.__qualname__ = "builtins", "list"
