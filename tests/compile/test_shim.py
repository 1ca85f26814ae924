"""The shim's rules for devices, threads and failures: real objects over a CUDA runtime made for the test."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from cutlass_aot.builder.native import SHIM_SYMBOLS
from cutlass_aot.builder.native.link import LinkToolchain

pytestmark = pytest.mark.compile

SHIM = Path(__file__).parents[2] / "cutlass_aot/builder/native/shim.c"
FAKE = Path(__file__).with_name("fake_cuda.c")
KERNEL = "scale_sm_90a"
GLOBAL_CAPTURE = 0
TARGET = ["-target", "x86_64-linux-gnu.2.28"]
ANNOUNCED = ["-Wl,--wrap=TVMFFIEnvGetStream"]
# As if objects asked for the stream at another time, or not at all: the shim is not told the device.
UNANNOUNCED = ["-DUNANNOUNCED"]


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


class Kernel:
    """One object in a library of its own, over a CUDA runtime of its own."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self._function = getattr(self.library, f"__tvm_ffi_{KERNEL}")
        self._function.restype = ctypes.c_int

    def launch_status(self, device: int) -> int:
        """Launch on a device; 0, or -1 with the error raised."""
        extent = (ctypes.c_int64 * 1)(128 * 300)
        stride = (ctypes.c_int64 * 1)(1)
        tensor = Tensor(0x10000, 2, device, 1, 2, 32, 1, extent, stride, 0)
        value = Value(7, 0, ctypes.addressof(tensor))  # 7: a DLTensor pointer
        result = Value()
        status: int = self._function(None, ctypes.byref(value), 1, ctypes.byref(result))
        return status

    def launch(self, device: int) -> str:
        """Launch on a device; the error's text, empty if there was none."""
        if self.launch_status(device) == 0:
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

    def current(self) -> tuple[int, int]:
        """Device and context (whether there is one) of this thread."""
        return self.library.fake_current_device(), self.library.fake_has_context()


@pytest.fixture(scope="session")
def build(
    objects: dict[str, Path],
    toolchain: LinkToolchain,
    cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[list[str]], Path]:
    """Link an object with the shim and the fake runtime in place of the real one."""
    directory = tmp_path_factory.mktemp("shim")

    def link(flags: list[str]) -> Path:
        library = directory / f"{'unannounced' if flags == UNANNOUNCED else 'announced'}.so"
        if not library.exists():
            compile_flags = ["-O2", "-fPIC", "-Wall", "-Wextra", "-Werror"]
            includes = [part for path in toolchain.includes for part in ("-isystem", str(path))]
            sources = [str(SHIM), str(FAKE), str(objects[KERNEL])]
            # Its own TVMFFI functions are meant, also where another test has loaded the real ones.
            link_flags = [
                "-shared",
                "-Wl,-Bsymbolic",
                "-nostdlib",
                "-lc",
                "-Wl,-z,defs",
                *flags,
                "-o",
                str(library),
            ]
            caches = str(cache / "zig")
            done = subprocess.run(
                [toolchain.zig, "cc", *TARGET, *compile_flags, *includes, *sources, *link_flags],
                env={"ZIG_GLOBAL_CACHE_DIR": caches, "ZIG_LOCAL_CACHE_DIR": caches},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
        return library

    return link


@pytest.fixture
def load(build: Callable[[list[str]], Path], tmp_path: Path) -> Callable[[list[str]], Kernel]:
    """Load a copy of a library, with counters of its own."""
    numbers = itertools.count()

    def open_copy(flags: list[str]) -> Kernel:
        copy = tmp_path / f"{next(numbers)}.so"
        shutil.copy(build(flags), copy)
        return Kernel(copy)

    return open_copy


@pytest.fixture
def kernel(load: Callable[[list[str]], Kernel]) -> Kernel:
    """An object whose shim is told each launch's device, as it is in real libraries."""
    return load(ANNOUNCED)


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
    assert kernel.current() == (0, 0)
    for _ in range(2):
        assert kernel.launch(1) == ""
        assert kernel.current() == (0, 0)
    assert [d for d, n in enumerate(kernel.each("contexts")) if n] == [1]
    assert kernel.each("retained")[1] == 1


def test_the_callers_device_is_current_again(kernel: Kernel) -> None:
    assert kernel.launch(2) == ""
    kernel["fail_launches"] = 1
    assert "cudaErrorLaunchOutOfResources" in kernel.launch(3)
    assert kernel.current() == (0, 0)
    assert kernel.launch(0) == ""
    assert kernel.current() == (0, 1)
    assert kernel.launch(3) == ""
    assert kernel.current() == (0, 1)


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
    assert "cudaErrorNoKernelImageForDevice (in words); the kernel was built for another GPU" in error
    assert sum(kernel.each("launches")) == 0
    assert kernel.current() == (0, 0)
    assert kernel.launch(1) == ""
    assert kernel["libraries"] == 1


def test_a_failed_load_for_one_device_leaves_the_other_alone(kernel: Kernel) -> None:
    kernel.each("fail_attributes")[1] = 1
    assert kernel.launch(0) == ""
    assert "device 1: cudaErrorMemoryAllocation" in kernel.launch(1)
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
    assert sum("NoKernelImage" in error for error in failed) == 1
    assert sum("device 1: cudaErrorMemoryAllocation" in error for error in failed) == 1
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
    kernel.each("fail_attributes")[7] = 1
    assert "cannot load the kernel on device 7: cudaErrorMemoryAllocation" in kernel.launch(7)
    assert kernel.current() == (0, 1)
    assert kernel.launch(7) == ""
    assert kernel["unprepared"] == 0


def test_dlclose_unloads_and_leaves_nothing_behind(build: Callable[[list[str]], Path]) -> None:
    program = _PROGRAM + "_ctypes.dlclose(kernel.library._handle); os.write(1, b'closed\\n')\n"
    done = _run(program, build(ANNOUNCED))
    assert (done.returncode, done.stdout) == (0, "launched\nclosed\n")
    # In this order: the runtime's own end, registered with atexit, comes last, and before the process ends.
    assert done.stderr == "unloaded\nruntime ends\n"


def test_nothing_is_unloaded_at_exit(build: Callable[[list[str]], Path]) -> None:
    done = _run(_PROGRAM, build(ANNOUNCED))
    assert (done.returncode, done.stdout, done.stderr) == (0, "launched\n", "runtime ends\n")


def test_a_forked_child_launches_if_the_parent_has_not(build: Callable[[list[str]], Path]) -> None:
    program = (
        _PROGRAM.replace("assert", "child = os.fork()\nassert")
        + "if child: assert os.waitpid(child, 0)[1] == 0\n"
    )
    done = _run(program, build(ANNOUNCED))
    assert (done.returncode, done.stdout) == (0, "launched\n" * 2)


_PROGRAM = """
import _ctypes
import os
import sys
from pathlib import Path
from tests.compile.test_shim import Kernel

kernel = Kernel(Path(sys.argv[1]))
kernel["talks"] = 1
assert kernel.launch(1) == ""
os.write(1, b"launched\\n")
"""


def _run(program: str, library: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, str(library)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_shim_defines_what_the_audit_allows(
    objects: dict[str, Path], toolchain: LinkToolchain, cache: Path, tmp_path: Path
) -> None:
    toolchain.link([(KERNEL, objects[KERNEL])], tmp_path / "k.so", cache)
    (shim,) = cache.glob("shim-*.o")
    with shim.open("rb") as stream:
        symbols = list(ELFFile(stream).get_section_by_name(".symtab").iter_symbols())
    defined = {
        symbol.name
        for symbol in symbols
        if symbol["st_info"]["bind"] != "STB_LOCAL" and symbol["st_shndx"] != "SHN_UNDEF"
    }
    assert defined == SHIM_SYMBOLS | {"__wrap_TVMFFIEnvGetStream", "__dso_handle", "atexit"}
