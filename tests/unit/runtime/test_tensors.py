"""Properties of ``supports``, over random descriptions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.runtime.launching.tensors import describe_operand
from cutlass_aot.schema.kernels.constraints import OperandConstraint, Scale
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.operands import (
    Accepted,
    OperandDescription,
    Rejected,
    describe,
    packed,
    supports,
)
from tests.support.kernels import gemm
from tests.support.replace import replace

GEMM = gemm(layouts="tnt")
WIDTH = 8

extents = st.one_of(st.integers(0, 40), st.sampled_from([64, 128, 2**31 - 8, 2**31, 2**40]))
strides = st.one_of(st.integers(-8, 70), st.sampled_from([0, 1, 64, 4096, 2**39, 2**45]))


@st.composite
def descriptions(draw: st.DrawFn) -> OperandDescription:
    rank = draw(st.integers(0, 5))
    return OperandDescription(
        draw(st.sampled_from([*DTYPES, "c64", ""])),
        tuple(draw(extents) for _ in range(rank)),
        tuple(draw(strides) for _ in range(rank)),
        draw(st.integers(0, 300)),
        draw(st.sampled_from([None, -1, 0, 1])),
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[OperandDescription, ...]:
    """Operands of a product that the kernel supports: any padding, any extents of 1, a batch or none."""
    m = draw(st.integers(1, 50))
    n, k = (WIDTH * draw(st.integers(1, 6)) for _ in range(2))
    batch = draw(st.one_of(st.none(), st.integers(1, 4)))

    def make(rows: int, columns: int, column_major: bool, broadcast: bool) -> OperandDescription:
        minor, major = (rows, columns) if column_major else (columns, rows)
        leading = minor + WIDTH * draw(st.integers(0, 3))
        between = leading * major + WIDTH * draw(st.integers(0, 3))
        if broadcast and draw(st.booleans()):
            between = 0
        # A stride along an extent of 1 means nothing.
        if major == 1:
            leading = draw(st.integers(-5, 50))
        if batch == 1:
            between = draw(st.integers(-5, 50))
        inner = (1, leading) if column_major else (leading, 1)
        shape, steps = (rows, columns), inner
        if batch is not None:
            shape, steps = (batch, rows, columns), (between, *inner)
        return OperandDescription("f16", shape, steps, 16 * draw(st.integers(0, 5)), 0)

    return (make(m, k, False, True), make(k, n, True, True), make(m, n, False, False))


@given(st.lists(descriptions(), max_size=4))
def test_any_descriptions_get_an_answer(operands: list[OperandDescription]) -> None:
    verdict = supports(GEMM.operands, operands)
    assert isinstance(verdict, Accepted if verdict else Rejected)
    assert bool(verdict) or verdict.reason


@given(problems())
def test_padding_and_meaningless_strides_are_supported(operands: tuple[OperandDescription, ...]) -> None:
    verdict = supports(GEMM.operands, operands)
    assert verdict, verdict.reason


@given(problems())
def test_without_a_batch_and_with_a_batch_of_one_agree(operands: tuple[OperandDescription, ...]) -> None:
    plain = [replace(o, shape=o.shape[-2:], strides=o.strides[-2:]) for o in operands]
    batched = [replace(o, shape=(1, *o.shape), strides=(0, *o.strides)) for o in plain]
    assert supports(GEMM.operands, plain) == supports(GEMM.operands, batched)


@given(problems(), st.integers(0, 2), st.data())
def test_a_mode_that_reaches_beyond_all_memory_is_refused(
    operands: tuple[OperandDescription, ...], which: int, data: st.DataObject
) -> None:
    mode = data.draw(st.integers(0, len(operands[which].shape) - 1))
    if mode - len(operands[which].shape) == GEMM.operands[which].contiguous:
        return
    # Extent and stride are possible, their product is none.
    shape, steps = list(operands[which].shape), list(operands[which].strides)
    shape[mode], steps[mode] = 2**31 - 8, 2**38
    changed = [replace(o, shape=tuple(shape), strides=tuple(steps)) if i == which else o
               for i, o in enumerate(operands)]  # fmt: skip
    verdict = supports(GEMM.operands, changed)
    assert "expected an operand within 2^63 elements, got " in verdict.reason


@given(problems(), st.integers(0, 2), st.integers(1, 15))
def test_data_off_its_alignment_is_refused(
    operands: tuple[OperandDescription, ...], which: int, off: int
) -> None:
    moved = [replace(o, address=o.address + off * (i == which)) for i, o in enumerate(operands)]
    verdict = supports(GEMM.operands, moved)
    assert not verdict
    assert f"`{['a', 'b', 'out'][which]}`" in verdict.reason
    assert f"{off} bytes off" in verdict.reason


@given(problems(), st.sampled_from([name for name in DTYPES if name != "f16"]), st.integers(0, 2))
def test_another_element_type_is_refused(
    operands: tuple[OperandDescription, ...], dtype: str, which: int
) -> None:
    changed = [replace(o, dtype=dtype) if i == which else o for i, o in enumerate(operands)]
    verdict = supports(GEMM.operands, changed)
    assert verdict.reason == (
        f"operand `{['a', 'b', 'out'][which]}` is unsupported: expected element type f16, got {dtype}"
    )


def test_a_description_describes_itself() -> None:
    found = describe((4, 8), "f16")
    assert describe_operand(found) is found


def test_packed_operands_are_laid_out_as_they_are_wanted() -> None:
    scale = OperandConstraint("a_scale", "f8e8m0", ("*",), -1, 1, 32, scale=Scale("a", 32, "K", "32x4x4"))
    square = OperandConstraint("table", "f32", ("N", "N"), -2, 1, 4)
    number = OperandConstraint("alpha", "f32", (), 0, 1, 4)
    constraints = (*gemm(layouts="tnt").operands, scale, square, number)
    extents = {"M": 130, "N": 64, "K": 160}
    found = packed(constraints, extents)
    assert [item.shape for item in found] == [(130, 160), (160, 64), (130, 64), (2048,), (64, 64), ()]
    assert [item.strides for item in found[:3]] == [(160, 1), (1, 160), (64, 1)]
    assert supports(constraints, found)
    batched = packed(constraints, {**extents, "L": 3})
    assert batched[1].strides == (160 * 64, 1, 160)
    assert batched[3].shape == (3 * 2048,)
    assert supports(constraints, batched)
