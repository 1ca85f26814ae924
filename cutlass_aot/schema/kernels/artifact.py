"""What compiling one kernel gave: digests, facts, and the symbols that its object exports."""

import sys
from typing import Annotated, NamedTuple

from cutlass_aot.schema.codec import Digest, Key, within

EXPORT_PREFIX = "__tvm_ffi_"
"""What the exported symbol of a compiled function begins with: TVM-FFI's calling convention."""

CODE_PREFIX = "cutlass_aot_code_"
"""What the exported slot of a compiled function begins with: it takes address and size of its GPU code."""

LAUNCHER_SYMBOLS = (
    f"{EXPORT_PREFIX}cutlass_aot_dispatch_cache",
    f"{EXPORT_PREFIX}cutlass_aot_launcher",
    "cutlass_aot_fast_path",
    "cutlass_aot_open_fast_path",
)
"""What a bundle's launcher exports; see ``launcher.c`` and ``fast_path.c`` in ``builder/native``."""


class Facts(NamedTuple):
    """What was read back from the compiled code itself. Equal objects have equal facts.

    Attributes:
        cubin_target: GPU code target found in the cubin, such as ``sm_90a``.
        ptxas_version: version of the assembler that wrote the cubin, e.g. ``12.9``.
        registers: registers a thread; the largest of the object's GPU functions.
        spill_bytes: stack frame of a thread in bytes; in these kernels it holds register spills alone.
        shared_memory_bytes: statically allocated shared memory of a block; a launch may ask for more.
        cubin_bytes: size of the GPU code.
    """

    cubin_target: str
    ptxas_version: str
    registers: int
    spill_bytes: int
    shared_memory_bytes: int
    cubin_bytes: int


class Artifact(NamedTuple):
    """One compiled kernel in a store.

    Attributes:
        object_sha256: digest, and so the name, of the object's bytes.
        object_bytes: their length.
        facts: what was read back from them.
        seconds: wall time of the compilation. It stays in the store: a bundle holds nothing that varies.
    """

    object_sha256: Annotated[Digest, Key("sha256")]
    object_bytes: Annotated[int, Key("size"), within(0, sys.maxsize)]
    facts: Facts
    seconds: Annotated[float, within(0, sys.float_info.max)]
