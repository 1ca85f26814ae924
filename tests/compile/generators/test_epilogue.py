"""Fused epilogues, built and called: found by their operands, on the tensor cores, checked in compiled code.

There is no GPU: a call that passes the compiled checks ends where the driver is asked for.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy
import pytest

import cutlass_aot
from cutlass_aot.errors import DeviceError, KernelNotFound
from cutlass_aot.schema.kernels.dtypes import DTYPES
from tests.compile.builder.test_build import REPOSITORY, blobs, command
from tests.compile.generators.test_families import aligned, compiled_function
from tests.support.bundles import ClaimsCuda
from tests.support.listings import listing, listings
from tests.support.paths import SUPPORT

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("no_gpu")]

M, N, K = 200, 96, 160  # no multiples of a tile
SHAPES = {
    ("L", "M", "K"): (1, M, K),
    ("L", "K", "N"): (1, K, N),
    ("L", "M", "N"): (1, M, N),
    ("N",): (N,),
    ("M",): (M,),
    ("N", 1): (N, 1),
    (1,): (1,),
}

FORMULA = "t = alpha * accum + beta * C; D = relu(t); F = accum; r = sum(t); c = max(t); s = min(accum)"
MANIFEST = f"""
[bundle]
name = "epilogues"
targets = ["sm_100a", "sm_103a"]
device = "b200"

[[kernels]]
generator = "cutlass.operators"
targets = ["sm_100a"]
ab = "bf16"
epilogue = "{FORMULA}"
tile = "128x128"
cluster = "1x1"
max_per_group = 1
[kernels.operands]
C = {{ dtype = "f16", extents = "MN" }}
F = {{ dtype = "f32", extents = "MN" }}
r = {{ extents = "N" }}
c = {{ extents = "M" }}
s = {{ extents = "1" }}

[[kernels]]
generator = "cutlass.operators"
targets = ["sm_103a"]
ab = "f8e4m3"
out = "bf16"
epilogue = '''
u = accum * row * column * scale
D = gelu(u) + silu(u) - tanh(u) / exp(u) + sigmoid(u) * hardswish(u) - maximum(u, minimum(u, 0.5))
'''
tile = "256x128"
cluster = "2x1"
use_2cta_mma = true
max_per_group = 1
[kernels.operands]
row = {{ extents = "N", dtype = "bf16" }}
column = {{ extents = "M" }}
scale = {{ extents = "1" }}

[[kernels]]
generator = "cutlass.operators"
targets = ["sm_100a"]
ab = "bf16"
epilogue = "D = accum + x + y; G = accum"
tile = "128x128"
cluster = "1x1"
max_per_group = 1
[kernels.operands]
x = {{ extents = "MN", dtype = "bf16", transport = "sync_gmem_load" }}
y = {{ extents = "MN", dtype = "bf16", transport = "async_gmem_load" }}
G = {{ extents = "MN", dtype = "bf16", transport = "sync_gmem_store" }}

[[kernels]]
generator = "cutlass.operators"
targets = ["sm_100a"]
ab = "bf16"
epilogue = '''
t = softplus(accum) + log(abs(accum)) * rsqrt(bytes + 1) + erf(accum) * sqrt(abs(accum))
D = where(mask, clamp(t, -2, 2) ** 3, round(t) * (accum >= 0.5)) * cosine + rotate_every_two(accum)
positive = t > 0
'''
tile = "128x128"
cluster = "1x1"
max_per_group = 1
[kernels.operands]
mask = {{ extents = "MN", dtype = "bool" }}
bytes = {{ extents = "MN", dtype = "u8" }}
cosine = {{ extents = "N1" }}
positive = {{ extents = "MN", dtype = "bool" }}

[[kernels]]
generator = "cutlass.operators"
targets = ["sm_100a"]
ab = "f4e2m1"
out = "bf16"
scale = {{ dtype = "f8e4m3", block = 16 }}
epilogue = "D = silu(alpha * accum) * beta"
tile = "128x64"
cluster = "2x1"
max_per_group = 1

[[kernels]]
generator = "cutlass.operators"
targets = ["sm_100a"]
operation = "grouped_gemm"
ab = "bf16"
epilogue = "D = silu(alpha * accum)"
tile = "128x128"
cluster = "1x1"
max_per_group = 1

[[kernels]]
generator = "cutlass.operators"
targets = ["sm_100a"]
ab = "bf16"
epilogue = "D = accum"
tile = "128x128"
cluster = "1x1"
family = "PersistentDenseGemmEFC"
max_per_group = 1
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("epilogues")
    (root / "epilogues.toml").write_text(MANIFEST)
    result = command("build", root / "epilogues.toml", "--store", root / "store", "--out", root)
    assert result.returncode == 0, result.stderr
    return root


@pytest.fixture(scope="module")
def bundle(root):
    return cutlass_aot.open(root / "epilogues")


def kernel_with(bundle, name):
    (handle,) = (
        handle for handle in bundle.kernels() if name in {operand.name for operand in handle.kernel.operands}
    )
    return handle


def operands_of(handle, **shapes):
    """Operands that a kernel is to take, in its order; ``shapes`` are those that differ."""
    made = []
    for constraint in handle.kernel.operands:
        if constraint.is_number:
            made.append(0.5)
            continue
        shape = shapes.get(constraint.name, SHAPES[constraint.extents])
        element = numpy.dtype(f"u{DTYPES[constraint.dtype].bytes}")
        if constraint.contiguous == -2:
            array = aligned((*shape[:-2], shape[-1], shape[-2]), element).swapaxes(-1, -2)
        else:
            array = aligned(shape, element)
        made.append(ClaimsCuda(array, constraint.dtype))
    return made


def test_each_runs_on_the_tensor_cores_without_spilling(bundle, root):
    epilogues = {handle.kernel.epilogue for handle in bundle.kernels()}
    assert len(epilogues) == 7
    assert "" in epilogues
    objects = {handle.entry.object_sha256 for handle in bundle.kernels()}
    for handle in bundle.kernels():
        assert handle.facts.spill_bytes == 0
        assert handle.facts.cubin_target == handle.target
    texts = listings([data for path, data in blobs(root / "store") if path.name.split(".")[0] in objects])
    assert len(texts) == 7
    assert all(re.search(r"\bUTC[HQO]MMA\b", text) for text in texts)


@pytest.mark.parametrize("family", ["PersistentDenseBlockScaledGemm", "ContiguousOffset2D3DGemmDense"])
def test_an_epilogue_of_numbers_is_computed_before_the_result_is_rounded(bundle, root, family):
    (handle,) = (handle for handle in bundle.kernels() if handle.design["family"] == family)
    (data,) = (
        data for path, data in blobs(root / "store") if path.name.split(".")[0] == handle.entry.object_sha256
    )
    code = listing(data)
    # Each pair of results is rounded once, behind the multiplications by what the call gave.
    rounded = len(re.findall(r"\bF2FP\.BF16\.F32\.PACK_AB\b", code))
    assert rounded
    assert len(re.findall(r"\bMUFU\.EX2\b", code)) == 2 * rounded
    multiplied = [found.start() for found in re.finditer(r"\bFMUL2?\b", code)]
    assert multiplied[0] < code.index("F2FP.BF16")


def test_an_epilogue_is_found_by_its_operands_and_by_its_formula(bundle):
    d = cutlass_aot.describe
    a, b, out = d((M, K), "bf16"), d((K, N), "bf16", strides=(1, K)), d((M, N), "bf16")
    named = {
        "C": d((M, N), "f16"), "F": d((M, N), "f32"), "alpha": 1.0, "beta": 0.5,
        "r": d((N,), "f32"), "c": d((M,), "f32"), "s": d((1,), "f32"),
    }  # fmt: skip
    (found,) = bundle.find(a, b, out, target="sm_100a", **named)
    assert found.kernel.epilogue.startswith("D = relu(C * beta + accum * alpha); F = accum; c = max(")
    assert bundle.find(a, b, out, target="sm_100a", epilogue=FORMULA, **named)[0].name == found.name
    (plain,) = bundle.find(a, b, out, target="sm_100a")
    assert plain.kernel.epilogue == ""
    assert bundle.find(a, b, out, target="sm_100a", epilogue="D = (accum)")[0].name == plain.name
    with pytest.raises(KernelNotFound, match="epilogue"):
        bundle.find(a, b, out, target="sm_100a", epilogue="D = accum", **named)
    with pytest.raises(KernelNotFound, match=r"`r` is unsupported: expected extent N = 96"):
        bundle.find(a, b, out, target="sm_100a", **{**named, "r": d((N + 1,), "f32")})


@pytest.mark.parametrize("name", ["C", "row"])
def test_compiled_code_takes_every_operand_in_the_order_of_the_record(bundle, name):
    handle = kernel_with(bundle, name)
    given = operands_of(handle)
    assert handle.supports(*given)
    with pytest.raises(RuntimeError, match="there is no NVIDIA driver"):
        compiled_function(handle)(*given)
    # The launcher takes matrices without a batch, and vectors and numbers as they are.
    shapes = {
        operand.name: SHAPES[operand.extents][1:] for operand in handle.kernel.operands if operand.has_batch
    }
    with pytest.raises(DeviceError, match="driver"):
        handle.launch(*operands_of(handle, **shapes))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("C", (1, M + 8, N)),
        ("F", (1, M, N + 8)),
        ("r", (N + 8,)),
        ("c", (M + 8,)),
        ("s", (2,)),
        ("row", (M,)),
        ("column", (N,)),
        ("scale", (2,)),
    ],
)
def test_extents_that_do_not_agree_are_refused_by_compiled_code_too(bundle, name, shape):
    handle = kernel_with(bundle, name)
    given = operands_of(handle, **{name: shape})
    assert not handle.supports(*given)
    with pytest.raises((ValueError, TypeError), match="expected"):
        compiled_function(handle)(*given)


def test_what_moves_in_whole_tiles_says_so(bundle):
    handle = kernel_with(bundle, "x")
    constraints = {operand.name: operand for operand in handle.kernel.operands}
    assert all(constraints[name].multiples == (1, 128, 128) for name in ("G", "x", "y"))
    assert constraints["out"].multiples == ()
    assert dict(handle.kernel.design)["transports"] == "G=sync_gmem_store,x=sync_gmem_load,y=async_gmem_load"
    shapes = {"a": (1, 256, K), "b": (1, K, 384)}
    shapes.update(dict.fromkeys(("out", "G", "x", "y"), (1, 256, 384)))
    assert handle.supports(*operands_of(handle, **shapes))
    with pytest.raises(RuntimeError, match="there is no NVIDIA driver"):
        compiled_function(handle)(*operands_of(handle, **shapes))
    shapes.update(dict.fromkeys(("out", "G", "x", "y"), (1, 200, 384)), a=(1, 200, K))
    given = operands_of(handle, **shapes)
    assert "expected extent M divisible by 128, got 200" in handle.supports(*given).reason
    with pytest.raises(ValueError, match="divisible"):
        compiled_function(handle)(*given)


@pytest.mark.parametrize(("dtype", "error"), [("bool", RuntimeError), ("u8", ValueError), ("i8", ValueError)])
def test_a_mask_is_of_bool_to_compiled_code_too(bundle, dtype, error):
    handle = kernel_with(bundle, "mask")
    m, n = 256, 384  # whole tiles, for the vector with a stride
    shapes = {"a": (1, m, K), "b": (1, K, n), "cosine": (n, 1)}
    shapes |= dict.fromkeys(("out", "mask", "bytes", "positive"), (1, m, n))
    given = operands_of(handle, **shapes)
    place = [operand.name for operand in handle.kernel.operands].index("mask")
    given[place] = ClaimsCuda(aligned((1, m, n), numpy.dtype("u1")), dtype)
    assert bool(handle.supports(*given)) is (dtype == "bool")
    with pytest.raises(error, match=r"NVIDIA driver|Mismatched"):
        compiled_function(handle)(*given)


def test_the_package_computes_what_the_formula_says():
    script = SUPPORT / "epilogue_values.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        env={
            **os.environ,
            "CUTE_DSL_ARCH": "sm_120a",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": str(REPOSITORY),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
