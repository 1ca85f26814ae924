"""The pure parts of tools/check/coverage.py and tools/check/support_tables.py: classes, problems, tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from cutlass_aot.errors import KernelNotFound
from cutlass_aot.generators.cutlass_operators.epilogue_records import constraints
from cutlass_aot.generators.device_profiles import profile_for
from cutlass_aot.generators.protocol import Problem, ScaleRequest
from cutlass_aot.generators.sm90_gemm.generator import Sm90Gemm
from cutlass_aot.schema.kernels.constraints import ANY_SHAPE, OperandConstraint, Scale
from cutlass_aot.schema.kernels.epilogue import TRANSPORTS, parse_epilogue
from cutlass_aot.schema.kernels.formula import CALLED, REDUCTIONS
from cutlass_aot.schema.kernels.operands import packed, supports
from tests.support.bundles import write_bundle
from tests.support.kernels import gemm, operand
from tools.check import coverage as tool

DESIGN = {"tile_shape": (128, 64, 64), "cluster_shape": (2, 1, 1), "use_2cta_mma": False}


def fused(text, operands=None, design=None):
    design = design or DESIGN
    epilogue = parse_epilogue(text, operands or {})
    moved = ",".join(f"{item.name}={item.transport}" for item in epilogue.operands if item.transport)
    plain = gemm(("bf16", "bf16", "bf16"))
    return gemm(
        design={"family": "PersistentDenseGemmEFC", **design, **({"transports": moved} if moved else {})},
        operands=(*plain.operands, *constraints(epilogue, "t", design)),
        epilogue=epilogue.formula,
    )


def test_there_is_a_class_for_everything_that_the_language_has():
    classes = tool.examples()
    assert {*CALLED, *TRANSPORTS, "+", "-", "*", "/", "neg"} <= set(classes)
    assert sum(name.startswith(REDUCTIONS) and " of " in name for name in classes) == 9
    for name, epilogue in classes.items():
        assert name in tool.classes_of(epilogue), name


def test_classes_of_an_epilogue_are_told_from_its_record():
    text = "D = relu(alpha * accum + C) / w; F = -accum; total = max(accum)"
    kernel = fused(
        text,
        {
            "C": {"extents": "MN", "transport": "async_gmem_load", "dtype": "bf16"},
            "F": {"extents": "MN", "layout": "n"},
            "w": {"extents": "M"},
            "total": {"extents": "N"},
        },
    )
    assert tool.classes_of(tool.epilogue_of(kernel)) == {
        "relu", "*", "+", "/", "neg", "number", "matrix", "column vector", "auxiliary store",
        "max of each column", "async_gmem_load", "tma",
    }  # fmt: skip


def scaled():
    factors = Scale("a", 64, swizzle="columns")
    return (
        operand("a", "i4", divisibility=32),
        operand("b", "bf16", "n"),
        operand("out", "bf16"),
        OperandConstraint("a_scale", "bf16", ANY_SHAPE, -1, 1, 16, scale=factors),
    )


@pytest.mark.parametrize(
    "operands",
    [
        gemm().operands,
        scaled(),
        fused("D = accum + C", {"C": {"extents": "MN", "transport": "sync_gmem_load"}}).operands,
        (
            OperandConstraint("x", "bf16", ("T", 256), -1, 8, 16),
            OperandConstraint("out", "f32", ("T", 2), -1, 1, 4, written=True),
            OperandConstraint("eps", "f32", (), 0, 1, 4),
        ),
    ],
)
def test_problems_satisfy_the_constraints_they_are_made_for(operands):
    problems = list(tool.problems_for(operands))
    assert len(problems) == len(tool.STEPS) > 2
    for extents in problems:
        verdict = supports(operands, packed(operands, extents))
        assert verdict, verdict.reason


def test_a_problem_is_the_least_of_each_extent():
    assert tool.least_extents(scaled()) == {"L": 1, "M": 8, "N": 8, "K": 64}
    kernel = fused("D = accum + C", {"C": {"extents": "MN", "transport": "sync_gmem_load"}})
    assert tool.least_extents(kernel.operands) == {"L": 1, "M": 256, "N": 64, "K": 8}


def test_a_group_whose_kernels_are_found_is_in_order_and_another_is_named(tmp_path):
    import cutlass_aot

    fast = gemm(("f8e4m3", "f8e4m3", "bf16"), accumulation="fast")
    kernels = [gemm(target="sm_100a"), fused("D = alpha * accum"), fast]
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels), check=False)
    for group in bundle.groups:
        names = {handle.name for handle in bundle.kernels(group=group.name)}
        assert list(tool.check_found(bundle, group, names)) == []
        (wrong, *_) = tool.check_found(bundle, group, {*names, "another"})
        assert "find does not give another" in wrong
    # Nothing says that kernels are refused where they should be, if they are not.
    group = bundle.groups[0]
    with pytest.raises(KernelNotFound, match="divisible by 8"):
        tool.find(bundle, group, packed(group.operands, {"M": 8, "N": 8, "K": 9}))


def test_kernels_are_counted_by_what_they_compute():
    kernels = [
        *(gemm(design={"family": "F", "tile_shape": (n,)}, target="sm_100a") for n in range(3)),
        gemm(("bf16", "bf16", "f32"), target="sm_100a"),
        fused("D = relu(accum)"),
    ]
    count = tool.Count.of(kernels)
    plain = tool.combination_of(kernels[0])
    assert str(plain) == "gemm f16.f16.f16 f32"
    assert count.combinations[plain] == {"sm_100a": 3}
    assert count.classes["bf16 x bf16", "relu"] == {"sm_90a": 1}
    assert count.epilogues == {"sm_90a": 1}
    there_is = tool.Count.of([*kernels, gemm(("bf16", "bf16", "f32"), design={"f": 1}, target="sm_100a")])
    there_is.add(fused("D = gelu(accum)", design={**DESIGN, "tile_shape": (n, 64, 64)}) for n in (64, 128))
    assert list(tool.missing(count, there_is, 3)) == [
        "gemm bf16.bf16.f32 f32 on sm_100a: 1 kernels, expected 2",
        "epilogue gelu on sm_90a: 0 kernels of bf16 x bf16, expected 2",
    ]
    assert set(count.combinations) == {plain, tool.combination_of(kernels[3])}  # asking adds nothing
    # Of what there is one of, one is enough; what nobody asked about would go unseen.
    one = tool.Count.of(kernels[:1])
    assert list(tool.missing(count, one, 3)) == [
        "gemm bf16.bf16.f32 f32 on sm_100a: 1 kernels of what no query of a generator names"
    ]
    table = tool.combinations_table(count).splitlines()
    assert table[0] == (
        "| operation | generator | a x b | scale factors | accumulator | out | fewest of one | sm_100a |"
    )
    assert "| `gemm` | `cutlass.operators` | f16 x f16 |  | f32 | f16 | 3 | 3 |" in table


def test_kinds_of_sums_scale_factors_and_operations_on_groups_are_counted_apart():
    blocks = (ScaleRequest("f32", 128), ScaleRequest("f32", 128, across=128))
    of_fp8 = Problem("gemm", ("f8e4m3", "f8e4m3", "bf16"), "tnt", "f32")
    problems = [
        of_fp8,
        replace(of_fp8, accumulation="fast"),
        replace(of_fp8, scales=blocks),
        replace(of_fp8, operation="grouped_gemm", scales=blocks),
        replace(of_fp8, operation="masked_grouped_gemm", scales=blocks),
        replace(of_fp8, operation="masked_grouped_gemm", dtypes=("bf16",) * 3),
    ]
    profile = profile_for("sm_90a")
    kernels = [next(iter(Sm90Gemm().enumerate(problem, "sm_90a", profile))) for problem in problems]
    scaled = "f32 a: f32 x 128, b: f32 x 128 x 128"
    assert [str(tool.combination_of(kernel)) for kernel in kernels] == [
        "gemm f8e4m3.f8e4m3.bf16 f32, exact sums",
        "gemm f8e4m3.f8e4m3.bf16 f32, fast sums",
        f"gemm f8e4m3.f8e4m3.bf16 {scaled}",
        f"grouped_gemm f8e4m3.f8e4m3.bf16 {scaled}",
        f"masked_grouped_gemm f8e4m3.f8e4m3.bf16 {scaled}",
        "masked_grouped_gemm bf16.bf16.bf16 f32",
    ]
    for kernel in kernels:
        for extents in tool.problems_for(kernel.operands):
            verdict = supports(kernel.operands, packed(kernel.operands, extents))
            assert verdict, verdict.reason


@pytest.mark.parametrize(
    ("formula", "columns", "classes"),
    [
        ("D = even(accum)", 0, {"even"}),
        ("s = max(odd(accum)); D = odd(accum) / s", 128, {"odd", "scale of 128 columns", "/"}),
        ("s = max(even(accum)); D = even(accum) / s", 16, {"even", "scale of 16 columns", "/"}),
    ],
)
def test_epilogues_of_half_as_many_columns_are_counted_and_found(formula, columns, classes):
    operands = {"s": {"extents": f"MN/{columns}"}} if columns else {}
    problem = Problem("gemm", ("bf16",) * 3, "tnt", "f32", epilogue=parse_epilogue(formula, operands))
    kernel = next(iter(Sm90Gemm().enumerate(problem, "sm_90a", profile_for("sm_90a"))))
    found = tool.Count.of([kernel]).classes
    assert {name for _, name in found} == classes
    for extents in tool.problems_for(kernel.operands):
        verdict = supports(kernel.operands, packed(kernel.operands, extents))
        assert verdict, verdict.reason


def test_tables_put_outputs_of_equal_counts_together():
    from tools.check import support_tables as tables

    def answer(out, target, count, scales=(None, None)):
        problem = Problem("gemm", ("bf16", "bf16", out), "tnt", "f32", scales)
        kernels = tuple(gemm(design={"family": str(n)}) for n in range(count))
        return tables.Answer("cutlass.operators", problem, target, kernels)

    made = tables.by_operands(
        iter([answer("f32", "sm_90a", 2), answer("f32", "sm_100a", 3), answer("bf16", "sm_100a", 3),
              answer("bf16", "sm_90a", 2), answer("i8", "sm_100a", 1)])
    )  # fmt: skip
    assert made.splitlines() == [
        "| generator | a | b | accumulator | out | sm_90a | sm_100a |",
        "|---|---|---|---|---|--:|--:|",
        "| `cutlass.operators` | bf16 | bf16 | f32 | f32, bf16 | 2 | 3 |",
        "| `cutlass.operators` | bf16 | bf16 | f32 | i8 |  | 1 |",
    ]
    mx = ScaleRequest("f8e8m0", 32)
    assert "| f8e8m0 x 32 |" in tables.by_operands(iter([answer("f32", "sm_100a", 1, (mx, mx))]))
    assert "| a: f8e8m0 x 32 |" in tables.by_operands(iter([answer("f32", "sm_100a", 1, (mx, None))]))


def test_a_table_of_the_page_is_replaced_and_nothing_else():
    from tools.check import support_tables as tables

    page = "# A\n<!-- support: x -->\n<!-- end -->\nmore\n<!-- support: y -->\n| old |\n<!-- end -->\n"
    page = tables.written(tables.written(page, "x", r"| \1 |"), "y", "| new |")
    assert page == (
        "# A\n<!-- support: x -->\n| \\1 |\n<!-- end -->\nmore\n<!-- support: y -->\n| new |\n<!-- end -->\n"
    )
    assert tables.shown(page, "y") == "| new |"
    with pytest.raises(ValueError, match="no table between"):
        tables.shown(page, "z")


def test_every_layout_of_a_problem_is_asked_for():
    from tools.check import support_tables as tables

    problem = Problem("gemm", ("bf16", "bf16", "bf16"), "tnt", "f32")
    words = [found.layouts for found in tables.layouts([problem])]
    assert len(set(words)) == 8
    answers = [tables.Answer("g", found, "sm_100a", (gemm(),)) for found in tables.layouts([problem])]
    assert tables.by_layout(iter(answers)).splitlines()[-1] == "| `g` | bf16.bf16.bf16 | sm_100a | all |"
    assert Counter(words).most_common(1)[0][1] == 1
