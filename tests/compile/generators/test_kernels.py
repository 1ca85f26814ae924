"""The kernels that come with this package, compiled: wide loads, no spills, and the checks of compiled code.

There is no GPU: a call that passes the compiled checks ends where the driver is asked for.
"""

from __future__ import annotations

import re

import numpy
import pytest

import cutlass_aot
from cutlass_aot.errors import DeviceError, OperandError
from cutlass_aot.kernels.gather_reduce import gather_reduce
from cutlass_aot.kernels.rms_norm import rms_norm
from cutlass_aot.kernels.swiglu import swiglu_fp8
from cutlass_aot.store.store import Store
from tests.compile.builder.test_build import REPOSITORY, command
from tests.compile.generators.test_families import aligned
from tests.support.bundles import ClaimsCuda
from tools.check.instructions import disassemble

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("an_h200_without_a_driver")]

TARGETS = ("sm_90a", "sm_100a", "sm_103a")
WIDTHS = {"bf16": 2, "f8e4m3": 1, "u8": 1, "f32": 4, "i32": 4}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Some kernels of each kind, for each target."""
    root = tmp_path_factory.mktemp("kernels")
    manifest = (REPOSITORY / "manifests" / "kernels.toml").read_text()
    for wide, narrow in (
        ("n = [2048, 4096, 14336]", "n = [2048]"),
        ("k = [1, 2, 4, 8]", "k = [8]"),
        ("n = [128, 2048, 4096, 7168]", "n = [128, 7168]"),
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


def listings(root, name):
    """Each kernel of a bundle, with its assembly."""
    store = Store(root / "store", create=False)
    kernels = cutlass_aot.open(root / name).kernels()
    assert len(kernels) >= 12
    return [(kernel, disassemble(store.get_blob(kernel.entry.object_sha256))) for kernel in kernels]


def swiglu_operands(rows=3, n=2048):
    return tensor("bf16", rows, 2 * n), tensor("f8e4m3", rows, n), tensor("f32", rows, n // 128)


def gather_operands(tokens=3, columns=1032, k=8):
    rows = tensor("bf16", 50, columns)
    return rows, tensor("i32", tokens, k), tensor("f32", tokens, k), tensor("bf16", tokens, columns)


def norm_operands(rows=3, n=7168):
    return tensor("bf16", rows, n), tensor("bf16", n), tensor("bf16", rows, n), 1e-5


FUNCTIONS = {
    "swiglu_fp8": (lambda: swiglu_fp8(n=2048, dtype="f8e4m3"), swiglu_operands),
    "gather_reduce": (lambda: gather_reduce(k=8, dtype="bf16"), gather_operands),
    "rms_norm": (lambda: rms_norm(n=7168, dtype="bf16"), norm_operands),
}


def test_each_was_built_for_each_target(bundle):
    counts = {"swiglu_fp8": 2, "gather_reduce": 1, "rms_norm": 2}
    for operation, count in counts.items():
        for target in TARGETS:
            assert len(bundle.kernels(operation=operation, target=target)) == count


def test_none_spills(bundle):
    assert not [kernel.name for kernel in bundle.kernels() if kernel.facts.spill_bytes]


def test_rows_are_loaded_in_vectors_of_sixteen_bytes(built):
    for kernel, listing in listings(built, "kernels"):
        assert re.search(r"\bLDG\.E\.128\b", listing), kernel.name


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
    for name, (_, operands) in FUNCTIONS.items():
        for kernel in bundle.kernels(operation=name, target="sm_90a"):
            parameters = dict(kernel.kernel.parameters)
            given = operands() if parameters.get("n", 0) in (0, 2048, 7168) else norm_operands(3, 128)
            if parameters["dtype"] == "u8":
                given = (given[0], tensor("u8", 3, 2048), given[2])
            found = bundle.find(*given, operation=name, parameters=parameters)
            assert [handle.name for handle in found] == [kernel.name]


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
    for kernel, listing in listings(tf32, "tf32"):
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
