"""From operands to the call: forms, streams, errors; and whole launches through a library for the host.

The operands claim through DLPack to be on a CUDA device while they are host memory, so that a library with
a host function in place of a kernel can be found, mapped and called without a GPU.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot.errors import BundleError, CorruptFile, DeviceError, LaunchError, OperandError
from cutlass_aot.runtime import device, launch, library, operands, streams
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.schema.catalog import FileReference
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernel import Kernel
from tests.unit.bundles import ClaimsCuda, write_bundle
from tests.unit.kernels import gemm, operand

np = pytest.importorskip("numpy")
tvm_ffi = pytest.importorskip("tvm_ffi")

HOST_GEMM = """
#include <tvm/ffi/c_api.h>
#include <dlpack/dlpack.h>
#include <stdint.h>

#define AT(t, l, i, j) \\
  ((float *)((char *)t->data + t->byte_offset))[l * t->strides[0] + i * t->strides[1] + j * t->strides[2]]

static int gemm(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  DLTensor *t[3];
  if (count != 3) {
    TVMFFIErrorSetRaisedFromCStr("TypeError", "Expects 3 parameters");
    return -1;
  }
  for (int i = 0; i < 3; i++) {
    t[i] = args[i].type_index == kTVMFFITensor ? (DLTensor *)((char *)args[i].v_obj + sizeof(TVMFFIObject))
                                               : (DLTensor *)args[i].v_ptr;
    if (t[i]->ndim != 3) {
      TVMFFIErrorSetRaisedFromCStr("ValueError", "Mismatched Tensor on argument #1, expected ndim=3");
      return -1;
    }
  }
  /* 77 is a stream that the test asks for; the result tells whether it came through. */
  float scale = TVMFFIEnvGetStream(kDLCUDA, 0) == (void *)77 ? 2.0f : 1.0f;
  for (int64_t l = 0; l < t[2]->shape[0]; l++)
    for (int64_t i = 0; i < t[2]->shape[1]; i++)
      for (int64_t j = 0; j < t[2]->shape[2]; j++) {
        float sum = 0;
        for (int64_t k = 0; k < t[0]->shape[2]; k++) sum += AT(t[0], l, i, k) * AT(t[1], l, k, j);
        AT(t[2], l, i, j) = scale * sum;
      }
  return 0;
}
"""
FUNCTION = """
__attribute__((visibility("default")))
int __tvm_ffi_%s(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  return gemm(self, args, count, result);
}
"""


def f32_gemm(layouts: str = "ttt", divisibility: int = 4, design: dict[str, Any] | None = None) -> Kernel:
    return gemm(
        layouts=layouts,
        design=design,
        operands=tuple(
            operand(name, "f32", layout, divisibility=divisibility, alignment=4)
            for name, layout in zip(("a", "b", "out"), layouts, strict=True)
        ),
    )


def compile_library(folder: Path, kernels: list[Kernel]) -> bytes:
    compiler = shutil.which("cc")
    command = [compiler] if compiler else [sys.executable, "-m", "ziglang", "cc"]
    if not compiler:
        pytest.importorskip("ziglang")
    package = Path(tvm_ffi.__file__).parent
    source = folder / "host_gemm.c"
    source.write_text(HOST_GEMM + "".join(FUNCTION % kernel.symbol for kernel in kernels))
    subprocess.run(
        [*command, "-shared", "-fPIC", "-O1", "-I", package / "include", source,
         "-o", folder / "host_gemm.so", "-L", package / "lib", "-ltvm_ffi"],
        check=True,
    )  # fmt: skip
    return (folder / "host_gemm.so").read_bytes()


@pytest.fixture(scope="module")
def host_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    kernels = [
        f32_gemm("ttt"),
        f32_gemm("ttt", design={"tile_shape": (256, 256, 32)}),
        f32_gemm("tnt"),
    ]
    data = compile_library(folder, kernels)
    names = {kernel.group_name for kernel in kernels}
    return write_bundle(folder / "bundle", kernels, libraries=dict.fromkeys(names, data))


@pytest.fixture
def bundle(host_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setattr(device, "compute_capability", lambda ordinal: (9, 0))
    monkeypatch.setattr(device, "driver_version", lambda: (13, 0))
    monkeypatch.setattr(device, "sm_count", lambda ordinal: 132)
    return cutlass_aot.open(host_bundle)


def arrays(*shape: int, layout: str = "ttt", seed: int = 1) -> tuple[Any, Any, Any, Any]:
    """a, b, a poisoned out, and the product."""
    *batch, m, n, k = shape
    numbers = np.random.default_rng(seed)

    def make(rows: int, columns: int, letter: str) -> Any:
        if letter == "t":
            return numbers.standard_normal((*batch, rows, columns), dtype=np.float32)
        return numbers.standard_normal((*batch, columns, rows), dtype=np.float32).swapaxes(-1, -2)

    a, b = make(m, k, layout[0]), make(k, n, layout[1])
    out = np.full((*batch, m, n), np.nan, np.float32)
    return a, b, out, a @ b


def on_gpu(*values: Any) -> list[ClaimsCuda]:
    return [ClaimsCuda(value, "f32") for value in values]


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
    real = Bundle.find
    monkeypatch.setattr(Bundle, "find", lambda self, *o, **k: (searches.append(o), real(self, *o, **k))[1])

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


def test_remembered_choices_are_bounded(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutlass_aot.runtime import bundle as module

    monkeypatch.setattr(module, "MAX_REMEMBERED", 3)
    for m in range(1, 9):
        a, b, out, _ = arrays(m, 4, 4)
        bundle.gemm(*on_gpu(a, b, out))
    assert len(bundle._choices) <= 3


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
    bundle.gemm(*[operands.to_ffi(value) for value in on_gpu(a, b, out)])
    np.testing.assert_allclose(out, product, rtol=1e-5, atol=1e-5)


def test_an_explicit_stream_reaches_the_kernel(bundle: Bundle) -> None:
    a, b, out, product = arrays(8, 12, 16)
    fakes = on_gpu(a, b, out)
    bundle.gemm(*fakes, stream=77)
    np.testing.assert_allclose(out, 2 * product, rtol=1e-5, atol=1e-5)
    assert {fake.streams[-1] for fake in fakes} == {77}
    bundle.gemm(*fakes)
    np.testing.assert_allclose(out, product, rtol=1e-5, atol=1e-5)
    assert tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0)) == 0


def test_without_a_stream_the_environment_holds(bundle: Bundle) -> None:
    a, b, out, product = arrays(8, 12, 16)
    fakes = on_gpu(a, b, out)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 77):
        bundle.gemm(*fakes)
    np.testing.assert_allclose(out, 2 * product, rtol=1e-5, atol=1e-5)
    assert fakes[0].streams[-1] == 77


def test_the_legacy_stream_is_named_1_to_producers(bundle: Bundle) -> None:
    a, b, out, _ = arrays(8, 12, 16)
    fakes = on_gpu(a, b, out)
    bundle.gemm(*fakes, stream=0)
    assert fakes[0].streams[-1] == 1


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
    with pytest.raises(OperandError, match="expected a tensor on a CUDA device"):
        kernel.launch(a, b, out)
    elsewhere = [*on_gpu(a, b), ClaimsCuda(out, "f32", device=1)]
    with pytest.raises(OperandError, match="operand `out` is unsupported: expected device 0"):
        kernel.launch(*elsewhere)


# -- libraries --------------------------------------------------------------------------------------------


def reference_of(path: Path) -> FileReference:
    data = path.read_bytes()
    return FileReference(path.name, len(data), digest(data))


@pytest.fixture
def compiled(host_bundle: Path) -> Path:
    return sorted(host_bundle.glob("lib/*/*.so"))[0]


@pytest.mark.parametrize("mapper", [library._map_memfd, library._map_temporary_file])
def test_a_mapped_library_leaves_nothing_behind(
    compiled: Path, mapper: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(Path("/proc/self/fd").iterdir())
    mapped = mapper(compiled.read_bytes())
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert list(tmp_path.iterdir()) == []
    assert getattr(mapped, f"__tvm_ffi_{f32_gemm().symbol}")


def test_libraries_mapped_one_after_the_other_are_not_confused(tmp_path: Path) -> None:
    # The second memfd gets the number of the first, which the loader would take for the first library.
    first, second = f32_gemm("ttt"), f32_gemm("tnt")
    one = library.map_library(compile_library(tmp_path, [first]))
    two = library.map_library(compile_library(tmp_path, [second]))
    assert hasattr(one, f"__tvm_ffi_{first.symbol}")
    assert not hasattr(one, f"__tvm_ffi_{second.symbol}")
    assert hasattr(two, f"__tvm_ffi_{second.symbol}")


def test_a_policy_against_memfd_falls_back_to_a_file(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(data: bytes) -> ctypes.CDLL:
        raise OSError("not permitted")

    monkeypatch.setattr(library, "_map_memfd", refused)
    assert library.map_library(compiled.read_bytes())


def test_a_library_that_was_altered_is_not_mapped(compiled: Path, tmp_path: Path) -> None:
    copy = tmp_path / "x.so"
    data = bytearray(compiled.read_bytes())
    copy.write_bytes(data)
    reference = reference_of(copy)
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    with pytest.raises(CorruptFile, match=r"x\.so has SHA-256 .* altered"):
        library.Library(tmp_path, reference).function("f")


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"not a library", CorruptFile, "is not a shared library"),
        (b"\x7fELF, but nothing behind it", BundleError, "cannot be mapped"),
    ],
)
def test_a_foreign_library(tmp_path: Path, data: bytes, error: type[Exception], message: str) -> None:
    (tmp_path / "x.so").write_bytes(data)
    with pytest.raises(error, match=message):
        library.Library(tmp_path, reference_of(tmp_path / "x.so")).function("f")


def test_a_library_without_the_symbol(compiled: Path) -> None:
    with pytest.raises(CorruptFile, match="has no symbol __tvm_ffi_absent"):
        library.Library(compiled.parent, reference_of(compiled)).function("absent")


def test_a_library_is_read_once(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    real = library.read_file
    monkeypatch.setattr(library, "read_file", lambda *a: (reads.append(a[0]), real(*a))[1])
    loaded = library.Library(compiled.parent, reference_of(compiled))
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


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_fork_maps_its_own(compiled: Path) -> None:
    loaded = library.Library(compiled.parent, reference_of(compiled))
    symbol = f32_gemm().symbol
    loaded.function(symbol)
    loaded._mappings[os.getpid()].lock.acquire()
    child = os.fork()
    if child == 0:
        # A lock held in the parent must not stop the child.
        os._exit(0 if loaded.function(symbol) is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- the call: errors, streams, gradients, workspaces -------------------------------------------------------


def plan_for(function: Any, kernel: Kernel, *values: Any, native: bool | None = None) -> launch.Plan:
    described = [operands.describe_operand(value) for value in values]
    return launch.make_plan(kernel, "the-kernel", function, described, values)


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (ValueError("Mismatched x on argument #1, expected 3"), LaunchError,
         "the-kernel refused the call with operands a, b, out: Mismatched x on operand `b`, expected 3"),
        (TypeError("Expects 3 parameters"), LaunchError, "Expects 3 parameters"),
        (ValueError("argument #9"), LaunchError, "argument #9"),
        (RuntimeError("loading the kernel: CUDA driver version is insufficient for CUDA runtime version"),
         DeviceError, "could not be launched.*driver version is insufficient"),
        (RuntimeError("CUDA error: no CUDA-capable device is detected (cudaErrorNoDevice)"),
         DeviceError, "NoDevice"),
        (RuntimeError("something else"), LaunchError, "something else"),
    ],
)  # fmt: skip
def test_errors_of_compiled_code(raised: Exception, error: type[Exception], message: str) -> None:
    def function(*arguments: Any) -> None:
        raise raised

    values = on_gpu(*arrays(8, 12, 16)[:3])
    with pytest.raises(error, match=message) as caught:
        launch.launch(plan_for(function, f32_gemm(), *values), values)
    assert caught.value.__cause__ is raised


def test_forms_keep_every_element_where_it_is() -> None:
    kernel = f32_gemm("tnt", divisibility=8)
    a = np.zeros((16, 8), np.float32).T  # column-major with one ...
    assert operands.kernel_form(kernel.operands[1], operands.describe_operand(ClaimsCuda(a, "f32"))) == (
        (1, 8, 16),
        (128, 1, 8),
    )
    regular = operands.describe_operand(ClaimsCuda(np.zeros((2, 8, 16), np.float32), "f32"))
    assert operands.kernel_form(kernel.operands[0], regular) is None
    odd = cutlass_aot.describe((1, 1, 16), "f32", strides=(3, 5, 1))
    assert operands.kernel_form(kernel.operands[0], odd) == ((1, 1, 16), (16, 16, 1))
    thin = cutlass_aot.describe((1, 4, 1), "f32", strides=(7, 8, 5))
    assert operands.kernel_form(kernel.operands[0], thin) == ((1, 4, 1), (32, 8, 1))


def test_a_view_keeps_its_source_alive_and_lets_it_go() -> None:
    import gc
    import weakref

    from cutlass_aot.runtime import dlpack

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
    found = operands.describe_operand(np.zeros((3, 4), np.int8))
    assert (found.dtype, found.shape, found.strides, found.device) == ("i8", (3, 4), (4, 1), -1)


def test_unsupported_element_types() -> None:
    with pytest.raises(OperandError, match="element type int16 is not supported: expected one of f64"):
        operands.describe_operand(np.zeros((3, 4), np.int16))


def test_a_producer_that_refuses() -> None:
    readonly = np.zeros((3, 4), np.float32)
    readonly.flags.writeable = False
    with pytest.raises(OperandError, match=r"numpy\.ndarray refuses its DLPack export"):
        operands.describe_operand(readonly)


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
    assert streams.stream_handle(stream, 0) == handle


def test_a_stream_of_cuda_bindings() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    assert streams.stream_handle(driver.CUstream(11), 0) == 11


@pytest.mark.parametrize("stream", [True, "default", 1.5, object()])
def test_what_is_no_stream(stream: Any) -> None:
    with pytest.raises(OperandError, match="expected a CUDA stream"):
        streams.stream_handle(stream, 0)


def test_a_stream_of_another_device() -> None:
    with pytest.raises(OperandError, match="belongs to CUDA device 0, the operands are on device 1"):
        streams.stream_handle(TorchStream(), 1)


def test_cupy_arrays_go_to_their_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    fake = types.ModuleType("cupy")
    fake.ndarray = ClaimsCuda  # type: ignore[attr-defined]
    fake.cuda = types.SimpleNamespace(get_current_stream=CupyStream)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", fake)
    values = on_gpu(*arrays(8, 12, 16)[:3])
    function = tvm_ffi.convert(lambda *a: seen.append(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0))))
    launch.launch(plan_for(function, f32_gemm(), *values), values)
    assert seen == [7]
    assert values[0].streams[-1] == 7


def workspace_kernel() -> Kernel:
    kernel = f32_gemm()
    return gemm(operands=kernel.operands, workspace_bytes=64)


def test_a_workspace_is_asked_for_checked_and_passed_last() -> None:
    counts: list[tuple[int, ...]] = []
    values = on_gpu(*arrays(8, 12, 16)[:3])
    plan = plan_for(
        tvm_ffi.convert(lambda *a: counts.append(tuple(a[-1].shape))), workspace_kernel(), *values
    )
    with pytest.raises(OperandError, match="needs a workspace of 64 bytes: pass it"):
        launch.launch(plan, values)
    raw = np.zeros(512, np.uint8)
    raw = raw[-raw.ctypes.data % 128 :]
    for wrong in (raw[:63], raw[1:], raw[::2], raw[:128].reshape(2, 64)):
        with pytest.raises(OperandError, match="the workspace is unsupported: expected 64 or more bytes"):
            launch.launch(plan, values, workspace=ClaimsCuda(wrong, "u8"))
    launch.launch(plan, values, workspace=ClaimsCuda(raw[:100], "u8"))
    assert counts == [(100,)]


# -- torch, on the host -------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i32", "i8", "u8"])
def test_torch_tensors_are_described(torch: Any, name: str) -> None:
    from cutlass_aot.schema.dtypes import DTYPES

    tensor = torch.empty(2, 16, 8).to(getattr(torch, DTYPES[name].torch)).transpose(1, 2)
    found = operands.describe_operand(tensor)
    assert (found.dtype, found.shape, found.strides) == (name, (2, 8, 16), (128, 1, 8))
    assert (found.address, found.device) == (tensor.data_ptr(), -1)
    again = operands.describe_operand(operands.to_ffi(tensor))
    assert again == found


def test_meta_tensors_are_descriptions(torch: Any) -> None:
    found = operands.describe_operand(torch.empty(4, 8, device="meta", dtype=torch.float16))
    assert found == cutlass_aot.describe((4, 8), "f16")


def test_torch_tensors_that_cannot_be_described(torch: Any) -> None:
    with pytest.raises(OperandError, match=r"element type torch\.complex64 is not supported"):
        operands.describe_operand(torch.empty(4, 4, dtype=torch.complex64))
    with pytest.raises(OperandError, match="without plain strided memory"):
        operands.describe_operand(torch.eye(4).to_sparse())


def test_torch_operands_are_passed_as_they_are(torch: Any) -> None:
    seen: list[Any] = []
    values = [torch.zeros(8, 16), torch.zeros(16, 12), torch.zeros(8, 12)]
    plan = plan_for(lambda *a: seen.append(a), f32_gemm(), *values)
    assert plan.native
    launch.launch(plan, values)
    assert all(isinstance(argument, torch.Tensor) for argument in seen[0])
    assert [tuple(argument.shape) for argument in seen[0]] == [(1, 8, 16), (1, 16, 12), (1, 8, 12)]
    assert [argument.data_ptr() for argument in seen[0]] == [value.data_ptr() for value in values]
    batched = [value[None] for value in values]
    launch.launch(plan_for(lambda *a: seen.append(a), f32_gemm(), *batched), batched)
    assert all(argument is value for argument, value in zip(seen[1], batched, strict=True))


def test_torch_operands_do_not_bring_their_stream_against_an_explicit_one(torch: Any) -> None:
    seen: list[Any] = []

    def function(*arguments: Any) -> None:
        seen.append([type(argument) for argument in arguments])
        seen.append(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0)))

    values = [torch.zeros(8, 16), torch.zeros(16, 12), torch.zeros(8, 12)]
    plan = plan_for(function, f32_gemm(), *values)
    launch.launch(
        launch.Plan(**{n: getattr(plan, n) for n in plan.__slots__} | {"device": 0}), values, stream=77
    )
    assert seen == [[tvm_ffi.Tensor] * 3, 77]


def test_gradients_are_refused_as_torch_does(torch: Any) -> None:
    seen: list[Any] = []
    values = [torch.zeros(8, 16), torch.zeros(16, 12, requires_grad=True), torch.zeros(8, 12)]
    plan = plan_for(lambda *a: seen.append(a), f32_gemm(), *values)
    with pytest.raises(OperandError, match=r"operand `b` requires a gradient.*pass b\.detach\(\)"):
        launch.launch(plan, values)
    with torch.no_grad():
        launch.launch(plan, values)
    assert not any(argument.requires_grad for argument in seen[0])


def test_an_older_torch_without_fp8_export_is_served_through_bytes(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operands, "_torch_exports", lambda name: False)
    tensor = torch.arange(64).to(torch.float8_e4m3fn).reshape(4, 16)
    assert not operands.exports(tensor)
    found = operands.describe_operand(operands.to_ffi(tensor))
    assert found == operands.describe_operand(tensor)


def test_a_torch_workspace_is_allocated(torch: Any) -> None:
    seen: list[Any] = []
    values = [torch.zeros(8, 16), torch.zeros(16, 12), torch.zeros(8, 12)]
    launch.launch(plan_for(lambda *a: seen.append(a), workspace_kernel(), *values), values)
    assert (seen[0][3].dtype, tuple(seen[0][3].shape)) == (torch.uint8, (64,))
