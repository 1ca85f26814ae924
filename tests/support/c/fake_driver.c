/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA driver of 100 devices for tests on machines without one: it keeps the rules that the shim relies on (what needs
 * a context and which calls create one, what is current on a thread, what capture forbids, what a forked child may do),
 * counts, and fails when told to.
 *
 * With LIBCUDA it is compiled to a libcuda.so.1. Without, it is linked into the library under test, together with the
 * functions by which that looks for a driver, so that each library of a test has a driver of its own.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEVICES 100
#define DEPTH 8
#define EXPORT __attribute__((visibility("default")))
#define KERNEL ((CUkernel)(uintptr_t)0xcafe00)
#define LIBRARY ((CUlibrary)(uintptr_t)0xbeef00)

/* Counters and switches, read and set by the tests. */
EXPORT int fake_calls;                /* of driver functions, any */
EXPORT int fake_inits;                /* cuInit that succeeded */
EXPORT int fake_libraries;            /* cuLibraryLoadData that succeeded */
EXPORT int fake_prepared[DEVICES];    /* kernel attributes set for the device */
EXPORT int fake_launches[DEVICES];
EXPORT int fake_contexts[DEVICES];    /* primary contexts created on the device: 0 or 1 */
EXPORT int fake_retained[DEVICES];
EXPORT int fake_unprepared;           /* launches on a device that nothing was prepared for, or of no kernel */
EXPORT int fake_forbidden;            /* loads by a thread whose capture forbids them */
EXPORT int fake_inside, fake_overlaps; /* loads at the same time */
EXPORT int fake_streams;              /* TVMFFIEnvGetStream */
EXPORT int fake_fail_init;            /* the error that cuInit gives */
EXPORT int fake_fail_libraries;       /* so many next loads fail */
EXPORT int fake_fail_attributes[DEVICES];
EXPORT int fake_fail_launches;
EXPORT int fake_fail_maps;
EXPORT int fake_load_microseconds;
EXPORT int fake_talks;                /* say on standard error when something ends */
EXPORT int fake_version = 12000;
EXPORT int fake_absent;               /* there is no driver */
EXPORT char fake_lacks[64];           /* a function that the driver has not */
EXPORT uint64_t fake_stream = 0x57e0; /* the framework's current stream */

/* The last library that was loaded, and the last launch. */
EXPORT const void *fake_code;
EXPORT CUlaunchConfig fake_launch;
EXPORT CUlaunchAttribute fake_attributes[8];
EXPORT CUcontext fake_launch_context;
EXPORT int fake_extra;
#define PARAMETERS 32
EXPORT uint32_t fake_sizes[PARAMETERS]; /* of the parameters to keep, in bytes, set by the test; 0 ends them */
EXPORT char fake_parameters[PARAMETERS][128];

/* The tensor map that was made last. */
EXPORT int fake_maps;
EXPORT int fake_map[6]; /* type, rank, interleave, swizzle, promotion, fill */
EXPORT void *fake_map_address;
EXPORT cuuint64_t fake_map_extents[5], fake_map_strides[4];
EXPORT cuuint32_t fake_map_box[5], fake_map_steps[5];

struct CUctx_st {
  int device;
};
static struct CUctx_st primary[DEVICES], foreign[DEVICES];
static int initialised_by; /* process */
static _Thread_local CUcontext stack[DEPTH];
static _Thread_local int depth;
static _Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static int count(int *counter) { return __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST); }

/* Whether this call is one of those that were told to fail. */
static int fails(int *left) {
  int value = __atomic_load_n(left, __ATOMIC_SEQ_CST);
  while (value > 0)
    if (__atomic_compare_exchange_n(left, &value, value - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 1;
  return 0;
}

static CUcontext current(void) { return depth ? stack[depth - 1] : NULL; }

/* What a framework, or another library, does on this thread. */
EXPORT CUcontext fake_primary(int device) {
  __atomic_store_n(&fake_contexts[device], 1, __ATOMIC_SEQ_CST);
  primary[device].device = device;
  return &primary[device];
}
EXPORT CUcontext fake_foreign(int device) {
  foreign[device].device = device;
  return &foreign[device];
}
EXPORT void fake_make_current(CUcontext context) {
  depth = context != NULL;
  stack[0] = context;
}
EXPORT CUcontext fake_current(void) { return current(); }
EXPORT int fake_depth(void) { return depth; }
EXPORT int fake_capture_mode(void) { return capture_mode; }

/* ---- the driver ---- */

#define NEED_INIT                                                  \
  count(&fake_calls);                                              \
  if (initialised_by != getpid()) return CUDA_ERROR_NOT_INITIALIZED;

static CUresult init(unsigned flags) {
  count(&fake_calls);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (fake_fail_init) return fake_fail_init;
  if (initialised_by && initialised_by != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  initialised_by = getpid();
  count(&fake_inits);
  return CUDA_SUCCESS;
}
static CUresult error_name(CUresult error, const char **name) {
  switch (error) {
    case CUDA_ERROR_NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case CUDA_ERROR_NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case CUDA_ERROR_NO_BINARY_FOR_GPU: *name = "CUDA_ERROR_NO_BINARY_FOR_GPU"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: *name = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"; break;
    case CUDA_ERROR_INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    default: *name = NULL; return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
static CUresult error_string(CUresult error, const char **words) {
  const char *name;
  CUresult unknown = error_name(error, &name);
  *words = unknown ? NULL : "in words";
  return unknown;
}
static CUresult get_device(CUdevice *device) {
  NEED_INIT
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current()->device;
  return CUDA_SUCCESS;
}
static CUresult get_device_13(CUdevice *device, CUcontext context) { /* the function of this name since CUDA 13 */
  NEED_INIT
  *device = context->device;
  return CUDA_SUCCESS;
}
static CUresult push(CUcontext context) {
  NEED_INIT
  if (!context || depth == DEPTH) return CUDA_ERROR_INVALID_CONTEXT;
  stack[depth++] = context;
  return CUDA_SUCCESS;
}
static CUresult pop(CUcontext *context) {
  NEED_INIT
  if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
  *context = stack[--depth];
  return CUDA_SUCCESS;
}
static CUresult retain(CUcontext *context, CUdevice device) {
  NEED_INIT
  if (device < 0 || device >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
  count(&fake_retained[device]);
  *context = fake_primary(device);
  return CUDA_SUCCESS;
}
static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  NEED_INIT
  if (attribute != CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
  *value = 232448;
  return CUDA_SUCCESS;
}
static CUresult exchange(CUstreamCaptureMode *mode) {
  NEED_INIT
  CUstreamCaptureMode old = capture_mode;
  capture_mode = *mode;
  *mode = old;
  return CUDA_SUCCESS;
}
static CUresult load(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_values, unsigned jit_count,
                     CUlibraryOption *options, void **values, unsigned number) {
  NEED_INIT
  if (jit_options || jit_values || jit_count || options || values || number) return CUDA_ERROR_INVALID_VALUE;
  if (count(&fake_inside) != 1) count(&fake_overlaps);
  if (fake_load_microseconds) usleep(fake_load_microseconds);
  CUresult error = CUDA_SUCCESS;
  if (capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) count(&fake_forbidden);
  if (memcmp(code, "\x50\xed\x55\xba", 4)) error = CUDA_ERROR_INVALID_IMAGE;
  if (fails(&fake_fail_libraries)) error = CUDA_ERROR_NO_BINARY_FOR_GPU;
  if (!error) {
    count(&fake_libraries);
    fake_code = code;
    *library = LIBRARY;
  }
  __atomic_sub_fetch(&fake_inside, 1, __ATOMIC_SEQ_CST);
  return error;
}
static CUresult unload(CUlibrary library) {
  NEED_INIT
  if (fake_talks) dprintf(2, library == LIBRARY ? "unloaded\n" : "unloaded something else\n");
  return CUDA_SUCCESS;
}
static CUresult get_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
  NEED_INIT
  if (library != LIBRARY || !*name) return CUDA_ERROR_INVALID_VALUE;
  *kernel = KERNEL;
  return CUDA_SUCCESS;
}
static CUresult kernel_attribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  NEED_INIT
  if (kernel != KERNEL || device < 0 || device >= DEVICES) return CUDA_ERROR_INVALID_VALUE;
  if (attribute != CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  *value = 1024;
  return CUDA_SUCCESS;
}
static CUresult set_kernel_attribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  NEED_INIT
  if (kernel != KERNEL || device < 0 || device >= DEVICES) return CUDA_ERROR_INVALID_VALUE;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value != 232448 - 1024) return CUDA_ERROR_INVALID_VALUE;
  if (count(&fake_inside) != 1) count(&fake_overlaps);
  if (fake_load_microseconds) usleep(fake_load_microseconds);
  if (capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) count(&fake_forbidden);
  int failed = fails(&fake_fail_attributes[device]);
  if (!failed) count(&fake_prepared[device]);
  __atomic_sub_fetch(&fake_inside, 1, __ATOMIC_SEQ_CST);
  return failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
static CUresult encode_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                             const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                             const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                             CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  NEED_INIT
  if (!current() || (uintptr_t)map % 64 || rank < 1 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  if (fails(&fake_fail_maps)) return CUDA_ERROR_OUT_OF_MEMORY;
  const int numbers[] = {type, rank, interleave, swizzle, promotion, fill};
  memcpy(fake_map, numbers, sizeof numbers);
  fake_map_address = address;
  memcpy(fake_map_extents, extents, rank * sizeof *extents);
  memcpy(fake_map_strides, strides, (rank - 1) * sizeof *strides);
  memcpy(fake_map_box, box, rank * sizeof *box);
  memcpy(fake_map_steps, steps, rank * sizeof *steps);
  for (int i = 0; i < 16; i++) ((uint64_t *)map)[i] = 100 + i;
  count(&fake_maps);
  return CUDA_SUCCESS;
}
static CUresult launch(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
  NEED_INIT
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  int device = current()->device;
  if ((CUkernel)function != KERNEL || !arguments || !__atomic_load_n(&fake_prepared[device], __ATOMIC_SEQ_CST))
    count(&fake_unprepared);
  if (fails(&fake_fail_launches)) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  count(&fake_launches[device]);
  fake_launch = *config;
  fake_launch_context = current();
  fake_extra = extra != NULL;
  for (int i = 0; i < PARAMETERS && fake_sizes[i]; i++)
    memcpy(fake_parameters[i], arguments[i], fake_sizes[i] < sizeof *fake_parameters ? fake_sizes[i] : sizeof *fake_parameters);
  for (unsigned i = 0; i < config->numAttrs && i < sizeof fake_attributes / sizeof *fake_attributes; i++)
    fake_attributes[i] = config->attrs[i];
  return CUDA_SUCCESS;
}

/* ---- how it is found ---- */

EXPORT CUresult fake_get_version(int *version) {
  *version = fake_version;
  return CUDA_SUCCESS;
}

EXPORT CUresult fake_get_address(const char *name, void **function, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *found) {
  static const struct {
    const char *name;
    int since; /* the highest that is not above the version asked for is meant */
    void *function;
  } known[] = {
      {"cuInit", 2000, init},
      {"cuGetErrorName", 6000, error_name},
      {"cuGetErrorString", 6000, error_string},
      {"cuCtxGetDevice", 13000, get_device_13},
      {"cuCtxGetDevice", 2000, get_device},
      {"cuCtxPushCurrent", 4000, push},
      {"cuCtxPopCurrent", 4000, pop},
      {"cuDevicePrimaryCtxRetain", 7000, retain},
      {"cuDeviceGetAttribute", 2000, device_attribute},
      {"cuThreadExchangeStreamCaptureMode", 10010, exchange},
      {"cuLibraryLoadData", 12000, load},
      {"cuLibraryUnload", 12000, unload},
      {"cuLibraryGetKernel", 12000, get_kernel},
      {"cuKernelGetAttribute", 12000, kernel_attribute},
      {"cuKernelSetAttribute", 12000, set_kernel_attribute},
      {"cuTensorMapEncodeTiled", 12000, encode_tiled},
      {"cuLaunchKernelEx", 11060, launch},
  };
  *function = NULL;
  *found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < sizeof known / sizeof *known && strcmp(name, fake_lacks); i++)
    if (!strcmp(name, known[i].name) && known[i].since <= version && known[i].since <= fake_version) {
      *function = known[i].function;
      *found = CU_GET_PROC_ADDRESS_SUCCESS;
      break;
    }
  return CUDA_SUCCESS;
}

#ifdef LIBCUDA

EXPORT CUresult cuDriverGetVersion(int *version) { return fake_get_version(version); }
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *found) {
  return fake_get_address(name, function, version, flags, found);
}

#else

void *dlopen(const char *name, int flags) {
  (void)flags;
  return strcmp(name, "libcuda.so.1") || fake_absent ? NULL : primary;
}
char *dlerror(void) { return fake_absent ? "libcuda.so.1: no such file" : NULL; }
void *dlsym(void *library, const char *name) {
  if (library != primary) return NULL;
  if (!strcmp(name, "cuDriverGetVersion")) return fake_get_version;
  return !strcmp(name, "cuGetProcAddress_v2") && fake_version >= 12000 ? fake_get_address : NULL;
}

/* ---- TVM-FFI ---- */

static _Thread_local char error_text[1024];
EXPORT const char *fake_error(void) { return error_text; }

void *TVMFFIEnvGetStream(int32_t device_type, int32_t device) {
  (void)device_type, (void)device;
  count(&fake_streams);
  return (void *)fake_stream;
}
#ifdef UNANNOUNCED /* linked without --wrap, so that nothing defines this */
void *__real_TVMFFIEnvGetStream(int32_t device_type, int32_t device) { return TVMFFIEnvGetStream(device_type, device); }
#endif
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) {
  snprintf(error_text, sizeof error_text, "%s: %s", kind, message);
}
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t number) {
  int length = snprintf(error_text, sizeof error_text, "%s: ", kind);
  for (int32_t i = 0; i < number; i++)
    if (parts[i]) length += snprintf(error_text + length, sizeof error_text - length, "%s", parts[i]);
}

#endif
