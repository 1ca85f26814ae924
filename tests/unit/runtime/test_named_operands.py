"""Operands that go by name, numbers, epilogues and parameters: which groups serve them."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from cutlass_aot.errors import CorruptFile, OperandError
from cutlass_aot.runtime.launching.tensors import describe_operand
from cutlass_aot.runtime.selection import match
from cutlass_aot.runtime.selection.query import Computation
from cutlass_aot.schema.bundles.catalog import Groups
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.kernels.constraints import OperandConstraint, Scale
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import Rejected, describe, supports
from tests.support.kernels import gemm, operand
from tests.support.replace import replace
from tests.support.torch_bundles import group

TARGET = "sm_90a"
GEMM = tuple(gemm().operands)


def number(name: str, dtype: str = "f32") -> OperandConstraint:
    return OperandConstraint(name, dtype, (), 0, 1, 4)


def vector(name: str, extent: str) -> OperandConstraint:
    return OperandConstraint(name, "f32", (extent,), -1, 1, 4)


def with_epilogue(formula: str, *more: OperandConstraint, **changes: Any) -> Kernel:
    return gemm(operands=(*GEMM, *more), epilogue=formula, **changes)


PLAIN = gemm()
RELU = with_epilogue("D = relu(accum)")
SCALED = with_epilogue("D = accum * alpha", number("alpha"))
BIAS = with_epilogue("D = accum * alpha + bias", number("alpha"), vector("bias", "N"))
OTHER_BIAS = with_epilogue("D = relu(accum * alpha + bias)", number("alpha"), vector("bias", "N"))
MX = gemm(
    operands=(
        operand("a", "f8e4m3", compact=True),
        operand("b", "f8e4m3", "n", compact=True),
        GEMM[2],
        OperandConstraint("a_scale", "f8e8m0", ("*",), -1, 1, 32, scale=Scale("a", 32, "K", "32x4x4")),
        OperandConstraint("b_scale", "f8e8m0", ("*",), -1, 1, 32, scale=Scale("b", 32, "K", "32x4x4")),
    )
)
NORM = Kernel.make(
    operation="rmsnorm",
    generator="norms",
    operands=(
        OperandConstraint("x", "bf16", ("T", 4096), -1, 8, 16, compact=True),
        OperandConstraint("weight", "bf16", (4096,), -1, 8, 16),
        number("epsilon"),
        OperandConstraint("out", "bf16", ("T", 4096), -1, 8, 16, written=True),
    ),
    accumulator="",
    design={},
    target=TARGET,
    parameters={"n": 4096},
)


def served(
    *kernels: Kernel,
    operands: tuple[Any, ...],
    operation: str = "gemm",
    epilogue: str | None = None,
    parameters: dict[str, Any] | None = None,
    **named: Any,
) -> list[str]:
    computation = Computation.of(operation, epilogue, None, parameters, named)
    given = (*operands, *(named[name] for name in computation.names))
    request = computation.query((TARGET,), "here", tuple(map(describe_operand, given)))
    groups = Groups.of([group(kernel) for kernel in kernels])
    found = match.serving(groups, request, TARGET)
    for entry in found:
        order = match.order_for(entry, request)
        assert sorted(order) == list(range(len(given)))
        for place, name in zip(order, [constraint.name for constraint in entry.operands], strict=True):
            assert name not in named or given[place] is named[name]
    return [entry.name for entry in found]


def problem(m: int = 64, n: int = 32, k: int = 128, dtype: str = "f16") -> tuple[Any, Any, Any]:
    return describe((m, k), dtype), describe((k, n), dtype, strides=(1, k)), describe((m, n), "f16")


def test_without_names_no_epilogue_is_meant() -> None:
    assert served(PLAIN, RELU, SCALED, operands=problem()) == [PLAIN.group_name]
    assert served(RELU, SCALED, operands=problem()) == []
    assert served(PLAIN, RELU, operands=problem(), epilogue=RELU.epilogue) == [RELU.group_name]


def test_names_choose_the_epilogue_that_takes_them() -> None:
    bias = describe((32,), "f32")
    both = (PLAIN, RELU, SCALED, BIAS)
    assert served(*both, operands=problem(), alpha=0.5) == [SCALED.group_name]
    assert served(*both, operands=problem(), alpha=1, bias=bias) == [BIAS.group_name]
    assert served(*both, operands=problem(), alpha=1.0, bias=describe((31,), "f32")) == []
    assert served(*both, operands=problem(), alpha=bias) == []
    assert served(*both, operands=problem(), bias=bias) == []
    with pytest.raises(OperandError, match="2 epilogues take these operands: name one, such as"):
        served(BIAS, OTHER_BIAS, operands=problem(), alpha=1.0, bias=bias)
    chosen = served(BIAS, OTHER_BIAS, operands=problem(), alpha=1.0, bias=bias, epilogue=OTHER_BIAS.epilogue)
    assert chosen == [OTHER_BIAS.group_name]


def test_scale_factors_by_name() -> None:
    a, b, out = problem(dtype="f8e4m3")
    scale = describe((512,), "f8e8m0")
    assert served(PLAIN, MX, operands=(a, b, out), a_scale=scale, b_scale=scale) == [MX.group_name]
    small = describe((128,), "f8e8m0")
    assert served(PLAIN, MX, operands=(a, b, out), a_scale=scale, b_scale=small) == []
    assert served(PLAIN, MX, operands=(a, b, out)) == []


@pytest.mark.parametrize("by_name", [c for size in range(5) for c in permutations(range(4), size)])
def test_any_operands_can_go_by_name(by_name: tuple[int, ...]) -> None:
    x, out = describe((7, 4096), "bf16"), describe((7, 4096), "bf16")
    given = {"x": x, "weight": describe((4096,), "bf16"), "epsilon": 1e-5, "out": out}
    names = list(given)
    named = {names[index]: given[names[index]] for index in by_name}
    operands = tuple(given[name] for name in names if name not in named)
    found = served(NORM, operands=operands, operation="rmsnorm", parameters={"n": 4096}, **named)
    assert found == [NORM.group_name]


def test_parameters_are_part_of_what_is_asked() -> None:
    x, weight = describe((7, 4096), "bf16"), describe((4096,), "bf16")
    operands = (x, weight, 1e-5, x)
    assert served(NORM, operands=operands, operation="rmsnorm", parameters={"n": 2048}) == []
    assert served(NORM, operands=operands, operation="rmsnorm") == []
    narrow = describe((7, 2048), "bf16")
    assert (
        served(NORM, operands=(narrow, weight, 1e-5, narrow), operation="rmsnorm", parameters={"n": 4096})
        == []
    )


def test_what_is_missing_is_named() -> None:
    refused = match.arrangement([operand.name for operand in BIAS.operands], 4, ("alpha",))
    assert isinstance(refused, Rejected)
    assert refused.reason == "expected 5 operands (a, b, out, alpha, bias), got 4, without bias"
    refused = match.arrangement([operand.name for operand in BIAS.operands], 5, ("alpha", "bios"))
    assert isinstance(refused, Rejected)
    assert refused.reason == "expected 5 operands (a, b, out, alpha, bias), got `bios`"


def test_numbers() -> None:
    assert describe_operand(1).dtype == "i32"
    assert describe_operand(1.0).dtype == "f32"
    assert {describe_operand(wide).dtype for wide in (1 << 31, -(1 << 31) - 1, -(1 << 63))} == {"i64"}
    for wrong in (True, 1 << 63, -(1 << 63) - 1):
        with pytest.raises(OperandError):
            describe_operand(wrong)


def test_what_moves_in_whole_tiles_demands_whole_tiles():
    tiles = GEMM[2]._replace(name="x", written=False, multiples=(1, 128, 64))
    assert from_plain(OperandConstraint, to_plain(tiles), "an operand") == tiles
    a, b, out = (
        describe((256, 64), "f16"),
        describe((64, 128), "f16", strides=(1, 64)),
        describe((256, 128), "f16"),
    )
    assert supports((*GEMM, tiles), (a, b, out, out))
    for rows, columns, reason in (
        (192, 128, "M divisible by 128, got 192"),
        (256, 96, "N divisible by 64, got 96"),
    ):
        a, b = describe((rows, 64), "f16"), describe((64, columns), "f16", strides=(1, 64))
        for shape in ((rows, columns), (1, rows, columns)):
            x = describe(shape, "f16")
            verdict = supports((*GEMM, tiles), (a, b, describe((rows, columns), "f16"), x))
            assert reason in verdict.reason
    with pytest.raises(CorruptFile, match="impossible multiples"):
        from_plain(OperandConstraint, {**to_plain(tiles), "multiples": [128]}, "an operand")


def test_a_parameter_of_another_type_is_another() -> None:
    one = Kernel.make(
        operation="scale", generator="g", operands=(vector("x", "N"),), accumulator="", design={},
        target=TARGET, parameters={"n": True},
    )  # fmt: skip
    x = describe((7,), "f32")
    assert served(one, operands=(x,), operation="scale", parameters={"n": True}) == [one.group_name]
    assert served(one, operands=(x,), operation="scale", parameters={"n": 1}) == []
    assert Computation.of("scale", None, None, {"n": 1}, {}) != Computation.of(
        "scale", None, None, {"n": True}, {}
    )
    for wrong in ({"n": [1, 2]}, {"n": None}):
        with pytest.raises(OperandError, match="parameter n = "):
            Computation.of("scale", None, None, wrong, {})
    with pytest.raises(OperandError, match="epilogue: expected a formula as text, got 5"):
        Computation.of("gemm", 5, None, None, {})  # type: ignore[arg-type]


def test_what_fits_by_chance_does_not_choose_the_epilogue() -> None:
    picky = tuple(replace(operand, divisibility=64) for operand in OTHER_BIAS.operands[:3])
    other = gemm(operands=(*picky, *OTHER_BIAS.operands[3:]), epilogue=OTHER_BIAS.epilogue)
    for n in (32, 64):
        bias = describe((n,), "f32")
        with pytest.raises(OperandError, match="2 epilogues take these operands"):
            served(BIAS, other, operands=problem(n=n), alpha=1.0, bias=bias)


def test_a_tensor_without_modes_is_no_number() -> None:
    torch = pytest.importorskip("torch")
    for tensor in (torch.tensor(2.0), torch.tensor(2.0, device="meta")):
        verdict = supports((number("alpha"),), [describe_operand(tensor)])
        assert not verdict
        assert "expected a number, got a tensor of shape ()" in verdict.reason
    verdict = supports((vector("x", "N"),), [describe_operand(2.0)])
    assert "expected a tensor of rank 1, got a number" in verdict.reason
