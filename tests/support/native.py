"""Small C libraries for tests, compiled with what is at hand: a launcher, and kernels for the host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.builder import native
from cutlass_aot.runtime.launching import native as runtime_native
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.bundles import ClaimsCuda, write_bundle
from tests.support.kernels import gemm, operand

LAUNCHER = tuple(
    Path(native.__file__).with_name(name)
    for name in ("launcher.c", "dispatch_cache.c", "select.c", "python.c")
)

# A GEMM in f32 on the host in place of a kernel. It checks what compiled code checks; that operands are on
# one device, too, be it the host: DLPack tensors may claim a GPU, torch's are given as what they are.
HOST_GEMM = """
#include <dlpack/dlpack.h>
#include <stdint.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#define AT(t, l, i, j) \\
  ((float *)((char *)t->data + t->byte_offset))[l * t->strides[0] + i * t->strides[1] + j * t->strides[2]]
#define DIVISIBILITY 4
#define NO_CODE 7 /* a device that the library has no code for */

static int refuse(const char *kind, const char *text) {
  TVMFFIErrorSetRaisedFromCStr(kind, text);
  return -1;
}

static int gemm(const TVMFFIAny *args, int32_t count, const char *layouts, int workspace) {
  DLTensor *t[4];
  if (count != 3 + workspace) return refuse("TypeError", "Mismatched number of arguments");
  for (int i = 0; i < count; i++) {
    static const char *const types[] = {"Mismatched type on argument #0", "Mismatched type on argument #1",
                                        "Mismatched type on argument #2", "Mismatched type on argument #3"};
    if (args[i].type_index == kTVMFFITensor) t[i] = (DLTensor *)((TVMFFIObject *)args[i].v_obj + 1);
    else if (args[i].type_index == kTVMFFIDLTensorPtr) t[i] = args[i].v_ptr;
    else return refuse("TypeError", types[i]);
    if (i == 3) break;
    if (t[i]->dtype.code != kDLFloat || t[i]->dtype.bits != 32) return refuse("TypeError", types[i]);
    if (t[i]->ndim != 3) return refuse("ValueError", "Mismatched Tensor on argument #1, expected ndim=3");
    int contiguous = layouts[i] == 't' ? 2 : 1;
    if (t[i]->strides[contiguous] != 1 || t[i]->shape[contiguous] % DIVISIBILITY ||
        t[i]->strides[0] % DIVISIBILITY || t[i]->strides[3 - contiguous] % DIVISIBILITY)
      return refuse("ValueError", "Mismatched strides");
    if (t[i]->device.device_type != t[0]->device.device_type ||
        t[i]->device.device_id != t[0]->device.device_id)
      return refuse("ValueError", "Mismatched device");
  }
  int64_t *a = t[0]->shape, *b = t[1]->shape, *out = t[2]->shape;
  if (a[0] != b[0] || a[0] != out[0] || a[1] != out[1] || a[2] != b[1] || b[2] != out[2])
    return refuse("ValueError", "Mismatched shape on argument #1");
  if (t[0]->device.device_id == NO_CODE)
    return refuse("RuntimeError", "CUDA error: no kernel image (cudaErrorNoKernelImageForDevice)");
  if (workspace) {
    if (t[3]->ndim != 1 || t[3]->shape[0] < 64) return refuse("ValueError", "Mismatched workspace");
    *((uint8_t *)t[3]->data + t[3]->byte_offset) = 42;
  }
  /* 77 is a stream that the test asks for; the result tells whether it came through. */
  float scale = TVMFFIEnvGetStream(kDLCUDA, 0) == (void *)77 ? 2.0f : 1.0f;
  for (int64_t l = 0; l < out[0]; l++)
    for (int64_t i = 0; i < out[1]; i++)
      for (int64_t j = 0; j < out[2]; j++) {
        float sum = 0;
        for (int64_t k = 0; k < a[2]; k++) sum += AT(t[0], l, i, k) * AT(t[1], l, k, j);
        AT(t[2], l, i, j) = scale * sum;
      }
  return 0;
}
"""
FUNCTION = """
__attribute__((visibility("default"))) uint64_t cutlass_aot_code_%s[2];
__attribute__((visibility("default")))
int __tvm_ffi_%s(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  return gemm(args, count, "%s", %d);
}
"""


def native_function(launcher: Library, function: Callable[..., Any]) -> Any:
    """A Python function as a native one, called with ``tvm_ffi.Tensor`` for tensors."""
    tvm_ffi = pytest.importorskip("tvm_ffi")
    # Any function will do: another one takes its place.
    made = runtime_native.function(launcher, "cutlass_aot_linear")
    runtime_native.assign(launcher, made, tvm_ffi.convert(function))
    return made


def f32_gemm(layouts: str = "ttt", **changes: Any) -> Kernel:
    """A kernel that the host's GEMM can stand in for."""
    operands = tuple(
        operand(name, "f32", layout, divisibility=4, alignment=4)
        for name, layout in zip(("a", "b", "out"), layouts, strict=True)
    )
    return gemm(**{"operands": operands, **changes})


def compile_library(folder: Path, kernels: list[Kernel]) -> bytes:
    """A library with the host's GEMM under the name of each kernel."""
    functions = [FUNCTION % (k.symbol, k.symbol, k.layouts, k.workspace_bytes > 0) for k in kernels]
    return compile_c(folder, "host_gemm", HOST_GEMM + "".join(functions))


def write_host_bundle(root: Path, kernels: list[Kernel], launcher: bytes, **how: Any) -> Path:
    """A bundle whose kernels run on the host."""
    data = compile_library(root.parent, kernels)
    names = {kernel.group_name for kernel in kernels}
    return write_bundle(root, kernels, libraries=dict.fromkeys(names, data), launcher=launcher, **how)


def compile_c(folder: Path, name: str, source: str) -> bytes:
    """A shared library of C source that may use TVM-FFI; any warning is an error."""
    (folder / f"{name}.c").write_text(source)
    return compile_files(folder, name, [folder / f"{name}.c"])


def compile_files(folder: Path, name: str, sources: Sequence[Path]) -> bytes:
    """A shared library of C files that may use TVM-FFI; any warning is an error."""
    tvm_ffi = pytest.importorskip("tvm_ffi")
    compiler = shutil.which("cc")
    command = [compiler] if compiler else [sys.executable, "-m", "ziglang", "cc"]
    if not compiler:
        pytest.importorskip("ziglang")
    package = Path(tvm_ffi.__file__).parent
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-missing-field-initializers")
    where = ("-I", package / "include", "-L", package / "lib")
    files = (*sources, "-o", folder / f"{name}.so")
    command += ["-std=gnu11", "-shared", "-fPIC", "-O1"]
    subprocess.run([*command, *warnings, *where, *files, "-ltvm_ffi", "-lm"], check=True)
    return (folder / f"{name}.so").read_bytes()


def arrays(*shape: int, layout: str = "ttt", seed: int = 1) -> tuple[Any, Any, Any, Any]:
    """a, b, a poisoned out, and the product; of shape ``(batch..., m, n, k)``."""
    np = pytest.importorskip("numpy")
    *batch, m, n, k = shape
    numbers = np.random.default_rng(seed)

    def make(rows: int, columns: int, letter: str) -> Any:
        if letter == "t":
            return numbers.standard_normal((*batch, rows, columns), dtype=np.float32)
        return numbers.standard_normal((*batch, columns, rows), dtype=np.float32).swapaxes(-1, -2)

    a, b = make(m, k, layout[0]), make(k, n, layout[1])
    out = np.full((*batch, m, n), np.nan, np.float32)
    return a, b, out, a @ b


def on_gpu(*values: Any, device: int = 0) -> list[ClaimsCuda]:
    """Arrays that claim to be on a GPU."""
    return [ClaimsCuda(value, "f32", device) for value in values]


def copying(data: bytes) -> Callable[[int], None]:
    """What ``map_library`` asks for: writes the bytes to a descriptor."""

    def copy(descriptor: int) -> None:
        assert os.write(descriptor, data) == len(data)

    return copy
