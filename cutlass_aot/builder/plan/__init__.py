"""The plan of a build: which kernels, which of them are kept, and what is to be compiled."""
