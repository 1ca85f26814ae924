"""Block-scaled GEMMs of operands whose strides exceed 32 bits: the launcher and host code over a fake driver.

Nothing is computed. The GPU reads and writes by the tensor maps that it is launched with.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import pytest

import cutlass_aot
from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.runtime.opened.group import launcher_numbers
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import OperandDescription, packed, supports
from tests.compile.builder.test_build import blobs, command, is_object
from tests.compile.builder.test_shim import ANNOUNCED, FAKE, SHIM
from tests.compile.builder.test_shim import Kernel as Linked
from tests.support.native import LAUNCHER, compile_files
from tests.support.native_launcher import Function, Native, Tensor

pytestmark = pytest.mark.compile

MANIFEST = """
[bundle]
name = "wide"
targets = ["sm_100a"]
device = "b200"

[[kernels]]
generator = "cutlass.operators"
ab = "f8e4m3"
out = "bf16"
scale = { dtype = "f8e8m0", block = 32 }
layouts = ["tnt", "ntn"]
tile = "128x128"
cluster = "2x1"

[[kernels]]
generator = "cutlass.operators"
ab = "f4e2m1"
out = "f32"
scale = { dtype = "f8e4m3", block = 16 }
layouts = ["tnt"]
tile = "256x192"
cluster = "2x1"
"""
KERNELS = {"mxfp8 tnt": ("f8e4m3", "tnt"), "mxfp8 ntn": ("f8e4m3", "ntn"), "nvfp4 tnt": ("f4e2m1", "tnt")}
BATCH_OF_MANY = {"L": 2, "M": 2**18, "N": 2**19, "K": 2**14}
LONG = {"L": 3, "M": 128, "N": 128, "K": 2**21}
HIGH = {"M": 2**26 - 128, "N": 128, "K": 512}
TILE_OF_FACTORS = 512


Map = tuple[int, tuple[tuple[int, int], ...]]
"""Of a tensor map: the innermost mode's extent, then stride in bytes and extent of each other, sorted."""


@dataclass(frozen=True)
class Launchable:
    kernel: Kernel
    linked: Linked
    launch: Function

    def maps(self, operands: list[OperandDescription]) -> dict[int, Map]:
        """The tensor maps that a launch is given, by address."""
        sizes = self.linked.keep_parameters()
        assert self.launch(*map(Tensor, operands)) is None
        assert self.linked["unprepared"] == 0
        return dict(
            read_map(self.linked.parameter(position)) for position, size in enumerate(sizes) if size == 128
        )


def read_map(data: bytes) -> tuple[int, Map]:
    """A tensor map and its address, as the DSL's host code writes it: it does so itself, without the driver.

    Strides are in steps of 16 bytes, the lower 32 bits of each apart from the others.
    """
    words = struct.unpack("<16Q", data)
    rank = (words[1] >> 4 & 7) + 1
    low = (words[1] >> 32, words[2] & 0xFFFFFFFF, words[2] >> 32, words[3] & 0xFFFFFFFF)
    strides = [((words[3] >> 32 + 4 * mode & 15) << 32 | low[mode]) * 16 for mode in range(rank - 1)]
    extents = [(words[4 + mode // 2] >> 32 * (mode % 2) & 0xFFFFFFFF) + 1 for mode in range(rank)]
    return words[0], (extents[0], tuple(sorted(zip(strides, extents[1:], strict=True))))


def expected_maps(kernel: Kernel, operands: list[OperandDescription]) -> dict[int, Map]:
    """The maps of compact operands, and of scale factors, which lie in tiles of 128 rows and 4 blocks."""
    found = {}
    for constraint, operand in zip(kernel.operands, operands, strict=True):
        if constraint.scale is not None:
            at = [one.name for one in kernel.operands].index(constraint.scale.of)
            extents = dict(zip(kernel.operands[at].extents[-2:], operands[at].shape[-2:], strict=True))
            along = -(-extents.pop("K") // (4 * constraint.scale.block))
            (rows,) = extents.values()
            batch, tiles = math.prod(operands[at].shape[:-2]), -(-rows // 128)
            row = TILE_OF_FACTORS * along
            # The innermost mode is a tile, of 16-bit elements.
            modes = ((TILE_OF_FACTORS, along), (row, tiles), (row * tiles, batch))
            found[operand.address] = 256, tuple(sorted(modes))
            continue
        batch, *shape = operand.shape if len(operand.shape) == 3 else (1, *operand.shape)
        inner, outer = shape[::-1] if constraint.layout == "t" else shape
        row = inner * DTYPES[constraint.dtype].bits // 8
        found[operand.address] = inner, tuple(sorted(((row, outer), (row * outer, batch))))
    return found


def operands_of(kernel: Kernel, extents: dict[str, int]) -> list[OperandDescription]:
    """Compact operands on GPU 0 that have no memory, far from each other."""
    return [
        operand._replace(address=position << 44, device=0)
        for position, operand in enumerate(packed(kernel.operands, extents), 1)
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Each kernel and its object."""
    root = tmp_path_factory.mktemp("wide")
    (root / "wide.toml").write_text(MANIFEST)
    result = command("build", root / "wide.toml", "--store", root / "store", "--out", root)
    assert result.returncode == 0, result.stderr
    objects = [data for _, data in blobs(root / "store") if is_object(data)]
    found = {}
    for handle in cutlass_aot.open(root / "wide").kernels():
        kernel = handle.kernel
        (data,) = (data for data in objects if kernel.symbol.encode() in data)
        found[kernel.operands[0].dtype, kernel.layouts[:3]] = kernel, KernelObject.from_bytes(data)
    return {name: found[which] for name, which in KERNELS.items()}


@pytest.fixture(scope="module")
def launchables(built, toolchain, compiler, cache, tmp_path_factory):
    """Each kernel, linked with the shim and the fake driver, and behind a bundle's launcher."""
    folder = tmp_path_factory.mktemp("linked")
    native = Native(compile_files(folder, "launcher", LAUNCHER), folder)
    toolchain.compile({kernel.symbol: item.host_code for kernel, item in built.values()}, folder, cache)
    found = {}
    for name, (kernel, item) in built.items():
        library = folder / f"{kernel.symbol}.so"
        host_code = folder / f"{kernel.symbol}-{toolchain.host}.o"
        compiler([SHIM, FAKE, host_code], library, "-Wl,-Bsymbolic", *ANNOUNCED)
        linked = Linked(library, item.gpu_code, kernel.symbol)
        launch = native.make("launcher", linked.address, *launcher_numbers(kernel.operands))
        found[name] = Launchable(kernel, linked, launch)
    return found


@pytest.mark.parametrize("extents", [BATCH_OF_MANY, LONG, HIGH], ids=["many", "long", "high"])
@pytest.mark.parametrize("name", KERNELS)
def test_strides_of_more_than_32_bits_reach_the_gpu_as_they_are(launchables, name, extents):
    subject = launchables[name]
    operands = operands_of(subject.kernel, extents)
    assert supports(subject.kernel.operands, operands)
    expected = expected_maps(subject.kernel, operands)
    assert subject.maps(operands) == expected
    if "L" in extents and extents["M"] > 128:
        assert sum(max(modes)[0] >= 2**31 for _, modes in expected.values()) == 3


@pytest.mark.parametrize("name", KERNELS)
def test_scale_factors_bound_k_and_the_launcher_counts_them(launchables, name):
    """GPU code has K in 32 bits, and rounds it up: it is far below 2^31 in whatever is launched."""
    subject = launchables[name]
    assert {operand.extent_bits for operand in subject.kernel.operands} == {32}
    block = subject.kernel.operands[3].scale.block
    most = 2**24 * block
    fits = operands_of(subject.kernel, {"M": 128, "N": 128, "K": most - 4 * block})
    assert supports(subject.kernel.operands, fits)
    assert subject.maps(fits) == expected_maps(subject.kernel, fits)
    before = subject.linked.each("launches")[0]
    for extents in (
        {"M": 128, "N": 128, "K": most},
        {"M": 16, "N": 16, "K": most},
        {"M": 16, "N": 16, "K": 2**31},
    ):
        operands = operands_of(subject.kernel, extents)
        assert not supports(subject.kernel.operands, operands)
        with pytest.raises(Exception, match=r"2\^31"):
            subject.launch(*map(Tensor, operands))
        # Fewer factors than there have to be are refused for their number.
        few = [one._replace(shape=(1024,)) if one.shape == operands[3].shape else one for one in operands]
        with pytest.raises(Exception, match=r"2\^31 - 1|scale factors, got 1024"):
            subject.launch(*map(Tensor, few))
    assert subject.linked.each("launches")[0] == before
