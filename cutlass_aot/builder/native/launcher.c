/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands between a caller's operands and compiled kernels, in native code: a function for TVM-FFI.
 *
 *     cutlass_aot_launcher(kernel, {rank, contiguous, divisibility, bits, code, flags, of, along, block} of each operand...,
 *                          {-1, operand, mode, factor, offset, operand, mode, factor, offset} of each relation...) -> launch
 *     launch(operand..., [more...]) -> None, or false where nothing that the kernel writes has any elements: it is not called then, and
 *                                      nothing is checked
 *
 * launch gives the operands to the kernel, whose address (of a TVMFFISafeCallType) it was made with. Of operands that have a batch
 * (flag BATCH) it accepts a tensor without it as a batch of one; it gives modes of extent 1 the stride that compiled code expects of
 * them, and extents and strides in elements where an element of the tensor packs two of four bits. It checks what compiled code does
 * not: the batch in all operands that have one or in none, extents within 32 bits (unless WIDE) and not empty, strides neither negative nor beyond
 * what a TMA descriptor holds, none of 0 in what is written (WRITTEN), none but those of a compact tensor (COMPACT), and integers
 * with a sign or without (code, of DLPack), which are alike to compiled code. Everything else compiled code checks. Modes count from
 * the end: contiguous is 1 for row-major, 2 for column-major; bits are those of an element, divisibility is in elements; an operand of
 * rank 0, a number, is passed as it is, and so is what follows the operands.
 *
 * Scale factors (SCALE) are compact tensors of any shape, given to the kernel as one of rank 1. There is one for each `block` elements
 * of operand number `of` along its mode `along`; TILED where they lie in tiles of 128 rows by 4 factors
 * (cutlass_aot/schema/kernels/constraints.py, Scale): their number is checked.
 *
 * A relation says of two extents, each given by operand number and mode, that both are factor * X + offset for one X. The first may have
 * the factor -D and the offset 0 instead: it is X / D then, rounded up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"

#define MAX_ARGUMENTS 24
#define INTEGERS_OF_AN_OPERAND 9
#define MAX_RELATIONS 16
enum { WRITTEN = 1, BATCH = 2, COMPACT = 4, SCALE = 8, TILED = 16, WIDE = 32 };

struct operand {
  int64_t rank, contiguous, divisibility, bits, code, flags, of, along, block;
};

struct place {
  int64_t operand, mode, factor, offset;
};

struct relation {
  struct place extent, base;
};

struct launcher {
  TVMFFISafeCallType kernel;
  int count, relation_count;
  struct relation relations[MAX_RELATIONS];
  struct operand operands[];
};

/* A tensor as the kernel takes it, with room for its extents and strides. */
struct view {
  DLTensor tensor;
  int64_t shape[MAX_RANK];
  int64_t strides[MAX_RANK];
};

static int refuse_operand(int position, const char *problem, int64_t found) {
  char text[160];
  snprintf(text, sizeof text, "argument #%d: %s, got %lld", position, problem, (long long)found);
  return refuse("ValueError", text);
}

static int check_sign(const struct operand *operand, int position, const DLTensor *tensor) {
  if (operand->code > kDLUInt || tensor->dtype.bits != operand->bits || tensor->dtype.code == operand->code) return 0;
  const char *expected =
      operand->code == kDLUInt ? "expected unsigned integers, DLPack code 1" : "expected signed integers, DLPack code 0";
  return refuse_operand(position, expected, tensor->dtype.code);
}

static int check_mode(const struct operand *operand, int position, int64_t extent, int64_t stride) {
  if (extent < 1 || (extent > MAX_EXTENT && !(operand->flags & WIDE)))
    return refuse_operand(position, "expected extents from 1 to 2^31 - 1", extent);
  if (extent == 1) return 0;
  if (stride < 0 || (stride == 0 && operand->flags & WRITTEN)) return refuse_operand(position, "expected positive strides", stride);
  if (stride > MAX_STRIDE_BYTES * 8 / operand->bits)
    return refuse_operand(position, "expected strides below 2^40 bytes", stride);
  return 0;
}

/* Whether the strides in view are those of a compact tensor: the contiguous mode, then the others, innermost first. */
static int check_compact(const struct operand *operand, int position, const struct view *view, int missing) {
  int rank = (int)operand->rank, contiguous = (int)(rank - operand->contiguous);
  int64_t expected = view->shape[contiguous];
  for (int mode = rank - 1; mode >= missing; mode--) {
    if (mode == contiguous) continue; /* compiled code looks at its stride */
    if (view->shape[mode] > 1 && view->strides[mode] != expected)
      return refuse_operand(position, "expected a compact tensor, with another stride", view->strides[mode]);
    if (__builtin_mul_overflow(expected, view->shape[mode], &expected))
      return refuse_operand(position, "expected an operand within 2^63 elements, in a mode of extent", view->shape[mode]);
  }
  return 0;
}

/* Fill view if the tensor has to be given in another form. 1 if it has, 0 if it is good as it is, -1 after an error. */
static int convert(const struct operand *operand, int position, const DLTensor *tensor, struct view *view) {
  int64_t rank = operand->rank;
  int missing = (int)rank - tensor->ndim;
  if (missing < 0 || missing > (operand->flags & BATCH ? 1 : 0)) return 0; /* compiled code says what is wrong */
  int contiguous = (int)(rank - operand->contiguous);
  int packs = tensor->dtype.lanes == 2 && operand->bits == 4 ? 2 : 1;
  int regular = !missing && tensor->strides && packs == 1;
  int64_t compact = 1, span = 1;
  if (missing) view->shape[0] = 1;
  for (int mode = tensor->ndim - 1; mode >= 0; mode--) {
    int inner = mode + missing == contiguous;
    int64_t extent = tensor->shape[mode];
    int64_t stride = tensor->strides ? tensor->strides[mode] : compact;
    compact = (int64_t)((uint64_t)compact * (uint64_t)extent); /* used where there are no strides, of memory that exists */
    if (inner) extent = (int64_t)((uint64_t)extent * (uint64_t)packs);
    else if (__builtin_mul_overflow(stride, packs, &stride)) return refuse_operand(position, "expected smaller strides", stride);
    if (check_mode(operand, position, extent, stride)) return -1;
    view->shape[mode + missing] = extent;
    view->strides[mode + missing] = stride;
    if (extent > 1) {
      int64_t reach;
      if (__builtin_mul_overflow(extent, stride, &reach) || reach > INT64_MAX - operand->divisibility)
        return refuse_operand(position, "expected an operand within 2^63 elements, in a mode of stride", stride);
      if (reach > span) span = reach;
    } else if (inner ? stride != 1
                     : stride < 0 || stride % operand->divisibility || stride > MAX_STRIDE_BYTES * 8 / operand->bits) {
      regular = 0;
    }
  }
  if (operand->flags & COMPACT && check_compact(operand, position, view, missing)) return -1;
  if (regular) return 0;
  /* Elements from one batch to a next one that there is not, as a compact tensor would have it. */
  int64_t beyond = (span + operand->divisibility - 1) / operand->divisibility * operand->divisibility;
  for (int mode = 0; mode < rank; mode++)
    if (view->shape[mode] == 1) view->strides[mode] = mode == contiguous ? 1 : beyond;
  view->tensor = *tensor;
  view->tensor.ndim = (int32_t)rank;
  view->tensor.dtype.lanes = (uint16_t)(tensor->dtype.lanes / packs);
  view->tensor.shape = view->shape;
  view->tensor.strides = view->strides;
  return 1;
}

/* The number of scale factors for operand number `of`, or -1 if compiled code will refuse that operand. */
static int64_t scale_count(const struct launcher *launcher, const struct operand *operand, const TVMFFIAny *arguments) {
  const struct operand *scaled = &launcher->operands[operand->of];
  const DLTensor *tensor = tensor_of(&arguments[operand->of]);
  if (!tensor || (tensor->ndim != scaled->rank && !(scaled->flags & BATCH && tensor->ndim == scaled->rank - 1))) return -1;
  int packs = tensor->dtype.lanes == 2 && scaled->bits == 4 ? 2 : 1;
  uint64_t batch = 1, rows = 1, factors = 1; /* products of extents of memory that exists */
  for (int mode = 0; mode < tensor->ndim; mode++) {
    uint64_t extent = (uint64_t)tensor->shape[mode];
    int from_end = tensor->ndim - mode;
    if (from_end == scaled->contiguous) extent *= (uint64_t)packs;
    if (from_end == operand->along) factors = (extent + (uint64_t)operand->block - 1) / (uint64_t)operand->block;
    else if (scaled->flags & BATCH && from_end == scaled->rank) batch = extent;
    else rows *= extent;
  }
  if (operand->flags & TILED) {
    rows = (rows + 127) / 128 * 128;
    factors = (factors + 3) / 4 * 4;
  }
  return (int64_t)(batch * rows * factors);
}

/* Give scale factors as a tensor of rank 1. 1 if view is filled, 0 if compiled code will say what is wrong, -1 after an error. */
static int flatten(const struct launcher *launcher, int position, const DLTensor *tensor, const TVMFFIAny *arguments,
                   struct view *view) {
  int64_t compact = 1;
  for (int mode = tensor->ndim - 1; mode >= 0; mode--) {
    int64_t extent = tensor->shape[mode];
    if (extent < 1 || extent > MAX_EXTENT) return refuse_operand(position, "expected extents from 1 to 2^31 - 1", extent);
    if (tensor->strides && extent > 1 && tensor->strides[mode] != compact)
      return refuse_operand(position, "expected a compact tensor of scale factors, with another stride", tensor->strides[mode]);
    if (__builtin_mul_overflow(compact, extent, &compact) || compact > MAX_EXTENT)
      return refuse_operand(position, "expected fewer than 2^31 scale factors, in a mode of extent", extent);
  }
  int64_t expected = scale_count(launcher, &launcher->operands[position], arguments);
  if (expected < 0) return 0;
  if (compact != expected) {
    char text[120];
    snprintf(text, sizeof text, "argument #%d: expected %lld scale factors, got %lld", position, (long long)expected,
             (long long)compact);
    return refuse("ValueError", text);
  }
  view->shape[0] = compact;
  view->strides[0] = 1;
  view->tensor = *tensor;
  view->tensor.ndim = 1;
  view->tensor.shape = view->shape;
  view->tensor.strides = view->strides;
  return 1;
}

/* The extent at a place, in elements. 1 if there is one, 0 if compiled code will refuse the operand. */
static int extent_at(const struct launcher *launcher, const struct place *place, const TVMFFIAny *arguments, int64_t *extent) {
  const struct operand *operand = &launcher->operands[place->operand];
  const DLTensor *tensor = tensor_of(&arguments[place->operand]);
  if (!tensor || (tensor->ndim != operand->rank && !(operand->flags & BATCH && tensor->ndim == operand->rank - 1))) return 0;
  *extent = place->mode > tensor->ndim ? 1 : tensor->shape[tensor->ndim - place->mode];
  /* Unsigned, as what is not an extent may overflow; it is refused elsewhere. */
  if (place->mode == operand->contiguous && tensor->dtype.lanes == 2 && operand->bits == 4) *extent = (int64_t)((uint64_t)*extent * 2);
  return 1;
}

/* The X of a relation, -1 if there is none for this extent. */
static int64_t named_extent(const struct place *place, int64_t extent) {
  int64_t rest;
  if (__builtin_sub_overflow(extent, place->offset, &rest) || rest < 0 || rest % place->factor) return -1;
  return rest / place->factor;
}

/* Whether one X gives both extents. */
static int is_related(const struct relation *relation, int64_t extent, int64_t base) {
  int64_t named = named_extent(&relation->base, base), divisor = -relation->extent.factor;
  if (named < 0) return 0;
  if (divisor > 0) return extent == named / divisor + (named % divisor != 0);
  return named == named_extent(&relation->extent, extent);
}

static int check_relations(const struct launcher *launcher, const TVMFFIAny *arguments) {
  for (int index = 0; index < launcher->relation_count; index++) {
    const struct relation *relation = &launcher->relations[index];
    int64_t extent, base;
    if (!extent_at(launcher, &relation->extent, arguments, &extent) || !extent_at(launcher, &relation->base, arguments, &base)) continue;
    if (is_related(relation, extent, base)) continue;
    char text[160];
    snprintf(text, sizeof text, "argument #%d: expected an extent in its declared relation to the %lld of argument #%d, got %lld",
             (int)relation->extent.operand, (long long)base, (int)relation->base.operand, (long long)extent);
    return refuse("ValueError", text);
  }
  return 0;
}

/* Whether there are operands that are written (WRITTEN), and none of them has an element. */
static int writes_nothing(const struct launcher *launcher, const TVMFFIAny *arguments) {
  int written = 0;
  for (int position = 0; position < launcher->count; position++) {
    if (!(launcher->operands[position].flags & WRITTEN)) continue;
    const DLTensor *tensor = tensor_of(&arguments[position]);
    int empty = 0;
    for (int mode = 0; tensor && mode < tensor->ndim; mode++) empty |= tensor->shape[mode] == 0;
    if (!empty) return 0;
    written = 1;
  }
  return written;
}

static int launch(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  const struct launcher *launcher = self;
  TVMFFIAny given[MAX_ARGUMENTS];
  struct view views[MAX_OPERANDS];
  int missing_in_all = -1;
  if (count < launcher->count || count > MAX_ARGUMENTS) {
    char text[96];
    snprintf(text, sizeof text, "expected %d operands, got %d", launcher->count, (int)count);
    return refuse("TypeError", text);
  }
  if (writes_nothing(launcher, arguments)) {
    return_false(result);
    return 0;
  }
  memcpy(given, arguments, sizeof *arguments * (size_t)count);
  for (int position = 0; position < launcher->count; position++) {
    const struct operand *operand = &launcher->operands[position];
    const DLTensor *tensor = tensor_of(&arguments[position]);
    if (!tensor || !operand->rank) continue; /* a number; or compiled code says what is wrong */
    if (tensor->ndim < 0) return refuse_operand(position, "expected a rank of 0 or more", tensor->ndim);
    if (operand->flags & BATCH) {
      int missing = (int)operand->rank - tensor->ndim;
      if (missing_in_all < 0) missing_in_all = missing;
      if (missing != missing_in_all)
        return refuse_operand(position, "expected a batch in all operands or in none", tensor->ndim);
    }
    if (check_sign(operand, position, tensor)) return -1;
    int other = operand->flags & SCALE ? flatten(launcher, position, tensor, arguments, &views[position])
                                       : convert(operand, position, tensor, &views[position]);
    if (other < 0) return -1;
    if (!other) continue;
    given[position].type_index = kTVMFFIDLTensorPtr;
    given[position].zero_padding = 0;
    given[position].v_ptr = &views[position].tensor;
  }
  if (check_relations(launcher, arguments)) return -1;
  return launcher->kernel(NULL, given, count, result);
}

static int place_possible(const struct place *place, const struct operand *operands, int count) {
  return place->operand >= 0 && place->operand < count && place->mode >= 1 && place->mode <= operands[place->operand].rank &&
         place->factor >= 1 && place->factor <= MAX_EXTENT && place->offset >= -MAX_EXTENT && place->offset <= MAX_EXTENT;
}

/* Whether the extent of a relation is possible, a quotient among them; as the base, it would tell no X. */
static int extent_possible(const struct place *place, const struct operand *operands, int count) {
  if (place->factor >= 1) return place_possible(place, operands, count);
  struct place whole = {place->operand, place->mode, 1, place->offset};
  return place->factor <= -2 && place->factor >= -MAX_EXTENT && place->offset == 0 && place_possible(&whole, operands, count);
}

static int possible(const struct operand *operand, int operands) {
  if (operand->rank == 0) return operand->contiguous == 0 && operand->bits >= 1;
  if (operand->rank < 1 || operand->rank > MAX_RANK || operand->contiguous < 1 || operand->contiguous > operand->rank) return 0;
  /* With bounds, so that sums with extents and strides stay within 64 bits. */
  if (operand->divisibility < 1 || operand->divisibility > MAX_EXTENT || operand->bits < 1 || operand->bits > 64) return 0;
  return !(operand->flags & SCALE) || (operand->of >= 0 && operand->of < operands && operand->along >= 1 &&
                                       operand->block >= 1 && operand->block <= MAX_EXTENT);
}

EXPORT int __tvm_ffi_cutlass_aot_launcher(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)self;
  int operands = (count - 1) / INTEGERS_OF_AN_OPERAND, relations = 0;
  if (count != 1 + operands * INTEGERS_OF_AN_OPERAND) operands = 0;
  for (int position = 0; position < count; position++)
    if (arguments[position].type_index != kTVMFFIInt) return refuse("TypeError", "expected integers");
  while (operands && arguments[1 + (operands - 1) * INTEGERS_OF_AN_OPERAND].v_int64 == -1) operands--, relations++;
  if (operands < 1 || operands > MAX_OPERANDS || relations > MAX_RELATIONS)
    return refuse("TypeError", "expected the address of a kernel, and nine integers for each of 1 to 16 operands and up to 16 relations");
  struct launcher *made = malloc(sizeof *made + (size_t)operands * sizeof *made->operands);
  if (!made) return refuse("MemoryError", "out of memory");
  made->kernel = (TVMFFISafeCallType)(uintptr_t)arguments[0].v_int64;
  made->count = operands;
  made->relation_count = relations;
  for (int position = 0; position < operands; position++) {
    const TVMFFIAny *given = &arguments[1 + position * INTEGERS_OF_AN_OPERAND];
    struct operand operand = {given[0].v_int64, given[1].v_int64, given[2].v_int64, given[3].v_int64,
                              given[4].v_int64, given[5].v_int64, given[6].v_int64, given[7].v_int64, given[8].v_int64};
    if (!made->kernel || !possible(&operand, operands)) {
      free(made);
      return refuse("ValueError", "impossible operand, or no kernel");
    }
    made->operands[position] = operand;
  }
  for (int index = 0; index < relations; index++) {
    const TVMFFIAny *given = &arguments[2 + (operands + index) * INTEGERS_OF_AN_OPERAND];
    struct relation relation = {{given[0].v_int64, given[1].v_int64, given[2].v_int64, given[3].v_int64},
                                {given[4].v_int64, given[5].v_int64, given[6].v_int64, given[7].v_int64}};
    if (!extent_possible(&relation.extent, made->operands, operands) || !place_possible(&relation.base, made->operands, operands)) {
      free(made);
      return refuse("ValueError", "impossible relation");
    }
    made->relations[index] = relation;
  }
  TVMFFIObjectHandle function = NULL;
  if (TVMFFIFunctionCreate(made, launch, free, &function)) {
    free(made);
    return -1;
  }
  return_function(result, function);
  return 0;
}
