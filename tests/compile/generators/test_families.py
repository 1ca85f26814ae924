"""Every family of cutlass.operators, built and called: the order of operands, what compiled code refuses.

There is no GPU: a call that passes the compiled checks ends where the driver is asked for.
"""

from __future__ import annotations

import numpy
import pytest

import cutlass_aot
from cutlass_aot.doctor.dsl_toolkit import dsl_toolkit, not_compiled
from cutlass_aot.generators.cutlass_operators import FAMILIES
from cutlass_aot.schema.kernels.dtypes import DTYPES
from tests.compile.builder.test_build import command
from tests.support.bundles import ClaimsCuda

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("no_gpu")]

TABLES = {
    "PersistentDenseGemm": ('ab = ["f16", "f8e4m3"]', "sm_100a", 'tile = "128x128"\ncluster = "1x1"'),
    "PersistentDenseGemmPreferredCluster": (
        'ab = "bf16"', "sm_103a", 'tile = "256x128"\ncluster = "4x1"\nfallback_cluster = "2x1"'
    ),
    "PersistentDenseGemmEFC": ('ab = "bf16"', "sm_100f", 'tile = "128x128"\ncluster = "1x1"'),
    "TgvGemm": ('ab = "bf16"', "sm_100a", 'tile = "64x8"'),
    "Sm90StaticPersistentGemm": ('ab = "i8"\nout = "i32"', "sm_90a", 'tile = "64x128"\ncluster = "2x1"'),
    "Sm80TensorOpGemm": ('ab = "f16"', "sm_80", ""),
    "Sm107DenseGemm": ('ab = "f8e4m3"\nout = "bf16"', "sm_107a", 'tile = "128x64"\ncluster = "2x1"'),
}  # fmt: skip
if not_compiled(["sm_107a"], dsl_toolkit()):
    del TABLES["Sm107DenseGemm"]  # the DSL's libraries for CUDA 12

M, N, K = 64, 96, 160


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    root = tmp_path_factory.mktemp("families")
    targets = sorted({target for _, target, _ in TABLES.values()})
    text = f'[bundle]\nname = "families"\ntargets = {targets}\ndevice = "gb300"\n'
    for family, (operands, target, design) in TABLES.items():
        text += (
            f'[[kernels]]\ngenerator = "cutlass.operators"\nfamily = "{family}"\n'
            f'targets = ["{target}"]\nmax_per_group = 1\n{operands}\n{design}\n'
        )
    (root / "families.toml").write_text(text)
    result = command("build", root / "families.toml", "--store", root / "store", "--out", root)
    assert result.returncode == 0, result.stderr
    return cutlass_aot.open(root / "families")


def test_the_list_of_families_is_whole():
    assert TABLES.keys() | {"Sm107DenseGemm"} == FAMILIES.keys()


def test_every_family_was_built_for_its_target(bundle):
    built = {handle.design["family"]: handle for handle in bundle.kernels()}
    assert sorted(built) == sorted(TABLES)
    for family, handle in built.items():
        assert handle.target == TABLES[family][1]
        assert handle.facts.cubin_target == handle.target


def operands_of(handle, k_of_b=K):
    shapes = {"a": (1, M, K), "b": (1, k_of_b, N), "out": (1, M, N)}
    made = []
    for constraint in handle.kernel.operands:
        batch, rows, columns = shapes[constraint.name]
        width = DTYPES[constraint.dtype].bytes
        element = numpy.dtype(f"u{width}")
        if constraint.layout == "n":
            array = aligned((batch, columns, rows), element).transpose(0, 2, 1)
        else:
            array = aligned((batch, rows, columns), element)
        made.append(ClaimsCuda(array, constraint.dtype))
    return made


def aligned(shape, dtype, alignment=16):
    count = int(numpy.prod(shape))
    memory = numpy.zeros(count * dtype.itemsize + alignment, dtype="u1")
    start = -memory.ctypes.data % alignment
    return memory[start : start + count * dtype.itemsize].view(dtype).reshape(shape)


def compiled_function(handle):
    """The function itself, without the checks that Python makes before it."""
    return handle._group._libraries[handle.entry.library].function(handle.kernel.symbol)


@pytest.mark.parametrize("family", sorted(TABLES))
def test_compiled_checks_take_a_b_out_in_this_order(bundle, family):
    handles = bundle.kernels(family=family)
    assert handles
    for handle in handles:
        assert handle.supports(*operands_of(handle))
        with pytest.raises(RuntimeError, match="there is no NVIDIA driver"):
            compiled_function(handle)(*operands_of(handle))
        a, b, out = operands_of(handle)
        with pytest.raises((ValueError, TypeError)):
            compiled_function(handle)(out, b, a)


@pytest.mark.parametrize("family", sorted(TABLES))
def test_compiled_checks_refuse_a_k_that_differs(bundle, family):
    for handle in bundle.kernels(family=family):
        operands = operands_of(handle, k_of_b=K + 32)
        assert "expected extent K = 160 as `a` has, got 192" in handle.supports(*operands).reason
        with pytest.raises(ValueError, match=r"expected to match \w+\.shape"):
            compiled_function(handle)(*operands)
