/* SPDX-License-Identifier: Apache-2.0
 *
 * Native functions as Python objects: called without a frame of Python, and without tvm_ffi's Python package, between the caller
 * and native code. Nothing here is used by a process without Python.
 *
 *     cutlass_aot_python_function(address, tensor_class, fallback, failed)   a new object, or NULL with a Python error
 *     cutlass_aot_python_assign(object, function)                             0, or -1 with a Python error
 *
 * The object calls the function of TVM-FFI at address (a TVMFFISafeCallType), or, while that is 0, none; from assign on it calls
 * what function calls, an object of this kind or one of tvm_ffi. It takes tensors, floats, integers, bytes, None and objects that give
 * their object of TVM-FFI by __chandle__(), and returns None, a bool, an integer, or a function as an object like itself. Native
 * code runs without the interpreter's lock, on the current stream of the first tensor's framework, or on the one that the
 * keyword argument `stream`, a cudaStream_t as an integer, names.
 *
 * With a fallback, which is not None, it takes tensors, floats and None alone. It calls fallback(*arguments, **named) where there are
 * other arguments, or tensors that autograd would have to follow, or no function, or where the function returns false. Where the
 * function raises, it calls failed(error, arguments), which raises what the caller is to see.
 *
 * tensor_class(class) says of a class whether native code may take its instances: None, or a tuple of the address of its
 * DLPackExchangeAPI (dlpack.h; https://dmlc.github.io/dlpack/latest/c_api.html) and of a function that tells whether gradients
 * are recorded; then its instances have an attribute requires_grad.
 *
 * Python's functions are those of its stable ABI (https://docs.python.org/3/c-api/stable.html, since 3.10), looked up when the
 * first object is made: the library loads without Python, and was built without its headers. Builds without the global lock
 * have other objects: cutlass_aot/runtime/launching/native.py uses none of this there. Every function is called with the lock held.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "arguments.h"

#define MAX_ARGUMENTS 320
#define MAX_TENSORS 24
#define MAX_CLASSES 8

/* ---- Python's stable ABI, as far as it is needed ---- */

typedef struct object {
  intptr_t references;
  struct object *type;
} object;

typedef int (*visit_function)(object *, void *);

struct method {
  const char *name;
  object *(*function)(object *, object *);
  int flags;
  const char *description;
};

struct slot {
  int number;
  void *function;
};

struct spec {
  const char *name;
  int size, item_size;
  unsigned flags;
  struct slot *slots;
};

enum { METHOD_WITHOUT_ARGUMENTS = 4 };
enum { SLOT_CALL = 50, SLOT_DEALLOC = 52, SLOT_DOC = 56, SLOT_METHODS = 64, SLOT_TRAVERSE = 71 };
enum { FLAG_DISALLOW_INSTANTIATION = 1 << 7, FLAG_IMMUTABLE = 1 << 8, FLAG_GC = 1 << 14, FLAG_DEFAULT = 1 << 18 };

#define FUNCTIONS(define)                                                            \
  define(double, PyFloat_AsDouble, (object *))                                       \
  define(int, PyBytes_AsStringAndSize, (object *, char **, intptr_t *))              \
  define(int, PyErr_ExceptionMatches, (object *))                                    \
  define(int, PyException_SetTraceback, (object *, object *))                        \
  define(int, PyObject_IsTrue, (object *))                                           \
  define(int64_t, PyLong_AsLongLong, (object *))                                     \
  define(intptr_t, PyDict_Size, (object *))                                          \
  define(intptr_t, PyTuple_Size, (object *))                                         \
  define(object *, PyBool_FromLong, (long))                                          \
  define(object *, PyDict_GetItemString, (object *, const char *))                   \
  define(object *, PyErr_Format, (object *, const char *, ...))                      \
  define(object *, PyErr_Occurred, (void))                                           \
  define(object *, PyLong_FromLongLong, (int64_t))                                   \
  define(object *, PyObject_Call, (object *, object *, object *))                    \
  define(object *, PyObject_CallFunctionObjArgs, (object *, ...))                    \
  define(object *, PyObject_CallMethod, (object *, const char *, const char *, ...)) \
  define(object *, PyObject_CallObject, (object *, object *))                        \
  define(object *, PyObject_GetAttr, (object *, object *))                           \
  define(object *, PyTuple_GetItem, (object *, intptr_t))                            \
  define(object *, PyType_FromSpec, (struct spec *))                                 \
  define(object *, PyType_GenericAlloc, (object *, intptr_t))                        \
  define(object *, PyUnicode_DecodeUTF8, (const char *, intptr_t, const char *))     \
  define(object *, PyUnicode_InternFromString, (const char *))                       \
  define(void *, PyEval_SaveThread, (void))                                          \
  define(void *, PyLong_AsVoidPtr, (object *))                                       \
  define(void, PyErr_Clear, (void))                                                  \
  define(void, PyErr_Fetch, (object **, object **, object **))                       \
  define(void, PyErr_NormalizeException, (object **, object **, object **))          \
  define(void, PyErr_SetObject, (object *, object *))                                \
  define(void, PyEval_RestoreThread, (void *))                                       \
  define(void, PyObject_GC_Del, (void *))                                            \
  define(void, PyObject_GC_UnTrack, (void *))                                        \
  define(void, Py_DecRef, (object *))                                                \
  define(void, Py_IncRef, (object *))

#define OBJECTS(define)     \
  define(PyBytes_Type)      \
  define(PyFloat_Type)      \
  define(PyLong_Type)       \
  define(_Py_NoneStruct)    \
  define(PyExc_Exception)   \
  define(PyExc_MemoryError) \
  define(PyExc_RuntimeError)\
  define(PyExc_TypeError)   \
  define(PyExc_ValueError)

#define AS_FUNCTION(result, name, parameters) result(*name) parameters;
#define AS_OBJECT(name) object *name;
#define AS_FUNCTION_NAME(result, name, parameters) {#name, offsetof(struct python, name)},
#define AS_OBJECT_NAME(name) {#name, offsetof(struct python, name)},

static struct python {
  FUNCTIONS(AS_FUNCTION)
  OBJECTS(AS_OBJECT)
} python;

static const struct {
  const char *name;
  size_t offset;
} needed[] = {FUNCTIONS(AS_FUNCTION_NAME) OBJECTS(AS_OBJECT_NAME)};

static int find_python(void) {
  for (size_t index = 0; index < sizeof needed / sizeof *needed; index++) {
    void *found = dlsym(RTLD_DEFAULT, needed[index].name);
    if (!found) return -1;
    /* Exceptions are variables that point to their objects; the others are objects themselves. */
    if (!strncmp(needed[index].name, "PyExc_", strlen("PyExc_"))) found = *(void **)found;
    *(void **)((char *)&python + needed[index].offset) = found;
  }
  return 0;
}

/* ---- the object ---- */

struct native_function {
  object head;
  TVMFFIObjectHandle function; /* NULL until one is assigned */
  object *fallback, *failed;   /* both NULL, or neither */
};

static object *type;          /* one reference, for good; and so are these */
static object *tensor_class;
static object *requires_grad;

static struct tensor_class {
  object *class, *recording;
  const DLPackExchangeAPI *exchange;
} classes[MAX_CLASSES];

static int class_count;

/* What was said of a class of tensors; NULL if native code must not take its instances, or after an error. */
static const struct tensor_class *find_class(object *class) {
  for (int index = 0; index < class_count; index++)
    if (classes[index].class == class) return &classes[index];
  object *answer = python.PyObject_CallFunctionObjArgs(tensor_class, class, NULL);
  const struct tensor_class *found = NULL;
  if (answer && answer != python._Py_NoneStruct && class_count < MAX_CLASSES) {
    object *address = python.PyTuple_GetItem(answer, 0), *recording = python.PyTuple_GetItem(answer, 1);
    const DLPackExchangeAPI *exchange = address ? python.PyLong_AsVoidPtr(address) : NULL;
    if (exchange && recording) {
      python.Py_IncRef(class);
      python.Py_IncRef(recording);
      classes[class_count] = (struct tensor_class){class, recording, exchange};
      found = &classes[class_count++];
    }
  }
  if (answer) python.Py_DecRef(answer);
  return found;
}

/* ---- arguments ---- */

struct arguments {
  int count, tensor_count;
  int recording; /* whether gradients are recorded: -1 while that is unknown */
  DLDevice device; /* of the first tensor on a GPU */
  int has_stream;
  void *stream;
  TVMFFIAny given[MAX_ARGUMENTS];
  DLTensor tensors[MAX_TENSORS];
  TVMFFIByteArray bytes[MAX_TENSORS];
};

/* Whether autograd would have to follow what is done with a tensor; -1 with an error. */
static int needs_gradient(struct arguments *arguments, const struct tensor_class *class, object *tensor) {
  if (arguments->recording < 0) {
    object *answer = python.PyObject_CallObject(class->recording, NULL);
    arguments->recording = answer ? python.PyObject_IsTrue(answer) : -1;
    if (answer) python.Py_DecRef(answer);
  }
  if (arguments->recording <= 0) return arguments->recording;
  object *answer = python.PyObject_GetAttr(tensor, requires_grad);
  int required = answer ? python.PyObject_IsTrue(answer) : -1;
  if (answer) python.Py_DecRef(answer);
  return required;
}

/* Note which GPU a tensor is on; returns whether it is on one. Kernels ask for the stream of a device of type kDLCUDA. */
static int see_device(struct arguments *arguments, const DLTensor *tensor) {
  if (tensor->device.device_type != kDLCUDA && tensor->device.device_type != kDLCUDAManaged) return 0;
  if (arguments->device.device_type == kDLCPU) arguments->device = (DLDevice){kDLCUDA, tensor->device.device_id};
  return 1;
}

static int take_tensor(struct arguments *arguments, const struct tensor_class *class, object *tensor, TVMFFIAny *given) {
  if (arguments->tensor_count == MAX_TENSORS) return -1;
  DLTensor *taken = &arguments->tensors[arguments->tensor_count++];
  if (class->exchange->dltensor_from_py_object_no_sync(tensor, taken)) return -1;
  if (see_device(arguments, taken) && !arguments->has_stream) {
    if (class->exchange->current_work_stream(kDLCUDA, arguments->device.device_id, &arguments->stream)) return -1;
    arguments->has_stream = 1;
  }
  given->type_index = kTVMFFIDLTensorPtr;
  given->v_ptr = taken;
  return 0;
}

static int take_bytes(struct arguments *arguments, object *bytes, TVMFFIAny *given) {
  if (arguments->tensor_count == MAX_TENSORS) return -1;
  TVMFFIByteArray *taken = &arguments->bytes[arguments->tensor_count++];
  char *data;
  intptr_t size;
  if (python.PyBytes_AsStringAndSize(bytes, &data, &size)) return -1;
  taken->data = data;
  taken->size = (size_t)size;
  given->type_index = kTVMFFIByteArrayPtr;
  given->v_ptr = taken;
  return 0;
}

static int take_function(const struct native_function *argument, TVMFFIAny *given) {
  if (!argument->function) return -1;
  given->type_index = kTVMFFIFunction;
  given->v_obj = argument->function;
  return 0;
}

/* An object of TVM-FFI, which the argument keeps alive. */
static int take_object(object *argument, TVMFFIAny *given) {
  object *handle = python.PyObject_CallMethod(argument, "__chandle__", NULL);
  void *taken = handle ? python.PyLong_AsVoidPtr(handle) : NULL;
  if (handle) python.Py_DecRef(handle);
  if (!taken) return -1;
  given->type_index = ((const TVMFFIObject *)taken)->type_index;
  given->v_obj = taken;
  return 0;
}

/* 0, or -1 if native code cannot take the argument, perhaps with a Python error. */
static int take(const struct native_function *self, struct arguments *arguments, object *argument) {
  TVMFFIAny *given = &arguments->given[arguments->count++];
  given->zero_padding = 0;
  if (argument->type == python.PyFloat_Type) {
    given->type_index = kTVMFFIFloat;
    given->v_float64 = python.PyFloat_AsDouble(argument);
    return 0;
  }
  if (argument == python._Py_NoneStruct) {
    given->type_index = kTVMFFINone;
    given->v_int64 = 0;
    return 0;
  }
  if (!self->fallback) {
    if (argument->type == type) return take_function((const struct native_function *)argument, given);
    if (argument->type == python.PyLong_Type) {
      given->type_index = kTVMFFIInt;
      given->v_int64 = python.PyLong_AsLongLong(argument);
      return given->v_int64 == -1 && python.PyErr_Occurred() ? -1 : 0;
    }
    if (argument->type == python.PyBytes_Type) return take_bytes(arguments, argument, given);
  }
  const struct tensor_class *class = find_class(argument->type);
  if (class) return self->fallback && needs_gradient(arguments, class, argument) ? -1 : take_tensor(arguments, class, argument, given);
  if (self->fallback || python.PyErr_Occurred() || take_object(argument, given)) return -1;
  if (given->type_index == kTVMFFITensor) see_device(arguments, tensor_of(given));
  return 0;
}

static int take_all(const struct native_function *self, struct arguments *arguments, object *tuple) {
  intptr_t count = python.PyTuple_Size(tuple);
  arguments->count = arguments->tensor_count = 0;
  arguments->recording = -1;
  arguments->device = (DLDevice){kDLCPU, 0};
  arguments->has_stream = 0;
  arguments->stream = NULL;
  if (count < 1 || count > MAX_ARGUMENTS) return -1;
  for (intptr_t index = 0; index < count; index++)
    if (take(self, arguments, python.PyTuple_GetItem(tuple, index))) return -1;
  return 0;
}

/* Take the stream from the arguments by name; they may name nothing else. */
static int take_stream(struct arguments *arguments, object *named) {
  object *stream = python.PyDict_Size(named) == 1 ? python.PyDict_GetItemString(named, "stream") : NULL;
  if (!stream) return -1;
  if (arguments->device.device_type == kDLCPU) arguments->device = (DLDevice){kDLCUDA, 0};
  arguments->has_stream = 1;
  arguments->stream = python.PyLong_AsVoidPtr(stream);
  return !arguments->stream && python.PyErr_Occurred() ? -1 : 0;
}

/* ---- calls ---- */

/* Make Python's error of what native code raised. */
static void set_error(void) {
  TVMFFIObjectHandle raised = NULL;
  TVMFFIErrorMoveFromRaised(&raised);
  if (!raised) {
    /* It may have been raised in Python, which native code called. */
    if (!python.PyErr_Occurred()) python.PyErr_Format(python.PyExc_RuntimeError, "native code failed without a message");
    return;
  }
  const TVMFFIErrorCell *cell = (const TVMFFIErrorCell *)((const TVMFFIObject *)raised + 1);
  const struct {
    const char *name;
    object *class;
  } kinds[] = {{"MemoryError", python.PyExc_MemoryError}, {"TypeError", python.PyExc_TypeError}, {"ValueError", python.PyExc_ValueError}};
  object *class = python.PyExc_RuntimeError;
  for (size_t index = 0; index < sizeof kinds / sizeof *kinds; index++)
    if (cell->kind.size == strlen(kinds[index].name) && !memcmp(cell->kind.data, kinds[index].name, cell->kind.size))
      class = kinds[index].class;
  object *message = python.PyUnicode_DecodeUTF8(cell->message.data, (intptr_t)cell->message.size, "replace");
  if (message) {
    python.PyErr_SetObject(class, message);
    python.Py_DecRef(message);
  }
  TVMFFIObjectDecRef(raised);
}

static object *make(TVMFFIObjectHandle function, object *fallback, object *failed);

/* The result as a Python object; it is owned, so a function moves into the object. */
static object *as_python(const TVMFFIAny *result) {
  switch (result->type_index) {
    case kTVMFFINone: python.Py_IncRef(python._Py_NoneStruct); return python._Py_NoneStruct;
    case kTVMFFIBool: return python.PyBool_FromLong(result->v_int64 != 0);
    case kTVMFFIInt: return python.PyLong_FromLongLong(result->v_int64);
    case kTVMFFIFunction: return make(result->v_obj, NULL, NULL);
  }
  if (result->type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(result->v_obj);
  return python.PyErr_Format(python.PyExc_TypeError, "native code returned a value of TVM-FFI's type %d", (int)result->type_index);
}

/* 0, or -1 with a Python error. */
static int call_native(TVMFFIObjectHandle function, struct arguments *arguments, TVMFFIAny *result) {
  void *before = NULL;
  *result = (TVMFFIAny){.type_index = kTVMFFINone};
  /* Another thread may assign another function meanwhile. */
  TVMFFIObjectIncRef(function);
  void *thread = python.PyEval_SaveThread();
  int failed = arguments->has_stream ? TVMFFIEnvSetStream(arguments->device.device_type, arguments->device.device_id, arguments->stream, &before) : 0;
  if (!failed) {
    failed = TVMFFIFunctionCall(function, arguments->given, arguments->count, result);
    if (arguments->has_stream && before != arguments->stream)
      TVMFFIEnvSetStream(arguments->device.device_type, arguments->device.device_id, before, NULL);
  }
  python.PyEval_RestoreThread(thread);
  TVMFFIObjectDecRef(function);
  if (failed) set_error();
  return failed ? -1 : 0;
}

static object *report_failure(const struct native_function *self, object *tuple) {
  object *kind, *error, *trace;
  python.PyErr_Fetch(&kind, &error, &trace);
  python.PyErr_NormalizeException(&kind, &error, &trace);
  if (trace) python.PyException_SetTraceback(error, trace);
  object *result = python.PyObject_CallFunctionObjArgs(self->failed, error, tuple, NULL);
  python.Py_DecRef(kind);
  python.Py_DecRef(error);
  if (trace) python.Py_DecRef(trace);
  return result;
}

static object *fall_back(const struct native_function *self, object *tuple, object *named) {
  if (python.PyErr_Occurred()) {
    if (!python.PyErr_ExceptionMatches(python.PyExc_Exception)) return NULL; /* an interrupt, say */
    python.PyErr_Clear();
  }
  return python.PyObject_Call(self->fallback, tuple, named);
}

static object *refuse_call(void) {
  if (python.PyErr_Occurred()) return NULL;
  return python.PyErr_Format(python.PyExc_TypeError, "native code cannot take these arguments");
}

static object *call(object *object_, object *tuple, object *named) {
  const struct native_function *self = (const struct native_function *)object_;
  struct arguments arguments;
  TVMFFIAny result;
  int by_name = named && python.PyDict_Size(named);
  if (self->fallback) {
    if (by_name || !self->function || take_all(self, &arguments, tuple)) return fall_back(self, tuple, named);
    if (call_native(self->function, &arguments, &result)) return report_failure(self, tuple);
    if (result.type_index == kTVMFFIBool && !result.v_int64) return fall_back(self, tuple, named);
    return as_python(&result);
  }
  if (!self->function || take_all(self, &arguments, tuple) || (by_name && take_stream(&arguments, named))) return refuse_call();
  return call_native(self->function, &arguments, &result) ? NULL : as_python(&result);
}

static object *handle_of(object *object_, object *nothing) {
  (void)nothing;
  return python.PyLong_FromLongLong((int64_t)(intptr_t)((const struct native_function *)object_)->function);
}

/* ---- the object's life ---- */

static int traverse(object *object_, visit_function visit, void *argument) {
  const struct native_function *self = (const struct native_function *)object_;
  object *held[] = {self->head.type, self->fallback, self->failed};
  for (size_t index = 0; index < sizeof held / sizeof *held; index++) {
    int stopped = held[index] ? visit(held[index], argument) : 0;
    if (stopped) return stopped;
  }
  return 0;
}

static void deallocate(object *object_) {
  object *kind = object_->type;
  struct native_function *self = (struct native_function *)object_;
  python.PyObject_GC_UnTrack(object_);
  if (self->fallback) python.Py_DecRef(self->fallback);
  if (self->failed) python.Py_DecRef(self->failed);
  if (self->function) TVMFFIObjectDecRef(self->function);
  python.PyObject_GC_Del(object_);
  python.Py_DecRef(kind);
}

static int make_type(void) {
  static struct method methods[] = {
      {"__chandle__", handle_of, METHOD_WITHOUT_ARGUMENTS, "The address of its object of TVM-FFI."},
      {NULL, NULL, 0, NULL},
  };
  /* Without a function that clears it: what holds an object in a cycle, such as a kernel's attributes, does. */
  static struct slot slots[] = {
      {SLOT_CALL, call},
      {SLOT_DEALLOC, deallocate},
      {SLOT_DOC, "A native function; see cutlass_aot.KernelHandle.launch and cutlass_aot.Bundle.gemm."},
      {SLOT_METHODS, methods},
      {SLOT_TRAVERSE, traverse},
      {0, NULL},
  };
  static struct spec spec = {
      "cutlass_aot.NativeFunction", sizeof(struct native_function), 0,
      FLAG_DEFAULT | FLAG_GC | FLAG_DISALLOW_INSTANTIATION | FLAG_IMMUTABLE, slots,
  };
  requires_grad = python.PyUnicode_InternFromString("requires_grad");
  if (requires_grad) type = python.PyType_FromSpec(&spec);
  return type ? 0 : -1;
}

/* The function is moved into the object. */
static object *make(TVMFFIObjectHandle function, object *fallback, object *failed) {
  struct native_function *made = (struct native_function *)python.PyType_GenericAlloc(type, 0);
  if (!made) {
    if (function) TVMFFIObjectDecRef(function);
    return NULL;
  }
  made->function = function;
  if (fallback) {
    python.Py_IncRef(fallback);
    python.Py_IncRef(failed);
    made->fallback = fallback;
    made->failed = failed;
  }
  return &made->head;
}

EXPORT object *cutlass_aot_python_function(void *address, object *of_class, object *fallback, object *failed) {
  if (!type) {
    if (find_python() || make_type()) return NULL;
    python.Py_IncRef(of_class);
    tensor_class = of_class;
  }
  TVMFFIObjectHandle function = NULL;
  if (address && TVMFFIFunctionCreate(NULL, (TVMFFISafeCallType)address, NULL, &function)) {
    set_error();
    return NULL;
  }
  return make(function, fallback == python._Py_NoneStruct ? NULL : fallback, failed);
}

EXPORT int cutlass_aot_python_assign(object *object_, object *function) {
  struct native_function *self = (struct native_function *)object_;
  TVMFFIAny assigned;
  if (object_->type != type) return 0; /* another launcher's: it goes on without */
  if (take_object(function, &assigned) || assigned.type_index != kTVMFFIFunction) {
    refuse_call();
    return -1;
  }
  TVMFFIObjectHandle before = self->function;
  TVMFFIObjectIncRef(assigned.v_obj);
  self->function = assigned.v_obj;
  if (before) TVMFFIObjectDecRef(before);
  return 0;
}
