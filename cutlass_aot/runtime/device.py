"""Facts about the GPUs of this machine, asked of the driver when first needed. No context is created."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from cutlass_aot.errors import DeviceError

DRIVER_LIBRARY = "libcuda.so.1"


def device_count() -> int:
    """Number of GPUs that this process may use.

    Raises:
        DeviceError: if there is no driver.
    """
    return int(_ask("cuDeviceGetCount", _initialised(os.getpid())))


def driver_version() -> tuple[int, int]:
    """Newest CUDA version that the driver supports, as (major, minor).

    Raises:
        DeviceError: if there is no driver.
    """
    # Needs no initialisation, so that it also answers where there is a driver and no GPU.
    number = int(_ask("cuDriverGetVersion", _bindings()))
    return number // 1000, number % 1000 // 10


def compute_capability(ordinal: int) -> tuple[int, int]:
    """Compute capability of a GPU as (major, minor).

    Raises:
        DeviceError: if there is no such GPU.
    """
    return _facts(os.getpid(), ordinal)[:2]


def sm_count(ordinal: int) -> int:
    """Streaming multiprocessors of a GPU.

    Raises:
        DeviceError: if there is no such GPU.
    """
    return _facts(os.getpid(), ordinal)[2]


def device_name(ordinal: int) -> str:
    """Name of a GPU's model.

    Raises:
        DeviceError: if there is no such GPU.
    """
    driver = _initialised(os.getpid())
    name: bytes = _ask("cuDeviceGetName", driver, 256, _device(driver, ordinal))
    return name.split(b"\0")[0].decode("utf-8", "replace").strip()


def device_memory(ordinal: int) -> int:
    """Memory of a GPU in bytes.

    Raises:
        DeviceError: if there is no such GPU.
    """
    driver = _initialised(os.getpid())
    return int(_ask("cuDeviceTotalMem", driver, _device(driver, ordinal)))


def l2_bytes(ordinal: int) -> int:
    """Size of a GPU's L2 cache in bytes.

    Raises:
        DeviceError: if there is no such GPU.
    """
    driver = _initialised(os.getpid())
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    return int(_ask("cuDeviceGetAttribute", driver, attribute, _device(driver, ordinal)))


def bus_id(ordinal: int) -> str:
    """PCI bus address of a GPU, such as ``0000:1b:00.0``: what other libraries know it by.

    Raises:
        DeviceError: if there is no such GPU.
    """
    driver = _initialised(os.getpid())
    name: bytes = _ask("cuDeviceGetPCIBusId", driver, 32, _device(driver, ordinal))
    return name.split(b"\0")[0].decode("ascii", "replace")


def driver_release() -> str | None:
    """Version of the driver package, such as ``580.159``; None if the management library has none."""
    import ctypes

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


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except Exception as error:
        raise DeviceError(
            f"the package cuda-python cannot be imported ({error}): pip install cuda-python"
        ) from error
    return driver


def _ask(name: str, driver: Any, *arguments: Any) -> Any:
    """Call a driver function and return its one result."""
    try:
        answer = getattr(driver, name)(*arguments)
    except Exception as error:
        # What the bindings raise where libcuda.so.1 is missing differs from release to release.
        if _has_driver_library():
            raise DeviceError(
                f"the GPU driver cannot be asked {name} ({type(error).__name__}: {error}): "
                "install a newer driver"
            ) from error
        raise DeviceError(
            f"there is no NVIDIA driver on this machine: {DRIVER_LIBRARY} was not found; "
            "install the GPU driver"
        ) from error
    status, *results = answer
    if int(status) != 0:
        label = getattr(status, "name", str(status))
        advice = {
            "CUDA_ERROR_NO_DEVICE": "there is no GPU that this process may use; see CUDA_VISIBLE_DEVICES",
            "CUDA_ERROR_NOT_INITIALIZED": "a process forked after its parent used CUDA cannot use it; "
            "start it with the spawn method",
            "CUDA_ERROR_INVALID_DEVICE": "there is no GPU of this number; see CUDA_VISIBLE_DEVICES",
        }.get(label, "see nvidia-smi for the state of the driver")
        raise DeviceError(f"the GPU driver answered {label} to {name}: {advice}")
    return results[0] if results else None


def _has_driver_library() -> bool:
    import ctypes

    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return False
    return True


@lru_cache(maxsize=1)
def _initialised(process: int) -> Any:
    """The driver's bindings after ``cuInit``, once a process: a forked one has to ask again."""
    driver = _bindings()
    _ask("cuInit", driver, 0)
    return driver


def _device(driver: Any, ordinal: int) -> Any:
    return _ask("cuDeviceGet", driver, ordinal)


@lru_cache(maxsize=64)
def _facts(process: int, ordinal: int) -> tuple[int, int, int]:
    driver = _initialised(process)
    device = _device(driver, ordinal)
    attributes = driver.CUdevice_attribute

    def attribute(name: str) -> int:
        return int(
            _ask("cuDeviceGetAttribute", driver, getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}"), device)
        )

    return (
        attribute("COMPUTE_CAPABILITY_MAJOR"),
        attribute("COMPUTE_CAPABILITY_MINOR"),
        attribute("MULTIPROCESSOR_COUNT"),
    )
