"""Records and keys: what must differ, and what must not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cutlass_aot.builder.key import key
from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import decode, encode
from cutlass_aot.schema.kernels import kernel as kernel_module
from cutlass_aot.schema.kernels.constraints import OperandConstraint, Scale
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.kernels import gemm, operand

BASE = gemm(constants={"max_active_clusters_1": 132})

CHANGES: dict[str, Any] = {
    "operation": "grouped_gemm",
    "generator": "other",
    "operands": (operand("a", "bf16"), operand("b", "bf16", "n"), operand("out", "bf16")),
    "accumulator": "f16",
    "epilogue": "D = relu(accum)",
    "design": {"family": "F", "tile_shape": (128, 256, 64), "cluster_shape": (1, 1, 1)},
    "target": "sm_100a",
    "constants": {"max_active_clusters_1": 148},
    "workspace_bytes": 16,
    "parameters": {"n": 4096},
    "accumulation": "exact",
}


def test_every_field_of_a_kernel_is_covered_by_the_changes():
    names = {field.name for field in dataclasses.fields(Kernel) if field.init}
    assert names == {*CHANGES, "cost"}


def test_a_cost_formula_decides_nothing_of_the_code() -> None:
    changed = dataclasses.replace(BASE, cost="N / 2")
    assert (changed, changed.symbol, key(changed, "1", "t")) == (BASE, BASE.symbol, key(BASE, "1", "t"))
    assert from_plain(Kernel, to_plain(changed), "it").cost == "N / 2"
    assert "cost" not in to_plain(BASE)


def test_fast_sums_are_what_kernels_had_before_there_were_exact_ones() -> None:
    fast, exact = (gemm(accumulation=accumulation) for accumulation in ("fast", "exact"))
    plain = gemm()
    assert (fast.digest, fast.group, fast.name) == (plain.digest, plain.group, plain.name)
    assert exact.group != fast.group
    assert exact.group_name == "gemm-f16.f16.f16-f32-exact-tnt-sm_90a"
    assert "accumulation" not in to_plain(plain)
    for kernel in (fast, exact, plain):
        assert from_plain(Kernel, to_plain(kernel), "it") == kernel


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_the_key_differs_on(field):
    changed = gemm(**{"constants": {"max_active_clusters_1": 132}, field: CHANGES[field]})
    assert key(changed, "1", "t") != key(BASE, "1", "t")
    assert changed.symbol != BASE.symbol


OPERAND_CHANGES: dict[str, Any] = {
    "name": "x",
    "dtype": "bf16",
    "extents": ("L", "N", "K"),
    "contiguous": -2,
    "divisibility": 16,
    "alignment": 32,
    "written": True,
    "compact": True,
    "scale": Scale("b", 32),
    "multiples": (1, 128, 64),
    "extent_bits": 64,
}


@pytest.mark.parametrize("field", OperandConstraint._fields)
def test_the_key_differs_on_operand(field):
    changed = operand("a", **{field: OPERAND_CHANGES[field]}) if field not in ("name", "dtype") else None
    changed = changed or operand("a")._replace(**{field: OPERAND_CHANGES[field]})
    other = gemm(operands=(changed, *BASE.operands[1:]), constants={"max_active_clusters_1": 132})
    assert key(other, "1", "t") != key(BASE, "1", "t")


def test_the_key_differs_on_generator_version_and_toolchain():
    assert len({key(BASE, "1", "t"), key(BASE, "2", "t"), key(BASE, "1", "u")}) == 3


def test_the_key_is_the_same_for_equal_records():
    design = {"cluster_shape": (1, 1, 1), "family": "F", "tile_shape": (128, 128, 64)}
    same = gemm(constants={"max_active_clusters_1": 132}, design=design)
    assert key(same, "1", "t") == key(BASE, "1", "t")


def test_the_encoding_in_parts_is_that_of_the_record():
    assert BASE.encoded() == encode(to_plain(BASE))


def test_a_key_that_is_known_stays_known():
    # A change here means that every store is rebuilt: raise KEY_SCHEMA when it is meant.
    assert BASE.digest == from_plain(Kernel, decode(encode(to_plain(BASE)), ""), "a kernel record").digest


def test_a_record_survives_the_encoding():
    assert from_plain(Kernel, decode(encode(to_plain(BASE)), "test"), "a kernel record") == BASE


@pytest.mark.parametrize("missing", sorted(to_plain(BASE)))
def test_a_record_without_a_field_is_refused(missing):
    record = to_plain(BASE)
    del record[missing]
    with pytest.raises(CorruptFile, match=missing):
        from_plain(Kernel, record, "a kernel record")


def test_group_ignores_design_alone():
    other = gemm(design={"family": "G", "tile_shape": (64, 64, 64)})
    assert other.group == BASE.group
    assert gemm(target="sm_100a").group != BASE.group
    assert gemm(dtypes=("f16", "f16", "f32")).group != BASE.group
    assert gemm(layouts="ttt").group != BASE.group
    assert gemm(epilogue="D = relu(accum)").group != BASE.group


def test_names_say_what_tells_kernels_apart():
    kernel = gemm(
        design={
            "family": "PersistentDenseGemm",
            "tile_shape": (256, 128, 64),
            "cluster_shape": (2, 1, 1),
            "use_2cta_mma": True,
            "use_tma_store": False,
            "tile_scheduler": "clc",
        },
        target="sm_100a",
    )
    expected = "gemm-f16.f16.f16-f32-tnt-sm_100a-PersistentDenseGemm-256x128x64-cluster2x1x1-clc-2cta_mma-"
    assert kernel.name == expected + kernel.digest[:8]


EQUAL = (True, 1, 1.0, 0.0, -0.0, False, 0)


@pytest.mark.parametrize("turn", range(len(EQUAL)))
@pytest.mark.parametrize("step", [1, -1])
def test_parameters_of_other_types_are_others(turn, step):
    """Whatever was asked first: what kernels share is encoded once."""

    def digests(values):
        kernel_module._encoded_operation.cache_clear()
        kernel_module._group.cache_clear()
        kernels = {repr(value): gemm(parameters={"n": value}) for value in values}
        assert len({kernel.parameters for kernel in kernels.values()}) == len(EQUAL)
        return {name: (kernel.digest, kernel.group) for name, kernel in kernels.items()}

    found = digests((EQUAL[turn:] + EQUAL[:turn])[::step])
    assert found == digests(EQUAL)
    assert len({pair[0] for pair in found.values()}) == len({pair[1] for pair in found.values()}) == 7


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": {"n": {"a": 1}}},
        {"parameters": {"n": float("nan")}},
        {"design": {"n": [1.5]}},
        {"operands": [{**to_plain(operand("a")), "scale": ["x"]}]},
        {"operands": [{**to_plain(operand("a")), "extents": ["*"], "scale": ["a", 32, "*", ""]}]},
        {"operands": [{**to_plain(operand("a")), "extents": [0, "N"]}]},
        {"operands": [{**to_plain(operand("a")), "contiguous": 0}]},
        {"operands": [to_plain(operand("a"))] * 2},
    ],
)
def test_a_record_of_nonsense_is_refused(changes):
    with pytest.raises(CorruptFile):
        from_plain(Kernel, to_plain(gemm()) | changes, "a kernel record")
