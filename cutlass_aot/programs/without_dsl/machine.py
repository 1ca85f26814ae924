"""The DSL's functions about GPUs and CUDA versions."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from cutlass_aot.programs.without_dsl import names
from cutlass_aot.programs.without_dsl.finder import find
from cutlass_aot.programs.without_dsl.placeholders import by_name, refuse
from cutlass_aot.runtime.machine import cuda_driver


def versions() -> Mapping[str, Any]:
    """``DSLCudaVersion``, and ``target_version``, which compares the DSL's with another."""

    @functools.total_ordering
    class DSLCudaVersion:
        def __init__(self, version: str) -> None:
            self.major, self.minor = map(int, version.split(".")[:2])

        def __eq__(self, other: object) -> bool:
            return isinstance(other, DSLCudaVersion) and self._numbers() == other._numbers()

        def __lt__(self, other: Any) -> bool:
            return bool(self._numbers() < other._numbers())

        def __hash__(self) -> int:
            return hash(self._numbers())

        def _numbers(self) -> tuple[int, int]:
            return self.major, self.minor

    def coerced(version: Any) -> Any:
        if not isinstance(version, (str, DSLCudaVersion)):
            refuse(f"target_version of {version!r} was called")
        return DSLCudaVersion(version) if isinstance(version, str) else version

    def target_version(
        exact_version: Any = None, *, min_version: Any = None, max_version: Any = None
    ) -> bool:
        """Whether the DSL's CUDA version is the exact one, or within the inclusive bounds."""
        bounds = min_version is not None or max_version is not None
        if bounds == (exact_version is not None):
            refuse("target_version without a version, or with both one and bounds, was called")
        own = find("cutlass.base_dsl.version_info:CUDA_VERSION")
        if exact_version is not None:
            return bool(own == coerced(exact_version))
        return (min_version is None or own >= coerced(min_version)) and (
            max_version is None or own <= coerced(max_version)
        )

    return by_name(DSLCudaVersion, target_version)


def cuda() -> Mapping[str, Any]:
    """The CUDA version of the DSL."""
    major, minor = names.cuda_version()
    return {"CUDA_VERSION": find("cutlass.base_dsl.common:DSLCudaVersion")(f"{major}.{minor}")}


def shared_memory() -> Mapping[str, Any]:
    """How much shared memory a block may have: a function, and a method of the allocator's class."""

    def get_smem_capacity_in_bytes(compute_capability: str | None = None) -> int:
        """For a compute capability such as ``sm_90``; None for the target's."""
        if compute_capability is None:
            arch = find("cutlass.base_dsl.dsl:BaseDSL")._get_dsl().get_arch_enum()
            compute_capability = f"sm_{arch.major}{arch.minor}"
        found = names.shared_memory().get(compute_capability)
        if found is None:
            refuse(f"the shared memory of {compute_capability} was requested")
        return found

    class SmemAllocator:
        capacity_in_bytes = staticmethod(get_smem_capacity_in_bytes)

        def __init__(self, *arguments: Any, **options: Any) -> None:
            refuse("a SmemAllocator was made")

    return by_name(get_smem_capacity_in_bytes, SmemAllocator)


def hardware() -> Mapping[str, Any]:
    """``HardwareInfo``; a server replaces its cluster counts by those of the bundle's device profile."""

    class HardwareInfo:
        def __init__(self, device_id: int = 0) -> None:
            self.device_id = device_id

        def get_max_active_clusters(self, cluster_size: int, stream: Any = None) -> int:
            """Refused: the DSL compiles a kernel to ask the driver."""
            refuse(f"the maximum number of active clusters of {cluster_size} was requested")

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            refuse(f"{name} of HardwareInfo was requested")

        def get_device_multiprocessor_count(self) -> int:
            return cuda_driver.sm_count(self.device_id)

        def get_l2_cache_size_in_bytes(self) -> int:
            return cuda_driver.l2_bytes(self.device_id)

    return by_name(HardwareInfo)


def tensor_memory() -> Mapping[str, Any]:
    """How much tensor memory a block may have."""

    def columns(found: Mapping[str, int], compute_capability: str) -> int:
        if compute_capability not in found:
            refuse(f"the tensor memory of {compute_capability} was requested")
        return found[compute_capability]

    def get_min_tmem_alloc_cols(compute_capability: str) -> int:
        return columns(names.tensor_memory()[0], compute_capability)

    def get_max_tmem_alloc_cols(compute_capability: str) -> int:
        return columns(names.tensor_memory()[1], compute_capability)

    return by_name(get_min_tmem_alloc_cols, get_max_tmem_alloc_cols)
