"""Clocks and power limit of a GPU from the driver's management library (NVML); None where it has none."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
# nvmlClockType_t, from nvml.h.
_SM = 1
_MEMORY = 2


class Clocks:
    """Reads the clocks of one GPU. A context manager; outside of it, everything is None.

    ``bus_id`` is the PCI bus address of the GPU, since ordinals of NVML are not those of CUDA.
    """

    def __init__(self, bus_id: str) -> None:
        self._bus_id = bus_id
        self._library: Any = None
        self._device = ctypes.c_void_p()

    def __enter__(self) -> Clocks:
        try:
            library = ctypes.CDLL(_LIBRARY)
            if library.nvmlInit_v2() != 0:
                return self
            find = library.nvmlDeviceGetHandleByPciBusId_v2
            if find(self._bus_id.encode(), ctypes.byref(self._device)) == 0:
                self._library = library
            else:
                library.nvmlShutdown()
        except (OSError, AttributeError):
            pass
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._library is not None:
            self._library.nvmlShutdown()
            self._library = None

    def sm_mhz(self) -> int | None:
        """Present clock of the streaming multiprocessors."""
        return self._number("nvmlDeviceGetClockInfo", ctypes.c_int(_SM))

    def memory_mhz(self) -> int | None:
        """Present clock of the memory."""
        return self._number("nvmlDeviceGetClockInfo", ctypes.c_int(_MEMORY))

    def power_limit_watts(self) -> float | None:
        """Enforced power limit."""
        milliwatts = self._number("nvmlDeviceGetEnforcedPowerLimit")
        return None if milliwatts is None else milliwatts / 1000

    def _number(self, function: str, *arguments: Any) -> int | None:
        if self._library is None:
            return None
        value = ctypes.c_uint()
        try:
            status = getattr(self._library, function)(self._device, *arguments, ctypes.byref(value))
        except AttributeError:
            return None
        return int(value.value) if status == 0 and value.value else None
