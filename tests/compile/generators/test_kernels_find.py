"""What our kernels' declarations say and what a bundle of them finds agree, over random operands.

What a kernel takes is restated here from kernels.md and tf32.md in docs/reference, in bytes, without the
code that decides it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

import cutlass_aot
from cutlass_aot.errors import KernelNotFound
from cutlass_aot.schema.codec import from_plain
from cutlass_aot.schema.encoding import decode
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import OperandDescription
from tests.support.bundles import write_bundle

pytestmark = pytest.mark.compile

# A process of its own: what declares a kernel calls for the DSL to enumerate it.
PROGRAM = """
import sys
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.encoding import encode

device = load_profile("h200")
found = []
for name in ("swiglu", "gather_reduce", "rms_norm"):
    attribute = "swiglu_fp8" if name == "swiglu" else name
    generator = GeneratorReference(attribute, f"cutlass_aot.kernels.{name}:{attribute}").load()
    found += generator.enumerate(Problem(attribute, (), "", ""), "sm_90a", device)
tf32 = GeneratorReference("tf32_gemm", "cutlass_aot.generators.tf32_gemm.generator:Tf32Gemm").load()
for out in ("f32", "bf16", "f16"):
    for layouts in ("tnt", "tnn"):
        problem = Problem("gemm", ("tf32", "tf32", out), layouts, "f32")
        found += list(tf32.enumerate(problem, "sm_90a", device))[:2]
sys.stdout.buffer.write(encode([to_plain(kernel) for kernel in found]))
"""

WIDTHS = {"bf16": 2, "f16": 2, "f32": 4, "tf32": 4, "i32": 4, "f8e4m3": 1, "u8": 1}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "CUTE_DSL_ARCH": "sm_110a", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    kernels = [from_plain(Kernel, record, "a kernel record") for record in decode(done.stdout, "records")]
    return cutlass_aot.open(write_bundle(tmp_path_factory.mktemp("find") / "bundle", kernels))


# Operands of an operation: name, element type, extents, bytes that rows and data are aligned to, written.


def swiglu(n, dtype, rows):
    return [
        ("x", "bf16", (rows, 2 * n), 16, False),
        ("out", dtype, (rows, n), 8, True),
        ("scale", "f32", (rows, n // 128), 4, True),
    ]


def gather_reduce(k, dtype, rows):
    return [
        ("expert_out", dtype, (100, 512), 16, False),
        ("index", "i32", (rows, k), 4, False),
        ("weight", "f32", (rows, k), 4, False),
        ("out", dtype, (rows, 512), 16, True),
    ]


def rms_norm(n, dtype, rows):
    return [
        ("x", dtype, (rows, n), 16, False),
        ("weight", dtype, (n,), 16, False),
        ("out", dtype, (rows, n), 16, True),
    ]


OPERATIONS = {
    "swiglu_fp8": (swiglu, "n", (2048, 4096, 2049), ("f8e4m3", "u8", "bf16"), ("f8e4m3", "u8")),
    "gather_reduce": (gather_reduce, "k", (1, 8, 3), ("bf16", "f16", "f32"), ("bf16", "f16")),
    "rms_norm": (rms_norm, "n", (128, 4096, 4100), ("bf16", "f16", "f32"), ("bf16", "f16")),
}
BUILT = {"swiglu_fp8": {2048, 4096}, "gather_reduce": {1, 8}, "rms_norm": {128, 4096}}
ADDRESSES = (0, 0, 0, 4, 8, 16, 24, 1 << 40)
MOSTLY = st.sampled_from((False,) * 7 + (True,))


@st.composite
def described(draw, name, dtype, extents, aligned, written):
    """A description of an operand as it should be, or nearly so, and whether it is."""
    width = WIDTHS[dtype]
    columns = extents[-1]
    gap = draw(st.sampled_from((0, 0, 8, 16, 4, 1)))
    step = columns + gap
    shape, strides = extents, (step, 1)[-len(extents) :]
    address = draw(st.sampled_from(ADDRESSES)) * width
    good = address % aligned == 0 and (len(extents) == 1 or extents[0] == 1 or step * width % aligned == 0)
    if draw(MOSTLY):
        kind = draw(st.sampled_from(("dtype", "rank", "extent", "order", "overlap")))
        event(kind)
        if kind == "dtype":
            dtype = "f64"
        elif kind == "rank":
            shape, strides = (1, *shape), (strides[0] * shape[0], *strides)
        elif kind == "extent":
            shape = (*shape[:-1], columns + 128)
        elif kind == "order" and len(shape) == 2:
            # The same for a matrix of one row; of one column, rows then follow each other without a gap.
            fits = address % aligned == 0 and (shape[0] == 1 or (columns == 1 and width % aligned == 0))
            return OperandDescription(dtype, shape, (1, shape[0]), address), fits
        elif kind == "overlap" and len(shape) == 2:
            strides = (0, 1)
            return (
                OperandDescription(dtype, shape, strides, address),
                address % aligned == 0 and (shape[0] == 1 or not written),
            )
        else:
            return OperandDescription(dtype, shape, strides, address), good
        return OperandDescription(dtype, shape, strides, address), False
    return OperandDescription(dtype, shape, strides, address), good


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_bundle_finds_what_the_pages_say_and_nothing_else(bundle, data):
    operation = data.draw(st.sampled_from(sorted(OPERATIONS)))
    operands, parameter, values, dtypes, built = OPERATIONS[operation]
    value, dtype = data.draw(st.sampled_from(values)), data.draw(st.sampled_from(dtypes))
    rows = data.draw(st.sampled_from((1, 2, 7, 1 << 20)))
    good = value in BUILT[operation] and dtype in built
    if operation == "swiglu_fp8" and value % 128:
        value -= value % 128 - 128
    given_operands = []
    for item in operands(value, dtype, rows):
        description, fits = data.draw(described(*item))
        given_operands.append(description)
        good &= fits
    if operation == "gather_reduce":
        # Rows of the same other length in both are as good.
        assume(given_operands[0].shape[-1] == 512 or given_operands[3].shape[-1] == 512)
    if operation == "rms_norm":
        number = data.draw(st.sampled_from((1e-5, 0, 1)))
        given_operands.append(number)
    parameters = {parameter: value, "dtype": dtype}
    event(f"{operation}: {'found' if good else 'refused'}")
    options = {"operation": operation, "parameters": parameters, "target": "sm_90a"}
    if good:
        found = bundle.find(*given_operands, **options)
        assert [dict(handle.kernel.parameters) for handle in found] == [parameters]
    else:
        with pytest.raises(KernelNotFound, match=r"Nearest is|it has kernels of "):
            bundle.find(*given_operands, **options)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_bundle_finds_tf32_for_tf32(bundle, data):
    m, n, k = (data.draw(st.sampled_from((1, 4, 8, 12, 100, 4096))) for _ in range(3))
    batch = data.draw(st.sampled_from(((), (3,))))
    types = [data.draw(st.sampled_from(("tf32",) * 6 + ("f32",))) for _ in range(2)]
    out = data.draw(st.sampled_from(("f32", "bf16", "f16", "f64")))
    letters = "".join(data.draw(st.sampled_from(choice)) for choice in ("tttn", "nnnt", "tn"))
    shapes = ((m, k), (k, n), (m, n))
    descriptions, good = [], types == ["tf32", "tf32"] and out != "f64"
    for dtype, letter, expected, (rows, columns) in zip(
        (*types, out), letters, ("t", "n", "tn"), shapes, strict=True
    ):
        strides = (columns, 1) if letter == "t" else (1, rows)
        width = 8 if dtype == "f64" else WIDTHS[dtype]
        address = data.draw(st.sampled_from((0, 0, 0, 16, 4)))
        fits = False
        # A matrix of one row or one column has both layouts, if the bytes are right for one that is wanted.
        for as_letter in expected:
            contiguous, other, step = (
                (columns, rows, strides[0]) if as_letter == "t" else (rows, columns, strides[1])
            )
            unit = strides[1] if as_letter == "t" else strides[0]
            whole = contiguous * width % 16 == 0 and (other == 1 or step * width % 16 == 0)
            fits |= (unit == 1 or contiguous == 1) and whole
        good &= fits and address % 16 == 0
        over = (rows * columns,) if batch else ()
        whole_batch = not batch or rows * columns * width % 16 == 0
        good &= whole_batch
        descriptions.append(OperandDescription(dtype, (*batch, rows, columns), (*over, *strides), address))
    event("found" if good else "refused")
    if good:
        found = bundle.find(*descriptions, target="sm_90a")
        assert {handle.kernel.generator for handle in found} == {"tf32_gemm"}
    else:
        with pytest.raises(KernelNotFound, match=r"Nearest is|it has kernels of "):
            bundle.find(*descriptions, target="sm_90a")
