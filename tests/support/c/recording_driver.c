/* A CUDA driver that writes down what it is asked to launch, for a machine without a GPU: libcuda.so.1 for one test.
 *
 * It has one GPU, of the compute capability in COMPUTE_CAPABILITY, such as 10.0, and the functions that the shim and the
 * runtime ask for. A launch is printed on standard output: grid, block, shared memory, stream, attributes, and the bytes of every
 * parameter, whose sizes PARAMETER_SIZES gives, separated by commas. Handles are numbers, so that two processes print the same.
 */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define CONTEXT ((CUcontext)0x11)
#define LIBRARY ((CUlibrary)0x22)
#define KERNEL ((CUkernel)0x33)

static CUcontext current;

static CUresult init(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
static CUresult error_name(CUresult error, const char **name) {
  (void)error;
  *name = "CUDA_ERROR_OF_THE_RECORDING_DRIVER";
  return CUDA_SUCCESS;
}
static CUresult get_device(CUdevice *device) {
  *device = 0;
  return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
static CUresult push(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}
static CUresult pop(CUcontext *context) {
  *context = current;
  current = NULL;
  return CUDA_SUCCESS;
}
static CUresult retain(CUcontext *context, CUdevice device) {
  *context = CONTEXT;
  return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
static CUresult attribute(int *value, CUdevice_attribute which, CUdevice device) {
  const char *capability = getenv("COMPUTE_CAPABILITY");
  if (device || !capability) return CUDA_ERROR_INVALID_DEVICE;
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = atoi(capability);
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = atoi(strchr(capability, '.') + 1);
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 148;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = 227 << 10;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
static CUresult capture_mode(CUstreamCaptureMode *mode) {
  (void)mode;
  return CUDA_SUCCESS;
}
static CUresult load(CUlibrary *library, const void *code, void *o, void **v, unsigned n, void *lo, void **lv, unsigned ln) {
  (void)o, (void)v, (void)lo, (void)lv;
  const uint8_t *bytes = code;
  uint64_t size, sum = UINT64_C(0xcbf29ce484222325);
  memcpy(&size, bytes + 8, sizeof size); /* of what follows the 16 bytes of the header */
  for (uint64_t index = 0; index < 16 + size; index++) sum = (sum ^ bytes[index]) * UINT64_C(0x100000001b3);
  printf("load %llu bytes, FNV-1a %016llx, options %u %u\n", (unsigned long long)(16 + size), (unsigned long long)sum, n, ln);
  *library = LIBRARY;
  return CUDA_SUCCESS;
}
static CUresult unload(CUlibrary library) { return library == LIBRARY ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
static CUresult get_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
  printf("kernel %s\n", name);
  *kernel = KERNEL;
  return library == LIBRARY ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
static CUresult get_attribute(int *value, CUfunction_attribute which, CUkernel kernel, CUdevice device) {
  printf("get attribute %d of kernel %p on %d\n", which, (void *)kernel, device);
  *value = 0;
  return CUDA_SUCCESS;
}
static CUresult set_attribute(CUfunction_attribute which, int value, CUkernel kernel, CUdevice device) {
  printf("set attribute %d of kernel %p on %d to %d\n", which, (void *)kernel, device, value);
  return CUDA_SUCCESS;
}

static void print_bytes(const void *bytes, size_t count) {
  for (size_t index = 0; index < count; index++) printf("%02x", ((const uint8_t *)bytes)[index]);
  putchar('\n');
}

static CUresult encode_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                             const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                             const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                             CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  printf("tensor map of %p: type %d interleave %d swizzle %d promotion %d fill %d\n", address, type, interleave, swizzle, promotion,
         fill);
  for (cuuint32_t mode = 0; mode < rank; mode++)
    printf(" mode %u: extent %llu box %u step %u stride %llu\n", mode, (unsigned long long)extents[mode], box[mode], steps[mode],
           mode ? (unsigned long long)strides[mode - 1] : 0);
  memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}

static CUresult launch(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  printf("launch %p grid %u,%u,%u block %u,%u,%u shared %u stream %p extra %p\n", (void *)function, config->gridDimX,
         config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ, config->sharedMemBytes,
         (void *)config->hStream, (void *)extra);
  for (unsigned index = 0; index < config->numAttrs; index++) {
    const CUlaunchAttribute *given = &config->attrs[index];
    const CUlaunchAttributeValue *value = &given->value;
    printf(" attribute %d: ", given->id);
    if (given->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      printf("%u,%u,%u\n", value->clusterDim.x, value->clusterDim.y, value->clusterDim.z);
    else
      printf("%d\n", value->cooperative);
  }
  const char *sizes = getenv("PARAMETER_SIZES");
  for (int index = 0; sizes && *sizes; index++) {
    char *end;
    size_t size = strtoul(sizes, &end, 10);
    printf(" parameter %d: ", index);
    print_bytes(parameters[index], size);
    sizes = *end ? end + 1 : end;
  }
  return CUDA_SUCCESS;
}

/* ---- what the runtime calls by name ---- */

EXPORT CUresult cuInit(unsigned flags) { return init(flags); }
EXPORT CUresult cuGetErrorName(CUresult error, const char **name) { return error_name(error, name); }
EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) { return attribute(value, which, device); }
EXPORT CUresult cuDeviceGetCount(int *count) {
  *count = 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetName(char *name, int room, CUdevice device) {
  snprintf(name, (size_t)room, "GPU of the recording driver");
  return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  *bytes = (size_t)180 << 30;
  return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
EXPORT CUresult cuDriverGetVersion(int *version) {
  *version = 13040;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *result) {
  static const struct {
    const char *name;
    void *function;
  } functions[] = {
      {"cuInit", init},
      {"cuGetErrorName", error_name},
      {"cuGetErrorString", error_name},
      {"cuCtxGetDevice", get_device},
      {"cuCtxPushCurrent", push},
      {"cuCtxPopCurrent", pop},
      {"cuDevicePrimaryCtxRetain", retain},
      {"cuDeviceGetAttribute", attribute},
      {"cuThreadExchangeStreamCaptureMode", capture_mode},
      {"cuLibraryLoadData", load},
      {"cuLibraryUnload", unload},
      {"cuLibraryGetKernel", get_kernel},
      {"cuKernelGetAttribute", get_attribute},
      {"cuKernelSetAttribute", set_attribute},
      {"cuTensorMapEncodeTiled", encode_tiled},
      {"cuLaunchKernelEx", launch},
  };
  (void)flags, (void)result;
  if (version > 12000) return CUDA_ERROR_NOT_FOUND;
  for (size_t index = 0; index < sizeof functions / sizeof *functions; index++)
    if (!strcmp(name, functions[index].name)) {
      *function = functions[index].function;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_NOT_FOUND;
}
