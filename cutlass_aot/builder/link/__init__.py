"""Linking: which kernels share a library, and libraries for every host."""
