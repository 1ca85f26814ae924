"""Forward convolution without the DSL: its geometry, and which kernels are declared."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.kernels.conv2d_fprop import conv2d_fprop
from cutlass_aot.kernels.conv2d_fprop_plan import (
    FRONT_BYTES,
    LEAST_STAGES,
    RESERVED_BYTES,
    SHARED_BYTES,
    Convolution,
)
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.targets import targets_with

THREE = Convolution((3, 3), (1, 1), (1, 1), (1, 1), (128, 128, 64), 2)


@pytest.fixture
def kernel_module(monkeypatch):
    """Stands for the module that imports the DSL; nothing of it is looked at."""

    class Module:
        @staticmethod
        def conv2d_fprop(*_: Any) -> None:
            raise AssertionError

    monkeypatch.setitem(sys.modules, "cutlass_aot.kernels.conv2d_fprop_kernel", Module)


def enumerated(target="sm_90a"):
    problem = Problem("conv2d_fprop", (), "", "")
    return list(DeclaredGenerator(conv2d_fprop).enumerate(problem, target, load_profile("h200")))


def taps_of_an_output(convolution, extent, axis):
    """Positions in the image of the taps of each output along one axis, counted out."""
    first = -convolution.padding[axis]
    last = extent + convolution.padding[axis] - 1
    found = []
    while first + convolution.reach[axis] <= last:
        found.append([first + tap * convolution.dilation[axis] for tap in range(convolution.filter[axis])])
        first += convolution.stride[axis]
    return found


@given(
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
)
def test_the_output_has_as_many_pixels_as_the_filter_has_places(filter, stride, padding, dilation, image):
    convolution = replace(THREE, filter=filter, stride=stride, padding=padding, dilation=dilation)
    for axis in (0, 1):
        if convolution.reach[axis] < image[axis] + 2 * padding[axis]:
            places = taps_of_an_output(convolution, image[axis], axis)
            assert convolution.outputs(*image)[axis] == len(places)


@pytest.mark.parametrize(
    ("change", "possible"),
    [
        ({}, True),
        ({"padding": (2, 2)}, True),
        ({"padding": (3, 3)}, False),
        ({"padding": (0, 1)}, True),
        ({"filter": (1, 7), "padding": (0, 3)}, True),
        ({"filter": (1, 7), "padding": (3, 0)}, False),
        ({"stride": (8, 8)}, True),
        ({"stride": (9, 1)}, False),
        ({"dilation": (64, 64), "padding": (64, 64)}, True),
        ({"dilation": (65, 1), "padding": (0, 0)}, False),
        ({"dilation": (65, 1), "padding": (2, 0)}, True),
        ({"tile": (128, 256, 64)}, False),
        ({"tile": (128, 256, 64), "blocks": 1}, True),
        ({"tile": (128, 64, 64), "blocks": 3}, True),
        ({"tile": (128, 64, 64), "blocks": 4}, False),
    ],
)
def test_what_hardware_cannot_hold_is_not_possible(change, possible):
    assert replace(THREE, **change).is_possible is possible


def test_every_declared_kernel_has_room_and_a_record_of_its_parameters(kernel_module):
    found = enumerated()
    assert len({kernel.name for kernel in found}) == len(found)
    for kernel in found:
        values = dict(kernel.parameters)
        convolution = Convolution(
            *(values[name] for name in ("filter", "stride", "padding", "dilation", "tile_shape")),
            values["blocks_per_sm"],
        )
        assert convolution.is_possible
        assert convolution.stages >= LEAST_STAGES
        used = FRONT_BYTES + RESERVED_BYTES + convolution.ring_bytes
        assert convolution.blocks * used <= SHARED_BYTES
        assert not (values["filter"] == (1, 1) and values["dilation"] != (1, 1))


@pytest.mark.parametrize("filter", [(1, 1), (3, 3), (5, 5), (7, 7)])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_there_is_one_that_keeps_the_size_of_the_image(kernel_module, filter, dtype):
    same = (filter[0] // 2, filter[1] // 2)
    parameters = {"filter": filter, "stride": (1, 1), "padding": same, "dilation": (1, 1), "dtype": dtype}
    assert any(parameters.items() <= dict(kernel.parameters).items() for kernel in enumerated())


def test_operands_are_images_filters_and_an_output(kernel_module):
    kernel = next(kernel for kernel in enumerated("sm_100a") if dict(kernel.parameters)["filter"] == (3, 3))
    dtype = dict(kernel.parameters)["dtype"]
    assert kernel.operands == (
        OperandConstraint("x", dtype, ("N", "H", "W", "C"), -1, 8, 16),
        OperandConstraint("filter", dtype, ("K", 3, 3, "C"), -1, 8, 16),
        OperandConstraint("out", dtype, ("N", "P", "Q", "K"), -1, 8, 16, written=True),
    )


def test_it_is_for_gpus_with_tma(kernel_module):
    generator = DeclaredGenerator(conv2d_fprop)
    assert set(generator.targets("conv2d_fprop")) == {*targets_with("wgmma"), *targets_with("tcgen05")}
    assert not enumerated("sm_80")
