"""The key of a kernel in a store: the digest of everything that can change its object's bytes."""

from cutlass_aot.schema.encoding import digest, encode, encode_text, join_map
from cutlass_aot.schema.kernels.kernel import KEY_SCHEMA, Kernel

OBJECT_SCHEMA = 3
"""Version of the format of objects. 2: host code as text for every host, and GPU code. 3: the text is not
optimised for the CPU that compiled it."""


def key(kernel: Kernel, generator_version: str, toolchain: str) -> str:
    """The kernel's key in a store.

    ``generator_version`` includes the generator's source digest; ``toolchain`` is the compiler's fingerprint.
    """
    return digest(
        join_map(
            {
                "schema": encode(KEY_SCHEMA),
                "kernel": kernel.encoded(),
                "generator_version": encode_text(generator_version),
                "toolchain": encode_text(toolchain),
                "object": encode(OBJECT_SCHEMA),
            }
        )
    )
