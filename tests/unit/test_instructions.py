"""Which tensor-core instruction a record calls for, and what assembly has."""

from __future__ import annotations

import pytest

from cutlass_aot.builder.instructions import Instruction, audit_instructions, found, required
from cutlass_aot.errors import ArtifactError
from cutlass_aot.schema.kernel import Kernel, OperandConstraint, Scale

DENSE = "PersistentDenseGemm"
PLAIN = "UTCQMMA.2CTA gdesc[UR4], gdesc[UR6], tmem[UR42], tmem[UR50], idesc[UR51], UR8, UP3 ;"
SCALED = "UTCQMMA.2CTA gdesc[UR4], gdesc[UR6], tmem[UR28], tmem[UR42], idesc[UR43], tmem[UR44], UP2 ;"
FOUR_BITS = "UTCOMMA.BLOCK16 gdesc[UR4], gdesc[UR6], tmem[UR28], tmem[UR42], idesc[UR43], tmem[UR44], UP2 ;"
OTHERS = "UTCCP.T.S.4x32dp128bit tmem[UR32+0x80], gdesc[UR18] ;\nUTCBAR [UR33], URZ ;\nIMAD.MOV R1, R2 ;\n"


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
    audit_instructions(mxfp8, OTHERS + SCALED)
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
