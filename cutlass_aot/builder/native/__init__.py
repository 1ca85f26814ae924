"""The native side of the builder: our shim and launcher in C, and linking."""

SHIM_SYMBOLS = frozenset(
    {
        "CuteDSLRT_TVMFFISetRaisedCudaError",
        "CuteDSLRT_TVMFFISetRaisedCudaLaunchError",
        "_cuKernelGetAttribute",
        "_cudaDeviceGetAttribute",
        "_cudaFuncSetAttribute",
        "_cudaGetDevice",
        "_cudaKernelSetAttributeForDevice",
        "_cudaLaunchKernelEx",
        "_cudaLibraryGetKernel",
        "_cudaLibraryLoadData",
        "_cudaSetDevice",
        "cuda_dialect_init_library_once",
        "cuda_dialect_unload_library_once",
    }
)
"""Functions that ``shim.c`` gives to compiled objects."""

GLIBC = "2.28"
"""Oldest C library the linked libraries load with: what manylinux_2_28 promises."""
