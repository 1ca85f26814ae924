"""From operands to the call: forms, streams, errors; and whole launches through a library for the host.

The operands claim through DLPack to be on a CUDA device while they are host memory, so that a library with
a host function in place of a kernel can be found, mapped and called without a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import resource
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot.errors import (
    BundleError,
    CorruptFile,
    DeviceError,
    Incompatible,
    LaunchError,
    MisplacedOperand,
    OperandError,
)
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.files.verified_read import why_unreadable
from cutlass_aot.runtime.launching import call as launch
from cutlass_aot.runtime.launching import library, tensors
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.runtime.opened.finder import Finder
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.schema.bundles.catalog import FileReference
from cutlass_aot.schema.compression import compress, decompressed
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.bundles import ClaimsCuda, write_bundle
from tests.support.kernels import gemm
from tests.support.native import (
    arrays,
    compile_library,
    copying,
    f32_gemm,
    native_function,
    on_gpu,
    write_host_bundle,
)
from tests.support.paths import REPOSITORY

np = pytest.importorskip("numpy")
tvm_ffi = pytest.importorskip("tvm_ffi")


@pytest.fixture(scope="module")
def host_bundle(tmp_path_factory: pytest.TempPathFactory, launcher_library: bytes) -> Path:
    folder = tmp_path_factory.mktemp("host")
    kernels = [
        f32_gemm("ttt"),
        f32_gemm("ttt", design={"tile_shape": (256, 256, 32)}),
        f32_gemm("tnt"),
    ]
    return write_host_bundle(folder / "bundle", kernels, launcher_library)


@pytest.fixture
def bundle(host_bundle: Path, gpu: dict[str, Any]) -> Bundle:
    return cutlass_aot.open(host_bundle)


# -- a whole launch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 12, 16), (1, 8, 12, 16), (3, 8, 12, 16), (1, 4, 4), (5, 4, 4)])
@pytest.mark.parametrize("layout", ["ttt", "tnt"])
def test_gemm_finds_maps_and_calls(bundle: Bundle, shape: tuple[int, ...], layout: str) -> None:
    for seed in range(2):
        a, b, out, product = arrays(*shape, layout=layout, seed=seed)
        bundle.gemm(*on_gpu(a, b, out))
        np.testing.assert_allclose(out, product, rtol=1e-5, atol=1e-5)


def test_a_choice_is_remembered_for_like_operands_alone(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[Any] = []
    real = Finder.best
    monkeypatch.setattr(Finder, "best", lambda self, *o: (searches.append(o), real(self, *o))[1])
    # Which would choose for the others.
    monkeypatch.setattr(Finder, "native_choice", lambda *_: None)

    def call(*shape: int, **options: Any) -> int:
        a, b, out, product = arrays(*shape)
        bundle.gemm(*on_gpu(a, b, out), **options)
        np.testing.assert_allclose(out, product, rtol=1e-5, atol=1e-5)
        return len(searches)

    assert call(8, 12, 16) == 1
    assert call(8, 12, 16) == 1
    assert call(8, 12, 20) == 2
    assert call(1, 8, 12, 16) == 3
    assert call(8, 12, 16, accumulator="f32") == 4
    _, b, out, _ = arrays(8, 12, 16)
    padded = np.zeros((8, 20), np.float32)[:, :16]
    bundle.gemm(*on_gpu(padded, b, out))
    assert len(searches) == 5
    assert not out.any()


def test_every_kernel_of_find_launches(bundle: Bundle) -> None:
    a, b, out, product = arrays(8, 12, 16)
    found = bundle.find(*on_gpu(a, b, out))
    assert len(found) == 2
    for kernel in found:
        out.fill(np.nan)
        kernel.launch(*on_gpu(a, b, out))
        np.testing.assert_allclose(out, product, rtol=1e-5, atol=1e-5)


def test_padded_broadcast_and_single_row_operands(bundle: Bundle) -> None:
    numbers = np.random.default_rng(3)
    a = numbers.standard_normal((3, 8, 24), dtype=np.float32)[:, :, :16]
    b = np.broadcast_to(numbers.standard_normal((16, 12), dtype=np.float32), (3, 16, 12))
    out = np.full((3, 8, 16), np.nan, np.float32)[:, :, :12]
    bundle.gemm(*on_gpu(a, b, out))
    np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-5)
    # One row whose stride means nothing: numpy leaves 4 bytes there, a descriptor could not.
    row = np.lib.stride_tricks.as_strided(np.ones(16, np.float32), (1, 16), (4, 4))
    single = np.full((1, 12), np.nan, np.float32)
    bundle.gemm(*on_gpu(row, b[0], single))
    np.testing.assert_allclose(single, row @ b[0], rtol=1e-5, atol=1e-5)


def test_tvm_ffi_tensors_are_operands(bundle: Bundle) -> None:
    a, b, out, product = arrays(8, 12, 16)
    bundle.gemm(*[tensors.to_ffi(value) for value in on_gpu(a, b, out)])
    np.testing.assert_allclose(out, product, rtol=1e-5, atol=1e-5)


def test_an_explicit_stream_reaches_the_kernel(bundle: Bundle) -> None:
    a, b, out, product = arrays(8, 12, 16)
    fakes = on_gpu(a, b, out)
    bundle.gemm(*fakes, stream=77)
    np.testing.assert_allclose(out, 2 * product, rtol=1e-5, atol=1e-5)
    # Described, handed over with the stream, and looked at once more to remember the choice: -1 asks a
    # producer to make no stream wait for another.
    assert {stream for fake in fakes for stream in fake.streams} == {77, -1}
    assert all(fake.streams.count(77) == 1 for fake in fakes)
    bundle.gemm(*fakes)
    np.testing.assert_allclose(out, product, rtol=1e-5, atol=1e-5)
    assert tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0)) == 0


def test_without_a_stream_the_environment_holds(bundle: Bundle) -> None:
    a, b, out, product = arrays(8, 12, 16)
    fakes = on_gpu(a, b, out)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 77):
        bundle.gemm(*fakes)
    np.testing.assert_allclose(out, 2 * product, rtol=1e-5, atol=1e-5)
    assert set(fakes[0].streams) == {77, -1}


def test_the_legacy_stream_is_named_1_to_producers(bundle: Bundle) -> None:
    a, b, out, _ = arrays(8, 12, 16)
    fakes = on_gpu(a, b, out)
    bundle.gemm(*fakes, stream=0)
    assert set(fakes[0].streams) == {1, -1}


def test_many_threads_launch_at_once(bundle: Bundle) -> None:
    start, failures = threading.Barrier(8), []

    def work(seed: int) -> None:
        a, b, out, product = arrays(8, 12, 16, seed=seed)
        start.wait()
        try:
            bundle.gemm(*on_gpu(a, b, out), stream=77)
            np.testing.assert_allclose(out, 2 * product, rtol=1e-5, atol=1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_mismatched_operands_are_refused(bundle: Bundle) -> None:
    a, b, out, _ = arrays(8, 12, 16)
    kernel = bundle.find(*on_gpu(a, b, out))[0]
    with pytest.raises(OperandError, match="operand `b` is unsupported: expected extent K = 16"):
        kernel.launch(*on_gpu(a, arrays(8, 12, 20)[1], out))
    with pytest.raises(OperandError, match="is on cpu: kernels run on CUDA devices"):
        kernel.launch(a, b, out)
    elsewhere = [*on_gpu(a, b), ClaimsCuda(out, "f32", device=1)]
    with pytest.raises(
        OperandError, match="operand `out` is on GPU 1, and `a` on GPU 0: a launch runs on one GPU"
    ):
        kernel.launch(*elsewhere)


# -- libraries --------------------------------------------------------------------------------------------


def reference_of(path: Path) -> FileReference:
    data = path.read_bytes()
    return FileReference(path.name, len(data), digest(data))


@pytest.fixture
def packed(host_bundle: Path) -> Path:
    """A library as the bundle has it."""
    return sorted(host_bundle.glob("lib/*/gemm-*.so.zst"))[0]


@pytest.fixture
def compiled(packed: Path) -> bytes:
    """What it holds."""
    return decompressed(packed.read_bytes(), 1 << 26)


def open_files() -> list[str]:
    """What this process has open of libraries."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(path.readlink()))
    return sorted(name for name in found if "cutlass-aot" in name)


def test_a_mapped_file_leaves_nothing_behind(
    compiled: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = open_files()
    mapped = library._map_temporary_file(copying(compiled))
    assert open_files() == before
    assert list(tmp_path.iterdir()) == []
    assert getattr(mapped, f"__tvm_ffi_{f32_gemm().symbol}")


def test_the_path_of_a_mapped_library_stays_its_own(compiled: bytes) -> None:
    # Who writes the backtrace of an error opens libraries by their paths.
    mapped = library._map_memfd(copying(compiled))
    assert Path(mapped._name).read_bytes() == compiled


def test_a_library_that_cannot_be_mapped_leaves_nothing_behind() -> None:
    before = open_files()
    with pytest.raises(OSError, match=r"file too short|invalid ELF|too small"):
        library._map_memfd(copying(b"\x7fELF, but nothing behind it"))
    assert open_files() == before


def test_an_error_after_an_empty_file_was_opened_is_an_error(host_bundle: Path) -> None:
    """Not the end of the process: a library's path must not come to lead to a file opened later."""
    program = (
        "import os, sys\n"
        "import cutlass_aot\n"
        "from tests.support.native import on_gpu, arrays\n"
        "from cutlass_aot.runtime.machine import cuda_driver as device\n"
        "device.compute_capability = lambda ordinal: (9, 0)\n"
        "device.driver_version = lambda: (13, 0)\n"
        "device.device_name = lambda ordinal: 'a GPU'\n"
        "device.sm_count = lambda ordinal: 132\n"
        "bundle = cutlass_aot.open(sys.argv[1])\n"
        "a, b, out, _ = arrays(8, 12, 16)\n"
        "kernel = bundle.find(*on_gpu(a, b, out))[0]\n"
        "kernel.launch(*on_gpu(a, b, out))\n"
        "files = [os.open(sys.argv[2], os.O_RDWR | os.O_CREAT) for _ in range(50)]\n"
        "try:\n"
        "    kernel.launch(*on_gpu(a[None, None], b, out))\n"
        "except cutlass_aot.CutlassAotError as error:\n"
        "    print(type(error).__name__)\n"
    )
    empty = host_bundle.parent / "empty"
    done = subprocess.run(
        [sys.executable, "-c", program, str(host_bundle), str(empty)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "OperandError\n"), done.stderr


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_for_want_of_a_descriptor_the_limit_is_named(
    packed: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(name: str, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    # A file in its place would need a descriptor too.
    monkeypatch.setattr(library, "_map_temporary_file", lambda copy: pytest.fail("it was tried"))
    monkeypatch.setattr(os, "memfd_create", refused)
    with pytest.raises(
        BundleError, match=r"cannot be mapped: Too many open files.*: raise the limit \(ulimi"
    ):
        library.Library(packed.parent, reference_of(packed)).raw_address("x")


def test_the_loader_s_own_want_of_a_descriptor_is_recognised(compiled: bytes) -> None:
    # The next number is for the memory, and there is none for the loader.
    free = os.memfd_create("free")
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files") as caught:
            library._map_memfd(copying(compiled))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.errno is None
    assert "raise the limit (ulimit -n" in why_unreadable(caught.value)


def test_libraries_mapped_one_after_the_other_are_not_confused(tmp_path: Path) -> None:
    # The second memfd gets the number of the first, which the loader would take for the first library.
    first, second = f32_gemm("ttt"), f32_gemm("tnt")
    one = library.map_library(copying(compile_library(tmp_path, [first])))
    two = library.map_library(copying(compile_library(tmp_path, [second])))
    assert hasattr(one, f"__tvm_ffi_{first.symbol}")
    assert not hasattr(one, f"__tvm_ffi_{second.symbol}")
    assert hasattr(two, f"__tvm_ffi_{second.symbol}")


def test_a_policy_against_memfd_falls_back_to_a_file(
    compiled: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(copy: Any) -> ctypes.CDLL:
        raise OSError("not permitted")

    monkeypatch.setattr(library, "_map_memfd", refused)
    assert library.map_library(copying(compiled))


def test_a_library_that_was_altered_is_not_mapped(packed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "x.so.zst"
    data = bytearray(packed.read_bytes())
    copy.write_bytes(data)
    reference = reference_of(copy)
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    with pytest.raises(CorruptFile, match=r"x\.so\.zst has SHA-256 .* altered"):
        library.Library(tmp_path, reference).function("f")


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"not a library", CorruptFile, "is not a whole zstd frame"),
        (compress(b"not a library", 3), CorruptFile, "is not a shared library"),
        (compress(b"\x7fELF, but nothing behind it", 3), BundleError, "cannot be mapped"),
        (compress(b"\x7fELF" + bytes(65 << 20), 3), CorruptFile, "holds more than 67108864 bytes"),
    ],
)
def test_a_foreign_library(tmp_path: Path, data: bytes, error: type[Exception], message: str) -> None:
    (tmp_path / "x.so.zst").write_bytes(data)
    with pytest.raises(error, match=message):
        library.Library(tmp_path, reference_of(tmp_path / "x.so.zst")).function("f")


def test_a_library_is_mapped_whole(packed: Path, compiled: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[bytes] = []
    real = library._write

    def seen(descriptor: int, data: bytes) -> None:
        copies.append(data)
        real(descriptor, data)

    monkeypatch.setattr(library, "_write", seen)
    assert library.Library(packed.parent, reference_of(packed)).address(f32_gemm().symbol)
    assert b"".join(copies) == compiled


def test_a_library_without_the_symbol(packed: Path) -> None:
    with pytest.raises(CorruptFile, match="has no symbol __tvm_ffi_absent"):
        library.Library(packed.parent, reference_of(packed)).function("absent")


def test_a_library_is_read_once(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    real = library.read_file
    monkeypatch.setattr(library, "read_file", lambda *a: (reads.append(a[0]), real(*a))[1])
    loaded = library.Library(packed.parent, reference_of(packed))
    start = threading.Barrier(8)
    functions: list[Any] = []

    def work() -> None:
        start.wait()
        functions.append(loaded.function(f32_gemm().symbol))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 1
    assert len({id(function) for function in functions}) == 1


def test_an_address_and_a_function_are_of_one_mapping(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps: list[Any] = []
    real = library.map_library
    monkeypatch.setattr(library, "map_library", lambda copy: (maps.append(copy), real(copy))[1])
    loaded = library.Library(packed.parent, reference_of(packed))
    symbol = f32_gemm().symbol
    address = loaded.address(symbol)
    assert address == loaded.address(symbol) != 0
    assert loaded.function(symbol) is loaded.function(symbol)
    mapped = loaded._mappings[os.getpid()].library
    assert ctypes.cast(getattr(mapped, f"__tvm_ffi_{symbol}"), ctypes.c_void_p).value == address
    assert len(maps) == 1
    with pytest.raises(CorruptFile, match="has no symbol __tvm_ffi_absent"):
        loaded.address("absent")


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_fork_maps_its_own(packed: Path) -> None:
    loaded = library.Library(packed.parent, reference_of(packed))
    symbol = f32_gemm().symbol
    loaded.function(symbol)
    loaded._mappings[os.getpid()].lock.acquire()
    child = os.fork()
    if child == 0:
        # A lock held in the parent must not stop the child.
        os._exit(0 if loaded.function(symbol) is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- the call: errors, streams, gradients, workspaces -------------------------------------------------------


ERRORS = pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (ValueError("Mismatched x on argument #1, expected 3"), LaunchError,
         "the-kernel refused the call with operands a, b, out: Mismatched x on operand `b`, expected 3"),
        (TypeError("Expects 3 parameters"), LaunchError, "Expects 3 parameters"),
        (ValueError("argument #9"), LaunchError, "argument #9"),
        (RuntimeError("loading the kernel: CUDA driver version is insufficient for CUDA runtime version"),
         DeviceError, "could not be launched.*driver version is insufficient"),
        (RuntimeError("cannot load the kernel on device 0: there is no NVIDIA driver: libcuda.so.1"),
         DeviceError, "could not be launched: .*there is no NVIDIA driver"),
        (RuntimeError("CUDA error: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"),
         DeviceError, "CUDA_ERROR_NO_DEVICE"),
        (RuntimeError("something else"), LaunchError, "something else"),
    ],
)  # fmt: skip


@ERRORS
def test_errors_of_compiled_code(raised: Exception, error: type[Exception], message: str) -> None:
    found = launch.translated(raised, "the-kernel", ["a", "b", "out"])
    assert type(found) is error
    assert re.search(message, str(found))


def test_our_own_errors_stay() -> None:
    raised = Incompatible("not here")
    assert launch.translated(raised, "the-kernel", ["a", "b", "out"]) is raised


@ERRORS
def test_a_launch_raises_errors_of_compiled_code_with_names(
    tmp_path: Path,
    launcher_library: bytes,
    gpu: dict[str, Any],
    raised: Exception,
    error: type[Exception],
    message: str,
) -> None:
    def function(*arguments: Any) -> None:
        raise raised

    kernel = kernel_with(tmp_path, launcher_library, f32_gemm(), function)
    for _ in range(2):
        with pytest.raises(error, match=message.replace("the-kernel", re.escape(kernel.name))) as caught:
            kernel.launch(*on_gpu(*arrays(8, 12, 16)[:3]))
        assert str(caught.value.__cause__) == str(raised)


def kernel_with(folder: Path, launcher: bytes, kernel: Kernel, function: Callable[..., Any]) -> KernelHandle:
    """A handle whose native function is a Python function."""
    (handle,) = cutlass_aot.open(write_bundle(folder / "bundle", [kernel], launcher=launcher)).kernels()
    assert handle._group.launcher is not None
    handle._function = native_function(handle._group.launcher, function)
    return handle


def test_a_view_keeps_its_source_alive_and_lets_it_go() -> None:
    import gc
    import weakref

    from cutlass_aot.runtime.launching import dlpack

    class Tracked(np.ndarray):
        pass

    source = np.arange(24, dtype=np.float32).reshape(4, 6).view(Tracked)
    gone = weakref.ref(source)
    known = len(dlpack._alive)
    view = dlpack.view(tvm_ffi.from_dlpack(source), (1, 4, 6), (24, 6, 1), "f32")
    back = np.from_dlpack(view)
    assert back.shape == (1, 4, 6)
    assert np.shares_memory(back, source)
    del source, view
    gc.collect()
    assert back.sum() == 276
    assert gone() is not None
    del back
    gc.collect()
    assert gone() is None
    assert len(dlpack._alive) == known


def test_numpy_is_described_as_not_on_a_gpu() -> None:
    found = tensors.describe_operand(np.zeros((3, 4), np.int8))
    assert (found.dtype, found.shape, found.strides, found.device) == ("i8", (3, 4), (4, 1), -1)


def test_unsupported_element_types() -> None:
    with pytest.raises(OperandError, match="element type int16 is not supported: expected one of f64"):
        tensors.describe_operand(np.zeros((3, 4), np.int16))


def test_a_producer_that_refuses() -> None:
    readonly = np.zeros((3, 4), np.float32)
    readonly.flags.writeable = False
    with pytest.raises(MisplacedOperand, match=r"numpy\.ndarray is on no CUDA device"):
        tensors.describe_operand(readonly)


class TorchStream:
    cuda_stream = 5
    device_index = 0


class CudaCoreStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 6)


class CupyStream:
    ptr = 7


@pytest.mark.parametrize(
    ("stream", "handle"),
    [(0, 0), (9, 9), (ctypes.c_void_p(8), 8), (ctypes.c_void_p(None), 0), (TorchStream(), 5),
     (CudaCoreStream(), 6), (CupyStream(), 7)],
)  # fmt: skip
def test_stream_handles(stream: Any, handle: int) -> None:
    assert launch.stream_handle(stream, 0) == handle


def test_a_stream_of_cuda_bindings() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    assert launch.stream_handle(driver.CUstream(11), 0) == 11


@pytest.mark.parametrize("stream", [True, "default", 1.5, object()])
def test_what_is_no_stream(stream: Any) -> None:
    with pytest.raises(OperandError, match="expected a CUDA stream"):
        launch.stream_handle(stream, 0)


def test_a_stream_of_another_device() -> None:
    with pytest.raises(OperandError, match="belongs to CUDA device 0, the operands are on device 1"):
        launch.stream_handle(TorchStream(), 1)


def test_cupy_arrays_go_to_their_current_stream(
    tmp_path: Path, launcher_library: bytes, gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    fake = types.ModuleType("cupy")
    fake.ndarray = ClaimsCuda  # type: ignore[attr-defined]
    fake.cuda = types.SimpleNamespace(get_current_stream=CupyStream)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", fake)
    values = on_gpu(*arrays(8, 12, 16)[:3])
    kernel = kernel_with(
        tmp_path,
        launcher_library,
        f32_gemm(),
        lambda *a: seen.append(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0))),
    )
    kernel.launch(*values)
    assert seen == [7]
    assert [value.streams[-1] for value in values] == [7, 7, 7]


def workspace_kernel() -> Kernel:
    kernel = f32_gemm()
    return gemm(operands=kernel.operands, workspace_bytes=64)


def test_a_workspace_is_asked_for_checked_and_passed_last(
    tmp_path: Path, launcher_library: bytes, gpu: dict[str, Any]
) -> None:
    counts: list[tuple[int, ...]] = []
    values = on_gpu(*arrays(8, 12, 16)[:3])
    kernel = kernel_with(
        tmp_path, launcher_library, workspace_kernel(), lambda *a: counts.append(tuple(a[-1].shape))
    )
    assert kernel.workspace_bytes == 64
    with pytest.raises(OperandError, match="needs a workspace of 64 bytes: pass it"):
        kernel.launch(*values)
    raw = np.zeros(512, np.uint8)
    raw = raw[-raw.ctypes.data % 128 :]
    for wrong in (raw[:63], raw[1:], raw[::2], raw[:128].reshape(2, 64), raw[:128].view(np.float32)):
        name = "u8" if wrong.dtype == np.uint8 else "f32"
        with pytest.raises(OperandError, match="the workspace is unsupported: expected 64 or more bytes"):
            kernel.launch(*values, workspace=ClaimsCuda(wrong, name))
    with pytest.raises(OperandError, match=r"the workspace is unsupported.*on device 1"):
        kernel.launch(*values, workspace=ClaimsCuda(raw[:100], "u8", device=1))
    assert counts == []
    for _ in range(2):
        kernel.launch(*values, workspace=ClaimsCuda(raw[:100], "u8"))
    assert counts == [(100,), (100,)]


def test_a_workspace_goes_to_the_stream_too(
    tmp_path: Path, launcher_library: bytes, gpu: dict[str, Any]
) -> None:
    values = on_gpu(*arrays(8, 12, 16)[:3])
    kernel = kernel_with(tmp_path, launcher_library, workspace_kernel(), lambda *a: None)
    raw = np.zeros(512, np.uint8)
    workspace = ClaimsCuda(raw[-raw.ctypes.data % 128 :], "u8")
    kernel.launch(*values, workspace=workspace, stream=77)
    assert [item.streams[-1] for item in (*values, workspace)] == [77] * 4


# -- torch, on the host -------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i32", "i8", "u8"])
def test_torch_tensors_are_described(torch: Any, name: str) -> None:
    from cutlass_aot.schema.kernels.dtypes import DTYPES

    tensor = torch.empty(2, 16, 8).to(getattr(torch, DTYPES[name].torch)).transpose(1, 2)
    found = tensors.describe_operand(tensor)
    assert (found.dtype, found.shape, found.strides) == (name, (2, 8, 16), (128, 1, 8))
    assert (found.address, found.device) == (tensor.data_ptr(), -1)
    again = tensors.describe_operand(tensors.to_ffi(tensor))
    assert again == found


def test_meta_tensors_are_descriptions(torch: Any) -> None:
    found = tensors.describe_operand(torch.empty(4, 8, device="meta", dtype=torch.float16))
    assert found == cutlass_aot.describe((4, 8), "f16")


def test_torch_tensors_that_cannot_be_described(torch: Any) -> None:
    with pytest.raises(OperandError, match=r"element type torch\.complex64 is not supported"):
        tensors.describe_operand(torch.empty(4, 4, dtype=torch.complex64))
    with pytest.raises(OperandError, match="without plain strided memory"):
        tensors.describe_operand(torch.eye(4).to_sparse())


def test_torch_operands_are_passed_as_they_are(torch: Any) -> None:
    seen: list[Any] = []
    values = [torch.zeros(8, 16), torch.zeros(16, 12), torch.zeros(8, 12)]
    assert launch.call(lambda *a: seen.append(a), values, 0) is None
    assert all(argument is value for argument, value in zip(seen[0], values, strict=True))


def test_what_a_function_returns_is_returned(torch: Any) -> None:
    values = [torch.zeros(8, 16)]
    for given in (values, on_gpu(np.zeros((4, 4), np.float32))):
        for stream in (None, 77):
            assert launch.call(lambda *a: len(a), given, 0, stream) == 1


def test_torch_operands_do_not_bring_their_stream_against_an_explicit_one(
    torch: Any, launcher: Library
) -> None:
    seen: list[Any] = []

    function = native_function(
        launcher, lambda *a: seen.append(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0)))
    )
    values = [torch.zeros(8, 16), torch.zeros(16, 12), torch.zeros(8, 12)]
    launch.call(function, values, 0, 77)
    assert seen == [77]
    assert tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0)) == 0


def test_gradients_are_refused_as_torch_does(torch: Any) -> None:
    values = [torch.zeros(8, 16), torch.zeros(16, 12, requires_grad=True), torch.zeros(8, 12)]
    with pytest.raises(OperandError, match=r"operand `b` requires a gradient.*pass b\.detach\(\)"):
        launch.without_gradients(["a", "b", "out"], values)
    with torch.no_grad():
        without = launch.without_gradients(["a", "b", "out"], values)
    assert not any(argument.requires_grad for argument in without)
    assert [argument.data_ptr() for argument in without] == [value.data_ptr() for value in values]
    plain = [value.detach() for value in values]
    assert launch.without_gradients(["a", "b", "out"], plain) is plain


def test_an_older_torch_without_fp8_export_is_served_through_bytes(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "_torch_exports", lambda name: False)
    tensor = torch.arange(64).to(torch.float8_e4m3fn).reshape(4, 16)
    assert not tensors.exports(tensor)
    found = tensors.describe_operand(tensors.to_ffi(tensor))
    assert found == tensors.describe_operand(tensor)


def test_a_torch_workspace_is_allocated(torch: Any) -> None:
    values = [torch.zeros(8, 16), torch.zeros(16, 12), torch.zeros(8, 12)]
    found = launch.workspace_for(64, "the-kernel", values, -1, None, None)
    assert (found.dtype, tuple(found.shape)) == (torch.uint8, (64,))
    own = torch.zeros(1024, dtype=torch.uint8)
    own = own[-own.data_ptr() % 128 :]
    assert launch.workspace_for(64, "the-kernel", values, -1, own, 7) is own


def test_the_classes_that_native_code_takes(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tensors.native_classes() == {torch.Tensor, torch.nn.Parameter}
    monkeypatch.delitem(sys.modules, "torch")
    assert tensors.native_classes() == frozenset()


def test_the_gpu_is_that_of_the_first_tensor_whatever_stands_before_it(bundle: Bundle) -> None:
    kernel = bundle.kernels()[0]
    (x,) = on_gpu(np.zeros((2, 2), np.float32), device=3)
    assert kernel._device([0.5, x]) == 3
    assert kernel._device([0.5, 2]) == -1
