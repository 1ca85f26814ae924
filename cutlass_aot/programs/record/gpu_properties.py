"""torch's properties of a GPU, for the GPU of a device profile."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from cutlass_aot.generators.device_profiles import DeviceProfile


class _Chip(NamedTuple):
    """Numbers of a compute capability, in bytes, that a device profile does not have.

    From the CUDA Programming Guide, "Technical Specifications per Compute Capability". Memory and L2 cache
    depend on the model: they are from the data sheets of A100 80GB, A40, L40S, H200, B200, GB300 and RTX PRO
    6000.
    """

    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    max_threads_per_multi_processor: int
    L2_cache_size: int
    total_memory: int


_KB, _MB, _GB = 1 << 10, 1 << 20, 1 << 30
_CHIPS = MappingProxyType({
    (8, 0): _Chip(163 * _KB, 164 * _KB, 2048, 40 * _MB, 80 * _GB),
    (8, 6): _Chip(99 * _KB, 100 * _KB, 1536, 6 * _MB, 48 * _GB),
    (8, 9): _Chip(99 * _KB, 100 * _KB, 1536, 96 * _MB, 48 * _GB),
    (9, 0): _Chip(227 * _KB, 228 * _KB, 2048, 50 * _MB, 141 * _GB),
    (10, 0): _Chip(227 * _KB, 228 * _KB, 2048, 126 * _MB, 180 * _GB),
    (10, 3): _Chip(227 * _KB, 228 * _KB, 2048, 126 * _MB, 279 * _GB),
    (12, 0): _Chip(99 * _KB, 100 * _KB, 1536, 128 * _MB, 96 * _GB),
})  # fmt: skip


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
    shared_memory_per_block: int = 48 * _KB
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
        older = [known for known in _CHIPS if known <= seen]
        chip = _CHIPS[max(older) if older else min(_CHIPS)]
        return cls(profile.gpu, *seen, profile.sm_count, **chip._asdict())
