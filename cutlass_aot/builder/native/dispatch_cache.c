/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of a kernel for operands like some seen before: two functions for TVM-FFI.
 *
 *     cutlass_aot_dispatch_cache(alignment) -> choose
 *     choose(operand...)          launches what is remembered for like operands, or else what a selection launches, which it then
 *                                 remembers; returns false if neither does
 *     choose(operand..., launch)  remembers launch for operands like these; returns how many it remembers
 *     choose(selection)           asks this function of select.c from now on, after those before it; returns how many it remembers
 *
 * Like operands have the same element types, extents, strides and devices, and addresses that are equal modulo alignment; numbers
 * are alike if they are of one type, and None is like None.
 *
 * Nothing here takes a lock: remembered choices are published once and never change or move until the cache itself goes, so
 * that threads do not wait for each other and a forked child finds no lock held. Two threads that remember the same at once
 * leave it there twice, which does no harm.
 *
 *     cutlass_aot_linear(choose) -> linear
 *     linear(x, weight, out)      choose(x, weight transposed, out), with x and out as matrices: their leading modes as one; false
 *                                 where no view of the memory is that, too
 */
#include <stdlib.h>
#include <string.h>

#include "arguments.h"

#define HEADS 4096 /* chains of remembered choices; a power of two */
#define MOST 65536 /* MAX_REMEMBERED of runtime/dispatch.py, which drops a cache that is full */
#define MAX_KEY (MAX_OPERANDS * (3 + 2 * MAX_RANK))

/* ---- choose ---- */

struct choice {
  struct choice *next;
  TVMFFIObjectHandle function;
  uint64_t hash;
  int words;
  int64_t key[];
};

struct selection {
  struct selection *next;
  TVMFFIObjectHandle function;
};

struct dispatch_cache {
  int64_t alignment;
  int64_t count;
  struct selection *selections;
  struct choice *heads[HEADS];
};

struct key {
  uint64_t hash;
  int words;
  int64_t word[MAX_KEY];
};

/* What a choice can depend on. 0 if the arguments are not operands that can be remembered. */
static int make_key(const struct dispatch_cache *cache, const TVMFFIAny *arguments, int count, struct key *key) {
  int words = 0;
  if (count < 1 || count > MAX_OPERANDS) return 0;
  for (int position = 0; position < count; position++) {
    const DLTensor *tensor = tensor_of(&arguments[position]);
    int32_t type = arguments[position].type_index;
    if (!tensor && (type == kTVMFFIInt || type == kTVMFFIFloat || type == kTVMFFINone)) {
      key->word[words++] = ~(int64_t)type; /* a number, whatever its value */
      continue;
    }
    if (!tensor || tensor->ndim < 0 || tensor->ndim > MAX_RANK || !tensor->strides) return 0;
    uint64_t dtype = (uint64_t)tensor->dtype.code << 24 | (uint64_t)tensor->dtype.bits << 16 | tensor->dtype.lanes;
    uint64_t address = (uint64_t)(uintptr_t)tensor->data + tensor->byte_offset;
    key->word[words++] = (int64_t)(dtype << 32 | (uint32_t)tensor->ndim);
    key->word[words++] = (int64_t)((uint64_t)tensor->device.device_type << 32 | (uint32_t)tensor->device.device_id);
    key->word[words++] = (int64_t)(address % (uint64_t)cache->alignment);
    size_t bytes = sizeof(int64_t) * (size_t)tensor->ndim;
    memcpy(&key->word[words], tensor->shape, bytes);
    memcpy(&key->word[words + tensor->ndim], tensor->strides, bytes);
    words += 2 * tensor->ndim;
  }
  uint64_t hash = 0;
  for (int index = 0; index < words; index++) {
    hash = (hash ^ (uint64_t)key->word[index]) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 32;
  }
  key->hash = hash;
  key->words = words;
  return 1;
}

static struct choice **chain(struct dispatch_cache *cache, uint64_t hash) { return &cache->heads[hash & (HEADS - 1)]; }

static const struct choice *recall(struct dispatch_cache *cache, const struct key *key) {
  const struct choice *choice = __atomic_load_n(chain(cache, key->hash), __ATOMIC_ACQUIRE);
  for (; choice; choice = choice->next)
    if (choice->hash == key->hash && choice->words == key->words &&
        !memcmp(choice->key, key->word, sizeof(int64_t) * (size_t)key->words))
      return choice;
  return NULL;
}

/* Returns whether there was memory for it. */
static int remember(struct dispatch_cache *cache, const struct key *key, TVMFFIObjectHandle function) {
  size_t bytes = sizeof(int64_t) * (size_t)key->words;
  struct choice *made = malloc(sizeof *made + bytes);
  if (!made) return 0;
  TVMFFIObjectIncRef(function);
  made->function = function;
  made->hash = key->hash;
  made->words = key->words;
  memcpy(made->key, key->word, bytes);
  struct choice **head = chain(cache, key->hash);
  made->next = __atomic_load_n(head, __ATOMIC_ACQUIRE);
  while (!__atomic_compare_exchange_n(head, &made->next, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
  }
  __atomic_fetch_add(&cache->count, 1, __ATOMIC_RELAXED);
  return 1;
}

static int add(struct dispatch_cache *cache, TVMFFIObjectHandle function) {
  struct selection *made = malloc(sizeof *made);
  if (!made) return refuse("MemoryError", "out of memory");
  TVMFFIObjectIncRef(function);
  *made = (struct selection){NULL, function};
  struct selection **last = &cache->selections, *next = NULL;
  while (!__atomic_compare_exchange_n(last, &next, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    if (next->function == function) { /* it is asked already */
      TVMFFIObjectDecRef(function);
      free(made);
      break;
    }
    last = &next->next;
    next = NULL;
  }
  return 0;
}

/* Launch what the first selection launches that can, and remember it, if there is memory for it. */
static int select_and_launch(struct dispatch_cache *cache, const struct key *key, const TVMFFIAny *operands, TVMFFIAny *result) {
  struct selection *selection = __atomic_load_n(&cache->selections, __ATOMIC_ACQUIRE);
  for (; selection; selection = __atomic_load_n(&selection->next, __ATOMIC_ACQUIRE)) {
    TVMFFIAny given[3], launched = {.type_index = kTVMFFINone};
    memcpy(given, operands, sizeof given);
    if (TVMFFIFunctionCall(selection->function, given, 3, &launched)) return -1;
    if (launched.type_index != kTVMFFIFunction) continue;
    remember(cache, key, launched.v_obj);
    TVMFFIObjectDecRef(launched.v_obj);
    result->type_index = kTVMFFINone;
    return 0;
  }
  return_false(result);
  return 0;
}

static int choose(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  struct dispatch_cache *cache = self;
  struct key key;
  int teaching = count > 0 && arguments[count - 1].type_index == kTVMFFIFunction, operands = count - teaching;
  int known = make_key(cache, arguments, operands, &key);
  if (teaching) {
    TVMFFIObjectHandle function = arguments[operands].v_obj;
    if (!operands && add(cache, function)) return -1;
    if (known && !remember(cache, &key, function)) return refuse("MemoryError", "out of memory");
    return_integer(result, __atomic_load_n(&cache->count, __ATOMIC_RELAXED));
    return 0;
  }
  const struct choice *choice = known ? recall(cache, &key) : NULL;
  if (!choice) {
    int full = __atomic_load_n(&cache->count, __ATOMIC_RELAXED) >= MOST;
    if (known && operands == 3 && !full) return select_and_launch(cache, &key, arguments, result);
    return_false(result);
    return 0;
  }
  TVMFFIAny given[MAX_OPERANDS];
  memcpy(given, arguments, sizeof *arguments * (size_t)count);
  return TVMFFIFunctionCall(choice->function, given, count, result);
}

static void forget(void *self) {
  struct dispatch_cache *cache = self;
  for (int head = 0; head < HEADS; head++) {
    struct choice *choice = cache->heads[head];
    while (choice) {
      struct choice *next = choice->next;
      TVMFFIObjectDecRef(choice->function);
      free(choice);
      choice = next;
    }
  }
  for (struct selection *selection = cache->selections, *next; selection; selection = next) {
    next = selection->next;
    TVMFFIObjectDecRef(selection->function);
    free(selection);
  }
  free(cache);
}

EXPORT int __tvm_ffi_cutlass_aot_dispatch_cache(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)self;
  if (count != 1 || arguments[0].type_index != kTVMFFIInt || arguments[0].v_int64 < 1)
    return refuse("TypeError", "expected an alignment in bytes");
  struct dispatch_cache *made = calloc(1, sizeof *made);
  if (!made) return refuse("MemoryError", "out of memory");
  made->alignment = arguments[0].v_int64;
  TVMFFIObjectHandle function = NULL;
  if (TVMFFIFunctionCreate(made, choose, forget, &function)) {
    free(made);
    return -1;
  }
  return_function(result, function);
  return 0;
}

/* ---- linear ---- */

struct matrix {
  DLTensor tensor;
  int64_t shape[2], strides[2];
};

/* View (..., columns) as (rows, columns). 0 if there is no such view. */
static int as_matrix(const DLTensor *tensor, struct matrix *matrix) {
  if (tensor->ndim < 1 || tensor->ndim > MAX_RANK || !tensor->strides) return 0;
  int last = tensor->ndim - 1;
  int64_t rows = 1, stride = 0;
  for (int mode = last - 1; mode >= 0; mode--) {
    int64_t extent = tensor->shape[mode];
    if (last > 1 && extent == 1) continue;
    int64_t expected;
    if (rows == 1) stride = tensor->strides[mode];
    else if (__builtin_mul_overflow(rows, stride, &expected) || tensor->strides[mode] != expected) return 0;
    if (extent < 0 || extent > MAX_EXTENT || __builtin_mul_overflow(rows, extent, &rows) || rows > MAX_EXTENT) return 0;
  }
  *matrix = (struct matrix){*tensor, {rows, tensor->shape[last]}, {stride, tensor->strides[last]}};
  /* One row: the stride that a framework gives a view of it. */
  if (rows == 1 && last != 1) matrix->strides[0] = tensor->shape[last];
  return 1;
}

static int linear(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  struct matrix matrices[3];
  TVMFFIAny given[3];
  if (count != 3) return refuse("TypeError", "expected x, weight and out");
  for (int position = 0; position < 3; position++) {
    const DLTensor *tensor = tensor_of(&arguments[position]);
    struct matrix *matrix = &matrices[position];
    if (!tensor || (position == 1 && tensor->ndim != 2) || !as_matrix(tensor, matrix)) {
      return_false(result);
      return 0;
    }
    if (position == 1) {
      matrix->shape[0] = tensor->shape[1];
      matrix->shape[1] = tensor->shape[0];
      matrix->strides[0] = tensor->strides[1];
      matrix->strides[1] = tensor->strides[0];
    }
    matrix->tensor.ndim = 2;
    matrix->tensor.shape = matrix->shape;
    matrix->tensor.strides = matrix->strides;
    given[position] = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr};
    given[position].v_ptr = &matrix->tensor;
  }
  return TVMFFIFunctionCall(self, given, 3, result);
}

static void release(void *function) { TVMFFIObjectDecRef(function); }

EXPORT int __tvm_ffi_cutlass_aot_linear(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)self;
  if (count != 1 || arguments[0].type_index != kTVMFFIFunction) return refuse("TypeError", "expected a function");
  TVMFFIObjectHandle function = NULL;
  TVMFFIObjectIncRef(arguments[0].v_obj);
  if (TVMFFIFunctionCreate(arguments[0].v_obj, linear, release, &function)) {
    release(arguments[0].v_obj);
    return -1;
  }
  return_function(result, function);
  return 0;
}
