/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that a compiled object calls, over the CUDA driver's interface.
 *
 * One launch runs on one thread, in this order:
 *
 *     TVMFFIEnvGetStream(kDLCUDA, device)
 *     cuda_dialect_init_library_once(state, init, load_to_device, set_error)
 *     _cudaGetDevice(&outer)
 *     _cudaSetDevice(device)                   only if outer differs
 *     _cuTensorMapEncodeTiled(...)             once for each tensor map that host code makes, each followed by
 *     cuda_dialect_assert_success(error)
 *     _cudaLaunchKernelEx(...)                 once for each GPU function
 *     _cudaSetDevice(outer)                    only if outer differs
 *
 * What holds:
 *  - A device is loaded for exactly once, by the first launch on it. A load that failed is tried again by the next launch.
 *  - A launch uses the context that is current, if it is one of the launch's device; else that device's primary context,
 *    which the CUDA runtime and every framework use, for the time of the launch alone. A thread without a context has none
 *    afterwards. No context is created on another device than the launch's.
 *  - A launch after the first one on its device takes no lock and calls the driver twice: which device is current, launch.
 *    (And once for each tensor map. One that the driver refuses to make is the error of the launch that follows.)
 *  - A first launch may happen while a stream is being captured.
 *  - The driver is looked for by the first launch, and any of CUDA 12.0 or newer will do. Nothing of CUDA is linked in.
 *  - fork: a child that inherits an initialised CUDA cannot use it, by CUDA's own rules, and so neither can it launch.
 *    A child of a process that has not launched yet starts from nothing: no lock is held outside a load.
 *  - At process exit nothing is unloaded: the driver may be gone and other threads may be running. dlclose unloads.
 *
 * The GPU code of an object is not in it. What it passes to _cudaLibraryLoadData is the address of a slot, an exported
 * variable cutlass_aot_code_<symbol>, which whoever loads the library fills before the first launch: see struct code.
 */
#define _GNU_SOURCE /* dladdr */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_DEVICES 64 /* bits of struct library's loaded */
#define NO_DEVICE (-1) /* also: no context is current */
#define NOT_ASKED (-2) /* of the current device: what an object that is passed addresses alone does not need to know */
#define ERROR_RAISED (-1) /* tells the object that the error text is set already */
#define DRIVER_UNUSABLE (-2) /* no number of the driver's: driver_trouble says what is wrong */
#define DLPACK_CUDA 2
#define DRIVER "libcuda.so.1"

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
void *__real_TVMFFIEnvGetStream(int32_t device_type, int32_t device);

typedef int (*init_function)(void **library);
typedef int (*load_function)(void **library, int device);

/* The slot of an object: zero until the address and the size in bytes of the kernel's fat binary are written to it, the
 * size first, so that whoever sees the address sees the size. The address is divisible by 8. The driver makes a copy: the
 * bytes have to stay until the first launch that succeeds has returned. */
struct code {
  const void *data;
  uint64_t size;
};

/* How a fat binary begins. The size is that of what follows the header. */
struct fat_binary {
  uint32_t magic;
  uint16_t version;
  uint16_t header_size;
  uint64_t size;
};
#define FAT_BINARY_MAGIC 0xba55ed50

/* What an object's state points to. Never moved, removed by dlclose alone. */
struct library {
  init_function init;
  load_function load_to_device;
  void *handle;    /* CUlibrary, good for every device; written once, under load_lock */
  uint64_t loaded; /* bit d: load_to_device(d) succeeded, and so the object knows its GPU functions */
};

/* The launch under way on this thread. */
struct launch {
  struct library *library;
  int announced; /* by TVMFFIEnvGetStream, for the next init_library_once */
  int current;   /* as the object has last seen or set it */
  int outer;     /* what was current before the object set another device */
  int switched;  /* whether a context of ours is above the caller's */
  int failed;    /* the first error that the object asserted not to be one, and goes on from */
};
static _Thread_local struct launch here = {.announced = NO_DEVICE, .current = NOT_ASKED};

/* Driver functions, each with the CUDA version of the interface that is meant: no later one of the same name. */
#define DRIVER_FUNCTIONS(each)                                              \
  each(init, cuInit, 2000)                                                  \
  each(get_error_name, cuGetErrorName, 6000)                                \
  each(get_error_string, cuGetErrorString, 6000)                            \
  each(get_device, cuCtxGetDevice, 2000)                                    \
  each(push_context, cuCtxPushCurrent, 4000)                                \
  each(pop_context, cuCtxPopCurrent, 4000)                                  \
  each(retain_primary_context, cuDevicePrimaryCtxRetain, 7000)              \
  each(get_device_attribute, cuDeviceGetAttribute, 2000)                    \
  each(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, 10010)     \
  each(load_library, cuLibraryLoadData, 12000)                              \
  each(unload_library, cuLibraryUnload, 12000)                              \
  each(get_kernel, cuLibraryGetKernel, 12000)                               \
  each(get_kernel_attribute, cuKernelGetAttribute, 12000)                   \
  each(set_kernel_attribute, cuKernelSetAttribute, 12000)                   \
  each(encode_tiled, cuTensorMapEncodeTiled, 12000)                         \
  each(launch, cuLaunchKernelEx, 11060)
#define FIELD(field, name, version) PFN_##name##_v##version field;
static struct driver {
  DRIVER_FUNCTIONS(FIELD)
} driver;
static int driver_found, driver_ready; /* the functions are there; and cuInit has succeeded. Under driver_lock */
static char driver_trouble[512];       /* under driver_lock */
static CUcontext primary_contexts[MAX_DEVICES]; /* retained for the life of the process */

/* Lock order: load_lock, then driver_lock. */
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;

static int process_exits;

/* ---- the runtime's types are the driver's ---- */

/* Objects are compiled for the CUDA runtime's types. Where those are passed on as the driver's, they are the same. */
#define SAME(runtime, driver) _Static_assert((int)(runtime) == (int)(driver), #runtime)
#define SAME_MEMBER(runtime, driver)                                                                            \
  _Static_assert(offsetof(cudaLaunchAttribute, runtime) == offsetof(CUlaunchAttribute, driver), #runtime); \
  _Static_assert(sizeof(((cudaLaunchAttribute *)0)->runtime) == sizeof(((CUlaunchAttribute *)0)->driver), #runtime)
_Static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute), "launch attributes");
SAME_MEMBER(id, id);
SAME_MEMBER(val, value);
SAME_MEMBER(val.cooperative, value.cooperative);
SAME_MEMBER(val.clusterDim, value.clusterDim);
SAME_MEMBER(val.clusterSchedulingPolicyPreference, value.clusterSchedulingPolicyPreference);
SAME_MEMBER(val.programmaticStreamSerializationAllowed, value.programmaticStreamSerializationAllowed);
SAME_MEMBER(val.programmaticEvent, value.programmaticEvent);
SAME_MEMBER(val.priority, value.priority);
SAME_MEMBER(val.memSyncDomainMap, value.memSyncDomainMap);
SAME_MEMBER(val.memSyncDomain, value.memSyncDomain);
SAME_MEMBER(val.preferredClusterDim, value.preferredClusterDim);
SAME_MEMBER(val.launchCompletionEvent, value.launchCompletionEvent);
SAME_MEMBER(val.sharedMemCarveout, value.sharedMemCarveout);
SAME(cudaLaunchAttributeIgnore, CU_LAUNCH_ATTRIBUTE_IGNORE);
SAME(cudaLaunchAttributeCooperative, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
SAME(cudaLaunchAttributeClusterDimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME(cudaLaunchAttributeClusterSchedulingPolicyPreference, CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
SAME(cudaLaunchAttributeProgrammaticStreamSerialization, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME(cudaLaunchAttributeProgrammaticEvent, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
SAME(cudaLaunchAttributePriority, CU_LAUNCH_ATTRIBUTE_PRIORITY);
SAME(cudaLaunchAttributeMemSyncDomainMap, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP);
SAME(cudaLaunchAttributeMemSyncDomain, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN);
SAME(cudaLaunchAttributePreferredClusterDimension, CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION);
SAME(cudaLaunchAttributeLaunchCompletionEvent, CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
SAME(cudaLaunchAttributePreferredSharedMemoryCarveout, CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
SAME(cudaFuncAttributeMaxDynamicSharedMemorySize, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(cudaFuncAttributePreferredSharedMemoryCarveout, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
SAME(cudaFuncAttributeNonPortableClusterSizeAllowed, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
SAME(cudaDevAttrMaxSharedMemoryPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
SAME(cudaDevAttrMultiProcessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(cudaDevAttrMaxSharedMemoryPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);

/* Objects have room for a tensor map of this size. */
_Static_assert(sizeof(CUtensorMap) == 16 * sizeof(uint64_t), "tensor maps");

/* ---- errors ---- */

static const char *advice(int error) {
  switch (error) {
    case CUDA_ERROR_NO_DEVICE:
      return "; no GPU is visible: check CUDA_VISIBLE_DEVICES";
    case CUDA_ERROR_STUB_LIBRARY:
      return "; a stub of " DRIVER ", made for linking, was found before the driver's own: check LD_LIBRARY_PATH";
    case CUDA_ERROR_NOT_INITIALIZED:
      return "; a process forked after its parent used CUDA cannot use it: start it with the spawn method";
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      return "; the kernel was built for another GPU: use a bundle built for this one";
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "; the GPU is out of memory";
    default:
      return "";
  }
}

static void raise_error(const char *what, int error) {
  char text[768];
  if (error == ERROR_RAISED) return;
  if (error == DRIVER_UNUSABLE) {
    pthread_mutex_lock(&driver_lock);
    snprintf(text, sizeof text, "%s: %s", what, driver_trouble);
    pthread_mutex_unlock(&driver_lock);
  } else {
    const char *name = NULL, *words = NULL;
    driver.get_error_name((CUresult)error, &name);
    driver.get_error_string((CUresult)error, &words);
    if (name && words)
      snprintf(text, sizeof text, "%s: %s (%s)%s", what, name, words, advice(error));
    else
      snprintf(text, sizeof text, "%s: CUDA error %d, which the driver has no name for", what, error);
  }
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", text);
}

void CuteDSLRT_TVMFFISetRaisedCudaError(void *set_error, int error) {
  (void)set_error;
  raise_error("CUDA error", error);
}

void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(void *set_error, int error) {
  (void)set_error;
  raise_error("CUDA launch error", error);
}

/* ---- the driver, and contexts ---- */

static int find_functions(void) {
  /* Never closed: this library may go while the process goes on using CUDA. */
  void *library = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *why = dlerror();
    snprintf(driver_trouble, sizeof driver_trouble,
             "there is no NVIDIA driver: " DRIVER " cannot be loaded (%s); install the GPU driver, or let the "
             "container use the host's", why ? why : "no reason given");
    return DRIVER_UNUSABLE;
  }
  int version = 0;
  PFN_cuDriverGetVersion_v2020 get_version = (PFN_cuDriverGetVersion_v2020)dlsym(library, "cuDriverGetVersion");
  if (get_version) get_version(&version);
  const char *missing = NULL;
  PFN_cuGetProcAddress_v12000 find = (PFN_cuGetProcAddress_v12000)dlsym(library, "cuGetProcAddress_v2");
  if (!find) missing = "cuGetProcAddress_v2";
  CUdriverProcAddressQueryResult ignored;
#define FIND(field, name, version)                                                                              \
  if (!missing && (find(#name, (void **)&driver.field, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &ignored) || \
                   !driver.field))                                                                              \
    missing = #name;
  DRIVER_FUNCTIONS(FIND)
  if (!missing) return CUDA_SUCCESS;
  snprintf(driver_trouble, sizeof driver_trouble,
           "the NVIDIA driver, of CUDA %d.%d, has no %s: kernels need a driver of CUDA 12.0 or newer; upgrade it",
           version / 1000, version % 1000 / 10, missing);
  return DRIVER_UNUSABLE;
}

/* Find and initialise the driver unless that is done. Objects call nothing else of this file before a load has. */
static int find_driver(void) {
  if (__atomic_load_n(&driver_ready, __ATOMIC_ACQUIRE)) return CUDA_SUCCESS;
  pthread_mutex_lock(&driver_lock);
  int error = CUDA_SUCCESS;
  if (!driver_found) error = find_functions();
  if (!error) {
    driver_found = 1;
    if (!driver_ready) error = driver.init(0);
    if (!error) __atomic_store_n(&driver_ready, 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&driver_lock);
  return error;
}

/* The device of the context that is current, NO_DEVICE if none is. A CUdevice is the GPU's number. */
static int current_device(int *device) {
  int error = driver.get_device(device);
  if (error != CUDA_ERROR_INVALID_CONTEXT) return error;
  *device = NO_DEVICE;
  return CUDA_SUCCESS;
}

static int primary_context(int device, CUcontext *context) {
  if (device < 0 || device >= MAX_DEVICES) return CUDA_ERROR_INVALID_DEVICE;
  *context = __atomic_load_n(&primary_contexts[device], __ATOMIC_ACQUIRE);
  if (*context) return CUDA_SUCCESS;
  pthread_mutex_lock(&driver_lock);
  int error = CUDA_SUCCESS;
  if (!primary_contexts[device]) {
    error = driver.retain_primary_context(context, device);
    if (!error) __atomic_store_n(&primary_contexts[device], *context, __ATOMIC_RELEASE);
  }
  *context = primary_contexts[device];
  pthread_mutex_unlock(&driver_lock);
  return error;
}

/* Make device's primary context current, until leave_device: what was current, or that nothing was, stays below it. */
static int enter_device(int device) {
  CUcontext context;
  int error = primary_context(device, &context);
  return error ? error : (int)driver.push_context(context);
}

static int leave_device(void) {
  CUcontext ours;
  return driver.pop_context(&ours);
}

/* ---- loading ---- */

static int is_loaded(const struct library *library, int device) {
  return (unsigned)device < MAX_DEVICES && (__atomic_load_n(&library->loaded, __ATOMIC_ACQUIRE) >> device & 1);
}

static int load_locked(struct library *library, int device) {
  if (!library->handle) {
    void *handle = NULL;
    int error = library->init(&handle);
    if (error) return error;
    library->handle = handle;
  }
  /* For every device but the first this writes the object's kernel handles again, with the same values: a kernel handle
   * does not depend on the device, so that a launch on another device that reads one meanwhile reads the right one. */
  int error = library->load_to_device(&library->handle, device);
  if (!error) __atomic_fetch_or(&library->loaded, UINT64_C(1) << device, __ATOMIC_RELEASE);
  return error;
}

/* Load for device unless that is done. 0, or ERROR_RAISED with the error's text set. */
static int load(struct library *library, int device) {
  if (is_loaded(library, device)) return 0;
  char what[96];
  if (device < 0 || device >= MAX_DEVICES) {
    snprintf(what, sizeof what, "cannot load the kernel on device %d: devices 0 to %d are supported", device, MAX_DEVICES - 1);
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", what);
    return ERROR_RAISED;
  }
  int current = NO_DEVICE, entered = 0, relaxed = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  int error = find_driver();
  if (!error) error = current_device(&current);
  /* Loading is not a stream operation, but a thread that captures in the global or thread-local mode is forbidden it. */
  if (!error) error = driver.exchange_capture_mode(&mode);
  relaxed = !error;
  if (!error && current != device) {
    error = enter_device(device);
    entered = !error;
  }
  if (!error) {
    pthread_mutex_lock(&load_lock);
    if (!is_loaded(library, device)) error = load_locked(library, device);
    pthread_mutex_unlock(&load_lock);
  }
  if (entered) {
    int left = leave_device();
    if (!error) error = left;
  }
  if (relaxed) driver.exchange_capture_mode(&mode);
  if (!error) return 0;
  snprintf(what, sizeof what, "cannot load the kernel on device %d", device);
  raise_error(what, error);
  return ERROR_RAISED;
}

/* The record of an object, made by its first launch. NULL if there is no memory. */
static struct library *record(void **state, init_function init, load_function load_to_device) {
  void *found = __atomic_load_n(state, __ATOMIC_ACQUIRE);
  if (found) return found;
  struct library *made = calloc(1, sizeof *made);
  if (!made) return NULL;
  made->init = init;
  made->load_to_device = load_to_device;
  if (__atomic_compare_exchange_n(state, &found, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return made;
  free(made); /* another thread was first */
  return found;
}

/* The linker sends the objects' calls of TVMFFIEnvGetStream here (--wrap): the only place that says, before a device is
 * switched to, which one the launch is for. */
void *__wrap_TVMFFIEnvGetStream(int32_t device_type, int32_t device) {
  here.announced = device_type == DLPACK_CUDA ? device : NO_DEVICE;
  return __real_TVMFFIEnvGetStream(device_type, device);
}

int cuda_dialect_init_library_once(void **state, init_function init, load_function load_to_device, void *set_error) {
  (void)set_error;
  struct launch *launch = &here;
  int device = launch->announced;
  launch->announced = NO_DEVICE;
  launch->current = NOT_ASKED;
  launch->switched = 0;
  launch->failed = CUDA_SUCCESS;
  struct library *library = record(state, init, load_to_device);
  launch->library = library;
  if (!library) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "cannot load the kernel: the machine is out of memory");
    return ERROR_RAISED;
  }
  if (device == NO_DEVICE) {
    /* Another compiler's object might not ask for the stream, or later. Its kernel handles have to be known before it
     * launches, on whatever device; _cudaLaunchKernelEx loads for the device that it turns out to be. */
    if (__atomic_load_n(&library->loaded, __ATOMIC_ACQUIRE)) return 0;
    int error = find_driver();
    if (!error) error = current_device(&device);
    if (error) {
      raise_error("cannot load the kernel", error);
      return ERROR_RAISED;
    }
    if (device == NO_DEVICE) device = 0; /* what the CUDA runtime takes for the current one */
  }
  return load(library, device);
}

void cuda_dialect_unload_library_once(void **state) {
  if (process_exits) return;
  struct library *library = __atomic_exchange_n(state, NULL, __ATOMIC_ACQ_REL);
  if (!library) return;
  /* There is nobody to tell of an error, and nothing to do about one. */
  if (library->handle) driver.unload_library((CUlibrary)library->handle);
  free(library);
}

/* The slot's content, NULL with the error's text set if that is not a fat binary. */
static const void *code_of(const struct code *slot) {
  const struct fat_binary *code = __atomic_load_n(&slot->data, __ATOMIC_ACQUIRE);
  uint64_t size = slot->size;
  if (code && (uintptr_t)code % 8 == 0 && size >= sizeof *code && code->magic == FAT_BINARY_MAGIC &&
      code->header_size <= size && code->size <= size - code->header_size)
    return code;
  Dl_info found;
  const char *name = dladdr((void *)slot, &found) && found.dli_sname ? found.dli_sname : "cutlass_aot_code_...";
  char text[768];
  if (!code)
    snprintf(text, sizeof text,
             "cannot load the kernel: its GPU code was not provided; open its bundle with cutlass_aot, or, from another "
             "language, write the size and the address of the code to %s before the first launch", name);
  else
    snprintf(text, sizeof text,
             "cannot load the kernel: what %s was given, %llu bytes at %p, is no whole fat binary at an address divisible by "
             "8; give it the code that the bundle has for this kernel", name, (unsigned long long)size, (const void *)code);
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", text);
  return NULL;
}

/* ---- the rest: each does what the CUDA runtime's function of its name does ---- */

/* Without a context it is NO_DEVICE, no launch's device: so the object sets the launch's, and afterwards this one again,
 * which takes the context away. */
int _cudaGetDevice(int *device) {
  struct launch *launch = &here;
  int error = current_device(device);
  launch->current = error ? NO_DEVICE : *device;
  launch->switched = 0;
  return error;
}

int _cudaSetDevice(int device) {
  struct launch *launch = &here;
  int error;
  if (launch->switched && device == launch->outer) {
    launch->switched = 0;
    error = leave_device();
  } else {
    error = enter_device(device);
    launch->outer = launch->current;
    launch->switched = !error;
  }
  if (!error) launch->current = device;
  return error;
}

int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
  return driver.get_device_attribute(value, (CUdevice_attribute)attribute, device);
}

int _cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *jit_options, void **jit_values,
                         unsigned jit_count, enum cudaLibraryOption *options, void **values, unsigned count) {
  (void)jit_options, (void)jit_values, (void)options, (void)values;
  if (jit_count || count) return CUDA_ERROR_NOT_SUPPORTED; /* objects have none */
  code = code_of(code);
  if (!code) return ERROR_RAISED;
  return driver.load_library((CUlibrary *)library, code, NULL, NULL, 0, NULL, NULL, 0);
}

int _cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
  return driver.get_kernel((CUkernel *)kernel, (CUlibrary)library, name);
}

int _cudaKernelSetAttributeForDevice(cudaKernel_t kernel, int attribute, int value, int device) {
  return driver.set_kernel_attribute((CUfunction_attribute)attribute, value, (CUkernel)kernel, device);
}

int _cudaFuncSetAttribute(const void *function, int attribute, int value) {
  int device;
  int error = current_device(&device);
  if (error) return error;
  return driver.set_kernel_attribute((CUfunction_attribute)attribute, value, (CUkernel)function,
                                     device == NO_DEVICE ? 0 : device);
}

int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  return driver.get_kernel_attribute(value, (CUfunction_attribute)attribute, (CUkernel)kernel, device);
}

int _cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                            const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                            const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                            CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return driver.encode_tiled(map, type, rank, address, extents, strides, box, steps, interleave, swizzle, promotion, fill);
}

/* It returns nothing, and the object goes on: the launch, which can fail, says so. */
void cuda_dialect_assert_success(int error) {
  if (!here.failed) here.failed = error;
}

int _cudaLaunchKernelEx(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  const struct launch *launch = &here;
  if (launch->failed) {
    raise_error("cannot launch the kernel: what it is passed, such as a tensor map of an operand, cannot be made",
                launch->failed);
    return ERROR_RAISED;
  }
  if (config->dynamicSmemBytes > UINT_MAX) return CUDA_ERROR_INVALID_VALUE;
  int device = launch->current, entered = 0, error = CUDA_SUCCESS;
  if (device == NOT_ASKED) {
    /* Where the addresses are is not known: the device is the current one, or what the CUDA runtime takes for that. */
    error = current_device(&device);
    if (!error && device == NO_DEVICE) {
      device = 0;
      error = enter_device(device);
      entered = !error;
    }
    if (error) return error;
  }
  if (!is_loaded(launch->library, device) && load(launch->library, device)) error = ERROR_RAISED;
  CUlaunchConfig translated = {
      .gridDimX = config->gridDim.x,
      .gridDimY = config->gridDim.y,
      .gridDimZ = config->gridDim.z,
      .blockDimX = config->blockDim.x,
      .blockDimY = config->blockDim.y,
      .blockDimZ = config->blockDim.z,
      .sharedMemBytes = (unsigned)config->dynamicSmemBytes,
      .hStream = config->stream,
      .attrs = (CUlaunchAttribute *)config->attrs,
      .numAttrs = config->numAttrs,
  };
  if (!error) error = driver.launch(&translated, (CUfunction)function, arguments, NULL);
  if (entered) {
    int left = leave_device();
    if (!error) error = left;
  }
  return error;
}

/* ---- the library's own end ---- */

/* exit runs what was registered with atexit, and only then the destructors; dlclose runs destructors alone. So a function
 * registered here tells the two apart. The linker used gives a shared library no crtbegin, whose duty falls to us: to take
 * back on dlclose, after every other destructor (so the priority), what was registered. Without that the process would jump
 * into unmapped memory when it exits. */
int __cxa_atexit(void (*function)(void *), void *argument, void *library);
void __cxa_finalize(void *library);
static char this_library; /* its address is the handle by which the C library knows what this library registered */

static void note_exit(void *unused) {
  (void)unused;
  process_exits = 1;
}
__attribute__((constructor)) static void watch_for_exit(void) { __cxa_atexit(note_exit, NULL, &this_library); }
__attribute__((destructor(101))) static void stop_watching(void) { __cxa_finalize(&this_library); }
