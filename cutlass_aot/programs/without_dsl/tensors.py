"""The DSL's tensors and pointers, which programs pass to ``cute.compile``.

They have the attributes that a request describes, and those that a prebuilt function needs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from cutlass_aot.programs.without_dsl.finder import find
from cutlass_aot.programs.without_dsl.layout import Layout
from cutlass_aot.programs.without_dsl.numbers import NumericMeta
from cutlass_aot.programs.without_dsl.placeholders import by_name, refuse
from cutlass_aot.programs.without_dsl.symbols import SymInt
from cutlass_aot.runtime.launching.dlpack import tensor_in

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_DTYPES = {
    (_INT, 8): "Int8", (_INT, 16): "Int16", (_INT, 32): "Int32", (_INT, 64): "Int64",
    (_UINT, 8): "Uint8", (_UINT, 16): "Uint16", (_UINT, 32): "Uint32", (_UINT, 64): "Uint64",
    (_FLOAT, 16): "Float16", (_FLOAT, 32): "Float32", (_FLOAT, 64): "Float64", (_BFLOAT, 16): "BFloat16",
    (10, 8): "Float8E4M3FN", (12, 8): "Float8E5M2", (14, 8): "Float8E8M0FNU",
}  # fmt: skip
"""``DLDataTypeCode`` and bits to the DSL's type."""
_CPU, _CUDA = 1, 2


def tensors() -> Mapping[str, Any]:
    """Fake tensors, framework tensors and pointers, and the functions that make them.

    Functions define the classes, since their bases are placeholders, which are made when they are imported.
    """
    tensor, pointer = find("cutlass.cute.typing:Tensor"), find("cutlass.cute.typing:Pointer")
    spaces = find("cutlass.base_dsl.enums:AddressSpace")
    return _fake_tensors(tensor, spaces) | _framework_tensors(tensor, spaces) | _pointers(pointer, spaces)


def _fake_tensors(base: Any, spaces: Any) -> dict[str, Any]:
    """``_FakeTensor`` and the functions that make one; ``base`` is the class of all tensors."""

    class _FakeTensor(base):  # type: ignore[misc]
        """A tensor with a shape, strides and a dtype, and no data."""

        def __init__(
            self, dtype: Any, shape: Any, *, stride: Any, memspace: Any = spaces.gmem,
            assumed_align: int | None = None, use_32bit_stride: bool = False,
        ) -> None:  # fmt: skip
            shape, stride = tuple(shape), tuple(stride)
            if not all(isinstance(item, (int, SymInt)) for item in (*shape, *stride)):
                raise ValueError("All shape and stride elements must be int or SymInt")
            self._dtype, self._shape, self._stride = _type_of(dtype), shape, stride
            self._memspace, self._use_32bit_stride = _space_of(spaces, memspace), use_32bit_stride
            self._assumed_align = (dtype.width + 7) // 8 if assumed_align is None else assumed_align
            self._typed_tensor = SimpleNamespace(assumed_align=self._assumed_align)

        element_type = property(lambda self: self._dtype)
        dtype = property(lambda self: self._dtype)
        shape = property(lambda self: self._shape)
        stride = property(lambda self: self._stride)
        memspace = property(lambda self: self._memspace)

        def __repr__(self) -> str:
            return f"FakeTensor<{self._dtype}, {self._shape}, {self._stride}>"

        __str__ = __repr__

    def make_fake_tensor(
        dtype: Any, shape: Any, stride: Any, *, memspace: Any = spaces.gmem, assumed_align: int | None = None
    ) -> Any:
        return _FakeTensor(dtype, shape, stride=stride, memspace=memspace, assumed_align=assumed_align)

    def make_fake_compact_tensor(
        dtype: Any, shape: Any, *, stride_order: Sequence[int] | None = None, memspace: Any = spaces.gmem,
        assumed_align: int | None = None, use_32bit_stride: bool = False,
    ) -> Any:  # fmt: skip
        """A fake tensor of a compact layout; in ``stride_order``, 0 is innermost."""
        order = tuple(range(len(shape))) if stride_order is None else tuple(stride_order)
        if sorted(order) != list(range(len(shape))):
            raise ValueError(
                f"stride_order ({stride_order}) must be empty or have same length as shape ({shape})."
            )
        strides = _compact_strides(shape, order, 32 if use_32bit_stride else 64)
        return _FakeTensor(
            dtype, shape, stride=strides, memspace=memspace, assumed_align=assumed_align,
            use_32bit_stride=use_32bit_stride,
        )  # fmt: skip

    return by_name(_FakeTensor, make_fake_tensor, make_fake_compact_tensor)


def _framework_tensors(base: Any, spaces: Any) -> dict[str, Any]:
    """``_Tensor`` and the function that makes one; ``base`` is the class of all tensors."""

    class _Tensor(base):  # type: ignore[misc]
        """A framework's tensor."""

        def __init__(
            self, tensor: Any, assumed_align: int | None = None, use_32bit_stride: bool = False, *,
            enable_tvm_ffi: bool = False,
        ) -> None:  # fmt: skip
            if enable_tvm_ffi:
                import tvm_ffi

                self._tvm_ffi_tensor = tvm_ffi.from_dlpack(tensor)
                self._dlpack_data = self._tvm_ffi_tensor.__dlpack__()
            else:
                try:
                    # -1: torch waits for no other stream.
                    self._dlpack_data = tensor.__dlpack__(stream=-1)
                except Exception:
                    self._dlpack_data = tensor.__dlpack__()
            self._assumed_align, self._use_32bit_stride = assumed_align, use_32bit_stride
            described = tensor_in(self._dlpack_data)
            self._dtype = _type_of_dlpack(described.dtype)
            self._sizes = tuple(described.shape[: described.ndim])
            if not described.strides:
                refuse("from_dlpack of a tensor without strides was called")
            self._steps = tuple(described.strides[: described.ndim])
            if described.device_type not in (_CPU, _CUDA):
                refuse(f"from_dlpack of a tensor on DLPack's device {described.device_type} was called")
            self._space = spaces.gmem if described.device_type == _CUDA else spaces.generic
            self._layout = Layout(self._sizes, self._steps, str(self._space), 32 if use_32bit_stride else 64)

        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            # As the DSL's, it reports the base class of all tensors.
            return base

        @property
        def __cache_key__(self) -> tuple[Any, ...]:
            return self._dtype, self._assumed_align, str(self._layout)

        @property
        def element_type(self) -> Any:
            return self._dtype

        @element_type.setter
        def element_type(self, new_type: Any) -> None:
            self._dtype = _type_of(new_type)

        dtype = property(lambda self: self._dtype)
        shape = property(lambda self: self._sizes)
        stride = property(lambda self: self._steps)
        memspace = property(lambda self: self._space)

        def mark_layout_dynamic(self, leading_dim: int | None = None) -> Any:
            self._layout.all_dynamic(leading_dim)
            return self

        def mark_compact_shape_dynamic(
            self, mode: int, stride_order: Sequence[int] | None = None, divisibility: int = 1
        ) -> Any:
            self._layout.compact_dynamic(mode, stride_order, divisibility)
            return self

        def __tvm_ffi_object__(self) -> Any:
            return self._tvm_ffi_tensor

        def __str__(self) -> str:
            return f"Tensor<{self._layout}>"

    def from_dlpack(
        tensor_dlpack: Any, assumed_align: int | None = None, use_32bit_stride: bool = False, *,
        enable_tvm_ffi: bool = False, force_tf32: bool = False,
    ) -> Any:  # fmt: skip
        """A framework's tensor."""
        settings = find("cutlass.base_dsl.dsl:BaseDSL")._get_dsl().envar
        made = _Tensor(
            tensor_dlpack,
            assumed_align,
            use_32bit_stride,
            enable_tvm_ffi=enable_tvm_ffi or settings.enable_tvm_ffi,
        )
        if force_tf32 and made.element_type is find("cutlass.base_dsl.typing:Float32"):
            made.element_type = find("cutlass.base_dsl.typing:TFloat32")
        return made

    return by_name(_Tensor, from_dlpack)


def _pointers(base: Any, spaces: Any) -> dict[str, Any]:
    """``_Pointer`` and the functions that make one; ``base`` is the class of all pointers."""

    class _Pointer(base):  # type: ignore[misc]
        def __init__(
            self, pointer: int, dtype: Any, mem_space: Any = spaces.generic, assumed_align: Any = None
        ) -> None:
            self._pointer = pointer
            self._dtype, self._addr_space = _type_of(dtype), _space_of(spaces, mem_space)
            self._assumed_align = dtype.width // 8 if assumed_align is None else assumed_align
            if int(pointer) % self._assumed_align:
                raise AssertionError(f"pointer must be {self._assumed_align} bytes aligned")

        dtype = property(lambda self: self._dtype)
        memspace = property(lambda self: self._addr_space)

        def __tvm_ffi_opaque_ptr__(self) -> Any:
            return self._pointer

        def __str__(self) -> str:
            return f"Ptr<0x{int(self._pointer):016x}@{self._addr_space}>"

    def make_ptr(
        dtype: Any, value: Any, mem_space: Any = spaces.generic, assumed_align: int | None = None
    ) -> Any:
        if isinstance(value, ctypes._Pointer):
            value = ctypes.cast(value, ctypes.c_void_p).value
        if not isinstance(value, int):
            raise TypeError(f"Expect int or ctypes.POINTER for value but got {type(value)=}")
        return _Pointer(value, dtype, mem_space, assumed_align=assumed_align)

    def nullptr(dtype: Any, mem_space: Any = spaces.generic, assumed_align: int | None = None) -> Any:
        return make_ptr(dtype, 0, mem_space, assumed_align)

    return by_name(_Pointer, make_ptr, nullptr)


def _space_of(spaces: Any, space: Any) -> Any:
    """An address space, from itself or its number."""
    if isinstance(space, bool) or not isinstance(space, int):
        refuse(f"an address space of {type(space).__qualname__} was requested")
    return spaces(int(space))


def _type_of(dtype: Any) -> Any:
    """A numeric type; anything else is refused."""
    if not isinstance(dtype, NumericMeta):
        refuse(f"a tensor or a pointer of {dtype!r} was made")
    return dtype


def _type_of_dlpack(dtype: Any) -> Any:
    """The numeric type of a ``DLDataType``."""
    code, bits, lanes = dtype.code, dtype.bits, dtype.lanes
    name = _DTYPES.get((code, bits)) if lanes == 1 else None
    if name is None:
        refuse(f"from_dlpack of a tensor of DLPack's type {code} with {bits} bits and {lanes} lanes")
    return find(f"cutlass.base_dsl.typing:{name}")


def _compact_strides(shape: Any, order: tuple[int, ...], width: int) -> tuple[Any, ...]:
    """Strides of a compact layout; in ``order``, 0 is innermost. Symbolic ones have ``width`` bits."""
    strides: list[Any] = [None] * len(order)
    step: Any = 1
    for place in range(len(order)):
        dimension = order.index(place)
        symbolic = isinstance(step, SymInt)
        strides[dimension] = SymInt(width, divisibility=step.divisibility) if symbolic else step
        step = step * shape[dimension]
    return tuple(strides)


def torch_dtypes() -> Mapping[str, Any]:
    """``dtype``, which gives torch's dtype of a numeric type."""
    others = {
        "Boolean": "bool", "TFloat32": "float32", "Float8E5M2": "float8_e5m2",
        "Float8E4M3FN": "float8_e4m3fn", "Float8E8M0FNU": "float8_e8m0fnu",
        "Float4E2M1FN": "float4_e2m1fn_x2",
    }  # fmt: skip

    def dtype(ty: Any) -> Any:
        import torch

        name = ty.__name__.lower()
        found = getattr(torch, name, None) or getattr(torch, others.get(ty.__name__, ""), None)
        if found is None:
            refuse(f"torch's dtype of {ty} was requested")
        return found

    return by_name(dtype)
