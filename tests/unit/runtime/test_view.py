"""Tensors whose memory is read as another element type."""

from __future__ import annotations

import pytest

import cutlass_aot
from cutlass_aot.errors import OperandError
from cutlass_aot.runtime.launching.call import without_gradients
from cutlass_aot.runtime.launching.tensors import describe_operand, to_ffi

torch = pytest.importorskip("torch")
pytest.importorskip("tvm_ffi")


@pytest.mark.parametrize(
    ("memory", "shape", "dtype", "extents", "strides", "bits"),
    [
        ("uint8", (6, 64), "f4e2m1", (6, 128), (128, 1), 4),
        ("uint8", (6, 64), "i4", (6, 128), (128, 1), 4),
        ("uint8", (6, 96), "f6e3m2", (6, 128), (128, 1), 6),
        ("uint8", (3, 5, 48), "f6e2m3", (3, 5, 64), (320, 64, 1), 6),
        ("uint8", (6, 64), "f8e4m3", (6, 64), (64, 1), 8),
        ("uint8", (6, 64), "f8e8m0", (6, 64), (64, 1), 8),
        ("float32", (6, 64), "tf32", (6, 64), (64, 1), 32),
        ("float4_e2m1fn_x2", (6, 64), "f4e2m1", (6, 128), (128, 1), 4),
    ],
)
def test_memory_read_as(memory, shape, dtype, extents, strides, bits):
    own = torch.empty(shape, dtype=torch.uint8) if "4" in memory[-8:] else None
    tensor = (
        torch.empty(shape, dtype=getattr(torch, memory)) if own is None else own.view(getattr(torch, memory))
    )
    read = cutlass_aot.view_as(tensor, dtype)
    found = describe_operand(read)
    assert (found.dtype, found.shape, found.strides) == (dtype, extents, strides)
    assert found.address == tensor.data_ptr()
    ffi = to_ffi(read)
    assert (ffi.dtype.bits, ffi.dtype.lanes, tuple(ffi.shape)) == (bits, 1, extents)
    assert ffi.data_ptr() == tensor.data_ptr()
    # A view of a column-major operand, with gaps between its columns.
    wide = torch.empty((8, 96), dtype=torch.uint8)[:, :48].t()
    assert describe_operand(cutlass_aot.view_as(wide, "f4e2m1")).shape == (96, 8)
    assert describe_operand(cutlass_aot.view_as(wide, "f4e2m1")).strides == (1, 192)


def test_torch_tensors_of_packed_elements_are_described_in_elements():
    packed = torch.empty((4, 32), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert (describe_operand(packed).dtype, describe_operand(packed).shape) == ("f4e2m1", (4, 64))
    assert describe_operand(packed.t()).strides == (1, 64)


@pytest.mark.parametrize(
    ("tensor", "dtype", "message"),
    [
        (torch.empty((4, 5), dtype=torch.uint8), "f6e2m3", "a multiple of 3 elements of u8, got 5"),
        (torch.empty((4, 9), dtype=torch.uint8)[:, :6], "f6e2m3", None),
        (torch.empty((4, 8), dtype=torch.uint8)[:, :6], "f6e2m3", "a stride that holds whole elements"),
        (torch.empty((4, 8), dtype=torch.uint8)[:, ::2], "f4e2m1", "expected a mode of stride 1"),
        (torch.empty((4, 8), dtype=torch.uint8), "f3", "unknown dtype 'f3'"),
        (2.0, "tf32", "got a number"),
    ],
)
def test_memory_that_cannot_be_read_so(tensor, dtype, message):
    if message is None:
        assert cutlass_aot.view_as(tensor, dtype).description.strides == (12, 1)
        return
    with pytest.raises(OperandError) as caught:
        cutlass_aot.view_as(tensor, dtype)
    assert message in str(caught.value)


def test_gradients_are_the_tensors_at_the_launch():
    tensor = torch.empty((4, 8))
    read = cutlass_aot.view_as(tensor, "tf32")
    assert without_gradients(["a"], [read]) == [read]
    tensor.requires_grad_()
    with pytest.raises(OperandError, match=r"operand `a` requires a gradient.*pass a\.detach\(\)"):
        without_gradients(["a"], [read])
    with torch.no_grad():
        (taken,) = without_gradients(["a"], [read])
    assert not taken.requires_grad
    assert taken.description == read.description


def test_a_view_is_of_the_tensor_as_it_is():
    tensor = torch.empty((8, 64), dtype=torch.uint8)
    read = cutlass_aot.view_as(tensor, "f4e2m1")
    assert read.description.shape == (8, 128)
    tensor.data = torch.empty((2, 2), dtype=torch.uint8)
    assert (read.description.shape, to_ffi(read).shape) == ((2, 4), (2, 4))


def test_a_view_of_a_view_is_one_of_the_tensor():
    tensor = torch.empty((8, 64), dtype=torch.uint8)
    again = cutlass_aot.view_as(cutlass_aot.view_as(tensor, "f4e2m1"), "i4")
    assert again.tensor is tensor
    assert (again.description.dtype, again.description.shape) == ("i4", (8, 128))
