"""Kernels that come with this package, each declared with :func:`cutlass_aot.kernel`.

``swiglu.py`` declares what ``swiglu_kernel.py`` computes, and so on: the first kind of module imports no DSL
and is what a program that launches imports, the second kind is imported where a kernel is compiled.
"""
