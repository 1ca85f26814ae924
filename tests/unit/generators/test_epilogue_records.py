"""Kernels with an epilogue: what their records demand, and that what is demanded is what is taken."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cutlass_aot.generators.alternatives import alternatives
from cutlass_aot.generators.cutlass_operators.epilogue_records import enumerate_kernels, epilogue_of
from cutlass_aot.generators.cutlass_operators.operands import is_elementwise
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import decode, encode
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import DTYPES as OPERAND_DTYPES
from cutlass_aot.schema.kernels.epilogue import parse_epilogue
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import describe, packed, supports
from tests.support.kernels import gemm
from tests.support.operators import PersistentDenseGemmEFCOperator, PersistentDenseGemmOperator

B200 = load_profile("b200")
MATRIX = {"dtype": "bf16", "extents": "MN"}


def problem(text, operands, layouts="tnt", accumulator="f32"):
    return Problem(
        "gemm", ("f16",) * 3, layouts, accumulator, epilogue=parse_epilogue(text, operands)
    )  # fmt: skip


def kernels(described, **design):
    operator = PersistentDenseGemmEFCOperator(
        described.dtypes, described.layouts, described.accumulator, **{"use_2cta_mma": False, **design}
    )
    other = PersistentDenseGemmOperator(described.dtypes, described.layouts, described.accumulator)
    return list(enumerate_kernels([other, operator], described, "sm_100a", B200))


def test_an_epilogue_adds_its_operands_by_name():
    described = problem("D = alpha * accum + beta * C; F = accum; r = sum(accum)", {
        "C": MATRIX, "F": {**MATRIX, "layout": "n", "transport": "sync_gmem_store"}, "r": {"extents": "M"},
    })  # fmt: skip
    (kernel,) = kernels(described, cluster_shape=(2, 1, 1))
    assert [operand.name for operand in kernel.operands] == ["a", "b", "out", "C", "F", "alpha", "beta", "r"]
    assert kernel.epilogue == "D = C * beta + accum * alpha; F = accum; r = sum(accum)"
    assert dict(kernel.design)["transports"] == "F=sync_gmem_store"
    assert kernel.constants == (("max_active_clusters_2", B200.active_clusters(2)),)
    by_name = {operand.name: operand for operand in kernel.operands}
    assert (by_name["C"].contiguous, by_name["C"].divisibility, by_name["C"].alignment) == (-1, 8, 16)
    assert (by_name["F"].contiguous, by_name["F"].multiples) == (-2, (1, 256, 128))
    assert (by_name["r"].extents, by_name["r"].alignment, by_name["r"].written) == (("M",), 4, True)
    assert by_name["alpha"].is_number
    assert from_plain(Kernel, decode(kernel.encoded(), "it"), "a kernel record") == kernel


def test_a_pair_of_blocks_shares_a_tile():
    described = problem("D = accum + C", {"C": {**MATRIX, "transport": "async_gmem_load"}})
    (kernel,) = kernels(described, tile_shape=(256, 64, 64), cluster_shape=(4, 2, 1), use_2cta_mma=True)
    assert kernel.operands[-1].multiples == (1, 512, 128)


def test_what_means_the_same_is_the_same_kernel():
    one = problem("D = relu(alpha * accum + beta * C)", {"C": MATRIX})
    other = problem("t = C*beta\nD = relu((accum*alpha) + t)", {"C": {**MATRIX, "layout": "t"}})
    assert [kernel.digest for kernel in kernels(one)] == [kernel.digest for kernel in kernels(other)]


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("D = relu(alpha * accum - beta * C)", {"C": MATRIX}),
        ("D = relu(alpha * accum + beta * C)", {"C": {**MATRIX, "dtype": "f16"}}),
        ("D = relu(alpha * accum + beta * C)", {"C": {**MATRIX, "layout": "n"}}),
        ("D = relu(alpha * accum + beta * C)", {"C": {**MATRIX, "transport": "sync_gmem_load"}}),
        ("D = relu(alpha * accum + beta * C)", {"C": {"dtype": "bf16", "extents": "N"}}),
        ("D = relu(alpha * accum + gamma * C)", {"C": MATRIX}),
    ],
)
def test_what_means_something_else_is_another_kernel(text, operands):
    (base,) = kernels(problem("D = relu(alpha * accum + beta * C)", {"C": MATRIX}))
    (other,) = kernels(problem(text, operands))
    assert base.digest != other.digest


def test_an_accumulator_of_f16_has_no_epilogue():
    assert kernels(problem("D = relu(accum)", {}, accumulator="f16")) == []
    assert kernels(dataclasses.replace(problem("D = relu(accum)", {}), epilogue=None)) == []


class _Operators:
    """Of the package's families two, one of which takes epilogues."""

    def targets(self, operation):
        return ("sm_100a",)

    def enumerate(self, described, target, device):
        if described.epilogue is None:
            return [gemm()]
        return kernels(described)


def test_scales_of_blocks_are_refused_with_what_there_is_instead():
    described = problem(
        "x = silu(accum); scale = max(abs(x)) / 448; D = x / scale", {"scale": {"extents": "MN/128"}}
    )
    assert kernels(described) == []
    assert not is_elementwise(described.epilogue)
    instead = alternatives(_Operators(), described, "sm_100a", B200)
    assert instead == "it has some with `scale` as a number in the epilogue, or without the epilogue"


def test_an_output_with_half_as_many_columns_is_refused():
    described = problem("D = silu(even(accum)) * odd(accum)", {})
    assert kernels(described) == []
    assert not is_elementwise(described.epilogue)
    assert alternatives(_Operators(), described, "sm_100a", B200) == "it has some without the epilogue"


def test_a_matrix_of_elements_below_a_byte_is_not_stored():
    assert kernels(problem("D = accum; F = accum", {"F": {"extents": "MN", "dtype": "f4e2m1"}})) == []


def test_neighbouring_columns_are_where_a_thread_has_them():
    described = problem("D = accum + rotate_every_two(accum)", {})
    assert kernels(described, tile_shape=(64, 128, 64)) == []
    assert len(kernels(described, tile_shape=(128, 128, 64))) == 1
    assert len(kernels(described, tile_shape=(128, 128, 64), cluster_shape=(2, 1, 1), use_2cta_mma=True)) == 1
    assert len(kernels(problem("D = relu(accum)", {}), tile_shape=(64, 128, 64))) == 1


@pytest.mark.parametrize(
    ("text", "operands", "elementwise"),
    [
        ("D = silu(alpha * accum) * beta", {}, True),
        ("D = accum + C", {"C": MATRIX}, False),
        ("D = accum * scale", {"scale": {"extents": "1"}}, False),
        ("D = accum; F = accum", {"F": MATRIX}, False),
        ("D = accum; r = max(accum)", {"r": {"extents": "1"}}, False),
        ("D = rotate_every_two(accum)", {}, False),
    ],
)
def test_block_scaled_and_grouped_gemms_take_epilogues_of_numbers(text, operands, elementwise):
    assert is_elementwise(parse_epilogue(text, operands)) is elementwise
    assert is_elementwise(None)


# Random epilogues: for each operand what it is; its name is its place.

KINDS = (
    "matrix",
    "row",
    "column",
    "strided row",
    "strided column",
    "element",
    "number",
    "store",
    "sum of rows",
    "sum of columns",
    "sum of all",
)
EXTENTS = {
    "matrix": "MN", "row": "N", "column": "M", "strided row": "N1", "strided column": "M1",
    "element": "1", "number": "", "store": "MN",
    "sum of rows": "M", "sum of columns": "N", "sum of all": "1",
}  # fmt: skip
READ = ("matrix", "row", "column", "strided row", "strided column", "element", "number")


@st.composite
def epilogues(draw):
    kinds = draw(st.lists(st.sampled_from(KINDS), max_size=8))
    operands, read, outputs = {}, [], []
    for index, kind in enumerate(kinds):
        name = f"x{index}"
        entries = {"extents": EXTENTS[kind]}
        if kind in READ[:-1] or kind == "store":
            entries["dtype"] = draw(st.sampled_from(OPERAND_DTYPES))
        if kind in ("matrix", "store"):
            entries["layout"] = draw(st.sampled_from("tn"))
        if kind in ("matrix", "row", "column"):
            entries["transport"] = draw(st.sampled_from(("tma", "sync_gmem_load", "async_gmem_load")))
        operands[name] = entries
        if kind in READ:
            read.append(name)
        else:
            outputs.append(f"{name} = accum" if kind == "store" else f"{name} = sum(accum)")
    return parse_epilogue("; ".join([f"D = {' + '.join(['accum', *read])}", *outputs]), operands)


@st.composite
def built(draw):
    layouts = draw(st.sampled_from(("tnt", "ttn")))
    described = Problem("gemm", ("f16",) * 3, layouts, "f32", epilogue=draw(epilogues()))
    tile = (draw(st.sampled_from((64, 128))), draw(st.sampled_from((32, 64))), 64)
    (kernel,) = kernels(described, tile_shape=tile, cluster_shape=(draw(st.sampled_from((1, 2))), 1, 1))
    return described, kernel


@given(built())
def test_a_record_gives_its_epilogue_back(made):
    described, kernel = made
    again = epilogue_of(kernel)
    assert again.formula == described.epilogue.formula
    resolved = tuple(
        dataclasses.replace(operand, layout=operand.layout or described.layouts[2])
        if operand.extents == ("L", "M", "N")
        else operand
        for operand in described.epilogue.operands
    )
    assert again.operands == resolved
    assert from_plain(Problem, decode(encode(to_plain(described)), "it"), "a problem") == described


@given(built(), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_what_fits_the_record_is_taken(made, m, n, batched):
    _, kernel = made
    extents = {"M": 256 * m, "N": 64 * n, "K": 64}
    if batched:
        extents["L"] = 3
    assert supports(kernel.operands, packed(kernel.operands, extents))


@given(built(), st.data())
def test_what_does_not_fit_is_refused_by_its_name(made, data):
    _, kernel = made
    further = kernel.operands[3:]
    assume(further)
    given_operands = packed(kernel.operands, {"M": 256, "N": 64, "K": 64})
    place = 3 + data.draw(st.integers(0, len(further) - 1))
    constraint, right = kernel.operands[place], given_operands[place]
    wrong = []
    if constraint.is_number:
        wrong.append(describe((1,), "f32"))
    else:
        wrong.append(
            describe(right.shape, next(t for t in DTYPES if t != right.dtype), strides=right.strides)
        )
        wrong.append(describe((), "f32"))
        wrong.append(describe((*right.shape, 1), right.dtype))
        wrong.append(describe(tuple(2 * extent for extent in right.shape), right.dtype))
        if right.shape[-1] > 1:
            wrong.append(describe(right.shape, right.dtype, strides=tuple(3 * s for s in right.strides)))
        wrong.append(
            describe(right.shape, right.dtype, strides=right.strides, address=constraint.alignment // 2 or 1)
        )
    for operand in wrong:
        if operand.address and constraint.alignment == 1:
            continue
        operands = list(given_operands)
        operands[place] = operand
        verdict = supports(kernel.operands, operands)
        assert not verdict
        assert f"`{constraint.name}`" in verdict.reason
