"""The DSL's tensors, pointers, streams and symbolic extents, which programs make to ask ``cute.compile``.

They have the attributes that a request describes, and what passing them to a prebuilt function takes. The
layout of a framework's tensor is written as the DSL writes it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from cutlass_aot.programs.without_dsl.finder import find
from cutlass_aot.programs.without_dsl.placeholders import refuse
from cutlass_aot.runtime.launching.dlpack import tensor_in

_CUTE_TYPING = "cutlass.cute.typing"
_CUTE_RUNTIME = "cutlass.cute.runtime"
_RUNTIME = "cutlass.runtime"
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_DTYPES = {
    (_INT, 8): "Int8", (_INT, 16): "Int16", (_INT, 32): "Int32", (_INT, 64): "Int64",
    (_UINT, 8): "Uint8", (_UINT, 16): "Uint16", (_UINT, 32): "Uint32", (_UINT, 64): "Uint64",
    (_FLOAT, 16): "Float16", (_FLOAT, 32): "Float32", (_FLOAT, 64): "Float64", (_BFLOAT, 16): "BFloat16",
    (10, 8): "Float8E4M3FN", (12, 8): "Float8E5M2", (14, 8): "Float8E8M0FNU",
}  # fmt: skip
"""``DLDataTypeCode`` and bits to the type that the DSL takes them for."""
_CPU, _CUDA = 1, 2


def _named(module: str, *kinds: Any) -> dict[str, Any]:
    """Classes and functions under their names, as if a module of the DSL had defined them."""
    for kind in kinds:
        kind.__module__, kind.__qualname__ = module, kind.__name__
    return {kind.__name__: kind for kind in kinds}


def symbols() -> Mapping[str, Any]:
    """``SymInt`` and what makes one."""

    class SymInt:
        """An extent that is known at each call."""

        def __init__(self, width: int = 32, *, divisibility: int = 1, symbol: str | None = None) -> None:
            if width not in (32, 64):
                raise ValueError(f"Unsupported width: {width}")
            self._width, self._divisibility, self._symbol = width, divisibility, symbol

        width = property(lambda self: self._width)
        divisibility = property(lambda self: self._divisibility)
        symbol = property(lambda self: self._symbol)

        def _values(self) -> tuple[Any, ...]:
            return self._width, self._divisibility, self._symbol

        def __hash__(self) -> int:
            return hash(self._values())

        def __eq__(self, other: object) -> bool:
            return isinstance(other, SymInt) and self._values() == other._values()

        def __repr__(self) -> str:
            name = "" if self._symbol is None else f"{self._symbol} "
            width = "" if self._width == 32 else f"i{self._width} "
            return f"{name}?{{{width}div={self._divisibility}}}"

        def __mul__(self, other: Any) -> Any:
            width, divisibility = _parts(self, other)
            return SymInt(width, divisibility=self._divisibility * divisibility)

        __rmul__ = __mul__

        def __mod__(self, other: Any) -> Any:
            width, divisibility = _parts(self, other)
            if self._divisibility % divisibility == 0:
                return 0
            return SymInt(width, divisibility=math.gcd(self._divisibility, divisibility))

        def __rmod__(self, other: Any) -> Any:
            return other % self._divisibility if isinstance(other, int) else NotImplemented

        def __floordiv__(self, other: Any) -> Any:
            width, divisibility = _parts(self, other)
            exact = isinstance(other, int) and self._divisibility % divisibility == 0
            return SymInt(width, divisibility=self._divisibility // divisibility if exact else 1)

    def _parts(symbol: Any, other: Any) -> tuple[int, int]:
        if isinstance(other, int):
            return symbol.width, other
        if isinstance(other, SymInt):
            return max(symbol.width, other.width), other.divisibility
        raise TypeError(f"a symbolic extent was computed with a {type(other).__qualname__}")

    def sym_int(width: int = 32, *, divisibility: int = 1, symbol: str | None = None) -> SymInt:
        """An extent of a width."""
        return SymInt(width, divisibility=divisibility, symbol=symbol)

    def sym_int32(divisibility: int = 1, symbol: str | None = None) -> SymInt:
        """An extent of 32 bits."""
        return SymInt(32, divisibility=divisibility, symbol=symbol)

    def sym_int64(divisibility: int = 1, symbol: str | None = None) -> SymInt:
        """An extent of 64 bits."""
        return SymInt(64, divisibility=divisibility, symbol=symbol)

    return _named(_CUTE_TYPING, SymInt, sym_int, sym_int32, sym_int64)


def streams() -> Mapping[str, Any]:
    """``make_fake_stream`` and what it makes."""

    class _FakeStream:
        """Stands for the stream of a launch."""

        def __init__(self, *, use_tvm_ffi_env_stream: bool = False) -> None:
            self.use_tvm_ffi_env_stream = use_tvm_ffi_env_stream

        def __repr__(self) -> str:
            return "FakeStream"

    def make_fake_stream(*, use_tvm_ffi_env_stream: bool = False) -> _FakeStream:
        """A stream that is passed at each call, or that of the environment."""
        return _FakeStream(use_tvm_ffi_env_stream=use_tvm_ffi_env_stream)

    def find_runtime_libraries(*, enable_tvm_ffi: bool = True) -> list[str]:
        """TVM-FFI's library; the DSL's own are not at hand."""
        if not enable_tvm_ffi:
            return []
        import tvm_ffi

        return [tvm_ffi.libinfo.find_libtvm_ffi()]

    return _named(_RUNTIME, _FakeStream, make_fake_stream, find_runtime_libraries)


class _Extent(NamedTuple):
    """An extent or a stride: static, or a multiple of something that is known at each call."""

    value: int
    dynamic: bool = False
    divisibility: int = 1

    def text(self, width: int = 32) -> str:
        """As the DSL writes it."""
        if not self.dynamic:
            return str(self.value)
        said = [f"i{width}"] * (width != 32) + [f"div={self.divisibility}"] * (self.divisibility != 1)
        return f"?{{{' '.join(said)}}}" if said else "?"


class Layout:
    """The layout of a framework's tensor, static until a part of it is said to be dynamic."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int], space: str, stride_bits: int) -> None:
        self._sizes, self._steps = tuple(shape), tuple(strides)
        self._shape = [_Extent(size) for size in shape]
        self._strides = [_Extent(step) for step in strides]
        self._space, self._bits = space, stride_bits
        self._is_compact = False

    def __str__(self) -> str:
        shape = ",".join(extent.text() for extent in self._shape)
        strides = ",".join(extent.text(self._bits) for extent in self._strides)
        return f"{self._space} o ({shape}):({strides})"

    def all_dynamic(self, leading: int | None) -> None:
        """Extents are known at each call, and strides but that of the leading dimension, which is 1."""
        if self._is_compact or (0 in self._sizes and self._bits == 32):
            refuse(f"mark_layout_dynamic of {self}")
        if leading is None:
            leading = self._leading()
        elif not -len(self._steps) <= leading < len(self._steps):
            raise RuntimeError(f"there is no dimension {leading} of {len(self._steps)}")
        elif self._steps[leading] != 1:
            raise RuntimeError(f"Expected strides[leading_dim] == 1, but got {self._steps[leading]}.")
        elif leading < 0:
            refuse(f"mark_layout_dynamic(leading_dim={leading})")
        self._shape = [_Extent(size, True) for size in self._sizes]
        self._strides = [
            _Extent(1) if index == leading else _Extent(0) if step == 0 else _Extent(step, True)
            for index, step in enumerate(self._steps)
        ]

    def _leading(self) -> int | None:
        ones = [index for index, step in enumerate(self._steps) if step == 1]
        if len(ones) > 1:
            ones = [index for index in ones if self._sizes[index] > 1]
            if len(ones) != 1:
                raise RuntimeError("The leading dimension could not be deduced: several strides are 1")
        return ones[0] if ones else None

    def compact_dynamic(self, mode: int, order: Sequence[int] | None, divisibility: int) -> None:
        """One extent is known at each call, and the strides follow from the extents.

        Args:
            mode: the dimension.
            order: dimensions, the outermost first; None to take it from the strides.
            divisibility: of the extent.
        """
        if not 0 <= mode < len(self._sizes):
            raise RuntimeError(f"there is no mode {mode} of {len(self._sizes)}")
        if self._sizes[mode] % divisibility:
            raise RuntimeError(
                f"The shape({self._sizes[mode]}) of mode({mode}) is not divisible by the divisibility"
                f"({divisibility})."
            )
        order = self._order(mode) if order is None else self._checked(order)
        self._is_compact = True
        self._shape[mode] = _Extent(self._sizes[mode], True, divisibility)
        step = _Extent(1)
        for index in reversed(order):
            extent = self._shape[index]
            alone = not extent.dynamic and extent.value == 1
            self._strides[index] = _Extent(0) if alone else step
            # Of a static extent its value is known to divide, of a dynamic one what was said.
            known = extent.divisibility if extent.dynamic else extent.value
            before = step.divisibility if step.dynamic else step.value
            dynamic = step.dynamic or extent.dynamic
            step = _Extent(step.value * extent.value, dynamic, before * known if dynamic else 1)

    def _order(self, mode: int) -> Sequence[int]:
        """Dimensions by their strides, which have to be those of a compact layout.

        An extent of 1 that stays static takes no part, wherever it stands. The DSL finds no order if its
        stride is 1, or there are two of them and strides that are the same.
        """
        ones = [index for index, size in enumerate(self._sizes) if size == 1]
        order = sorted(
            (index for index in range(len(self._sizes)) if index not in ones),
            key=lambda index: -self._steps[index],
        )
        steps = [self._steps[index] for index in ones]
        taken = mode in ones or any(self._shape[index].dynamic for index in ones)
        is_known = not taken and 1 not in steps
        is_known = is_known and (len(ones) < 2 or len({*self._steps}) == len(self._steps))
        step = 1
        for index in reversed(order):
            is_known = is_known and self._steps[index] == step and self._sizes[index] > 1
            step *= self._sizes[index]
        if not is_known:
            refuse(
                f"mark_compact_shape_dynamic without stride_order, of shape {self._sizes} and "
                f"strides {self._steps}"
            )
        return [*ones, *order]

    def _checked(self, order: Sequence[int]) -> Sequence[int]:
        if sorted(order) != list(range(len(self._sizes))):
            raise RuntimeError(f"stride_order {tuple(order)} is not an order of {len(self._sizes)} modes")
        step = 1
        for index in reversed(order):
            if self._sizes[index] > 1 and self._steps[index] != step:
                raise RuntimeError("The stride_order is not consistent with the layout")
            if self._steps[index] != step:
                # What the DSL makes of the stride of an extent of 1 depends on the others.
                refuse(f"mark_compact_shape_dynamic of shape {self._sizes} and strides {self._steps}")
            step *= self._sizes[index]
        if any(size < 1 for size in self._sizes):
            refuse(f"mark_compact_shape_dynamic of shape {self._sizes}")
        return order


def tensors() -> Mapping[str, Any]:
    """Tensors that are fake or a framework's, and pointers."""
    base: Any = find(f"{_CUTE_TYPING}:Tensor")
    pointer_base: Any = find(f"{_CUTE_TYPING}:Pointer")
    extent = find(f"{_CUTE_TYPING}:SymInt")
    spaces = find("cutlass.base_dsl.enums:AddressSpace")
    numeric = find("cutlass.base_dsl.typing:NumericMeta")

    def space_of(space: Any) -> Any:
        if isinstance(space, bool) or not isinstance(space, int):
            refuse(f"an address space of {type(space).__qualname__} was asked for")
        return spaces(int(space))

    def type_of(dtype: Any) -> Any:
        if not isinstance(dtype, numeric):
            refuse(f"a tensor or a pointer of {dtype!r} was made")
        return dtype

    class _FakeTensor(base):  # type: ignore[misc]
        """A tensor with a shape, strides and a dtype, and no data."""

        def __init__(
            self, dtype: Any, shape: Any, *, stride: Any, memspace: Any = spaces.gmem,
            assumed_align: int | None = None, use_32bit_stride: bool = False,
        ) -> None:  # fmt: skip
            shape, stride = tuple(shape), tuple(stride)
            if not all(isinstance(item, (int, extent)) for item in (*shape, *stride)):
                raise ValueError("All shape and stride elements must be int or SymInt")
            self._dtype, self._shape, self._stride = type_of(dtype), shape, stride
            self._memspace, self._use_32bit_stride = space_of(memspace), use_32bit_stride
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
                    # No other stream is waited for: torch takes -1 for that.
                    self._dlpack_data = tensor.__dlpack__(stream=-1)
                except Exception:
                    self._dlpack_data = tensor.__dlpack__()
            self._assumed_align, self._use_32bit_stride = assumed_align, use_32bit_stride
            described = tensor_in(self._dlpack_data)
            code, bits, lanes = described.dtype.code, described.dtype.bits, described.dtype.lanes
            name = _DTYPES.get((code, bits)) if lanes == 1 else None
            if name is None:
                refuse(f"from_dlpack of a tensor of DLPack's type {code} with {bits} bits and {lanes} lanes")
            self._dtype = find(f"cutlass.base_dsl.typing:{name}")
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
            # As the DSL's, it says that it is the class of all tensors.
            return base

        @property
        def __cache_key__(self) -> tuple[Any, ...]:
            return self._dtype, self._assumed_align, str(self._layout)

        @property
        def element_type(self) -> Any:
            """What it consists of."""
            return self._dtype

        @element_type.setter
        def element_type(self, new_type: Any) -> None:
            self._dtype = type_of(new_type)

        dtype = property(lambda self: self._dtype)
        shape = property(lambda self: self._sizes)
        stride = property(lambda self: self._steps)
        memspace = property(lambda self: self._space)

        def mark_layout_dynamic(self, leading_dim: int | None = None) -> Any:
            """Have extents and strides be known at each call."""
            self._layout.all_dynamic(leading_dim)
            return self

        def mark_compact_shape_dynamic(
            self, mode: int, stride_order: Sequence[int] | None = None, divisibility: int = 1
        ) -> Any:
            """Have an extent be known at each call."""
            self._layout.compact_dynamic(mode, stride_order, divisibility)
            return self

        def __tvm_ffi_object__(self) -> Any:
            return self._tvm_ffi_tensor

        def __str__(self) -> str:
            return f"Tensor<{self._layout}>"

    class _Pointer(pointer_base):  # type: ignore[misc]
        """A pointer to something of a dtype."""

        def __init__(
            self, pointer: int, dtype: Any, mem_space: Any = spaces.generic, assumed_align: Any = None
        ) -> None:
            self._pointer, self._dtype, self._addr_space = pointer, type_of(dtype), space_of(mem_space)
            self._assumed_align = dtype.width // 8 if assumed_align is None else assumed_align
            if int(pointer) % self._assumed_align:
                raise AssertionError(f"pointer must be {self._assumed_align} bytes aligned")

        dtype = property(lambda self: self._dtype)
        memspace = property(lambda self: self._addr_space)

        def __tvm_ffi_opaque_ptr__(self) -> Any:
            return self._pointer

        def __str__(self) -> str:
            return f"Ptr<0x{int(self._pointer):016x}@{self._addr_space}>"

    def make_fake_tensor(
        dtype: Any, shape: Any, stride: Any, *, memspace: Any = spaces.gmem, assumed_align: int | None = None
    ) -> Any:
        """A tensor of a layout."""
        return _FakeTensor(dtype, shape, stride=stride, memspace=memspace, assumed_align=assumed_align)

    def make_fake_compact_tensor(
        dtype: Any, shape: Any, *, stride_order: Sequence[int] | None = None, memspace: Any = spaces.gmem,
        assumed_align: int | None = None, use_32bit_stride: bool = False,
    ) -> Any:  # fmt: skip
        """A tensor whose strides follow from its shape; in ``stride_order``, 0 is innermost."""
        order = tuple(range(len(shape))) if stride_order is None else tuple(stride_order)
        if sorted(order) != list(range(len(shape))):
            raise ValueError(
                f"stride_order ({stride_order}) must be empty or have same length as shape ({shape})."
            )
        strides: list[Any] = [None] * len(order)
        step: Any = 1
        for place in range(len(order)):
            strides[order.index(place)] = step
            step = step * shape[order.index(place)]
        width = 32 if use_32bit_stride else 64
        strides = [
            extent(width, divisibility=item.divisibility) if isinstance(item, extent) else item
            for item in strides
        ]
        return _FakeTensor(
            dtype, shape, stride=tuple(strides), memspace=memspace, assumed_align=assumed_align,
            use_32bit_stride=use_32bit_stride,
        )  # fmt: skip

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

    def make_ptr(
        dtype: Any, value: Any, mem_space: Any = spaces.generic, assumed_align: int | None = None
    ) -> Any:
        """A pointer to an address."""
        if isinstance(value, ctypes._Pointer):
            value = ctypes.cast(value, ctypes.c_void_p).value
        if not isinstance(value, int):
            raise TypeError(f"Expect int or ctypes.POINTER for value but got {type(value)=}")
        return _Pointer(value, dtype, mem_space, assumed_align=assumed_align)

    def nullptr(dtype: Any, mem_space: Any = spaces.generic, assumed_align: int | None = None) -> Any:
        """A pointer to nothing."""
        return make_ptr(dtype, 0, mem_space, assumed_align)

    return _named(
        _CUTE_RUNTIME, _FakeTensor, _Tensor, _Pointer, make_fake_tensor, make_fake_compact_tensor,
        from_dlpack, make_ptr, nullptr,
    )  # fmt: skip


def torch_streams() -> Mapping[str, Any]:
    """torch's streams, as a kernel takes them."""

    def current_stream() -> Any:
        """The stream that torch uses now."""
        import torch
        from cuda.bindings import driver

        return driver.CUstream(torch.cuda.current_stream().cuda_stream)

    def default_stream() -> Any:
        """The stream that torch uses if nothing is said."""
        import torch
        from cuda.bindings import driver

        return driver.CUstream(torch.cuda.default_stream().cuda_stream)

    return _named("cutlass.torch", current_stream, default_stream)


def torch_dtypes() -> Mapping[str, Any]:
    """torch's dtype of a numeric type."""
    others = {
        "Boolean": "bool", "TFloat32": "float32", "Float8E5M2": "float8_e5m2",
        "Float8E4M3FN": "float8_e4m3fn", "Float8E8M0FNU": "float8_e8m0fnu",
        "Float4E2M1FN": "float4_e2m1fn_x2",
    }  # fmt: skip

    def dtype(ty: Any) -> Any:
        """torch's dtype."""
        import torch

        name = ty.__name__.lower()
        found = getattr(torch, name, None) or getattr(torch, others.get(ty.__name__, ""), None)
        if found is None:
            refuse(f"torch's dtype of {ty} was asked for")
        return found

    dtype.__module__, dtype.__qualname__ = "cutlass.base_dsl.torch", "dtype"
    return {"dtype": dtype}
