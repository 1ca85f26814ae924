"""Facts about the GPUs of this machine, from the driver, when first needed. No context is created.

The driver's library is called directly: importing bindings for it would take longer than everything else
before a first launch.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache

from cutlass_aot.errors import DeviceError
from cutlass_aot.schema.tuning.costs import Machine, typical_machine

DRIVER_LIBRARY = "libcuda.so.1"

# Source: CUDA driver API, ``CUdevice_attribute``.
_MULTIPROCESSOR_COUNT = 16
_L2_CACHE_SIZE = 38
_CLOCK_RATE = 13
_MEMORY_CLOCK_RATE = 36
_MEMORY_BUS_WIDTH = 37
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76


def device_count() -> int:
    """Number of GPUs that this process may use."""
    _initialise(os.getpid())
    count = ctypes.c_int()
    _ask("cuDeviceGetCount", ctypes.byref(count))
    return count.value


def driver_version() -> tuple[int, int]:
    """Newest CUDA version that the driver supports, as (major, minor)."""
    # Needs no initialisation, and so also works with a driver but no GPU.
    number = ctypes.c_int()
    _ask("cuDriverGetVersion", ctypes.byref(number))
    return number.value // 1000, number.value % 1000 // 10


def compute_capability(ordinal: int) -> tuple[int, int]:
    """Compute capability of a GPU as (major, minor)."""
    return _facts(os.getpid(), ordinal)[:2]


def sm_count(ordinal: int) -> int:
    """Streaming multiprocessors of a GPU."""
    return _facts(os.getpid(), ordinal)[2]


def machine(ordinal: int) -> Machine:
    """What times on a GPU scale with: its multiprocessors, their highest clock, and its memory bandwidth.

    The bandwidth is that of two transfers in a clock of the memory, which NVIDIA's data sheets round.
    """
    return _machine(os.getpid(), ordinal)


def device_name(ordinal: int) -> str:
    """Model name of a GPU."""
    return _device_name(os.getpid(), ordinal)


def device_memory(ordinal: int) -> int:
    """Memory of a GPU in bytes."""
    device = _device(ordinal)
    size = ctypes.c_size_t()
    _ask("cuDeviceTotalMem_v2", ctypes.byref(size), device)
    return size.value


def l2_bytes(ordinal: int) -> int:
    """Size of a GPU's L2 cache in bytes."""
    return _attribute(_L2_CACHE_SIZE, _device(ordinal))


def bus_id(ordinal: int) -> str:
    """PCI bus address of a GPU, such as ``0000:1b:00.0``, by which other libraries identify it."""
    device = _device(ordinal)
    name = ctypes.create_string_buffer(32)
    _ask("cuDeviceGetPCIBusId", name, len(name), device)
    return name.value.decode("ascii", "replace")


def driver_release() -> str | None:
    """Version of the driver package, such as ``580.159``; None if the management library does not tell."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return None
        text = ctypes.create_string_buffer(96)
        try:
            if nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) != 0:
                return None
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return None
    return text.value.decode("ascii", "replace") or None


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(DRIVER_LIBRARY)
    except OSError as error:
        raise DeviceError(
            f"there is no NVIDIA driver on this machine: {DRIVER_LIBRARY} cannot be loaded ({error}); "
            "install the GPU driver"
        ) from error


def _ask(name: str, *arguments: object) -> None:
    """Call a function of the driver, which writes its results through the arguments."""
    library = _library()
    try:
        function = getattr(library, name)
    except AttributeError:
        raise DeviceError(f"the GPU driver has no {name}: install a newer driver") from None
    status = function(*arguments)
    if status != 0:
        label = _label(library, status)
        advice = {
            "CUDA_ERROR_NO_DEVICE": "there is no GPU that this process may use; see CUDA_VISIBLE_DEVICES",
            "CUDA_ERROR_NOT_INITIALIZED": "a process forked after its parent used CUDA cannot use it; "
            "start it with the spawn method",
            "CUDA_ERROR_INVALID_DEVICE": "there is no GPU of this number; see CUDA_VISIBLE_DEVICES",
        }.get(label, "see nvidia-smi for the state of the driver")
        raise DeviceError(f"the GPU driver answered {label} to {name}: {advice}")


def _label(library: ctypes.CDLL, status: int) -> str:
    name = ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(name))
    return name.value.decode("ascii", "replace") if name.value else f"error {status}"


@lru_cache(maxsize=1)
def _initialise(process: int) -> None:
    """Call ``cuInit``, once a process: a forked child has to call it again."""
    _ask("cuInit", 0)


def _device(ordinal: int) -> ctypes.c_int:
    _initialise(os.getpid())
    device = ctypes.c_int()
    _ask("cuDeviceGet", ctypes.byref(device), ordinal)
    return device


def _attribute(number: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    _ask("cuDeviceGetAttribute", ctypes.byref(value), number, device)
    return value.value


@lru_cache(maxsize=64)
def _facts(process: int, ordinal: int) -> tuple[int, int, int]:
    device = _device(ordinal)
    return (
        _attribute(_COMPUTE_CAPABILITY_MAJOR, device),
        _attribute(_COMPUTE_CAPABILITY_MINOR, device),
        _attribute(_MULTIPROCESSOR_COUNT, device),
    )


@lru_cache(maxsize=64)
def _device_name(process: int, ordinal: int) -> str:
    device = _device(ordinal)
    name = ctypes.create_string_buffer(256)
    _ask("cuDeviceGetName", name, len(name), device)
    return name.value.decode("utf-8", "replace").strip()


@lru_cache(maxsize=64)
def _machine(process: int, ordinal: int) -> Machine:
    device = _device(ordinal)
    sm_mhz = _attribute(_CLOCK_RATE, device) // 1000
    bandwidth = (
        2 * _attribute(_MEMORY_CLOCK_RATE, device) * _attribute(_MEMORY_BUS_WIDTH, device) // 8_000_000
    )
    typical = typical_machine("sm_{}{}".format(*compute_capability(ordinal)))
    # A driver that does not tell a rate answers 0.
    return Machine(sm_count(ordinal), sm_mhz or typical.sm_mhz, bandwidth or typical.memory_bandwidth)
