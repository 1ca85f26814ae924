"""Which tensor-core instruction a record calls for, and what assembly has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutlass_aot.errors import ArtifactError
from cutlass_aot.generators.device_profiles import profile_for
from cutlass_aot.generators.protocol import Problem, ScaleRequest
from cutlass_aot.generators.sm90_gemm.generator import Sm90Gemm
from cutlass_aot.schema.kernels.constraints import OperandConstraint, Scale
from cutlass_aot.schema.kernels.kernel import Kernel
from tools.check.instructions import (
    Formats,
    Instruction,
    audit_instructions,
    code_of,
    found,
    found_formats,
    required,
    required_formats,
)

DENSE = "PersistentDenseGemm"
PLAIN = "UTCQMMA.2CTA gdesc[UR4], gdesc[UR6], tmem[UR42], tmem[UR50], idesc[UR51], UR8, UP3 ;"
SCALED = "UTCQMMA.2CTA gdesc[UR4], gdesc[UR6], tmem[UR28], tmem[UR42], idesc[UR43], tmem[UR44], UP2 ;"
FOUR_BITS = "UTCOMMA.BLOCK16 gdesc[UR4], gdesc[UR6], tmem[UR28], tmem[UR42], idesc[UR43], tmem[UR44], UP2 ;"
OTHERS = "UTCCP.T.S.4x32dp128bit tmem[UR32+0x80], gdesc[UR18] ;\nUTCBAR [UR33], URZ ;\nIMAD.MOV R1, R2 ;\n"


def descriptor(a, b, sums=0, rows=128, columns=64):
    """A move of an instruction's descriptor, with these numbers of element types. Source: PTX ISA."""
    number = sums << 4 | a << 7 | b << 10 | columns // 8 << 17 | rows // 16 << 24
    return f"\nUMOV UR51, {number:#x} ;\n"


def kernel(
    a="f16", b="", family=DENSE, target="sm_100a", scales=(), generator="cutlass.operators", swizzle="32x4x4"
):
    operands = [
        OperandConstraint(name, dtype, ("L", "M", "K"), -1, 1, 16)
        for name, dtype in (("a", a), ("b", b or a), ("out", "bf16"))
    ]
    for name in scales:
        scale = Scale(name, 32, swizzle=swizzle)
        operands.append(OperandConstraint(f"{name}_scale", "f8e8m0", ("*",), -1, 1, 16, scale=scale))
    return Kernel.make(
        operation="gemm",
        generator=generator,
        operands=tuple(operands),
        accumulator="f32",
        design={"family": family},
        target=target,
    )


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (kernel("f16"), Instruction("UTCHMMA")),
        (kernel("bf16", target="sm_103f"), Instruction("UTCHMMA")),
        (kernel("f8e4m3"), Instruction("UTCQMMA")),
        (kernel("u8"), Instruction("UTCIMMA")),
        (kernel("f8e5m2", target="sm_90a"), Instruction("QGMMA")),
        (kernel("bf16", target="sm_90a"), Instruction("HGMMA")),
        (kernel("f16", family="Sm80TensorOpGemm", target="sm_90a"), Instruction("HMMA")),
        (kernel("i8", "bf16", family="MixedInputGemm"), Instruction("UTCHMMA")),
        (kernel("i4", "f16", family="MixedInputGemm", scales="a", swizzle="columns"), Instruction("UTCHMMA")),
        (kernel("f8e4m3", "f8e5m2", scales="ab"), Instruction("UTCQMMA", scaled=True)),
        (kernel("f4e2m1", "f8e5m2", scales="ab"), Instruction("UTCQMMA", scaled=True)),
        (kernel("f6e2m3", scales="ab"), Instruction("UTCQMMA", scaled=True)),
        (kernel("f4e2m1", scales="ab"), Instruction("UTCOMMA", scaled=True)),
        (kernel("tf32", generator="tf32_gemm"), Instruction("UTCHMMA")),
        (kernel("tf32", generator="tf32_gemm", target="sm_90a"), Instruction("HGMMA")),
        (kernel("f8e4m3", generator="sm90_gemm", target="sm_90a"), Instruction("QGMMA")),
        (kernel("bf16", generator="conv2d_fprop", family=""), Instruction("UTCHMMA")),
        (kernel("f64"), None),
        (kernel("f16", generator="somebody's"), None),
    ],
)
def test_the_record_says_which(made, expected):
    assert required(made) == expected


def test_scale_factors_are_told_by_the_operand_behind_the_descriptor():
    assert found(OTHERS) == {}
    assert found(OTHERS + PLAIN) == {Instruction("UTCQMMA"): 1}
    assert found(f"{SCALED}\n{OTHERS}{SCALED}") == {Instruction("UTCQMMA", scaled=True): 2}
    assert found(FOUR_BITS) == {Instruction("UTCOMMA", scaled=True): 1}
    assert found("HMMA.16816.F32 R4, R8, R12, R4 ;\nQGMMA.64x128x32.F32 R24, gdesc[UR4], RZ ;") == {
        Instruction("HMMA"): 1,
        Instruction("QGMMA"): 1,
    }


def test_code_without_scale_factors_is_refused_for_a_block_scaled_record():
    mxfp8 = kernel("f8e4m3", scales="ab")
    audit_instructions(mxfp8, OTHERS + SCALED + descriptor(0, 0))
    with pytest.raises(ArtifactError, match="are UTCQMMA, expected UTCQMMA with scale factors"):
        audit_instructions(mxfp8, OTHERS + PLAIN)
    with pytest.raises(ArtifactError, match="are UTCQMMA, UTCQMMA with scale factors, expected"):
        audit_instructions(mxfp8, PLAIN + SCALED)
    with pytest.raises(ArtifactError, match="are UTCQMMA with scale factors, expected UTCQMMA;"):
        audit_instructions(kernel("f8e4m3"), SCALED)
    with pytest.raises(ArtifactError, match="are none, expected UTCOMMA with scale factors"):
        audit_instructions(kernel("f4e2m1", scales="ab"), OTHERS)


def test_nothing_is_demanded_of_other_generators():
    audit_instructions(kernel("f16", generator="somebody's"), OTHERS)


@pytest.mark.parametrize(
    ("made", "formats"),
    [
        (kernel("f16"), {Formats(0, 0, 1)}),
        (kernel("bf16"), {Formats(1, 1, 1)}),
        (kernel("tf32", generator="tf32_gemm"), {Formats(2, 2, 1)}),
        (kernel("i4", "bf16", family="MixedInputGemm", scales="a", swizzle="columns"), {Formats(1, 1, 1)}),
        (kernel("f8e4m3", "f6e3m2", scales="ab"), {Formats(0, 4, None), Formats(4, 0, None)}),
        (kernel("f4e2m1", scales="ab"), {Formats(1, 1, None)}),
        (kernel("bf16", target="sm_90a"), set()),
    ],
)
def test_the_record_says_which_element_types_the_descriptor_has(made, formats):
    assert required_formats(made, required(made)) == formats


def test_element_types_are_read_from_numbers_that_can_be_descriptors():
    bf16 = Instruction("UTCHMMA")
    # Of a bf16 and of a TF32 kernel that was compiled: 128x64 tiles, f32 sums.
    assert found_formats("UMOV UR4, 0x8100490 ;", bf16) == {Formats(1, 1, 1)}
    assert found_formats("UMOV UR4, 0x8100910 ;", bf16) == {Formats(2, 2, 1)}
    assert found_formats("UMOV UR4, 0x3f800000 ; MOV R1, 0x7fffffff ; IADD R1, R1, 0x490 ;", bf16) == set()
    assert found_formats(descriptor(3, 5), Instruction("UTCQMMA", scaled=True)) == {Formats(3, 5, None)}


def test_code_for_other_element_types_is_refused():
    code = PLAIN.replace("UTCQMMA", "UTCHMMA")
    tf32 = kernel("tf32", generator="tf32_gemm")
    audit_instructions(tf32, code + descriptor(2, 2, 1))
    audit_instructions(kernel("f8e4m3", "f8e5m2"), PLAIN + descriptor(1, 0, 1))  # transposed
    with pytest.raises(ArtifactError, match="no descriptor of a UTCHMMA on tf32, tf32, f32; the generator"):
        audit_instructions(tf32, code + descriptor(1, 1, 1))
    with pytest.raises(ArtifactError, match="no descriptor of a UTCQMMA on f8e5m2"):
        audit_instructions(kernel("f8e5m2"), PLAIN + descriptor(0, 0, 1))
    with pytest.raises(ArtifactError, match="no descriptor of a UTCQMMA on f8e4m3"):
        audit_instructions(kernel("f8e4m3"), PLAIN + descriptor(0, 0, 0))  # sums of f16


LOOPS = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   IADD3 R0, R0, 0x1, RZ ;
.L_x_2:
        /*0020*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0030*/              @!P0 BRA `(.L_x_2) ;
        /*0040*/              @!P1 BRA `(.L_x_1) ;
        /*0050*/               @P2 BRA `(.L_x_4) ;
.L_x_3:
        /*0060*/                   BRA `(.L_x_3);
.L_x_4:
        /*0070*/                   NOP;
        /*0080*/                   NOP;
"""


def test_the_loop_is_the_shortest_that_multiplies():
    code = code_of(LOOPS)
    assert (len(code.instructions), code.loop) == (7, 2)
    assert code_of(LOOPS.replace("HMMA", "IMMA_NOT")).loop == 0
    assert code_of(LOOPS.replace(".L_x_2", ".L_x_9")).loop == 2


def test_code_is_the_same_whatever_its_labels_are_and_other_where_it_goes_elsewhere():
    code = code_of(LOOPS)
    assert code == code_of(LOOPS.replace(".L_x_", ".L_other_"))
    assert code == code_of(LOOPS.replace("        /*0080*/                   NOP;\n", ""))
    assert code != code_of(LOOPS.replace("@!P1 BRA `(.L_x_1)", "@!P1 BRA `(.L_x_2)"))
    assert code != code_of(LOOPS.replace("R8", "R9"))
    assert code.instructions[-1] == "BRA +0"


def test_exact_sums_of_fp8_are_added_up_in_registers_and_fast_ones_are_not():
    fast_code = LOOPS.replace("HMMA.16816", "QGMMA.64x8x32").replace("IADD3 R0, R0, 0x1", "FADD R0, R0, R1")
    exact_code = fast_code.replace("@!P0 BRA", "@!P0 FADD R9, R9, R4 ;\n  /*0028*/  @!P0 BRA")
    for accumulation, right, wrong in (("exact", exact_code, fast_code), ("fast", fast_code, exact_code)):
        made = replace(kernel("f8e4m3", target="sm_90a"), accumulation=accumulation)
        audit_instructions(made, right)
        with pytest.raises(ArtifactError, match="adds up sums"):
            audit_instructions(made, wrong)
    blocks = (ScaleRequest("f32", 128), ScaleRequest("f32", 128, across=128))
    problem = Problem("gemm", ("f8e4m3", "f8e4m3", "bf16"), "tnt", "f32", blocks)
    scaled = next(iter(Sm90Gemm().enumerate(problem, "sm_90a", profile_for("sm_90a"))))
    audit_instructions(scaled, exact_code.replace("FADD R9, R9, R4", "FFMA R9, R4, R5, R9"))
    with pytest.raises(ArtifactError, match="in registers"):
        audit_instructions(scaled, fast_code)
