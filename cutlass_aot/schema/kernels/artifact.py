"""The result of compiling one kernel: digests, facts, and the symbols that its object exports."""

import sys
from typing import Annotated

from cutlass_aot.schema.codec import Digest, Key, within
from cutlass_aot.schema.named_tuple import NamedTuple

EXPORT_PREFIX = "__tvm_ffi_"
"""Prefix of a compiled function's exported symbol: TVM-FFI's calling convention."""

CODE_PREFIX = "cutlass_aot_code_"
"""Prefix of the exported variable that takes the address and size of a function's GPU code."""

LAUNCHER_SYMBOLS = (
    f"{EXPORT_PREFIX}cutlass_aot_dispatch_cache",
    f"{EXPORT_PREFIX}cutlass_aot_launcher",
    f"{EXPORT_PREFIX}cutlass_aot_linear",
    f"{EXPORT_PREFIX}cutlass_aot_select",
    "cutlass_aot_python_assign",
    "cutlass_aot_python_function",
)
"""Exports of a bundle's launcher, whose sources are in ``builder/native``."""


def symbol_of(digest: str) -> str:
    """Name of the compiled function of a kernel with this digest."""
    return f"cutlass_aot_{digest[:24]}"


class Facts(NamedTuple):
    """Facts read from the compiled code. Equal objects have equal facts.

    Attributes:
        cubin_target: GPU code target in the cubin, such as ``sm_90a``.
        ptxas_version: version of the assembler that wrote the cubin, such as ``12.9``.
        registers: registers a thread; the largest of the object's GPU functions.
        spill_bytes: stack frame of a thread in bytes; in these kernels it holds register spills alone.
        shared_memory_bytes: statically allocated shared memory of a block; a launch may ask for more.
    """

    cubin_target: str
    ptxas_version: str
    registers: int
    spill_bytes: int
    shared_memory_bytes: int
    cubin_bytes: int


class Artifact(NamedTuple):
    """One compiled kernel in a store.

    ``object_sha256`` is also the name of the object. ``seconds`` is the wall time of the compilation, which
    is kept in the store only, because a bundle contains nothing that varies.
    """

    object_sha256: Annotated[Digest, Key("sha256")]
    object_bytes: Annotated[int, Key("size"), within(0, sys.maxsize)]
    facts: Facts
    seconds: Annotated[float, within(0, sys.float_info.max)]
