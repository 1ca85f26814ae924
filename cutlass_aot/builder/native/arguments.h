/* SPDX-License-Identifier: Apache-2.0
 *
 * What the launcher's sources share: arguments and results of TVM-FFI's functions.
 */
#ifndef CUTLASS_AOT_ARGUMENTS_H
#define CUTLASS_AOT_ARGUMENTS_H
#include <tvm/ffi/c_api.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_EXTENT INT32_MAX
#define MAX_OPERANDS 16
#define MAX_RANK 8
#define MAX_STRIDE_BYTES ((INT64_C(1) << 40) - 1) /* of a TMA descriptor: cuTensorMapEncodeTiled */

static inline int refuse(const char *kind, const char *text) {
  TVMFFIErrorSetRaisedFromCStr(kind, text);
  return -1;
}

/* The tensor of an argument, NULL if it is none. A tensor object is its header, then the tensor (c_api.h, kTVMFFITensor). */
static inline const DLTensor *tensor_of(const TVMFFIAny *argument) {
  if (argument->type_index == kTVMFFITensor) return (const DLTensor *)((const TVMFFIObject *)argument->v_obj + 1);
  if (argument->type_index == kTVMFFIDLTensorPtr) return argument->v_ptr;
  return NULL;
}

static inline void return_function(TVMFFIAny *result, TVMFFIObjectHandle function) {
  result->type_index = kTVMFFIFunction;
  result->zero_padding = 0;
  result->v_obj = function;
}

static inline void return_false(TVMFFIAny *result) {
  result->type_index = kTVMFFIBool;
  result->zero_padding = 0;
  result->v_int64 = 0;
}

static inline void return_integer(TVMFFIAny *result, int64_t value) {
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = value;
}

#endif
