"""Checks before a build: undeclared parameters of a kernel, and a test of the toolchain."""
