"""What an epilogue computes, as the package evaluates it on a CPU, against its formula in torch. A script.

It stands outside of the test's process because it imports the DSL.
"""

from __future__ import annotations

import torch

from cutlass_aot.generators import dsl
from cutlass_aot.generators.cutlass_operators import epilogue as epilogues
from cutlass_aot.generators.cutlass_operators.epilogue_records import constraints, epilogue_of
from cutlass_aot.schema.kernels.epilogue import parse_epilogue
from cutlass_aot.schema.kernels.formula import evaluate
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.kernels import gemm

M, N, L = 6, 5, 3
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
SHAPES = {("L", "M", "N"): (M, N, L), ("N",): (N,), ("M",): (M,), (1,): (1,)}
VIEWS = {("L", "M", "N"): (M, N, L), ("N",): (1, N, 1), ("M",): (M, 1, 1), (1,): (1, 1, 1), (): ()}
REDUCED = {("N",): (0, 2), ("M",): (1, 2), (1,): (0, 1, 2)}
START = {"sum": 0.5, "max": -float("inf"), "min": float("inf")}


def main() -> None:
    torch.manual_seed(0)
    epilogue = parse_epilogue(FORMULA, OPERANDS)
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
        else:
            values[operand.name] = torch.randn(SHAPES[operand.extents])
    expected = reference(epilogue, accumulator, values)

    made = epilogues.gemm_of(kernel, dsl.fake_operands(kernel))
    order = ["D", *(operand.name for operand in epilogue.operands)]
    made.efc.evaluate_on_cpu(accumulator, tuple(values[name] for name in order))
    for name, value in expected.items():
        torch.testing.assert_close(values[name], value, msg=lambda text, name=name: f"{name}: {text}")


def reference(epilogue, accumulator, values):
    """Every output, by the formula alone."""
    seen = {"accum": accumulator}
    for operand in epilogue.operands:
        value = values[operand.name]
        seen[operand.name] = torch.as_tensor(value).reshape(VIEWS[operand.extents])
    functions = {
        "exp": torch.exp, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "maximum": torch.maximum,
        "minimum": torch.minimum, "relu": torch.relu, "silu": lambda x: x / (1 + torch.exp(-x)),
        "hardswish": lambda x: x * torch.clamp(x + 3, 0, 6) / 6,
    }  # fmt: skip
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
        found[statement.name] = value
    return found


if __name__ == "__main__":
    main()
