// Launch a prebuilt GEMM from C++: no DSL, no Python, no torch, and no CUDA toolkit to build it with.
//
//     launch_gemm LIBRARY CODE SYMBOL M N K [--layout tnt|ttt] [--explain-error]
//
// LIBRARY has the host code of a kernel, CODE its GPU code, SYMBOL is its name (`cutlass-aot bundle unpack` writes all of them).
// The kernel computes out[m, n] = a[m, k] * b[k, n] in bf16. The program fills the operands, launches on a stream of its own,
// compares the result with one computed here, and measures the time of a launch. With --explain-error it launches nothing:
// it calls the kernel with operands that it has to refuse, and prints what it says.
//
// A compiled kernel is a C function of TVM-FFI's calling convention (tvm/ffi/c_api.h): operands come as DLTensor, the stream
// from TVM-FFI's environment, and an error stays with TVM-FFI until it is fetched.
#include <dlfcn.h>
#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();
constexpr int64_t kCheckedElements = 4096;
constexpr int kWarmUps = 10;
constexpr int kTimedLaunches = 50;

// ---- libraries --------------------------------------------------------------------------------------------------------------

void* OpenLibrary(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  return library;
}

std::vector<char> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file || bytes.empty()) throw std::runtime_error(path + ": cannot be read, or is empty");
  return bytes;
}

void* FindSymbol(void* library, const std::string& name) {
  void* address = dlsym(library, name.c_str());
  if (!address) throw std::runtime_error(dlerror());
  return address;
}

// ---- the CUDA driver: the few functions that are needed, looked up when the program runs -------------------------------------

using DevicePointer = unsigned long long;

class Driver {
 public:
  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error("there is no NVIDIA driver on this machine: libcuda.so.1 was not found");
    Find(library, "cuGetErrorString", &error_string_);
    Find(library, "cuInit", &init_);
    Find(library, "cuDeviceGet", &device_get_);
    Find(library, "cuDevicePrimaryCtxRetain", &primary_context_retain_);
    Find(library, "cuCtxSetCurrent", &context_set_current_);
    Find(library, "cuMemAlloc_v2", &allocate_);
    Find(library, "cuMemcpyHtoD_v2", &copy_to_device_);
    Find(library, "cuMemcpyDtoH_v2", &copy_to_host_);
    Find(library, "cuStreamCreate", &stream_create_);
    Find(library, "cuStreamSynchronize", &stream_synchronize_);
    Find(library, "cuEventCreate", &event_create_);
    Find(library, "cuEventRecord", &event_record_);
    Find(library, "cuEventElapsedTime", &event_elapsed_time_);
    // The primary context of GPU 0 is the one that the CUDA runtime uses, and so the kernels.
    int device = 0;
    void* context = nullptr;
    Check("cuInit", init_(0));
    Check("cuDeviceGet", device_get_(&device, 0));
    Check("cuDevicePrimaryCtxRetain", primary_context_retain_(&context, device));
    Check("cuCtxSetCurrent", context_set_current_(context));
  }

  void* Allocate(size_t bytes) const {
    DevicePointer pointer = 0;
    Check("cuMemAlloc", allocate_(&pointer, bytes));
    return reinterpret_cast<void*>(pointer);
  }

  void CopyToDevice(void* to, const std::vector<uint16_t>& from) const {
    const size_t bytes = from.size() * sizeof(uint16_t);
    Check("cuMemcpyHtoD", copy_to_device_(reinterpret_cast<DevicePointer>(to), from.data(), bytes));
  }

  void CopyToHost(std::vector<uint16_t>* to, const void* from) const {
    const size_t bytes = to->size() * sizeof(uint16_t);
    Check("cuMemcpyDtoH", copy_to_host_(to->data(), reinterpret_cast<DevicePointer>(from), bytes));
  }

  void* CreateStream() const {
    void* stream = nullptr;
    constexpr unsigned kNonBlocking = 1;
    Check("cuStreamCreate", stream_create_(&stream, kNonBlocking));
    return stream;
  }

  void Synchronize(void* stream) const { Check("cuStreamSynchronize", stream_synchronize_(stream)); }

  void* RecordEvent(void* stream) const {
    void* event = nullptr;
    Check("cuEventCreate", event_create_(&event, 0));
    Check("cuEventRecord", event_record_(event, stream));
    return event;
  }

  double Milliseconds(void* start, void* end) const {
    float milliseconds = 0;
    Check("cuEventElapsedTime", event_elapsed_time_(&milliseconds, start, end));
    return milliseconds;
  }

 private:
  template <typename Function>
  static void Find(void* library, const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(FindSymbol(library, name));
  }

  void Check(const char* what, int status) const {
    if (status == 0) return;
    const char* text = nullptr;
    error_string_(status, &text);
    throw std::runtime_error(std::string(what) + ": " + (text ? text : "unknown error") + " (" + std::to_string(status) + ")");
  }

  // CUDA driver API; handles are pointers, a status of 0 is success.
  int (*error_string_)(int, const char**) = nullptr;
  int (*init_)(unsigned) = nullptr;
  int (*device_get_)(int*, int) = nullptr;
  int (*primary_context_retain_)(void**, int) = nullptr;
  int (*context_set_current_)(void*) = nullptr;
  int (*allocate_)(DevicePointer*, size_t) = nullptr;
  int (*copy_to_device_)(DevicePointer, const void*, size_t) = nullptr;
  int (*copy_to_host_)(void*, DevicePointer, size_t) = nullptr;
  int (*stream_create_)(void**, unsigned) = nullptr;
  int (*stream_synchronize_)(void*) = nullptr;
  int (*event_create_)(void**, unsigned) = nullptr;
  int (*event_record_)(void*, void*) = nullptr;
  int (*event_elapsed_time_)(float*, void*, void*) = nullptr;
};

// ---- operands ---------------------------------------------------------------------------------------------------------------

// A tensor of rank 3, the batch (of one) first. It owns its shape and strides, not its memory, and stays where it is: the
// DLTensor points into it.
class Operand {
 public:
  Operand(void* data, int64_t rows, int64_t columns, bool row_major)
      : shape_{1, rows, columns}, strides_{rows * columns, row_major ? columns : 1, row_major ? 1 : rows} {
    tensor_.data = data;
    tensor_.device = DLDevice{kDLCUDA, 0};
    tensor_.ndim = 3;
    tensor_.dtype = DLDataType{kDLBfloat, 16, 1};
    tensor_.shape = shape_;
    tensor_.strides = strides_;
    tensor_.byte_offset = 0;
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  DLTensor* tensor() { return &tensor_; }
  size_t elements() const { return static_cast<size_t>(shape_[1] * shape_[2]); }
  size_t bytes() const { return elements() * sizeof(uint16_t); }
  // Index of an element in the operand's memory.
  size_t at(int64_t row, int64_t column) const { return static_cast<size_t>(row * strides_[1] + column * strides_[2]); }

 private:
  DLTensor tensor_;
  int64_t shape_[3];
  int64_t strides_[3];
};

float FromBf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Multiples of 1/8 between -1 and 1: bf16 holds each exactly, so that its 16 bits are the upper half of the float's.
std::vector<uint16_t> Values(size_t count, uint32_t seed) {
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) {
    seed = seed * 1664525u + 1013904223u;
    const float number = (static_cast<float>(seed >> 28) - 8.0f) / 8.0f;
    uint32_t wide;
    std::memcpy(&wide, &number, sizeof wide);
    value = static_cast<uint16_t>(wide >> 16);
  }
  return values;
}

// ---- the kernel -------------------------------------------------------------------------------------------------------------

// Fetches the error that this thread's last call left, and frees it.
std::string RaisedError() {
  TVMFFIObjectHandle error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) return "the call failed and left no error";
  const TVMFFIErrorCell* cell = TVMFFIErrorGetCellPtr(error);
  std::string text = std::string(cell->kind.data, cell->kind.size) + ": " + std::string(cell->message.data, cell->message.size);
  TVMFFIObjectDecRef(error);
  return text;
}

class Kernel {
 public:
  Kernel(const std::string& library, const std::string& code, const std::string& symbol) : code_(ReadFile(code)) {
    void* opened = OpenLibrary(library);
    address_ = FindSymbol(opened, "__tvm_ffi_" + symbol);
    // The GPU code is wanted by the first launch on each GPU, and stays where it is until then.
    auto* slot = static_cast<CodeSlot*>(FindSymbol(opened, "cutlass_aot_code_" + symbol));
    *slot = {code_.data(), code_.size()};
  }

  // Queues the kernel on the stream that was set with TVMFFIEnvSetStream. "", or the error.
  std::string Launch(Operand& a, Operand& b, Operand& out) const {
    TVMFFIAny arguments[3] = {};
    DLTensor* tensors[3] = {a.tensor(), b.tensor(), out.tensor()};
    for (int index = 0; index < 3; ++index) {
      arguments[index].type_index = kTVMFFIDLTensorPtr;
      arguments[index].v_ptr = tensors[index];
    }
    TVMFFIAny result = {};
    result.type_index = kTVMFFINone;
    return reinterpret_cast<TVMFFISafeCallType>(address_)(nullptr, arguments, 3, &result) == 0 ? "" : RaisedError();
  }

 private:
  struct CodeSlot {
    const char* data;
    uint64_t size;
  };

  void* address_;
  std::vector<char> code_;
};

// ---- what the program does --------------------------------------------------------------------------------------------------

struct Request {
  std::string library;
  std::string code;
  std::string symbol;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool b_row_major = false;
  bool explain_error = false;
};

// Largest error of the checked elements, relative to the element's magnitude plus the typical one.
double LargestError(const Request& request, const Operand& a, const std::vector<uint16_t>& a_values, const Operand& b,
                    const std::vector<uint16_t>& b_values, const Operand& out, const std::vector<uint16_t>& out_values) {
  const int64_t total = request.m * request.n;
  // Small problems are checked completely. A step that shares no factor with the row length visits every column.
  int64_t step = total <= kCheckedElements ? 1 : total / kCheckedElements;
  while (std::gcd(step, request.n) != 1) ++step;
  const double typical = std::sqrt(static_cast<double>(request.k)) / 3;
  double largest = 0;
  for (int64_t index = 0; index < total; index += step) {
    const int64_t row = index / request.n, column = index % request.n;
    double sum = 0;
    for (int64_t inner = 0; inner < request.k; ++inner)
      sum += static_cast<double>(FromBf16(a_values[a.at(row, inner)])) * FromBf16(b_values[b.at(inner, column)]);
    const double found = FromBf16(out_values[out.at(row, column)]);
    const double error = std::abs(found - sum) / (std::abs(sum) + typical);
    if (std::isnan(error)) return error;  // the output was filled with NaN: not written
    if (error > largest) largest = error;
  }
  return largest;
}

int Run(const Request& request) {
  const Kernel kernel(request.library, request.code, request.symbol);
  const Driver driver;
  const int64_t m = request.m, n = request.n, k = request.k;
  auto memory = [&](int64_t rows, int64_t columns) {
    return driver.Allocate(static_cast<size_t>(rows) * static_cast<size_t>(columns) * sizeof(uint16_t));
  };
  Operand a(memory(m, k), m, k, true);
  Operand b(memory(k, n), k, n, request.b_row_major);
  Operand out(memory(m, n), m, n, true);
  const std::vector<uint16_t> a_values = Values(a.elements(), 1), b_values = Values(b.elements(), 2);
  std::vector<uint16_t> out_values(out.elements(), 0x7fff);  // NaN: what is not written shows
  driver.CopyToDevice(a.tensor()->data, a_values);
  driver.CopyToDevice(b.tensor()->data, b_values);
  driver.CopyToDevice(out.tensor()->data, out_values);

  void* stream = driver.CreateStream();
  if (TVMFFIEnvSetStream(kDLCUDA, 0, stream, nullptr) != 0) throw std::runtime_error(RaisedError());
  auto launch = [&] {
    const std::string error = kernel.Launch(a, b, out);
    if (!error.empty()) throw std::runtime_error(error);
  };
  launch();
  driver.Synchronize(stream);
  driver.CopyToHost(&out_values, out.tensor()->data);
  const double error = LargestError(request, a, a_values, b, b_values, out, out_values);
  constexpr double kBound = 1.0 / 128;  // twice the unit roundoff of bf16; sums in f32 add far less
  if (!(error <= kBound)) throw std::runtime_error("wrong result: error " + std::to_string(error));
  std::printf("correct: largest error %.1e, bound %.1e\n", error, kBound);

  for (int index = 0; index < kWarmUps; ++index) launch();
  void* start = driver.RecordEvent(stream);
  for (int index = 0; index < kTimedLaunches; ++index) launch();
  void* end = driver.RecordEvent(stream);
  driver.Synchronize(stream);
  const double seconds = driver.Milliseconds(start, end) * 1e-3 / kTimedLaunches;
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  std::printf("%.1f us a launch, %.1f TFLOP/s\n", seconds * 1e6, flops / seconds * 1e-12);
  return 0;
}

// Calls with operands that the kernel has to refuse. No GPU is needed: the arguments are checked before anything else, and
// addresses are not followed.
int ExplainErrors(const Request& request) {
  const Kernel kernel(request.library, request.code, request.symbol);
  alignas(256) static char memory[256];
  Operand a(memory, request.m, request.k, true);
  Operand b(memory, request.k, request.n, request.b_row_major);
  Operand out(memory, request.m, request.n, true);
  Operand longer(memory, request.m, request.k + 64, true);
  Operand other(memory, request.k, request.n, !request.b_row_major);
  Operand halves(memory, request.m, request.k, true);
  halves.tensor()->dtype = DLDataType{kDLFloat, 16, 1};
  const struct {
    const char* what;
    Operand& a;
    Operand& b;
  } calls[] = {
      {"a is f16", halves, b},
      {"a has 64 columns more than b has rows", longer, b},
      {"b has the other layout", a, other},
  };
  for (const auto& call : calls) {
    const std::string error = kernel.Launch(call.a, call.b, out);
    if (error.empty()) throw std::runtime_error(std::string("expected an error where ") + call.what + ", got none");
    std::printf("%s:\n  %s\n", call.what, error.c_str());
  }
  return 0;
}

int64_t Extent(const char* text) {
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < 1 || value > kMaxExtent)
    throw std::invalid_argument(std::string("expected an extent of at least 1, got ") + text);
  return value;
}

Request Parse(int count, char** words) {
  Request request;
  std::vector<const char*> places;
  for (int index = 1; index < count; ++index) {
    const std::string word = words[index];
    if (word == "--explain-error") {
      request.explain_error = true;
    } else if (word == "--layout") {
      const std::string layout = index + 1 < count ? words[++index] : "";
      if (layout != "tnt" && layout != "ttt") throw std::invalid_argument("expected --layout tnt or ttt, got '" + layout + "'");
      request.b_row_major = layout == "ttt";
    } else if (word.rfind("--", 0) == 0) {
      throw std::invalid_argument("unknown option " + word);
    } else {
      places.push_back(words[index]);
    }
  }
  if (places.size() != 6)
    throw std::invalid_argument("usage: launch_gemm LIBRARY CODE SYMBOL M N K [--layout tnt|ttt] [--explain-error]");
  request.library = places[0];
  request.code = places[1];
  request.symbol = places[2];
  request.m = Extent(places[3]);
  request.n = Extent(places[4]);
  request.k = Extent(places[5]);
  return request;
}

}  // namespace

int main(int count, char** words) {
  try {
    const Request request = Parse(count, words);
    return request.explain_error ? ExplainErrors(request) : Run(request);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "launch_gemm: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "launch_gemm: %s\n", error.what());
    return 1;
  }
}
