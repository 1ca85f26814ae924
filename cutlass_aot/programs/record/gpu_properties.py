"""torch's properties of a GPU, for the GPU of a device profile."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.schema.targets import HARDWARE, Target


class _Memory(NamedTuple):
    """L2 cache and memory in bytes, which depend on the model: from the data sheets, which name the model."""

    L2_cache_size: int
    total_memory: int


_MB, _GB = 1 << 20, 1 << 30
_MEMORY = MappingProxyType({
    (8, 0): _Memory(40 * _MB, 80 * _GB),  # A100 80GB
    (8, 6): _Memory(6 * _MB, 48 * _GB),  # A40
    (8, 9): _Memory(96 * _MB, 48 * _GB),  # L40S
    (9, 0): _Memory(50 * _MB, 141 * _GB),  # H200
    (10, 0): _Memory(126 * _MB, 180 * _GB),  # B200
    (10, 3): _Memory(126 * _MB, 279 * _GB),  # GB300
    (10, 7): _Memory(126 * _MB, 288 * _GB),  # Rubin; its L2 cache is not published, and taken from the B200
    (11, 0): _Memory(32 * _MB, 128 * _GB),  # Jetson AGX Thor
    (12, 0): _Memory(128 * _MB, 96 * _GB),  # RTX PRO 6000
    (12, 1): _Memory(24 * _MB, 128 * _GB),  # GB10
})  # fmt: skip
_SMS = {Target.parse(name)[:2]: hardware.sm for name, hardware in HARDWARE.items()}


@dataclass(frozen=True, slots=True)
class GpuProperties:
    """The result of ``torch.cuda.get_device_properties``, with the names in builds of torch with CUDA."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    max_threads_per_multi_processor: int
    L2_cache_size: int
    total_memory: int
    shared_memory_per_block: int = 48 << 10
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    uuid: str = "00000000-0000-0000-0000-000000000000"

    @classmethod
    def of(cls, profile: DeviceProfile, seen: tuple[int, int]) -> GpuProperties:
        """The GPU of a profile. A compute capability that is not in the table is taken for the next older."""
        known = max((known for known in _MEMORY if known <= seen), default=min(_MEMORY))
        sm = _SMS[known]
        return cls(
            profile.gpu,
            *seen,
            profile.sm_count,
            sm.block_bytes,
            sm.shared_bytes,
            sm.threads,
            **_MEMORY[known]._asdict(),
        )
