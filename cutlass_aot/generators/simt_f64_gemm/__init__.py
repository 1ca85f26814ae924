"""The built-in FP64 GEMM: its generator and its kernel."""
