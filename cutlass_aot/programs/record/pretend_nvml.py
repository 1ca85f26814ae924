"""NVIDIA's management library (NVML) without a driver: it describes the GPU of a profile.

vLLM and others ask it for the GPU through nvidia-ml-py, or a copy of it that they bring, which loads the
library by its name. Names of functions, arguments and error codes: NVML API Reference Guide.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from cutlass_aot.programs.record.gpu_properties import GpuProperties

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS, _INVALID_ARGUMENT, _NOT_SUPPORTED, _NOT_FOUND = 0, 2, 3, 6
_DRIVER, _CUDA = b"580.0", 13000
"""A driver of the series that came with CUDA 13.0, and that version."""


class Nvml:
    """The library, as :class:`ctypes.CDLL` would load it: functions by their names. There is one GPU."""

    def __init__(self, gpu: GpuProperties) -> None:
        self._gpu = gpu

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        # A later version of a function has a suffix, and the same meaning.
        answer = getattr(self, f"_{name.rpartition('_v')[0] or name}", None)
        # Not a method: callers set its restype.
        return partial(answer) if answer is not None else lambda *arguments: _NOT_SUPPORTED

    def _nvmlInit(self) -> int:
        return _SUCCESS

    def _nvmlInitWithFlags(self, flags: Any) -> int:
        return _SUCCESS

    def _nvmlShutdown(self) -> int:
        return _SUCCESS

    def _nvmlErrorString(self, code: Any) -> bytes:
        return b"the pretended NVML does not answer this"

    def _nvmlSystemGetDriverVersion(self, text: Any, length: Any) -> int:
        return _set_text(text, _DRIVER)

    def _nvmlSystemGetCudaDriverVersion(self, version: Any) -> int:
        return _set(version, _CUDA)

    def _nvmlDeviceGetCount(self, count: Any) -> int:
        return _set(count, 1)

    def _nvmlDeviceGetHandleByIndex(self, index: Any, handle: Any) -> int:
        return _SUCCESS if _number(index) == 0 else _INVALID_ARGUMENT

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        return _SUCCESS if getattr(uuid, "value", uuid) == self._uuid() else _NOT_FOUND

    def _nvmlDeviceGetIndex(self, handle: Any, index: Any) -> int:
        return _set(index, 0)

    def _nvmlDeviceGetName(self, handle: Any, text: Any, length: Any) -> int:
        return _set_text(text, self._gpu.name.encode())

    def _nvmlDeviceGetUUID(self, handle: Any, text: Any, length: Any) -> int:
        return _set_text(text, self._uuid())

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        _set(major, self._gpu.major)
        return _set(minor, self._gpu.minor)

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        found = _pointed(memory)
        found.total = found.free = self._gpu.total_memory
        found.used = 0
        return _SUCCESS

    def _uuid(self) -> bytes:
        return f"GPU-{self._gpu.uuid}".encode()


def answer_for_nvml(gpu: GpuProperties) -> None:
    """Make :class:`ctypes.CDLL` give the pretended library by its name, and others as before."""

    def new(cls: type, name: Any = None, *arguments: Any, **options: Any) -> Any:
        return Nvml(gpu) if name == _LIBRARY else object.__new__(cls)

    # Not another class: what was loaded before is an instance of this one.
    ctypes.CDLL.__new__ = new  # type: ignore[method-assign]


def _number(value: Any) -> int:
    return int(getattr(value, "value", value))


def _pointed(argument: Any) -> Any:
    """What an argument that was made by :func:`ctypes.byref` or :func:`ctypes.pointer` points to."""
    return argument._obj if hasattr(argument, "_obj") else argument.contents


def _set(argument: Any, value: int) -> int:
    _pointed(argument).value = value
    return _SUCCESS


def _set_text(buffer: Any, text: bytes) -> int:
    buffer.value = text[: len(buffer) - 1]
    return _SUCCESS
