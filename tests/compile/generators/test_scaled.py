"""Block-scaled, mixed-input and grouped GEMMs: built, found, their compiled checks, their instructions.

There is no GPU: a call that passes the compiled checks ends where the driver is asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy
import pytest

import cutlass_aot
from cutlass_aot import describe, scales, view_as
from cutlass_aot.doctor.dsl_toolkit import dsl_toolkit, not_compiled
from cutlass_aot.errors import KernelNotFound
from cutlass_aot.generators.cutlass_operators.operands import (
    BLOCK_SCALED,
    FAMILIES,
    GROUPED,
    MIXED_INPUT,
    RUBIN_BLOCK_SCALED,
)
from cutlass_aot.runtime.launching.tensors import describe_operand, to_ffi
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.operands import supports
from tests.compile.builder.test_build import blobs, command, is_object
from tests.compile.generators.test_families import aligned, compiled_function
from tests.support.bundles import ClaimsCuda
from tools.check.instructions import audit_instructions, disassemble, required

pytestmark = pytest.mark.compile

M, N, K, G = 264, 384, 256, 3
MX, NV = ("f8e8m0", 32), ("f8e4m3", 16)

# Name: element types of a, b and out, scale factors of a and b, what narrows the designs, target.
TABLES: dict[str, tuple[str, str, str, Any, Any, str, str]] = {
    "mxfp8": ("f8e4m3", "f8e5m2", "bf16", MX, MX, 'tile = "128x128"', "sm_100a"),
    "nvfp4": ("f4e2m1", "f4e2m1", "bf16", NV, NV, 'tile = "256x192"', "sm_103a"),
    "mxfp6": ("f6e3m2", "f6e2m3", "f16", MX, MX, 'tile = "128x64"', "sm_103a"),
    "mxfp4 x mxfp8": ("f4e2m1", "f8e4m3", "f32", MX, MX, 'tile = "256x64"', "sm_100f"),
    "u8": ("u8", "bf16", "bf16", None, None, 'tile = "128x64x64"', "sm_103a"),
    "i4": ("i4", "f16", "f16", ("f16", 128), None, 'tile = "128x64x64"', "sm_100a"),
    "grouped": ("bf16", "bf16", "bf16", None, None, 'tile = "128x128"', "sm_103f"),
}
FAMILY = dict.fromkeys(TABLES, BLOCK_SCALED) | {"u8": MIXED_INPUT, "i4": MIXED_INPUT, "grouped": GROUPED}
if not not_compiled(["sm_107a"], dsl_toolkit()):
    TABLES["rubin"] = ("f8e4m3", "f4e2m1", "bf16", MX, MX, 'tile = "128x128"', "sm_107a")
    FAMILY["rubin"] = RUBIN_BLOCK_SCALED


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("scaled")


@pytest.fixture(scope="module")
def bundle(store):
    targets = sorted({table[-1] for table in TABLES.values()})
    text = f'[bundle]\nname = "scaled"\ntargets = {targets}\ndevice = "b200"\n'
    for name, (a, b, out, a_scale, b_scale, design, target) in TABLES.items():
        text += (
            f'[[kernels]]\ngenerator = "cutlass.operators"\nfamily = "{FAMILY[name]}"\n'
            f'targets = ["{target}"]\na = "{a}"\nb = "{b}"\nout = "{out}"\nlayouts = ["tnt"]\n'
            f'cluster = "2x1"\nmax_per_group = 1\n{design}\n'
        )
        for operand, scale in (("a", a_scale), ("b", b_scale)):
            if scale:
                text += f'{operand}_scale = {{ dtype = "{scale[0]}", block = {scale[1]} }}\n'
        if name == "grouped":
            text += 'operation = "grouped_gemm"\n'
    (store / "scaled.toml").write_text(text)
    result = command("build", store / "scaled.toml", "--store", store / "store", "--out", store)
    assert result.returncode == 0, result.stderr
    return cutlass_aot.open(store / "scaled")


def test_the_list_of_families_is_whole():
    assert {*FAMILY.values(), RUBIN_BLOCK_SCALED} == set(FAMILIES)


def shapes_of(name, m=M, n=N, k=K):
    if name == "grouped":
        return {"a": (m, k), "b": (G, k, n), "out": (m, n), "offsets": (G,)}
    return {"a": (m, k), "b": (k, n), "out": (m, n)}


def dtypes_of(name):
    a, b, out, a_scale, b_scale, *_ = TABLES[name]
    scaled = {"a_scale": a_scale, "b_scale": b_scale}
    named = {operand: scale[0] for operand, scale in scaled.items() if scale}
    return {"a": a, "b": b, "out": out, **named, **({"offsets": "i32"} if name == "grouped" else {})}


def scale_shape(name, operand, m=M, n=N, k=K):
    rows = m if operand == "a_scale" else n
    _, block = TABLES[name][3 if operand == "a_scale" else 4]
    return (k // block, rows) if name == "i4" else (scales.count(rows, k, block),)


def descriptions(name, **extents):
    shapes = shapes_of(name, **extents)
    found = {}
    for operand, dtype in dtypes_of(name).items():
        shape = shapes.get(operand) or scale_shape(name, operand, **extents)
        strides = (*([shape[0] * shape[1]] * (len(shape) - 2)), 1, shape[-2]) if operand == "b" else None
        found[operand] = describe(shape, dtype, strides=strides)
    return found


@pytest.mark.parametrize("name", TABLES)
def test_it_is_found_by_descriptions_of_its_operands(bundle, name):
    given = descriptions(name)
    first = [given.pop(operand) for operand in ("a", "b", "out")]
    operation = "grouped_gemm" if name == "grouped" else "gemm"
    (handle,) = bundle.find(*first, operation=operation, **given)
    assert handle.target == TABLES[name][-1]
    assert handle.facts.cubin_target == handle.target
    assert handle.design["family"] == FAMILY[name]
    with pytest.raises(KernelNotFound):
        bundle.find(*first, operation="gemm" if name == "grouped" else "grouped_gemm", **given)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "mxfp6", "mxfp4 x mxfp8", "i4"])
def test_another_number_of_scale_factors_is_refused(bundle, name):
    handle = handle_of(bundle, name)
    given = descriptions(name)
    assert supports(handle.kernel.operands, list(given.values()))
    given["a_scale"] = describe((7,), given["a_scale"].dtype)
    verdict = supports(handle.kernel.operands, list(given.values()))
    assert "scale factors, one for each" in verdict.reason


def test_a_block_scaled_gemm_takes_compact_operands(bundle):
    handle = handle_of(bundle, "mxfp8")
    given = descriptions("mxfp8")
    given["a"] = describe((M, K), "f8e4m3", strides=(2 * K, 1))
    assert "expected a compact tensor" in supports(handle.kernel.operands, list(given.values())).reason


@pytest.mark.parametrize(("extents", "reason"), [
    ({"m": M + 4}, "expected extent M of `a` divisible by 8, got 268"),
    ({"k": K + 64}, "expected extent K of `a` divisible by 128, got 320"),
])  # fmt: skip
def test_scales_of_integers_come_in_whole_blocks_and_eight_rows(bundle, extents, reason):
    handle = handle_of(bundle, "i4")
    given = descriptions("i4", **extents)
    assert reason in supports(handle.kernel.operands, list(given.values())).reason


def handle_of(bundle, name):
    a, b, out, *_ = TABLES[name]
    found = [
        handle
        for handle in bundle.kernels(family=FAMILY[name])
        if [operand.dtype for operand in handle.kernel.operands[:3]] == [a, b, out]
    ]
    assert len(found) == 1
    return found[0]


def memory(shape, dtype, *, column_major=False, alignment=64):
    """Operands as compiled code takes them: of the record's rank, elements below a byte by view."""
    bits = DTYPES[dtype].bits
    if column_major:
        shape = (*shape[:-2], shape[-1], shape[-2])
    if bits < 8:
        array = aligned((*shape[:-1], shape[-1] * bits // 8), numpy.dtype("u1"), alignment)
    else:
        array = aligned(shape, numpy.dtype(f"u{bits // 8}"), alignment)
    if column_major:
        array = array.swapaxes(-1, -2)
    operand = ClaimsCuda(array, dtype if bits >= 8 else "u8")
    return to_ffi(view_as(operand, dtype)) if bits < 8 else operand


def operands_of(name, k_of_b=None, **extents):
    shapes = shapes_of(name, **extents)
    made = []
    for operand, dtype in dtypes_of(name).items():
        shape = shapes.get(operand) or (int(numpy.prod(scale_shape(name, operand, **extents))),)
        if operand == "b" and k_of_b:
            shape = (*shape[:-2], k_of_b, shape[-1])
        if name != "grouped" and operand in ("a", "b", "out"):
            shape = (1, *shape)
        made.append(memory(shape, dtype, column_major=operand == "b"))
    return made


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", TABLES)
def test_compiled_checks_take_the_operands_in_our_order(bundle, name):
    function = compiled_function(handle_of(bundle, name))
    operands = operands_of(name)
    with pytest.raises(RuntimeError, match="there is no NVIDIA driver"):
        function(*operands)
    with pytest.raises((TypeError, ValueError)):
        function(*operands[1:], operands[0])


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", TABLES)
def test_compiled_checks_refuse_a_k_that_differs(bundle, name):
    function = compiled_function(handle_of(bundle, name))
    with pytest.raises(ValueError, match=r"expected to match \w+\.shape"):
        function(*operands_of(name, k_of_b=2 * K))


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("name", "extents"), [
    ("mxfp8", {"k": K + 8}),
    ("nvfp4", {"k": K + 16}),
    ("mxfp6", {"k": K + 64}),  # 6-bit elements are spread over bytes 128 at a time
    ("mxfp4 x mxfp8", {"k": K + 64}),  # and so are 4-bit ones beside 8-bit ones
    ("u8", {"k": K + 8}),
    ("i4", {"k": K + 64}),  # a block is 128
    ("i4", {"m": M + 4}),  # factors are loaded 16 bytes at a time
    ("grouped", {"n": N + 4}),
])  # fmt: skip
def test_compiled_checks_refuse_extents_that_do_not_fit(bundle, name, extents):
    function = compiled_function(handle_of(bundle, name))
    with pytest.raises(ValueError, match="divisible"):
        function(*operands_of(name, **extents))


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["mxfp6", "mxfp4 x mxfp8"])
def test_operands_that_are_spread_over_bytes_are_aligned_to_32(bundle, name):
    function = compiled_function(handle_of(bundle, name))
    operands = operands_of(name)
    a = DTYPES[dtypes_of(name)["a"]]
    array = aligned((1, M, K * a.bits // 8 + 16), numpy.dtype("u1"), 64).reshape(-1)[16:]
    array = array[: M * K * a.bits // 8].reshape(1, M, -1)
    operands[0] = to_ffi(view_as(ClaimsCuda(array, "u8"), a.name))
    with pytest.raises(ValueError, match="alignment=32"):
        function(*operands)


def test_every_kernel_has_the_instructions_that_its_record_calls_for(bundle, store):
    handles = {handle.kernel.symbol.encode(): handle for handle in bundle.kernels()}
    checked = set()
    for _, data in blobs(store / "store"):
        if is_object(data):
            (symbol,) = [symbol for symbol in handles if symbol in data]
            audit_instructions(handles[symbol].kernel, disassemble(data))
            checked.add(symbol)
    assert len(checked) == len(handles) == len(TABLES)
    assert {name: str(required(handle_of(bundle, name).kernel)) for name in TABLES} == {
        "mxfp8": "UTCQMMA with scale factors",
        "nvfp4": "UTCOMMA with scale factors",
        "mxfp6": "UTCQMMA with scale factors",
        "mxfp4 x mxfp8": "UTCQMMA with scale factors",
        "u8": "UTCHMMA",
        "i4": "UTCHMMA",
        "grouped": "UTCHMMA",
    } | {name: "UTCQMMA with scale factors" for name in TABLES if name == "rubin"}


# In a process of its own: the DSL reads its environment once.
_LAYOUT_OF_THE_PACKAGE = """
import json, sys
import cutlass, cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.utils.blockscaled_layout import tile_atom_to_shape_SF
from cutlass.utils.mixed_input_helpers import get_gmem_layout_scale

places, columns = [], []


@cute.jit
def place(rows: cutlass.Constexpr, k: cutlass.Constexpr, batch: cutlass.Constexpr, block: cutlass.Constexpr):
    layout = tile_atom_to_shape_SF((rows, k, batch), block)
    for index in cutlass.range_constexpr(batch):
        for row in cutlass.range_constexpr(0, rows, 29):
            for column in cutlass.range_constexpr(0, k, block):
                where = int(cute.crd2idx((row, column, index), layout))
                places.append((rows, k, batch, block, index, row, column // block, where))
    places.append((rows, k, batch, block, int(cute.cosize(layout))))


@cute.jit
def by_columns(
    rows: cutlass.Constexpr, k: cutlass.Constexpr, batch: cutlass.Constexpr, block: cutlass.Constexpr
):
    layout = get_gmem_layout_scale((rows, k, batch), 1, block, OperandMajorMode.MN)
    for index in cutlass.range_constexpr(batch):
        for row in cutlass.range_constexpr(0, rows, 29):
            for column in cutlass.range_constexpr(0, k, block):
                where = int(cute.crd2idx((row, column + block - 1, index), layout))
                columns.append((rows, k, batch, block, index, row, column // block, where))


for shape in ((1, 32, 1, 32), (128, 64, 1, 16), (129, 513, 2, 16), (300, 400, 3, 32), (640, 1056, 1, 32)):
    cute.compile(place, *shape)
for shape in ((8, 64, 1, 64), (264, 1024, 3, 128)):
    cute.compile(by_columns, *shape)
print(json.dumps([places, columns]))
"""


def test_scale_factors_lie_where_the_package_looks_for_them(tmp_path):
    script = tmp_path / "places.py"  # the DSL reads the source of what it compiles
    script.write_text(_LAYOUT_OF_THE_PACKAGE)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "CUTE_DSL_ARCH": "sm_100a", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    places, columns = json.loads(done.stdout)
    assert len(places) > 500
    assert len(columns) > 100
    for rows, k, batch, block, *rest in places:
        if len(rest) == 1:
            assert rest[0] == scales.count(rows, k, block, batch=batch)
        else:
            index, row, column, where = rest
            assert scales.position(row, column, rows, k, block, batch=index) == where
    for rows, k, _, block, index, row, column, where in columns:
        assert (index * (k // block) + column) * rows + row == where


def test_a_torch_tensor_of_pairs_is_described_by_its_elements():
    torch = pytest.importorskip("torch")
    pairs = torch.zeros(M, K // 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert describe_operand(pairs.to("meta")) == describe((M, K), "f4e2m1")
