"""CUDA's driver and runtime, as cuda-python has them, without a GPU: they describe the GPU of a profile.

Programs and packages ask ``cuda.bindings`` or ``cuda.core`` for the compute capability or the number of
multiprocessors to decide which kernel to compile, and so does the DSL. They time kernels by streams, events
and graphs, which are there and empty. What would need a GPU, such as memory, stays an error.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from cutlass_aot.programs.record.gpu_properties import GpuProperties

_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_RESERVED_SHARED_BYTES = 1024
"""Of each block's shared memory, from compute capability 8.0 on."""
STREAM = 1 << 20
"""The handle of a stream that a program makes: none of those that mean the same in every process."""
EVENT = 1
"""The handle of an event that a program makes."""
_GRAPH = 1
"""The handle of a graph, and of what is made of it."""
ELAPSED = 1e-3
"""Milliseconds between events; not 0, since a program may divide by it."""
_limits = {0: 1 << 10, 1: 1 << 20, 2: 8 << 20}
"""Bytes of a thread's stack, of the buffer of ``printf`` and of the heap of ``malloc``, as they are at first
(CUDA C++ Programming Guide) or as they were set. Keys are those of ``CUlimit``."""


def _attributes(gpu: GpuProperties) -> dict[str, int]:
    """Attributes by their names in the driver, without the prefix. Those of the runtime have their numbers.

    What no program was seen to decide a kernel by is left out.
    """
    return {
        "MAX_THREADS_PER_BLOCK": gpu.max_threads_per_block,
        **{f"MAX_BLOCK_DIM_{axis}": extent for axis, extent in zip("XYZ", _MAX_BLOCK, strict=True)},
        **{f"MAX_GRID_DIM_{axis}": extent for axis, extent in zip("XYZ", _MAX_GRID, strict=True)},
        "MAX_SHARED_MEMORY_PER_BLOCK": gpu.shared_memory_per_block,
        "WARP_SIZE": gpu.warp_size,
        "MAX_REGISTERS_PER_BLOCK": gpu.regs_per_multiprocessor,
        "MULTIPROCESSOR_COUNT": gpu.multi_processor_count,
        "INTEGRATED": gpu.is_integrated,
        "CONCURRENT_KERNELS": 1,
        "PCI_BUS_ID": gpu.pci_bus_id,
        "PCI_DEVICE_ID": gpu.pci_device_id,
        "PCI_DOMAIN_ID": gpu.pci_domain_id,
        "L2_CACHE_SIZE": gpu.L2_cache_size,
        "MAX_THREADS_PER_MULTIPROCESSOR": gpu.max_threads_per_multi_processor,
        "UNIFIED_ADDRESSING": 1,
        "COMPUTE_CAPABILITY_MAJOR": gpu.major,
        "COMPUTE_CAPABILITY_MINOR": gpu.minor,
        "STREAM_PRIORITIES_SUPPORTED": 1,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": gpu.shared_memory_per_multiprocessor,
        "MAX_REGISTERS_PER_MULTIPROCESSOR": gpu.regs_per_multiprocessor,
        "MANAGED_MEMORY": 1,
        "COOPERATIVE_LAUNCH": 1,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": gpu.shared_memory_per_block_optin,
        "RESERVED_SHARED_MEMORY_PER_BLOCK": _RESERVED_SHARED_BYTES,
        "CLUSTER_LAUNCH": int(gpu.major >= 9),
    }


def _attribute(driver: Any, gpu: GpuProperties, success: Any, unknown: Any) -> Callable[[Any, Any], Any]:
    """The function that tells an attribute by its number, which it has in the driver and in the runtime."""
    numbers = {
        int(getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")): value
        for name, value in _attributes(gpu).items()
    }

    def attribute(number: Any, device: Any) -> tuple[Any, int]:
        value = numbers.get(int(number))
        return (success, value) if value is not None else (unknown, 0)

    return attribute


def answer_for_driver(driver: Any, gpu: GpuProperties, clusters: Mapping[int, int], *, context: bool) -> None:
    """Make ``cuda.bindings.driver`` describe a GPU.

    Args:
        clusters: how many clusters run at once, by their size in blocks.
        context: whether it has a context too, as after the first tensor on a GPU, in which nothing runs.
    """
    success = driver.CUresult.CUDA_SUCCESS
    unknown = driver.CUresult.CUDA_ERROR_NOT_SUPPORTED
    answers: dict[str, Callable[..., Any]] = {
        "cuInit": lambda flags: (success,),
        "cuDriverGetVersion": lambda: (success, driver.CUDA_VERSION),
        "cuDeviceGetCount": lambda: (success, 1),
        "cuDeviceGet": lambda ordinal: _of_ordinal(
            ordinal, (success, driver.CUdevice(0)), (driver.CUresult.CUDA_ERROR_INVALID_DEVICE, None)
        ),
        "cuDeviceGetAttribute": _attribute(driver, gpu, success, unknown),
        "cuDeviceGetName": lambda length, dev: (success, gpu.name.encode()[: length - 1]),
        "cuDeviceComputeCapability": lambda dev: (success, gpu.major, gpu.minor),
        "cuDeviceTotalMem": lambda dev: (success, gpu.total_memory),
        # What describes a tensor to the GPU is read by kernels alone.
        **{
            f"cuTensorMapEncode{kind}": lambda *tensor: (success, driver.CUtensorMap())
            for kind in ("Tiled", "Im2col", "Im2colWide")
        },
    }
    if context:
        present = driver.CUcontext(1)
        answers |= {
            "cuCtxGetCurrent": lambda: (success, present),
            "cuCtxGetDevice": lambda: (success, driver.CUdevice(0)),
            "cuCtxSetCurrent": lambda ctx: (success,),
            "cuCtxSynchronize": lambda: (success,),
            **_of_limits("cuCtx", success, unknown),
            **_occupancy(driver, clusters, success),
            "cuDevicePrimaryCtxRetain": lambda dev: (success, present),
            "cuDevicePrimaryCtxRelease": lambda dev: (success,),
            **_idle("cu", success, driver.CUstream, driver.CUevent, driver.CUgraph, driver.CUgraphExec),
        }
    _replace(driver, answers)


def answer_for_runtime(runtime: Any, gpu: GpuProperties, *, context: bool) -> None:
    """Make ``cuda.bindings.runtime`` describe a GPU; see :func:`answer_for_driver`."""
    # The driver's names of attributes; its hook has been called, or will be.
    from cuda.bindings import driver

    success = runtime.cudaError_t.cudaSuccess
    unknown = runtime.cudaError_t.cudaErrorNotSupported
    invalid = runtime.cudaError_t.cudaErrorInvalidDevice

    def properties(device: Any) -> tuple[Any, Any]:
        return _of_ordinal(device, (success, _properties(runtime, gpu)), (invalid, None))

    answers: dict[str, Callable[..., Any]] = {
        "cudaDriverGetVersion": lambda: (success, driver.CUDA_VERSION),
        "cudaRuntimeGetVersion": lambda: (success, driver.CUDA_VERSION),
        "cudaGetDeviceCount": lambda: (success, 1),
        "cudaGetDevice": lambda: (success, 0),
        "cudaSetDevice": lambda device: _of_ordinal(device, (success,), (invalid,)),
        "cudaDeviceGetAttribute": _attribute(driver, gpu, success, unknown),
        "cudaGetDeviceProperties": properties,
    }
    if context:
        answers |= {
            "cudaDeviceSynchronize": lambda: (success,),
            "cudaGetLastError": lambda: (success,),
            "cudaPeekAtLastError": lambda: (success,),
            **_of_limits("cudaDevice", success, unknown),
            **_idle(
                "cuda",
                success,
                runtime.cudaStream_t,
                runtime.cudaEvent_t,
                runtime.cudaGraph_t,
                runtime.cudaGraphExec_t,
            ),
        }
    _replace(runtime, answers)


def answer_for_core(core: Any, gpu: GpuProperties) -> None:
    """Make ``cuda.core`` describe a GPU."""

    class Device:
        """The GPU, by its ordinal."""

        compute_capability = _ComputeCapability(gpu.major, gpu.minor)
        arch = f"{gpu.major}{gpu.minor}"
        name = gpu.name
        properties = SimpleNamespace(**{name.lower(): value for name, value in _attributes(gpu).items()})

        def __init__(self, device_id: Any = None) -> None:
            self.device_id = int(device_id or 0)
            if self.device_id != 0:
                raise ValueError(f"device_id is {device_id}, expected 0: there is one GPU")

        def __int__(self) -> int:
            return self.device_id

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Device)

        def __hash__(self) -> int:
            return hash(self.device_id)

        @classmethod
        def get_all_devices(cls) -> tuple[Device, ...]:
            """The GPU."""
            return (cls(),)

        def set_current(self, *context: Any) -> None:
            """Do nothing: it is the current one."""

        def sync(self) -> None:
            """Do nothing: nothing runs."""

    core.Device = Device


class _ComputeCapability(NamedTuple):
    major: int
    minor: int


def _idle(
    prefix: str, success: Any, stream: Any, event: Any, graph: Any, executable: Any
) -> dict[str, Callable[..., Any]]:
    """The functions of streams, events and graphs of a GPU on which nothing runs. A graph has one node."""
    made = {
        "StreamCreate": stream(STREAM),
        "StreamCreateWithFlags": stream(STREAM),
        "StreamCreateWithPriority": stream(STREAM),
        "EventCreate": event(EVENT),
        "EventCreateWithFlags": event(EVENT),
        "EventElapsedTime": ELAPSED,
        "StreamEndCapture": graph(_GRAPH),
        "GraphInstantiate": executable(_GRAPH),
        "GraphInstantiateWithFlags": executable(_GRAPH),
    }
    done = (
        *("StreamSynchronize", "StreamQuery", "StreamWaitEvent", "StreamDestroy"),
        *("EventRecord", "EventRecordWithFlags", "EventSynchronize", "EventQuery", "EventDestroy"),
        *("StreamBeginCapture", "GraphLaunch", "GraphUpload", "GraphExecDestroy", "GraphDestroy"),
    )
    return {
        **{prefix + name: lambda *arguments, value=value: (success, value) for name, value in made.items()},
        **{prefix + name: lambda *arguments: (success,) for name in done},
        f"{prefix}GraphGetNodes": lambda graph, *count: (success, [], 1),
    }


def _occupancy(driver: Any, clusters: Mapping[int, int], success: Any) -> dict[str, Callable[..., Any]]:
    """What tells which clusters of a kernel the GPU runs: those of the profile, whatever the kernel is."""

    def active(function: Any, config: Any) -> tuple[Any, int]:
        dimension = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        shapes = [item.value.clusterDim for item in config.attrs if item.id == dimension]
        size = shapes[0].x * shapes[0].y * shapes[0].z if shapes else 1
        return success, clusters.get(size, 0)

    largest = max(size for size, count in clusters.items() if count)
    return {
        "cuFuncSetAttribute": lambda function, attribute, value: (success,),
        "cuOccupancyMaxActiveClusters": active,
        "cuOccupancyMaxPotentialClusterSize": lambda function, config: (success, largest),
    }


def _of_limits(prefix: str, success: Any, unknown: Any) -> dict[str, Callable[..., Any]]:
    """The functions of a context's limits, which have the same numbers in the driver and in the runtime."""

    def tell(number: Any) -> tuple[Any, int]:
        value = _limits.get(int(number))
        return (success, value) if value is not None else (unknown, 0)

    def set_to(number: Any, value: Any) -> tuple[Any]:
        if int(number) not in _limits:
            return (unknown,)
        _limits[int(number)] = int(value)
        return (success,)

    return {f"{prefix}GetLimit": tell, f"{prefix}SetLimit": set_to}


def _of_ordinal(ordinal: Any, found: tuple[Any, ...], missing: tuple[Any, ...]) -> tuple[Any, ...]:
    """There is one GPU, whose ordinal is 0."""
    return found if int(ordinal) == 0 else missing


def _properties(runtime: Any, gpu: GpuProperties) -> Any:
    made = runtime.cudaDeviceProp()
    values: Mapping[str, Any] = {
        # Cython's arrays of characters take all of their bytes.
        "name": gpu.name.encode()[:255].ljust(256, b"\0"),
        "major": gpu.major,
        "minor": gpu.minor,
        "multiProcessorCount": gpu.multi_processor_count,
        "totalGlobalMem": gpu.total_memory,
        "l2CacheSize": gpu.L2_cache_size,
        "warpSize": gpu.warp_size,
        "maxThreadsPerBlock": gpu.max_threads_per_block,
        "maxThreadsPerMultiProcessor": gpu.max_threads_per_multi_processor,
        "maxThreadsDim": list(_MAX_BLOCK),
        "maxGridSize": list(_MAX_GRID),
        "sharedMemPerBlock": gpu.shared_memory_per_block,
        "sharedMemPerBlockOptin": gpu.shared_memory_per_block_optin,
        "sharedMemPerMultiprocessor": gpu.shared_memory_per_multiprocessor,
        "reservedSharedMemPerBlock": _RESERVED_SHARED_BYTES,
        "regsPerBlock": gpu.regs_per_multiprocessor,
        "regsPerMultiprocessor": gpu.regs_per_multiprocessor,
        "integrated": gpu.is_integrated,
        "concurrentKernels": 1,
        "cooperativeLaunch": 1,
        "clusterLaunch": int(gpu.major >= 9),
    }
    for name, value in values.items():
        setattr(made, name, value)
    return made


def _replace(module: Any, answers: Mapping[str, Callable[..., Any]]) -> None:
    for name, answer in answers.items():
        # Neither the driver and the runtime nor two releases of one have all of them.
        if function := getattr(module, name, None):
            setattr(module, name, _called_as(function, answer))


def _called_as(function: Any, answer: Callable[..., Any]) -> Callable[..., Any]:
    """The answer, called as the function is, whose arguments have names; it gets them in their order."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        return answer(*bound.args)

    return called
