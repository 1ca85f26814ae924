"""Any operands that can be described: no crash, and no kernel offered for operands that it does not support.

What a kernel supports is restated here from its constraints' documentation, in terms of bytes and addresses,
without the code that decides it.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

import cutlass_aot
from cutlass_aot.errors import DeviceError, Incompatible, KernelNotFound, OperandError
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.operands import OperandDescription
from tests.support.bundles import designs, write_bundle
from tests.support.kernels import operand

GROUPS: list[dict[str, Any]] = [
    {"dtypes": ("f16", "f16", "f16"), "layouts": "tnt"},
    {"dtypes": ("f16", "f16", "f16"), "layouts": "ttt"},
    {"dtypes": ("f16", "f16", "f16"), "layouts": "tnt", "accumulator": "f16"},
    {"dtypes": ("f16", "f16", "f32"), "layouts": "nnn"},
    {"dtypes": ("bf16", "bf16", "bf16"), "layouts": "tnt"},
    {"dtypes": ("bf16", "bf16", "bf16"), "layouts": "tnt", "target": "sm_80"},
    {"dtypes": ("i8", "i8", "i32"), "layouts": "tnt", "accumulator": "i32", "target": "sm_80"},
    {"dtypes": ("f16", "f16", "f16"), "layouts": "tnt", "epilogue": "relu"},
    {"dtypes": ("f16", "f16", "f16"), "layouts": "tnt", "operation": "scale"},
]
TARGETS = ("sm_80", "sm_90a")
WIDEST = 2**31 - 1

INTERESTING = [
    *(-(2**40), -8, -1, 0, 1, 2, 3, 4, 7, 8, 12, 16, 17, 64, 4096, 65536),
    *(2**31 - 8, WIDEST, 2**31, 2**32, 2**33, 2**36, 2**39, 2**40, 2**62),
]
EXTENTS = st.sampled_from([number for number in INTERESTING if 0 <= number <= 2**33])
STRIDES = st.sampled_from(INTERESTING)
ADDRESSES = st.sampled_from([0, 1, 2, 8, 15, 16, 48, 256, 2**47 - 16, 2**47 + 1])
DEVICES = st.sampled_from([None, None, None, -1, 0, 1, 63, 2**31])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    plain = [kernel for group in GROUPS for kernel in designs(**group)]
    # Wider and narrower constraints than the others': element by element, and 32 bytes.
    loose = [
        operand(name, "f32", layout, divisibility=1, alignment=4)
        for name, layout in zip(("a", "b", "out"), "ttt", strict=True)
    ]
    strict = [
        operand(name, "f8e4m3", layout, divisibility=32, alignment=32)
        for name, layout in zip(("a", "b", "out"), "tnt", strict=True)
    ]
    odd = [kernel for operands in (loose, strict) for kernel in designs(operands=tuple(operands))]
    return cutlass_aot.open(write_bundle(tmp_path_factory.mktemp("fuzz") / "bundle", plain + odd))


def served(constraint: Any, tensor: OperandDescription) -> bool:
    """Whether one operand meets one constraint."""
    width = DTYPES[constraint.dtype].bytes
    if constraint.dtype != tensor.dtype or len(tensor.shape) not in (2, 3) or tensor.device == -1:
        return False
    if not all(0 <= extent <= WIDEST for extent in tensor.shape):
        return False
    unit = constraint.divisibility * width
    contiguous = len(tensor.shape) - (1 if constraint.layout == "t" else 2)
    if 0 in tensor.shape:
        # No memory, so that neither strides nor the address mean anything.
        return not tensor.shape[contiguous] * width % unit
    for mode, (extent, stride) in enumerate(zip(tensor.shape, tensor.strides, strict=True)):
        if mode == contiguous:
            # Neighbours lie side by side; the rows are whole units.
            if extent * width % unit or (extent > 1 and stride != 1):
                return False
        elif extent > 1:
            step = stride * width
            least = 1 if constraint.written else 0
            if not least <= step < 2**40 or step % unit:
                return False
            # Launch code counts elements in 64 bits.
            if extent * stride + constraint.divisibility >= 2**63:
                return False
    return not tensor.address % constraint.alignment


def supported(group: Any, tensors: tuple[OperandDescription, ...]) -> bool:
    """Whether a group's kernels support operands."""
    if len(tensors) != len(group.operands):
        return False
    if not all(served(c, t) for c, t in zip(group.operands, tensors, strict=True)):
        return False
    if len({len(tensor.shape) for tensor in tensors}) > 1 or len({tensor.device for tensor in tensors}) > 1:
        return False
    if any(0 in tensor.shape for tensor in tensors) and 0 not in tensors[-1].shape:
        # Empty sums, which no kernel writes.
        return False
    (*l_a, m_a, k_a), (*l_b, k_b, n_b), (*l_out, m_out, n_out) = (tensor.shape for tensor in tensors)
    return (m_a, k_a, n_b) == (m_out, k_b, n_out) and l_a == l_b == l_out


@st.composite
def problems(draw: Any) -> tuple[OperandDescription, ...]:
    """Operands that suit some group, but for what was changed: nothing, or up to three things."""
    dtypes, layouts = draw(
        st.sampled_from(
            [
                (("f16",) * 3, "tnt"), (("f16",) * 3, "ttt"), (("f16", "f16", "f32"), "nnn"),
                (("bf16",) * 3, "tnt"), (("i8", "i8", "i32"), "tnt"), (("f32",) * 3, "ttt"),
                (("f8e4m3",) * 3, "tnt"),
            ]
        )
    )  # fmt: skip
    extent = st.sampled_from([1, 1, 1, 8, 16, 32, 64, 4096, 65536, 0, 2**31 - 32, 2**31])
    m, n, k, batch = (draw(extent) for _ in range(4))
    batched = draw(st.booleans())
    device = draw(st.sampled_from([None] * 8 + [-1, 0]))
    tensors = []
    for dtype, layout, (rows, columns) in zip(dtypes, layouts, ((m, k), (k, n), (m, n)), strict=True):
        inner, outer = (columns, rows) if layout == "t" else (rows, columns)
        pitch = inner + draw(st.sampled_from([0, 0, 32]))
        strides = [pitch, 1] if layout == "t" else [1, pitch]
        shape = [rows, columns]
        if batched:
            shape, strides = [batch, *shape], [draw(st.sampled_from([outer * pitch, 0])), *strides]
        tensors.append([dtype, shape, strides, 0, device])
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 1, 2, 3]))):
        changed = draw(st.sampled_from(tensors))
        what = draw(st.sampled_from(["dtype", "extent", "stride", "idle", "address", "device", "rank"]))
        if what == "dtype":
            changed[0] = draw(st.sampled_from([*DTYPES]))
        elif what in ("extent", "stride"):
            values = changed[1 if what == "extent" else 2]
            if values:
                index = draw(st.integers(0, len(values) - 1))
                values[index] = draw(EXTENTS if what == "extent" else STRIDES)
        elif what == "idle":
            # A stride that leads nowhere may be anything.
            steps = [
                draw(STRIDES) if extent == 1 else step for extent, step in zip(*changed[1:3], strict=True)
            ]
            changed[2] = steps
        elif what == "address":
            changed[3] = draw(ADDRESSES)
        elif what == "device":
            changed[4] = draw(DEVICES)
        elif draw(st.booleans()):
            changed[1], changed[2] = [draw(EXTENTS), *changed[1]], [draw(STRIDES), *changed[2]]
        else:
            changed[1], changed[2] = changed[1][1:], changed[2][1:]
    found = [_described(*tensor) for tensor in tensors]
    order = draw(st.sampled_from([(0, 1, 2)] * 10 + [(1, 0, 2), (0, 1), (), (0, 1, 2, 2)]))
    return tuple(found[index] for index in order)


@st.composite
def anything(draw: Any) -> tuple[OperandDescription, ...]:
    """Operands that have nothing to do with each other."""
    tensors = []
    for _ in range(draw(st.integers(0, 4))):
        rank = draw(st.integers(0, 4))
        shape = draw(st.lists(EXTENTS | st.integers(0, 2**33), min_size=rank, max_size=rank))
        strides = draw(st.lists(STRIDES | st.integers(-(2**62), 2**62), min_size=rank, max_size=rank))
        address = draw(ADDRESSES | st.integers(0, 2**48))
        tensors.append(_described(draw(st.sampled_from([*DTYPES])), shape, strides, address, draw(DEVICES)))
    return tuple(tensors)


def _described(dtype: str, shape: Any, strides: Any, address: int, device: int | None) -> OperandDescription:
    return cutlass_aot.describe(shape, dtype, strides=strides, address=address, device=device)


COLUMN = (
    _described("f32", (5, 7), (7, 1), 0, None),
    _described("f32", (7, 1), (1, -3), 0, None),
    _described("f32", (5, 1), (2, 2**62), 4, None),
)
"""Supported: the strides that are odd belong to modes of extent 1."""

EMPTY = (
    _described("f16", (1, 0), (0, -(2**40)), 0, None),
    _described("f16", (0, 0), (1, 0), 0, None),
    _described("f16", (1, 0), (0, 1), 0, None),
)
"""Supported: none has an element, and an extent of 1 fits one of the layouts."""

REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "accumulator": st.sampled_from([*[None] * 6, "f32", "f16", "i32", "f64", "nonsense"]),
        "target": st.sampled_from([*TARGETS * 4, None, "sm_100a", "sm_90", "nonsense", ""]),
        "operation": st.sampled_from([*["gemm"] * 6, "scale", "nonsense"]),
        "epilogue": st.sampled_from([*[""] * 6, "relu", "nonsense"]),
    },
)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors=problems() | problems() | problems() | anything(), request=REQUESTS)
@example(tensors=EMPTY, request={})
def test_only_kernels_that_support_the_operands_are_found(bundle, tensors, request):
    expected = {"accumulator": None, "operation": "gemm", "epilogue": "", "target": None, **request}
    # Without a target, the operands' GPU decides; this machine may have none.
    no_gpu = expected["target"] is not None or all(t.device is None or t.device < 0 for t in tensors)
    fitting = [
        group
        for group in bundle.groups
        if group.operation == expected["operation"]
        and group.epilogue == expected["epilogue"]
        and expected["accumulator"] in (None, group.accumulator)
        and expected["target"] in (None, group.target)
        and supported(group, tensors)
    ]
    try:
        found = bundle.find(*tensors, **request)
    except KernelNotFound as error:
        event(type(error).__name__)
        assert not (no_gpu and fitting)
        found = []
    except (OperandError, Incompatible, DeviceError) as error:
        event(type(error).__name__)
        assert not no_gpu or expected["target"] in ("nonsense", "")
        return
    else:
        event("found")
        names = {group.name for group in fitting}
        assert found
        assert {kernel.group.name for kernel in found} <= names
        assert len({(kernel.target, kernel.group.accumulator) for kernel in found}) == len(
            {kernel.target for kernel in found}
        )
        assert all(kernel.supports(*tensors) for kernel in found)
    if found:
        choice = bundle.choose(*tensors, **request)
        assert choice.kernel.digest == found[0].digest
        assert choice.tier == "default order"
        assert choice.reason
    else:
        with pytest.raises(KernelNotFound):
            bundle.choose(*tensors, **request)


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors=problems() | problems() | problems() | anything())
@example(tensors=COLUMN)
def test_every_verdict_is_right_and_has_a_reason(bundle, tensors):
    for target, operation in product(TARGETS, ("gemm", "scale")):
        verdicts = bundle.explain(*tensors, target=target, operation=operation)
        assert len(verdicts) == len(bundle.groups)
        for group, verdict in verdicts:
            requested = (group.target, group.operation, group.epilogue) == (target, operation, "")
            assert bool(verdict) == (requested and supported(group, tensors)), (group.name, verdict)
            assert verdict.reason or verdict
        assert len(str(verdicts).splitlines()) == len(bundle.groups)


def test_the_restatement_accepts_and_refuses(bundle):
    (group,) = [group for group in bundle.groups if group.operands[0].dtype == "f32"]
    assert supported(group, COLUMN)
    assert not supported(group, COLUMN[::-1])
