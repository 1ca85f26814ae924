"""DLPack capsules of tensors that somebody else owns.

Format: https://github.com/dmlc/dlpack/blob/main/include/dlpack/dlpack.h (``DLManagedTensor``).
"""

from __future__ import annotations

import ctypes
from typing import Any

# A capsule keeps the pointer to its name, not a copy.
_NAME = b"dltensor"
# Prototypes of our own: everybody would see argument types that are set on the shared ctypes.pythonapi.
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
    """The tensor of a capsule that nobody has taken it from. The capsule has to outlive it.

    Raises:
        ValueError: if somebody has taken it, or the capsule is of another kind.
    """
    return ManagedTensor.from_address(int(_pointer(capsule, _NAME)))


def capsule_of(tensor: ManagedTensor) -> Any:
    """A capsule with a tensor, which has to outlive it and whoever takes it from there."""
    return _new(ctypes.addressof(tensor), _NAME, None)
