"""The DSL's questions about the GPU at hand (``HardwareInfo``), answered from a kernel's record.

A builder has no GPU, and a kernel could not be built again if its code depended on one beside its record.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cutlass_aot.errors import CompileError
from cutlass_aot.generators.device_profiles import DeviceProfile

_MODULE = "cutlass.utils.hardware_info"


def constants_of(device: DeviceProfile) -> dict[str, int]:
    """Every number of a device profile that ``HardwareInfo`` gives, by its name in a record's constants."""
    clusters = {f"max_active_clusters_{size}": count for size, count in device.max_active_clusters.items()}
    return {"sm_count": device.sm_count, **clusters}


def is_imported() -> bool:
    """Whether the DSL's module is there, so that it can be asked without importing the DSL."""
    return _MODULE in sys.modules


@contextmanager
def answered(constants: Mapping[str, int], advice: str) -> Iterator[None]:
    """In this context, ``HardwareInfo`` answers from ``constants``, whatever GPU is present.

    Its methods are replaced, not the class, which kernels import by name. A question without an answer is a
    CompileError that ends with ``advice``.
    """
    hardware: Any = importlib.import_module(_MODULE).HardwareInfo

    def answer(name: str) -> int:
        if name not in constants:
            raise CompileError(f"the kernel asks HardwareInfo for {name}, which its record lacks: {advice}")
        return constants[name]

    def begin(self: Any, device_id: int = 0) -> None:
        self.device_id = device_id

    methods = {
        "__init__": begin,
        "get_max_active_clusters": lambda _, cluster_size, stream=None: answer(
            f"max_active_clusters_{cluster_size}"
        ),
        "get_device_multiprocessor_count": lambda _: answer("sm_count"),
        "get_l2_cache_size_in_bytes": lambda _: answer("l2_cache_bytes"),
    }
    saved = {name: getattr(hardware, name) for name in methods}
    for name, method in methods.items():
        setattr(hardware, name, method)
    try:
        yield
    finally:
        for name, method in saved.items():
            setattr(hardware, name, method)
