"""The kernels that come with this package, compiled: wide loads, no spills, and the checks of compiled code.

There is no GPU: a call that passes the compiled checks ends where the driver is asked for.
"""

from __future__ import annotations

import re
from functools import cache

import numpy
import pytest

import cutlass_aot
from cutlass_aot.errors import DeviceError, OperandError
from cutlass_aot.kernels.expert_rows import expert_rows
from cutlass_aot.kernels.gather_reduce import gather_reduce
from cutlass_aot.kernels.gather_rows import gather_rows
from cutlass_aot.kernels.layer_norm import layer_norm
from cutlass_aot.kernels.quantize import quantize_fp8
from cutlass_aot.kernels.rms_norm import fused_rms_norm, rms_norm, rms_norm_fp8
from cutlass_aot.kernels.row_designs import IN_REGISTERS, MOST_BLOCK_THREADS, STAGED
from cutlass_aot.kernels.softmax import softmax
from cutlass_aot.kernels.swiglu import fused_swiglu_fp8, swiglu_fp8
from cutlass_aot.kernels.top_k_gate import top_k_gate
from cutlass_aot.store.store import Store
from tests.compile.builder.test_build import REPOSITORY, command
from tests.compile.generators.test_families import aligned
from tests.support import listings
from tests.support.bundles import ClaimsCuda

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("an_h200_without_a_driver")]

TARGETS = ("sm_90a", "sm_100a")
WITHOUT_VECTORS = ("top_k_gate", "expert_rows")
WIDTHS = {"bf16": 2, "f8e4m3": 1, "u8": 1, "f32": 4, "i32": 4}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Some kernels of each kind, for each target."""
    root = tmp_path_factory.mktemp("kernels")
    manifest = (REPOSITORY / "manifests" / "kernels.toml").read_text()
    for wide, narrow in (
        ('"sm_90a", "sm_100a", "sm_103a"', '"sm_90a", "sm_100a"'),
        (', sm_103a = "gb300"', ""),
        ('n = ["any", 2048, 4096, 14336]', 'n = ["any", 2048]'),
        ("k = [1, 2, 4, 8]", "k = [8]"),
        ('n = ["any", 128, 2048, 4096, 7168]', 'n = ["any", 128, 7168]'),
        ('operation = "fused_swiglu_fp8"', 'operation = "fused_swiglu_fp8"\nmasked = true'),
        ('operation = "fused_rms_norm"', 'operation = "fused_rms_norm"\nrow = ["512x4", "256x8"]'),
        ('operation = "rms_norm_fp8"', 'operation = "rms_norm_fp8"\nrow = ["512x4", "512x8"]'),
        ('operation = "layer_norm"', 'operation = "layer_norm"\nrow = ["512x4", "512x8"]'),
        ('dtype = ["bf16", "f32"]', 'dtype = "f32"\nrow = ["32x4", "512x4", "4096x8"]'),
        ('dtype = ["bf16", "f8e4m3"]\nscales = ["none", "rows"]', 'dtype = "f8e4m3"\nscales = "rows"'),
        ("experts = [64, 128, 256]", "experts = 64"),
    ):
        assert wide in manifest
        manifest = manifest.replace(wide, narrow)
    (root / "kernels.toml").write_text(manifest)
    result = command("build", root / "kernels.toml", "--store", root / "store", "--out", root)
    assert result.returncode == 0, result.stderr
    return root


@pytest.fixture(scope="module")
def bundle(built):
    """Held for as long as the tests run: declared functions find it because it is open."""
    return cutlass_aot.open(built / "kernels")


def tensor(dtype, *shape):
    return ClaimsCuda(aligned(shape, numpy.dtype(f"u{WIDTHS[dtype]}")), dtype)


@cache
def listed(root, name):
    """Each kernel of a bundle that loads vectors, with its instructions."""
    store = Store(root / "store", create=False)
    kernels = [
        kernel
        for kernel in cutlass_aot.open(root / name).kernels()
        if kernel.group.operation not in WITHOUT_VECTORS
    ]
    assert len(kernels) >= 12
    objects = [store.get_blob(kernel.entry.object_sha256) for kernel in kernels]
    return list(zip(kernels, listings.listings(objects), strict=True))


def columns(dtype, *shape):
    """A matrix, or several, with rows that follow each other within a column."""
    found = tensor(dtype, *shape[:-2], shape[-1], shape[-2])
    found.array = numpy.swapaxes(found.array, -1, -2)
    return found


def swiglu_operands(rows=3, n=2048):
    return tensor("bf16", rows, 2 * n), tensor("f8e4m3", rows, n), tensor("f32", rows, n // 128)


def expert_swiglu_operands(rows=3, n=384):
    groups = tensor("bf16", 5, rows, 2 * n), tensor("f8e4m3", 5, rows, n), columns("f32", 5, rows, n // 128)
    return *groups, tensor("i32", 5)


def gather_operands(tokens=3, columns=1032, k=8):
    rows = tensor("bf16", 50, columns)
    return rows, tensor("i32", tokens, k), tensor("f32", tokens, k), tensor("bf16", tokens, columns)


def norm_operands(rows=3, n=7168):
    return tensor("bf16", rows, n), tensor("bf16", n), tensor("bf16", rows, n), 1e-5


def any_norm_operands(rows=3, n=5128):
    return norm_operands(rows, n)


def fused_norm_operands(rows=3, n=5128):
    x, weight, out, eps = norm_operands(rows, n)
    return x, tensor("bf16", rows, n), weight, out, tensor("bf16", rows, n), eps


def fp8_norm_operands(rows=3, n=640):
    x, weight, _, eps = norm_operands(rows, n)
    return x, None, weight, tensor("f8e4m3", rows, n), None, columns("f32", rows, n // 128), eps


def quantize_operands(rows=3, n=640):
    return tensor("bf16", rows, n), tensor("f8e4m3", rows, n), columns("f32", rows, n // 128)


def layer_norm_operands(rows=3, n=5128):
    x, weight, out, eps = norm_operands(rows, n)
    return x, weight, tensor("bf16", n), out, eps


def softmax_operands(rows=3, n=5124):
    return tensor("f32", rows, n), tensor("f32", rows, n)


def gate_operands(tokens=3):
    logits, bias = tensor("f32", tokens, 256), tensor("f32", 256)
    return logits, bias, tensor("f32", tokens, 8), tensor("i32", tokens, 8), 2.5


def expert_operands(tokens=3):
    index = tensor("i32", tokens, 8)
    return index, tensor("i32", 256), tensor("i32", tokens, 8), tensor("i32", 8 * tokens)


def gathered_operands(rows=3, n=640):
    x, scale = tensor("f8e4m3", 7, n), tensor("f32", 7, n // 128)
    return x, scale, tensor("i32", rows), tensor("f8e4m3", rows, n), columns("f32", rows, n // 128)


FP8 = {"dtype": "bf16", "out_dtype": "f8e4m3", "scales": "columns"}
FUNCTIONS = {
    "swiglu_fp8": (lambda: swiglu_fp8(n=2048, dtype="f8e4m3"), swiglu_operands),
    "fused_swiglu_fp8": (
        lambda: fused_swiglu_fp8(**FP8, gate="halves", masked=True), expert_swiglu_operands,
    ),
    "gather_reduce": (lambda: gather_reduce(k=8, dtype="bf16"), gather_operands),
    "rms_norm": (lambda: rms_norm(n=7168, dtype="bf16"), norm_operands),
    "rms_norm of any length": (lambda: rms_norm(n="any", dtype="bf16"), any_norm_operands),
    "fused_rms_norm": (
        lambda: fused_rms_norm(dtype="bf16", weight="bf16", residual=True), fused_norm_operands,
    ),
    "rms_norm_fp8": (
        lambda: rms_norm_fp8(**FP8, weight="bf16", residual=False), fp8_norm_operands,
    ),
    "quantize_fp8": (lambda: quantize_fp8(**FP8), quantize_operands),
    "layer_norm": (lambda: layer_norm(dtype="bf16", weight="bf16", bias=True), layer_norm_operands),
    "softmax": (lambda: softmax(dtype="f32"), softmax_operands),
    "top_k_gate": (
        lambda: top_k_gate(
            experts=256, k=8, dtype="f32", scoring="sigmoid", bias=True, normalised=True, groups="8x4"
        ),
        gate_operands,
    ),
    "expert_rows": (lambda: expert_rows(k=8), expert_operands),
    "gather_rows": (lambda: gather_rows(dtype="f8e4m3", scales="rows"), gathered_operands),
}  # fmt: skip


def test_each_was_built_for_each_target(bundle):
    # Of rms_norm: a kernel of two lengths each, and the designs for any length.
    counts = {
        "swiglu_fp8": 4, "fused_swiglu_fp8": 2, "gather_reduce": 1,
        "rms_norm": 2 + len(IN_REGISTERS + STAGED),
        "fused_rms_norm": 2, "rms_norm_fp8": 4, "quantize_fp8": 2, "layer_norm": 2, "softmax": 3,
        "top_k_gate": 2, "expert_rows": 1, "gather_rows": 1,
    }  # fmt: skip
    for operation, count in counts.items():
        for target in TARGETS:
            assert len(bundle.kernels(operation=operation, target=target)) == count


def test_none_spills(bundle):
    assert not [kernel.name for kernel in bundle.kernels() if kernel.facts.spill_bytes]


def test_rows_are_loaded_in_vectors_of_sixteen_bytes(built):
    for kernel, listing in listed(built, "kernels"):
        assert re.search(r"\bLDG\.E(\.NA)?\.128\b", listing), kernel.name


def test_rows_in_shared_memory_are_brought_there_by_bulk_copies(built):
    staged = [found for found in listed(built, "kernels") if found[0].design.get("staged")]
    assert len(staged) >= 12
    for kernel, listing in staged:
        # Each is issued by a thread of its own, so that there is one instruction for a matrix.
        matrices = 2 if dict(kernel.kernel.parameters).get("residual") else 1
        assert len(re.findall(r"\bUBLKCP\b", listing)) == matrices, kernel.name
        assert re.search(r"\bLDS\.128\b", listing), kernel.name


def test_all_loads_of_a_row_are_issued_before_the_first_is_used(built):
    for kernel, listing in listed(built, "kernels"):
        row = kernel.group.operation in ("rms_norm", "layer_norm", "softmax")
        if row and not kernel.design["staged"]:
            threads, steps = kernel.design["row"]
            # Rows of many threads are loaded past the L1 cache, and nothing else is.
            past = r"\.NA" if threads >= MOST_BLOCK_THREADS else ""
            assert bool(re.search(r"\bLDG\.E\.NA\b", listing)) == bool(past), kernel.name
            expected = steps * (2 if kernel.group.operation == "softmax" else 1)
            loaded: list[set[int]] = []
            for line in listing.splitlines():
                registers = {int(number) for number in re.findall(r"\bR(\d+)\b", line)}
                load = re.search(rf"\bLDG\.E{past}\.128 R(\d+),", line)
                if load:
                    loaded.append(set(range(int(load[1]), int(load[1]) + 4)))
                elif registers & set().union(*loaded):
                    break
            # Among plain loads are those of weights, all or none; in softmax, one of what a row has beyond.
            weights = {"rms_norm": steps, "layer_norm": 2 * steps, "softmax": 1}[kernel.group.operation]
            allowed = (expected,) if past else (expected, expected + weights)
            assert len(loaded) in allowed, kernel.name


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_operands_pass_the_compiled_checks_in_the_declared_order(bundle, name):
    function, operands = FUNCTIONS[name]
    with pytest.raises(DeviceError, match="there is no NVIDIA driver"):
        function()(*operands())


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_one_row_passes_them_too(bundle, name):
    function, operands = FUNCTIONS[name]
    with pytest.raises(DeviceError, match="there is no NVIDIA driver"):
        function()(*operands(1))


def test_operands_go_by_name_too(bundle):
    x, weight, out, eps = norm_operands()
    with pytest.raises(DeviceError, match="there is no NVIDIA driver"):
        rms_norm(n=7168, dtype="bf16")(x, weight, eps=eps, out=out)


def test_what_does_not_fit_is_refused_with_a_reason(bundle):
    x, weight, out, eps = norm_operands()
    normalise = rms_norm(n=7168, dtype="bf16")
    with pytest.raises(OperandError, match=r"operand `weight` is unsupported: expected an extent of 7168"):
        normalise(x, tensor("bf16", 128), out, eps)
    with pytest.raises(OperandError, match="operand `out` is unsupported: expected extent T = 3"):
        normalise(x, weight, tensor("bf16", 4, 7168), eps)
    with pytest.raises(OperandError, match="operand `eps` is unsupported: expected a number"):
        normalise(x, weight, out, tensor("f32", 1))
    _, index, factors, _ = gather_operands()
    with pytest.raises(OperandError, match=r"operand `expert_out` is unsupported: .* divisible by 8"):
        gather_reduce(k=8, dtype="bf16")(tensor("bf16", 50, 1030), index, factors, tensor("bf16", 3, 1030))


def test_a_bundle_finds_them_by_operands_and_parameters(bundle):
    for name in ("swiglu_fp8", "gather_reduce", "rms_norm"):
        _, operands = FUNCTIONS[name]
        kernels = bundle.kernels(operation=name, target="sm_90a")
        for parameters in [dict(group) for group in {kernel.kernel.parameters for kernel in kernels}]:
            given = norm_operands(3, 128) if parameters.get("n", 0) == 128 else operands()
            if parameters["dtype"] == "u8":
                given = (given[0], tensor("u8", 3, 2048), given[2])
            found = bundle.find(*given, operation=name, parameters=parameters)
            expected = {kernel.name for kernel in kernels if dict(kernel.kernel.parameters) == parameters}
            assert {handle.name for handle in found} == expected


@pytest.mark.parametrize(
    ("rows", "n", "row"),
    [
        (8192, 128, (16, 1)), (8192, 1024, (32, 4)), (8192, 4096, (128, 4)), (8192, 7168, (256, 4)),
        (8192, 2048, (128, 2)), (8192, 3072, (128, 3)), (8192, 6144, (128, 6)), (8192, 12288, (256, 6)),
        (8192, 16384, (256, 8)), (8192, 32768, (512, 8)), (64, 12288, (512, 4)), (64, 32768, (1024, 4)),
        (1, 4096, (256, 3)), (1, 7168, (512, 2)),
        # A little longer than it keeps.
        (8192, 20480, (256, 8)),
    ],
)  # fmt: skip
def test_a_design_that_keeps_the_row_or_most_of_it_is_chosen(bundle, rows, n, row):
    x, weight = (cutlass_aot.describe(shape, "bf16") for shape in ((rows, n), (n,)))
    parameters = {"n": "any", "dtype": "bf16"}
    choice = bundle.choose(x, weight, x, 1e-5, operation="rms_norm", parameters=parameters, target="sm_90a")
    assert choice.kernel.design["row"] == row


@pytest.fixture(scope="module")
def tf32(tmp_path_factory):
    root = tmp_path_factory.mktemp("tf32")
    manifest = (REPOSITORY / "manifests" / "tf32.toml").read_text()
    manifest = re.sub(r"max_per_group = \d", "max_per_group = 1", manifest)
    manifest = manifest.replace('out = ["f32", "bf16", "f16"]', 'out = ["f32", "bf16"]')
    (root / "tf32.toml").write_text(manifest)
    result = command("build", root / "tf32.toml", "--store", root / "store", "--out", root)
    assert result.returncode == 0, result.stderr
    return root


def instruction_descriptor(tile_m, tile_n):
    """The descriptor of a TF32 instruction of SM100 with f32 sums and K-major operands.

    Bits 4-5: 1 for f32 sums; 7-9 and 10-12: 2 for TF32; 17-22: N / 8; 24-28: M / 16. Source: PTX ISA,
    "Instruction descriptor" of tcgen05.mma.
    """
    return 1 << 4 | 2 << 7 | 2 << 10 | tile_n // 8 << 17 | tile_m // 16 << 24


def test_tf32_kernels_use_the_tensor_cores_for_tf32(tf32):
    for kernel, listing in listed(tf32, "tf32"):
        if kernel.target == "sm_90a":
            assert re.search(r"\bHGMMA\.64x\d+x8\.F32\.TF32\b", listing), kernel.name
        else:
            assert "UTCHMMA" in listing
            if kernel.group.layouts in ("tnt", "tnn"):
                tile_m, tile_n, _ = kernel.design["tile_shape"]
                assert f"{instruction_descriptor(tile_m, tile_n):#x}" in listing, kernel.name


def test_tf32_is_asked_for_and_never_taken_for_f32(tf32):
    bundle = cutlass_aot.open(tf32 / "tf32")
    a, b, out = tensor("f32", 64, 128), tensor("f32", 128, 96), tensor("f32", 64, 96)
    b.array = numpy.ascontiguousarray(b.array.T).T
    views = [cutlass_aot.view_as(operand, "tf32") for operand in (a, b)]
    assert bundle.find(*views, out)[0].kernel.generator == "tf32_gemm"
    with pytest.raises(cutlass_aot.KernelNotFound, match="expected element type tf32, got f32"):
        bundle.find(a, b, out)
