"""``torch.cuda`` without a GPU: it describes the GPU of a profile, and runs nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cutlass_aot.programs.record.gpu_properties import GpuProperties
from cutlass_aot.programs.record.pretend_cuda import ELAPSED, EVENT, STREAM

CUDA_VERSION = "13.0"
"""``torch.version.cuda`` for a build of torch without CUDA."""


class _Idle:
    """A context manager, decorator and function that does nothing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self, *args: Any, **options: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else None

    def do_nothing(self, *args: Any, **options: Any) -> None:
        """Do nothing."""


class Stream(_Idle):
    """A stream on which nothing runs. The default one has the handle 0, those of the program another."""

    device_index = 0

    def __init__(
        self, device: Any = None, priority: int = 0, *, cuda_stream: int = STREAM, **options: Any
    ) -> None:
        self.cuda_stream = self.stream_id = cuda_stream
        self.priority = priority

    wait_event = wait_stream = synchronize = _Idle.do_nothing

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority."""
        return (0, -3)

    @property
    def device(self) -> Any:
        """The pretended GPU."""
        import torch

        return torch.device("cuda", 0)

    def record_event(self, event: Event | None = None) -> Event:
        """The event, or a new one."""
        return Event() if event is None else event

    def query(self) -> bool:
        """True: nothing is pending."""
        return True

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)


class Event(_Idle):
    """An event that has happened."""

    cuda_event = EVENT
    record = wait = synchronize = _Idle.do_nothing

    def query(self) -> bool:
        """True: it has happened."""
        return True

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds."""
        return ELAPSED


class Graph(_Idle):
    """An empty CUDA graph."""

    capture_begin = capture_end = replay = reset = _Idle.do_nothing
    enable_debug_mode = debug_dump = instantiate = _Idle.do_nothing

    def pool(self) -> tuple[int, int]:
        """The handle of a memory pool."""
        return (0, 0)


class MemPool(_Idle):
    """A memory pool from which nothing is allocated."""

    allocator = None
    _ids = itertools.count(1)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.id = (0, next(self._ids))

    def use_count(self) -> int:
        """The number of its users."""
        return 1

    def snapshot(self, include_traces: bool = True) -> list[Any]:
        """Its segments: none."""
        return []


class Allocator(_Idle):
    """An allocator of the program's own, whose library is not loaded."""

    def allocator(self) -> None:
        """What a pool takes."""


_IDLE = (
    "graph", "stream", "StreamContext", "device", "device_of", "_DeviceGuard", "use_mem_pool",
    "caching_allocator_disabled",
)  # fmt: skip
_CONSTANTS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (True, ("is_available", "is_initialized", "is_bf16_supported", "is_tf32_supported")),
    (False, ("can_device_access_peer", "is_current_stream_capturing")),
    (1, ("device_count",)),
    (1.0, ("get_per_process_memory_fraction",)),
    ("native", ("get_allocator_backend",)),
    ("", ("get_gencode_flags", "memory_summary")),
    ((0, 0), ("graph_pool_handle",)),
    (0, (
        "current_device", "initial_seed", "get_sync_debug_mode", "_exchange_device", "_maybe_exchange_device",
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
        "memory_cached", "max_memory_cached", "memory_usage", "utilization", "device_memory_used",
        "current_blas_handle", "current_solver_handle",
    )),
    (None, (
        "_lazy_init", "_lazy_call", "init", "synchronize", "set_device", "set_stream", "empty_cache",
        "ipc_collect", "manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state",
        "set_rng_state_all", "set_sync_debug_mode", "set_per_process_memory_fraction", "_sleep",
        "reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated",
        "reset_max_memory_cached", "reset_peak_host_memory_stats", "reset_accumulated_host_memory_stats",
        "caching_allocator_enable", "caching_allocator_delete", "change_current_allocator",
        "_record_memory_history", "_dump_snapshot",
    )),
)  # fmt: skip
_POOLS = (
    "_cuda_beginAllocateToPool", "_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool",
    "_cuda_releasePool",
)  # fmt: skip
_STATISTICS = (
    "memory_stats", "memory_stats_as_nested_dict", "host_memory_stats", "host_memory_stats_as_nested_dict",
)  # fmt: skip


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **options: value


def _answers(torch: Any, gpu: GpuProperties) -> dict[str, Any]:
    """Names in ``torch.cuda`` with their replacements: a separate object each, since torch looks them up."""

    def streams(*args: Any, **options: Any) -> Stream:
        return Stream(cuda_stream=0)

    def random_state(*args: Any, **options: Any) -> Any:
        return torch.zeros(16, dtype=torch.uint8)

    def external(data_ptr: int, *args: Any, **options: Any) -> Stream:
        return Stream(cuda_stream=data_ptr)

    return {
        **{name: _constant(value) for value, names in _CONSTANTS for name in names},
        **{name: type(name, (_Idle,), {}) for name in _IDLE},
        "get_device_capability": _constant((gpu.major, gpu.minor)),
        "get_device_properties": _constant(gpu),
        "get_device_name": _constant(gpu.name),
        "get_arch_list": _constant([f"sm_{gpu.major}{gpu.minor}"]),
        "mem_get_info": _constant((gpu.total_memory, gpu.total_memory)),
        **{name: lambda *args, **options: {} for name in _STATISTICS},
        "memory_snapshot": lambda *args, **options: [],
        "make_graphed_callables": lambda callables, *args, **options: callables,
        "get_rng_state": random_state,
        "get_rng_state_all": lambda *args: [random_state()],
        "current_stream": streams,
        "default_stream": streams,
        "get_stream_from_external": external,
        "ExternalStream": external,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "default_generators": (torch.default_generator,),
        "MemPool": MemPool,
        "CUDAPluggableAllocator": Allocator,
    }


def _answers_of_accelerator(torch: Any, gpu: GpuProperties) -> dict[str, Any]:
    """Names in ``torch.accelerator`` that are not in ``torch.cuda``."""
    return {
        "current_accelerator": lambda *args, **options: torch.device("cuda"),
        "get_memory_info": _constant((gpu.total_memory, gpu.total_memory)),
        "device_index": type("device_index", (_Idle,), {}),
        "Graph": Graph,
        **dict.fromkeys(("current_device_index", "current_device_idx"), _constant(0)),
        **dict.fromkeys(("set_device_index", "set_device_idx", "empty_host_cache"), _constant(None)),
    }


def _replace(modules: Iterable[Any], answers: Mapping[str, Any]) -> None:
    for module in modules:
        for name in answers.keys() & vars(module).keys():
            setattr(module, name, answers[name])


def answer_for(torch: Any, gpu: GpuProperties) -> None:
    """Make ``torch.cuda`` describe a GPU."""
    cuda = torch.cuda
    answers = _answers(torch, gpu)
    # torch.cuda re-exports names of its modules, and programs use both.
    _replace((cuda, cuda.memory, cuda.random, cuda.streams, cuda.graphs), answers)
    accelerator = torch.accelerator
    del answers["get_device_capability"]  # It tells element types there.
    _replace((accelerator, accelerator.memory), answers | _answers_of_accelerator(torch, gpu))
    for name in ("range", "range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(cuda.nvtx, name, type(name, (_Idle,), {}))
    # The handle of current_stream, as generated code asks for it; builds for the CPU have no such function.
    torch._C._cuda_getCurrentRawStream = _constant(0)
    # Programs that allocate from a pool of their own call these of either module.
    _replace((torch._C, cuda.memory), {name: _constant(None) for name in _POOLS})
    torch.Generator = _generator(torch.Generator)
    if torch.version.cuda is None:
        torch.version.cuda = CUDA_VERSION


def _generator(real: Any) -> Any:
    """torch's class of random number generators, always for the CPU."""

    class Generator(real):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, "cpu")

    return Generator
