"""The kernels that come with this package, run on the CPU from their PTX, against NumPy in double precision.

Their results, and what a GPU would leave undefined: addresses, and threads that are missing at a shuffle.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy
import pytest

from tests.support.floats import e4m3_values, from_bf16, to_bf16
from tests.support.ptx import PtxError
from tests.support.ptx_kernels import Tensor, compile_kernels

pytestmark = pytest.mark.compile

ROUNDING = {"bf16": 2.0**-8, "f32": 1e-6}


class Design(NamedTuple):
    """The parameters of tuning of kernels that reduce rows."""

    row: tuple[int, int]
    staged: bool = False


WIDE, SMALL, TINY, CLUSTER = (Design(row) for row in ((128, 3), (32, 4), (16, 1), (1024, 4)))
STAGED, LARGEST = Design((256, 8), True), Design((4096, 8), True)
DESIGNS = (TINY, SMALL, WIDE, CLUSTER, STAGED)
FP8_DESIGNS = (*DESIGNS, Design((128, 6)))
"""With one whose scales are found in two unequal groups of steps."""

NORM = "cutlass_aot.kernels.rms_norm"
SWIGLU = "cutlass_aot.kernels.swiglu"
FP8 = {"dtype": "bf16", "out_dtype": "u8"}
GATE = {"dtype": "f32", "k": 8, "normalised": True}


def requests():
    """The kernels that are compiled, by a name of the tests."""
    found = {}
    for design in DESIGNS:
        own = design._asdict()
        found["rms_norm", design] = NORM, "rms_norm", {"n": "any", "dtype": "bf16", **own}
        values = {"dtype": "bf16", "weight": "f32", "residual": True, **own}
        found["fused_rms_norm", design] = NORM, "fused_rms_norm", values
        values = {"dtype": "bf16", "weight": "bf16", "bias": True, **own}
        found["layer_norm", design] = "cutlass_aot.kernels.layer_norm", "layer_norm", values
    for design in FP8_DESIGNS:
        values = {**FP8, "weight": "f32", "residual": True, "scales": "columns", **design._asdict()}
        found["rms_norm_fp8", design] = NORM, "rms_norm_fp8", values
    for design in (*DESIGNS, LARGEST):
        for dtype in ("bf16", "f32"):
            values = {"dtype": dtype, **design._asdict()}
            found["softmax", dtype, design] = "cutlass_aot.kernels.softmax", "softmax", values
    found["swiglu"] = SWIGLU, "swiglu_fp8", {"n": "any", "dtype": "u8"}
    found["quantize"] = "cutlass_aot.kernels.quantize", "quantize_fp8", {**FP8, "scales": "columns"}
    for gate in ("halves", "alternating"):
        values = {**FP8, "gate": gate, "scales": "columns", "masked": True}
        found["swiglu", gate] = SWIGLU, "fused_swiglu_fp8", values
    values = {"dtype": "u8", "scales": "rows"}
    found["gather_rows"] = "cutlass_aot.kernels.gather_rows", "gather_rows", values
    found["gather_reduce"] = "cutlass_aot.kernels.gather_reduce", "gather_reduce", {"k": 4, "dtype": "bf16"}
    found["expert_rows"] = "cutlass_aot.kernels.expert_rows", "expert_rows", {"k": 4}
    module, name = "cutlass_aot.kernels.top_k_gate", "top_k_gate"
    values = {**GATE, "experts": 60, "scoring": "softmax", "bias": False, "groups": "none"}
    found["gate"] = module, name, values
    values = {**GATE, "experts": 256, "scoring": "sigmoid", "bias": True, "groups": "8x4"}
    found["gate", "groups"] = module, name, values
    return found


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    named = requests()
    return dict(zip(named, compile_kernels(tmp_path_factory.mktemp("ptx"), [*named.values()]), strict=True))


@pytest.fixture
def random():
    """Random numbers of a shape."""
    return numpy.random.default_rng(0).standard_normal


def bits(values, dtype="bf16"):
    return to_bf16(values.astype(numpy.float32)) if dtype == "bf16" else values.astype(numpy.float32)


def exact(array, dtype="bf16"):
    return (from_bf16(array) if dtype == "bf16" else array).astype(numpy.float64)


def relative_error(found, expected):
    return numpy.linalg.norm(found - expected) / numpy.linalg.norm(expected)


def empty(shape, dtype=numpy.uint16):
    return numpy.full(shape, 77, dtype)


def blocks(rows, design):
    """The grid of a kernel that reduces rows, and the blocks of a cluster."""
    row_threads, _ = design.row
    threads = min(512, max(128, row_threads))
    return (-(-rows * row_threads // threads),), max(1, row_threads // threads)


def normalised(x, weight, eps=1e-5):
    return x / numpy.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * weight


def check_fp8(out, scale, expected):
    """That FP8 with scales is what was expected: each element to three bits of mantissa.

    Source: OCP 8-bit Floating Point Specification, E4M3, whose least subnormal is 2^-9.
    """
    rows, n = expected.shape
    parts = expected.reshape(rows, n // 128, 128)
    expected_scale = numpy.maximum(numpy.abs(parts).max(axis=2), 2.0**-100) / 448
    numpy.testing.assert_allclose(scale, expected_scale, rtol=1e-5)
    found = e4m3_values()[out].reshape(parts.shape) * scale[:, :, None].astype(numpy.float64)
    largest_error = 2.0**-4 * numpy.abs(parts) * 1.001 + 2.0**-10 * scale[:, :, None]
    assert (numpy.abs(found - parts) <= largest_error).all()


def lengths(design):
    """Elements of rows that a design keeps, keeps with a gap, and reads again."""
    threads, vectors = design.row
    kept = threads * vectors * 8
    return 8, 136, kept, kept + 8, 2 * kept + 136


@pytest.mark.parametrize("design", DESIGNS)
def test_rms_norm(kernels, random, design):
    for n in lengths(design):
        x, weight = bits(random((5, n))), bits(random(n))
        operands = [Tensor(x, gap=8), Tensor(weight), Tensor(empty(x.shape), True, gap=16), 1e-5]
        (out,) = kernels["rms_norm", design].launch(operands, *blocks(5, design))
        assert relative_error(exact(out), normalised(exact(x), exact(weight))) < ROUNDING["bf16"]
        operands = [Tensor(x, True), Tensor(weight), Tensor(x, True, same_as=0), 1e-5]
        assert (kernels["rms_norm", design].launch(operands, *blocks(5, design))[1] == out).all()


@pytest.mark.parametrize("design", DESIGNS)
def test_rms_norm_of_a_sum(kernels, random, design):
    for n in lengths(design):
        x, residual, weight = bits(random((5, n))), bits(random((5, n))), bits(random(n), "f32")
        written = [Tensor(empty(x.shape), True), Tensor(empty(x.shape), True, gap=8)]
        operands = [Tensor(x, gap=8), Tensor(residual, gap=16), Tensor(weight), *written, 1e-5]
        out, total = kernels["fused_rms_norm", design].launch(operands, *blocks(5, design))
        assert (total == bits(exact(x) + exact(residual))).all()
        assert relative_error(exact(out), normalised(exact(total), weight)) < ROUNDING["bf16"]
        operands = [
            Tensor(x, True), Tensor(residual, True), Tensor(weight), Tensor(x, True, same_as=0),
            Tensor(residual, True, same_as=1), 1e-5,
        ]  # fmt: skip
        in_place = kernels["fused_rms_norm", design].launch(operands, *blocks(5, design))
        assert (in_place[0] == out).all()
        assert (in_place[1] == total).all()


@pytest.mark.parametrize("design", FP8_DESIGNS)
def test_rms_norm_to_fp8(kernels, random, design):
    kept = lengths(design)[2]
    for n in sorted({128, kept // 256 * 128 + 128, kept, kept + 384}):
        x, residual, weight = bits(random((5, n))), bits(random((5, n))), bits(random(n), "f32")
        written = [Tensor(empty(x.shape, numpy.uint8), True, gap=8), Tensor(empty(x.shape), True)]
        scale = Tensor(empty((5, n // 128), numpy.float32), True, gap=3)
        operands = [Tensor(x, gap=8), Tensor(residual), Tensor(weight), *written, scale, 1e-5]
        out, total, scales = kernels["rms_norm_fp8", design].launch(operands, *blocks(5, design))
        assert (total == bits(exact(x) + exact(residual))).all()
        check_fp8(out, scales, normalised(exact(total), weight))


@pytest.mark.parametrize("design", DESIGNS)
def test_layer_norm(kernels, random, design):
    for n in lengths(design):
        x, weight, bias = bits(random((5, n)) + 5), bits(random(n)), bits(random(n))
        operands = [Tensor(x, gap=8), Tensor(weight), Tensor(bias), Tensor(empty(x.shape), True), 1e-5]
        (out,) = kernels["layer_norm", design].launch(operands, *blocks(5, design))
        operands = [Tensor(x, True), Tensor(weight), Tensor(bias), Tensor(x, True, same_as=0), 1e-5]
        assert (kernels["layer_norm", design].launch(operands, *blocks(5, design))[1] == out).all()
        centred = exact(x) - exact(x).mean(axis=1, keepdims=True)
        expected = normalised(centred, exact(weight)) + exact(bias)
        assert relative_error(exact(out), expected) < ROUNDING["bf16"]


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("design", [*DESIGNS, LARGEST])
def test_softmax(kernels, random, design, dtype):
    for n in lengths(design):
        x = random((6, n)) * 4
        x[0, : n // 2] = -numpy.inf
        x[1, :-1] = -numpy.inf
        x = bits(x, dtype)
        operands = [Tensor(x, gap=8), Tensor(empty(x.shape, x.dtype), True, gap=16)]
        (out,) = kernels["softmax", dtype, design].launch(operands, *blocks(6, design))
        if n == 136:
            operands = [Tensor(x, True), Tensor(x, True, same_as=0)]
            assert (kernels["softmax", dtype, design].launch(operands, *blocks(6, design))[1] == out).all()
        powers = numpy.exp(exact(x, dtype) - exact(x, dtype).max(axis=1, keepdims=True))
        expected = powers / powers.sum(axis=1, keepdims=True)
        assert relative_error(exact(out, dtype), expected) < ROUNDING[dtype]


def without(kernel, operation, count=None):
    """A kernel without its instructions of a kind, or without the first ones."""
    code = list(kernel.program.code)
    places = [place for place, step in enumerate(code) if step.operation.startswith(operation)]
    for place in places[:count]:
        code[place] = code[place]._replace(operation="fence")
    return kernel._replace(program=kernel.program._replace(code=tuple(code)))


@pytest.mark.parametrize(
    ("replaced", "problem"),
    [
        ("barrier.cluster.arrive", "has to arrive once before it waits"),
        ("barrier.cluster.wait", "a block of the cluster may not have begun"),
        ("mbarrier.arrive", "waits for 1 threads and -256 bytes for ever"),
        ("mbarrier.wait", "leaves before it has waited for other blocks"),
    ],
)
def test_blocks_that_do_not_wait_for_each_other_are_an_error(kernels, random, replaced, problem):
    broken = without(kernels["softmax", "bf16", CLUSTER], replaced)
    x = bits(random((1, 8192)))
    with pytest.raises(PtxError, match=problem):
        broken.launch([Tensor(x), Tensor(empty(x.shape), True)], *blocks(1, CLUSTER))


def test_a_row_in_shared_memory_is_waited_for(kernels, random):
    kernel = kernels["softmax", "bf16", STAGED]
    x = bits(random((1, 4096)))
    operands = [Tensor(x), Tensor(empty(x.shape), True)]
    with pytest.raises(PtxError, match="has not waited for the copy of what it reads"):
        without(kernel, "mbarrier.wait", 1).launch(operands, *blocks(1, STAGED))
    with pytest.raises(PtxError, match="waits for 0 threads and 4096 bytes for ever"):
        without(kernel, "cp.async.bulk").launch(operands, *blocks(1, STAGED))


def test_softmax_of_no_numbers_is_none(kernels, random):
    x = random((3, 1496))
    x[0], x[1, 1490], x[2, 3] = -numpy.inf, numpy.nan, numpy.inf
    operands = [Tensor(bits(x)), Tensor(empty(x.shape), True)]
    (out,) = kernels["softmax", "bf16", SMALL].launch(operands, *blocks(3, SMALL))
    assert numpy.isnan(exact(out)).all()


def silu(values):
    return values / (1 + numpy.exp(-values))


def blocks_of_warps(rows, rows_of_warp, vectors):
    """The blocks, of four warps, where each warp has some rows of 32 vectors."""
    warps = -(-rows // rows_of_warp) * -(-vectors // 32)
    return -(-warps // 4)


@pytest.mark.parametrize("n", [128, 2048, 2176])
def test_swiglu(kernels, random, n):
    x = bits(random((3, 2 * n)) * 3)
    scale = Tensor(empty((3, n // 128), numpy.float32), True, gap=1)
    operands = [Tensor(x, gap=8), Tensor(empty((3, n), numpy.uint8), True, gap=8), scale]
    out, scales = kernels["swiglu"].launch(operands, (blocks_of_warps(3, 2, n // 8),))
    check_fp8(out, scales, silu(exact(x)[:, :n]) * exact(x)[:, n:])


@pytest.mark.parametrize(("rows", "n"), [(3, 128), (8, 256), (17, 1152)])
def test_quantize(kernels, random, rows, n):
    # A factor that goes to another row or block than its own is far from right.
    x = bits(random((rows, n)) * 2.0 ** (numpy.arange(rows)[:, None] % 5 + numpy.arange(n) // 128 % 3 * 5))
    x[1, :128] = 0
    scale = Tensor(empty((rows, n // 128), numpy.float32), True, gap=1)
    operands = [Tensor(x, gap=8), Tensor(empty((rows, n), numpy.uint8), True, gap=8), scale]
    out, scales = kernels["quantize"].launch(operands, (blocks_of_warps(rows, 8, n // 8),))
    check_fp8(out, scales, exact(x))


@pytest.mark.parametrize("gate", ["halves", "alternating"])
@pytest.mark.parametrize(("rows", "n"), [(70, 128), (70, 384), (3, 2176)])
def test_swiglu_of_groups_leaves_out_rows_that_do_not_count(kernels, random, gate, rows, n):
    x, counts = bits(random((4, rows, 2 * n)) * 3), numpy.array([rows + 5, 0, 2, -1], numpy.int32)
    scale = Tensor(empty((4, rows, n // 128), numpy.float32), True, gap=1)
    operands = [
        Tensor(x), Tensor(empty((4, rows, n), numpy.uint8), True, gap=8), scale, Tensor(counts)
    ]  # fmt: skip
    shape = (2, n // 8) if gate == "halves" else (4, n // 4)
    blocks = blocks_of_warps(min(rows, 64), *shape)
    out, scales = kernels["swiglu", gate].launch(operands, (blocks, 1, 4))
    values = exact(x)
    halves = (values[..., :n], values[..., n:]) if gate == "halves" else (values[..., ::2], values[..., 1::2])
    for group, count in enumerate(counts.clip(0, rows)):
        assert (out[group, count:] == 77).all()
        assert (scales[group, count:] == 77).all()
        if count:
            own = slice(0, count)
            check_fp8(
                out[group, own], scales[group, own], silu(halves[0][group, own]) * halves[1][group, own]
            )


@pytest.mark.parametrize(("rows", "n"), [(5, 1152), (5, 12800), (33, 2176), (64, 128)])
def test_rows_are_gathered_with_their_scales(kernels, random, rows, n):
    x = (random((7, n)) * 50).astype(numpy.int64).astype(numpy.uint8)
    scale = random((7, n // 128)).astype(numpy.float32)
    index = numpy.resize(numpy.array([3, -1, 6, 0, 3], numpy.int32), rows)
    written = Tensor(empty((rows, n), numpy.uint8), True, gap=16)
    factors = Tensor(empty((rows, n // 128), numpy.float32), True, gap=3)
    operands = [Tensor(x, gap=16), Tensor(scale, gap=1), Tensor(index), written, factors]
    # Blocks of 32 rows and 16 columns of factors, then one of each row.
    factor_blocks = -(-rows // 32) * -(-n // 2048)
    out, found = kernels["gather_rows"].launch(operands, (factor_blocks + rows,))
    valid = (index >= 0)[:, None]
    assert (out == numpy.where(valid, x[index], 0)).all()
    assert (found == numpy.where(valid, scale[index], 0)).all()


def test_experts_rows_are_summed_by_weight(kernels, random):
    rows, weight = bits(random((11, 1032))), numpy.abs(random((3, 4))).astype(numpy.float32)
    index = numpy.array([[1, 10, -1, 3], [-1, -1, -1, -1], [4, 4, 2, 9]], numpy.int32)
    rows[0] = to_bf16(numpy.float32(numpy.inf))
    operands = [Tensor(rows, gap=8), Tensor(index), Tensor(weight), Tensor(empty((3, 1032)), True)]
    (out,) = kernels["gather_reduce"].launch(operands, (3, 2))
    chosen = numpy.where((index >= 0)[:, :, None], exact(rows)[index], 0)
    assert relative_error(exact(out), (chosen * weight[:, :, None]).sum(axis=1)) < ROUNDING["bf16"]


@pytest.mark.parametrize(("tokens", "experts"), [(1, 3), (37, 5), (2100, 4)])
def test_tokens_are_sorted_by_expert(kernels, tokens, experts):
    index = numpy.random.default_rng(tokens).integers(-1, experts + 1, (tokens, 4)).astype(numpy.int32)
    pairs = (4 * tokens,)
    operands = [
        Tensor(index, extents=pairs), Tensor(empty(experts, numpy.int32), True),
        Tensor(empty(index.shape, numpy.int32), True, extents=pairs), Tensor(empty(pairs, numpy.int32), True),
    ]  # fmt: skip
    offsets, destination, source = kernels["expert_rows"].launch(operands, (experts,))
    flat = index.ravel()
    order = numpy.argsort(numpy.where((flat >= 0) & (flat < experts), flat, experts), kind="stable")
    counts = [(flat == expert).sum() for expert in range(experts)]
    assert (offsets == numpy.cumsum(counts)).all()
    rows = numpy.full(pairs, -1)
    rows[order[: sum(counts)]] = numpy.arange(sum(counts))
    assert (destination.ravel() == rows).all()
    assert (source[: sum(counts)] == order[: sum(counts)] // 4).all()
    assert (source[sum(counts) :] == -1).all()


@pytest.mark.parametrize("kind", ["gate", ("gate", "groups")])
def test_the_experts_with_the_largest_scores_are_chosen(kernels, random, kind):
    experts, groups = (60, 1) if kind == "gate" else (256, 8)
    logits, bias = random((9, experts)).astype(numpy.float32) * 2, random(experts).astype(numpy.float32)
    if groups == 1:
        # Of equal ones the first is taken; masked ones come last.
        logits, bias[:] = numpy.round(logits), 0
        logits[1, 3:] = -numpy.inf
        score = numpy.exp(logits.astype(numpy.float64))
        score /= score.sum(axis=1, keepdims=True)
    else:
        score = 1 / (1 + numpy.exp(-logits.astype(numpy.float64)))
    choice = (score + bias).reshape(9, groups, -1)
    if groups > 1:
        sums = numpy.sort(choice, axis=2)[:, :, -2:].sum(axis=2)
        choice[sums < numpy.sort(sums, axis=1)[:, -4:-3]] = -numpy.inf
    expected = numpy.argsort(-choice.reshape(9, -1), axis=1, kind="stable")[:, :8]
    operands = [
        Tensor(logits), None if groups == 1 else Tensor(bias), Tensor(empty((9, 8), numpy.float32), True),
        Tensor(empty((9, 8), numpy.int32), True), 2.5,
    ]  # fmt: skip
    weight, index = kernels[kind].launch(operands, (3,))
    assert (index == expected).all()
    chosen = numpy.take_along_axis(score, expected, 1)
    numpy.testing.assert_allclose(weight, 2.5 * chosen / chosen.sum(axis=1, keepdims=True), rtol=1e-5)


def test_weights_of_experts_without_a_score_are_zero(kernels, random):
    """Sigmoids of very negative logits are 0, which does not make numbers of the weights."""
    logits, bias = numpy.full((3, 256), -200, numpy.float32), random(256).astype(numpy.float32)
    operands = [
        Tensor(logits), Tensor(bias), Tensor(empty((3, 8), numpy.float32), True),
        Tensor(empty((3, 8), numpy.int32), True), 2.5,
    ]  # fmt: skip
    weight, index = kernels["gate", "groups"].launch(operands, (1,))
    assert (weight == 0).all()
    assert (numpy.diff(-bias[index], axis=1) >= 0).all()
