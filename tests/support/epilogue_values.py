"""What an epilogue computes, as the package evaluates it on a CPU, against its formula in torch. A script.

It stands outside of the test's process because it imports the DSL.
"""

from __future__ import annotations

import torch

from cutlass_aot.generators.cutlass_operators import epilogue as epilogues
from cutlass_aot.generators.cutlass_operators.epilogue_records import constraints, epilogue_of
from cutlass_aot.schema.kernels.epilogue import Epilogue, parse_epilogue
from cutlass_aot.schema.kernels.formula import ROTATION, evaluate
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.epilogue_functions import REFERENCES
from tests.support.kernels import gemm

M, N, L = 5, 6, 3
FORMULA = """
t = alpha * accum + beta * C
D = relu(t + row * column) * scale - 2
F = silu(accum) / (1 + exp(-t)) + sigmoid(tanh(maximum(accum, 0.25))) + hardswish(minimum(t, row))
G = relu(alpha)
row_sum = sum(t)
column_max = max(t * row)
least = min(accum)
"""
OPERANDS: dict[str, dict[str, object]] = {
    "C": {"extents": "MN"},
    "F": {"extents": "MN"},
    "G": {"extents": "MN"},
    "row": {"extents": "N"},
    "column": {"extents": "M"},
    "scale": {"extents": "1"},
    "row_sum": {"extents": "N"},
    "column_max": {"extents": "M"},
    "least": {"extents": "1"},
}
MORE_FUNCTIONS = """
D = softplus(accum) + clamp(accum, -1, 1) ** 3 - where(mask, sqrt(abs(accum)), erf(accum) * (accum != row))
F = round(log(abs(accum)) * sin(accum) - cos(accum) * rsqrt(abs(accum) + 1)) + strided_row * strided_column
positive = accum > row
G = abs(accum) ** 1.5 + rotate_every_two(accum - row)
"""
MORE_OPERANDS: dict[str, dict[str, object]] = {
    "F": {"extents": "MN"},
    "G": {"extents": "MN"},
    "mask": {"extents": "MN", "dtype": "bool"},
    "positive": {"extents": "MN", "dtype": "bool"},
    "row": {"extents": "N"},
    "strided_row": {"extents": "N1"},
    "strided_column": {"extents": "M1"},
}
SHAPES = {("L", "M", "N"): (M, N, L), ("N",): (N,), ("M",): (M,), (1,): (1,)}
VIEWS = {("L", "M", "N"): (M, N, L), ("N",): (1, N, 1), ("M",): (M, 1, 1), (1,): (1, 1, 1), (): ()}
VIEWS |= {("N", 1): (1, N, 1), ("M", 1): (M, 1, 1)}
REDUCED = {("N",): (0, 2), ("M",): (1, 2), (1,): (0, 1, 2)}
START = {"sum": 0.5, "max": -float("inf"), "min": float("inf")}


def main() -> None:
    torch.manual_seed(0)
    for formula, operands in ((FORMULA, OPERANDS), (MORE_FUNCTIONS, MORE_OPERANDS)):
        check(parse_epilogue(formula, operands))


def check(epilogue: Epilogue) -> None:
    design = {"tile_shape": (128, 128, 64), "cluster_shape": (1, 1, 1), "use_2cta_mma": False}
    plain = gemm()
    kernel = Kernel.make(
        operation="gemm",
        generator="cutlass.operators",
        operands=(*plain.operands, *constraints(epilogue, "t", design)),
        accumulator="f32",
        design=design,
        target="sm_100a",
        epilogue=epilogue.formula,
    )
    assert epilogue_of(kernel).formula == epilogue.formula

    accumulator = torch.randn(M, N, L)
    values: dict[str, object] = {"D": torch.empty(M, N, L)}
    reductions = {statement.name: statement.reduction for statement in epilogue.statements}
    for operand in epilogue.operands:
        if operand.extents == ():
            values[operand.name] = float(torch.randn(()))
        elif reductions.get(operand.name):
            shape = SHAPES[operand.extents]
            values[operand.name] = torch.full(shape, START[reductions[operand.name]])
        elif len(operand.extents) == 2:
            # A column of a table.
            values[operand.name] = torch.randn({"N": N, "M": M}[operand.extents[0]], 7)[:, 3:4]
        elif operand.dtype == "bool":
            values[operand.name] = torch.rand(SHAPES[operand.extents]) < 0.5
        else:
            values[operand.name] = torch.randn(SHAPES[operand.extents])
    expected = reference(epilogue, accumulator, values)

    made = epilogues.gemm_of(kernel)
    order = ["D", *(operand.name for operand in epilogue.operands)]
    made.efc.evaluate_on_cpu(accumulator, tuple(values[name] for name in order))
    for name, value in expected.items():
        torch.testing.assert_close(values[name], value, msg=lambda text, name=name: f"{name}: {text}")


def reference(epilogue, accumulator, values):
    """Every output, by the formula alone."""
    seen = {"accum": accumulator}
    for operand in epilogue.operands:
        value = values[operand.name]
        seen[operand.name] = torch.as_tensor(value).float().reshape(VIEWS[operand.extents])
    # The columns are the second mode here.
    rotated = REFERENCES[ROTATION]
    functions = {**REFERENCES, ROTATION: lambda x: rotated(x.transpose(1, 2).contiguous()).transpose(1, 2)}
    reduce = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}
    combine = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
    extents = {operand.name: operand.extents for operand in epilogue.operands}
    found = {}
    for statement in epilogue.statements:
        value = evaluate(statement.expression, seen, functions, torch.tensor)
        value = value.expand(M, N, L)
        if statement.reduction:
            axes = REDUCED[extents[statement.name]]
            value = reduce[statement.reduction](value, dim=axes).reshape(values[statement.name].shape)
            value = combine[statement.reduction](values[statement.name], value)
        found[statement.name] = value.to(values[statement.name].dtype)
    return found


if __name__ == "__main__":
    main()
