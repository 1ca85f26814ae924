"""The launcher in C, called as native code calls it.

The kernel is a C function that writes down the tensors it is given. Tensors are made out of thin air: only
descriptions are looked at, so that anything can be tried.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

from cutlass_aot.runtime.launching import library
from cutlass_aot.runtime.opened.group import launcher_numbers
from cutlass_aot.schema.kernels.artifact import EXPORT_PREFIX
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.operands import OperandDescription, describe
from tests.support.kernels import gemm
from tests.support.native import compile_c, copying

KERNELS = """
#include <tvm/ffi/c_api.h>

#define EXPORT __attribute__((visibility("default")))
#define SAFE_CALL(name) \\
  EXPORT int __tvm_ffi_##name(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result)

struct seen {
  int64_t type_index, value, data, device_type, device_id, ndim, code, bits, lanes, byte_offset, strided;
  int64_t shape[8], strides[8];
};
EXPORT struct seen seen[24];
EXPORT int64_t seen_count = -1;

SAFE_CALL(record) {
  seen_count = count;
  for (int i = 0; i < count; i++) {
    struct seen found = {.type_index = args[i].type_index, .value = args[i].v_int64};
    const DLTensor *t = args[i].type_index == kTVMFFITensor
                            ? (const DLTensor *)((const TVMFFIObject *)args[i].v_obj + 1)
                        : args[i].type_index == kTVMFFIDLTensorPtr ? args[i].v_ptr
                                                                   : NULL;
    if (t) {
      found.data = (int64_t)(uintptr_t)t->data;
      found.device_type = t->device.device_type;
      found.device_id = t->device.device_id;
      found.ndim = t->ndim;
      found.code = t->dtype.code;
      found.bits = t->dtype.bits;
      found.lanes = t->dtype.lanes;
      found.byte_offset = (int64_t)t->byte_offset;
      found.strided = t->strides != NULL;
      for (int mode = 0; mode < t->ndim && mode < 8; mode++) {
        found.shape[mode] = t->shape[mode];
        if (t->strides) found.strides[mode] = t->strides[mode];
      }
    }
    seen[i] = found;
  }
  return 0;
}

SAFE_CALL(fail) {
  TVMFFIErrorSetRaisedFromCStr("ValueError", "Mismatched type on argument #1, expected f16");
  return -1;
}

#define NUMBER(n) \\
  SAFE_CALL(number_##n) { \\
    result->type_index = kTVMFFIInt; \\
    result->zero_padding = 0; \\
    result->v_int64 = n; \\
    return 0; \\
  }
NUMBER(0) NUMBER(1) NUMBER(2) NUMBER(3) NUMBER(4) NUMBER(5) NUMBER(6) NUMBER(7)
"""
NUMBERS = 8
GEMM = gemm(layouts="tnt").operands
NONE, INT, BOOL, FLOAT, TENSOR_POINTER, BYTES_POINTER, SMALL_BYTES = 0, 1, 2, 3, 7, 9, 12
ERROR, FUNCTION, TENSOR = 67, 68, 70
"""Type indices of TVM-FFI (c_api.h)."""

INT64 = ctypes.c_int64


class Any_(ctypes.Structure):
    """``TVMFFIAny``."""

    _fields_ = (("type_index", ctypes.c_int32), ("zero_padding", ctypes.c_uint32), ("value", INT64))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(INT64)), ("strides", ctypes.POINTER(INT64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Seen(ctypes.Structure):
    """What the recording kernel writes down of an argument."""

    _fields_ = (
        *((name, INT64) for name in (
            "type_index", "value", "data", "device_type", "device_id", "ndim", "code", "bits", "lanes",
            "byte_offset", "strided",
        )),
        ("shape_", INT64 * 8), ("strides_", INT64 * 8),
    )  # fmt: skip

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.shape_[: self.ndim])

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(self.strides_[: self.ndim])


class Refused(Exception):
    """An error that native code raised: its kind, and its message."""


@dataclass
class Tensor:
    """A tensor that native code can be given; ``strides`` False leaves them out, as DLPack allows."""

    of: OperandDescription
    strided: bool = True
    byte_offset: int = 0
    device_type: int | None = None

    def __post_init__(self) -> None:
        rank = len(self.of.shape)
        code, bits = DTYPES[self.of.dtype].dlpack if self.of.dtype in DTYPES else (5, 64)
        ordinal = -1 if self.of.device is None else self.of.device
        self.shape = (INT64 * rank)(*self.of.shape)
        self.strides = (INT64 * rank)(*self.of.strides)
        self.struct = DLTensor(
            self.of.address - self.byte_offset,
            self.device_type or (2 if ordinal >= 0 else 1),
            max(ordinal, 0),
            rank, code, bits, 1,
            ctypes.cast(self.shape, ctypes.POINTER(INT64)),
            ctypes.cast(self.strides, ctypes.POINTER(INT64)) if self.strided else None,
            self.byte_offset,
        )  # fmt: skip


class Function:
    """A function of TVM-FFI, held as native code holds it."""

    def __init__(self, native: Native, handle: int) -> None:
        self.native, self.handle = native, handle

    def __call__(self, *arguments: Any) -> Any:
        return self.native.call(self.handle, arguments)

    def __del__(self) -> None:
        self.native.ffi.TVMFFIObjectDecRef(ctypes.c_void_p(self.handle))

    @property
    def references(self) -> int:
        # The first word of an object (c_api.h, TVMFFIObject): strong references below, weak ones above.
        return ctypes.c_uint32.from_address(self.handle).value


class Native:
    """The compiled launcher, and kernels."""

    def __init__(self, launcher: bytes, folder: Path) -> None:
        self.launcher = library.map_library(copying(launcher))
        self.kernels = library.map_library(copying(compile_c(folder, "kernels", KERNELS)))
        self.ffi = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
        self.seen = (Seen * 24).in_dll(self.kernels, "seen")
        self.count = INT64.in_dll(self.kernels, "seen_count")

    def launch(self, constraints: Sequence[OperandConstraint], kernel: str = "record") -> Function:
        """Make a launch function as the runtime does."""
        return self.make("launcher", self.address(kernel), *launcher_numbers(constraints))

    def dispatch_cache(self, alignment: int = 16) -> Function:
        return self.make("dispatch_cache", alignment)

    def plain(self, kernel: str) -> Function:
        """The function of a kernel itself."""
        made = ctypes.c_void_p()
        assert not self.ffi.TVMFFIFunctionCreate(
            None, ctypes.c_void_p(self.address(kernel)), None, ctypes.byref(made)
        )
        return Function(self, made.value or 0)

    def address(self, kernel: str) -> int:
        symbol = getattr(self.kernels, EXPORT_PREFIX + kernel)
        return ctypes.cast(symbol, ctypes.c_void_p).value or 0

    def make(self, name: str, *arguments: Any) -> Any:
        function = getattr(self.launcher, f"{EXPORT_PREFIX}cutlass_aot_{name}")
        return self._result(lambda given, count, result: function(None, given, count, result), arguments)

    def call(self, handle: int, arguments: Sequence[Any]) -> Any:
        called = self.ffi.TVMFFIFunctionCall
        return self._result(
            lambda given, count, result: called(ctypes.c_void_p(handle), given, count, result), arguments
        )

    def _result(self, call: Any, arguments: Sequence[Any]) -> Any:
        each = [self._argument(argument) for argument in arguments]
        given = (Any_ * len(arguments))(*each)
        result = Any_()
        if call(given, ctypes.c_int32(len(arguments)), ctypes.byref(result)):
            raise self._raised()
        if result.type_index == FUNCTION:
            return Function(self, result.value)
        return {NONE: None, INT: result.value, BOOL: bool(result.value)}[result.type_index]

    @staticmethod
    def _argument(value: Any) -> Any_:
        if isinstance(value, Tensor):
            return Any_(TENSOR_POINTER, 0, ctypes.addressof(value.struct))
        if isinstance(value, Function):
            return Any_(FUNCTION, 0, value.handle)
        if isinstance(value, bytes) and not value:
            return Any_(SMALL_BYTES, 0, 0)
        if isinstance(value, bytes):
            data = ctypes.create_string_buffer(value, len(value))
            given = Any_(BYTES_POINTER, 0, 0)
            # Kept with the argument, which native code reads during the call alone.
            given.array = (ctypes.c_uint64 * 2)(ctypes.addressof(data), len(value))
            given.data = data
            given.value = ctypes.addressof(given.array)
            return given
        if isinstance(value, float):
            return Any_(FLOAT, 0, int.from_bytes(struct.pack("<d", value), "little", signed=True))
        return Any_(NONE, 0, 0) if value is None else Any_(INT, 0, value)

    def _raised(self) -> Refused:
        error = ctypes.c_void_p()
        self.ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(error))
        # A 24-byte object header, then kind and message, each an address and a length.
        words = (ctypes.c_uint64 * 7).from_address(error.value or 0)
        kind, message = (ctypes.string_at(words[at], words[at + 1]).decode() for at in (3, 5))
        self.ffi.TVMFFIObjectDecRef(error)
        return Refused(f"{kind}: {message}")

    def record(self, launch: Function, *arguments: Any) -> list[Seen]:
        """What the kernel was given."""
        self.count.value = -1
        assert launch(*arguments) is None
        assert self.count.value == len(arguments)
        return list(self.seen[: len(arguments)])

    def refused(self, launch: Function, *arguments: Any) -> str:
        """The error of a launch that the kernel was not called in."""
        self.count.value = -1
        with pytest.raises(Refused) as caught:
            launch(*arguments)
        assert self.count.value == -1
        return str(caught.value)


def tensors(*operands: OperandDescription, **how: Any) -> list[Tensor]:
    return [Tensor(of, **how) for of in operands]


def product(m: int = 64, n: int = 32, k: int = 16, batch: int | None = None, **where: Any) -> tuple:
    """Compact operands in the layout tnt, f16, on GPU 0 or elsewhere."""
    where = {"address": 1024, "device": 0} | where
    lead = () if batch is None else (batch,)
    strides = (*(() if batch is None else (n * k,)), 1, k)
    return (
        describe((*lead, m, k), "f16", **where),
        describe((*lead, k, n), "f16", strides=strides, **where),
        describe((*lead, m, n), "f16", **where),
    )
