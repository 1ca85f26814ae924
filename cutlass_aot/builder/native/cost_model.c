/* SPDX-License-Identifier: Apache-2.0
 *
 * The cost model of kernels in native code, for the first call with operands that were not seen before.
 *
 *     cutlass_aot_cost_model(kernels, a, b, out) -> fastest
 *     fastest(batch, m, n, k) -> position of the kernel with the least estimated time, the first of equals
 *
 * kernels is bytes: a struct kernel for each, as Candidates.packed of runtime/selection/cost_model.py gives them. a, b and out are
 * bytes of memory for each element of the GEMM's operands. The formula is that of cost_model.py, which describes it;
 * tests/unit/runtime/test_native_cost_model.py compares the two.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#define SECTOR_BYTES 32
#define EXPORT __attribute__((visibility("default")))

struct kernel {
  double cluster_m, cluster_n, block_m, block_n, depth, blocks_per_sm, within, places;
  double launch, tile, step, crowding, pairing, sharing, misalignment, tail, bandwidth, emptiness, overlap;
};

struct model {
  double a, b, out;
  size_t count;
  struct kernel kernels[];
};

static int fail(const char *kind, const char *text) {
  TVMFFIErrorSetRaisedFromCStr(kind, text);
  return -1;
}

static double at_least_zero(double value) { return value > 0 ? value : 0; }

static double microseconds(const struct model *model, const struct kernel *kernel, double batch, double m, double n, double k) {
  double down = ceil(m / kernel->cluster_m), across = ceil(n / kernel->cluster_n);
  double clusters = batch * down * across, waves = ceil(clusters / kernel->places);
  double filled = waves > 1 ? clusters / kernel->places : 1;
  double at_work = clusters * kernel->blocks_per_sm / kernel->places;
  double missing_m = kernel->within ? at_least_zero(kernel->block_m - m) : down * kernel->cluster_m - m;
  double missing_n = kernel->within ? at_least_zero(kernel->block_n - n) : across * kernel->cluster_n - n;
  double whole = (1 - kernel->tail) * filled + kernel->tail * waves;
  double step = kernel->step * (at_work < 1 ? pow((at_work + 0.15) / 1.15, kernel->crowding) : 1);
  if (at_work > 0.5) step *= 1 + kernel->pairing;
  if (kernel->blocks_per_sm > 1 && at_work > 1) step *= 1 + kernel->sharing;
  if (fmod(model->a * k, SECTOR_BYTES) != 0) step *= 1 + kernel->misalignment;
  double compute = whole * (kernel->tile + ceil(k / kernel->depth) * step);
  double a = model->a * batch * k, b = model->b * batch * k;
  double megabytes = (a * m + b * n + model->out * batch * m * n) / 1e6;
  double empty = (a * missing_m * across + b * missing_n * down) / 1e6;
  double memory = (megabytes + kernel->emptiness * empty) / kernel->bandwidth * 1e3;
  double longer = (compute + memory + fabs(compute - memory)) / 2;
  double powers = pow(compute / longer, kernel->overlap) + pow(memory / longer, kernel->overlap);
  return kernel->launch + longer * pow(powers, 1 / kernel->overlap);
}

static int fastest(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  const struct model *model = self;
  double extents[4];
  if (count != 4) return fail("TypeError", "expected batch, m, n and k");
  for (int position = 0; position < 4; position++) {
    if (arguments[position].type_index != kTVMFFIInt || arguments[position].v_int64 < 1)
      return fail("TypeError", "expected extents of 1 or more");
    extents[position] = (double)arguments[position].v_int64;
  }
  size_t best = 0;
  double least = INFINITY;
  for (size_t index = 0; index < model->count; index++) {
    double time = microseconds(model, &model->kernels[index], extents[0], extents[1], extents[2], extents[3]);
    if (time < least) {
      least = time;
      best = index;
    }
  }
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = (int64_t)best;
  return 0;
}

EXPORT int __tvm_ffi_cutlass_aot_cost_model(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)self;
  if (count != 4) return fail("TypeError", "expected the kernels, and bytes of three operands");
  const TVMFFIByteArray *bytes = NULL;
  if (arguments[0].type_index == kTVMFFIByteArrayPtr) bytes = arguments[0].v_ptr;
  if (arguments[0].type_index == kTVMFFIBytes) bytes = (const TVMFFIByteArray *)((const TVMFFIObject *)arguments[0].v_obj + 1);
  double numbers[3];
  for (int position = 0; position < 3; position++) {
    const TVMFFIAny *given = &arguments[1 + position];
    if (given->type_index == kTVMFFIFloat) numbers[position] = given->v_float64;
    else if (given->type_index == kTVMFFIInt) numbers[position] = (double)given->v_int64;
    else return fail("TypeError", "expected numbers after the kernels");
  }
  struct kernel one;
  if (!bytes || !bytes->size || bytes->size % sizeof one) return fail("TypeError", "expected kernels as bytes, nineteen numbers each");
  struct model *made = malloc(sizeof *made + bytes->size);
  if (!made) return fail("MemoryError", "out of memory");
  made->a = numbers[0];
  made->b = numbers[1];
  made->out = numbers[2];
  made->count = bytes->size / sizeof one;
  memcpy(made->kernels, bytes->data, bytes->size);
  TVMFFIObjectHandle function = NULL;
  if (TVMFFIFunctionCreate(made, fastest, free, &function)) {
    free(made);
    return -1;
  }
  result->type_index = kTVMFFIFunction;
  result->zero_padding = 0;
  result->v_obj = function;
  return 0;
}
