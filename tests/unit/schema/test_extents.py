"""Extents that follow from named ones, and descriptions of operands: what is refused, and how."""

from __future__ import annotations

from typing import Any

import pytest

from cutlass_aot.errors import CorruptFile, GeneratorError, OperandError
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.kernels.constraints import (
    MAX_RELATIONS,
    NONE,
    Extent,
    OperandConstraint,
    Operands,
    extent_of,
)
from cutlass_aot.schema.kernels.declaration import Operand
from cutlass_aot.schema.kernels.operands import (
    NOTHING,
    compact_strides,
    describe,
    extent_names,
    packed,
    supports,
    told,
)


@pytest.mark.parametrize(
    ("text", "extent"),
    [
        ("G", (1, "G", 0, 1)),
        ("4 * G", (4, "G", 0, 1)),
        ("4*G", (4, "G", 0, 1)),
        (" 2 * K - 1 ", (2, "K", -1, 1)),
        ("B+1", (1, "B", 1, 1)),
        ("1 * G + 0", (1, "G", 0, 1)),
        ("K / 128", (1, "K", 0, 128)),
        (" K/128 ", (1, "K", 0, 128)),
        ("K / 1", (1, "K", 0, 1)),
    ],
)
def test_the_text_of_an_extent(text: str, extent: tuple[int, str, int, int]) -> None:
    found = extent_of(text)
    assert found == extent
    assert extent_of(str(found)) == extent


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "4 *",
        "* G",
        "G * 4",
        "0 * G",
        "-1 * G",
        "G + H",
        "G / 0",
        "G / -2",
        "G // 2",
        "G / H",
        "2 / G",
        "2 * K / 3",
        "K / 3 + 1",
        "K / 3 / 2",
        "G / 2147483648",
        "2 * 3 * G",
        "G + 99999999999",
        "*",
    ],
)
def test_what_is_no_extent(text: str) -> None:
    assert extent_of(text) is None


def test_an_extent_and_the_one_it_follows_from() -> None:
    extent = Extent(4, "G", 1)
    assert [extent.of(named) for named in (0, 1, 8)] == [1, 5, 33]
    assert [value for value in range(-8, 12) if extent.is_possible(value)] == [1, 5, 9]
    assert [extent.named(value) for value in (1, 5, 33)] == [0, 1, 8]


def test_a_quotient_is_rounded_up_and_does_not_tell_its_named_extent() -> None:
    extent = Extent(1, "K", 0, 128)
    assert str(extent) == "K / 128"
    assert extent.is_quotient
    assert not extent.is_plain
    assert [extent.of(named) for named in (0, 1, 127, 128, 129, 2**31 - 1)] == [0, 1, 1, 1, 2, 2**24]
    assert [value for value in range(-3, 3) if extent.is_possible(value)] == [0, 1, 2]
    assert extent.named(2) is None


def read(*operands: Any) -> Any:
    return from_plain(Operands, [to_plain(operand) for operand in operands], "operands")


def constraint(name: str = "x", **changes: Any) -> OperandConstraint:
    return OperandConstraint(name, "f32", ("B", "4 * G"), -1, 1, 4)._replace(**changes)


def test_records_have_relations_widths_and_none() -> None:
    operands = (constraint(extent_bits=64), Operand("mask", None, ("B",), written=True).constraint())
    assert operands[1] == OperandConstraint("mask", NONE, (), 0, 1, 1)
    assert read(*operands) == operands


def test_records_have_quotients_of_what_another_extent_tells() -> None:
    scale = constraint("scale", extents=("B", "G / 128"), contiguous=-2)
    for operands in (
        (scale, constraint(extents=("B", "G"))),
        (constraint(extents=("B", "2 * G + 1")), scale),
    ):
        assert read(*operands) == operands
    assert Operand("x", "f32", ("K/128", "K / 1")).constraint().extents == ("K / 128", "K")


@pytest.mark.parametrize(
    ("operands", "problem"),
    [
        ([constraint(extents=("B", "4*G"))], "impossible extents"),
        ([constraint(extents=("G", "G/2"))], "impossible extents"),
        ([constraint(extents=("G", "G / 0"))], "impossible extents"),
        ([constraint(extents=("G", "G / 1"))], "impossible extents"),
        ([constraint(extents=("G", "2 * G / 3"))], "impossible extents"),
        (
            [constraint(extents=("B", "G / 2"))],
            r"extent G / 2 does not tell G: expected an operand whose extent is G or an exact relation to it",
        ),
        ([constraint(extents=("G / 4", "G / 2"))], "extent G / 4 does not tell G"),
        ([constraint(extents=("B", ""))], "impossible extents"),
        ([constraint(extent_bits=16)], "extents of 16 bits"),
        ([constraint(), constraint("y", extent_bits=64)], "extent B has 32 bits in one operand and 64"),
        ([constraint(dtype=NONE)], "an unknown element type 'none'"),
        ([constraint(dtype=NONE, extents=(), contiguous=0, written=True)], "an unknown element type"),
        (
            [constraint(f"x{i}", extents=(f"{i + 2} * A", f"{i + 2} * B")) for i in range(9)],
            f"at most {MAX_RELATIONS} relations between extents, got 18",
        ),
    ],
)
def test_a_record_with_impossible_extents_is_refused(operands: list[OperandConstraint], problem: str) -> None:
    with pytest.raises(CorruptFile, match=problem):
        read(*operands)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"extents": "TN"}, "expected a tuple such as"),
        ({"extents": 5}, "expected a tuple such as"),
        ({"extents": ("T", "N / 0")}, "a relation such as '4 \\* G', 'B \\+ 1' or 'K / 128'"),
        ({"extents": ("T", "2 * N / 3")}, "a relation such as '4 \\* G', 'B \\+ 1' or 'K / 128'"),
        ({"dtype": ["f32"]}, "unknown element type"),
        ({"alignment": 16.0}, "alignment 16.0: expected a whole number"),
        ({"divisibility": 1.5}, "divisibility 1.5: expected a whole number"),
        ({"contiguous": "t"}, "contiguous 't': expected a whole number"),
        ({"extent_bits": 16}, "extents of 16 bits: expected 32 or 64"),
    ],
)
def test_a_declared_operand_that_is_impossible_is_refused(changes: dict[str, Any], problem: str) -> None:
    values: dict[str, Any] = {"name": "x", "dtype": "f32", "extents": ("T", 64), **changes}
    with pytest.raises(GeneratorError, match=problem):
        Operand(**values).constraint()


def test_relations_are_written_alike_in_a_record() -> None:
    assert Operand("x", "f32", ("B", "4*G", "B+1")).constraint().extents == ("B", "4 * G", "B + 1")


def test_packed_operands_follow_their_relations() -> None:
    x = constraint(extents=("B + 1", "4 * G", 64))
    (found, nothing) = packed([x, Operand("mask", None, ()).constraint()], {"B": 2, "G": 3})
    assert found.shape == (3, 12, 64)
    assert nothing is NOTHING


def test_what_an_extent_tells_of_a_named_one() -> None:
    assert [told(name, 9) for name in ("G", "4 * G + 1", "B + 1")] == [("G", 9), ("G", 2), ("B", 8)]
    assert told("K / 128", 9) == ("K", None)
    assert extent_names([constraint(extents=("K / 128", "M")), constraint(extents=("K",))]) == ["K", "M"]


SCALED = (
    OperandConstraint("a_scale", "f32", ("L", "M", "K / 128"), -2, 4, 16),
    OperandConstraint("a", "f8e4m3", ("L", "M", "K"), -1, 16, 16),
    OperandConstraint("b", "f8e4m3", ("L", "K", "N"), -2, 16, 16),
    OperandConstraint("b_scale", "f32", ("L", "N / 128", "K / 128"), -1, 1, 4),
    OperandConstraint("out", "bf16", ("L", "M", "N"), -1, 8, 16, written=True),
)
"""A product whose factors stand before what they scale; each block of 128 x 128 of b has one."""


@pytest.mark.parametrize("batch", [{}, {"L": 1}, {"L": 3}])
@pytest.mark.parametrize(
    ("k", "n", "shapes"),
    [
        (128, 128, ((8, 1), (1, 1))),
        (144, 256, ((8, 2), (2, 2))),
        (112, 384, ((8, 1), (3, 1))),
        (512, 16, ((8, 4), (1, 4))),
    ],
)
def test_scale_factors_of_blocks(batch: dict[str, int], k: int, n: int, shapes: tuple[Any, ...]) -> None:
    operands = packed(SCALED, {"M": 8, "K": k, "N": n, **batch})
    assert tuple(operands[index].shape for index in (0, 3)) == tuple(
        (*batch.values(), *shape) for shape in shapes
    )
    assert operands[0].strides[-2:] == (1, 8)
    assert supports(SCALED, operands)
    (_, scales), _ = shapes
    wrong = (*batch.values(), 8, scales + 1)
    verdict = supports(SCALED, [describe(wrong, "f32", strides=compact_strides(wrong, -2)), *operands[1:]])
    assert verdict.reason == (
        f"operand `a_scale` is unsupported: expected extent K / 128 = {scales}, since `a` has K = {k}, "
        f"got {scales + 1}"
    )


@pytest.mark.parametrize("empty", [{"M": 0}, {"N": 0}, {"M": 0, "K": 0}, {"L": 0}])
def test_the_quotient_of_an_extent_of_0_is_0(empty: dict[str, int]) -> None:
    operands = packed(SCALED, {"M": 8, "K": 256, "N": 128, **empty})
    assert 0 in operands[4].shape
    assert supports(SCALED, operands)


def test_a_quotient_of_a_batch_that_is_not_there_is_that_of_one() -> None:
    constraints = (constraint(extents=("L / 2", "M")), constraint("y", extents=("L", "M"), written=True))
    assert [one.shape for one in packed(constraints, {"M": 5})] == [(1, 5), (5,)]
    assert supports(constraints, [describe((1, 5), "f32"), describe((5,), "f32")])
    assert supports(constraints, [describe((2, 5), "f32"), describe((3, 5), "f32")])
    assert not supports(constraints, [describe((2, 5), "f32"), describe((5,), "f32")])


def test_an_extent_of_a_relation_alone_is_checked() -> None:
    assert supports([constraint()], [describe((3, 8), "f32")])
    assert "expected an extent of 4 * G, got 9" in supports([constraint()], [describe((3, 9), "f32")]).reason


@pytest.mark.parametrize(
    ("shape", "dtype", "more", "problem"),
    [
        ((1.5,), "bf16", {}, r"shape: expected whole numbers, got \(1.5,\)"),
        (("2",), "bf16", {}, "shape: expected whole numbers"),
        ((None,), "bf16", {}, "shape: expected whole numbers"),
        (5, "bf16", {}, "shape: expected whole numbers, got 5"),
        ("ab", "bf16", {}, "shape: expected whole numbers, got 'ab'"),
        ((-1,), "bf16", {}, "negative extent"),
        ((2,), "bf17", {}, "unknown dtype 'bf17'"),
        ((2,), ["bf16"], {}, "unknown dtype"),
        ((2,), None, {}, "unknown dtype None"),
        ((2,), NONE, {}, "unknown dtype 'none'"),
        ((2,), "bf16", {"strides": (1.5,)}, "strides: expected whole numbers"),
        ((2,), "bf16", {"strides": 3}, "strides: expected whole numbers"),
        ((2,), "bf16", {"strides": (1, 1)}, "differ in rank"),
        ((2,), "bf16", {"address": "x"}, "address: expected whole numbers"),
        ((2,), "bf16", {"address": -3}, "expected an address of 0 or more"),
        ((2,), "bf16", {"device": "cuda"}, "device: expected whole numbers"),
        ((2,), "bf16", {"device": 1.0}, "device: expected whole numbers"),
    ],
)
def test_what_describes_no_operand_is_refused(
    shape: Any, dtype: Any, more: dict[str, Any], problem: str
) -> None:
    with pytest.raises(OperandError, match=problem):
        describe(shape, dtype, **more)


def test_numbers_of_numpy_describe_an_operand() -> None:
    numpy = pytest.importorskip("numpy")
    found = describe(numpy.array([2, 3]), "bf16", strides=(numpy.int32(3), 1), device=numpy.int64(0))
    assert found == describe((2, 3), "bf16", device=0)
    assert {type(extent) for extent in (*found.shape, *found.strides)} == {int}


def test_what_follows_from_a_batch_that_is_not_there_follows_from_one() -> None:
    constraints = tuple(
        operand.constraint()
        for operand in (
            Operand("out", "f32", ("2 * L", "M"), written=True),
            Operand("x", "f32", ("L", "M")),
        )
    )
    assert supports(constraints, [describe((2, 5), "f32"), describe((5,), "f32")])
    found = supports(constraints, [describe((4, 5), "f32"), describe((5,), "f32")])
    assert found.reason == (
        "operand `out` is unsupported: expected extent 2 * L = 2, since `x` has L = 1, got 4"
    )
    assert supports(constraints, [describe((4, 5), "f32"), describe((2, 5), "f32")])
    assert [one.shape for one in packed(constraints, {"M": 5})] == [(2, 5), (5,)]
    assert [one.shape for one in packed(constraints, {"M": 5, "L": 3})] == [(6, 5), (3, 5)]


def test_a_batch_that_is_contiguous_cannot_be_missing() -> None:
    constraint = OperandConstraint("a", "f16", ("L", "M"), -2, 1, 1)
    assert supports([constraint], [describe((4, 3), "f16", strides=(1, 4))])
    verdict = supports([constraint], [describe((3,), "f16")])
    assert verdict.reason == "operand `a` is unsupported: expected rank 2, got shape (3,)"


@pytest.mark.parametrize(
    ("extents", "contiguous", "expected"),
    [
        (("M", "K"), -1, "row-major (t): stride 1 from column to column (mode -1), got strides (1, 2)"),
        (("M", "K"), -2, "column-major (n): stride 1 from row to row (mode -2), got strides (3, 1)"),
        (("M",), -1, "stride 1, got strides (2,)"),
    ],
)
def test_a_tensor_of_another_order_is_refused_in_words_of_rows_and_columns(
    extents: tuple[str, ...], contiguous: int, expected: str
) -> None:
    constraint = OperandConstraint("a", "f16", extents, contiguous, 1, 1)
    strides = (2,) if len(extents) == 1 else (1, 2) if contiguous == -1 else (3, 1)
    verdict = supports([constraint], [describe((2, 3)[: len(extents)], "f16", strides=strides)])
    assert verdict.reason == f"operand `a` is unsupported: expected {expected}"
