"""The built-in TF32 GEMM: its generator, and its operators for SM90 and SM100."""

NAME = "tf32_gemm"
"""Name of the generator."""
