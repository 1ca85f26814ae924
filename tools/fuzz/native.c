/* SPDX-License-Identifier: Apache-2.0
 *
 * The native sources of a bundle under sanitizers: python -m tools.fuzz.native compiles this with them, and with another driver.
 *
 *     native calls SEED COUNT       any operands for the launcher, the dispatch cache, linear and the cost model, on one thread
 *     native threads SEED COUNT     threads that teach and call one dispatch cache, and launch and load the same objects
 *
 * TVM-FFI is what little of it they call, here, so that the sanitizers see every access. Descriptions of tensors have exactly as many
 * extents and strides as their rank says, none where it is below 0: whatever else is read is found.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#define MAKER(name) int __tvm_ffi_cutlass_aot_##name(void *, const TVMFFIAny *, int32_t, TVMFFIAny *)
MAKER(launcher);
MAKER(dispatch_cache);
MAKER(linear);
MAKER(select);

static _Noreturn void fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  abort();
}

/* ---- TVM-FFI ---- */

struct function {
  TVMFFIObject head;
  void *self;
  TVMFFISafeCallType call;
  void (*deleter)(void *);
};

static _Thread_local char error_text[1024];

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) {
  snprintf(error_text, sizeof error_text, "%s: %s", kind, message);
}
int TVMFFIObjectIncRef(TVMFFIObjectHandle object) {
  __atomic_add_fetch(&((TVMFFIObject *)object)->combined_ref_count, 1, __ATOMIC_RELAXED);
  return 0;
}
int TVMFFIObjectDecRef(TVMFFIObjectHandle object) {
  struct function *function = object;
  if (__atomic_sub_fetch(&function->head.combined_ref_count, 1, __ATOMIC_ACQ_REL)) return 0;
  if (function->deleter) function->deleter(function->self);
  free(function);
  return 0;
}
int TVMFFIFunctionCreate(void *self, TVMFFISafeCallType call, void (*deleter)(void *), TVMFFIObjectHandle *out) {
  struct function *made = calloc(1, sizeof *made);
  made->head.combined_ref_count = 1;
  made->head.type_index = kTVMFFIFunction;
  made->self = self;
  made->call = call;
  made->deleter = deleter;
  *out = made;
  return 0;
}
int TVMFFIFunctionCall(TVMFFIObjectHandle object, TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  const struct function *function = object;
  return function->call(function->self, arguments, count, result);
}
void *TVMFFIEnvGetStream(int32_t device_type, int32_t device) {
  (void)device_type, (void)device;
  return NULL;
}

/* Make a function; NULL if that is refused. */
static struct function *make(int maker(void *, const TVMFFIAny *, int32_t, TVMFFIAny *), const TVMFFIAny *arguments, int count) {
  TVMFFIAny result = {.type_index = kTVMFFINone};
  if (maker(NULL, arguments, count, &result)) return NULL;
  if (result.type_index != kTVMFFIFunction) fail("no function was made");
  return (struct function *)result.v_obj;
}

/* ---- anything ---- */

struct random {
  uint64_t state;
};

static uint64_t next(struct random *random) { /* splitmix64: https://prng.di.unimi.it/splitmix64.c */
  uint64_t value = random->state += UINT64_C(0x9e3779b97f4a7c15);
  value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
  return value ^ value >> 31;
}
static int below(struct random *random, int most) { return (int)(next(random) % (uint64_t)most); }
static int one_in(struct random *random, int count) { return below(random, count) == 0; }

static int64_t any_number(struct random *random) {
  static const int64_t known[] = {INT64_MIN, INT64_MIN + 1, INT32_MIN, -1, 0, 1, 2, 3, 4, 8, 16, 64, 128, 4096, INT32_MAX,
                                  INT64_C(1) << 31, INT64_C(1) << 32, (INT64_C(1) << 40) - 1, INT64_C(1) << 40, INT64_C(1) << 62,
                                  INT64_MAX - 1, INT64_MAX};
  if (one_in(random, 8)) return (int64_t)next(random);
  return known[below(random, sizeof known / sizeof *known)];
}
static int64_t small_number(struct random *random) { return one_in(random, 6) ? any_number(random) : 1 + below(random, 64); }

/* A tensor, its extents and strides in memory of their own. */
static void any_tensor(struct random *random, DLTensor *tensor, int rank) {
  static const int32_t ranks[] = {INT32_MIN, INT32_MIN + 1, -2, -1, 0, 1, 2, 3, 4, 8, 9, 12};
  *tensor = (DLTensor){.data = (void *)(uintptr_t)(next(random) % 4 * 8)};
  tensor->ndim = one_in(random, 4) ? ranks[below(random, sizeof ranks / sizeof *ranks)] : rank - one_in(random, 4);
  tensor->device = (DLDevice){one_in(random, 4) ? kDLCPU : kDLCUDA, one_in(random, 8) ? (int32_t)next(random) : 0};
  tensor->dtype = (DLDataType){(uint8_t)below(random, 8), (uint8_t)(one_in(random, 4) ? below(random, 256) : 4 << below(random, 4)),
                               (uint16_t)(one_in(random, 4) ? below(random, 4) : 1)};
  tensor->byte_offset = one_in(random, 8) ? next(random) : 0;
  size_t modes = tensor->ndim > 0 ? (size_t)tensor->ndim : 0;
  if (!modes && one_in(random, 2)) return;
  tensor->shape = malloc(modes * sizeof *tensor->shape);
  tensor->strides = one_in(random, 6) ? NULL : malloc(modes * sizeof *tensor->strides);
  int64_t compact = 1;
  int regular = one_in(random, 2);
  for (size_t mode = modes; mode-- > 0;) {
    tensor->shape[mode] = one_in(random, 16) ? 0 : regular ? 1 + below(random, 9) : small_number(random);
    if (tensor->strides) tensor->strides[mode] = regular ? compact : small_number(random);
    compact *= regular ? tensor->shape[mode] : 1;
  }
}
static void free_tensor(DLTensor *tensor) {
  free(tensor->shape);
  free(tensor->strides);
}

#define MOST 26
struct any_arguments {
  TVMFFIAny given[MOST];
  DLTensor tensors[MOST];
  int count;
};

static void any_arguments(struct random *random, struct any_arguments *arguments, int count, const int *ranks) {
  arguments->count = count;
  for (int position = 0; position < count; position++) {
    TVMFFIAny *given = &arguments->given[position];
    *given = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr};
    any_tensor(random, &arguments->tensors[position], ranks ? ranks[position] : 1 + below(random, 3));
    given->v_ptr = &arguments->tensors[position];
    if (!one_in(random, 8)) continue;
    static const int32_t types[] = {kTVMFFINone, kTVMFFIInt, kTVMFFIFloat, kTVMFFIBool};
    given->type_index = types[below(random, 4)];
    given->v_int64 = any_number(random);
  }
}
static void free_arguments(struct any_arguments *arguments) {
  for (int position = 0; position < arguments->count; position++) free_tensor(&arguments->tensors[position]);
}

/* In place of a compiled kernel: it looks at all that it is given. */
static uint64_t looked_at, looks;
static int look(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)self, (void)result;
  uint64_t sum = 0;
  for (int position = 0; position < count; position++) {
    if (arguments[position].type_index != kTVMFFIDLTensorPtr) continue;
    const DLTensor *tensor = arguments[position].v_ptr;
    for (int mode = 0; mode < tensor->ndim; mode++)
      sum += (uint64_t)tensor->shape[mode] + (tensor->strides ? (uint64_t)tensor->strides[mode] : 0);
  }
  looked_at += sum;
  looks++;
  return 0;
}

/* ---- one thread ---- */

#define OPERAND 9
static void call_launcher(struct random *random) {
  TVMFFIAny numbers[1 + 34 * OPERAND];
  int operands = 1 + below(random, one_in(random, 16) ? 17 : 4), ranks[MOST];
  int relations = one_in(random, 2) ? 0 : below(random, one_in(random, 16) ? 18 : 4);
  int count = 1 + (operands + relations) * OPERAND - one_in(random, 64);
  for (int position = 0; position < MOST; position++) ranks[position] = 1;
  for (int index = 0; index < count; index++) numbers[index] = (TVMFFIAny){.type_index = kTVMFFIInt};
  numbers[0].v_int64 = one_in(random, 64) ? 0 : (int64_t)(uintptr_t)look;
  for (int operand = 0; operand < operands; operand++) {
    int rank = one_in(random, 8) ? 0 : 1 + below(random, 8);
    int64_t values[OPERAND] = {rank, rank ? 1 + below(random, rank) : 0, small_number(random), 4 << below(random, 5),
                               below(random, 4), below(random, 32), below(random, operands), small_number(random),
                               small_number(random)};
    if (one_in(random, 8)) values[below(random, OPERAND)] = any_number(random);
    if (one_in(random, 4)) values[below(random, OPERAND)] = below(random, 14);
    ranks[operand] = values[0] < 0 || values[0] > 12 ? rank : (int)values[0];
    for (int index = 0; index < OPERAND; index++)
      if (1 + operand * OPERAND + index < count) numbers[1 + operand * OPERAND + index].v_int64 = values[index];
  }
  for (int relation = operands; relation < operands + relations; relation++) {
    int64_t values[OPERAND] = {-1};
    for (int place = 1; place < OPERAND; place += 4) {
      int operand = below(random, operands);
      values[place] = operand;
      values[place + 1] = ranks[operand] > 0 ? 1 + below(random, ranks[operand]) : 1;
      values[place + 2] = 1 + below(random, 3);
      values[place + 3] = below(random, 3) - 1;
    }
    if (one_in(random, 4)) { /* a quotient */
      values[3] = -2 - below(random, 3);
      values[4] = 0;
    }
    if (one_in(random, 8)) values[1 + below(random, OPERAND - 1)] = any_number(random);
    for (int index = 0; index < OPERAND; index++)
      if (1 + relation * OPERAND + index < count) numbers[1 + relation * OPERAND + index].v_int64 = values[index];
  }
  struct function *launch = make(__tvm_ffi_cutlass_aot_launcher, numbers, count);
  if (!launch) return;
  for (int turn = 0; turn < 8; turn++) {
    struct any_arguments arguments;
    any_arguments(random, &arguments, one_in(random, 16) ? below(random, MOST) : operands, ranks);
    TVMFFIAny result = {.type_index = kTVMFFINone};
    TVMFFIFunctionCall(launch, arguments.given, arguments.count, &result);
    free_arguments(&arguments);
  }
  TVMFFIObjectDecRef(launch);
}

static void call_dispatch_cache(struct random *random) {
  TVMFFIAny alignment = {.type_index = kTVMFFIInt};
  alignment.v_int64 = one_in(random, 8) ? any_number(random) : 16;
  struct function *choose = make(__tvm_ffi_cutlass_aot_dispatch_cache, &alignment, 1);
  if (!choose) return;
  TVMFFIAny chosen = {.type_index = kTVMFFIFunction};
  chosen.v_obj = (TVMFFIObject *)choose;
  struct function *linear = make(__tvm_ffi_cutlass_aot_linear, &chosen, 1), *function = NULL;
  if (!linear || TVMFFIFunctionCreate(NULL, look, NULL, (TVMFFIObjectHandle *)&function)) fail("nothing was made");
  for (int turn = 0; turn < 16; turn++) {
    struct any_arguments arguments;
    any_arguments(random, &arguments, one_in(random, 8) ? below(random, 20) : 3, NULL);
    TVMFFIAny result = {.type_index = kTVMFFINone};
    TVMFFIFunctionCall(linear, arguments.given, arguments.count, &result);
    for (int again = 0; again < 2; again++) TVMFFIFunctionCall(choose, arguments.given, arguments.count, &result);
    arguments.given[arguments.count] = (TVMFFIAny){.type_index = kTVMFFIFunction};
    arguments.given[arguments.count].v_obj = &function->head;
    TVMFFIFunctionCall(choose, arguments.given, arguments.count + 1, &result);
    TVMFFIFunctionCall(choose, arguments.given, arguments.count, &result);
    free_arguments(&arguments);
  }
  TVMFFIObjectDecRef(function);
  TVMFFIObjectDecRef(linear);
  TVMFFIObjectDecRef(choose);
}

/* Operands of a GEMM in f16, which is what every other selection is for: a and out by rows, b by columns. */
static void any_product(struct random *random, struct any_arguments *arguments) {
  int64_t m = 2 + below(random, 300), n = 2 + below(random, 300), k = 2 + below(random, 300);
  int64_t extents[3][4] = {{m, k, k, 1}, {k, n, 1, k}, {m, n, n, 1}};
  arguments->count = 3;
  for (int position = 0; position < 3; position++) {
    DLTensor *tensor = &arguments->tensors[position];
    *tensor = (DLTensor){.device = {kDLCUDA, 0}, .ndim = 2, .dtype = {kDLFloat, 16, 1}};
    tensor->shape = malloc(2 * sizeof *tensor->shape);
    tensor->strides = malloc(2 * sizeof *tensor->strides);
    memcpy(tensor->shape, extents[position], 2 * sizeof *tensor->shape);
    memcpy(tensor->strides, extents[position] + 2, 2 * sizeof *tensor->strides);
    if (one_in(random, 8)) tensor->shape[below(random, 2)] = any_number(random);
    if (one_in(random, 8)) tensor->strides[below(random, 2)] = any_number(random);
    arguments->given[position] = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr};
    arguments->given[position].v_ptr = tensor;
  }
}

/* Columns of measured times for call_select: that of their problems' ends is 5, then positions, seconds and numbers. */
static void any_times(struct random *random, int column, char *data, size_t size, int kernels) {
  uint32_t end = 0;
  for (size_t offset = 0; column == 5 && offset + 4 <= size; offset += 4) {
    end += one_in(random, 32) ? (uint32_t)next(random) : 1 + (uint32_t)below(random, 2);
    memcpy(data + offset, &end, 4);
  }
  for (size_t offset = 0; column == 6 && offset + 2 <= size; offset += 2)
    memcpy(data + offset, &(uint16_t){(uint16_t)below(random, one_in(random, 32) ? 100 : 2)}, 2);
  for (size_t offset = 0; column == 7 && offset + 4 <= size; offset += 4)
    memcpy(data + offset, &(float){(float)(below(random, 100) + !one_in(random, 32)) / 8}, 4);
  for (size_t offset = 0; column == 8 && offset + 4 <= size; offset += 4)
    memcpy(data + offset, &(uint32_t){one_in(random, 8) ? (uint32_t)next(random) : (uint32_t)below(random, kernels)}, 4);
}

static uint64_t selections, corrections; /* of several kernels */
static void call_select(struct random *random) {
  /* Sizes of select.c: a tiling, clusters, costs, traffic, a problem, numbers of measured times, three operands. */
  static const size_t items[] = {13 * 4, 2 * 8, 15 * 8, 3 * 8, 4 * 8, 4, 2, 4, 4, 3 * 5 * 8};
  int kernels = 1 + below(random, 3), problems = below(random, 24), times = one_in(random, 2) ? 2 * problems : 0;
  const size_t counts[] = {(size_t)kernels, (size_t)below(random, 3), (size_t)(kernels - one_in(random, 32)), 1, (size_t)problems,
                           times ? (size_t)(problems - one_in(random, 32)) : 0, (size_t)(times + one_in(random, 32)),
                           (size_t)times, 2, (size_t)below(random, 2)};
  TVMFFIAny arguments[11];
  TVMFFIByteArray bytes[10];
  static const int64_t rules[] = {kDLFloat, 16, 1, 1, 1, kDLFloat, 16, 2, 1, 1, kDLFloat, 16, 1, 1, 1};
  int derived = one_in(random, 3), of_product = one_in(random, 2), by_rows = one_in(random, 2);
  for (int index = 0; index < 10; index++) {
    size_t size = items[index] * counts[index] + (one_in(random, 64) ? 1 : 0);
    if (index == 2 && derived) size = 18 * 8;
    char *data = malloc(size ? size : 1);
    for (size_t offset = 0; offset < size; offset++) data[offset] = (char)next(random);
    for (size_t offset = 0; index == 0 && !one_in(random, 4) && offset + 4 <= size; offset += 4)
      memcpy(data + offset, &(uint32_t){1 + (uint32_t)below(random, 256)}, 4);
    for (size_t offset = 0; (index == 1 || index == 2 || index == 3) && offset + 8 <= size; offset += 8)
      if (!one_in(random, 16)) memcpy(data + offset, &(double){(double)below(random, 100) / 8}, 8);
    for (size_t offset = 0; (index == 4 || index == 9) && offset + 8 <= size; offset += 8) {
      int64_t number = one_in(random, 8) ? any_number(random) : 1 + below(random, 2);
      memcpy(data + offset, &number, 8);
    }
    for (size_t offset = 0; index == 4 && by_rows && offset + 32 <= size; offset += 32)
      memcpy(data + offset, (int64_t[]){1, 1 + (int64_t)offset}, 16);
    any_times(random, index, data, size, kernels);
    if (index == 9 && of_product && size == sizeof rules) memcpy(data, rules, size);
    bytes[index] = (TVMFFIByteArray){data, size};
    arguments[index] = (TVMFFIAny){.type_index = size > 7 ? kTVMFFIByteArrayPtr : kTVMFFISmallBytes};
    if (size > 7) arguments[index].v_ptr = &bytes[index];
    else {
      arguments[index].small_str_len = (uint32_t)size;
      memcpy(arguments[index].v_bytes, data, size);
    }
  }
  arguments[10] = (TVMFFIAny){.type_index = kTVMFFIInt};
  struct function *choose = make(__tvm_ffi_cutlass_aot_select, arguments, 11 - one_in(random, 64)), *function = NULL;
  TVMFFIAny alignment = {.type_index = kTVMFFIInt};
  alignment.v_int64 = 16;
  struct function *cache = make(__tvm_ffi_cutlass_aot_dispatch_cache, &alignment, 1);
  if (!cache || TVMFFIFunctionCreate(NULL, look, NULL, (TVMFFIObjectHandle *)&function)) fail("nothing was made");
  if (choose && kernels > 1) selections++;
  if (choose && kernels > 1 && times) corrections++;
  for (int turn = 0; choose && turn < 8; turn++) {
    TVMFFIAny learnt[2] = {{.type_index = kTVMFFIInt}, {.type_index = kTVMFFIFunction}}, ignored = {.type_index = kTVMFFINone};
    learnt[0].v_int64 = one_in(random, 4) ? any_number(random) : below(random, kernels);
    learnt[1].v_obj = &function->head;
    if (turn % 4 == 3) TVMFFIFunctionCall(choose, learnt, 2, &ignored);
    learnt[1].v_obj = &choose->head;
    if (turn == 1) TVMFFIFunctionCall(cache, &learnt[1], 1, &ignored);
    struct any_arguments given;
    static const int ranks[] = {2, 2, 2, 2};
    if (of_product) any_product(random, &given);
    else any_arguments(random, &given, one_in(random, 8) ? below(random, 5) : 3, ranks);
    TVMFFIAny numbers[4], result = {.type_index = kTVMFFINone};
    for (int index = 0; index < 4; index++) {
      numbers[index] = (TVMFFIAny){.type_index = kTVMFFIInt};
      numbers[index].v_int64 = any_number(random);
    }
    TVMFFIFunctionCall(cache, given.given, given.count, &result);
    result = (TVMFFIAny){.type_index = kTVMFFINone};
    TVMFFIFunctionCall(choose, given.given, given.count, &result);
    if (result.type_index == kTVMFFIFunction) TVMFFIObjectDecRef(result.v_obj);
    TVMFFIFunctionCall(choose, numbers, 4, &result);
    if (result.type_index == kTVMFFIInt && (result.v_int64 < -1 || result.v_int64 >= kernels)) fail("a kernel that there is not was chosen");
    free_arguments(&given);
  }
  TVMFFIObjectDecRef(function);
  TVMFFIObjectDecRef(cache);
  if (choose) TVMFFIObjectDecRef(choose);
  for (int index = 0; index < 10; index++) free((char *)bytes[index].data);
}

/* ---- many threads ---- */

typedef int (*init_function)(void **);
typedef int (*load_function)(void **, int);
int cuda_dialect_init_library_once(void **, init_function, load_function, void *);
void cuda_dialect_unload_library_once(void **);
void cuda_dialect_assert_success(int);
int _cudaGetDevice(int *);
int _cudaSetDevice(int);
int _cudaLibraryLoadData(cudaLibrary_t *, const void *, enum cudaJitOption *, void **, unsigned, enum cudaLibraryOption *, void **, unsigned);
int _cudaLibraryGetKernel(cudaKernel_t *, cudaLibrary_t, const char *);
int _cudaKernelSetAttributeForDevice(cudaKernel_t, int, int, int);
int _cudaLaunchKernelEx(const cudaLaunchConfig_t *, const void *, void **);

/* tests/support/c/fake_driver.c */
extern int fake_fail_libraries, fake_fail_launches, fake_launches[], fake_unprepared, fake_forbidden, fake_overlaps;

#define OBJECTS 4
#define MAX_THREADS 16
static struct {
  const void *data;
  uint64_t size;
} slots[OBJECTS];
static const struct {
  uint32_t magic;
  uint16_t version, header_size;
  uint64_t size;
} fat_binary = {0xba55ed50, 1, 16, 0};
static void *states[OBJECTS];
static cudaKernel_t kernels[OBJECTS];
static int launched;

/* What an object's host code does: see shim.c. */
#define OBJECT(number)                                                                                                      \
  static int init_##number(void **library) {                                                                                \
    return _cudaLibraryLoadData((cudaLibrary_t *)library, &slots[number], NULL, NULL, 0, NULL, NULL, 0);                    \
  }                                                                                                                         \
  static int load_##number(void **library, int device) {                                                                    \
    cudaKernel_t kernel;                                                                                                    \
    int error = _cudaLibraryGetKernel(&kernel, (cudaLibrary_t)*library, "kernel");                                          \
    if (!error) error = _cudaKernelSetAttributeForDevice(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448 - 1024, device); \
    __atomic_store_n(&kernels[number], kernel, __ATOMIC_RELAXED);                                                           \
    return error;                                                                                                           \
  }
OBJECT(0) OBJECT(1) OBJECT(2) OBJECT(3)
static const init_function inits[] = {init_0, init_1, init_2, init_3};
static const load_function loads[] = {load_0, load_1, load_2, load_3};

static void launch_object(struct random *random) {
  int object = below(random, OBJECTS), device = one_in(random, 16) ? (int)any_number(random) : below(random, 64), outer;
  int fails = one_in(random, 32);
  if (fails) __atomic_add_fetch(one_in(random, 2) ? &fake_fail_libraries : &fake_fail_launches, 1, __ATOMIC_SEQ_CST);
  if (!one_in(random, 8)) TVMFFIEnvGetStream(kDLCUDA, device);
  if (cuda_dialect_init_library_once(&states[object], inits[object], loads[object], NULL)) return;
  if (_cudaGetDevice(&outer)) return;
  if (outer != device && _cudaSetDevice(device)) return;
  if (one_in(random, 64)) cuda_dialect_assert_success(2);
  void *argument = &device, *arguments[] = {&argument};
  cudaLaunchConfig_t config = {.gridDim = {1, 1, 1}, .blockDim = {32, 1, 1}};
  if (!_cudaLaunchKernelEx(&config, __atomic_load_n(&kernels[object], __ATOMIC_RELAXED), arguments))
    __atomic_add_fetch(&launched, 1, __ATOMIC_SEQ_CST);
  if (outer != device && _cudaSetDevice(outer)) fail("the device that was current is not any more");
}

#define CHOICES 512
static struct function *shared_choose, *shared_launches[CHOICES];
static pthread_barrier_t start;
static int teach(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)arguments, (void)count;
  *result = (TVMFFIAny){.type_index = kTVMFFIInt};
  result->v_int64 = (int64_t)(intptr_t)self;
  return 0;
}

static void choose_like(struct random *random) {
  int which = below(random, CHOICES);
  int64_t shape[] = {16 + which, 64}, strides[] = {64, 1};
  DLTensor tensor = {.ndim = 2, .device = {kDLCUDA, 0}, .dtype = {kDLFloat, 16, 1}, .shape = shape, .strides = strides};
  TVMFFIAny arguments[2] = {{.type_index = kTVMFFIDLTensorPtr}, {.type_index = kTVMFFIFunction}}, result;
  arguments[0].v_ptr = &tensor;
  arguments[1].v_obj = &shared_launches[which]->head;
  if (TVMFFIFunctionCall(shared_choose, arguments, 1, &result)) fail("a choice failed");
  if (result.type_index == kTVMFFIInt && result.v_int64 != which) fail("another's choice was taken");
  if (result.type_index == kTVMFFIBool && one_in(random, 4)) TVMFFIFunctionCall(shared_choose, arguments, 2, &result);
}

static struct function *shared_selections[2];
/* A selection among two kernels with times of one problem, for products in f16. Tiles of 1 x 1: only which is faster counts. */
static struct function *two_kernels(void) {
  uint32_t tilings[2 * 13];
  double clusters[] = {1, 132}, costs[2 * 15], traffic[] = {2, 2, 2};
  int64_t rules[] = {kDLFloat, 16, 1, 1, 1, kDLFloat, 16, 2, 1, 1, kDLFloat, 16, 1, 1, 1};
  for (int index = 0; index < 2 * 13; index++) tilings[index] = 1;
  for (int index = 0; index < 2 * 15; index++) costs[index] = 1;
  costs[15] = 2; /* its launch takes longer */
  int64_t measured[] = {1, 1, 8, 64}; /* no matrix that is drawn has one row */
  uint32_t ends[] = {2}, numbers[] = {0, 1};
  uint16_t positions[] = {0, 1};
  float seconds[] = {1e-5F, 2e-5F};
  TVMFFIByteArray bytes[] = {{(char *)tilings, sizeof tilings},     {(char *)clusters, sizeof clusters},
                             {(char *)costs, sizeof costs},         {(char *)traffic, sizeof traffic},
                             {(char *)measured, sizeof measured},   {(char *)ends, sizeof ends},
                             {(char *)positions, sizeof positions}, {(char *)seconds, sizeof seconds},
                             {(char *)numbers, sizeof numbers},     {(char *)rules, sizeof rules}};
  TVMFFIAny arguments[11] = {[10] = {.type_index = kTVMFFIInt}};
  for (int index = 0; index < 10; index++) {
    arguments[index].type_index = kTVMFFIByteArrayPtr;
    arguments[index].v_ptr = &bytes[index];
  }
  struct function *made = make(__tvm_ffi_cutlass_aot_select, arguments, 11);
  if (!made) fail("no selection was made");
  return made;
}

static int launch_nothing(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)self, (void)arguments, (void)count, (void)result;
  return 0;
}

static struct function *shared_launch;
static void select_like(struct random *random) {
  struct function *selection = shared_selections[below(random, 2)];
  TVMFFIAny arguments[3] = {{.type_index = kTVMFFIInt}, {.type_index = kTVMFFIFunction}}, result = {.type_index = kTVMFFINone};
  arguments[0].v_int64 = below(random, 2);
  arguments[1].v_obj = &shared_launch->head;
  if (TVMFFIFunctionCall(selection, arguments, 2, &result)) fail("a kernel was not learnt");
  arguments[0] = (TVMFFIAny){.type_index = kTVMFFIFunction};
  arguments[0].v_obj = &selection->head;
  if (TVMFFIFunctionCall(shared_choose, arguments, 1, &result)) fail("a selection was not added");
  int64_t m = 2 + below(random, 400), extents[3][4] = {{m, 64, 64, 1}, {64, 8, 1, 64}, {m, 8, 8, 1}};
  DLTensor tensors[3];
  for (int position = 0; position < 3; position++) {
    tensors[position] = (DLTensor){.ndim = 2, .device = {kDLCUDA, 0}, .dtype = {kDLFloat, 16, 1}};
    tensors[position].shape = extents[position];
    tensors[position].strides = extents[position] + 2;
    arguments[position] = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr};
    arguments[position].v_ptr = &tensors[position];
  }
  result = (TVMFFIAny){.type_index = kTVMFFINone};
  if (TVMFFIFunctionCall(shared_choose, arguments, 3, &result)) fail("a chosen launch failed");
}

struct thread {
  pthread_t id;
  struct random random;
  long count;
};
static void *work(void *argument) {
  struct thread *thread = argument;
  pthread_barrier_wait(&start);
  for (long turn = 0; turn < thread->count; turn++) {
    launch_object(&thread->random);
    choose_like(&thread->random);
    select_like(&thread->random);
  }
  return NULL;
}

static void run_threads(uint64_t seed, long count) {
  for (int object = 0; object < OBJECTS; object++) slots[object] = (typeof(slots[0])){&fat_binary, sizeof fat_binary};
  TVMFFIAny alignment = {.type_index = kTVMFFIInt};
  alignment.v_int64 = 16;
  shared_choose = make(__tvm_ffi_cutlass_aot_dispatch_cache, &alignment, 1);
  for (int which = 0; which < CHOICES; which++)
    TVMFFIFunctionCreate((void *)(intptr_t)which, teach, NULL, (TVMFFIObjectHandle *)&shared_launches[which]);
  for (int which = 0; which < 2; which++) shared_selections[which] = two_kernels();
  TVMFFIFunctionCreate(NULL, launch_nothing, NULL, (TVMFFIObjectHandle *)&shared_launch);
  struct thread threads[MAX_THREADS];
  pthread_barrier_init(&start, NULL, MAX_THREADS);
  for (int number = 0; number < MAX_THREADS; number++) {
    threads[number] = (struct thread){.random = {seed * MAX_THREADS + (uint64_t)number}, .count = count / MAX_THREADS};
    if (pthread_create(&threads[number].id, NULL, work, &threads[number])) fail("no thread");
  }
  for (int number = 0; number < MAX_THREADS; number++) pthread_join(threads[number].id, NULL);
  for (int which = 0; which < CHOICES; which++) TVMFFIObjectDecRef(shared_launches[which]);
  TVMFFIObjectDecRef(shared_choose);
  for (int which = 0; which < 2; which++) TVMFFIObjectDecRef(shared_selections[which]);
  TVMFFIObjectDecRef(shared_launch);
  for (int object = 0; object < OBJECTS; object++) cuda_dialect_unload_library_once(&states[object]);
  if (fake_unprepared || fake_forbidden || fake_overlaps) fail("a launch before its load, or a load that is forbidden");
  int sum = 0;
  for (int device = 0; device < 100; device++) sum += fake_launches[device];
  if (sum != launched || !launched) fail("launches were lost");
}

int main(int count, char **words) {
  if (count != 4) fail("expected calls or threads, a seed and a count");
  struct random random = {strtoull(words[2], NULL, 10)};
  long turns = strtol(words[3], NULL, 10);
  if (!strcmp(words[1], "threads")) run_threads(random.state, turns);
  else {
    for (long turn = 0; turn < turns; turn++) {
      call_launcher(&random);
      call_dispatch_cache(&random);
      call_select(&random);
    }
    if (!looks || !selections || !corrections) fail("everything was refused");
    printf("%llu launches, %llu\n", (unsigned long long)looks, (unsigned long long)looked_at % 10);
  }
  return 0;
}
