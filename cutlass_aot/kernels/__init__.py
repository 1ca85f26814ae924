"""Kernels that come with this package, each declared with :func:`cutlass_aot.kernel`.

``swiglu.py`` declares what ``swiglu_kernel.py`` computes, and so on. A program that launches imports the
first, which imports no DSL; the second is imported where a kernel is compiled.
"""
