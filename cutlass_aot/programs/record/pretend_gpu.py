"""Run a program where there is no GPU as if there were one: questions are answered from a device profile.

:func:`install` is called in the process that is to run the program, before the program's first line. It
imports neither torch nor the DSL: their answers are put in place when the program imports them.

Tensors on the GPU are fake (torch's FakeTensorMode): they have a shape, strides, a dtype and
``device="cuda"``, and no data. Tensors on the CPU are real, except what is computed from or copied from those
on the GPU. What asks a fake tensor for data ends in torch's own exception, which
:func:`explain_data_dependence` puts in words.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.programs.start.after_import import AfterImport
from cutlass_aot.programs.start.packages import cache_environment, target_environment
from cutlass_aot.runtime.launching.dlpack import ManagedTensor, capsule_of, tensor_in
from cutlass_aot.schema.targets import Target

CUDA_VERSION = "13.0"
"""What ``torch.version.cuda`` is where torch is a build without CUDA."""


@dataclass(frozen=True, slots=True)
class _Chip:
    """Numbers of a compute capability that a device profile does not have.

    Source of all but the memory and the second-level cache: CUDA Programming Guide, "Technical Specifications
    per Compute Capability". Those two depend on the model; they are of A100 80GB, A40, L40S, H200, B200,
    GB300 and RTX PRO 6000, by their data sheets.
    """

    shared_memory_per_block: int
    shared_memory_per_multiprocessor: int
    threads_per_multiprocessor: int
    l2_cache: int
    memory: int


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
_WARP = 32
_REGISTERS = 65536
_SHARED_MEMORY_PER_BLOCK = 48 * _KB
_THREADS_PER_BLOCK = 1024


def environment(profile: DeviceProfile, target: str) -> dict[str, str]:
    """The environment variables that the process of the program needs besides those it is given.

    Raises:
        ValueError: if ``target`` is not a target.
    """
    return {
        **target_environment(target, profile.sm_count),
        **cache_environment(),
        # A GPU that is there is not to be used: the program has to see the one of the profile.
        "CUDA_VISIBLE_DEVICES": "",
    }


def capability(profile: DeviceProfile, target: str) -> tuple[int, int]:
    """The compute capability that the program sees: the profile's, if the target's code runs on that.

    A profile may stand in for a GPU of another kind, of which no profile exists; then it is the target's own.
    """
    parsed = Target.parse(target)
    same = parsed.major == profile.compute_capability[0] and parsed.runs_on(profile.compute_capability)
    return profile.compute_capability if same else (parsed.major, parsed.minor)


def install(profile: DeviceProfile, target: str, *, fake_tensors: bool) -> AfterImport:
    """Have torch and the DSL answer what the profile says, in this process and from their import on.

    Args:
        profile: the GPU that the program sees.
        target: GPU code target that is compiled for.
        fake_tensors: whether tensors are fake. If not, what the program does with tensors is left to torch,
            and only questions about the GPU are answered.

    Returns:
        What sees to it; :meth:`~AfterImport.end` stops it for what is not imported by then.

    Raises:
        ValueError: if ``target`` is not a target.
    """
    gpu = _Gpu.of(profile, capability(profile, target))
    wanted: dict[str, Callable[[ModuleType], None]] = {
        "torch": lambda torch: _pretend_torch(torch, gpu, fake_tensors),
        "cutlass.utils.hardware_info": lambda module: _pretend_hardware(module.HardwareInfo, profile, gpu),
        "cutlass.base_dsl.runtime.cuda": lambda module: _pretend_attributes(module, gpu),
    }
    if fake_tensors:
        wanted["cuda.bindings.driver"] = _pretend_context
        wanted["cutlass.operators.utils.tensor"] = _pretend_memory
        wanted["triton.runtime.jit"] = lambda module: _no_launches(module.JITFunction)
        wanted["triton.runtime.autotuner"] = lambda module: _no_launches(module.Autotuner)
    imports = AfterImport(wanted)
    imports.begin()
    return imports


@dataclass(frozen=True, slots=True)
class _Gpu:
    """What ``torch.cuda.get_device_properties`` gives, with the names that builds of torch with CUDA have."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    L2_cache_size: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    max_threads_per_multi_processor: int
    max_threads_per_block: int = _THREADS_PER_BLOCK
    regs_per_multiprocessor: int = _REGISTERS
    warp_size: int = _WARP
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    uuid: str = "00000000-0000-0000-0000-000000000000"

    @classmethod
    def of(cls, profile: DeviceProfile, seen: tuple[int, int]) -> _Gpu:
        """The GPU of a profile; of a compute capability that is not in the table, as the next older one."""
        older = [known for known in _CHIPS if known <= seen]
        chip = _CHIPS[max(older) if older else min(_CHIPS)]
        return cls(
            name=profile.gpu,
            major=seen[0],
            minor=seen[1],
            multi_processor_count=profile.sm_count,
            total_memory=chip.memory,
            L2_cache_size=chip.l2_cache,
            shared_memory_per_block=_SHARED_MEMORY_PER_BLOCK,
            shared_memory_per_block_optin=chip.shared_memory_per_block,
            shared_memory_per_multiprocessor=chip.shared_memory_per_multiprocessor,
            max_threads_per_multi_processor=chip.threads_per_multiprocessor,
        )


class _Nothing:
    """Does nothing: as a context manager, as a decorator, and as a function."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self, *args: Any, **options: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else None


class Stream(_Nothing):
    """A stream on which nothing runs. The default stream is the one whose handle is zero."""

    device_index = 0
    priority = 0

    def __init__(
        self, device: Any = None, priority: int = 0, *, cuda_stream: int = 0, **options: Any
    ) -> None:
        self.cuda_stream = self.stream_id = cuda_stream
        self.priority = priority

    @property
    def device(self) -> Any:
        """The device that is not there."""
        import torch

        return torch.device("cuda", 0)

    def record_event(self, event: Event | None = None) -> Event:
        """The event, or a new one."""
        return Event() if event is None else event

    def query(self) -> bool:
        """Whether everything is done: it is."""
        return True

    def wait_event(self, event: Any) -> None:
        """Do nothing."""

    wait_stream = wait_event

    def synchronize(self) -> None:
        """Do nothing."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)


class Event(_Nothing):
    """An event that has happened. No time passes between two of them."""

    def record(self, stream: Any = None) -> None:
        """Do nothing."""

    wait = record

    def query(self) -> bool:
        """Whether it has happened: it has."""
        return True

    def synchronize(self) -> None:
        """Do nothing."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds: more than none, since a program may divide by it."""
        return 1e-3


class Graph(_Nothing):
    """A CUDA graph of nothing."""

    def capture_begin(self, *args: Any, **options: Any) -> None:
        """Do nothing."""

    capture_end = replay = reset = enable_debug_mode = debug_dump = instantiate = capture_begin

    def pool(self) -> tuple[int, int]:
        """The handle of a memory pool."""
        return (0, 0)


def _answers(torch: Any, gpu: _Gpu) -> dict[str, Any]:
    """Name in ``torch.cuda`` to what stands there instead: an object each, since torch looks them up."""

    def constant(value: Any) -> Callable[..., Any]:
        return lambda *args, **options: value

    def streams(*args: Any, **options: Any) -> Stream:
        return Stream()

    def random_state(*args: Any, **options: Any) -> Any:
        return torch.zeros(16, dtype=torch.uint8)

    def external(data_ptr: int, *args: Any, **options: Any) -> Stream:
        return Stream(cuda_stream=data_ptr)

    def idle(name: str) -> type[_Nothing]:
        return type(name, (_Nothing,), {})

    answers: dict[str, Any] = {
        "is_available": constant(True),
        "is_initialized": constant(True),
        "device_count": constant(1),
        "current_device": constant(0),
        "get_device_capability": constant((gpu.major, gpu.minor)),
        "get_device_properties": constant(gpu),
        "get_device_name": constant(gpu.name),
        "get_arch_list": constant([f"sm_{gpu.major}{gpu.minor}"]),
        "get_gencode_flags": constant(""),
        "can_device_access_peer": constant(False),
        "is_current_stream_capturing": constant(False),
        "is_bf16_supported": constant(True),
        "is_tf32_supported": constant(True),
        "mem_get_info": constant((gpu.total_memory, gpu.total_memory)),
        "memory_stats": lambda *args, **options: {},
        "memory_summary": constant(""),
        "graph_pool_handle": constant((0, 0)),
        "get_rng_state": random_state,
        "get_rng_state_all": lambda *args: [random_state()],
        "initial_seed": constant(0),
        "get_sync_debug_mode": constant(0),
        "current_stream": streams,
        "default_stream": streams,
        "get_stream_from_external": external,
        "ExternalStream": external,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": idle("graph"),
        "stream": idle("stream"),
        "StreamContext": idle("StreamContext"),
        "device": idle("device"),
        "device_of": idle("device_of"),
        "_DeviceGuard": idle("_DeviceGuard"),
        "_exchange_device": constant(0),
        "_maybe_exchange_device": constant(0),
    }
    for name in (
        "_lazy_init", "_lazy_call", "init", "synchronize", "set_device", "set_stream", "empty_cache",
        "ipc_collect", "manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state",
        "set_rng_state_all", "set_sync_debug_mode", "set_per_process_memory_fraction", "_sleep",
        "reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated",
        "reset_max_memory_cached",
    ):  # fmt: skip
        answers[name] = constant(None)
    for name in (
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
        "memory_cached", "max_memory_cached", "memory_usage", "utilization", "device_memory_used",
    ):  # fmt: skip
        answers[name] = constant(0)
    return answers


def _pretend_torch(torch: Any, gpu: _Gpu, fake_tensors: bool) -> None:
    """Have ``torch.cuda`` answer, and make tensors fake."""
    cuda = torch.cuda
    for name, answer in _answers(torch, gpu).items():
        # torch.cuda hands on what its modules define, and programs know both names.
        for module in (cuda, cuda.memory, cuda.random, cuda.streams, cuda.graphs):
            if hasattr(module, name):
                setattr(module, name, answer)
    for name in ("range", "range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(cuda.nvtx, name, type(name, (_Nothing,), {}))
    torch.Generator = _generator(torch.Generator)
    if torch.version.cuda is None:
        torch.version.cuda = CUDA_VERSION
    if fake_tensors:
        _make_tensors_fake(torch)


def _generator(real: Any) -> Any:
    """torch's class of random number generators, all of which are of the CPU."""

    class Generator(real):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, "cpu")

    return Generator


class _Absent:
    """An attribute that a base class has and that this class has not."""

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError


_ADDRESSES = 1 << 44
_ALIGNMENT_SHIFT = 9


def _make_tensors_fake(torch: Any) -> None:
    """Enter a FakeTensorMode for as long as the process lives."""
    from torch._subclasses import fake_tensor

    # A mode asks whether there is a GPU that it has to start; there is, by the answers above, and it cannot.
    fake_tensor.FakeTensorMode.avoid_device_init = property(lambda mode: True)
    fake_tensor.init_gpu_context = lambda device: None

    def data_ptr(tensor: Any) -> int:
        """An address that nothing is at: aligned as torch's allocator does, and another for each storage."""
        storage = tensor.untyped_storage()._cdata >> 4 << _ALIGNMENT_SHIFT
        return int(_ADDRESSES + storage + tensor.storage_offset() * tensor.element_size())

    fake_tensor.FakeTensor.data_ptr = data_ptr
    fake_tensor.FakeTensor.__dlpack__ = lambda tensor, **options: _dlpack(torch, tensor)
    fake_tensor.FakeTensor.__dlpack_device__ = lambda tensor: _dlpack_device(tensor)
    # The exchange by functions of C would look for data; without it, consumers ask for the capsule.
    fake_tensor.FakeTensor.__dlpack_c_exchange_api__ = _Absent()
    _register_device_guard(torch)
    # On this thread alone is the mode active; autograd's own threads would run without it.
    torch._C._set_multithreading_enabled(False)
    torch.Tensor.pin_memory = lambda tensor, *args: tensor
    torch.Tensor.record_stream = lambda tensor, stream: None
    kernels = _registered_kernels(torch)
    _mode(torch, fake_tensor, kernels)(allow_non_fake_inputs=True).__enter__()


_GPU_KEYS = ("CUDA", "CompositeExplicitAutograd")


def _registered_kernels(torch: Any) -> dict[str, Callable[..., Any]]:
    """Name of every operator that is registered from now on to its implementation for a GPU, where in Python.

    Of a package's operator, torch would run with fake tensors what is said of its results, and nothing else.
    It is the implementation that asks ``cute.compile``.
    """
    kernels: dict[str, Callable[..., Any]] = {}
    impl = torch.library.Library.impl

    def recorded(library: Any, name: Any, function: Any, dispatch_key: str = "", **options: Any) -> Any:
        if (dispatch_key or library.dispatch_key) in _GPU_KEYS and library.ns not in ("aten", "prims"):
            written = name if isinstance(name, str) else name._schema.name
            kernels[f"{library.ns}::{written.rpartition('::')[2]}"] = function
        return impl(library, name, function, dispatch_key, **options)

    torch.library.Library.impl = recorded
    return kernels


def _mode(torch: Any, fake_tensor: Any, kernels: Mapping[str, Callable[..., Any]]) -> Any:
    """The class of FakeTensorMode in which tensors on the CPU are real, and packages' operators are run."""

    class FakeOnGpu(fake_tensor.FakeTensorMode):  # type: ignore[misc]
        is_of_pretended_gpu = True
        inside = False  # An operator on fake tensors may be made of others, which are all fake.

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            if self.inside:
                return super().__torch_dispatch__(func, types, args, kwargs or {})
            schema = func._schema
            kernel = kernels.get(f"{schema.name}.{schema.overload_name}".rstrip("."))
            if kernel is not None:
                with self:
                    return kernel(*args, **(kwargs or {}))
            options = dict(kwargs or {})
            options.pop("pin_memory", None)
            tensors = [leaf for leaf in _leaves((args, options)) if isinstance(leaf, torch.Tensor)]
            if not any(isinstance(tensor, fake_tensor.FakeTensor) for tensor in tensors):
                device = options.get("device")
                if (device is None or device.type == "cpu") and all(map(_is_on_cpu, tensors)):
                    return func(*args, **options)
            elif any(map(_is_real, _written(func, args, options))):
                # What is written into a tensor of the CPU is not known, and may not be read as if it were.
                raise fake_tensor.DataDependentOutputException(func)
            self.inside = True
            try:
                return super().__torch_dispatch__(func, types, args, options)
            finally:
                self.inside = False

    def _is_on_cpu(tensor: Any) -> bool:
        return bool(tensor.device.type == "cpu")

    def _is_real(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and not isinstance(value, fake_tensor.FakeTensor)

    return FakeOnGpu


def _leaves(value: Any) -> Iterator[Any]:
    """Everything in tuples, lists and maps."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        yield value
        return
    for item in value:
        yield from _leaves(item)


def _written(func: Any, args: Any, options: Mapping[str, Any]) -> Iterator[Any]:
    """The arguments that an operator of torch writes into."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else options.get(argument.name)
            yield from _leaves(value)


_CUDA_DEVICE, _LAZY_DEVICE = 1, 17
"""Of ``c10::DeviceType``."""


def _register_device_guard(torch: Any) -> None:
    """Let autograd record operations on fake CUDA tensors with a build of torch that has no CUDA.

    It asks which device is current, of a table in which such a build has nothing for CUDA, and ends the
    process. A build with CUDA has an entry there, and torch puts one that does nothing in its place where it
    reports no device. The entry of lazy tensors, which reports none either, stands in for it until then.
    """
    if torch.cuda._is_compiled():
        return
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        guards = (ctypes.c_void_p * (_LAZY_DEVICE + 1)).in_dll(
            library, "_ZN3c104impl26device_guard_impl_registryE"
        )
    except (OSError, ValueError):  # Another build of torch: programs that need no gradients run with it.
        return
    lazy = guards[_LAZY_DEVICE]
    if not guards[_CUDA_DEVICE] and lazy:
        guards[_CUDA_DEVICE] = lazy
        torch._C._ensureCUDADeviceGuardSet()
        if guards[_CUDA_DEVICE] == lazy:
            guards[_CUDA_DEVICE] = None


_DL_CPU, _DL_CUDA = 1, 2
_described: list[Any] = []
"""What capsules point to: their consumers may keep it, and none of them gives it back."""


def _dlpack_device(tensor: Any) -> tuple[int, int]:
    device = tensor.device
    return (_DL_CUDA, device.index or 0) if device.type == "cuda" else (_DL_CPU, 0)


def _dlpack(torch: Any, tensor: Any) -> Any:
    """A DLPack capsule of a fake tensor: everything but data."""
    with _no_modes():
        # The type as torch itself gives it, which knows every one of its dtypes.
        real = torch.empty(0, dtype=tensor.dtype).__dlpack__()
    rank = tensor.dim()
    sizes, strides = (ctypes.c_int64 * rank)(*tensor.shape), (ctypes.c_int64 * rank)(*tensor.stride())
    device_type, device_id = _dlpack_device(tensor)
    described = ManagedTensor(
        data=tensor.data_ptr(),
        device_type=device_type,
        device_id=device_id,
        ndim=rank,
        dtype=tensor_in(real).dtype,
        shape=sizes,
        strides=strides,
    )
    _described.append((described, sizes, strides))
    return capsule_of(described)


@contextlib.contextmanager
def _no_modes() -> Iterator[None]:
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


def _no_launches(kernel: Any) -> None:
    """Have kernels of Triton run nothing: there is neither a driver to compile them for nor data."""
    kernel.run = lambda self, *args, **options: None


def _pretend_context(driver: Any) -> None:
    """Have the driver say that there is a context, as there is one after the first tensor on a GPU."""
    success = driver.CUresult.CUDA_SUCCESS
    driver.cuCtxGetCurrent = lambda: (success, driver.CUcontext(1))
    driver.cuCtxGetDevice = lambda: (success, driver.CUdevice(0))


def _pretend_memory(module: Any) -> None:
    """Have NVIDIA's operators take tensors of the pretended GPU for ones with memory: to run, they need them.

    Fake tensors of a mode that the program has entered itself remain what they are.
    """
    is_fake = module.is_torch_fake_tensor
    module.is_torch_fake_tensor = lambda tensor: (
        is_fake(tensor) and not getattr(tensor.fake_mode, "is_of_pretended_gpu", False)
    )


def _pretend_hardware(hardware: Any, profile: DeviceProfile, gpu: _Gpu) -> None:
    """Have ``HardwareInfo`` answer. Its methods are replaced, since programs import the class by name."""

    def begin(self: Any, device_id: int = 0) -> None:
        self.device_id = device_id

    hardware.__init__ = begin
    hardware.get_max_active_clusters = lambda self, cluster_size, stream=None: profile.active_clusters(
        cluster_size
    )
    hardware.get_device_multiprocessor_count = lambda self: profile.sm_count
    hardware.get_l2_cache_size_in_bytes = lambda self: gpu.L2_cache_size


def _pretend_attributes(runtime: Any, gpu: _Gpu) -> None:
    """Have the DSL's own questions answered: it has one of kernels with several blocks a multiprocessor."""
    attributes = {
        "COMPUTE_CAPABILITY_MAJOR": gpu.major,
        "COMPUTE_CAPABILITY_MINOR": gpu.minor,
        "L2_CACHE_SIZE": gpu.L2_cache_size,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": gpu.shared_memory_per_block_optin,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": gpu.shared_memory_per_multiprocessor,
        "MULTIPROCESSOR_COUNT": gpu.multi_processor_count,
        "WARP_SIZE": gpu.warp_size,
    }
    ask = runtime.get_device_attribute

    def answer(attribute: Any, device_id: int = 0) -> Any:
        known = attributes.get(attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_"))
        return ask(attribute, device_id) if known is None else known

    runtime.get_device_attribute = answer


_NEEDS_DATA = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
_NEEDS_DATA_TEXT: Mapping[str, str] = MappingProxyType({
    ".numpy() is not supported for tensor subclasses": "its values as a NumPy array",
    "Cannot access data pointer of": "the address of its data",
    "Cannot convert a tensor to a list": "its values as a list",
})  # fmt: skip


_NO_BACKWARD = "Cannot access accelerator device when none is available"


def explain_data_dependence(error: BaseException) -> str | None:
    """Why a program cannot go on with tensors that are not there, in one sentence; None for another error."""
    for cause in _causes(error):
        asked = _asked(cause)
        if asked is not None:
            return (
                f"the program asked for something that depends on data which is not there ({asked}): give "
                "the value in the program instead of reading it from a tensor, or, where its tensors are on "
                'the CPU, set `tensors = "real"` in the table'
            )
        if _NO_BACKWARD in str(cause):
            return (
                "the program called torch's autograd, whose backward pass does not run without a GPU in a "
                "build of torch without CUDA: call the package's own function for the backward pass"
            )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        yield now
        now = now.__cause__ or now.__context__


def _asked(error: BaseException) -> str | None:
    """What was asked, in words; None where the error has another reason."""
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("torch")}
    if not kinds.isdisjoint(_NEEDS_DATA):
        return str(getattr(error, "func", None) or error).splitlines()[0]
    text = str(error)
    return next((words for part, words in _NEEDS_DATA_TEXT.items() if part in text), None)
