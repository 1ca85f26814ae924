"""Forward convolution, compiled: the instructions that it consists of, and the checks of compiled code.

There is no GPU: a call that passes the compiled checks ends where the driver is asked for.
"""

from __future__ import annotations

import re

import numpy
import pytest

import cutlass_aot
from cutlass_aot.errors import DeviceError, OperandError
from cutlass_aot.kernels.conv2d_fprop import conv2d_fprop
from cutlass_aot.store.store import Store
from tests.compile.builder.test_build import command
from tests.compile.generators.test_families import aligned
from tests.support.bundles import ClaimsCuda
from tests.support.listings import listing, listings
from tools.check.instructions import Instruction, found

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("an_h200_without_a_driver")]

TARGETS = ("sm_90a", "sm_100a", "sm_103a")
MANIFEST = """
plugins = ["cutlass_aot.kernels.conv2d_fprop"]

[bundle]
name = "convolution"
targets = ["sm_90a", "sm_100a", "sm_103a"]
device = { sm_90a = "h200", sm_100a = "b200", sm_103a = "gb300" }

[[kernels]]
generator = "conv2d_fprop"
operation = "conv2d_fprop"
filter = "3x3"
stride = "2x2"
padding = "1x1"
dilation = "1x1"
tile = ["128x128x64", "128x256x64"]
blocks_per_sm = 1
dtype = "bf16"

[[kernels]]
generator = "conv2d_fprop"
operation = "conv2d_fprop"
filter = "7x7"
stride = "2x2"
padding = "3x3"
dilation = "1x1"
tile = "128x64x16"
blocks_per_sm = 3
dtype = "f16"
"""
THREE = {
    "filter": (3, 3),
    "stride": (2, 2),
    "padding": (1, 1),
    "dilation": (1, 1),
    "dtype": "bf16",
    "tile_shape": (128, 256, 64),
    "blocks_per_sm": 1,
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("convolution")
    (root / "convolution.toml").write_text(MANIFEST)
    result = command("build", root / "convolution.toml", "--store", root / "store", "--out", root)
    assert result.returncode == 0, result.stderr
    return root


@pytest.fixture(scope="module")
def bundle(built):
    """Held for as long as the tests run: the declared function finds it because it is open."""
    return cutlass_aot.open(built / "convolution")


def tensor(*shape, dtype="bf16"):
    return ClaimsCuda(aligned(shape, numpy.dtype("u2")), dtype)


def operands(dtype="bf16"):
    """Of THREE."""
    return [tensor(*shape, dtype=dtype) for shape in ((5, 14, 15, 24), (40, 3, 3, 24), (5, 7, 8, 40))]


def test_each_was_built_for_each_target(bundle):
    for target in TARGETS:
        assert len(bundle.kernels(target=target)) == 3
    assert not [kernel.name for kernel in bundle.kernels() if kernel.facts.spill_bytes]


def test_tensor_cores_multiply_what_tma_made_of_the_image(built, bundle):
    store = Store(built / "store", create=False)
    kernels = bundle.kernels()
    objects = [store.get_blob(kernel.entry.object_sha256) for kernel in kernels]
    for kernel, assembly in zip(kernels, listings(objects), strict=True):
        assert re.search(r"\bUTMALDG\.4D\.IM2COL\b", assembly), kernel.name
        expected = Instruction("HGMMA" if kernel.target == "sm_90a" else "UTCHMMA")
        assert set(found(assembly)) == {expected}, kernel.name
        if kernel.target == "sm_90a":
            _, filters, _ = dict(kernel.kernel.parameters)["tile_shape"]
            kind = {"bf16": r"\.BF16", "f16": ""}[kernel.kernel.operands[0].dtype]
            assert re.search(rf"\bHGMMA\.64x{filters}x16\.F32{kind}\b", assembly), kernel.name


def test_no_division_stands_among_the_loads(built, bundle):
    """It would take longer than a load: the loop from the wait for an empty stage to its end has none."""
    store = Store(built / "store", create=False)
    for kernel in bundle.kernels(target="sm_90a"):
        lines = listing(store.get_blob(kernel.entry.object_sha256)).splitlines()
        load = next(i for i, line in enumerate(lines) if "UTMALDG.4D.IM2COL" in line)
        start = max(i for i in range(load) if "SYNCS.PHASECHK" in lines[i])
        end = next(i for i in range(load, len(lines)) if re.search(r"\bBRA\b", lines[i]))
        loop = "\n".join(lines[start:end])
        assert "UTMALDG.4D " in loop
        assert not re.search(r"MUFU\.RCP|IMAD\.HI|UIMAD\.WIDE", loop), kernel.name


def test_operands_pass_the_compiled_checks(bundle):
    with pytest.raises(DeviceError, match="there is no NVIDIA driver"):
        conv2d_fprop(**THREE)(*operands())


def test_what_does_not_fit_is_refused_with_a_reason(bundle):
    convolve = conv2d_fprop(**THREE)
    x, weight, out = operands()
    with pytest.raises(OperandError, match="operand `filter` is unsupported: expected an extent of 3"):
        convolve(x, tensor(40, 5, 3, 24), out)
    with pytest.raises(OperandError, match="operand `filter` is unsupported: expected extent C = 24"):
        convolve(x, tensor(40, 3, 3, 32), out)
    with pytest.raises(OperandError, match="operand `out` is unsupported: expected extent N = 5"):
        convolve(x, weight, tensor(4, 7, 8, 40))
    with pytest.raises(OperandError, match="operand `x` is unsupported: expected element type bf16, got f16"):
        convolve(tensor(5, 14, 15, 24, dtype="f16"), weight, out)
    with pytest.raises(OperandError, match=r"operand `x` is unsupported: .* divisible by 8"):
        convolve(tensor(5, 14, 15, 20), tensor(40, 3, 3, 20), out)
    with pytest.raises(cutlass_aot.KernelNotFound, match="no kernel conv2d_fprop"):
        conv2d_fprop(**{**THREE, "stride": (1, 1)})


def test_a_bundle_finds_it_by_operands_and_parameters(bundle):
    for target in TARGETS:
        (handle,) = bundle.find(*operands(), operation="conv2d_fprop", parameters=THREE, target=target)
        assert dict(handle.kernel.parameters) == THREE
        assert handle.target == target
