"""Views of foreign tensors with another shape, made through DLPack; no array library is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from cutlass_aot.runtime.launching.capsules import DataType, ManagedTensor, capsule_of
from cutlass_aot.schema.kernels.dtypes import DTYPES

_alive: dict[int, tuple[Any, ...]] = {}
"""What each exported struct points to, by the struct's address, until its consumer deletes it."""


def _forget(address: int, alive: dict[int, tuple[Any, ...]] = _alive) -> None:
    # A default value: at the interpreter's end, consumers may come after this module's globals are gone.
    alive.pop(address, None)


_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_forget)
"""The deleter that consumers call; a C function that lives as long as the module."""


def view(tensor: Any, shape: Sequence[int], strides: Sequence[int], dtype: str) -> Any:
    """A ``tvm_ffi.Tensor`` over the memory of another one, which it keeps alive.

    Args:
        tensor: a ``tvm_ffi.Tensor``.
        shape: extents of the view.
        strides: in elements.
        dtype: element type of the view, as wide as the tensor's own.
    """
    import tvm_ffi

    rank = len(shape)
    extents = (ctypes.c_int64 * rank)(*shape)
    steps = (ctypes.c_int64 * rank)(*strides)
    device_type, device_id = tensor.__dlpack_device__()
    code, bits = DTYPES[dtype].dlpack
    managed = ManagedTensor(
        # data_ptr includes the byte offset of the tensor's own description.
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
