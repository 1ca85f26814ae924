"""The built-in SM90 GEMM: its generator, its plan of shared memory, its kernel and epilogue."""
