"""On a GPU: forward convolution, against torch in double precision.

cutlass-aot build manifests/convolution.toml && python -m pytest -m gpu tests/gpu/test_convolution.py
"""

from __future__ import annotations

import re

import pytest

import cutlass_aot
from cutlass_aot.kernels.conv2d_fprop import conv2d_fprop
from cutlass_aot.kernels.conv2d_fprop_plan import Convolution
from tests.gpu.conftest import REPOSITORY, opened

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11}
TILES = [
    ((128, 64, 64), 1),
    ((128, 64, 64), 3),
    ((128, 128, 64), 1),
    ((128, 128, 64), 2),
    ((128, 256, 64), 1),
]
ONE_TILE = [((128, 128, 64), 2)]
STEM_TILES = [((128, 64, 16), 3), ((128, 64, 64), 3)]

# Filter, stride, padding, dilation; element type; tiles and blocks of a multiprocessor; (N, H, W, C) and K.
ONE = ((1, 1), (1, 1), (0, 0), (1, 1))
ONE_STRIDED = ((1, 1), (2, 2), (0, 0), (1, 1))
THREE = ((3, 3), (1, 1), (1, 1), (1, 1))
THREE_STRIDED = ((3, 3), (2, 2), (1, 1), (1, 1))
DILATED = ((3, 3), (1, 1), (2, 2), (2, 2))
DILATED_WITHIN = ((3, 3), (1, 1), (0, 0), (2, 2))
STEM = ((7, 7), (2, 2), (3, 3), (1, 1))
CASES = [
    (ONE, "bf16", TILES, [((2, 56, 56, 64), 256), ((3, 7, 5, 8), 8), ((1, 1, 1, 264), 136)]),
    (ONE_STRIDED, "bf16", TILES, [((2, 56, 56, 256), 512), ((3, 7, 5, 24), 40), ((1, 2, 2, 8), 8)]),
    (THREE, "bf16", TILES, [((2, 56, 56, 64), 64), ((5, 13, 17, 72), 200), ((1, 1, 1, 8), 8)]),
    (THREE, "bf16", TILES, [((1, 3, 257, 136), 264), ((129, 1, 2, 16), 24), ((16, 14, 14, 256), 256)]),
    (THREE_STRIDED, "bf16", TILES, [((2, 56, 56, 128), 128), ((3, 13, 18, 40), 72), ((1, 2, 2, 8), 8)]),
    (DILATED, "f16", ONE_TILE, [((2, 28, 28, 64), 128), ((3, 5, 4, 8), 16)]),
    (DILATED_WITHIN, "f16", ONE_TILE, [((2, 28, 28, 64), 128), ((3, 5, 6, 8), 16)]),
    (STEM, "bf16", STEM_TILES, [((2, 224, 224, 8), 64), ((3, 37, 41, 8), 72)]),
    (STEM, "f16", STEM_TILES, [((2, 64, 61, 8), 64), ((1, 7, 7, 24), 8)]),
]


@pytest.fixture(scope="module")
def convolutions(capability):
    """The bundle convolution: the declared function finds it because it is open."""
    return opened("convolution", capability)


def prebuilt(geometry, dtype, tile=ONE_TILE[0]):
    return conv2d_fprop(*geometry, dtype, *tile)


def operands(geometry, shape, filters, dtype):
    """Activations and filters that differ everywhere, and an output of what is not a number."""
    images, height, width, channels = shape
    x = torch.randn(shape, device="cuda").to(DTYPES[dtype])
    weight = torch.randn(filters, *geometry[0], channels, device="cuda").to(DTYPES[dtype])
    extents = Convolution(*geometry, *ONE_TILE[0]).outputs(height, width)
    out = torch.full((images, *extents, filters), torch.nan, device="cuda", dtype=DTYPES[dtype])
    return x, weight, out


def reference(geometry, x, weight):
    _, stride, padding, dilation = geometry
    exact = torch.nn.functional.conv2d(
        x.double().permute(0, 3, 1, 2), weight.double().permute(0, 3, 1, 2), None, stride, padding, dilation
    )
    return exact.permute(0, 2, 3, 1)


def error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize(("geometry", "dtype", "tiles", "problems"), CASES)
def test_it_is_torchs_convolution(convolutions, geometry, dtype, tiles, problems):
    torch.manual_seed(0)
    for shape, filters in problems:
        x, weight, out = operands(geometry, shape, filters, dtype)
        exact = reference(geometry, x, weight)
        assert out.shape == exact.shape
        for tile in tiles:
            out.fill_(torch.nan)
            prebuilt(geometry, dtype, tile)(x, weight, out)
            assert error(out, exact) < ROUNDING[dtype], (shape, filters, tile)


def test_whole_numbers_are_exact(convolutions):
    """So that not one tap, channel or pixel is wrong: bf16 holds the sums."""
    torch.manual_seed(0)
    for geometry, shape, filters in ((THREE, (3, 11, 9, 24), 40), (THREE_STRIDED, (3, 12, 9, 24), 40)):
        x, weight, out = operands(geometry, shape, filters, "bf16")
        x.copy_(torch.randint(-1, 2, x.shape, device="cuda"))
        weight.copy_(torch.randint(-1, 2, weight.shape, device="cuda"))
        exact = reference(geometry, x, weight)
        assert exact.abs().max() <= 256
        prebuilt(geometry, "bf16")(x, weight, out)
        assert torch.equal(out.double(), exact)


def test_what_lies_around_is_neither_read_nor_written(convolutions):
    """Operands that are slices of larger tensors full of what is not a number."""
    torch.manual_seed(0)
    x, weight, out = operands(THREE, (3, 11, 9, 24), 40, "bf16")
    exact = reference(THREE, x, weight)
    around = [
        torch.full([e + 8 for e in t.shape], torch.nan, device="cuda", dtype=t.dtype)
        for t in (x, weight, out)
    ]
    within = [
        large[
            tuple(slice(0 if mode == 3 else 4, e + (0 if mode == 3 else 4)) for mode, e in enumerate(t.shape))
        ]
        for large, t in zip(around, (x, weight, out), strict=True)
    ]
    # The filter's extents R and S are fixed, so that its slice is taken there too.
    within[0].copy_(x)
    within[1].copy_(weight)
    for tile in TILES:
        within[2].fill_(torch.nan)
        prebuilt(THREE, "bf16", tile)(*within)
        assert error(within[2], exact) < ROUNDING["bf16"]
        assert around[2].isfinite().sum() == out.numel()


def test_a_wrong_output_is_refused_and_not_written(convolutions):
    x, weight, _ = operands(THREE_STRIDED, (3, 12, 9, 24), 40, "bf16")
    convolve = prebuilt(THREE_STRIDED, "bf16")
    for extents in ((6, 4), (7, 5), (5, 6), (12, 9)):
        out = torch.full((3, *extents, 40), torch.nan, device="cuda", dtype=torch.bfloat16)
        with pytest.raises(cutlass_aot.CutlassAotError, match="invalid argument"):
            convolve(x, weight, out)
        torch.cuda.synchronize()
        assert out.isnan().all()
    wrong = torch.empty(2, 6, 5, 40, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(cutlass_aot.OperandError, match="operand `out` is unsupported: expected extent N = 3"):
        convolve(x, weight, wrong)


def test_an_image_smaller_than_the_filter_is_refused(convolutions):
    """No output has all its taps within the padded image."""
    for size in (1, 2, 3, 4):
        x, weight = operands(DILATED_WITHIN, (1, 8, 8, 8), 8, "f16")[:2]
        out = torch.full((1, 1, 1, 8), torch.nan, device="cuda", dtype=torch.float16)
        with pytest.raises(cutlass_aot.CutlassAotError, match="invalid argument"):
            prebuilt(DILATED_WITHIN, "f16")(x[:, :size, :size], weight, out)
        torch.cuda.synchronize()
        assert out.isnan().all()


def test_a_graph_replays_it(convolutions):
    torch.manual_seed(0)
    x, weight, out = operands(THREE, (2, 14, 14, 64), 64, "bf16")
    convolve = prebuilt(THREE, "bf16")
    convolve(x, weight, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        convolve(x, weight, out)
    x.copy_(torch.randn(x.shape, device="cuda"))
    graph.replay()
    assert error(out, reference(THREE, x, weight)) < ROUNDING["bf16"]


def test_a_bundle_runs_it_by_name(convolutions):
    torch.manual_seed(0)
    x, weight, out = operands(THREE, (2, 14, 14, 64), 64, "bf16")
    names = ("filter", "stride", "padding", "dilation")
    parameters = {
        **dict(zip(names, THREE, strict=True)),
        "dtype": "bf16",
        "tile_shape": (128, 64, 64),
        "blocks_per_sm": 3,
    }
    convolutions.run("conv2d_fprop", x, weight, out, parameters=parameters)
    assert error(out, reference(THREE, x, weight)) < ROUNDING["bf16"]


def test_what_the_page_calls_runs(convolutions, monkeypatch):
    monkeypatch.setattr(cutlass_aot, "open", lambda _: convolutions)
    text = (REPOSITORY / "docs" / "reference" / "convolution.md").read_text()
    names = {}
    for block in re.findall(r"^```python gpu\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(block, names)
    torch.cuda.synchronize()
    assert names["out"].isfinite().all()
