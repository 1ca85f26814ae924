"""Operands of a plain GEMM are judged by a shorter way: it decides as the way that all others go."""

from __future__ import annotations

from itertools import product

import pytest

from cutlass_aot.runtime.selection.match import named_extents, problem_extents
from cutlass_aot.runtime.selection.query import Computation
from cutlass_aot.schema.bundles.catalog import FileReference, GroupEntry
from cutlass_aot.schema.kernels import operands
from cutlass_aot.schema.kernels.constraints import are_plain_gemm
from cutlass_aot.schema.kernels.operands import OperandDescription, Verdict, describe, supports
from cutlass_aot.schema.tuning.ranking import problem_of
from tests.support.kernels import gemm, operand

GEMM = gemm().operands
SHAPES = {
    "a": [(64, 32), (1, 64, 32), (3, 64, 32), (64, 16), (0, 32), (1, 32)],
    "b": [(32, 128), (1, 32, 128), (3, 32, 128), (2, 32, 128), (32, 0)],
    "out": [(64, 128), (1, 64, 128), (3, 64, 128), (64, 64), (64, 0), (0, 128), (1, 128)],
}
DEVICES = [(None, None, None), (0, 0, 0), (1, 1, 0), (0, None, 0), (-1, -1, -1), (0, 0, -1)]


def described(shape: tuple[int, ...], layout: str, device: int | None) -> OperandDescription:
    *batch, rows, columns = shape
    strides = (columns or 1, 1) if layout == "t" else (1, rows or 1)
    outer = [rows * columns or 1] * len(batch)
    return describe(shape, "f16", strides=(*outer, *strides), device=device)


def verdict(given: list[OperandDescription]) -> Verdict:
    return supports(GEMM, given)


@pytest.mark.parametrize("devices", DEVICES)
def test_the_shorter_way_decides_as_the_longer_one(
    devices: tuple[int | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [
        [
            described(shape, layout, device)
            for shape, layout, device in zip(shapes, "tnt", devices, strict=True)
        ]
        for shapes in product(*SHAPES.values())
    ]
    shorter = [verdict(given) for given in cases]
    monkeypatch.setattr(operands, "are_plain_gemm", lambda _: False)
    assert shorter == [verdict(given) for given in cases]
    assert {bool(found) for found in shorter} == (
        {True, False} if len({*devices}) == 1 and devices[0] != -1 else {False}
    )


def test_its_problem_is_that_of_its_named_extents() -> None:
    file = FileReference("x", 1, "ab" * 32)
    group = GroupEntry("g", "gemm", GEMM, "f32", "", "sm_90a", 1, file, file, {"x86_64": (file,)})
    seen = set()
    for shapes in product(*SHAPES.values()):
        given = tuple(described(shape, layout, 0) for shape, layout in zip(shapes, "tnt", strict=True))
        if supports(GEMM, given):
            query = Computation("gemm").query(("sm_90a",), "", given)
            expected = problem_of(GEMM, named_extents(group, query))
            assert problem_extents(group, query) == expected
            seen.add(expected)
    assert seen == {(1, 64, 128, 32), (3, 64, 128, 32), (1, 1, 128, 32), (1, 64, 1, 32)}


def test_which_operands_are_those_of_a_plain_gemm() -> None:
    assert are_plain_gemm(GEMM)
    assert not are_plain_gemm(())
    assert not are_plain_gemm(GEMM[:2])
    assert not are_plain_gemm((*GEMM, operand("a")))
    assert not are_plain_gemm((GEMM[1], GEMM[0], GEMM[2]))
