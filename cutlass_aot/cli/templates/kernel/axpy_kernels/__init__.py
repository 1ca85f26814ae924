"""A kernel of one's own for cutlass-aot: out = alpha * x + y."""
