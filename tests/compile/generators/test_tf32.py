"""Which TF32 GEMMs there are, and that the package they are registered with knows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product

import pytest

pytestmark = pytest.mark.compile

# A process of its own: the DSL reads its environment once, and what is registered stays.
PROGRAM = """
import json
import sys
from itertools import product
import torch
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.generators.registry import GeneratorReference

generator = GeneratorReference("tf32_gemm", "cutlass_aot.generators.tf32_gemm.generator:Tf32Gemm").load()
device = load_profile("h200")


def kernels(target="sm_100a", ab="tf32", out="f32", layouts="tnt", accumulator="f32", operation="gemm"):
    problem = Problem(operation, (ab, ab, out), layouts, accumulator)
    return list(generator.enumerate(problem, target, device))


counts = {
    f"{target} {layouts} {out}": len(kernels(target, out=out, layouts=layouts))
    for target in ("sm_80", "sm_90a", "sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_120a")
    for layouts in map("".join, product("tn", repeat=3))
    for out in ("f32", "bf16", "f16")
}
others = [
    len(kernels(**change))
    for change in (
        {"ab": "f32"}, {"ab": "f16"}, {"out": "i32"}, {"accumulator": "f16"}, {"operation": "grouped_gemm"}
    )
]
one = [kernel for target in ("sm_90a", "sm_100a") for kernel in kernels(target)]
import cutlass.operators

def meta(*shape):
    return torch.empty(shape, dtype=torch.float32, device="meta")

arguments = cutlass.operators.GemmArguments(
    meta(1, 256, 128), meta(1, 512, 128).mT, meta(1, 256, 512), accumulator_type=torch.float32
)
known = {
    target: sorted({type(o).__name__ for o in cutlass.operators.get_operators(arguments, target_sm=target)})
    for target in ("90a", "100a", "103a")
}
json.dump(
    {
        "counts": counts,
        "others": others,
        "distinct": [len(one), len({kernel.digest for kernel in one}), len({kernel.name for kernel in one})],
        "undeclared": sorted({name for kernel in one for name, _ in kernel.design} - set(generator.design)),
        "constants": sorted({(str(dict(k.design).get("tile_scheduler")), bool(k.constants)) for k in one}),
        "operands": [[o.dtype, o.divisibility, o.alignment, o.written] for o in one[0].operands],
        "known": known,
    },
    sys.stdout,
)
"""


@pytest.fixture(scope="module")
def found():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "CUTE_DSL_ARCH": "sm_110a", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_blackwell_has_every_layout_and_hopper_those_of_its_instruction(found):
    for layouts, out in product(map("".join, product("tn", repeat=3)), ("f32", "bf16", "f16")):
        for target in ("sm_100a", "sm_100f", "sm_103a", "sm_103f"):
            assert found["counts"][f"{target} {layouts} {out}"] > 100
        assert bool(found["counts"][f"sm_90a {layouts} {out}"]) == layouts.startswith("tn")
        assert found["counts"][f"sm_80 {layouts} {out}"] == found["counts"][f"sm_120a {layouts} {out}"] == 0


def test_other_problems_have_none(found):
    assert found["others"] == [0] * 5


def test_records_are_told_apart_by_declared_names(found):
    assert len(set(found["distinct"])) == 1
    assert found["undeclared"] == []


def test_a_static_scheduler_has_its_number_in_the_record(found):
    # Hopper's names none and is static.
    assert found["constants"] == [["None", True], ["clc", False], ["static", True]]


def test_operands_are_the_memory_of_f32_in_sixteen_bytes(found):
    assert found["operands"] == [
        ["tf32", 4, 16, False],
        ["tf32", 4, 16, False],
        ["f32", 4, 16, True],
    ]


def test_the_operators_package_has_them_as_it_has_its_own(found):
    assert found["known"] == {
        "90a": ["Sm90Tf32PersistentGemmOperator"],
        "100a": ["Tf32PersistentDenseGemmOperator"],
        "103a": ["Tf32PersistentDenseGemmOperator"],
    }
