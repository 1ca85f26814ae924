"""Views of foreign tensors with another shape, made through DLPack; no array library is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from cutlass_aot.schema.kernels.dtypes import DTYPES

# A capsule keeps the pointer to its name, not a copy.
_NAME = b"dltensor"
# Own prototypes: argument types set on the shared ctypes.pythonapi would affect all its users.
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class DataType(ctypes.Structure):
    """``DLDataType`` of DLPack's header."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class ManagedTensor(ctypes.Structure):
    """``DLManagedTensor`` of DLPack's header."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


def tensor_in(capsule: Any) -> ManagedTensor:
    """The tensor of a capsule that was not consumed yet. The capsule has to outlive it.

    ValueError is raised if it was consumed, or is a capsule of another kind.
    """
    return ManagedTensor.from_address(int(_pointer(capsule, _NAME)))


def capsule_of(tensor: ManagedTensor) -> Any:
    """A capsule of a tensor. The tensor has to outlive the capsule and its consumer."""
    return _new(ctypes.addressof(tensor), _NAME, None)


_alive: dict[int, tuple[Any, ...]] = {}
"""What each exported struct points to, by the struct's address, until its consumer deletes it."""


def _forget(address: int, alive: dict[int, tuple[Any, ...]] = _alive) -> None:
    # A default value: at exit, consumers may call this after the module's globals are gone.
    alive.pop(address, None)


_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_forget)
"""The deleter that consumers call; a C function that lives as long as the module."""


def view(tensor: Any, shape: Sequence[int], strides: Sequence[int], dtype: str) -> Any:
    """A ``tvm_ffi.Tensor`` over the memory of another one, which it keeps alive.

    Strides are in elements; ``dtype`` has to be as wide as the tensor's own.
    """
    import tvm_ffi

    rank = len(shape)
    extents = (ctypes.c_int64 * rank)(*shape)
    steps = (ctypes.c_int64 * rank)(*strides)
    device_type, device_id = tensor.__dlpack_device__()
    code, bits = DTYPES[dtype].dlpack
    managed = ManagedTensor(
        # data_ptr already includes the tensor's byte offset.
        data=tensor.data_ptr(),
        device_type=device_type,
        device_id=device_id,
        ndim=rank,
        dtype=DataType(code, bits, 1),
        shape=ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64)),
        strides=ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64)),
        deleter=ctypes.cast(_delete, ctypes.c_void_p),
    )
    address = ctypes.addressof(managed)
    _alive[address] = (managed, extents, steps, tensor)
    try:
        return tvm_ffi.from_dlpack(capsule_of(managed))
    except BaseException:
        _forget(address)
        raise
