/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that a compiled object calls, over the CUDA runtime.
 *
 * One launch runs on one thread, in this order:
 *
 *     TVMFFIEnvGetStream(kDLCUDA, device)
 *     cuda_dialect_init_library_once(state, init, load_to_device, set_error)
 *     _cudaGetDevice(&outer)
 *     _cudaSetDevice(device)                   only if outer differs
 *     _cudaLaunchKernelEx(...)                 once for each GPU function
 *     _cudaSetDevice(outer)                    only if outer differs
 *
 * What holds:
 *  - A device is loaded for exactly once, by the first launch on it. A load that failed is tried again by the next launch.
 *  - No context is created on a device other than the launch's. cudaSetDevice would create one on the device it returns
 *    to, so that switching is done with the driver's contexts, which remember "none yet".
 *  - A launch after the first one on its device takes no lock and makes no call that the object did not ask for.
 *  - A first launch may happen while a stream is being captured.
 *  - fork: a child that inherits an initialised CUDA cannot use it, by CUDA's own rules, and so neither can it launch.
 *    A child of a process that has not launched yet starts from nothing: no lock is held outside a load.
 *  - At process exit nothing is unloaded: the driver may be gone and other threads may be running. dlclose unloads.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_DEVICES 64 /* bits of struct library's loaded */
#define NO_DEVICE (-1)
#define ERROR_RAISED (-1) /* tells the object that the error text is set already */
#define DLPACK_CUDA 2

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
void *__real_TVMFFIEnvGetStream(int32_t device_type, int32_t device);

typedef int (*init_function)(void **library);
typedef int (*load_function)(void **library, int device);

/* What an object's state points to. Never moved, freed by dlclose alone. */
struct library {
  init_function init;
  load_function load_to_device;
  void *handle;    /* cudaLibrary_t, good for every device; written once, under load_lock */
  uint64_t loaded; /* bit d: load_to_device(d) succeeded, and so the object knows its GPU functions */
};

/* The launch under way on this thread. */
struct launch {
  struct library *library;
  int announced; /* by TVMFFIEnvGetStream, for the next init_library_once */
  int current;   /* as the object has last seen or set it */
  int switched;  /* whether outer is to be made current again */
  int outer_device;
  CUcontext outer;
};
static _Thread_local struct launch here = {.announced = NO_DEVICE, .current = NO_DEVICE};

/* Driver functions that the runtime has no equal of, or whose equal creates a context on the current device. */
static struct driver {
  CUresult (*context_get_current)(CUcontext *);
  CUresult (*context_set_current)(CUcontext);
  CUresult (*device_get)(CUdevice *, int);
  CUresult (*primary_context_retain)(CUcontext *, CUdevice);
  CUresult (*exchange_capture_mode)(CUstreamCaptureMode *);
  CUresult (*kernel_get_attribute)(int *, CUfunction_attribute, CUkernel, CUdevice);
  CUresult (*library_unload)(CUlibrary);
} driver;
static int driver_found;
static CUcontext primary_contexts[MAX_DEVICES]; /* retained for the life of the process */

/* Lock order: load_lock, then driver_lock. */
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;

static int process_exits;

/* ---- errors ---- */

static const char *advice(int error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return "; the NVIDIA driver is missing or older than the CUDA runtime linked in: upgrade it";
    case cudaErrorNoDevice:
      return "; no GPU is visible: check CUDA_VISIBLE_DEVICES";
    case cudaErrorNoKernelImageForDevice:
      return "; the kernel was built for another GPU: use a bundle built for this one";
    case cudaErrorMemoryAllocation:
      return "; the GPU is out of memory";
    default:
      return "";
  }
}

static void raise_error(const char *what, int error) {
  char text[512];
  /* Numbers of the driver's errors are the runtime's. */
  snprintf(text, sizeof text, "%s: %s (%s)%s", what, cudaGetErrorName((cudaError_t)error),
           cudaGetErrorString((cudaError_t)error), advice(error));
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

/* ---- driver functions and contexts ---- */

static int find_driver_function(const char *name, void **function) {
  enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  int error = cudaGetDriverEntryPointByVersion(name, function, 12000, cudaEnableDefault, &found);
  if (error) return error;
  return found == cudaDriverEntryPointSuccess && *function ? cudaSuccess : cudaErrorInsufficientDriver;
}

static int find_driver(void) {
  if (__atomic_load_n(&driver_found, __ATOMIC_ACQUIRE)) return cudaSuccess;
  pthread_mutex_lock(&driver_lock);
  int error = cudaSuccess;
  if (!driver_found) {
    error = find_driver_function("cuCtxGetCurrent", (void **)&driver.context_get_current);
    if (!error) error = find_driver_function("cuCtxSetCurrent", (void **)&driver.context_set_current);
    if (!error) error = find_driver_function("cuDeviceGet", (void **)&driver.device_get);
    if (!error) error = find_driver_function("cuDevicePrimaryCtxRetain", (void **)&driver.primary_context_retain);
    if (!error) error = find_driver_function("cuThreadExchangeStreamCaptureMode", (void **)&driver.exchange_capture_mode);
    if (!error) error = find_driver_function("cuKernelGetAttribute", (void **)&driver.kernel_get_attribute);
    if (!error) error = find_driver_function("cuLibraryUnload", (void **)&driver.library_unload);
    if (!error) __atomic_store_n(&driver_found, 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&driver_lock);
  return error;
}

static int primary_context(int device, CUcontext *context) {
  if (device < 0 || device >= MAX_DEVICES) return cudaErrorInvalidDevice;
  *context = __atomic_load_n(&primary_contexts[device], __ATOMIC_ACQUIRE);
  if (*context) return cudaSuccess;
  pthread_mutex_lock(&driver_lock);
  int error = cudaSuccess;
  if (!primary_contexts[device]) {
    CUdevice handle;
    error = driver.device_get(&handle, device);
    if (!error) error = driver.primary_context_retain(context, handle);
    if (!error) __atomic_store_n(&primary_contexts[device], *context, __ATOMIC_RELEASE);
  }
  *context = primary_contexts[device];
  pthread_mutex_unlock(&driver_lock);
  return error;
}

/* Make device's primary context current; outer is what leave_device takes back. */
static int enter_device(int device, CUcontext *outer) {
  CUcontext context;
  int error = find_driver();
  if (!error) error = primary_context(device, &context);
  if (!error) error = driver.context_get_current(outer);
  if (!error) error = driver.context_set_current(context);
  return error;
}

static int leave_device(CUcontext outer) { return driver.context_set_current(outer); }

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
  CUcontext outer = NULL;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  int error = cudaGetDevice(&current);
  if (!error) error = find_driver();
  /* Loading is no stream operation, but a thread that captures in the global or thread-local mode is forbidden it. */
  if (!error) error = driver.exchange_capture_mode(&mode);
  relaxed = !error;
  if (!error && current != device) {
    error = enter_device(device, &outer);
    entered = !error;
  }
  if (!error) {
    pthread_mutex_lock(&load_lock);
    if (!is_loaded(library, device)) error = load_locked(library, device);
    pthread_mutex_unlock(&load_lock);
  }
  if (entered) {
    int left = leave_device(outer);
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
  launch->current = NO_DEVICE;
  launch->switched = 0;
  struct library *library = record(state, init, load_to_device);
  launch->library = library;
  if (!library) {
    raise_error("cannot load the kernel", cudaErrorMemoryAllocation);
    return ERROR_RAISED;
  }
  if (device == NO_DEVICE) {
    /* Another compiler's object might not ask for the stream, or later. Its kernel handles have to be known before it
     * launches, on whatever device; _cudaLaunchKernelEx loads for the device that it turns out to be. */
    if (__atomic_load_n(&library->loaded, __ATOMIC_ACQUIRE)) return 0;
    int error = cudaGetDevice(&device);
    if (error) {
      raise_error("cannot load the kernel", error);
      return ERROR_RAISED;
    }
  }
  return load(library, device);
}

void cuda_dialect_unload_library_once(void **state) {
  if (process_exits) return;
  struct library *library = __atomic_exchange_n(state, NULL, __ATOMIC_ACQ_REL);
  if (!library) return;
  /* There is nobody to tell of an error, and nothing to do about one. */
  if (library->handle && !find_driver()) driver.library_unload((CUlibrary)library->handle);
  free(library);
}

/* ---- the rest, each over the CUDA runtime function of its name ---- */

int _cudaGetDevice(int *device) {
  int error = cudaGetDevice(device);
  here.current = error ? NO_DEVICE : *device;
  here.switched = 0;
  return error;
}

int _cudaSetDevice(int device) {
  struct launch *launch = &here;
  int error;
  if (launch->switched && device == launch->outer_device) {
    launch->switched = 0;
    error = leave_device(launch->outer);
  } else if (launch->current == NO_DEVICE) {
    error = cudaSetDevice(device);
  } else {
    error = enter_device(device, &launch->outer);
    launch->outer_device = launch->current;
    launch->switched = !error;
  }
  if (!error) launch->current = device;
  return error;
}

int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
  return cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
}

int _cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *jit_options, void **jit_values,
                         unsigned jit_count, enum cudaLibraryOption *options, void **values, unsigned count) {
  return cudaLibraryLoadData(library, code, jit_options, jit_values, jit_count, options, values, count);
}

int _cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
  return cudaLibraryGetKernel(kernel, library, name);
}

int _cudaKernelSetAttributeForDevice(cudaKernel_t kernel, int attribute, int value, int device) {
  return cudaKernelSetAttributeForDevice(kernel, (enum cudaFuncAttribute)attribute, value, device);
}

int _cudaFuncSetAttribute(const void *function, int attribute, int value) {
  return cudaFuncSetAttribute(function, (enum cudaFuncAttribute)attribute, value);
}

int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  int error = find_driver();
  if (error) return error;
  return driver.kernel_get_attribute(value, (CUfunction_attribute)attribute, (CUkernel)kernel, device);
}

int _cudaLaunchKernelEx(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  struct launch *launch = &here;
  if (launch->library) {
    int device = launch->current;
    if (device == NO_DEVICE) {
      int error = cudaGetDevice(&device);
      if (error) return error;
    }
    if (!is_loaded(launch->library, device) && load(launch->library, device)) return ERROR_RAISED;
  }
  return cudaLaunchKernelExC(config, function, arguments);
}

/* ---- the library's own end ---- */

/* The linker used gives a shared library no crtbegin, whose duties fall to us: a handle by which the C library knows what
 * this library registered with atexit (the CUDA runtime does), and running that on dlclose, after every other destructor
 * (so the priority). Without them the process would jump into unmapped memory when it exits. With an atexit of our own
 * nothing of the C library is linked in. */
int __cxa_atexit(void (*function)(void *), void *argument, void *library);
void __cxa_finalize(void *library);
__attribute__((visibility("hidden"))) void *__dso_handle = &__dso_handle;
__attribute__((visibility("hidden"))) int atexit(void (*function)(void)) {
  return __cxa_atexit((void (*)(void *))function, NULL, __dso_handle);
}
__attribute__((destructor(101))) static void run_exit_functions(void) { __cxa_finalize(__dso_handle); }

/* exit runs what was registered with atexit, and only then the destructors; dlclose runs destructors alone. */
static void note_exit(void *unused) {
  (void)unused;
  process_exits = 1;
}
__attribute__((constructor)) static void watch_for_exit(void) { __cxa_atexit(note_exit, NULL, __dso_handle); }
