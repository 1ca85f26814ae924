/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA runtime and driver of 100 devices for tests on machines without one: it keeps the rules that the shim relies on
 * (which calls create a context, what is current on a thread, what capture forbids), counts, and fails when told to.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES 100
#define EXPORT __attribute__((visibility("default")))
#define KERNEL ((cudaKernel_t)(uintptr_t)0xcafe00)
#define LIBRARY ((cudaLibrary_t)(uintptr_t)0xbeef00)

/* Counters and switches, read and set by the tests. */
EXPORT int fake_libraries;            /* cudaLibraryLoadData that succeeded */
EXPORT int fake_prepared[DEVICES];    /* kernel attributes set for the device */
EXPORT int fake_launches[DEVICES];
EXPORT int fake_contexts[DEVICES];    /* contexts created on the device: 0 or 1 */
EXPORT int fake_retained[DEVICES];
EXPORT int fake_unprepared;           /* launches on a device that nothing was prepared for, or of no kernel */
EXPORT int fake_forbidden;            /* loads by a thread whose capture forbids them */
EXPORT int fake_inside, fake_overlaps; /* loads at the same time */
EXPORT int fake_streams;              /* TVMFFIEnvGetStream */
EXPORT int fake_fail_libraries;       /* so many next loads fail */
EXPORT int fake_fail_attributes[DEVICES];
EXPORT int fake_fail_launches;
EXPORT int fake_load_microseconds;
EXPORT int fake_talks;                /* say on standard error when something ends */

static char contexts[DEVICES]; /* a context is the address of its device's byte */
static _Thread_local int runtime_device;
static _Thread_local CUcontext current_context;
static _Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static _Thread_local char error_text[1024];

EXPORT const char *fake_error(void) { return error_text; }
EXPORT int fake_capture_mode(void) { return capture_mode; }
EXPORT int fake_has_context(void) { return current_context != NULL; }
EXPORT int fake_current_device(void) {
  return current_context ? (int)((char *)current_context - contexts) : runtime_device;
}

static int count(int *counter) { return __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST); }

/* Whether this call is one of those that were told to fail. */
static int fails(int *left) {
  int value = __atomic_load_n(left, __ATOMIC_SEQ_CST);
  while (value > 0)
    if (__atomic_compare_exchange_n(left, &value, value - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 1;
  return 0;
}

/* What most of the runtime's calls do first. */
static void need_context(void) {
  if (current_context) return;
  __atomic_store_n(&fake_contexts[runtime_device], 1, __ATOMIC_SEQ_CST);
  current_context = (CUcontext)&contexts[runtime_device];
}

/* ---- the runtime ---- */

cudaError_t cudaGetDevice(int *device) {
  *device = fake_current_device();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= DEVICES) return cudaErrorInvalidDevice;
  runtime_device = device;
  current_context = NULL;
  need_context();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  (void)attribute;
  if (device < 0 || device >= DEVICES) return cudaErrorInvalidDevice;
  *value = 232448;
  return cudaSuccess;
}
static void runtime_ends(void) {
  if (fake_talks) dprintf(2, "runtime ends\n");
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *a, void **b, unsigned c,
                                enum cudaLibraryOption *d, void **e, unsigned f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  if (count(&fake_inside) != 1) count(&fake_overlaps);
  if (fake_load_microseconds) usleep(fake_load_microseconds);
  need_context();
  cudaError_t error = cudaSuccess;
  if (capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) count(&fake_forbidden);
  if (memcmp(code, "\x50\xed\x55\xba", 4)) error = cudaErrorInvalidKernelImage;
  if (fails(&fake_fail_libraries)) error = cudaErrorNoKernelImageForDevice;
  if (!error) {
    if (count(&fake_libraries) == 1) atexit(runtime_ends); /* as the real one does */
    *library = LIBRARY;
  }
  __atomic_sub_fetch(&fake_inside, 1, __ATOMIC_SEQ_CST);
  return error;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
  if (library != LIBRARY || !*name) return cudaErrorInvalidValue;
  *kernel = KERNEL;
  return cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value, int device) {
  (void)value;
  if (kernel != KERNEL || device < 0 || device >= DEVICES) return cudaErrorInvalidValue;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (count(&fake_inside) != 1) count(&fake_overlaps);
  if (fake_load_microseconds) usleep(fake_load_microseconds);
  if (capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) count(&fake_forbidden);
  int failed = fails(&fake_fail_attributes[device]);
  if (!failed) count(&fake_prepared[device]);
  __atomic_sub_fetch(&fake_inside, 1, __ATOMIC_SEQ_CST);
  return failed ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  (void)config, (void)arguments;
  need_context();
  int device = fake_current_device();
  if (function != (const void *)KERNEL || !__atomic_load_n(&fake_prepared[device], __ATOMIC_SEQ_CST)) count(&fake_unprepared);
  if (fails(&fake_fail_launches)) return cudaErrorLaunchOutOfResources;
  count(&fake_launches[device]);
  return cudaSuccess;
}
const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorNoKernelImageForDevice: return "cudaErrorNoKernelImageForDevice";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorLaunchOutOfResources: return "cudaErrorLaunchOutOfResources";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    default: return "unrecognized error code";
  }
}
const char *cudaGetErrorString(cudaError_t error) { return error ? "in words" : "no error"; }

/* ---- the driver ---- */

static CUresult get_current(CUcontext *context) {
  *context = current_context;
  return CUDA_SUCCESS;
}
static CUresult set_current(CUcontext context) {
  current_context = context;
  return CUDA_SUCCESS;
}
static CUresult device_get(CUdevice *handle, int device) {
  if (device < 0 || device >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
  *handle = device;
  return CUDA_SUCCESS;
}
static CUresult retain(CUcontext *context, CUdevice device) {
  count(&fake_retained[device]);
  __atomic_store_n(&fake_contexts[device], 1, __ATOMIC_SEQ_CST);
  *context = (CUcontext)&contexts[device];
  return CUDA_SUCCESS;
}
static CUresult exchange(CUstreamCaptureMode *mode) {
  CUstreamCaptureMode old = capture_mode;
  capture_mode = *mode;
  *mode = old;
  return CUDA_SUCCESS;
}
static CUresult kernel_attribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  (void)attribute, (void)device;
  if (kernel != (CUkernel)KERNEL) return CUDA_ERROR_INVALID_VALUE;
  *value = 1024;
  return CUDA_SUCCESS;
}
static CUresult unload(CUlibrary library) {
  if (fake_talks) dprintf(2, library == (CUlibrary)LIBRARY ? "unloaded\n" : "unloaded something else\n");
  return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
  static const struct {
    const char *name;
    void *function;
  } known[] = {
      {"cuCtxGetCurrent", get_current},      {"cuCtxSetCurrent", set_current},
      {"cuDeviceGet", device_get},           {"cuDevicePrimaryCtxRetain", retain},
      {"cuKernelGetAttribute", kernel_attribute}, {"cuLibraryUnload", unload},
      {"cuThreadExchangeStreamCaptureMode", exchange},
  };
  (void)version, (void)flags;
  for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(name, known[i].name)) {
      *function = known[i].function;
      *found = cudaDriverEntryPointSuccess;
      return cudaSuccess;
    }
  *found = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

/* ---- TVM-FFI ---- */

void *TVMFFIEnvGetStream(int32_t device_type, int32_t device) {
  (void)device_type, (void)device;
  count(&fake_streams);
  return NULL;
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
