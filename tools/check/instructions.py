"""The GPU assembly of a kernel's object: its tensor-core instructions against those that its record requires.

Names are those of ``nvdisasm``. On SM100 a multiplication is ``UTC?MMA``, with H for 16-bit floats, Q for
8-bit floats and whatever goes with them, O for two operands of FP4, I for integers. Block-scaled ones have
one operand more behind the instruction descriptor: the scale factors, in tensor memory. That tells an MXFP8
GEMM from an FP8 one, which has the same name. NVIDIA documents none of this; it was read from kernels of
every family.

Which of the element types that share a name are multiplied stands in the instruction's descriptor, a number
in the code: bits 4-5 say the type of the sums, 7-9 that of a, 10-12 that of b, 17-22 hold N / 8 and 24-28
M / 16. With scale factors, bits 4-5 are something else. Source: PTX ISA, "Instruction descriptor" of
``tcgen05.mma``.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from typing import NamedTuple

from cutlass_aot.builder.compile.audit import cubins_of
from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.link.packages import package_file
from cutlass_aot.errors import ArtifactError
from cutlass_aot.generators.cutlass_operators.operands import MIXED_INPUT
from cutlass_aot.generators.cutlass_operators.records import GENERATOR
from cutlass_aot.generators.gemm import scales_of
from cutlass_aot.generators.sm90_gemm.generator import Sm90Gemm
from cutlass_aot.generators.tf32_gemm.generator import Tf32Gemm
from cutlass_aot.schema.kernels.accumulation import EXACT
from cutlass_aot.schema.kernels.constraints import SWIZZLE_32X4X4
from cutlass_aot.schema.kernels.kernel import Kernel

_GENERATORS = (GENERATOR, Sm90Gemm.name, Tf32Gemm.name, "conv2d_fprop")
_LETTERS = {"f16": "H", "bf16": "H", "tf32": "H", "f8e4m3": "Q", "f8e5m2": "Q", "i8": "I", "u8": "I"}
_FORMATS = {
    "UTCHMMA": {"f16": 0, "bf16": 1, "tf32": 2},
    "UTCQMMA": {"f8e4m3": 0, "f8e5m2": 1, "f6e2m3": 3, "f6e3m2": 4, "f4e2m1": 5},
    "UTCOMMA": {"f4e2m1": 1},
    "UTCIMMA": {"u8": 0, "i8": 1},
}
"""Numbers of element types in the descriptors of SM100's instructions."""
_SUMS = {"f16": 0, "f32": 1, "i32": 2}
_MULTIPLICATION = re.compile(r"\b((?:UTC)?[A-Z]G?MMA)\b[.\w]*([^;]*);")
_SCALES = re.compile(r"idesc\[\w+\], tmem\[")
_NUMBER = re.compile(r"\b0x[0-9a-f]{7,8}\b")
_LINE = re.compile(r"^(?:(\.L_\w+):| *[/][*][0-9a-f]+[*][/] +([^;]*);)", re.MULTILINE)
_ADDITION = re.compile(r"\b(?:FADD|FFMA)\b")
_BRANCH = re.compile(r"`\((\.L_\w+)\)")


def disassemble(data: bytes) -> str:
    """The GPU assembly of an object, as NVIDIA's ``nvdisasm`` prints it.

    Raises:
        CorruptFile: if the bytes are truncated or malformed.
        ArtifactError: if there is no GPU code, or it cannot be disassembled.
        ToolchainError: if the package nvidia-cuda-nvdisasm, which the extra ``dev`` brings, is missing.
    """
    cubins = cubins_of(KernelObject.from_bytes(data).gpu_code)
    if not cubins:
        raise ArtifactError("the object holds no GPU code to disassemble")
    nvdisasm = package_file("nvidia-cuda-nvdisasm", "bin/nvdisasm")
    texts = []
    for cubin in cubins:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin.code)
            file.flush()
            try:
                done = subprocess.run(
                    [str(nvdisasm), "--print-code", file.name],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=300,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise ArtifactError(f"nvdisasm did not run to its end: {error}") from None
        if done.returncode != 0:
            words = done.stderr.decode("utf-8", "replace").replace(file.name, "cubin").strip()
            raise ArtifactError(f"nvdisasm refused the GPU code: {words[-500:]}")
        texts.append(done.stdout.decode("utf-8", "replace"))
    return "\n".join(texts)


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
    if kernel.generator not in _GENERATORS or len(kernel.operands) < 3:
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
        assembly: see :func:`disassemble`.
    """
    counts: dict[Instruction, int] = {}
    for match in _MULTIPLICATION.finditer(assembly):
        instruction = Instruction(match.group(1), _SCALES.search(match.group(2)) is not None)
        counts[instruction] = counts.get(instruction, 0) + 1
    return counts


class Code(NamedTuple):
    """The instructions of GPU assembly, without the NOPs that fill it up to whole cache lines.

    Attributes:
        instructions: in their order; of a branch, how far it goes in place of a label.
        loop: how many there are in the shortest loop that multiplies on tensor cores; 0 if none does. A loop
            is what stands between a label and a branch back to it.
    """

    instructions: tuple[str, ...]
    loop: int


def code_of(assembly: str) -> Code:
    """The instructions of GPU assembly, see :func:`disassemble`."""
    lines, loop = _with_loop(assembly)
    return Code(tuple(line for line in lines if line != "NOP"), len(loop))


def _with_loop(assembly: str) -> tuple[list[str], list[str]]:
    """The instructions of GPU assembly, and those of the loop of :class:`Code`."""
    places: dict[str, int] = {}
    lines: list[str] = []
    for label, instruction in _LINE.findall(assembly):
        if label:
            places[label] = len(lines)
        else:
            lines.append(instruction.strip())
    loops = []
    for position, line in enumerate(lines):
        branch = _BRANCH.search(line)
        if branch is None:
            continue
        place = places[branch[1]]
        lines[position] = line.replace(branch[0], f"{place - position:+}")
        if place <= position and any(_MULTIPLICATION.search(f"{one};") for one in lines[place:position]):
            loops.append(range(place, position + 1))
    shortest = min(loops, key=len, default=range(0))
    return lines, [lines[position] for position in shortest]


def adds_in_registers(assembly: str) -> bool:
    """Whether the loop that multiplies also adds numbers of f32 in registers: what exact sums of FP8 need.

    Args:
        assembly: see :func:`disassemble`.
    """
    return any(map(_ADDITION.search, _with_loop(assembly)[1]))


class Formats(NamedTuple):
    """Element types of a tensor-core instruction of SM100, as the numbers of its descriptor.

    Attributes:
        a: of the first factor.
        b: of the second factor.
        sums: of the sums; None with scale factors, where the descriptor does not say.
    """

    a: int
    b: int
    sums: int | None


def required_formats(kernel: Kernel, instruction: Instruction) -> set[Formats]:
    """The element types that a kernel's instructions may have; empty where there is no descriptor.

    Args:
        kernel: the record.
        instruction: see :func:`required`.
    """
    names = _FORMATS.get(instruction.name)
    if names is None:
        return set()
    a, b = (operand.dtype for operand in kernel.operands[:2])
    if dict(kernel.design).get("family") == MIXED_INPUT:
        a = b
    sums = None if instruction.scaled else _SUMS[kernel.accumulator or "f32"]
    # A kernel may compute the transposed problem, whose first factor is b.
    return {Formats(names[a], names[b], sums), Formats(names[b], names[a], sums)}


def found_formats(assembly: str, instruction: Instruction) -> set[Formats]:
    """Element types of every number in GPU assembly that can be a descriptor.

    Args:
        assembly: see :func:`disassemble`.
        instruction: what the descriptors are of.
    """
    formats = set()
    for text in set(_NUMBER.findall(assembly)):
        number = int(text, 16)
        rows, columns = (number >> 24 & 31) * 16, (number >> 17 & 63) * 8
        if rows in (64, 128, 256) and 0 < columns <= 256:
            sums = None if instruction.scaled else number >> 4 & 3
            formats.add(Formats(number >> 7 & 7, number >> 10 & 7, sums))
    return formats


def audit_instructions(kernel: Kernel, assembly: str) -> None:
    """Refuse code that does not multiply with the tensor-core instructions that the record calls for.

    On SM100, at least one number of the code can be an instruction descriptor of the record's element types.
    On sm_90a, registers add up sums of FP8 that the record says are exact, or that have scale factors of
    blocks, and no others.

    Args:
        kernel: the record.
        assembly: of its object, see :func:`disassemble`.

    Raises:
        ArtifactError: if it has others, or none.
    """
    expected = required(kernel)
    if expected is None:
        return
    there = found(assembly)
    if set(there) != {expected}:
        shown = ", ".join(sorted(map(str, there))) or "none"
        raise ArtifactError(
            f"{kernel.name}: its tensor-core instructions are {shown}, expected {expected}; the generator "
            "compiled something else than the record says"
        )
    formats = required_formats(kernel, expected)
    if formats and not formats & found_formats(assembly, expected):
        types = ", ".join((*(operand.dtype for operand in kernel.operands[:2]), kernel.accumulator))
        raise ArtifactError(
            f"{kernel.name}: its code has no descriptor of a {expected} on {types}; the generator compiled "
            "it for other element types than the record says"
        )
    if expected.name == "QGMMA" and kernel.accumulator == "f32":
        exact = kernel.accumulation == EXACT or bool(scales_of(kernel))
        if adds_in_registers(assembly) != exact:
            sums = "in registers" if exact else "by tensor cores alone"
            raise ArtifactError(
                f"{kernel.name}: expected code that adds up sums {sums}, as its record says, got other code"
            )
