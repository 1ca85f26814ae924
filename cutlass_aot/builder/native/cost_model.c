/* SPDX-License-Identifier: Apache-2.0
 *
 * The cost model of kernels in native code, for the first call with operands that were not seen before.
 *
 *     cutlass_aot_cost_model(kernels, sm_count, a, b, out) -> fastest
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

#define EXPORT __attribute__((visibility("default")))

struct kernel {
  double cluster_m, cluster_n, depth, blocks, blocks_per_sm, places;
  double launch, tile, step, crowding, sharing, edge, tail, bandwidth, rereading, overlap;
};

struct model {
  double sm_count, a, b, out;
  size_t count;
  struct kernel kernels[];
};

static int fail(const char *kind, const char *text) {
  TVMFFIErrorSetRaisedFromCStr(kind, text);
  return -1;
}

static double at_most_one(double value) { return value < 1 ? value : 1; }

static double microseconds(const struct model *model, const struct kernel *kernel, double batch, double m, double n, double k) {
  double down = ceil(m / kernel->cluster_m), across = ceil(n / kernel->cluster_n);
  double clusters = batch * down * across, waves = ceil(clusters / kernel->places);
  double filled = waves > 1 ? clusters / kernel->places : 1;
  double blocks = clusters * kernel->blocks / model->sm_count, at_work = at_most_one(blocks);
  double missing_m = down * kernel->cluster_m - m, missing_n = across * kernel->cluster_n - n;
  double at_edge = at_most_one((missing_m > 0 ? 1 / down : 0) + (missing_n > 0 ? 1 / across : 0)) * at_work;
  double whole = (1 - kernel->tail) * filled + kernel->tail * waves;
  double step = kernel->step * (at_work < 1 ? pow((at_work + 0.15) / 1.15, kernel->crowding) : 1);
  if (kernel->blocks_per_sm > 1 && blocks > 1) step *= 1 + kernel->sharing;
  double added = step / 2 + kernel->edge * (at_edge + 0.1) * (missing_m + missing_n) / 100;
  double square = step * step, added_square = added * added;
  double edge = sqrt(sqrt(square * square + added_square * added_square));
  double mean = step + (edge - step) * at_edge;
  double compute = whole * kernel->tile + ceil(k / kernel->depth) * ((whole - 1) * mean + edge);
  double a = model->a * batch * m * k, b = model->b * batch * n * k;
  double megabytes = (a + b + model->out * batch * m * n) / 1e6;
  double again = (a * (across - 1) + b * (down - 1)) / 1e6;
  double memory = (megabytes + kernel->rereading * again) / kernel->bandwidth * 1e3;
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
  if (count != 5) return fail("TypeError", "expected the kernels, the number of multiprocessors, and bytes of three operands");
  const TVMFFIByteArray *bytes = NULL;
  if (arguments[0].type_index == kTVMFFIByteArrayPtr) bytes = arguments[0].v_ptr;
  if (arguments[0].type_index == kTVMFFIBytes) bytes = (const TVMFFIByteArray *)((const TVMFFIObject *)arguments[0].v_obj + 1);
  double numbers[4];
  for (int position = 0; position < 4; position++) {
    const TVMFFIAny *given = &arguments[1 + position];
    if (given->type_index == kTVMFFIFloat) numbers[position] = given->v_float64;
    else if (given->type_index == kTVMFFIInt) numbers[position] = (double)given->v_int64;
    else return fail("TypeError", "expected numbers after the kernels");
  }
  struct kernel one;
  if (!bytes || !bytes->size || bytes->size % sizeof one) return fail("TypeError", "expected kernels as bytes, sixteen numbers each");
  struct model *made = malloc(sizeof *made + bytes->size);
  if (!made) return fail("MemoryError", "out of memory");
  made->sm_count = numbers[0];
  made->a = numbers[1];
  made->b = numbers[2];
  made->out = numbers[3];
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
