/* Calls functions of a bundle's libraries from a process without Python, and prints what becomes of it.
 *
 *     call_kernel LIBTVM_FFI LAUNCHER LIBRARY < COMMANDS
 *
 * It is the same program for every host: the test compiles it for two, and compares what they print. A line is a command:
 *
 *     find launcher|library NAME             whether the library has the symbol
 *     code NAME FILE                         fills the slot with a file, as whoever loads the library has to
 *     set NAME VALUE                         sets a variable of the environment
 *     stack BYTE                             what the next call finds where the stack was not written
 *     call NAME ARGUMENT...                  calls the exported function
 *     launch NAME NUMBERS ARGUMENT...        makes a launch function of it with the launcher, and calls that
 *
 * NUMBERS are those that the launcher asks for, separated by commas. An argument is an integer, or a tensor
 *
 *     TYPE:BITS:LANES:DEVICE_TYPE:DEVICE:ADDRESS:EXTENTS:STRIDES
 *
 * with DLPack's numbers; nothing looks at the address. The answer to a call is "good", or the error's kind and message.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#define MAX_ARGUMENTS 256
#define MAX_RANK 8
#define STACK_BYTES (64 << 10)

static void die(const char *what, const char *why) {
  fprintf(stderr, "call_kernel: %s: %s\n", what, why ? why : "no reason given");
  exit(2);
}

static void *open_library(const char *path, int mode) {
  void *library = dlopen(path, RTLD_NOW | mode);
  if (!library) die(path, dlerror());
  return library;
}

static void *need(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) die(name, dlerror());
  return found;
}

static void *tvm_ffi;
static __typeof__(&TVMFFIErrorMoveFromRaised) move_raised;
static __typeof__(&TVMFFIObjectDecRef) release;
static __typeof__(&TVMFFIFunctionCall) call_function;

static void answer(int status) {
  if (!status) {
    puts("good");
    return;
  }
  TVMFFIObjectHandle error = NULL;
  move_raised(&error);
  if (!error) die("a call", "it failed and left no error");
  /* An error object is its header, then the cell (c_api.h). */
  const TVMFFIErrorCell *cell = (const TVMFFIErrorCell *)((const TVMFFIObject *)error + 1);
  printf("%.*s: %.*s\n", (int)cell->kind.size, cell->kind.data, (int)cell->message.size, cell->message.data);
  release(error);
}

/* ---- arguments ---- */

struct tensor {
  DLTensor dl;
  int64_t shape[MAX_RANK], strides[MAX_RANK];
};

static int integers(char *text, int64_t *numbers, int most) {
  int count = 0;
  for (char *rest = text; *rest;) {
    if (count == most) die(text, "too many numbers");
    numbers[count++] = strtoll(rest, &rest, 0);
    if (*rest == ',') rest++;
    else if (*rest) die(text, "expected numbers separated by commas");
  }
  return count;
}

static TVMFFIAny argument(char *word, struct tensor *tensor) {
  TVMFFIAny made = {0};
  char *fields[8];
  int count = 0;
  for (char *field = word; field && count < 8; count++) {
    fields[count] = field;
    field = strchr(field, ':');
    if (field) *field++ = 0;
  }
  if (count == 1) {
    made.type_index = kTVMFFIInt;
    made.v_int64 = strtoll(word, NULL, 0);
    return made;
  }
  if (count != 8) die(word, "expected the eight fields of a tensor");
  int64_t numbers[6];
  for (int field = 0; field < 6; field++) numbers[field] = strtoll(fields[field], NULL, 0);
  int rank = integers(fields[6], tensor->shape, MAX_RANK);
  if (integers(fields[7], tensor->strides, MAX_RANK) != rank) die(word, "expected as many strides as extents");
  tensor->dl = (DLTensor){
      .data = (void *)(uintptr_t)numbers[5],
      .device = {(DLDeviceType)numbers[3], (int32_t)numbers[4]},
      .ndim = rank,
      .dtype = {(uint8_t)numbers[0], (uint8_t)numbers[1], (uint16_t)numbers[2]},
      .shape = tensor->shape,
      .strides = tensor->strides,
  };
  made.type_index = kTVMFFIDLTensorPtr;
  made.v_ptr = &tensor->dl;
  return made;
}

/* ---- commands ---- */

/* Leave a byte all over the part of the stack that a call will use. */
__attribute__((noinline)) static void write_stack(int byte) {
  volatile char part[STACK_BYTES];
  for (size_t index = 0; index < sizeof part; index++) part[index] = (char)byte;
}

static void fill(void *library, const char *name, const char *path) {
  struct {
    void *data;
    uint64_t size;
  } *slot = need(library, name);
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) die(path, "cannot be read");
  uint64_t size = (uint64_t)ftell(file);
  rewind(file);
  void *data = malloc(size);
  if (!data || fread(data, 1, size, file) != size) die(path, "cannot be read");
  fclose(file);
  slot->size = size;
  __atomic_store_n(&slot->data, data, __ATOMIC_RELEASE);
}

static TVMFFIObjectHandle make_launch(void *launcher, TVMFFISafeCallType kernel, char *text) {
  int64_t numbers[MAX_ARGUMENTS];
  TVMFFIAny given[MAX_ARGUMENTS] = {{0}}, result = {0};
  numbers[0] = (int64_t)(uintptr_t)kernel;
  int count = 1 + integers(text, numbers + 1, MAX_ARGUMENTS - 1);
  for (int index = 0; index < count; index++) {
    given[index].type_index = kTVMFFIInt;
    given[index].v_int64 = numbers[index];
  }
  TVMFFISafeCallType make = (TVMFFISafeCallType)need(launcher, "__tvm_ffi_cutlass_aot_launcher");
  if (make(NULL, given, count, &result)) {
    answer(-1);
    die(text, "the launcher refused its numbers");
  }
  return result.v_obj;
}

static void run(char *line, void *launcher, void *library) {
  static int stack_byte;
  static struct tensor tensors[MAX_ARGUMENTS];
  char *words[MAX_ARGUMENTS];
  int count = 0;
  for (char *word = strtok(line, " \n"); word && count < MAX_ARGUMENTS; word = strtok(NULL, " \n")) words[count++] = word;
  if (count < 2) die(line, "expected a command");
  int launching = !strcmp(words[0], "launch"), first = launching ? 3 : 2;
  if (!strcmp(words[0], "find") && count == 3) {
    puts(dlsym(strcmp(words[1], "launcher") ? library : launcher, words[2]) ? "found" : "missing");
    return;
  }
  if (!strcmp(words[0], "code") && count == 3) {
    fill(library, words[1], words[2]);
    return;
  }
  if (!strcmp(words[0], "stack")) {
    stack_byte = atoi(words[1]);
    return;
  }
  if (!strcmp(words[0], "set") && count == 3) {
    setenv(words[1], words[2], 1);
    return;
  }
  if ((strcmp(words[0], "call") && !launching) || count < first) die(words[0], "not a command");
  TVMFFIAny given[MAX_ARGUMENTS], result = {0};
  TVMFFISafeCallType kernel = (TVMFFISafeCallType)need(library, words[1]);
  for (int index = first; index < count; index++) given[index - first] = argument(words[index], &tensors[index]);
  if (!launching) {
    write_stack(stack_byte);
    answer(kernel(NULL, given, count - first, &result));
    return;
  }
  TVMFFIObjectHandle function = make_launch(launcher, kernel, words[2]);
  write_stack(stack_byte);
  answer(call_function(function, given, count - first, &result));
  release(function);
}

int main(int count, char **words) {
  if (count != 4) die("usage", "call_kernel LIBTVM_FFI LAUNCHER LIBRARY < COMMANDS");
  tvm_ffi = open_library(words[1], RTLD_GLOBAL);
  move_raised = (__typeof__(move_raised))need(tvm_ffi, "TVMFFIErrorMoveFromRaised");
  release = (__typeof__(release))need(tvm_ffi, "TVMFFIObjectDecRef");
  call_function = (__typeof__(call_function))need(tvm_ffi, "TVMFFIFunctionCall");
  void *launcher = open_library(words[2], RTLD_LOCAL), *library = open_library(words[3], RTLD_LOCAL);
  static char line[1 << 16];
  while (fgets(line, sizeof line, stdin)) {
    run(line, launcher, library);
    fflush(stdout); /* a driver that is loaded prints too */
  }
  return 0;
}
