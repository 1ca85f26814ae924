"""Compiling kernels: the worker processes, what they are sent, and checks of what they return."""
