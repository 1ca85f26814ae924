"""Epilogues: what is read, how mistakes are named, and that one meaning has one text."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.kernels.epilogue import Epilogue, canonical_formula, parse_epilogue
from cutlass_aot.schema.kernels.formula import (
    COMPARISONS,
    FUNCTIONS,
    MAX_TEXT,
    Apply,
    Constant,
    Name,
    as_f32,
    evaluate,
    names_in,
    parse_formula,
    text_of,
)

MATRIX = {"dtype": "bf16", "extents": "MN"}
OPERANDS = {
    "C": MATRIX,
    "F": {"dtype": "f32", "extents": "MN"},
    "bias": {"dtype": "f32", "extents": "N"},
    "total": {"extents": "1"},
}


def refused(text: str, operands=None) -> str:
    with pytest.raises(ManifestError) as caught:
        parse_epilogue(text, operands or {})
    return str(caught.value)


def test_a_formula_gives_typed_operands_by_name():
    epilogue = parse_epilogue(
        "D = relu(alpha * accum + beta * C) + bias; F = accum; total = sum(accum)", OPERANDS
    )
    assert epilogue.formula == "D = relu(C * beta + accum * alpha) + bias; F = accum; total = sum(accum)"
    assert [operand.name for operand in epilogue.operands] == ["C", "F", "alpha", "beta", "bias", "total"]
    by_name = {operand.name: operand for operand in epilogue.operands}
    assert by_name["C"].extents == ("L", "M", "N")
    assert not by_name["C"].written
    assert by_name["F"].written
    assert (by_name["alpha"].dtype, by_name["alpha"].extents) == ("f32", ())
    assert by_name["bias"].extents == ("N",)
    assert (by_name["total"].extents, by_name["total"].written) == ((1,), True)


SAME = [
    "D = relu(alpha * accum + beta * C); F = accum",
    "F=accum\nD=relu(C*beta+accum*alpha)\n",
    "  t = alpha*accum; u = (beta)*C\n\n  D = relu( (t) +\n   (u) );\n  F = +accum",
    "x = accum; F = x; y = (x*alpha); D = relu(beta*C + y)",
    "F = accum; D = relu((((alpha * F))) + (beta * C));",
]


@pytest.mark.parametrize("text", SAME)
def test_texts_that_mean_the_same_are_one_epilogue(text):
    operands = {"C": MATRIX, "F": {"extents": "LMN", "dtype": "f32", "transport": "tma"}}
    assert parse_epilogue(text, operands) == parse_epilogue(SAME[0], operands)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("D = 2 * accum", "D = 2.0 * accum"),
        ("D = accum * 2.00", "D = 2.0 * accum"),
        ("D = accum * 0.1", "D = 0.1 * accum"),
        ("D = accum * 0.100000001", "D = 0.1 * accum"),
        ("D = accum * 1e-3", "D = 0.001 * accum"),
        ("D = accum * -(-3)", "D = 3.0 * accum"),
        ("D = accum - -0", "D = accum - 0.0"),
        ("D = accum + 16777217", "D = 1.6777216e+07 + accum"),
        ("D = -accum * x", "D = -accum * x"),
        ("D = -(accum * x)", "D = -(accum * x)"),
        ("D = (accum + x) + y", "D = accum + x + y"),
        ("D = y + (x + accum)", "D = accum + x + y"),
        ("D = accum + (x + y)", "D = x + y + accum"),
        ("D = accum - (x - y)", "D = accum - (x - y)"),
        ("D = (accum - x) - y", "D = accum - x - y"),
        ("D = accum / (x * y)", "D = accum / (x * y)"),
        ("D = accum / x * y", "D = accum / x * y"),
        ("D = accum ** (2)", "D = accum ** 2.0"),
        ("D = -accum ** 2", "D = -accum ** 2.0"),
        ("D = (-accum) ** -2", "D = (-accum) ** -2.0"),
        ("D = (-2) ** accum", "D = (-2.0) ** accum"),
        ("D = accum ** x ** y", "D = accum ** x ** y"),
        ("D = (accum ** x) ** y", "D = (accum ** x) ** y"),
        ("D = accum ** (x * y)", "D = accum ** (x * y)"),
        ("D = (accum * x) ** y", "D = (accum * x) ** y"),
        ("D = accum ** -x", "D = accum ** (-x)"),
        ("D = 0 < accum", "D = 0.0 < accum"),
        ("D = accum*x >= y+1", "D = accum * x >= 1.0 + y"),
        ("D = (accum == 0) == x", "D = (0.0 == accum) == x"),
        ("D = x * (accum != 0)", "D = (0.0 != accum) * x"),
        ("D = (accum < x) < y", "D = (accum < x) < y"),
        ("D = where(accum > 0, accum, 0)", "D = where(accum > 0.0, accum, 0.0)"),
    ],
)
def test_the_canonical_text(text, canonical):
    canonical = canonical.replace("1.6777216e+07", repr(as_f32(16777217.0)))
    assert canonical_formula(text, ()) == canonical
    assert canonical_formula(canonical, ()) == canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("D = accum + x + y", "D = accum + (x + y)"),
        ("D = accum - x", "D = x - accum"),
        ("D = accum / x", "D = x / accum"),
        ("D = accum * (x + y)", "D = accum * x + accum * y"),
        ("D = maximum(accum, x)", "D = maximum(x, accum)"),
        ("D = accum * 2", "D = accum * 3"),
        ("D = accum < x", "D = x < accum"),
        ("D = accum < x", "D = accum <= x"),
        ("D = accum ** x", "D = x ** accum"),
        ("D = accum ** 2", "D = accum * accum"),
        ("D = where(x, accum, y)", "D = where(x, y, accum)"),
    ],
)
def test_what_may_compute_something_else_is_another_epilogue(one, other):
    assert canonical_formula(one, ()) != canonical_formula(other, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty, expected a formula"),
        (" ;\n; ", "empty, expected a formula"),
        ("D = accum @ 2", r"found '@' after 'D = accum '"),
        ("D = accum # all of it", "found '#'"),
        ("D = 'accum'", 'found "\'"'),
        ("D = accum +", "in `D = accum +`: not a statement"),
        ("D", "expected `name = expression`"),
        ("D == accum", "expected `name = expression`"),
        ("D = F = accum", "expected `name = expression`"),
        ("D += accum", "expected `name = expression`"),
        ("D.x = accum", "expected `name = expression`"),
        ("import os", "expected `name = expression`"),
        ("D = accum.T", "'accum.T' is not allowed"),
        ("D = accum % 2", "found '%'"),
        ("D = 0 < accum < x", "'0 < accum < x' is a chain of comparisons: write a product of them"),
        ("D = accum in x", "'accum in x' is not allowed: expected one of <, <=, >, >=, ==, !="),
        ("D = accum > 0 and x", "'accum > 0 and x' is not allowed"),
        ("D = accum // 2", "'accum // 2' is not allowed"),
        ("D = (accum, accum)", "is not allowed"),
        ("D = not accum", "is not allowed"),
        ("D = accum if x else y", "is not allowed"),
        ("D = True * accum", "True is not a number"),
        ("D = 2j * accum", "is not a number"),
        ("D = None", "None is not a number"),
        ("D = 1e39 * accum", "out of the range of f32"),
        ("D = 1e999 * accum", "out of the range of f32"),
        ("D = 1e-60 * accum", "out of the range of f32"),
        ("D = accum / 0", "divides by zero"),
        ("D = accum / -0.0", "divides by zero"),
        ("D = sqr(accum)", "unknown function 'sqr': expected one of abs, clamp"),
        ("D = os.system(accum)", r"unknown function 'os.system'"),
        ("D = relu(accum)(1)", "unknown function 'relu(accum)'"),
        ("D = relu()", "relu() takes 1 arguments, found 0"),
        ("D = relu(accum, 0)", "relu() takes 1 arguments, found 2"),
        ("D = clamp(accum, 0)", "clamp() takes 3 arguments, found 2"),
        ("D = relu(x=accum)", "takes expressions alone"),
        ("D = relu(*accum)", "takes expressions alone"),
        ("D = relu", "'relu' is not a value"),
        ("D = _x + accum", "'_x' is not a value"),
        ("accum = 1", "'accum' cannot be assigned"),
        ("relu = accum", "'relu' cannot be assigned"),
        ("D = accum; D = accum", "D is assigned a second time"),
        ("t = accum; t = t; D = t", "t is assigned a second time"),
        ("D = t; t = accum", "t is read before it is assigned"),
        ("D = D + accum", "D is read before it is assigned"),
        ("t = accum; D = accum", "'t' is assigned and never used"),
        ("t = accum", "'t' is assigned and never used"),
        ("D = x", "nothing uses accum"),
        ("D = relu(acum + x)", "the product of a and b; did you mean it by 'acum'?"),
        ("D = sum(accum)", "D is a matrix"),
        ("D = sum(accum) + 1", "sum() can only be all of the right side"),
        ("D = max(accum, 0)", "max() takes one expression"),
        ("D = accum; t = sum(accum)", "declare 't' as an operand"),
        ("D = " + "(" * 40 + "accum" + ")" * 40, "more than 32 parentheses"),
        ("D = " + "-" * 3000 + "accum", "in `D = "),
        ("D = " + "+".join(["accum"] * 600), "more than 512"),
        ("D = accum" + " " * MAX_TEXT, f"expected at most {MAX_TEXT}"),
    ],
)
def test_mistakes_in_a_formula_are_named(text, message):
    assert message in refused(text)


def test_a_formula_that_grows_by_its_temporaries_is_refused():
    doubled = "; ".join(f"t{i + 1} = t{i} + t{i}" for i in range(60))
    assert "with its temporaries put in" in refused(f"t0 = accum; {doubled}; D = t60")


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ({"G": MATRIX}, "operand 'G' is declared and the formula does not read it"),
        ({"D": MATRIX}, "operands.D: D is the GEMM's own output"),
        ({"a": MATRIX}, "operands.a: not a name for an operand"),
        ({"stream": MATRIX}, "operands.stream: not a name for an operand"),
        ({"relu": MATRIX}, "operands.relu: not a name for an operand"),
        ({"lambda": MATRIX}, "operands.lambda: not a name for an operand"),
        ({"C": "MN"}, "operands.C: 'MN', expected a table"),
        ({"C": {"type": "f32"}}, "operands.C: unknown key 'type'"),
        ({"C": {"dtype": "float"}}, "operands.C.dtype: unknown 'float'"),
        ({"C": {**MATRIX, "dtype": "f64"}}, "operands.C.dtype: unknown 'f64': expected one of f32, f16"),
        (
            {"C": {"extents": "NM"}},
            "operands.C.extents: unknown 'NM': expected one of MN, LMN, N, M, N1, M1, 1, ''",
        ),
        ({"C": {"dtype": "bf16"}}, "operands.C: a number of bf16"),
        ({"C": {"extents": "N", "layout": "t"}}, "operands.C.layout: only a matrix"),
        ({"C": {"transport": "tma"}}, "operands.C.transport: only a matrix or a vector"),
        ({"C": {**MATRIX, "transport": "sync_gmem_store"}}, "sync_gmem_store writes, and C is read"),
        ({"F": {**MATRIX, "transport": "sync_gmem_load"}}, "sync_gmem_load reads, and F is written"),
        ({"F": {"extents": "N"}}, "its right side has to be sum(), max() or min()"),
        ({"r": MATRIX}, 'expected "N" (one value a column), "M" (one a row) or "1"'),
        ({"r": {"dtype": "bf16", "extents": "N"}}, "the destination of a reduction is f32"),
        ({"r": {"extents": "N1"}}, 'the destination of a reduction is contiguous: expected "N"'),
        ({"C": {"extents": "N1", "transport": "tma"}}, "operands.C.transport: only a matrix or a vector"),
        ({"r": {"extents": "N", "transport": "tma"}}, ""),
    ],
)
def test_mistakes_in_operands_are_named(operands, message):
    declared = {"C": MATRIX, "F": MATRIX, "r": {"extents": "N"}, **operands}
    text = "D = accum + C; F = accum; r = sum(accum)"
    if not message:
        assert parse_epilogue(text, declared) == parse_epilogue(text, {**declared, "r": {"extents": "N"}})
        return
    assert message in refused(text, declared)


def test_a_reduction_is_not_read_again():
    operands = {"total": {"extents": "1"}}
    assert "is a reduction" in refused("total = sum(accum); D = accum / total", operands)
    assert "read before it is assigned" in refused("D = accum / total; total = sum(accum)", operands)


# ---- a value for each block of columns -------------------------------------------------------------------

SCALE = {"scale": {"extents": "MN/128"}}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (
            "x = silu(accum); scale = max(abs(x)) / 448; D = x / scale",
            "scale = max(abs(silu(accum))) / 448.0; D = silu(accum) / scale",
        ),
        ("scale = max(accum); D = accum / scale", "scale = max(accum); D = accum / scale"),
        # Where nothing reads it, D comes first, as with other outputs.
        ("scale = max(accum) * 2; D = accum", "D = accum; scale = max(accum) * 2.0"),
        (
            "scale = maximum(max(accum), -min(accum)) + 1e-5; t = 1 / scale; D = accum * t",
            "scale = maximum(max(accum), -min(accum)) + 1e-05; D = 1.0 / scale * accum",
        ),
    ],
)
def test_the_value_of_a_block_is_read_under_its_own_name(text: str, canonical: str) -> None:
    epilogue = parse_epilogue(text, SCALE)
    assert epilogue.formula == canonical
    assert parse_epilogue(canonical, SCALE) == epilogue
    # A query knows the names alone, also those of what is read.
    assert canonical_formula(text, ("scale", "bias")) == canonical
    (scale,) = epilogue.operands
    assert (scale.extents, scale.block, scale.written) == (("L", "M", "N / 128"), 128, True)
    assert epilogue.block == 128
    assert [str(statement) for statement in epilogue.statements] == canonical.split("; ")


def test_an_epilogue_without_blocks_has_blocks_of_one_column() -> None:
    assert parse_epilogue("D = accum + bias", {"bias": {"extents": "N"}}).block == 1


@pytest.mark.parametrize("columns", [16, 32, 128])
@pytest.mark.parametrize("dtype", ["f32", "f8e8m0", "f8e4m3"])
@pytest.mark.parametrize("layout", ["t", "n"])
def test_values_of_blocks_have_these_types_and_layouts(columns: int, dtype: str, layout: str) -> None:
    declared = {"scale": {"extents": f"MN/{columns}", "dtype": dtype, "layout": layout}}
    (operand,) = parse_epilogue("scale = max(accum); D = accum / scale", declared).operands
    assert (operand.block, operand.dtype, operand.layout) == (columns, dtype, layout)


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("scale = accum; D = accum", {}, "so its right side has to have sum(), max() or min() of something"),
        ("D = accum / scale", {}, "scale is read and never assigned"),
        ("D = accum / scale; scale = max(accum)", {}, "scale is read before it is assigned"),
        ("scale = max(accum) * accum; D = accum", {}, "accum has several values in a block of columns"),
        ("scale = max(accum) * v; D = accum", {"v": {"extents": "N"}}, "v has several values in a block"),
        ("scale = rotate_every_two(max(accum)); D = accum", {}, "rotate_every_two() is of two columns"),
        ("scale = max(max(accum)); D = accum", {}, "max() can only be all of the right side"),
        ("scale = max(accum, 1); D = accum", {}, "max() takes one expression"),
        ("scale = 1 + max(accum, 1); D = accum", {}, "max() takes one expression"),
        ("t = max(accum); scale = t / 2; D = accum", {}, "declare 't' as an operand"),
        ("t = max(accum) / 2; scale = max(accum); D = t", {}, "max() can only be all of the right side"),
        ("scale = max(accum); D = max(accum)", {}, "D is a matrix"),
        ("scale = max(accum); D = accum / max(accum)", {}, "max() can only be all of the right side"),
        (
            "scale = max(accum); D = accum",
            {"scale": {**SCALE["scale"], "dtype": "bf16"}},
            "expected one of f32",
        ),
        (
            "scale = max(accum); D = accum; F = accum / 2",
            {"F": {"extents": "MN", "dtype": "f8e8m0"}},
            "a matrix of f8e8m0",
        ),
        (
            "scale = max(accum); D = accum * C",
            {"C": {"extents": "MN", "dtype": "f4e2m1"}},
            "is written alone",
        ),
        ("scale = max(accum); r = max(accum) / 2; D = accum", {"r": {"extents": "M"}}, "more than a block"),
        (
            "scale = max(accum); r = max(accum); D = accum / r",
            {"r": {"extents": "M"}},
            "r is a reduction: its value is known after the last tile alone",
        ),
        (
            "scale = max(accum); other = min(accum); D = accum",
            {"other": {"extents": "MN/32"}},
            "blocks of 32 columns (other) and 128 columns (scale)",
        ),
        (
            "scale = max(accum); other = min(accum / scale); D = accum",
            {"other": {"extents": "MN/128"}},
            "scale is a value of a block itself",
        ),
        (
            "scale = max(accum); D = accum",
            {"scale": {**SCALE["scale"], "transport": "tma"}},
            "only a matrix or a vector has one",
        ),
    ],
)
def test_mistakes_with_blocks_are_named(text: str, more: dict[str, dict[str, str]], message: str) -> None:
    assert message in refused(text, {**SCALE, **more})


# ---- half as many columns --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "operands", "canonical"),
    [
        ("D = silu(even(accum)) * odd(accum)", {}, "D = odd(accum) * silu(even(accum))"),
        (
            "x = accum + bias; D = even(x) * odd(x) * factor",
            {"bias": {"extents": "N"}, "factor": {"extents": "M"}},
            "D = even(accum + bias) * odd(accum + bias) * factor",
        ),
        (
            "x = even(accum) * odd(accum); scale = max(abs(x)); D = x / scale; F = accum; r = sum(x)",
            {**SCALE, "F": {"extents": "MN"}, "r": {"extents": "M"}},
            "scale = max(abs(even(accum) * odd(accum))); D = even(accum) * odd(accum) / scale; F = accum; "
            "r = sum(even(accum) * odd(accum))",
        ),
    ],
)
def test_an_output_of_every_second_column(
    text: str, operands: dict[str, dict[str, str]], canonical: str
) -> None:
    epilogue = parse_epilogue(text, operands)
    assert epilogue.formula == canonical
    assert epilogue.halves
    assert parse_epilogue(canonical, operands) == epilogue
    assert not parse_epilogue("D = accum", {}).halves


@pytest.mark.parametrize(
    ("text", "operands", "message"),
    [
        ("D = even(accum) * accum", {}, "something has a value for each column of accum, and something one"),
        (
            "D = even(accum) + v",
            {"v": {"extents": "N"}},
            "something has a value for each column of accum, and",
        ),
        ("D = even(accum) + C", {"C": MATRIX}, "something has a value for each column of accum, and"),
        ("D = even(odd(accum))", {}, "even() is of what has a value for each column"),
        ("D = even(alpha) * even(accum)", {}, "even() is of what has a value for each column"),
        (
            "D = rotate_every_two(even(accum))",
            {},
            "rotate_every_two() is of what has a value for each column",
        ),
        ("D = even(accum); F = odd(accum)", {"F": MATRIX}, "other matrices and vectors along N have all"),
        ("D = even(accum); r = max(odd(accum))", {"r": {"extents": "N"}}, "vectors along N have all"),
        (
            "D = accum; r = max(odd(accum))",
            {"r": {"extents": "M"}},
            "one for each two columns of accum, as D may",
        ),
        ("scale = max(accum); D = even(accum) / scale", SCALE, "its blocks are of columns of D"),
        ("scale = max(even(accum)); D = accum / scale", SCALE, "one for each two columns of accum, as D may"),
        ("even = accum; D = even", {}, "'even' cannot be assigned"),
        ("D = even(accum, accum)", {}, "even() takes 1 arguments"),
    ],
)
def test_what_has_other_columns_is_named(
    text: str, operands: dict[str, dict[str, str]], message: str
) -> None:
    assert message in refused(text, operands)


# Random formulas. An expression is a tuple: ("name", x), ("number", x), or (operation, arguments...).

NAMES = ("accum", "x", "y", "C")
NUMBERS = (0.5, 1.0, 2.0, 3.0, 10.0)
SYMBOLS = ("+", "-", "*", "/", "**", *COMPARISONS)


def expressions():
    leaves = st.one_of(
        st.sampled_from(NAMES).map(lambda name: ("name", name)),
        st.sampled_from(NUMBERS).map(lambda value: ("number", value)),
    )

    def grown(inner):
        of = {count: [name for name in FUNCTIONS if FUNCTIONS[name] == count] for count in (1, 2, 3)}
        return st.one_of(
            st.tuples(st.sampled_from(["neg", *of[1]]), inner),
            st.tuples(st.sampled_from([*SYMBOLS, *of[2]]), inner, inner),
            st.tuples(st.sampled_from(of[3]), inner, inner, inner),
        )

    return st.recursive(leaves, grown, max_leaves=12)


def written(tree, choose: random.Random, temporaries: list[str] | None = None) -> str:
    """A text of a tree, with choices that mean nothing; whole parts of it may become temporaries."""
    kind, *rest = tree
    if kind == "name":
        text = rest[0]
    elif kind == "number":
        value = rest[0]
        text = choose.choice([repr(value), f"{value:.3f}", f"{value:e}"])
        if value == int(value) and choose.random() < 0.3:
            text = str(int(value))
    elif kind == "neg":
        text = f"-({written(rest[0], choose, temporaries)})"
    elif kind in SYMBOLS:
        sides = list(rest)
        if kind in ("+", "*", "==", "!=") and choose.random() < 0.5:
            sides.reverse()
        space = " " * choose.randrange(3)
        left, right = (f"({written(side, choose, temporaries)})" for side in sides)
        text = f"{left}{space}{kind}{space}{right}"
    else:
        text = f"{kind}( {', '.join(written(argument, choose, temporaries) for argument in rest)} )"
    if temporaries is not None and choose.random() < 0.25:
        # Not one that an earlier output's temporary has, drawn from as many as make that next to impossible.
        name = f"v{len(temporaries)}_{choose.getrandbits(60)}"
        temporaries.append(f"{name} = {text}")
        text = name
    return f"({text})" if choose.random() < 0.2 else text


def formula(trees: dict, seed: int) -> str:
    """The outputs of ``trees`` in some order, each behind the temporaries it needs."""
    choose = random.Random(seed)
    blocks = []
    for name, tree in trees.items():
        temporaries: list[str] = []
        right = written(tree, choose, temporaries)
        blocks.append(choose.choice(["; ", "\n", " ;\n "]).join([*temporaries, f"{name} = {right}"]))
    choose.shuffle(blocks)
    unique = "\n".join(blocks)
    return unique if choose.random() < 0.5 else f"\n{unique} ;"


def safe(function):
    def call(*arguments):
        try:
            return function(*arguments)
        except (OverflowError, ValueError, ZeroDivisionError):
            return math.nan

    return call


VALUES = {
    "exp": safe(math.exp),
    "relu": lambda x: max(x, 0.0),
    "tanh": math.tanh,
    "sigmoid": safe(lambda x: 1 / (1 + math.exp(-x))),
    "silu": safe(lambda x: x / (1 + math.exp(-x))),
    "gelu": lambda x: 0.5 * x * (1 + math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))),
    "hardswish": lambda x: x * min(max(x + 3.0, 0.0), 6.0) / 6.0,
    "maximum": max,
    "minimum": min,
    "abs": abs,
    "clamp": lambda x, least, most: min(max(x, least), most),
    "cos": safe(math.cos),
    "erf": math.erf,
    "log": safe(math.log),
    "round": safe(lambda x: float(round(x))),
    "rotate_every_two": lambda x: 1.0 - x,
    "rsqrt": safe(lambda x: 1 / math.sqrt(x)),
    "sin": safe(math.sin),
    "softplus": lambda x: math.log1p(math.exp(-abs(x))) + max(x, 0.0),
    "sqrt": safe(math.sqrt),
    "where": lambda condition, x, y: x if condition else y,
    "**": safe(math.pow),
    "<": lambda x, y: float(x < y),
    "<=": lambda x, y: float(x <= y),
    ">": lambda x, y: float(x > y),
    ">=": lambda x, y: float(x >= y),
    "==": lambda x, y: float(x == y),
    "!=": lambda x, y: float(x != y),
}


def direct(tree, values):
    """What a tree means, by its own rules and not by the package's."""
    kind, *rest = tree
    if kind == "name":
        return values[rest[0]]
    if kind == "number":
        return rest[0]
    arguments = [direct(argument, values) for argument in rest]
    if kind == "neg":
        return -arguments[0]
    if kind in ("+", "-", "*", "/"):
        left, right = arguments
        if kind == "/":
            return left / right if right else math.nan
        return {"+": left + right, "-": left - right, "*": left * right}[kind]
    return VALUES[kind](*arguments)


@given(expressions(), expressions(), st.integers(0, 2**32), st.integers(0, 2**32))
def test_rewriting_that_keeps_the_meaning_keeps_the_text(first, second, one, other):
    trees = {"D": ("+", ("name", "accum"), first), "F": second}
    declared = {"F": {"dtype": "f32", "extents": "MN"}}
    names = {name for tree in trees.values() for name in names_of(tree)}
    if "C" in names:
        declared["C"] = MATRIX
    epilogue = parse_epilogue(formula(trees, one), declared)
    assert parse_epilogue(formula(trees, other), declared) == epilogue
    again = parse_epilogue(epilogue.formula, declared)
    assert again == epilogue
    assert isinstance(again, Epilogue)


def names_of(tree) -> set[str]:
    kind, *rest = tree
    if kind == "name":
        return {rest[0]}
    if kind == "number":
        return set()
    return set().union(*(names_of(argument) for argument in rest))


def meaning(text: str) -> list[float]:
    (statement,) = parse_formula(f"D = {text}", ())
    return [computed(statement.expression, values) for values in SAMPLES]


def computed(expression, values) -> float:
    def divided(left, right):
        return left / right if right else math.nan

    if isinstance(expression, Apply) and expression.operation == "/":
        left, right = (computed(argument, values) for argument in expression.arguments)
        return divided(left, right)
    if isinstance(expression, Apply):
        arguments = {f"p{i}": computed(argument, values) for i, argument in enumerate(expression.arguments)}
        shallow = Apply(expression.operation, tuple(Name(name) for name in arguments), 1 + len(arguments))
        return evaluate(shallow, arguments, VALUES)
    return evaluate(expression, values, VALUES)


_RANDOM = random.Random(20)
SAMPLES = [{name: _RANDOM.uniform(-2, 2) for name in NAMES} for _ in range(5)]


def agree(one, other) -> bool:
    return all(
        (math.isnan(x) and math.isnan(y)) or x == y or math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-12)
        for x, y in zip(one, other, strict=True)
    )


@given(expressions(), st.integers(0, 2**32))
def test_the_canonical_text_means_what_was_written(tree, seed):
    text = written(tree, random.Random(seed))
    assert agree(meaning(text), [direct(tree, values) for values in SAMPLES])
    (statement,) = parse_formula(f"D = {text}", ())
    assert names_in(statement.expression) == names_of(tree)
    (again,) = parse_formula(f"D = {text_of(statement.expression)}", ())
    assert again == statement


@given(expressions(), expressions(), st.integers(0, 2**32))
def test_texts_that_mean_something_else_differ(one, other, seed):
    choose = random.Random(seed)
    first, second = written(one, choose), written(other, choose)
    if not agree(meaning(first), meaning(second)):
        assert canonical_formula(f"D = {first}", ()) != canonical_formula(f"D = {second}", ())


@given(st.text("Dacumrel1.0+-*/<>!(),=; \nsx", max_size=60))
def test_any_text_is_a_formula_or_a_manifest_error(text):
    try:
        canonical = canonical_formula(text, ())
    except ManifestError:
        return
    assert canonical_formula(canonical, ()) == canonical


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_numbers_are_those_of_f32(value):
    assert as_f32(as_f32(value)) == as_f32(value)
    assert math.isclose(as_f32(value), value, rel_tol=1e-7, abs_tol=1e-44)
    assert Constant(as_f32(value)) == Constant(as_f32(math.nextafter(value, 0.0)))


def test_formulas_that_recursion_should_not_follow_are_refused():
    for text in ("D = " + "-" * 505 + "accum", "D = " + "-" * 150 + "accum"):
        with pytest.raises(ManifestError, match="more than 100 operations inside each other"):
            parse_epilogue(text, {})
    deep = "; ".join(["t0 = relu(accum)", *(f"t{i} = relu(t{i - 1})" for i in range(1, 120)), "D = t119"])
    with pytest.raises(ManifestError, match="more than 100 operations inside each other"):
        parse_epilogue(deep, {})
    assert parse_epilogue("D = " + "-" * 90 + "accum", {}).formula


def test_the_largest_f32_is_a_number():
    assert "3.4028235e+38" in parse_epilogue("D = minimum(accum, 3.4028234e38)", {}).formula


def test_a_number_is_not_assigned():
    with pytest.raises(ManifestError, match="a number cannot be assigned: give it extents"):
        parse_epilogue("alpha = accum; D = alpha", {"alpha": {"dtype": "f32"}})
