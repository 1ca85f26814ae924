// A CUDA driver and a GEMM that live in host memory, for what examples/cpp does with a GPU. What it asks of them is checked:
// a call that no program may make prints why and ends the process.
#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int stream, context;
bool current = false, synchronised = true;

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "host_gemm: %s\n", what);
  std::_Exit(9);
}

float Wide(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t Narrow(float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof wide);
  return static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

uint16_t* Element(const DLTensor* tensor, int64_t row, int64_t column) {
  return static_cast<uint16_t*>(tensor->data) + row * tensor->strides[1] + column * tensor->strides[2];
}

}  // namespace

extern "C" {
uint64_t cutlass_aot_code_host_gemm[2];


int cuGetErrorString(int, const char** text) { return *text = "a pretended error", 0; }
int cuInit(unsigned) { return std::getenv("HOST_GEMM_NO_DEVICE") ? 100 : 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(void** made, int) { return *made = &context, 0; }
int cuCtxSetCurrent(void* made) { return current = made == &context, 0; }
int cuMemAlloc_v2(unsigned long long* pointer, size_t bytes) {
  Require(current, "no context is current");
  *pointer = reinterpret_cast<unsigned long long>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  return 0;
}
int cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t bytes) {
  Require(synchronised, "a result is read before the stream was waited for");
  std::memcpy(to, reinterpret_cast<void*>(from), bytes);
  return 0;
}
int cuStreamCreate(void** made, unsigned) { return *made = &stream, 0; }
int cuStreamSynchronize(void* used) { return synchronised = used == &stream, 0; }
int cuEventCreate(void** made, unsigned) { return *made = &stream, 0; }
int cuEventRecord(void*, void* used) { return Require(used == &stream, "an event on another stream"), 0; }
int cuEventElapsedTime(float* milliseconds, void*, void*) { return *milliseconds = 1, 0; }

int __tvm_ffi_host_gemm(void*, const TVMFFIAny* arguments, int32_t count, TVMFFIAny*) {
  Require(count == 3, "not three operands");
  const DLTensor* tensors[3];
  for (int index = 0; index < 3; ++index) {
    Require(arguments[index].type_index == kTVMFFIDLTensorPtr, "an operand that is not a DLTensor");
    tensors[index] = static_cast<const DLTensor*>(arguments[index].v_ptr);
    Require(tensors[index]->ndim == 3 && tensors[index]->shape[0] == 1, "an operand without a batch of one");
  }
  Require(TVMFFIEnvGetStream(kDLCUDA, 0) == &stream, "the stream was not set");
  const DLTensor *a = tensors[0], *b = tensors[1], *out = tensors[2];
  if (a->dtype.code != kDLBfloat || a->shape[2] != b->shape[1]) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", "refused");
    return -1;
  }
  const bool wrong = std::getenv("HOST_GEMM_WRONG") != nullptr;
  for (int64_t row = 0; row < out->shape[1]; ++row)
    for (int64_t column = 0; column < out->shape[2]; ++column) {
      float sum = 0;
      for (int64_t inner = 0; inner < a->shape[2]; ++inner) sum += Wide(*Element(a, row, inner)) * Wide(*Element(b, inner, column));
      if (!wrong || row + column > 0) *Element(out, row, column) = Narrow(sum);
    }
  synchronised = false;
  return 0;
}

}  // extern "C"
