"""Describe a caller's operands, and pass them to native code."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from cutlass_aot.errors import MisplacedOperand, OperandError
from cutlass_aot.schema.kernels.dtypes import BY_DLPACK, BY_TORCH, DTYPES
from cutlass_aot.schema.kernels.operands import MAX_EXTENT, NOTHING, OperandDescription, read_as

CUDA_DEVICES = (2, 13)
"""DLPack device types of memory on a CUDA device: ``kDLCUDA`` and ``kDLCUDAManaged``."""

_TORCH_DEVICES = {"cpu": -1, "mps": -8, "xpu": -14}
"""Minus the DLPack device types of torch's devices other than CUDA's; -12 (``kDLExtDev``) for all others."""

_BY_TORCH = {f"torch.{torch}": name for torch, name in BY_TORCH.items()}


class View:
    """A tensor whose memory is read as element type ``dtype``; made by :func:`cutlass_aot.view_as`."""

    __slots__ = ("dtype", "tensor")

    def __init__(self, tensor: Any, dtype: str) -> None:
        self.tensor: Any = tensor.tensor if isinstance(tensor, View) else tensor
        self.dtype = dtype

    @property
    def description(self) -> OperandDescription:
        """The tensor as it is now, with shape and strides in elements of ``dtype``."""
        return read_as(describe_operand(self.tensor), self.dtype)

    @property
    def requires_grad(self) -> bool:
        """Whether autograd follows the tensor."""
        return getattr(self.tensor, "requires_grad", False) is True

    def detach(self) -> View:
        """The same memory without autograd."""
        return View(self.tensor.detach(), self.dtype)

    def __repr__(self) -> str:
        return f"<View {self.dtype} {self.description.shape}>"


def view_as(tensor: Any, dtype: str) -> View:
    """Say what the memory of a tensor holds, where its own element type does not.

    ::

        weights = cutlass_aot.view_as(packed_bytes, "f4e2m1")     # (n, k / 2) u8: an operand of (n, k)
        a = cutlass_aot.view_as(a_f32, "tf32")                    # the same memory, read as TF32

    Of types below eight bits the first element stands in the lowest bits. The contiguous extent counts
    elements: bytes hold two of ``f4e2m1`` or ``i4``, three bytes four of ``f6e2m3`` or ``f6e3m2``.

    Args:
        tensor: a torch tensor or another object of the DLPack protocol, of whole bytes an element.
        dtype: element type to read.

    Raises:
        OperandError: for an unknown element type, or memory that does not hold whole elements of it.
    """
    made = View(tensor, dtype)
    # Checked now, to report a mistake where it is made, and again at each use, as the tensor may change.
    _ = made.description
    return made


def describe_operand(operand: Any) -> OperandDescription:
    """Describe a torch tensor, an object of the DLPack protocol, a number, None, or a description (itself).

    A torch tensor on the ``meta`` device is described as being on no device. A whole number counts as
    ``i32``, or ``i64`` if it needs more bits, any other as ``f32``. Nothing is copied, synchronised or
    imported, except tvm_ffi for objects other than torch tensors, numbers and descriptions.
    """
    if isinstance(operand, OperandDescription):
        return operand
    if isinstance(operand, View):
        return operand.description
    if is_torch(operand):
        return _describe_torch(operand)
    if isinstance(operand, (int, float)):
        return _describe_number(operand)
    if operand is None:
        return NOTHING
    tensor = to_ffi(operand)
    device_type, ordinal = tensor.__dlpack_device__()
    name = BY_DLPACK.get((tensor.dtype.type_code, tensor.dtype.bits))
    if name is None:
        raise _unknown_dtype(str(tensor.dtype))
    shape, strides = _unpacked(tensor.shape, tensor.strides, tensor.dtype.lanes)
    return OperandDescription(
        name, shape, strides, tensor.data_ptr(), ordinal if device_type in CUDA_DEVICES else -device_type
    )


def _describe_number(number: int | float) -> OperandDescription:
    if isinstance(number, bool):
        raise OperandError(f"expected a tensor or a number, got {number}")
    if not isinstance(number, int):
        return OperandDescription("f32", (), (), is_number=True)
    if not -(2**63) <= number < 2**63:
        raise OperandError(f"expected a whole number of 64 bits, or a float, got {number}")
    narrow = -MAX_EXTENT - 1 <= number <= MAX_EXTENT
    return OperandDescription("i32" if narrow else "i64", (), (), is_number=True)


def _unpacked(
    shape: Sequence[int], strides: Sequence[int], packs: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides in elements, for a tensor each of whose own elements holds ``packs`` of them."""
    if packs == 1:
        return tuple(shape), tuple(strides)
    inner = next((mode for mode in reversed(range(len(shape))) if strides[mode] == 1), len(shape) - 1)
    return (
        tuple(extent * packs if mode == inner else extent for mode, extent in enumerate(shape)),
        tuple(stride if mode == inner else stride * packs for mode, stride in enumerate(strides)),
    )


def _describe_torch(tensor: Any) -> OperandDescription:
    name = _BY_TORCH.get(str(tensor.dtype))
    if name is None:
        raise _unknown_dtype(str(tensor.dtype))
    try:
        shape, strides = tuple(tensor.shape), tensor.stride()
        if DTYPES[name].torch_packs != 1:
            shape, strides = _unpacked(shape, strides, DTYPES[name].torch_packs)
        if tensor.is_meta:
            return OperandDescription(name, shape, strides)
        return OperandDescription(
            name,
            shape,
            strides,
            tensor.data_ptr(),
            tensor.get_device() if tensor.is_cuda else _TORCH_DEVICES.get(tensor.device.type, -12),
        )
    except (RuntimeError, AttributeError, TypeError) as error:
        raise OperandError(
            f"a torch tensor without plain strided memory is not supported ({error}): pass a dense tensor"
        ) from error


def _unknown_dtype(name: str) -> OperandError:
    return OperandError(f"element type {name} is not supported: expected one of {', '.join(DTYPES)}")


def is_torch(operand: Any) -> bool:
    """Whether it is a torch tensor. torch is not imported: if there is a tensor, it already was."""
    tensor_class = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor_class is not None and isinstance(operand, tensor_class)


def is_cupy(operand: Any) -> bool:
    """Whether it is a CuPy array. CuPy is not imported."""
    array_class = getattr(sys.modules.get("cupy"), "ndarray", None)
    return array_class is not None and isinstance(operand, array_class)


def to_ffi(operand: Any, stream: int | None = None) -> Any:
    """A ``tvm_ffi.Tensor`` over the operand's memory; a number as an int or a float; None as itself.

    ``stream`` is the stream that the memory will be used on, so that the producer can order its own work
    before it; None if the memory is not read, or the caller uses the producer's current stream.
    """
    if isinstance(operand, (int, float)):
        # Native code takes exactly these classes: NumPy's f64, for one, is a float of another one.
        return int(operand) if isinstance(operand, int) else float(operand)
    if operand is None:
        return None
    import tvm_ffi

    if isinstance(operand, tvm_ffi.Tensor):
        return operand
    if isinstance(operand, View):
        from cutlass_aot.runtime.launching.dlpack import view

        found = operand.description
        return view(to_ffi(operand.tensor, stream), found.shape, found.strides, found.dtype)
    try:
        if is_torch(operand):
            return _torch_to_ffi(operand)
        device_type, _ = operand.__dlpack_device__()
        if device_type not in CUDA_DEVICES:
            return tvm_ffi.from_dlpack(operand)
        # Of the array API standard: -1 asks for no synchronisation, 1 is the legacy default stream
        # (0 is refused as ambiguous).
        return tvm_ffi.from_dlpack(operand.__dlpack__(stream=-1 if stream is None else stream or 1))
    except OperandError:
        raise
    except Exception as error:
        if not hasattr(operand, "__dlpack__") or not hasattr(operand, "__dlpack_device__"):
            raise OperandError(
                f"expected a torch tensor, an object of the DLPack protocol or a description, got "
                f"{type(operand).__module__}.{type(operand).__qualname__}"
            ) from None
        if operand.__dlpack_device__()[0] not in CUDA_DEVICES:
            # NumPy, for one, does not export arrays that are read-only.
            raise MisplacedOperand(
                f"an operand of {type(operand).__module__}.{type(operand).__qualname__} is on no CUDA "
                "device, where kernels run: move it to one"
            ) from error
        raise OperandError(
            f"{type(operand).__module__}.{type(operand).__qualname__} refuses its DLPack export: {error}"
        ) from error


def _torch_to_ffi(tensor: Any) -> Any:
    import torch
    import tvm_ffi

    if tensor.requires_grad:
        tensor = tensor.detach()
    if not exports(tensor):
        name = _BY_TORCH[str(tensor.dtype)]
        from cutlass_aot.runtime.launching.dlpack import view

        found = _describe_torch(tensor)
        return view(_torch_to_ffi(tensor.view(torch.uint8)), found.shape, found.strides, name)
    if hasattr(tensor, "__dlpack_c_exchange_api__"):
        return tvm_ffi.from_dlpack(tensor)
    # Not torch's __dlpack__: it makes streams wait for each other, which stream capture forbids.
    return tvm_ffi.from_dlpack(torch.utils.dlpack.to_dlpack(tensor))


def linear_as_gemm(x: Any, weight: Any, out: Any) -> tuple[Any, Any, Any]:
    """The operands of a GEMM that computes ``out = x @ weight.T``: views of the same memory.

    Args:
        x: (..., k).
        weight: (n, k).
        out: (..., n).

    Raises:
        OperandError: if one is not a torch tensor, or cannot be viewed as a matrix.
    """
    for name, operand in (("x", x), ("weight", weight), ("out", out)):
        if not is_torch(operand):
            raise OperandError(
                f"expected {name} to be a torch tensor, got {type(operand).__module__}."
                f"{type(operand).__qualname__}: call gemm with a transposed view of the weight"
            )
    if weight.dim() != 2:
        raise OperandError(f"expected weight of shape (n, k), got {tuple(weight.shape)}")
    return as_matrix("x", x), weight.t(), as_matrix("out", out)


def as_matrix(name: str, tensor: Any) -> Any:
    """View a torch tensor (..., columns) as (rows, columns); raises OperandError where no view exists."""
    if tensor.dim() == 2:
        return tensor
    try:
        # Not view(-1, columns), which is ambiguous where columns is 0.
        return tensor.view(math.prod(tensor.shape[:-1]), tensor.shape[-1])
    except (IndexError, RuntimeError):
        raise OperandError(
            f"expected {name} whose leading modes can be viewed as one, got shape {tuple(tensor.shape)} with "
            f"strides {tensor.stride()}: pass a contiguous tensor"
        ) from None


def exports(tensor: Any) -> bool:
    """Whether this release of torch exports tensors of this element type through DLPack."""
    name = _BY_TORCH.get(str(tensor.dtype), "")
    return not name.startswith(("f8", "f4")) or _torch_exports(name)


def exported(operand: Any) -> bool:
    """Whether native code can take the operand from torch directly."""
    return type(operand) in native_classes() and exports(operand)


@cache
def _torch_exports(name: str) -> bool:
    import torch

    try:
        # Older releases have no DLPack code for FP8 and FP4; trying is simpler than a table of releases.
        torch.utils.dlpack.to_dlpack(torch.empty(1, dtype=getattr(torch, DTYPES[name].torch)))
    except (BufferError, RuntimeError, TypeError, ValueError):
        return False
    return True


def native_classes() -> frozenset[type]:
    """Classes whose instances native code takes directly, with their framework's current stream.

    Only for element types that the installed torch exports (:func:`exports`). Empty without torch, or with
    one that has no interface for native code.
    """
    torch = sys.modules.get("torch")
    if torch is None or _exchange_api(torch.Tensor) is None:
        return _NO_CLASSES
    return _classes_of(torch)


_NO_CLASSES: frozenset[type] = frozenset()


@cache
def _classes_of(torch: Any) -> frozenset[type]:
    return frozenset({torch.Tensor, torch.nn.Parameter})


def tensor_class(cls: type) -> tuple[int, Callable[[], bool]] | None:
    """What native code needs in order to take a class of tensors; None if it must not take its instances.

    Returns:
        The address of the class's ``DLPackExchangeAPI``, and a function that tells whether its framework
        records gradients.
    """
    if cls not in native_classes():
        return None
    torch = sys.modules["torch"]
    address = _exchange_api(torch.Tensor)
    return None if address is None else (address, torch.is_grad_enabled)


_EXCHANGE_VERSION = 1
"""Major version of DLPack's table of functions that ``builder/native/python.c`` uses."""


@cache
def _exchange_api(cls: Any) -> int | None:
    """The address of the table of functions through which native code takes instances of a class of tensors.

    None if there is none, or one that native code cannot use: of another major version, or without the
    functions that export a tensor and tell the current stream. See
    https://dmlc.github.io/dlpack/latest/c_api.html, DLPackExchangeAPI.
    """
    if not hasattr(cls, "__dlpack_c_exchange_api__"):
        # An older torch (before 2.10): tvm_ffi adds the attribute if it can.
        import tvm_ffi  # noqa: F401
    capsule = getattr(cls, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    found: int = pointer(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"dlpack_exchange_api")
    # The version (two numbers of 32 bits) and an older table, then five functions.
    table = (ctypes.c_uint64 * 7).from_address(found)
    usable = table[0] & 0xFFFFFFFF == _EXCHANGE_VERSION and table[5] and table[6]
    return found if usable else None


def common_device(descriptions: Sequence[OperandDescription]) -> int:
    """CUDA device ordinal of the first operand that is on one, else -1."""
    return next((d.device for d in descriptions if d.device is not None and d.device >= 0), -1)
