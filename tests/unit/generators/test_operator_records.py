"""Operators of the CUTLASS Operator API as records; no DSL is needed."""

from __future__ import annotations

import re

import pytest

from cutlass_aot.errors import CompileError, GeneratorError
from cutlass_aot.generators.cutlass_operators import records
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.operators import (
    BlockScaledGemmOperator,
    CLCDynamicPersistentTileSchedulerMetadata,
    PersistentDenseGemmEFCOperator,
    PersistentDenseGemmOperator,
    Sm80TensorOpGemmOperator,
    Sm90StaticPersistentGemmOperator,
    StaticPersistentTileSchedulerMetadata,
)


def record(operator, target="sm_90a", profile="h200"):
    return records.record(operator, target, load_profile(profile))


def test_an_operator_is_a_record_with_every_value_of_its_design():
    operator = PersistentDenseGemmOperator(
        dtypes=("bf16", "bf16", "f32"),
        layouts="ntt",
        tile_shape=(256, 128, 64),
        cluster_shape=(2, 1, 1),
        use_2cta_mma=True,
        use_tma_store=False,
        tile_scheduler=StaticPersistentTileSchedulerMetadata(),
    )
    kernel = record(operator, "sm_100a", "b200")
    assert dict(kernel.design) == {
        "family": "PersistentDenseGemm",
        "tile_shape": (256, 128, 64),
        "cluster_shape": (2, 1, 1),
        "use_2cta_mma": True,
        "use_tma_store": False,
        "tile_scheduler": "static",
    }
    assert (kernel.generator, kernel.target, kernel.accumulator) == ("cutlass.operators", "sm_100a", "f32")
    assert kernel.layouts == "ntt"
    assert [(o.dtype, o.divisibility, o.alignment, o.written) for o in kernel.operands] == [
        ("bf16", 8, 16, False), ("bf16", 8, 16, False), ("f32", 4, 16, True),
    ]  # fmt: skip
    assert dict(kernel.constants) == {"max_active_clusters_2": load_profile("b200").active_clusters(2)}


def test_a_dynamic_scheduler_compiles_no_number_of_the_device_in():
    operator = PersistentDenseGemmOperator(tile_scheduler=CLCDynamicPersistentTileSchedulerMetadata())
    assert record(operator, "sm_100a", "b200").constants == ()


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (BlockScaledGemmOperator(), "BlockScaledGemmOperator is none of the families PersistentDenseGemm,"),
        (PersistentDenseGemmEFCOperator(epilogue=object()), "it has an epilogue of the package's own"),
        (
            Sm80TensorOpGemmOperator(code_tile=(128, 128, 32)),
            r"its metadata says tile \(128, 128, 64\), its code has \(128, 128, 32\)",
        ),
    ],
)
def test_what_no_manifest_can_have_is_refused_with_its_reason(operator, reason):
    assert re.match(reason, records.refusal(operator))


def test_operands_that_bundles_do_not_know_are_refused():
    operator = Sm90StaticPersistentGemmOperator(layouts="tn?")
    with pytest.raises(GeneratorError, match="expected dense operands, row- or column-major"):
        records.problem_of(operator)


def test_a_kernel_that_is_known_to_be_bad_is_not_built():
    from cutlass_aot.builder.plan.plan import given

    kernel = record(PersistentDenseGemmOperator(), "sm_103a", "gb300")
    bad = Kernel.make(
        operation="gemm", generator="cutlass.operators", operands=kernel.operands, accumulator="f32",
        design={"family": "TgvGemm", "tile_shape": (64, 8, 128)}, target="sm_103a",
    )  # fmt: skip
    assert given([kernel, kernel], "4.8.1").kernels == (kernel,)
    with pytest.raises(CompileError, match=r"known to be bad with nvidia-cutlass-dsl 4.8.1: .*Xid 13"):
        given([kernel, bad], "4.8.1")
