"""The assembly of kernels, which takes half a second each, once for all tests of a process."""

from functools import lru_cache

from tools.check.instructions import disassemble

listing = lru_cache(maxsize=64)(disassemble)
"""The GPU assembly of an object; see :func:`tools.check.instructions.disassemble`."""
