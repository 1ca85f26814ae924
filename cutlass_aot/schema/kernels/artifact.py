"""What compiling one kernel gave: digests and facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.encoding import MALFORMED


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

    def to_record(self) -> dict[str, Any]:
        """Plain data for the canonical encoding."""
        return self._asdict()

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Facts:
        """Read what :meth:`to_record` gave.

        Raises:
            CorruptFile: if a field is missing or of the wrong kind.
        """
        try:
            return cls(
                cubin_target=str(record["cubin_target"]),
                ptxas_version=str(record["ptxas_version"]),
                registers=int(record["registers"]),
                spill_bytes=int(record["spill_bytes"]),
                shared_memory_bytes=int(record["shared_memory_bytes"]),
                cubin_bytes=int(record["cubin_bytes"]),
            )
        except MALFORMED as error:
            raise CorruptFile(f"the facts of an artifact are malformed: {error!r}") from None


class Artifact(NamedTuple):
    """One compiled kernel in a store.

    Attributes:
        object_sha256: digest, and so the name, of the object's bytes.
        object_bytes: their length.
        facts: what was read back from them.
        seconds: wall time of the compilation. It stays in the store: a bundle holds nothing that varies.
    """

    object_sha256: str
    object_bytes: int
    facts: Facts
    seconds: float
