"""The launcher in C: what it gives kernels, what it refuses, and the choices it remembers."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_aot.schema.kernels.artifact import EXPORT_PREFIX
from cutlass_aot.schema.kernels.constraints import OperandConstraint, Scale
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.operands import (
    MAX_EXTENT,
    MAX_STRIDE_BYTES,
    NOTHING,
    OperandDescription,
    describe,
    supports,
)
from tests.support.kernels import operand
from tests.support.native_launcher import (
    FLOAT,
    GEMM,
    INT,
    NONE,
    NUMBERS,
    TENSOR,
    TENSOR_POINTER,
    Function,
    Native,
    Refused,
    Seen,
    Tensor,
    product,
    tensors,
)
from tests.support.replace import replace
from tests.unit.runtime.test_tensors import descriptions, problems

tvm_ffi = pytest.importorskip("tvm_ffi")


@pytest.fixture(scope="module")
def native(launcher_library: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Native]:
    made = Native(launcher_library, tmp_path_factory.mktemp("kernels"))
    yield made
    gc.collect()


def expected_form(
    constraint: OperandConstraint, given: OperandDescription
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and strides to give a kernel for an operand that it supports; None to pass it as it is."""
    missing = len(constraint.extents) - len(given.shape)
    shape = (1,) * missing + given.shape
    strides = (0,) * missing + given.strides
    contiguous = len(shape) + constraint.contiguous
    regular = not missing and all(
        extent != 1
        or (stride == 1 if mode == contiguous else stride >= 0 and stride % constraint.divisibility == 0)
        for mode, (extent, stride) in enumerate(zip(shape, strides, strict=True))
    )
    if regular:
        return None
    span = max(1, *(extent * stride for extent, stride in zip(shape, strides, strict=True) if extent > 1), 1)
    # Elements from one batch to a next one that there is not, as a compact tensor would have it.
    beyond = -(-span // constraint.divisibility) * constraint.divisibility
    return shape, tuple(
        stride if extent != 1 else 1 if mode == contiguous else beyond
        for mode, (extent, stride) in enumerate(zip(shape, strides, strict=True))
    )


# -- what a kernel is given --------------------------------------------------------------------------------


def test_regular_operands_are_passed_as_they_are(native: Native) -> None:
    given = tensors(*product(batch=3))
    found = native.record(native.launch(GEMM), *given)
    assert [item.type_index for item in found] == [TENSOR_POINTER] * 3
    assert [item.value for item in found] == [ctypes.addressof(item.struct) for item in given]


def test_operands_without_a_batch_get_one(native: Native) -> None:
    a, b, out = native.record(native.launch(GEMM), *tensors(*product(m=64, n=32, k=16)))
    assert (a.shape, a.strides) == ((1, 64, 16), (1024, 16, 1))
    assert (b.shape, b.strides) == ((1, 16, 32), (512, 1, 16))
    assert (out.shape, out.strides) == ((1, 64, 32), (2048, 32, 1))


@pytest.mark.parametrize(
    ("shape", "strides", "given"),
    [
        ((1, 1, 16), (3, 5, 1), (16, 16, 1)),
        ((1, 4, 8), (7, 8, 1), (32, 8, 1)),
        ((2, 1, 8), (24, 3, 1), (24, 48, 1)),
        ((3, 1, 1), (8, 5, 2), (8, 24, 1)),
        ((1, 1, 1), (-1, 0, 9), (8, 8, 1)),
        ((1, 4, 16), (-64, 16, 1), (64, 16, 1)),
        ((4, 1, 8), (0, 5, 1), (0, 8, 1)),
    ],
)
def test_strides_of_extents_of_one_are_made_regular(
    native: Native, shape: tuple[int, ...], strides: tuple[int, ...], given: tuple[int, ...]
) -> None:
    launch = native.launch([operand("a")])
    (found,) = native.record(launch, Tensor(describe(shape, "f16", strides=strides, device=0)))
    assert (found.shape, found.strides) == (shape, given)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((1, 4, 8), (32, 8, 1)), ((1, 4, 8), (0, 8, 1)), ((1, 1, 8), (8, 16, 1)), ((5, 1, 8), (0, 8, 1))],
)
def test_extents_of_one_with_strides_that_suit_stay(
    native: Native, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    given = Tensor(describe(shape, "f16", strides=strides, device=0))
    (found,) = native.record(native.launch([operand("a")]), given)
    assert found.value == ctypes.addressof(given.struct)


def test_everything_else_of_a_tensor_stays(native: Native) -> None:
    given = Tensor(describe((4, 8), "bf16", address=4096, device=1), byte_offset=128, device_type=13)
    (found,) = native.record(native.launch([operand("a")]), given)
    assert (found.data, found.byte_offset) == (4096 - 128, 128)
    assert (found.device_type, found.device_id) == (13, 1)
    assert (found.code, found.bits, found.lanes) == (4, 16, 1)


@pytest.mark.parametrize("shape", [(4, 16), (2, 4, 16), (1, 4, 16), (2, 1, 8), (1, 1, 1)])
def test_strides_that_are_left_out_are_those_of_a_compact_tensor(
    native: Native, shape: tuple[int, ...]
) -> None:
    launch = native.launch([operand("a", divisibility=1)])
    given = describe(shape, "f16", device=0)
    with_strides = native.record(launch, Tensor(given))[0]
    without = native.record(launch, Tensor(given, strided=False))[0]
    assert without.strided
    kept = [mode for mode, extent in enumerate(without.shape) if extent > 1]
    assert without.shape == with_strides.shape == (1,) * (3 - len(shape)) + shape
    assert [without.strides[mode] for mode in kept] == [with_strides.strides[mode] for mode in kept]
    assert without.strides[2] == 1


def test_what_follows_the_operands_is_passed_on(native: Native) -> None:
    launch = native.launch(GEMM)
    workspace = Tensor(describe((64,), "u8", device=0))
    found = native.record(launch, *tensors(*product()), workspace, 12, None)
    assert [item.type_index for item in found] == [TENSOR_POINTER] * 4 + [INT, NONE]
    assert found[3].value == ctypes.addressof(workspace.struct)
    assert found[4].value == 12


def test_arguments_that_are_no_tensors_are_left_to_the_kernel(native: Native) -> None:
    launch = native.launch(GEMM)
    a, b, out = tensors(*product())
    found = native.record(launch, a, 7, out)
    assert [item.ndim for item in found] == [3, 0, 3]
    assert (found[1].type_index, found[1].value) == (INT, 7)
    found = native.record(launch, a, b, None)
    assert found[2].type_index == NONE


@pytest.mark.parametrize("rank", [1, 4, 5])
def test_another_rank_is_left_to_the_kernel(native: Native, rank: int) -> None:
    given = [Tensor(describe((8,) * rank, "f16", device=0)) for _ in GEMM]
    found = native.record(native.launch(GEMM), *given)
    assert [item.value for item in found] == [ctypes.addressof(item.struct) for item in given]


@pytest.mark.parametrize("rank", [-1, -2, -(2**31)])
@pytest.mark.parametrize("which", [0, 3])
def test_a_rank_below_0_is_refused(native: Native, rank: int, which: int) -> None:
    """Of an operand, and of scale factors."""
    given = given_scaled(scaled())
    given[which].struct.ndim = rank
    message = native.refused(native.launch(SCALED), *given)
    assert message == f"ValueError: argument #{which}: expected a rank of 0 or more, got {rank}"


@pytest.mark.parametrize("rank", [-1, -(2**31)])
def test_no_matrix_is_made_of_a_rank_below_0(native: Native, rank: int) -> None:
    linear = native.make("linear", native.dispatch_cache())
    given = tensors(*product())
    given[0].struct.ndim = rank
    assert linear(*given) is False


def test_errors_and_results_of_the_kernel_come_back(native: Native) -> None:
    with pytest.raises(Refused, match=r"^ValueError: Mismatched type on argument #1, expected f16$"):
        native.launch(GEMM, "fail")(*tensors(*product()))
    assert native.launch(GEMM, "number_5")(*tensors(*product())) == 5


def test_tensor_objects_of_tvm_ffi_are_seen_through(native: Native) -> None:
    np = pytest.importorskip("numpy")
    numbers = (native.address("record"), 3, 1, 8, 16, 2, 2, 0, 0, 0)
    launcher = tvm_ffi.Function.__from_extern_c__(
        ctypes.cast(native.launcher.__tvm_ffi_cutlass_aot_launcher, ctypes.c_void_p).value
    )
    given = np.zeros((4, 24), np.float16)[:, :16]
    launcher(*numbers)(tvm_ffi.from_dlpack(given))
    found = native.seen[0]
    assert (found.type_index, found.shape, found.strides) == (TENSOR_POINTER, (1, 4, 16), (96, 24, 1))
    assert found.data + found.byte_offset == given.ctypes.data
    launcher(*numbers)(tvm_ffi.from_dlpack(given[None, 1:]))
    assert (native.seen[0].type_index, native.seen[0].strides[1:]) == (TENSOR, (24, 1))


@given(operands=problems())
def test_forms_keep_every_element_where_it_is(
    native: Native, operands: tuple[OperandDescription, ...]
) -> None:
    given = tensors(*operands)
    found = native.record(native.launch(GEMM), *given)
    for constraint, described, own, item in zip(GEMM, operands, given, found, strict=True):
        form = expected_form(constraint, described)
        assert (item.value == ctypes.addressof(own.struct)) == (form is None)
        assert (item.shape, item.strides) == (form or (described.shape, described.strides))
        # The same in words: the same extents, and the same steps wherever there is more than one element.
        assert item.shape == (1,) * (3 - len(described.shape)) + described.shape
        kept = [step for extent, step in zip(item.shape, item.strides, strict=True) if extent > 1]
        assert kept == [
            step for extent, step in zip(described.shape, described.strides, strict=True) if extent > 1
        ]
        for mode, step in enumerate(item.strides):
            assert step == 1 if mode == 3 + constraint.contiguous else step % 8 == 0 and step >= 0
        assert item.data == described.address
        assert (item.device_type, item.device_id) == (2, described.device)


# -- what is refused ----------------------------------------------------------------------------------------


def changed(
    operands: Sequence[OperandDescription], which: int, mode: int, extent: int | None, stride: int | None
) -> list[Tensor]:
    found = list(operands)
    shape, strides = list(found[which].shape), list(found[which].strides)
    shape[mode] = shape[mode] if extent is None else extent
    strides[mode] = strides[mode] if stride is None else stride
    found[which] = replace(found[which], shape=tuple(shape), strides=tuple(strides))
    return tensors(*found)


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("extent", [0, -1, MAX_EXTENT + 1, 2**40, -(2**63)])
@pytest.mark.parametrize("mode", [-1, -2])
def test_impossible_extents(native: Native, batch: int | None, which: int, extent: int, mode: int) -> None:
    if not extent and GEMM[which].written:
        return  # test_nothing_is_launched_where_nothing_is_written
    error = native.refused(native.launch(GEMM), *changed(product(batch=batch), which, mode, extent, None))
    assert error == f"ValueError: argument #{which}: expected extents from 1 to 2^31 - 1, got {extent}"


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("extents", [{"m": 0}, {"n": 0}, {"m": 0, "k": 0}, {"m": 0, "n": 0}, {"batch": 0}])
def test_nothing_is_launched_where_nothing_is_written(
    native: Native, batch: int | None, extents: dict[str, int]
) -> None:
    operands = product(**{"batch": batch, **extents})
    assert supports(GEMM, operands)
    native.count.value = -1
    assert native.launch(GEMM)(*tensors(*operands)) is False
    assert native.count.value == -1


def test_what_is_not_empty_is_written_and_empty_sums_are_refused(native: Native) -> None:
    launch = native.launch([*GEMM, GEMM[2]._replace(name="max")])
    a, b, out = product(m=0)
    error = native.refused(launch, *tensors(a, b, out, product()[2]))
    assert error == "ValueError: argument #0: expected extents from 1 to 2^31 - 1, got 0"
    verdict = supports(GEMM, product(k=0))
    assert verdict.reason.endswith("got shape (64, 0): no kernel takes fewer; fill `out` (64, 32) yourself")
    error = native.refused(native.launch(GEMM), *tensors(*product(k=0)))
    assert error == "ValueError: argument #0: expected extents from 1 to 2^31 - 1, got 0"


def test_an_operand_that_is_not_written_does_not_say_that_nothing_is(native: Native) -> None:
    (empty,) = tensors(product(m=0)[0])
    with pytest.raises(Refused, match="expected extents from 1"):
        native.launch([operand("a")])(empty)


HEADS = (
    OperandConstraint("q", "bf16", ("B", "4 * G", "S", 64), -1, 8, 16),
    OperandConstraint("k", "bf16", ("B", "G", "T", 64), -1, 8, 16),
    OperandConstraint("starts", "i64", ("B + 1",), -1, 1, 8),
    OperandConstraint("pairs", "i32", ("2 * P - 1", "3 * P"), -1, 1, 4),
    OperandConstraint("bias", "none", (), 0, 1, 1),
    OperandConstraint("out", "bf16", ("B", "4 * G", "S", 64), -1, 8, 16, written=True),
)


def heads(b: int = 3, h: int = 8, g: int = 2, starts: int = 4, odd: int = 5, triple: int = 9) -> tuple:
    where = {"address": 1024, "device": 0}
    q = describe((b, h, 5, 64), "bf16", **where)
    return (
        q,
        describe((b, g, 7, 64), "bf16", **where),
        describe((starts,), "i64", **where),
        describe((odd, triple), "i32", **where),
        NOTHING,
        q,
    )


@given(
    b=st.sampled_from([1, 3, 4]),
    h=st.sampled_from([1, 4, 8, 9, 12]),
    g=st.integers(1, 3),
    starts=st.integers(1, 5),
    odd=st.integers(1, 6),
    triple=st.integers(1, 10),
)
def test_relations_between_extents_are_checked_as_in_python(native: Native, **extents: int) -> None:
    operands = heads(**extents)
    launch = native.launch(HEADS)
    given = [None if found is NOTHING else Tensor(found) for found in operands]
    if verdict := supports(HEADS, operands):
        assert native.record(launch, *given)[4].type_index == NONE
        return
    assert "expected an extent of" in verdict.reason or "since" in verdict.reason
    assert "expected an extent in its declared relation to the" in native.refused(launch, *given)


QUOTIENTS = (
    OperandConstraint("a_scale", "f32", ("L", "M", "K / 128"), -2, 1, 4),
    OperandConstraint("a", "f8e4m3", ("L", "M", "K"), -1, 1, 1),
    OperandConstraint("blocks", "i32", ("K / 3", "P / 2", "L / 4"), -1, 1, 4),
    OperandConstraint("pairs", "i32", ("L", "2 * P + 1"), -1, 1, 4),
    OperandConstraint("out", "bf16", ("L", "M"), -1, 1, 2, written=True),
)


def quotients(
    batch: int | None, m: int, k: int, scales: int, pairs: int, blocks: tuple[int, int, int]
) -> tuple[OperandDescription, ...]:
    where: dict[str, Any] = {"address": 1024, "device": 0}
    lead = () if batch is None else (batch,)
    steps = (*(() if batch is None else (scales * m,)), 1, m)
    return (
        describe((*lead, m, scales), "f32", strides=steps, **where),
        describe((*lead, m, k), "f8e4m3", **where),
        describe(blocks, "i32", **where),
        describe((*lead, pairs), "i32", **where),
        describe((*lead, m), "bf16", **where),
    )


@given(data=st.data())
def test_quotients_are_checked_as_in_python(native: Native, data: st.DataObject) -> None:
    batch = data.draw(st.sampled_from([None, 1, 4, 5, MAX_EXTENT]))
    k = data.draw(st.one_of(st.integers(1, 400), st.sampled_from([128, MAX_EXTENT])))
    p = data.draw(st.integers(0, 5))
    right = [-(-k // 128), 2 * p + 1, -(-k // 3), -(-p // 2), -(-(batch or 1) // 4)]
    # As they should be, or one of them off by a few.
    which = data.draw(st.integers(-1, 4))
    if which >= 0:
        right[which] = max(0, right[which] + data.draw(st.integers(-2, 2)))
    scales, pairs, *blocks = right
    operands = quotients(batch, 1, k, scales, pairs, (blocks[0], blocks[1], blocks[2]))
    launch = native.launch(QUOTIENTS)
    given = tensors(*operands)
    if verdict := supports(QUOTIENTS, operands):
        native.record(launch, *given)
        return
    error = native.refused(launch, *given)
    if any(0 in found.shape for found in operands):
        assert "expected extents from 1 to 2^31 - 1, got 0" in error
        return
    assert "expected an extent of" in verdict.reason or "since" in verdict.reason
    assert "expected an extent in its declared relation to the" in error


def test_a_quotient_that_is_wrong(native: Native) -> None:
    operands = quotients(None, 8, 129, 1, 3, (43, 1, 1))
    assert supports(QUOTIENTS, operands).reason == (
        "operand `a_scale` is unsupported: expected extent K / 128 = 2, since `a` has K = 129, got 1"
    )
    assert native.refused(native.launch(QUOTIENTS), *tensors(*operands)) == (
        "ValueError: argument #0: expected an extent in its declared relation to the 129 of argument #1, "
        "got 1"
    )


@pytest.mark.parametrize("batch", [None, 2])
def test_quotients_of_0_where_nothing_is_written(native: Native, batch: int | None) -> None:
    for m, k in ((0, 256), (0, 0)):
        operands = quotients(batch, m, k, k // 128, 3, (-(-k // 3), 1, 1))
        assert supports(QUOTIENTS, operands)
        native.count.value = -1
        assert native.launch(QUOTIENTS)(*tensors(*operands)) is False
        assert native.count.value == -1


@pytest.mark.parametrize(
    ("changed", "reason", "error"),
    [
        ({"g": 4}, "`k` is unsupported: expected extent G = 2, since `q` has 4 * G = 8, got 4",
         "argument #0: expected an extent in its declared relation to the 4 of argument #1, got 8"),
        ({"starts": 3}, "`starts` is unsupported: expected extent B + 1 = 4, since `q` has B = 3, got 3",
         "argument #2: expected an extent in its declared relation to the 3 of argument #0, got 3"),
        ({"h": 9}, "`q` is unsupported: expected an extent of 4 * G, got 9 in shape (3, 9, 5, 64)",
         "argument #0: expected an extent in its declared relation to the 2 of argument #1, got 9"),
        ({"triple": 12},
         "`pairs` is unsupported: expected extent 3 * P = 9, since `pairs` has 2 * P - 1 = 5, got 12",
         "argument #3: expected an extent in its declared relation to the 5 of argument #3, got 12"),
    ],
)  # fmt: skip
def test_an_extent_out_of_its_relation(
    native: Native, changed: dict[str, int], reason: str, error: str
) -> None:
    operands = heads(**changed)
    assert supports(HEADS, operands).reason == f"operand {reason}"
    given = [None if found is NOTHING else Tensor(found) for found in operands]
    assert native.refused(native.launch(HEADS), *given) == f"ValueError: {error}"


def test_an_extent_in_elements_of_four_bits_is_compared(native: Native) -> None:
    half = (
        OperandConstraint("x", "f4e2m1", ("M", "2 * K"), -1, 1, 1),
        OperandConstraint("scale", "f32", ("M", "K"), -1, 1, 4),
    )
    packed, scale = Tensor(describe((2, 8), "f4e2m1", device=0)), Tensor(describe((2, 8), "f32", device=0))
    packed.struct.lanes = 2
    launch = native.launch(half)
    assert len(native.record(launch, packed, scale)) == 2
    assert "got 16" in native.refused(launch, packed, Tensor(describe((2, 4), "f32", device=0)))


def test_extents_of_64_bits(native: Native) -> None:
    wide = operand("a", extent_bits=64)
    large = describe((2**31, 8), "f16", device=0)
    assert supports([wide], [large])
    assert native.record(native.launch([wide]), Tensor(large))[0].shape == (1, *large.shape)
    narrow = wide._replace(extent_bits=32)
    assert supports([narrow], [large]).reason.endswith(f"up to {MAX_EXTENT}, got shape {large.shape}")
    error = native.refused(native.launch([narrow]), Tensor(large))
    assert error == f"ValueError: argument #0: expected extents from 1 to 2^31 - 1, got {2**31}"


@pytest.mark.parametrize(
    "relation",
    [
        [9, 1, 4, 0, 0, 1, 1, 0], [-1, 1, 4, 0, 0, 1, 1, 0], [0, 3, 4, 0, 0, 1, 1, 0],
        [0, 0, 4, 0, 0, 1, 1, 0], [0, 1, 0, 0, 0, 1, 1, 0], [0, 1, 4, 0, 0, 1, -4, 0],
        [0, 1, -4, 1, 0, 1, 1, 0], [0, 1, -1, 0, 0, 1, 1, 0], [0, 1, -(2**31), 0, 0, 1, 1, 0],
        [0, 1, -(2**63), 0, 0, 1, 1, 0], [9, 1, -4, 0, 0, 1, 1, 0], [0, 3, -4, 0, 0, 1, 1, 0],
        [0, 1, 4, 2**31, 0, 1, 1, 0],
        [0, 1, 4, 0, 1, 1, 1, 0], [0, 1, 4, 0, 0, 4, 1, 0], [0, 1, 4, 0, 0, 1, 0, 0],
    ],
)  # fmt: skip
def test_an_impossible_relation_is_refused(native: Native, relation: list[int]) -> None:
    matrix = [2, 1, 8, 16, 2, 0, 0, 0, 0]
    with pytest.raises(Refused, match="ValueError: impossible relation"):
        native.make("launcher", 1, *matrix, -1, *relation)
    with pytest.raises(Refused, match="TypeError: expected the address of a kernel"):
        native.make("launcher", 1, *matrix, *[-1, 0, 1, 4, 0, 0, 1, 1, 0] * 17)


def test_the_largest_extent_is_passed(native: Native) -> None:
    operands = describe((MAX_EXTENT, 8), "f16", device=0), *product(k=8)[1:]
    found = native.record(native.launch(GEMM), *tensors(*operands))
    assert (found[0].shape, found[0].strides) == ((1, MAX_EXTENT, 8), (MAX_EXTENT * 8, 8, 1))


@pytest.mark.parametrize("stride", [-1, -8, -(2**63)])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_negative_strides(native: Native, which: int, stride: int) -> None:
    for mode in (-3, -2, -1):
        error = native.refused(native.launch(GEMM), *changed(product(batch=2), which, mode, None, stride))
        assert error == f"ValueError: argument #{which}: expected positive strides, got {stride}"


def test_a_stride_of_zero_is_refused_in_what_is_written_alone(native: Native) -> None:
    launch = native.launch(GEMM)
    for which in (0, 1):
        found = native.record(launch, *changed(product(batch=2), which, 0, None, 0))
        assert found[which].strides[0] == 0
    error = native.refused(launch, *changed(product(batch=2), 2, 0, None, 0))
    assert error == "ValueError: argument #2: expected positive strides, got 0"
    # Of one element there is nothing to write twice.
    assert native.record(launch, *changed(product(batch=1), 2, 0, None, 0))


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "i8"])
def test_strides_beyond_a_descriptor(native: Native, dtype: str) -> None:
    constraint = operand("a", dtype, divisibility=1)
    launch = native.launch([constraint])
    largest = MAX_STRIDE_BYTES // DTYPES[dtype].bytes

    def given(stride: int, extent: int = 2) -> Tensor:
        return Tensor(describe((extent, 8, 16), dtype, strides=(stride, 16, 1), device=0))

    assert native.record(launch, given(largest))[0].strides[0] == largest
    error = native.refused(launch, given(largest + 1))
    assert error == f"ValueError: argument #0: expected strides below 2^40 bytes, got {largest + 1}"
    assert native.record(launch, given(largest + 1, extent=1))


def test_a_reach_that_overflows(native: Native) -> None:
    launch = native.launch([operand("a", "i8", divisibility=8)])
    stride = 2**39 + 8
    for extent, passes in (
        ((2**63 - 1 - 8) // stride, True),
        ((2**63 - 1 - 8) // stride + 1, False),
        (MAX_EXTENT, False),
    ):
        given = describe((extent, 16), "i8", strides=(stride, 1), device=0)
        if passes:
            assert native.record(launch, Tensor(given))[0].strides == (
                -(-extent * stride // 8) * 8, stride, 1,
            )  # fmt: skip
        else:
            assert native.refused(launch, Tensor(given)) == (
                "ValueError: argument #0: expected an operand within 2^63 elements, "
                f"in a mode of stride, got {stride}"
            )


@pytest.mark.parametrize("which", [0, 1, 2])
def test_mixed_ranks(native: Native, which: int) -> None:
    launch = native.launch(GEMM)
    operands = list(product(batch=1))
    operands[which] = product()[which]
    error = native.refused(launch, *tensors(*operands))
    position = which or 1
    assert error == (
        f"ValueError: argument #{position}: expected a batch in all operands or in none, "
        f"got {len(operands[position].shape)}"
    )


SCALED = (
    replace(operand("a", "f4e2m1"), divisibility=32, compact=True),
    replace(operand("b", "f4e2m1", "n"), divisibility=32, compact=True),
    operand("out", "f16", written=True),
    OperandConstraint("a_scale", "f8e8m0", ("*",), -1, 1, 32, scale=Scale("a", 32, "K", "32x4x4")),
    OperandConstraint("alpha", "f32", (), 0, 1, 4),
    OperandConstraint("b_scale", "f8e8m0", ("*",), -1, 1, 32, scale=Scale("b", 32)),
    OperandConstraint("bias", "f32", ("N",), -1, 1, 4),
)


def scaled(*, batch: int | None = None, m: int = 130, n: int = 64, k: int = 160) -> list[Any]:
    """Tensors for ``SCALED``: 5 factors a row, in tiles of 128 x 4 for a."""
    first = () if batch is None else (batch,)
    count = (batch or 1) * 256 * 8
    return [
        describe((*first, m, k), "f4e2m1", device=0),
        describe((*first, k, n), "f4e2m1", strides=(*(k * n for _ in first), 1, k), device=0),
        describe((*first, m, n), "f16", device=0),
        describe((count // 4, 4), "f8e8m0", device=0),
        None,
        describe(((batch or 1) * n, 5), "f8e8m0", device=0),
        describe((n,), "f32", device=0),
    ]


def given_scaled(operands: list[Any]) -> list[Any]:
    return [0.5 if item is None else tensors(item)[0] for item in operands]


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_scale_factors_are_flattened_and_numbers_and_vectors_passed_on(
    native: Native, batch: int | None
) -> None:
    found = native.record(native.launch(SCALED), *given_scaled(scaled(batch=batch)))
    assert (found[3].ndim, found[3].shape, found[3].strides) == (1, ((batch or 1) * 2048,), (1,))
    assert (found[5].ndim, found[5].shape) == (1, ((batch or 1) * 320,))
    assert found[4].type_index == FLOAT
    assert (found[6].ndim, found[6].shape) == (1, (64,))
    assert found[0].shape == (batch or 1, 130, 160)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ((3, describe((2047,), "f8e8m0", device=0)), "#3: expected 2048 scale factors, got 2047"),
        ((5, describe((64, 4), "f8e8m0", device=0)), "#5: expected 320 scale factors, got 256"),
        (
            (5, describe((64, 5), "f8e8m0", strides=(8, 1), device=0)),
            "#5: expected a compact tensor of scale factors, with another stride, got 8",
        ),
        ((5, describe((64, 0), "f8e8m0", device=0)), "#5: expected extents from 1 to 2^31 - 1, got 0"),
        (
            (0, describe((130, 160), "f4e2m1", strides=(192, 1), device=0)),
            "#0: expected a compact tensor, with another stride, got 192",
        ),
        (
            (1, describe((160, 64), "f4e2m1", strides=(1, 192), device=0)),
            "#1: expected a compact tensor, with another stride, got 192",
        ),
    ],
)
def test_scale_factors_and_gaps_are_looked_at(native: Native, change: tuple[int, Any], error: str) -> None:
    operands = scaled()
    operands[change[0]] = change[1]
    refused = native.refused(native.launch(SCALED), *given_scaled(operands))
    assert refused == f"ValueError: argument {error}"
    # The same rule, over descriptions.
    described = [describe((), "f32") if item is None else item for item in operands]
    verdict = supports(SCALED, described)
    assert not verdict


def test_what_is_taken_is_supported() -> None:
    for batch in (None, 1, 3):
        described = [describe((), "f32") if item is None else item for item in scaled(batch=batch)]
        assert supports(SCALED, described)


@pytest.mark.parametrize(("declared", "given"), [("i8", "u8"), ("u8", "i8")])
def test_a_sign_that_compiled_code_does_not_look_at(native: Native, declared: str, given: str) -> None:
    constraints = [replace(constraint, dtype=declared) for constraint in GEMM]
    operands = [replace(of, dtype=declared) for of in product()]
    launch = native.launch(constraints)
    assert len(native.record(launch, *tensors(*operands))) == 3
    operands[1] = replace(operands[1], dtype=given)
    kind = "unsigned integers, DLPack code 1" if declared == "u8" else "signed integers, DLPack code 0"
    assert native.refused(launch, *tensors(*operands)).startswith(f"ValueError: argument #1: expected {kind}")
    assert not supports(constraints, operands)


def test_elements_that_pack_two_are_unpacked(native: Native) -> None:
    launch = native.launch(SCALED)
    operands = given_scaled(scaled())
    packed = describe((130, 80), "f4e2m1", device=0)
    operands[0] = tensors(packed)[0]
    operands[0].struct.lanes = 2
    found = native.record(launch, *operands)[0]
    assert (found.bits, found.lanes, found.shape, found.strides[1:]) == (4, 1, (1, 130, 160), (160, 1))


def test_too_few_and_too_many_arguments(native: Native) -> None:
    launch = native.launch(GEMM)
    given = tensors(*product())
    for count in (0, 1, 2):
        assert native.refused(launch, *given[:count]) == f"TypeError: expected 3 operands, got {count}"
    assert len(native.record(launch, *given, *[0] * 21)) == 24
    assert native.refused(launch, *given, *[0] * 22) == "TypeError: expected 3 operands, got 25"


@pytest.mark.parametrize(
    ("numbers", "error"),
    [
        ([], "TypeError: expected the address"),
        ([1], "TypeError: expected the address"),
        ([1, 3, 1, 8, 16, 2, 2, 0, 0], "TypeError: expected the address"),
        ([1, *[3, 1, 8, 16, 2, 2, 0, 0, 0] * 17], "TypeError: expected the address"),
        ([1, 3, 1, 8, 16, 2, 2, 0, 0, None], "TypeError: expected integers"),
        ([0, 3, 1, 8, 16, 2, 2, 0, 0, 0], "ValueError: impossible operand, or no kernel"),
        ([1, -2, 1, 8, 16, 2, 2, 0, 0, 0], "ValueError: impossible operand"),
        ([1, -1, 0, 1, 4, 0, 0, 1, 1, 0], "TypeError: expected the address"),
        ([1, 0, 1, 8, 16, 2, 2, 0, 0, 0], "ValueError: impossible operand"),
        ([1, 9, 1, 8, 16, 2, 2, 0, 0, 0], "ValueError: impossible operand"),
        ([1, 3, 0, 8, 16, 2, 2, 0, 0, 0], "ValueError: impossible operand"),
        ([1, 3, 4, 8, 16, 2, 2, 0, 0, 0], "ValueError: impossible operand"),
        ([1, 3, 1, 0, 16, 2, 2, 0, 0, 0], "ValueError: impossible operand"),
        ([1, 3, 1, 2**31, 16, 2, 2, 0, 0, 0], "ValueError: impossible operand"),
        ([1, 3, 1, 2**63 - 1, 16, 2, 2, 0, 0, 0], "ValueError: impossible operand"),
        ([1, 3, 1, 8, 0, 2, 2, 0, 0, 0], "ValueError: impossible operand"),
        ([1, 3, 1, 8, 65, 2, 2, 0, 0, 0], "ValueError: impossible operand"),
        ([1, 1, 1, 1, 8, 2, 8, 1, 1, 32], "ValueError: impossible operand"),
        ([1, 1, 1, 1, 8, 2, 8, -1, 1, 32], "ValueError: impossible operand"),
        ([1, 1, 1, 1, 8, 2, 8, 0, 0, 32], "ValueError: impossible operand"),
        ([1, 1, 1, 1, 8, 2, 8, 0, 1, 0], "ValueError: impossible operand"),
        ([1, 1, 1, 1, 8, 2, 8, 0, 1, 2**63 - 1], "ValueError: impossible operand"),
    ],
)
def test_a_launch_function_that_cannot_be_made(native: Native, numbers: list[Any], error: str) -> None:
    with pytest.raises(Refused, match=error):
        native.make("launcher", *numbers)


def test_as_many_operands_as_there_may_be(native: Native) -> None:
    launch = native.launch([operand("a")] * 16)
    given = [Tensor(describe((4, 8), "f16", device=0)) for _ in range(16)]
    assert {item.shape for item in native.record(launch, *given)} == {(1, 4, 8)}


# -- the launcher and supports() are one rule ---------------------------------------------------------------


def compiled_code_accepts(constraints: Sequence[OperandConstraint], found: Sequence[Seen]) -> bool:
    """What compiled code checks of the tensors that it is given."""
    extents: dict[str, int] = {}
    for constraint, item in zip(constraints, found, strict=True):
        contiguous = len(constraint.extents) + constraint.contiguous
        if (
            (item.code, item.bits) != DTYPES[constraint.dtype].dlpack
            or item.lanes != 1
            or item.device_type != 2
            or item.device_id != found[0].device_id
            or item.ndim != len(constraint.extents)
            or item.strides[contiguous] != 1
            or item.shape[contiguous] % constraint.divisibility
            or (item.data + item.byte_offset) % constraint.alignment
        ):
            return False
        for mode, (name, extent, stride) in enumerate(
            zip(constraint.extents, item.shape, item.strides, strict=True)
        ):
            if mode != contiguous and stride % constraint.divisibility:
                return False
            if extents.setdefault(name, extent) != extent:
                return False
    return True


def agree(
    native: Native, constraints: Sequence[OperandConstraint], operands: Sequence[OperandDescription]
) -> bool:
    """Hold the launcher with compiled code behind it against ``supports``; whether they accept."""
    native.count.value = -1
    try:
        if native.launch(constraints)(*tensors(*operands)) is False:
            # Nothing to do: native code leaves the checks to Python.
            assert native.count.value == -1
            assert all(0 in operands[i].shape for i, item in enumerate(constraints) if item.written)
            return bool(supports(constraints, operands))
        accepted = compiled_code_accepts(constraints, native.seen[: len(operands)])
    except Refused:
        assert native.count.value == -1
        accepted = False
    verdict = supports(constraints, operands)
    assert accepted == bool(verdict), verdict.reason
    return accepted


def on_a_device(operands: Sequence[OperandDescription]) -> list[OperandDescription]:
    """What has no device is not a tensor that could be launched on."""
    return [replace(o, device=0 if o.device is None else o.device) for o in operands]


@given(st.lists(descriptions(), min_size=3, max_size=3))
def test_any_operands_are_judged_alike(native: Native, operands: list[OperandDescription]) -> None:
    agree(native, GEMM, on_a_device(operands))


EXTENTS = st.one_of(st.integers(0, 20), st.sampled_from([2**31 - 8, 2**31 - 1, 2**31, 2**40, 2**62, -5]))
STRIDES = st.one_of(
    st.integers(-3, 40),
    st.sampled_from(
        [2**31, 2**32, 2**38, 2**39 - 8, 2**39, 2**40 - 1, 2**40, 2**60, 2**62, 2**63 - 1, -(2**63)]
    ),
)


@st.composite
def nearly_right(draw: st.DrawFn) -> tuple[tuple[OperandConstraint, ...], list[OperandDescription]]:
    """Operands of a product with a few things about them changed, and constraints."""
    operands = list(draw(problems()))
    constraints = tuple(
        replace(
            constraint,
            divisibility=draw(st.sampled_from([1, 8, 8, 16])),
            alignment=draw(st.sampled_from([1, 16, 16, 32])),
        )
        for constraint in GEMM
    )
    for _ in range(draw(st.integers(0, 3))):
        which = draw(st.integers(0, 2))
        old = operands[which]
        shape, strides = list(old.shape), list(old.strides)
        mode = draw(st.integers(0, len(shape) - 1))
        what = draw(
            st.sampled_from(["extent", "stride", "one", "dtype", "device", "address", "batch", "both"])
        )
        if what in ("extent", "both"):
            shape[mode] = draw(EXTENTS)
        if what in ("stride", "both"):
            strides[mode] = draw(STRIDES)
        if what == "one":
            shape[mode], strides[mode] = 1, draw(STRIDES)
        if what == "batch":
            shape, strides = (
                (shape[1:], strides[1:]) if len(shape) == 3 else ([1, *shape], [draw(STRIDES), *strides])
            )
        operands[which] = OperandDescription(
            draw(st.sampled_from(list(DTYPES))) if what == "dtype" else old.dtype,
            tuple(shape),
            tuple(strides),
            draw(st.integers(0, 64)) if what == "address" else old.address,
            draw(st.sampled_from([-1, 0, 1])) if what == "device" else old.device,
        )
    return constraints, operands


@settings(max_examples=300)
@given(nearly_right())
def test_operands_that_are_nearly_right_are_judged_alike(
    native: Native, case: tuple[tuple[OperandConstraint, ...], list[OperandDescription]]
) -> None:
    agree(native, *case)


@given(problems())
def test_right_operands_are_accepted_by_both(
    native: Native, operands: tuple[OperandDescription, ...]
) -> None:
    assert agree(native, GEMM, operands)


# -- the dispatch cache: what is remembered, and for what ---------------------------------------------------


@pytest.fixture(scope="module")
def numbered(native: Native) -> list[Function]:
    """Functions that take anything and return their number."""
    return [native.plain(f"number_{number}") for number in range(NUMBERS)]


def test_a_choice_is_missed_taught_and_hit(native: Native, numbered: list[Function]) -> None:
    choose = native.dispatch_cache()
    (given,) = tensors(describe((4, 8), "f16", device=0))
    assert choose(given) is False
    assert choose(given, numbered[3]) == 1
    assert choose(given) == 3
    # Another tensor like it.
    assert choose(*tensors(describe((4, 8), "f16", device=0, address=4096))) == 3
    # What is taught last holds; nothing is taken away.
    assert choose(given, numbered[4]) == 2
    assert choose(given) == 4


LIKE = describe((2, 4, 8), "f16", strides=(32, 8, 1), address=4096, device=0)


@pytest.mark.parametrize(
    "other",
    [
        replace(LIKE, dtype="bf16"),
        replace(LIKE, dtype="i8"),
        replace(LIKE, shape=(2, 4, 16)),
        replace(LIKE, shape=(4, 2, 8)),
        replace(LIKE, strides=(64, 8, 1)),
        replace(LIKE, strides=(32, 1, 4)),
        replace(LIKE, shape=(4, 8), strides=(8, 1)),
        replace(LIKE, shape=(2, 4, 8, 1), strides=(32, 8, 1, 1)),
        replace(LIKE, device=1),
        replace(LIKE, device=-1),
        replace(LIKE, address=4096 + 8),
        replace(LIKE, address=4096 + 1),
    ],
)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_operands_that_differ_in_anything_are_not_alike(
    native: Native, numbered: list[Function], other: OperandDescription, position: int
) -> None:
    choose = native.dispatch_cache(16)
    launch = native.launch([operand("a")] * 3, "number_6")
    assert choose(*tensors(LIKE, LIKE, LIKE), launch) == 1
    changed = [LIKE, LIKE, LIKE]
    changed[position] = other
    assert choose(*tensors(*changed)) is False
    assert choose(*tensors(LIKE, LIKE, LIKE)) == 6


def test_operands_are_not_told_apart_by_what_does_not_matter(
    native: Native, numbered: list[Function]
) -> None:
    choose = native.dispatch_cache(48)
    choose(Tensor(LIKE), numbered[1])
    for address in (4096 + 48, 4096 + 48 * 1000, 4096 - 48):
        assert choose(Tensor(replace(LIKE, address=address))) == 1
    for address in (4096 + 16, 4096 + 32):
        assert choose(Tensor(replace(LIKE, address=address))) is False
    # The offset of a view counts as part of its address.
    assert choose(Tensor(LIKE, byte_offset=16)) == 1


def test_memory_of_another_kind_is_another_device(native: Native, numbered: list[Function]) -> None:
    choose = native.dispatch_cache()
    choose(Tensor(LIKE), numbered[1])
    assert choose(Tensor(LIKE, device_type=13)) is False
    assert choose(Tensor(LIKE, device_type=2)) == 1


def test_operands_in_another_order_or_number_are_not_alike(native: Native, numbered: list[Function]) -> None:
    choose = native.dispatch_cache()
    a, b, out = tensors(*product())
    choose(a, b, out, numbered[1])
    for other in ((b, a, out), (a, b), (a, b, out, out), (a,), ()):
        assert choose(*other) is False
    assert choose(a, b, out) == 1


def test_numbers_are_alike_if_they_are_of_one_type(native: Native, numbered: list[Function]) -> None:
    choose = native.dispatch_cache()
    (a,) = tensors(LIKE)
    assert choose(a, 0.5, numbered[3]) == 1
    assert choose(a, 0.25) == 3
    assert choose(a, 1) is False
    assert choose(a, None) is False
    assert choose(a) is False
    assert choose(a, None, numbered[4]) == 2
    assert choose(a, None) == 4


def test_what_cannot_be_remembered_is_not(native: Native, numbered: list[Function]) -> None:
    choose = native.dispatch_cache()
    (a,) = tensors(LIKE)
    deep = Tensor(describe((1,) * 9, "f16", device=0))
    for arguments in ([Tensor(LIKE, strided=False)], [deep], [b""], [a, b""], [a] * 17):
        assert choose(*arguments) is False
        assert choose(*arguments, numbered[1]) == 0
        assert choose(*arguments) is False
    assert choose(*[a] * 16, numbered[1]) == 1
    assert choose(*[a] * 16) == 1
    # A function without operands before it is asked from then on, and launches nothing here.
    assert choose(numbered[1]) == 1
    assert choose(a, a, a) is False


def test_what_the_remembered_function_raises_is_raised(native: Native) -> None:
    choose = native.dispatch_cache()
    (a,) = tensors(LIKE)
    choose(a, native.launch([operand("a")], "fail"))
    with pytest.raises(Refused, match="ValueError: Mismatched type on argument #1"):
        choose(a)
    choose(a, native.launch([operand("a", written=True)]))
    zero = Tensor(replace(LIKE, strides=(0, 8, 1)))
    choose(zero, native.launch([operand("a", written=True)]))
    with pytest.raises(Refused, match="argument #0: expected positive strides, got 0"):
        choose(zero)


@pytest.mark.parametrize("arguments", [(), (0,), (-16,), (None,), (16, 16)])
def test_a_dispatch_cache_that_cannot_be_made(native: Native, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(Refused, match="TypeError: expected an alignment in bytes"):
        native.make("dispatch_cache", *arguments)


def test_many_choices_are_each_found_again(native: Native, numbered: list[Function]) -> None:
    choose = native.dispatch_cache()
    count = 20_000
    # One tensor that is changed in place: making one for each would be most of the time.
    given = Tensor(describe((1, 8), "f16", device=0))
    for m in range(1, count + 1):
        given.shape[0] = m
        assert choose(given, numbered[m % NUMBERS]) == m
    for m in range(1, count + 1):
        given.shape[0] = m
        assert choose(given) == m % NUMBERS
    for m in range(count + 1, count + 1000):
        given.shape[0] = m
        assert choose(given) is False


def hash_of(words: Sequence[int]) -> int:
    """The dispatch cache's hash: a bijection of each word, so that a last word can give any hash there is."""
    value = 0
    for word in words:
        value = (value ^ word % 2**64) * 0x9E3779B97F4A7C15 % 2**64
        value ^= value >> 32
    return value


def key_of(given: OperandDescription) -> list[int]:
    code, bits = DTYPES[given.dtype].dlpack
    kind = (code << 24 | bits << 16 | 1) << 32 | len(given.shape)
    return [kind, 2 << 32 | 0, given.address % 16, *given.shape, *given.strides]


def test_keys_of_one_hash_are_told_apart(native: Native, numbered: list[Function]) -> None:
    choose = native.dispatch_cache()
    first = describe((4, 8), "f16", device=0)
    prefix = hash_of(key_of(first)[:-1])
    alike = [first]
    for m in range(5, 5 + NUMBERS - 1):
        other = replace(first, shape=(m, 8))
        # The last word that takes the hash from where the first's stood to the same end.
        last = hash_of(key_of(other)[:-1]) ^ prefix ^ first.strides[-1]
        last -= 2**64 if last >= 2**63 else 0
        alike.append(replace(other, strides=(8, last)))
    assert len({hash_of(key_of(item)) for item in alike}) == 1
    for number, item in enumerate(alike):
        assert choose(Tensor(item)) is False
        choose(Tensor(item), numbered[number])
    assert [choose(Tensor(item)) for item in alike] == list(range(NUMBERS))


# -- the dispatch cache: threads, lifetimes, processes ------------------------------------------------------


def test_threads_teach_and_call_at_once(native: Native, numbered: list[Function]) -> None:
    """Whatever is remembered is whole: a hit is always the right one, and nothing taught is lost."""
    choose, threads, count = native.dispatch_cache(), 6, 1500
    start, failures = threading.Barrier(threads), []

    def work(own: int) -> None:
        given = Tensor(describe((1, 8), "f16", device=0))
        start.wait()
        try:
            for m in range(count):
                # Half of the keys are taught by all threads at once, the others by one.
                given.shape[0] = m if m % 2 else m * threads + own + 1
                given.strides[0] = 8 if m % 2 else 16
                expected = given.shape[0] % NUMBERS
                assert choose(given) in (False, expected)
                choose(given, numbered[expected])
                assert choose(given) == expected
                given.shape[0], given.strides[0] = 2 * (m // 4) + 1, 8
                assert choose(given) in (False, given.shape[0] % NUMBERS)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(own,)) for own in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    given = Tensor(describe((1, 8), "f16", device=0))
    for m in range(count):
        for own in range(threads):
            given.shape[0] = m if m % 2 else m * threads + own + 1
            given.strides[0] = 8 if m % 2 else 16
            assert choose(given) == given.shape[0] % NUMBERS
    assert choose(given, numbered[0]) == threads * count + 1


def test_a_dispatch_cache_holds_what_it_remembers_and_lets_it_go(native: Native) -> None:
    choose = native.dispatch_cache()
    launch = native.launch([operand("a")], "number_2")
    assert launch.references == 1
    for m in (1, 2, 3):
        choose(Tensor(describe((m, 8), "f16", device=0)), launch)
    assert launch.references == 4
    choose(Tensor(describe((3, 8), "f16", device=0)))
    assert launch.references == 4
    del choose
    assert launch.references == 1


def python_functions(native: Native) -> tuple[Any, Any]:
    """The launcher's own functions as the runtime calls them."""
    dispatch_cache, launcher = (
        tvm_ffi.Function.__from_extern_c__(
            ctypes.cast(getattr(native.launcher, f"{EXPORT_PREFIX}cutlass_aot_{name}"), ctypes.c_void_p).value
        )
        for name in ("dispatch_cache", "launcher")
    )
    return dispatch_cache, launcher


def test_python_functions_are_remembered_and_freed(native: Native) -> None:
    np = pytest.importorskip("numpy")

    class Called:
        def __init__(self) -> None:
            self.count = 0

        def __call__(self, *arguments: Any) -> None:
            self.count += 1

    called = Called()
    gone = weakref.ref(called)
    dispatch_cache, _ = python_functions(native)
    choose = dispatch_cache(16)
    given = np.zeros((4, 8), np.float16)
    assert choose(given) is False
    assert choose(given, tvm_ffi.convert(called)) == 1
    assert choose(given) is None
    assert called.count == 1
    del called
    gc.collect()
    assert gone() is not None
    assert choose(given) is None
    del choose
    gc.collect()
    assert gone() is None


def test_a_dispatch_cache_that_is_dropped_while_it_is_called_goes_afterwards(native: Native) -> None:
    np = pytest.importorskip("numpy")
    dispatch_cache, _ = python_functions(native)
    box = [dispatch_cache(16)]
    entered, leave = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        entered.set()
        assert leave.wait(30)

    gone = weakref.ref(slow)
    given = np.zeros((4, 8), np.float16)
    box[0](given, tvm_ffi.convert(slow))
    del slow
    results: list[Any] = []

    def call() -> None:
        choose = box[0]
        results.append(choose(given))

    worker = threading.Thread(target=call)
    worker.start()
    assert entered.wait(30)
    box.clear()
    gc.collect()
    assert gone() is not None
    leave.set()
    worker.join()
    assert results == [None]
    gc.collect()
    assert gone() is None


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_fork_has_its_own_memory_of_choices(native: Native, numbered: list[Function]) -> None:
    choose = native.dispatch_cache()
    old, new = (Tensor(describe((m, 8), "f16", device=0)) for m in (4, 5))
    choose(old, numbered[1])
    stop = threading.Event()

    def teach() -> None:
        # Teaching goes on in the parent while it forks: no lock can be left held.
        own = Tensor(describe((1, 16), "f16", device=0))
        while not stop.is_set():
            own.shape[0] += 1
            choose(own, numbered[2])

    worker = threading.Thread(target=teach)
    worker.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                right = choose(old) == 1 and choose(new) is False
                choose(new, numbered[3])
                os._exit(0 if right and choose(new) == 3 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        worker.join()
    assert choose(new) is False
    assert choose(old) == 1
