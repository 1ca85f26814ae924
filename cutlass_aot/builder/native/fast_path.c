/* SPDX-License-Identifier: Apache-2.0
 *
 * The fast path of a launch from Python: an object that is called as a method would be, without a frame of Python between its
 * caller and the native function. Nothing here is used by a process without Python.
 *
 *     cutlass_aot_fast_path(slow_path, failed)                        a new object
 *     cutlass_aot_open_fast_path(object, function, tensor, recording)  0, or -1 with a Python error
 *
 * Called with positional arguments alone, all exactly of the class `tensor`, where nothing records gradients for them, it calls
 * function(*arguments). (Of other frameworks native code does not know the stream.) Called in any other way, or before it was opened, it is
 * slow_path(*arguments, **named). Where function raises, failed(error, arguments) is called, which raises what the caller is to
 * see. recording() says whether gradients are recorded; then an argument whose requires_grad is true takes the slow path.
 *
 * Python's functions are those of its stable ABI (https://docs.python.org/3/c-api/stable.html, since 3.10), looked up when the
 * first object is made: the library loads without Python, and was built without its headers. Builds without the global lock
 * have other objects: cutlass_aot/runtime/launching/fast_path.py leaves them alone. Every function is called with the lock held.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* ---- Python's stable ABI, as far as it is needed ---- */

typedef struct object {
  intptr_t references;
  struct object *type;
} object;

typedef int (*visit_function)(object *, void *);

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

enum { SLOT_CALL = 50, SLOT_CLEAR = 51, SLOT_DEALLOC = 52, SLOT_DOC = 56, SLOT_TRAVERSE = 71 };
enum { FLAG_DISALLOW_INSTANTIATION = 1 << 7, FLAG_IMMUTABLE = 1 << 8, FLAG_GC = 1 << 14, FLAG_DEFAULT = 1 << 18 };

#define FUNCTIONS(define)                                                            \
  define(object *, PyObject_Call, (object *, object *, object *))                    \
  define(object *, PyObject_CallFunctionObjArgs, (object *, ...))                    \
  define(object *, PyObject_CallObject, (object *, object *))                        \
  define(object *, PyObject_GetAttr, (object *, object *))                           \
  define(object *, PyTuple_GetItem, (object *, intptr_t))                            \
  define(object *, PyType_FromSpec, (struct spec *))                                 \
  define(object *, PyType_GenericAlloc, (object *, intptr_t))                        \
  define(object *, PyUnicode_InternFromString, (const char *))                       \
  define(int, PyException_SetTraceback, (object *, object *))                        \
  define(int, PyObject_IsTrue, (object *))                                           \
  define(intptr_t, PyDict_Size, (object *))                                          \
  define(intptr_t, PyTuple_Size, (object *))                                         \
  define(void, PyErr_Clear, (void))                                                  \
  define(void, PyErr_Fetch, (object **, object **, object **))                       \
  define(void, PyErr_NormalizeException, (object **, object **, object **))          \
  define(void, PyObject_GC_Del, (void *))                                            \
  define(void, PyObject_GC_UnTrack, (void *))                                        \
  define(void, Py_DecRef, (object *))                                                \
  define(void, Py_IncRef, (object *))

#define AS_MEMBER(result, name, parameters) result(*name) parameters;
#define AS_NAME(result, name, parameters) {#name, offsetof(struct python, name)},

static struct python {
  FUNCTIONS(AS_MEMBER)
} python;

static const struct {
  const char *name;
  size_t offset;
} wanted[] = {FUNCTIONS(AS_NAME)};

static int find_python(void) {
  for (size_t index = 0; index < sizeof wanted / sizeof *wanted; index++) {
    void *found = dlsym(RTLD_DEFAULT, wanted[index].name);
    if (!found) return -1;
    *(void **)((char *)&python + wanted[index].offset) = found;
  }
  return 0;
}

/* ---- the object ---- */

struct fast_path {
  object head;
  object *slow_path, *failed;             /* never NULL */
  object *function, *tensor, *recording; /* NULL until it was opened */
};

static object *type;          /* one reference, for good */
static object *requires_grad; /* the name */

/* Whether autograd would have to follow what is done with the arguments; so it is where that cannot be told, and the slow path
 * tells why. */
static int gradients(const struct fast_path *self, object *arguments, intptr_t count) {
  object *answer = python.PyObject_CallObject(self->recording, NULL);
  int recording = answer ? python.PyObject_IsTrue(answer) : -1;
  if (answer) python.Py_DecRef(answer);
  if (!recording) return 0;
  for (intptr_t index = 0; recording > 0 && index < count; index++) {
    answer = python.PyObject_GetAttr(python.PyTuple_GetItem(arguments, index), requires_grad);
    int required = answer ? python.PyObject_IsTrue(answer) : -1;
    if (answer) python.Py_DecRef(answer);
    if (required) recording = -1;
  }
  if (recording > 0) return 0;
  python.PyErr_Clear();
  return 1;
}

static int native(const struct fast_path *self, object *arguments, intptr_t count) {
  for (intptr_t index = 0; index < count; index++)
    if (python.PyTuple_GetItem(arguments, index)->type != self->tensor) return 0;
  return 1;
}

static object *report_failure(const struct fast_path *self, object *arguments) {
  object *kind, *error, *trace;
  python.PyErr_Fetch(&kind, &error, &trace);
  python.PyErr_NormalizeException(&kind, &error, &trace);
  if (trace) python.PyException_SetTraceback(error, trace);
  object *result = python.PyObject_CallFunctionObjArgs(self->failed, error, arguments, NULL);
  python.Py_DecRef(kind);
  python.Py_DecRef(error);
  if (trace) python.Py_DecRef(trace);
  return result;
}

static object *call(object *object_, object *arguments, object *named) {
  struct fast_path *self = (struct fast_path *)object_;
  intptr_t count = python.PyTuple_Size(arguments);
  if (!self->function || count < 1 || (named && python.PyDict_Size(named)) ||
      !native(self, arguments, count) || gradients(self, arguments, count))
    return python.PyObject_Call(self->slow_path, arguments, named);
  object *result = python.PyObject_Call(self->function, arguments, NULL);
  return result ? result : report_failure(self, arguments);
}

static int traverse(object *object_, visit_function visit, void *argument) {
  struct fast_path *self = (struct fast_path *)object_;
  object *held[] = {self->head.type, self->slow_path, self->failed, self->function, self->tensor, self->recording};
  for (size_t index = 0; index < sizeof held / sizeof *held; index++) {
    int stopped = held[index] ? visit(held[index], argument) : 0;
    if (stopped) return stopped;
  }
  return 0;
}

static void drop(object **held) {
  object *dropped = *held;
  *held = NULL;
  if (dropped) python.Py_DecRef(dropped);
}

/* Called where a cycle goes, such as that of the launches of a kernel with the kernel; the rest of the object stays whole. */
static int clear(object *object_) {
  drop(&((struct fast_path *)object_)->function);
  return 0;
}

static void deallocate(object *object_) {
  object *kind = object_->type;
  struct fast_path *self = (struct fast_path *)object_;
  python.PyObject_GC_UnTrack(object_);
  drop(&self->slow_path);
  drop(&self->failed);
  drop(&self->function);
  drop(&self->tensor);
  drop(&self->recording);
  python.PyObject_GC_Del(object_);
  python.Py_DecRef(kind);
}

static int make_type(void) {
  static struct slot slots[] = {
      {SLOT_CALL, call},
      {SLOT_CLEAR, clear},
      {SLOT_DEALLOC, deallocate},
      {SLOT_DOC, "The fast path of a launch; see cutlass_aot.KernelHandle.launch."},
      {SLOT_TRAVERSE, traverse},
      {0, NULL},
  };
  static struct spec spec = {
      "cutlass_aot.ShortWay", sizeof(struct fast_path), 0,
      FLAG_DEFAULT | FLAG_GC | FLAG_DISALLOW_INSTANTIATION | FLAG_IMMUTABLE, slots,
  };
  requires_grad = python.PyUnicode_InternFromString("requires_grad");
  if (requires_grad) type = python.PyType_FromSpec(&spec);
  return type ? 0 : -1;
}

EXPORT object *cutlass_aot_fast_path(object *slow_path, object *failed) {
  if (!type && (find_python() || make_type())) return NULL;
  struct fast_path *made = (struct fast_path *)python.PyType_GenericAlloc(type, 0);
  if (!made) return NULL;
  python.Py_IncRef(slow_path);
  python.Py_IncRef(failed);
  made->slow_path = slow_path;
  made->failed = failed;
  return &made->head;
}

/* Once: what a call is under way with must not go. */
EXPORT int cutlass_aot_open_fast_path(object *object_, object *function, object *tensor, object *recording) {
  struct fast_path *self = (struct fast_path *)object_;
  if (object_->type != type || self->function) return 0;
  python.Py_IncRef(function);
  python.Py_IncRef(tensor);
  python.Py_IncRef(recording);
  self->tensor = tensor;
  self->recording = recording;
  self->function = function;
  return 0;
}
