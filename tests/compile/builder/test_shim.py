"""The shim's rules for devices, threads and failures: real objects over a CUDA driver made for the test."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.link.linker import LinkToolchain
from cutlass_aot.builder.native import SHIM_SYMBOLS
from cutlass_aot.schema.kernels.artifact import CODE_PREFIX, EXPORT_PREFIX
from tests.support.cubins import parameter_sizes
from tests.support.paths import C_SOURCES, REPOSITORY

pytestmark = pytest.mark.compile

SHIM = REPOSITORY / "cutlass_aot/builder/native/shim.c"
FAKE = C_SOURCES / "fake_driver.c"
KERNEL = "spread_sm_90a"
MAPPED = "mapped_sm_90a"
ADDRESSED = "addressed_sm_90a"
GLOBAL_CAPTURE = 0
CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6  # of CUlaunchAttributeID
ANNOUNCED = ["-Wl,--wrap=TVMFFIEnvGetStream"]
# As if objects asked for the stream at another time, or not at all: the shim is not told the device.
UNANNOUNCED = ["-DUNANNOUNCED"]
PARAMETERS = 32  # that the driver keeps


class Tensor(ctypes.Structure):
    """A DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class Value(ctypes.Structure):
    """A TVMFFIAny."""

    _fields_ = (("kind", ctypes.c_int32), ("zero", ctypes.c_int32), ("pointer", ctypes.c_void_p))


class Dimensions(ctypes.Structure):
    """Three extents."""

    _fields_ = (("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32))

    def __iter__(self) -> Iterator[int]:
        return iter((self.x, self.y, self.z))


class LaunchConfiguration(ctypes.Structure):
    """A CUlaunchConfig."""

    _fields_ = (
        ("grid", Dimensions),
        ("block", Dimensions),
        ("shared_memory_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
    )


class LaunchAttribute(ctypes.Structure):
    """A CUlaunchAttribute, with the first numbers of its value."""

    _fields_ = (("kind", ctypes.c_int32), ("padding", ctypes.c_int32), ("value", ctypes.c_uint32 * 16))


class Kernel:
    """One object in a library of its own, over a CUDA driver of its own unless that is another's.

    Args:
        path: the library.
        code: what its slot is given; None for nothing.
        symbol: of the object.
    """

    def __init__(self, path: Path, code: bytes | None, symbol: str = KERNEL) -> None:
        self.library = ctypes.CDLL(str(path))
        self._symbol = symbol
        self._function = getattr(self.library, EXPORT_PREFIX + symbol)
        self._function.restype = ctypes.c_int
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value
        if code is not None:
            self.provide(code)

    def provide(self, code: bytes, size: int | None = None, offset: int = 0) -> int:
        """Fill the slot: the address that it has then, of ``code`` behind ``offset`` bytes."""
        self._code = (ctypes.c_uint64 * (-(-(len(code) + offset) // 8)))()
        address = ctypes.addressof(self._code) + offset
        ctypes.memmove(address, code, len(code))
        slot = (ctypes.c_uint64 * 2).in_dll(self.library, CODE_PREFIX + self._symbol)
        slot[1] = len(code) if size is None else size
        slot[0] = address
        return address

    def keep_parameters(self) -> list[int]:
        """Have the driver keep the parameters of launches; gives their sizes, in bytes."""
        sizes = parameter_sizes(bytes(self._code))
        (ctypes.c_uint32 * PARAMETERS).in_dll(self.library, "fake_sizes")[: len(sizes)] = sizes
        return sizes

    def parameter(self, position: int) -> bytes:
        """The first 128 bytes of a parameter of the last launch, the whole of a tensor map."""
        kept = ctypes.c_char * 128 * PARAMETERS
        return kept.in_dll(self.library, "fake_parameters")[position].raw

    def launch_status(self, device: int) -> int:
        """Launch on a device; 0, or -1 with the error raised."""
        extent = (ctypes.c_int64 * 1)(128 * 300)
        stride = (ctypes.c_int64 * 1)(1)
        tensor = Tensor(0x10000, 2, device, 1, 2, 32, 1, extent, stride, 0)
        value = Value(7, 0, ctypes.addressof(tensor))  # 7: a DLTensor pointer
        result = Value()
        status: int = self._function(None, ctypes.byref(value), 1, ctypes.byref(result))
        return status

    def launch_on_addresses(self) -> str:
        """Launch an object that takes an address and a stream; the error's text, empty if there was none."""
        values = (Value * 2)(Value(4, 0, 0x10000), Value(4, 0, 0x57E0))  # 4: an opaque pointer
        status: int = self._function(None, values, 2, ctypes.byref(Value()))
        return self._text(status)

    def launch(self, device: int) -> str:
        """Launch on a device; the error's text, empty if there was none."""
        return self._text(self.launch_status(device))

    def _text(self, status: int) -> str:
        if status == 0:
            return ""
        self.library.fake_error.restype = ctypes.c_char_p
        return str(self.library.fake_error().decode())

    def __getitem__(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.library, f"fake_{name}").value

    def __setitem__(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.library, f"fake_{name}").value = value

    def each(self, name: str) -> ctypes.Array[ctypes.c_int]:
        """A counter of each device."""
        return (ctypes.c_int * 100).in_dll(self.library, f"fake_{name}")

    def pointer(self, name: str) -> int:
        """A pointer that the driver remembers; 0 for none."""
        return ctypes.c_uint64.in_dll(self.library, f"fake_{name}").value

    def lack(self, function: str) -> None:
        """Have the driver lack a function; an empty name for none."""
        (ctypes.c_char * 64).in_dll(self.library, "fake_lacks").value = function.encode()

    def context(self, function: str, *arguments: int) -> int:
        """A context, from a function of the fake driver; 0 for none."""
        found = getattr(self.library, f"fake_{function}")
        found.restype = ctypes.c_void_p
        return found(*arguments) or 0

    def current(self) -> tuple[int, int]:
        """The context of this thread, 0 for none, and how many there are on its stack."""
        return self.context("current"), self.library.fake_depth()

    def make_current(self, context: int) -> None:
        """Do what a framework does: set this thread's context; 0 for none."""
        self.library.fake_make_current(ctypes.c_void_p(context or None))


NO_CONTEXT = (0, 0)


@pytest.fixture(scope="session")
def code(objects: dict[str, Path]) -> bytes:
    """The GPU code of the object."""
    return KernelObject.from_bytes(objects[KERNEL].read_bytes()).gpu_code


@pytest.fixture(scope="session")
def build(
    compiled: dict[str, Path], compiler: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[list[str]], Path]:
    """Link an object with the shim as it is and the fake driver."""
    directory = tmp_path_factory.mktemp("shim")

    def link(flags: list[str]) -> Path:
        library = directory / f"{'unannounced' if flags == UNANNOUNCED else 'announced'}.so"
        if not library.exists():
            # Its own dlopen and TVMFFI functions are meant, also where another test has loaded the real ones.
            compiler([SHIM, FAKE, compiled[KERNEL]], library, "-Wl,-Bsymbolic", *flags)
        return library

    return link


@pytest.fixture
def load(build: Callable[[list[str]], Path], code: bytes, tmp_path: Path) -> Callable[[list[str]], Kernel]:
    """Load a copy of a library, with counters of its own."""
    numbers = itertools.count()

    def open_copy(flags: list[str]) -> Kernel:
        copy = tmp_path / f"{next(numbers)}.so"
        shutil.copy(build(flags), copy)
        return Kernel(copy, code)

    return open_copy


@pytest.fixture
def kernel(load: Callable[[list[str]], Kernel]) -> Kernel:
    """An object whose shim is told each launch's device, as it is in real libraries."""
    return load(ANNOUNCED)


@pytest.fixture
def mapped(
    objects: dict[str, Path], compiled: dict[str, Path], compiler: Callable[..., None], tmp_path: Path
) -> Kernel:
    """An object whose host code makes a tensor map."""
    library = tmp_path / "mapped.so"
    compiler([SHIM, FAKE, compiled[MAPPED]], library, "-Wl,-Bsymbolic", *ANNOUNCED)
    return Kernel(library, KernelObject.from_bytes(objects[MAPPED].read_bytes()).gpu_code, MAPPED)


@pytest.fixture
def addressed(
    objects: dict[str, Path], compiled: dict[str, Path], compiler: Callable[..., None], tmp_path: Path
) -> Kernel:
    """An object that takes addresses and no tensors."""
    library = tmp_path / "addressed.so"
    compiler([SHIM, FAKE, compiled[ADDRESSED]], library, "-Wl,-Bsymbolic", *ANNOUNCED)
    return Kernel(library, KernelObject.from_bytes(objects[ADDRESSED].read_bytes()).gpu_code, ADDRESSED)


def run_threads(number: int, body: Callable[[int], None]) -> None:
    barrier = threading.Barrier(number)

    def start(index: int) -> None:
        barrier.wait()
        body(index)

    threads = [threading.Thread(target=start, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_each_device_is_loaded_for_once(kernel: Kernel) -> None:
    for device in (0, 1, 0, 1, 63, 1):
        assert kernel.launch(device) == ""
    assert kernel["libraries"] == 1
    assert {d: n for d, n in enumerate(kernel.each("prepared")) if n} == {0: 1, 1: 1, 63: 1}
    assert {d: n for d, n in enumerate(kernel.each("launches")) if n} == {0: 2, 1: 3, 63: 1}
    assert kernel["unprepared"] == 0
    assert kernel["streams"] == 6


def test_no_context_on_a_device_other_than_the_launchs(kernel: Kernel) -> None:
    assert kernel.current() == NO_CONTEXT
    for device in (1, 0, 1):
        assert kernel.launch(device) == ""
        assert kernel.pointer("launch_context") == kernel.context("primary", device)
        # A thread without a context has none afterwards.
        assert kernel.current() == NO_CONTEXT
    assert [d for d, n in enumerate(kernel.each("contexts")) if n] == [0, 1]
    assert list(kernel.each("retained"))[:2] == [1, 1]


def test_the_callers_context_is_current_again(kernel: Kernel) -> None:
    assert kernel.launch(2) == ""
    kernel["fail_launches"] = 1
    assert "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" in kernel.launch(3)
    assert kernel.current() == NO_CONTEXT
    for caller in (kernel.context("primary", 0), kernel.context("foreign", 2)):
        kernel.make_current(caller)
        for failures in (0, 1):
            kernel["fail_launches"] = failures
            assert bool(kernel.launch(3)) == bool(failures)
            assert kernel.pointer("launch_context") == kernel.context("primary", 3)
            assert kernel.current() == (caller, 1)


@pytest.mark.parametrize("kind", ["primary", "foreign"])
def test_a_context_of_the_launchs_device_is_used_as_it_is(kernel: Kernel, kind: str) -> None:
    context = kernel.context(kind, 1)
    kernel.make_current(context)
    for _ in range(2):
        assert kernel.launch(1) == ""
        assert kernel.pointer("launch_context") == context
        assert kernel.current() == (context, 1)
    # The framework's primary context, which it keeps itself.
    assert sum(kernel.each("retained")) == 0
    assert sum(kernel.each("contexts")) == (kind == "primary")


def test_a_warm_launch_calls_the_driver_twice(kernel: Kernel) -> None:
    kernel.make_current(kernel.context("primary", 1))
    for device, calls in ((1, 2), (2, 4)):
        assert kernel.launch(device) == ""
        before = kernel["calls"]
        for _ in range(10):
            assert kernel.launch(device) == ""
        assert kernel["calls"] - before == 10 * calls
    assert kernel["inits"] == 1


def test_the_driver_gets_the_launch_as_the_object_asked_for_it(kernel: Kernel) -> None:
    """What conftest compiled the kernel with."""
    assert kernel.launch(1) == ""
    launched = LaunchConfiguration.in_dll(kernel.library, "fake_launch")
    assert (tuple(launched.grid), tuple(launched.block)) == ((4, 6, 2), (64, 2, 1))
    assert launched.shared_memory_bytes == 3072
    assert launched.stream == kernel.pointer("stream") != 0
    assert kernel["extra"] == 0
    attributes = (LaunchAttribute * 8).in_dll(kernel.library, "fake_attributes")
    values = {a.kind: list(a.value)[:3] for a in attributes[: launched.attribute_count]}
    assert len(values) == launched.attribute_count
    assert values[CLUSTER_DIMENSION] == [2, 3, 1]
    assert values[PROGRAMMATIC_STREAM_SERIALIZATION][0] == 1


def test_the_driver_makes_the_tensor_map_that_the_object_asked_for(mapped: Kernel) -> None:
    """What conftest compiled the kernel with, of a tensor of 600 rows of 64."""
    assert mapped.keep_parameters()[0] == 128
    assert mapped.launch(1) == ""

    def numbers(name: str, kind: type[ctypes._SimpleCData[int]], count: int) -> list[int]:
        return list((kind * count).in_dll(mapped.library, f"fake_{name}"))

    float32, swizzle_128_bytes = 7, 3
    assert numbers("map", ctypes.c_int, 6) == [float32, 2, 0, swizzle_128_bytes, 0, 0]
    assert mapped.pointer("map_address") == 0x10000
    assert numbers("map_extents", ctypes.c_uint64, 2) == [64, 600]
    assert numbers("map_strides", ctypes.c_uint64, 1) == [256]
    assert numbers("map_box", ctypes.c_uint32, 2) == [32, 8]
    assert numbers("map_steps", ctypes.c_uint32, 2) == [1, 1]
    assert mapped.parameter(0) == b"".join(struct.pack("<Q", word) for word in range(100, 116))


def test_a_tensor_map_that_cannot_be_made_is_the_launchs_error(mapped: Kernel) -> None:
    assert mapped.launch(1) == ""
    caller = mapped.context("primary", 0)
    mapped.make_current(caller)
    mapped["fail_maps"] = 1
    assert mapped.launch(1) == (
        "RuntimeError: cannot launch the kernel: what it is passed, such as a tensor map of an operand, "
        "cannot be made: CUDA_ERROR_OUT_OF_MEMORY (in words); the GPU is out of memory"
    )
    assert mapped.each("launches")[1] == 1
    assert mapped.current() == (caller, 1)
    assert mapped.launch(1) == "", "the error is gone with its launch"
    assert mapped.each("launches")[1] == 2


@pytest.mark.parametrize("flags", [ANNOUNCED, UNANNOUNCED])
def test_many_threads_on_two_devices(load: Callable[[list[str]], Kernel], flags: list[str]) -> None:
    kernel = load(flags)
    kernel["load_microseconds"] = 20_000
    errors: list[str] = []

    def body(index: int) -> None:
        errors.extend(kernel.launch(index % 2) for _ in range(50))

    run_threads(16, body)
    assert errors == [""] * 800
    assert kernel["libraries"] == 1
    assert list(kernel.each("prepared"))[:2] == [1, 1]
    assert list(kernel.each("launches"))[:2] == [400, 400]
    assert kernel["unprepared"] == kernel["overlaps"] == kernel["forbidden"] == 0


def test_a_failed_library_load_is_tried_again(kernel: Kernel) -> None:
    kernel["fail_libraries"] = 1
    error = kernel.launch(1)
    assert error.startswith("RuntimeError: cannot load the kernel on device 1: ")
    assert "CUDA_ERROR_NO_BINARY_FOR_GPU (in words); the kernel was built for another GPU" in error
    assert sum(kernel.each("launches")) == 0
    assert kernel.current() == NO_CONTEXT
    assert kernel.launch(1) == ""
    assert kernel["libraries"] == 1


def test_a_failed_load_for_one_device_leaves_the_other_alone(kernel: Kernel) -> None:
    kernel.each("fail_attributes")[1] = 1
    assert kernel.launch(0) == ""
    assert "device 1: CUDA_ERROR_OUT_OF_MEMORY" in kernel.launch(1)
    assert kernel.launch(0) == ""
    assert kernel.launch(1) == ""
    assert kernel["libraries"] == 1
    assert list(kernel.each("prepared"))[:2] == [1, 1]
    assert list(kernel.each("launches"))[:2] == [2, 1]
    assert kernel["unprepared"] == 0


def test_threads_meet_a_load_that_fails_once(kernel: Kernel) -> None:
    kernel["load_microseconds"] = 10_000
    kernel["fail_libraries"] = 1
    kernel.each("fail_attributes")[1] = 1
    errors: list[str] = []

    def body(index: int) -> None:
        errors.append(kernel.launch(index % 2))

    run_threads(12, body)
    failed = [error for error in errors if error]
    assert sum("NO_BINARY" in error for error in failed) == 1
    assert sum("device 1: CUDA_ERROR_OUT_OF_MEMORY" in error for error in failed) == 1
    assert len(failed) == 2
    assert kernel["libraries"] == 1
    assert list(kernel.each("prepared"))[:2] == [1, 1]
    assert sum(kernel.each("launches")) == 10
    assert kernel["unprepared"] == 0


@pytest.mark.parametrize("device", [64, 99, 1 << 30, -5])
def test_devices_beyond_the_mask_are_refused(kernel: Kernel, device: int) -> None:
    assert f"device {device}: devices 0 to 63 are supported" in kernel.launch(device)
    assert sum(kernel.each("launches")) == kernel["libraries"] == 0
    assert kernel.launch(63) == ""


def test_a_device_that_is_not_there_is_refused(kernel: Kernel) -> None:
    kernel.each("fail_attributes")[5] = 1
    assert "cannot load the kernel on device 5" in kernel.launch(5)
    assert sum(kernel.each("launches")) == 0


def test_loading_is_allowed_during_capture_and_the_mode_is_put_back(kernel: Kernel) -> None:
    assert kernel.library.fake_capture_mode() == GLOBAL_CAPTURE
    assert kernel.launch(0) == ""
    kernel.each("fail_attributes")[1] = 1
    assert kernel.launch(1) != ""
    assert kernel.launch(1) == ""
    assert kernel["forbidden"] == 0
    assert kernel.library.fake_capture_mode() == GLOBAL_CAPTURE


def test_a_device_that_was_not_announced_is_loaded_for_at_its_launch(
    load: Callable[[list[str]], Kernel],
) -> None:
    kernel = load(UNANNOUNCED)
    for device in (3, 0, 3, 4):
        assert kernel.launch(device) == ""
    assert kernel["libraries"] == 1
    assert kernel["unprepared"] == 0
    # The object needs its GPU functions before it switches devices, so that the current one comes first.
    assert {d: n for d, n in enumerate(kernel.each("prepared")) if n} == {0: 1, 3: 1, 4: 1}
    assert kernel.current() == NO_CONTEXT
    kernel.each("fail_attributes")[7] = 1
    assert "cannot load the kernel on device 7: CUDA_ERROR_OUT_OF_MEMORY" in kernel.launch(7)
    assert kernel.current() == NO_CONTEXT
    assert kernel.launch(7) == ""
    assert kernel["unprepared"] == 0


def test_a_current_context_is_where_an_unannounced_launch_loads_first(
    load: Callable[[list[str]], Kernel],
) -> None:
    kernel = load(UNANNOUNCED)
    context = kernel.context("foreign", 5)
    kernel.make_current(context)
    assert kernel.launch(5) == ""
    assert kernel.pointer("launch_context") == context
    assert kernel.current() == (context, 1)
    assert {d: n for d, n in enumerate(kernel.each("prepared")) if n} == {5: 1}
    assert sum(kernel.each("contexts")) == 0


def test_addresses_alone_are_launched_on_the_current_device(addressed: Kernel) -> None:
    """With two launches on each, of which the second knows what is loaded where."""
    for device in (1, 3):
        context = addressed.context("primary", device)
        addressed.make_current(context)
        for _ in range(2):
            assert addressed.launch_on_addresses() == ""
            assert addressed.pointer("launch_context") == context
            assert addressed.current() == (context, 1)
    assert {d: n for d, n in enumerate(addressed.each("prepared")) if n} == {1: 1, 3: 1}
    assert {d: n for d, n in enumerate(addressed.each("launches")) if n} == {1: 2, 3: 2}
    assert (addressed["libraries"], addressed["unprepared"], addressed["streams"]) == (1, 0, 0)


def test_addresses_alone_are_launched_on_the_first_device_if_none_is_current(addressed: Kernel) -> None:
    for failures in (0, 1, 0):
        addressed["fail_launches"] = failures
        assert bool(addressed.launch_on_addresses()) == bool(failures)
        assert addressed.pointer("launch_context") == addressed.context("primary", 0)
        assert addressed.current() == NO_CONTEXT
    assert sum(addressed.each("launches")) == addressed.each("launches")[0] == 2
    addressed.make_current(addressed.context("primary", 2))
    addressed.each("fail_attributes")[2] = 1
    assert "cannot load the kernel on device 2" in addressed.launch_on_addresses()
    assert addressed.launch_on_addresses() == ""


def test_an_empty_slot_is_an_error_that_names_it(
    build: Callable[[list[str]], Path], code: bytes, tmp_path: Path
) -> None:
    kernel = Kernel(shutil.copy(build(ANNOUNCED), tmp_path), None)
    for _ in range(2):
        error = kernel.launch(1)
        assert error.startswith("RuntimeError: cannot load the kernel: its GPU code was not provided")
        assert f"write the size and the address of the code to cutlass_aot_code_{KERNEL} before" in error
    assert kernel["libraries"] == sum(kernel.each("launches")) == 0
    assert kernel.current() == NO_CONTEXT
    assert kernel.library.fake_capture_mode() == GLOBAL_CAPTURE
    address = kernel.provide(code)
    assert kernel.launch(1) == ""
    assert kernel.pointer("code") == address


def test_the_slots_content_is_what_the_driver_loads(kernel: Kernel, code: bytes) -> None:
    address = kernel.provide(code + b"what follows in the same file")
    assert kernel.launch(1) == ""
    assert kernel.pointer("code") == address
    # Read by the first launch alone.
    kernel.provide(b"something else")
    assert kernel.launch(1) == kernel.launch(2) == ""
    assert kernel["libraries"] == 1


@pytest.mark.parametrize("size", [0, 15, 16, -1])
def test_a_part_of_the_code_is_refused(kernel: Kernel, code: bytes, size: int) -> None:
    size %= len(code)
    kernel.provide(code, size)
    error = kernel.launch(1)
    assert f"what cutlass_aot_code_{KERNEL} was given, {size} bytes at 0x" in error
    assert "is no whole fat binary" in error
    assert kernel["libraries"] == 0
    kernel.provide(code)
    assert kernel.launch(1) == ""


def test_what_is_no_code_is_refused(kernel: Kernel, code: bytes) -> None:
    kernel.provide(b"\0" + code[1:])
    assert "is no whole fat binary" in kernel.launch(1)
    kernel.provide(code, offset=4)
    assert "at an address divisible by 8" in kernel.launch(1)
    assert kernel["libraries"] == 0


def test_no_driver(kernel: Kernel) -> None:
    kernel["absent"] = 1
    for _ in range(2):
        error = kernel.launch(0)
        assert error.startswith(
            "RuntimeError: cannot load the kernel on device 0: there is no NVIDIA driver: "
            "libcuda.so.1 cannot be loaded (libcuda.so.1: no such file); install the GPU driver"
        )
    assert kernel["calls"] == 0
    kernel["absent"] = 0
    assert kernel.launch(0) == ""


def test_no_driver_for_an_unannounced_launch(load: Callable[[list[str]], Kernel]) -> None:
    kernel = load(UNANNOUNCED)
    kernel["absent"] = 1
    assert kernel.launch(0).startswith(
        "RuntimeError: cannot load the kernel: there is no NVIDIA driver: libcuda.so.1"
    )


def test_an_old_driver(kernel: Kernel) -> None:
    kernel["version"] = 11080
    assert kernel.launch(0) == (
        "RuntimeError: cannot load the kernel on device 0: the NVIDIA driver, of CUDA 11.8, has no "
        "cuGetProcAddress_v2: kernels need a driver of CUDA 12.0 or newer; upgrade it"
    )
    assert kernel["calls"] == 0


@pytest.mark.parametrize("version", [12000, 12090, 13010])
def test_drivers_since_cuda_12(kernel: Kernel, version: int) -> None:
    kernel["version"] = version
    assert kernel.launch(0) == kernel.launch(1) == ""
    assert kernel["unprepared"] == 0


@pytest.mark.parametrize("function", ["cuInit", "cuKernelSetAttribute", "cuLaunchKernelEx"])
def test_a_driver_that_lacks_a_function(kernel: Kernel, function: str) -> None:
    kernel["version"] = 12040
    kernel.lack(function)
    assert f"the NVIDIA driver, of CUDA 12.4, has no {function}: " in kernel.launch(0)
    assert kernel["calls"] == 0
    kernel.lack("")
    assert kernel.launch(0) == ""


def test_a_driver_that_does_not_start(kernel: Kernel) -> None:
    kernel["fail_init"] = 100
    assert kernel.launch(0) == (
        "RuntimeError: cannot load the kernel on device 0: CUDA_ERROR_NO_DEVICE (in words); "
        "no GPU is visible: check CUDA_VISIBLE_DEVICES"
    )
    kernel["fail_init"] = 12345
    assert "CUDA error 12345, which the driver has no name for" in kernel.launch(0)
    kernel["fail_init"] = 0
    assert kernel.launch(0) == ""


def test_dlclose_unloads_and_leaves_nothing_behind(build: Callable[[list[str]], Path], code: bytes) -> None:
    program = _PROGRAM + "_ctypes.dlclose(kernel.library._handle); os.write(1, b'closed\\n')\n"
    done = _run(program, build(ANNOUNCED), code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "launched\nclosed\n", "unloaded\n")


def test_nothing_is_unloaded_at_exit(build: Callable[[list[str]], Path], code: bytes) -> None:
    done = _run(_PROGRAM, build(ANNOUNCED), code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "launched\n", "")


def test_a_forked_child_launches_if_the_parent_has_not(
    build: Callable[[list[str]], Path], code: bytes
) -> None:
    program = (
        _PROGRAM.replace("assert", "child = os.fork()\nassert")
        + "if child: assert os.waitpid(child, 0)[1] == 0\n"
    )
    done = _run(program, build(ANNOUNCED), code)
    assert (done.returncode, done.stdout) == (0, "launched\n" * 2)


def test_a_child_forked_after_a_launch_is_told_why_it_cannot(
    build: Callable[[list[str]], Path], code: bytes
) -> None:
    program = (
        _PROGRAM
        + "child = os.fork()\n"
        + "if child: assert os.waitpid(child, 0)[1] == 0\n"
        + "else: os.write(1, kernel.launch(1).encode() + b'\\n' + kernel.launch(2).encode())\n"
    )
    done = _run(program, build(ANNOUNCED), code)
    assert done.returncode == 0
    advice = "CUDA_ERROR_NOT_INITIALIZED (in words); a process forked after its parent used CUDA cannot"
    launched, warm, cold = done.stdout.splitlines()
    assert launched == "launched"
    assert warm.startswith(f"RuntimeError: CUDA error: {advice}")
    assert cold.startswith(f"RuntimeError: cannot load the kernel on device 2: {advice}")


_PROGRAM = """
import _ctypes
import os
import sys
from pathlib import Path
from tests.compile.builder.test_shim import Kernel

kernel = Kernel(Path(sys.argv[1]), Path(sys.argv[2]).read_bytes())
kernel["talks"] = 1
assert kernel.launch(1) == ""
os.write(1, b"launched\\n")
"""


def _run(program: str, library: Path, code: bytes) -> subprocess.CompletedProcess[str]:
    given = library.with_suffix(".fatbin")
    given.write_bytes(code)
    return subprocess.run(
        [sys.executable, "-c", program, str(library), str(given)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_driver_is_found_as_a_library(
    compiled: dict[str, Path],
    toolchain: LinkToolchain,
    compiler: Callable[..., None],
    cache: Path,
    code: bytes,
    tmp_path: Path,
) -> None:
    """A library as it is shipped, which loads libcuda.so.1 and leaves it in the process."""
    compiler([FAKE], tmp_path / "libcuda.so.1", "-DLIBCUDA", "-Wl,-soname,libcuda.so.1")
    toolchain.link({KERNEL: compiled[KERNEL]}, tmp_path / "k.so", cache)
    program = (
        "import _ctypes, ctypes, sys\n"
        "from pathlib import Path\n"
        "import tvm_ffi.libinfo\n"
        "from tests.compile.builder.test_shim import Kernel\n"
        "def loaded(name): return name in Path('/proc/self/maps').read_text()\n"
        "ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi(), mode=ctypes.RTLD_GLOBAL)\n"
        "kernel = Kernel(Path(sys.argv[1]), Path(sys.argv[2]).read_bytes())\n"
        "assert not loaded('libcuda.so')\n"
        "assert kernel.launch_status(3) == 0\n"
        "_ctypes.dlclose(kernel.library._handle)\n"
        "assert not loaded('k.so') and loaded('libcuda.so')\n"
        "driver = ctypes.CDLL('libcuda.so.1')\n"
        "print(list((ctypes.c_int * 100).in_dll(driver, 'fake_launches'))[:5])\n"
    )
    (tmp_path / "code").write_bytes(code)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "k.so"), str(tmp_path / "code")],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "[0, 0, 0, 1, 0]\n"), done.stderr


def test_the_shim_defines_what_the_audit_allows(
    compiled: dict[str, Path], toolchain: LinkToolchain, cache: Path, tmp_path: Path
) -> None:
    toolchain.link({KERNEL: compiled[KERNEL]}, tmp_path / "k.so", cache)
    # The cache has that of the other host too.
    shim = cache / f"shim-{toolchain.fingerprint[:32]}.o"
    with shim.open("rb") as stream:
        symbols = list(ELFFile(stream).get_section_by_name(".symtab").iter_symbols())
    defined = {
        symbol.name
        for symbol in symbols
        if symbol["st_info"]["bind"] != "STB_LOCAL" and symbol["st_shndx"] != "SHN_UNDEF"
    }
    assert defined == SHIM_SYMBOLS | {"__wrap_TVMFFIEnvGetStream"}
