"""What the SM90 GEMM offers, without the DSL."""

from __future__ import annotations

import inspect
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from cutlass_aot.errors import GeneratorError
from cutlass_aot.generators.device_profiles import DeviceProfile, load_profile
from cutlass_aot.generators.protocol import Generator, Problem, ScaleRequest
from cutlass_aot.generators.registry import version_of
from cutlass_aot.generators.sm90_gemm.generator import FAMILY, SCALES, Sm90Gemm, epilogue_of, plan_of
from cutlass_aot.generators.sm90_gemm.plan import (
    ALIGNMENT,
    LOADING_REGISTERS,
    RESERVED_BYTES,
    SHARED_BYTES,
    Plan,
    make_plan,
    whole_groups,
)
from cutlass_aot.generators.sm90_gemm.statements import (
    BY_BLOCK,
    of_blocks,
    of_elements,
    reductions_of,
    shared_by_both,
    with_reciprocals,
    with_shared,
)
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import parse_epilogue
from cutlass_aot.schema.kernels.formula import ACCUMULATOR, evaluate, names_in
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import describe, supports
from cutlass_aot.schema.targets import KNOWN_TARGETS
from tests.support.replace import replace

PROBLEM = Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32")
GROUPED = (
    ("grouped_gemm", ("M", "N"), "offsets"),
    ("masked_grouped_gemm", ("G", "M", "N"), "rows"),
)
"""Operations on groups, the extents of their outputs, and the names of their last operands."""


@pytest.fixture
def device() -> DeviceProfile:
    return load_profile("h200")


@pytest.fixture
def kernels(device: DeviceProfile) -> list[Kernel]:
    return list(Sm90Gemm().enumerate(PROBLEM, "sm_90a", device))


def test_its_module_and_its_enumeration_need_no_dsl() -> None:
    script = (
        "import sys\n"
        "from cutlass_aot.generators.sm90_gemm.generator import Sm90Gemm\n"
        "from cutlass_aot.generators.device_profiles import load_profile\n"
        "from cutlass_aot.generators.protocol import Problem\n"
        "problem = Problem('gemm', ('bf16', 'bf16', 'bf16'), 'tnt', 'f32')\n"
        "assert list(Sm90Gemm().enumerate(problem, 'sm_90a', load_profile('h200')))\n"
        "print(sorted({'cutlass', 'torch', 'tvm_ffi'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_it_is_a_generator_whose_sources_are_part_of_the_key() -> None:
    generator = Sm90Gemm()
    assert isinstance(generator, Generator)
    folder = Path(inspect.getfile(Sm90Gemm)).parent
    own = {f"generators.sm90_gemm.{path.stem}" for path in folder.glob("*.py")} - {
        "generators.sm90_gemm.__init__"
    }
    assert {name.removeprefix("cutlass_aot.") for name in generator.modules} == own | {
        "generators.dsl", "generators.epilogue_functions", "generators.gemm",
        "schema.kernels.epilogue", "schema.kernels.formula",
    }  # fmt: skip
    assert version_of(generator).startswith("1+")


def test_one_target() -> None:
    assert Sm90Gemm().targets("gemm") == ("sm_90a",)
    assert Sm90Gemm().targets("masked_grouped_gemm") == ("sm_90a",)
    assert Sm90Gemm().targets("conv2d_fprop") == ()


@pytest.mark.parametrize("target", sorted({*KNOWN_TARGETS} - {"sm_90a"}))
def test_no_kernel_for_other_targets(target: str, device: DeviceProfile) -> None:
    assert list(Sm90Gemm().enumerate(PROBLEM, target, device)) == []


def test_f16_has_the_designs_of_bf16(kernels: list[Kernel], device: DeviceProfile) -> None:
    problem = replace(PROBLEM, dtypes=("f16", "f16", "f16"))
    found = list(Sm90Gemm().enumerate(problem, "sm_90a", device))
    assert {kernel.design for kernel in found} == {kernel.design for kernel in kernels}
    assert len({kernel.group for kernel in found}) == 1


def test_results_that_stay_f32_have_no_tiles_whose_sums_take_most_registers(
    kernels: list[Kernel], device: DeviceProfile
) -> None:
    problem = replace(PROBLEM, dtypes=("bf16", "bf16", "f32"))
    found = {kernel.design: plan_of(kernel) for kernel in Sm90Gemm().enumerate(problem, "sm_90a", device)}
    assert found.keys() < {kernel.design for kernel in kernels}
    assert all(plan.totals <= (80 if plan.warp_groups == 3 else 128) for plan in found.values())
    assert any(plan_of(kernel).totals > 128 for kernel in kernels)


def test_row_major_weights_have_tiles_of_whole_swizzled_lines(
    kernels: list[Kernel], device: DeviceProfile
) -> None:
    found = {
        kernel.design for kernel in Sm90Gemm().enumerate(replace(PROBLEM, layouts="ttt"), "sm_90a", device)
    }
    assert found < {kernel.design for kernel in kernels}
    for design in map(dict, found):
        assert design["swap_operands"] or design["tile_shape"][1] % 32 == 0


EPILOGUE = parse_epilogue(
    "D = relu(alpha * accum + C) * scale; F = gelu(accum + bias)",
    {
        "C": {"dtype": "bf16", "extents": "MN"},
        "F": {"dtype": "f32", "extents": "MN"},
        "bias": {"dtype": "f16", "extents": "N"},
        "scale": {"dtype": "f32", "extents": "M"},
    },
)


QUANTIZED = parse_epilogue(
    "scale = max(abs(accum)) / 448; D = accum / scale", {"scale": {"extents": "MN/128", "layout": "n"}}
)


def test_operands_of_an_epilogue(device: DeviceProfile) -> None:
    found = list(Sm90Gemm().enumerate(replace(PROBLEM, epilogue=EPILOGUE), "sm_90a", device))
    assert found
    for kernel in found:
        assert [operand.name for operand in kernel.operands[3:]] == ["C", "F", "alpha", "bias", "scale"]
        assert [operand.written for operand in kernel.operands[3:]] == [False, True, False, False, False]
        assert kernel.epilogue == EPILOGUE.formula
        assert from_plain(Kernel, to_plain(kernel), "a kernel record") == kernel
        # Sums stay as they are until the formula takes them.
        assert plan_of(kernel).staged_bits == 32
        assert epilogue_of(kernel) == EPILOGUE


@pytest.mark.parametrize(
    ("formula", "operands"),
    [
        ("D = accum + C", {"C": {"dtype": "bf16", "extents": "MN", "layout": "n"}}),
        ("D = accum + C", {"C": {"dtype": "bf16", "extents": "MN", "transport": "sync_gmem_load"}}),
    ],
)
def test_what_its_epilogue_cannot_do_has_no_kernel(
    formula: str, operands: dict[str, dict[str, str]], device: DeviceProfile
) -> None:
    problem = replace(PROBLEM, epilogue=parse_epilogue(formula, operands))
    assert list(Sm90Gemm().enumerate(problem, "sm_90a", device)) == []


@pytest.mark.parametrize("out", ["f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i32", "i8", "u8"])
@pytest.mark.parametrize("ab", ["bf16", "f16", "f8e4m3"])
def test_an_epilogue_gives_any_element_type(ab: str, out: str, device: DeviceProfile) -> None:
    epilogue = parse_epilogue(
        "D = where(mask, accum, 0) * scale; F = D > 0; amax = max(abs(accum)); r = sum(accum)",
        {
            "mask": {"dtype": "bool", "extents": "MN"},
            "F": {"dtype": "bool", "extents": "MN"},
            "scale": {"dtype": "bf16", "extents": "N1"},
            "amax": {"extents": "1"},
            "r": {"extents": "M"},
        },
    )
    problem = replace(PROBLEM, dtypes=(ab, ab, out), epilogue=epilogue)
    found = list(Sm90Gemm().enumerate(problem, "sm_90a", device))
    assert found
    for kernel in found:
        by_name = {operand.name: operand for operand in kernel.operands}
        assert by_name["out"].divisibility == 16 * 8 // DTYPES[out].bits
        assert by_name["mask"].divisibility == by_name["mask"].alignment == 16
        assert (by_name["scale"].extents, by_name["scale"].alignment) == (("N", 1), 2)
        assert (by_name["amax"].alignment, by_name["r"].alignment, by_name["r"].written) == (4, 4, True)
        assert plan_of(kernel).staged_bits == 32
    if out.startswith(("f8", "i", "u")):
        assert not list(Sm90Gemm().enumerate(replace(problem, epilogue=None), "sm_90a", device))


@pytest.mark.parametrize("ab", ["bf16", "f8e4m3"])
@pytest.mark.parametrize(("columns", "layout"), [(128, "n"), (32, "t"), (16, "t")])
def test_scales_of_blocks_have_tiles_of_whole_blocks(
    ab: str, columns: int, layout: str, device: DeviceProfile
) -> None:
    epilogue = parse_epilogue(
        "x = silu(accum + bias); scale = max(abs(x)) / 448; D = x / scale; amax = max(abs(x))",
        {
            "scale": {"extents": f"MN/{columns}", "layout": layout},
            "bias": {"extents": "N"},
            "amax": {"extents": "1"},
        },
    )
    problem = replace(PROBLEM, dtypes=(ab, ab, "f8e4m3"), epilogue=epilogue)
    found = list(Sm90Gemm().enumerate(problem, "sm_90a", device))
    heights = {dict(kernel.design)["tile_shape"][0] for kernel in found}
    assert {64, 128} <= heights
    for kernel in found:
        plan, scale = plan_of(kernel), kernel.operands[-1]
        assert plan.direct
        assert not plan.swap
        assert plan.tile[1] % columns == 0
        # The last tile begins at a block, also where it begins early.
        assert plan.multiples == (1, columns)
        assert scale.extents == ("L", "M", f"N / {columns}")
        assert (scale.layout, scale.divisibility, scale.alignment, scale.written) == (layout, 1, 4, True)
        assert from_plain(Kernel, to_plain(kernel), "a kernel record") == kernel
        again = epilogue_of(kernel)
        assert again is not None
        assert (again.formula, again.block) == (epilogue.formula, columns)
    assert len({kernel.group for kernel in found}) == 1


def test_the_scales_of_an_output_are_those_that_the_next_gemm_takes(device: DeviceProfile) -> None:
    """Its a is the output, its a_scale the scale: the same extents but for their names, the same layout."""
    quantized = replace(PROBLEM, dtypes=("f8e4m3", "f8e4m3", "f8e4m3"), epilogue=QUANTIZED)
    first = next(iter(Sm90Gemm().enumerate(quantized, "sm_90a", device)))
    scaled = replace(PROBLEM, dtypes=("f8e4m3", "f8e4m3", "bf16"), scales=SCALES)
    second = next(iter(Sm90Gemm().enumerate(scaled, "sm_90a", device)))
    scale = first.operands[-1]
    (factors,) = (operand for operand in second.operands if operand.name == "a_scale")
    assert (scale.dtype, scale.layout) == (factors.dtype, factors.layout)
    assert [str(extent).replace("N", "K") for extent in scale.extents] == list(map(str, factors.extents))
    # It is not taken for the factors of an operand, whatever its name is.
    named = parse_epilogue(
        "a_scale = max(abs(accum)); D = accum / a_scale", {"a_scale": {"extents": "MN/128", "layout": "n"}}
    )
    for kernel in Sm90Gemm().enumerate(replace(quantized, epilogue=named), "sm_90a", device):
        assert not plan_of(kernel).scaled


@pytest.mark.parametrize(
    ("operation", "extents"), [("gemm", ("L", "M", "N")), *(found[:2] for found in GROUPED)]
)
def test_an_output_with_half_as_many_columns(
    operation: str, extents: tuple[str, ...], device: DeviceProfile
) -> None:
    epilogue = parse_epilogue(
        "x = silu(even(accum + bias)) * odd(accum + bias); D = x; F = accum; r = sum(x)",
        {"bias": {"extents": "N"}, "F": {"extents": "MN"}, "r": {"extents": "M"}},
    )
    problem = replace(PROBLEM, operation=operation, epilogue=epilogue)
    found = list(Sm90Gemm().enumerate(problem, "sm_90a", device))
    with_all = replace(problem, epilogue=parse_epilogue("D = accum + 1", {}))
    assert len(found) == len(list(Sm90Gemm().enumerate(with_all, "sm_90a", device)))
    for kernel in found:
        by_name = {operand.name: operand for operand in kernel.operands}
        assert by_name["out"].extents == (*extents[:-1], "N / 2")
        assert by_name["F"].extents == extents
        assert (by_name["b"].multiples, by_name["out"].divisibility) == ((1, 1, 2), 8)
        assert epilogue_of(kernel) == epilogue
        assert plan_of(kernel).scale_columns == 1
        assert from_plain(Kernel, to_plain(kernel), "a kernel record") == kernel


def test_an_odd_number_of_columns_has_no_half(device: DeviceProfile) -> None:
    problem = replace(PROBLEM, epilogue=parse_epilogue("D = even(accum) * odd(accum)", {}))
    kernel = next(iter(Sm90Gemm().enumerate(problem, "sm_90a", device)))
    a, even, odd = describe((4, 64), "bf16"), *(describe((64, n), "bf16", strides=(1, 64)) for n in (16, 15))
    out = describe((4, 8), "bf16")
    assert supports(kernel.operands, (a, even, out))
    refused = supports(kernel.operands, (a, odd, out))
    assert not refused
    assert "expected extent N divisible by 2, got 15" in str(refused)


@pytest.mark.parametrize(
    ("ab", "columns", "least"), [("bf16", 128, 2), ("bf16", 32, 7), ("f8e4m3", 32, 5), ("f8e4m3", 16, 8)]
)
def test_scales_of_an_output_with_half_as_many_columns(
    ab: str, columns: int, least: int, device: DeviceProfile
) -> None:
    epilogue = parse_epilogue(
        "x = silu(even(accum)) * odd(accum); scale = max(abs(x)) / 448; D = x / scale",
        {"scale": {"extents": f"MN/{columns}", "layout": "n"}},
    )
    problem = replace(PROBLEM, dtypes=(ab, ab, "f8e4m3"), epilogue=epilogue)
    found = list(Sm90Gemm().enumerate(problem, "sm_90a", device))
    assert len(found) >= least
    for kernel in found:
        plan = plan_of(kernel)
        assert plan.scale_columns == 2 * columns
        assert plan.tile[1] % plan.scale_columns == 0
        assert kernel.operands[-1].extents == ("L", "M", f"N / {2 * columns}")
        assert epilogue_of(kernel) == epilogue


def test_nvfp4_is_stored_in_rows_of_16_bytes(device: DeviceProfile) -> None:
    epilogue = parse_epilogue(
        "x = accum / whole; scale = max(abs(x)) / 6; D = x / scale",
        {"scale": {"extents": "MN/16", "dtype": "f8e4m3"}},
    )
    problem = replace(PROBLEM, dtypes=("bf16", "bf16", "f4e2m1"), epilogue=epilogue)
    found = list(Sm90Gemm().enumerate(problem, "sm_90a", device))
    assert len(found) > 20
    for kernel in found:
        by_name = {operand.name: operand for operand in kernel.operands}
        assert by_name["out"].divisibility == 32
        assert (by_name["scale"].dtype, by_name["scale"].alignment) == ("f8e4m3", 1)
    assert not list(Sm90Gemm().enumerate(replace(problem, epilogue=None), "sm_90a", device))


def test_what_a_scale_and_its_elements_share_is_computed_once() -> None:
    epilogue = parse_epilogue(
        "x = silu(accum + bias); scale = max(abs(x)) / 448; D = x / scale; F = accum + bias; r = sum(x)",
        {
            "scale": {"extents": "MN/128"},
            "bias": {"extents": "N"},
            "F": {"extents": "MN"},
            "r": {"extents": "M"},
        },
    )
    assert [statement.name for statement in of_blocks(epilogue)] == ["scale"]
    assert [statement.name for statement in of_elements(epilogue)] == ["D", "F", "r"]
    assert list(reductions_of(epilogue)) == ["max(abs(silu(accum + bias)))"]
    shared = shared_by_both(epilogue)
    assert list(shared) == ["silu(accum + bias)", "accum + bias"]
    by_name = {statement.name: statement.expression for statement in epilogue.statements}
    assert names_in(with_shared(by_name["D"], shared)) == {"silu(accum + bias)", "scale"}
    assert names_in(with_shared(by_name["F"], shared)) == {"accum + bias"}


def test_a_quotient_by_a_blocks_value_has_its_reciprocal() -> None:
    epilogue = parse_epilogue(
        "scale = max(abs(accum)) / 448; D = alpha * (accum / scale) / beta",
        {"scale": {"extents": "MN/128"}, "alpha": {}, "beta": {}},
    )
    given = {ACCUMULATOR: 6.0, "scale": 3.0, "1 / scale": 1 / 3.0, "alpha": 5.0, "beta": 2.0}
    [of_elements_alone] = of_elements(epilogue)
    expression = with_reciprocals(of_elements_alone.expression, {"scale"})
    assert names_in(expression) == {ACCUMULATOR, "alpha", "beta", "scale", "1 / scale"}
    taken = []

    def by_block(x: float, y: float, reciprocal: float) -> float:
        taken.append((x, y, reciprocal))
        return x / y

    assert evaluate(expression, given, {BY_BLOCK: by_block}) == 5.0
    assert taken == [(6.0, 3.0, 1 / 3.0)]
    # Nothing else changes.
    assert with_reciprocals(of_elements_alone.expression, set()) == of_elements_alone.expression


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("operation", "extents", "last"), [("gemm", ("L", "M", "N"), ""), *GROUPED])
def test_epilogues_with_scale_factors_and_of_groups_have_the_extents_of_the_output(
    operation: str, extents: tuple[str, ...], last: str, scaled: bool, device: DeviceProfile
) -> None:
    ab = "f8e4m3" if scaled else "bf16"
    scales = SCALES if scaled else (None, None)
    problem = replace(PROBLEM, operation=operation, dtypes=(ab, ab, "f16"), scales=scales, epilogue=EPILOGUE)
    found = list(Sm90Gemm().enumerate(problem, "sm_90a", device))
    assert found
    factors = ["a_scale", "b_scale"] if scaled else []
    for kernel in found:
        names = [operand.name for operand in kernel.operands[3:]]
        assert names == [*factors, "C", "F", "alpha", "bias", "scale", *([last] if last else [])]
        by_name = {operand.name: operand for operand in kernel.operands}
        assert by_name["C"].extents == by_name["F"].extents == by_name["out"].extents == extents
        assert (by_name["bias"].extents, by_name["scale"].extents) == (("N",), ("M",))
        assert epilogue_of(kernel) == EPILOGUE
        assert (plan_of(kernel).staged_bits, plan_of(kernel).by_tma) == (32, False)
    # Scales have a row for each of the output.
    quantized = replace(problem, dtypes=(ab, ab, "f8e4m3"), epilogue=QUANTIZED)
    kernels = list(Sm90Gemm().enumerate(quantized, "sm_90a", device))
    assert len(kernels) > 2
    for kernel in kernels:
        (scale,) = (operand for operand in kernel.operands if operand.name == "scale")
        assert scale.extents == (*extents[:-1], "N / 128")
        assert epilogue_of(kernel) == QUANTIZED
        # A tile begins where both the factors of B and the blocks of the output do.
        assert plan_of(kernel).multiples == (1, 128)


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (replace(PROBLEM, operation="grouped_gemm"), "offsets"),
        (replace(PROBLEM, operation="masked_grouped_gemm"), "rows"),
        (replace(PROBLEM, dtypes=("f8e4m3", "f8e4m3", "bf16"), scales=SCALES), "a_scale"),
    ],
)
def test_an_epilogue_has_no_operand_of_a_name_that_the_operation_has(
    problem: Problem, name: str, device: DeviceProfile
) -> None:
    epilogue = parse_epilogue(f"D = accum * {name}", {name: {"extents": "N"}})
    with pytest.raises(GeneratorError, match=f"operand '{name}', and .* has one of its own"):
        list(Sm90Gemm().enumerate(replace(problem, epilogue=epilogue), "sm_90a", device))


def test_fp8_has_tiles_of_whole_lines_of_128_bytes(kernels: list[Kernel], device: DeviceProfile) -> None:
    problem = replace(PROBLEM, dtypes=("f8e4m3", "f8e4m3", "bf16"), accumulation="fast")
    found = list(Sm90Gemm().enumerate(problem, "sm_90a", device))
    assert len(found) == len(kernels)
    for narrow, wide in zip(found, kernels, strict=True):
        assert plan_of(narrow).tile[2] == 2 * plan_of(wide).tile[2]
        assert plan_of(narrow).stages == plan_of(wide).stages
    assert list(Sm90Gemm().enumerate(replace(problem, layouts="ttt"), "sm_90a", device)) == []


def test_persistent_kernels_know_the_gpu_and_others_do_not(kernels: list[Kernel]) -> None:
    for kernel in kernels:
        plan, constants = plan_of(kernel), dict(kernel.constants)
        if not dict(kernel.design)["persistent"]:
            assert (constants, plan.active) == ({}, 0)
            continue
        blocks = plan.cluster[0] * plan.cluster[1]
        assert constants == {f"max_active_clusters_{blocks}": plan.active}
        # Clusters of four and of eight do not fill all 132 multiprocessors.
        assert plan.active == {1: 132, 2: 66, 4: 30, 8: 15}[blocks]
        assert plan.shared_bytes == plan.stages * plan.stage_bytes


@pytest.mark.parametrize("output", ["bf16", "f32", "fused"])
def test_results_of_persistent_kernels_lie_beside_the_ring_in_parts_of_a_tile(
    device: DeviceProfile, output: str
) -> None:
    staged = [plan for plan in plans(output, device) if plan.active and not plan.direct]
    assert bool(staged) == (output != "bf16")
    for plan in staged:
        assert plan.staged_bytes > 0
        assert plan.staged_offset == plan.stages * plan.stage_bytes
        assert plan.tile[1] % plan.staged_columns == 0
        assert plan.shared_bytes == plan.staged_offset + plan.staged_bytes


def plans(output: str, device: DeviceProfile) -> list[Plan]:
    """Of every kernel, by its output: an element type, or an epilogue's."""
    problem = {
        "bf16": PROBLEM,
        "f32": replace(PROBLEM, dtypes=("bf16", "bf16", "f32")),
        "fused": replace(PROBLEM, epilogue=EPILOGUE),
    }[output]
    return [plan_of(kernel) for kernel in Sm90Gemm().enumerate(problem, "sm_90a", device)]


def test_a_record_of_another_hand_is_refused(kernels: list[Kernel]) -> None:
    design = {**dict(kernels[0].design), "tile_shape": (24, 64, 128)}
    with pytest.raises(GeneratorError, match="expected a record of its enumerate"):
        plan_of(replace(kernels[0], design=tuple(sorted(design.items()))))


@pytest.mark.parametrize(
    "problem",
    [
        replace(PROBLEM, operation="conv2d_fprop"),
        replace(PROBLEM, scales=(ScaleRequest("f8e8m0", 32), None)),
        replace(PROBLEM, dtypes=("bf16", "f16", "bf16")),
        replace(PROBLEM, dtypes=("bf16", "bf16", "f16")),
        replace(PROBLEM, dtypes=("f32", "f32", "f32")),
        replace(PROBLEM, dtypes=("bf16", "bf16")),
        replace(PROBLEM, accumulator="f16"),
        *(replace(PROBLEM, layouts="".join(letters)) for letters in product("tn", repeat=3)),
    ],
)
def test_other_problems_have_no_kernel(problem: Problem, device: DeviceProfile) -> None:
    expected = problem.layouts in ("tnt", "ttt") and problem == replace(PROBLEM, layouts=problem.layouts)
    assert bool(list(Sm90Gemm().enumerate(problem, "sm_90a", device))) == expected


def test_records(kernels: list[Kernel]) -> None:
    assert len({kernel.digest for kernel in kernels}) == len(kernels)
    for kernel in kernels:
        assert dict(kernel.design).keys() == Sm90Gemm.design.keys()
        assert dict(kernel.design)["family"] in (FAMILY, "Sm90PingPongGemm")
        assert kernel.workspace_bytes == 0
        assert from_plain(Kernel, to_plain(kernel), "a kernel record") == kernel
        assert [operand.divisibility for operand in kernel.operands] == [8, 8, 8]


def test_an_f32_output_is_divided_by_four(device: DeviceProfile) -> None:
    wide = replace(PROBLEM, dtypes=("bf16", "bf16", "f32"))
    kernel = next(iter(Sm90Gemm().enumerate(wide, "sm_90a", device)))
    assert [operand.divisibility for operand in kernel.operands] == [8, 8, 4]


@pytest.mark.parametrize("output", ["bf16", "f32", "fused"])
def test_every_plan_fits_a_multiprocessor(device: DeviceProfile, output: str) -> None:
    for plan in plans(output, device):
        rows, columns, _ = plan.tile
        assert plan.blocks * (plan.shared_bytes + ALIGNMENT + RESERVED_BYTES) <= SHARED_BYTES
        assert 2 * 8 * plan.stages <= ALIGNMENT  # barriers lie before the ring
        assert plan.stage_bytes % ALIGNMENT == 0
        # Every block of a slice of K stores an equal part of the tile, in whole vectors along a line.
        assert rows * columns % (plan.vector * plan.split) == 0
        assert (rows if plan.swap else columns) % plan.vector == 0
        assert plan.direct or plan.staged_stride * plan.staged_bits // 8 % 16 == 0
        assert plan.warp_groups * 64 <= rows
        assert plan.cluster[0] * plan.cluster[1] * plan.cluster[2] <= 8
        # Blocks load equal parts of a shared operand.
        assert rows % plan.cluster[1] == 0
        assert columns % plan.cluster[0] == 0


def test_exchanged_operands_exchange_tile_and_cluster(kernels: list[Kernel]) -> None:
    for kernel in kernels:
        design, plan = dict(kernel.design), plan_of(kernel)
        order = (1, 0, 2) if design["swap_operands"] else (0, 1, 2)
        assert tuple(design["tile_shape"][mode] for mode in order) == plan.tile  # type: ignore[index]
        assert tuple(design["cluster_shape"][mode] for mode in order) == plan.cluster  # type: ignore[index]


def planned(tile: tuple[int, int, int], **changes: object) -> Plan:
    arguments = {
        "cluster": (1, 1, 1), "warp_groups": 2, "blocks": 1, "swap": False,
        "input_bits": 16, "output_bits": 16, **changes,
    }  # fmt: skip
    return make_plan(tile=tile, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "sharers", "whole"), [(88, 1, True), (88, 4, False), (96, 4, True)])
def test_parts_of_a_shared_tile_are_whole_swizzled_groups_or_not(
    rows: int, sharers: int, whole: bool
) -> None:
    assert whole_groups(rows, sharers) == whole


@pytest.mark.parametrize(
    ("tile", "cluster"),
    [((64, 88, 64), (3, 1, 1)), ((64, 88, 128), (4, 1, 1)), ((128, 64, 64), (1, 3, 1))],
)
def test_blocks_load_equal_parts_of_a_shared_tile_and_less_than_a_group_of_single_lines_alone(
    tile: tuple[int, int, int], cluster: tuple[int, int, int]
) -> None:
    with pytest.raises(ValueError, match="equal parts"):
        planned(tile, cluster=cluster)
    assert planned((64, 88, 64), cluster=(4, 1, 1)).cluster == (4, 1, 1)


def test_stages_fill_shared_memory() -> None:
    assert planned((128, 192, 64)).stages == 5
    assert planned((64, 16, 128), blocks=1).stages == 11
    assert planned((64, 16, 128), blocks=2).stages == 5


def test_registers_are_handed_over_for_large_tiles_alone() -> None:
    assert planned((256, 192, 64)).hands_over
    assert planned((256, 192, 64)).threads == 384
    assert planned((192, 176, 64), warp_groups=3).hands_over
    assert planned((192, 176, 64), warp_groups=3).threads == 512
    assert not planned((128, 208, 64)).hands_over
    assert planned((128, 208, 64)).threads == 288
    assert not planned((192, 80, 64), warp_groups=3).hands_over
    assert planned((192, 80, 64), warp_groups=3).threads == 416


@pytest.mark.parametrize("groups", [2, 3])
def test_registers_of_all_threads_are_those_of_a_multiprocessor(groups: int) -> None:
    plan = planned((64 * groups, 64, 64), warp_groups=groups)
    registers = plan.computing_registers
    assert registers % 8 == 0
    assert 128 * (LOADING_REGISTERS + groups * registers) <= 64 * 1024


def test_two_warp_groups_take_turns_at_whole_tiles() -> None:
    turns = {"warp_groups": 1, "ping_pong": True, "active": 132}
    plan = planned((64, 256, 64), **turns)
    assert plan.all_warp_groups == 2
    assert plan.totals == 128
    # As many threads and registers as two warp groups have that share a tile.
    together = planned((128, 256, 64), active=132)
    assert (plan.hands_over, plan.threads) == (together.hands_over, together.threads)
    assert plan.computing_registers == together.computing_registers
    # A stage is of one warp group's tile; of groups, too, it stores from registers.
    assert plan.stage_bytes < together.stage_bytes
    assert planned((64, 256, 64), operation="grouped_gemm", **turns).staged_bytes == 0
    for changes in ({"active": 0}, {"warp_groups": 2}, {"cluster": (1, 1, 2)}):
        with pytest.raises(ValueError, match="take turns"):
            planned((128, 32, 64), **{**turns, **changes})
    with pytest.raises(ValueError, match="take turns"):
        planned((64, 128, 128), input_bits=8, exact=True, **turns)


def test_results_go_through_shared_memory_where_blocks_add_up_or_sectors_would_be_stored_in_parts() -> None:
    assert planned((128, 208, 64)).direct
    assert not planned((128, 200, 64)).direct
    assert not planned((128, 208, 64), cluster=(1, 1, 2)).direct
    assert planned((128, 200, 64), swap=True).direct
    assert not planned((128, 200, 64), swap=True, output_bits=32).direct
    assert not planned((128, 200, 64), swap=True, fused=True).direct


def test_what_has_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="there are"):
        planned((128, 32, 512), blocks=2)
    with pytest.raises(ValueError, match="equal parts"):
        planned((64, 104, 64), warp_groups=1, cluster=(1, 1, 3))
    with pytest.raises(ValueError, match="registers"):
        planned((128, 112, 64), blocks=2)


def test_lines_of_results_are_padded_for_the_banks() -> None:
    # A warp writes two neighbouring columns of eight rows in four places of each: 32 banks of 4 bytes.
    exchanged = planned((64, 16, 64), warp_groups=1, swap=True, output_bits=32)
    for plan in (planned((128, 192, 64), cluster=(1, 1, 2)), exchanged):
        banks = []
        for row, place in product(range(8), range(4)):
            if plan.swap:
                banks.append((2 * place * plan.staged_stride + row) % 32)
            elif row < 4:  # pairs are written at once, half a warp at a time
                banks += [(row * plan.staged_stride + 2 * place + pair) % 32 for pair in (0, 1)]
        assert sorted(banks) == list(range(32))


def test_supports(kernels: list[Kernel]) -> None:
    def verdict(m: int, n: int, k: int) -> bool:
        a, b = describe((m, k), "bf16"), describe((k, n), "bf16", strides=(1, k))
        return bool(supports(kernels[0].operands, [a, b, describe((m, n), "bf16")]))

    assert verdict(1, 576, 7168)
    assert verdict(333, 8, 8)
    assert not verdict(16, 12, 64)
    assert not verdict(16, 16, 68)
