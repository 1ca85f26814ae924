"""GPU tensors without a GPU: they have a shape, strides, a dtype and ``device="cuda"``, but no data.

torch's FakeTensorMode makes them. Tensors on the CPU are real, except those computed or copied from GPU
tensors. Reading a fake tensor's data raises torch's own exception, which :func:`explain_data_dependence`
explains.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cutlass_aot.runtime.launching.dlpack import ManagedTensor, capsule_of, tensor_in


class _Absent:
    """Hides an attribute of a base class."""

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError


class _Addresses:
    """Made-up addresses: storages do not overlap, and are aligned as by torch's allocator."""

    _ALIGNMENT = 512

    def __init__(self) -> None:
        self._renew()
        # A request is compiled in a fork, whose other threads, which may hold the lock, are gone.
        os.register_at_fork(after_in_child=self._renew)
        self._next = 1 << 44
        # By the address of torch's own record of a storage, which a later storage may have again: its range
        # is then its own too, as the earlier one is gone.
        self._ranges: dict[int, tuple[int, int]] = {}

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def of(self, storage: Any) -> int:
        """The address of a storage, the same at each call."""
        size = int(storage.nbytes())
        with self._lock:
            address, known = self._ranges.get(storage._cdata, (0, -1))
            if size > known:
                address = self._next
                self._next += max(-(-size // self._ALIGNMENT), 1) * self._ALIGNMENT
                self._ranges[storage._cdata] = address, size
        return address


def make_tensors_fake(torch: Any) -> None:
    """Enter a FakeTensorMode until the process ends."""
    from torch._subclasses import fake_tensor

    # The mode would initialize the GPU, which torch.cuda reports to be there.
    fake_tensor.FakeTensorMode.avoid_device_init = property(lambda mode: True)
    fake_tensor.init_gpu_context = lambda device: None

    addresses = _Addresses()
    address_of_storage = torch.UntypedStorage.data_ptr

    def storage_data_ptr(storage: Any) -> int:
        """The made-up address of one without data."""
        is_fake = storage.device.type == "meta"
        return addresses.of(storage) if is_fake else int(address_of_storage(storage))

    def data_ptr(tensor: Any) -> int:
        """The made-up address of its first element."""
        return addresses.of(tensor.untyped_storage()) + int(tensor.storage_offset() * tensor.element_size())

    fake_tensor.FakeTensor.data_ptr = data_ptr
    torch.UntypedStorage.data_ptr = storage_data_ptr
    fake_tensor.FakeTensor.__dlpack__ = lambda tensor, **options: _dlpack(torch, tensor)
    fake_tensor.FakeTensor.__dlpack_device__ = lambda tensor: _dlpack_device(tensor)
    # The exchange through C functions would read data; without it, consumers use the capsule.
    fake_tensor.FakeTensor.__dlpack_c_exchange_api__ = _Absent()
    _register_device_guard(torch)
    # The mode is active on this thread alone: autograd's own threads would run without it.
    torch._C._set_multithreading_enabled(False)
    torch.Tensor.pin_memory = lambda tensor, *args: tensor
    torch.Tensor.record_stream = lambda tensor, stream: None
    kernels = _registered_kernels(torch)
    _mode(torch, fake_tensor, kernels)(allow_non_fake_inputs=True).__enter__()


_GPU_KEYS = ("CUDA", "CompositeExplicitAutograd")


def _registered_kernels(torch: Any) -> dict[str, Callable[..., Any]]:
    """Map every operator that is registered from now on to its Python implementation for GPUs, if it has one.

    With fake tensors, torch would only run an operator's shape function. It is the implementation that calls
    ``cute.compile``.
    """
    kernels: dict[str, Callable[..., Any]] = {}
    impl = torch.library.Library.impl

    def recorded(library: Any, name: Any, function: Any, dispatch_key: str = "", **options: Any) -> Any:
        if (dispatch_key or library.dispatch_key) in _GPU_KEYS and library.ns not in ("aten", "prims"):
            written = name if isinstance(name, str) else name._schema.name
            kernels[f"{library.ns}::{written.rpartition('::')[2]}"] = function
        return impl(library, name, function, dispatch_key, **options)

    torch.library.Library.impl = recorded
    return kernels


def _mode(torch: Any, fake_tensor: Any, kernels: Mapping[str, Callable[..., Any]]) -> Any:
    """A FakeTensorMode class with real CPU tensors, which runs the operators in ``kernels``."""

    class FakeOnGpu(fake_tensor.FakeTensorMode):  # type: ignore[misc]
        is_of_pretended_gpu = True
        inside = False  # Operators that an operator on fake tensors is made of are all fake.

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            if self.inside:
                return super().__torch_dispatch__(func, types, args, kwargs or {})
            schema = func._schema
            kernel = kernels.get(f"{schema.name}.{schema.overload_name}".rstrip("."))
            if kernel is not None:
                with self:
                    return kernel(*args, **(kwargs or {}))
            options = dict(kwargs or {})
            options.pop("pin_memory", None)
            tensors = [leaf for leaf in _leaves((args, options)) if isinstance(leaf, torch.Tensor)]
            if not any(isinstance(tensor, fake_tensor.FakeTensor) for tensor in tensors):
                device = options.get("device")
                if (device is None or device.type == "cpu") and all(map(_is_on_cpu, tensors)):
                    return func(*args, **options)
            elif any(map(_is_real, _written(func, args, options))):
                # The real CPU tensor would keep its old values, which must not be read as the result.
                raise fake_tensor.DataDependentOutputException(func)
            self.inside = True
            try:
                return super().__torch_dispatch__(func, types, args, options)
            finally:
                self.inside = False

    def _is_on_cpu(tensor: Any) -> bool:
        return bool(tensor.device.type == "cpu")

    def _is_real(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and not isinstance(value, fake_tensor.FakeTensor)

    return FakeOnGpu


def _leaves(value: Any) -> Iterator[Any]:
    """Everything in tuples, lists and maps."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        yield value
        return
    for item in value:
        yield from _leaves(item)


def _written(func: Any, args: Any, options: Mapping[str, Any]) -> Iterator[Any]:
    """The arguments that an operator of torch writes into."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else options.get(argument.name)
            yield from _leaves(value)


_CUDA_DEVICE, _LAZY_DEVICE = 1, 17
"""Of ``c10::DeviceType``."""


def _register_device_guard(torch: Any) -> None:
    """Let autograd record operations on fake CUDA tensors with a build of torch that has no CUDA.

    Autograd gets the current device from a table of device guards; without an entry for CUDA, it ends the
    process. torch replaces a CUDA entry that reports no device by one that does nothing. So the entry for
    lazy tensors, which reports none, is put there for torch to replace.
    """
    if torch.cuda._is_compiled():
        return
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        guards = (ctypes.c_void_p * (_LAZY_DEVICE + 1)).in_dll(
            library, "_ZN3c104impl26device_guard_impl_registryE"
        )
    except (OSError, ValueError):  # Another build of torch: programs that need no gradients run with it.
        return
    lazy = guards[_LAZY_DEVICE]
    if not guards[_CUDA_DEVICE] and lazy:
        guards[_CUDA_DEVICE] = lazy
        torch._C._ensureCUDADeviceGuardSet()
        if guards[_CUDA_DEVICE] == lazy:
            guards[_CUDA_DEVICE] = None


_DL_CPU, _DL_CUDA = 1, 2
_described: list[Any] = []
"""Keeps alive what capsules point to: their consumers may keep it, and none of them releases it."""


def _dlpack_device(tensor: Any) -> tuple[int, int]:
    device = tensor.device
    return (_DL_CUDA, device.index or 0) if device.type == "cuda" else (_DL_CPU, 0)


def _dlpack(torch: Any, tensor: Any) -> Any:
    """A DLPack capsule of a fake tensor: everything but data."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        # torch itself gives the DLPack type, for any dtype.
        real = torch.empty(0, dtype=tensor.dtype).__dlpack__()
    rank = tensor.dim()
    sizes, strides = (ctypes.c_int64 * rank)(*tensor.shape), (ctypes.c_int64 * rank)(*tensor.stride())
    device_type, device_id = _dlpack_device(tensor)
    described = ManagedTensor(
        data=tensor.data_ptr(),
        device_type=device_type,
        device_id=device_id,
        ndim=rank,
        dtype=tensor_in(real).dtype,
        shape=sizes,
        strides=strides,
    )
    _described.append((described, sizes, strides))
    return capsule_of(described)


_DATA_DEPENDENT = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
)
_DATA_DEPENDENT_TEXT: Mapping[str, str] = MappingProxyType({
    ".numpy() is not supported for tensor subclasses": "its values as a NumPy array",
    "Cannot access data pointer of": "the address of its data",
    "Cannot convert a tensor to a list": "its values as a list",
})  # fmt: skip
_NO_BACKWARD = "Cannot access accelerator device when none is available"


def explain_data_dependence(error: BaseException) -> str | None:
    """In one sentence, why a program failed with fake tensors; None for another error."""
    for cause in _causes(error):
        needed = _needed_data(cause)
        if needed is not None:
            return (
                f"the program asked for something that depends on data which is not there ({needed}): give "
                "the value in the program instead of reading it from a tensor, or, where its tensors are on "
                'the CPU, set `tensors = "real"` in the table'
            )
        if _NO_BACKWARD in str(cause):
            return (
                "the program called torch's autograd, whose backward pass does not run without a GPU in a "
                "build of torch without CUDA: call the package's own function for the backward pass"
            )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        yield now
        now = now.__cause__ or now.__context__


def _needed_data(error: BaseException) -> str | None:
    """The data that the program needed; None if the error has another cause."""
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("torch")}
    if not kinds.isdisjoint(_DATA_DEPENDENT):
        return str(getattr(error, "func", None) or error).splitlines()[0]
    text = str(error)
    return next((words for said, words in _DATA_DEPENDENT_TEXT.items() if said in text), None)
