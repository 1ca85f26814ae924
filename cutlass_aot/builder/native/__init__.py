"""The native side of a bundle: the shim and the launcher in C, and what they export and need."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
"""Directory of the sources in C."""

SHIM_SYMBOLS = frozenset(
    {
        "CuteDSLRT_TVMFFISetRaisedCudaError",
        "CuteDSLRT_TVMFFISetRaisedCudaLaunchError",
        "_cuKernelGetAttribute",
        "_cuTensorMapEncodeTiled",
        "_cudaDeviceGetAttribute",
        "_cudaFuncSetAttribute",
        "_cudaGetDevice",
        "_cudaKernelSetAttributeForDevice",
        "_cudaLaunchKernelEx",
        "_cudaLibraryGetKernel",
        "_cudaLibraryLoadData",
        "_cudaSetDevice",
        "cuda_dialect_assert_success",
        "cuda_dialect_init_library_once",
        "cuda_dialect_unload_library_once",
    }
)
"""Functions that ``shim.c`` defines for compiled objects."""

TVM_FFI_SYMBOLS = frozenset(
    {
        "TVMFFIEnvGetStream",
        "TVMFFIEnvSetStream",
        "TVMFFIErrorMoveFromRaised",
        "TVMFFIErrorSetRaisedFromCStr",
        "TVMFFIErrorSetRaisedFromCStrParts",
        "TVMFFIFunctionCall",
        "TVMFFIFunctionCreate",
        "TVMFFIObjectDecRef",
        "TVMFFIObjectIncRef",
    }
)
"""Functions of libtvm_ffi that compiled objects, the shim and the launcher call."""

CUDA_DRIVER = "12.0"
"""The oldest CUDA version whose driver has all functions that ``shim.c`` calls."""

GLIBC = "2.28"
"""Version of the C library linked against; a bundle records the older version that its libraries need."""
