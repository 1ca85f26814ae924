"""GEMMs with scale factors and of groups that run on the host, in place of those for sm_90a."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.generators.sm90_gemm.generator import SCALES, Sm90Gemm
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.bundles import write_bundle
from tests.support.native import compile_c

DENSE = [
    Problem("gemm", ("f8e4m3", "f8e4m3", "bf16"), "tnt", "f32", scales=SCALES),
    Problem("gemm", ("f8e4m3", "f8e4m3", "f32"), "tnt", "f32", scales=SCALES),
    Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32"),
    Problem("gemm", ("bf16", "bf16", "bf16"), "ttt", "f32"),
    Problem("gemm", ("bf16", "bf16", "f32"), "tnt", "f32"),
]
GROUPS = [
    Problem(operation, dtypes, "tnt", "f32", **scales)
    for operation in ("grouped_gemm", "masked_grouped_gemm")
    for dtypes, scales in (
        (("f8e4m3", "f8e4m3", "bf16"), {"scales": SCALES}),
        (("bf16", "bf16", "bf16"), {}),
    )
]

SOURCE = """
#include <dlpack/dlpack.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

static char *at(DLTensor *t, int64_t l, int64_t i, int64_t j) {
  int64_t place = i * t->strides[t->ndim - 2] + j * t->strides[t->ndim - 1];
  if (t->ndim == 3) place += l * t->strides[0];
  return (char *)t->data + t->byte_offset + place * (t->dtype.bits / 8);
}

static double fp8[256]; /* the numbers of f8e4m3 */

__attribute__((constructor)) static void fill(void) {
  for (int bits = 0; bits < 256; bits++) {
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    double magnitude = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    if (exponent == 15 && mantissa == 7) magnitude = NAN;
    fp8[bits] = bits & 128 ? -magnitude : magnitude;
  }
}

static double value(DLTensor *t, int64_t l, int64_t i, int64_t j) {
  char *from = at(t, l, i, j);
  if (t->dtype.bits == 8) return fp8[*(uint8_t *)from];
  uint32_t bits = 0;
  memcpy((char *)&bits + (t->dtype.bits == 16 ? 2 : 0), from, t->dtype.bits / 8);
  float number;
  memcpy(&number, &bits, 4);
  return number;
}

static void store(DLTensor *t, int64_t l, int64_t i, int64_t j, float number) {
  uint32_t bits;
  memcpy(&bits, &number, 4);
  if (t->dtype.bits == 16) {
    bits += 0x7fff + (bits >> 16 & 1);
    memcpy(at(t, l, i, j), (char *)&bits + 2, 2);
  } else {
    memcpy(at(t, l, i, j), &bits, 4);
  }
}

static int gemm(const TVMFFIAny *args, int32_t count, char kind) {
  DLTensor *t[6];
  for (int i = 0; i < count; i++) {
    if (args[i].type_index == kTVMFFITensor) t[i] = (DLTensor *)((TVMFFIObject *)args[i].v_obj + 1);
    else t[i] = args[i].v_ptr;
  }
  DLTensor *a = t[0], *b = t[1], *out = t[2];
  int scaled = count > 4;
  int32_t *numbers = kind == 'g' ? NULL : (int32_t *)((char *)t[count - 1]->data + t[count - 1]->byte_offset);
  int64_t rows = out->shape[out->ndim - 2];
  for (int64_t l = 0; l < b->shape[0]; l++) {
    int64_t first = kind == 'o' && l ? numbers[l - 1] : 0, end = kind == 'g' ? rows : numbers[l];
    for (int64_t i = first; i < (end < rows ? end : rows); i++)
      for (int64_t j = 0; j < b->shape[2]; j++) {
        double sum = 0;
        for (int64_t k = 0; k < b->shape[1]; k++) {
          double factor = scaled ? value(t[3], l, i, k / 128) * value(t[4], l, j / 128, k / 128) : 1;
          sum += factor * value(a, l, i, k) * value(b, l, k, j);
        }
        store(out, l, i, j, sum);
      }
  }
  return 0;
}
"""
FUNCTION = """
__attribute__((visibility("default"))) uint64_t cutlass_aot_code_%s[2];
__attribute__((visibility("default")))
int __tvm_ffi_%s(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  return gemm(args, count, '%s');
}
"""
_KINDS = {"gemm": "g", "grouped_gemm": "o", "masked_grouped_gemm": "m"}


def write_scaled_bundle(root: Path, problems: Sequence[Problem], launcher: bytes, **fields: str) -> Path:
    """A bundle of two kernels for each problem, which compute on the host in f64."""
    profile = load_profile("h200")
    kernels: list[Kernel] = []
    for problem in problems:
        kernels += list(Sm90Gemm().enumerate(problem, "sm_90a", profile))[:2]
    functions = [FUNCTION % (k.symbol, k.symbol, _KINDS[k.operation]) for k in kernels]
    data = compile_c(root.parent, f"{root.name}_gemms", SOURCE + "".join(functions))
    libraries = dict.fromkeys((kernel.group_name for kernel in kernels), data)
    return write_bundle(root, kernels, libraries=libraries, launcher=launcher, **fields)
