"""Which tensor-core instruction a kernel's code has to consist of, by its record, and whether it does.

Names are those of ``nvdisasm``. On SM100 a multiplication is ``UTC?MMA``, with H for 16-bit floats, Q for
8-bit floats and whatever goes with them, O for two operands of FP4, I for integers. Block-scaled ones have
one operand more behind the instruction descriptor: the scale factors, in tensor memory. That tells an MXFP8
GEMM from an FP8 one, which has the same name. NVIDIA documents none of this; it was read from kernels of
every family.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cutlass_aot.errors import ArtifactError
from cutlass_aot.generators.cutlass_operators.operands import MIXED_INPUT
from cutlass_aot.generators.cutlass_operators.records import GENERATOR
from cutlass_aot.schema.kernel import SWIZZLE_32X4X4, Kernel

_LETTERS = {"f16": "H", "bf16": "H", "f8e4m3": "Q", "f8e5m2": "Q", "i8": "I", "u8": "I"}
_MULTIPLICATION = re.compile(r"\b((?:UTC)?[A-Z]G?MMA)\b[.\w]*([^;]*);")
_SCALES = re.compile(r"idesc\[\w+\], tmem\[")


class Instruction(NamedTuple):
    """A kind of tensor-core instruction.

    Attributes:
        name: its first word, such as ``UTCQMMA``.
        scaled: whether it multiplies by scale factors too.
    """

    name: str
    scaled: bool = False

    def __str__(self) -> str:
        return f"{self.name} with scale factors" if self.scaled else self.name


def required(kernel: Kernel) -> Instruction | None:
    """The only kind of tensor-core instruction that a kernel's code may have, and has.

    None where the record does not say it: for kernels of other generators, which may do without tensor cores.
    """
    if kernel.generator != GENERATOR or len(kernel.operands) < 3:
        return None
    a, b = (operand.dtype for operand in kernel.operands[:2])
    family = str(dict(kernel.design).get("family", ""))
    if family == "Sm80TensorOpGemm":
        return Instruction("HMMA")
    scaled = {op.scale.of for op in kernel.operands if op.scale and op.scale.swizzle == SWIZZLE_32X4X4}
    if scaled >= {"a", "b"}:
        return Instruction("UTCOMMA" if a == b == "f4e2m1" else "UTCQMMA", scaled=True)
    letter = _LETTERS.get(b if family == MIXED_INPUT else a)
    if letter is None:
        return None
    return Instruction(f"{letter}GMMA" if kernel.target == "sm_90a" else f"UTC{letter}MMA")


def found(assembly: str) -> dict[Instruction, int]:
    """Kinds of tensor-core instructions in GPU assembly, and how many there are of each.

    Args:
        assembly: see :func:`cutlass_aot.builder.audit.disassemble`.
    """
    counts: dict[Instruction, int] = {}
    for match in _MULTIPLICATION.finditer(assembly):
        instruction = Instruction(match.group(1), _SCALES.search(match.group(2)) is not None)
        counts[instruction] = counts.get(instruction, 0) + 1
    return counts


def audit_instructions(kernel: Kernel, assembly: str) -> None:
    """Refuse code that does not multiply with the tensor-core instructions that the record calls for.

    Args:
        kernel: the record.
        assembly: of its object, see :func:`cutlass_aot.builder.audit.disassemble`.

    Raises:
        ArtifactError: if it has others, or none.
    """
    wanted = required(kernel)
    if wanted is None:
        return
    there = found(assembly)
    if set(there) != {wanted}:
        shown = ", ".join(sorted(map(str, there))) or "none"
        raise ArtifactError(
            f"{kernel.name}: its tensor-core instructions are {shown}, expected {wanted}; the generator "
            "compiled something else than the record says"
        )
