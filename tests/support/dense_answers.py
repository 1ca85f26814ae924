"""What the operators package itself says of operands, and what our generator has for problems. A script.

It stands outside of the test's process because it imports the DSL. Input and output are JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from cutlass.operators import GemmArguments

from cutlass_aot.generators.cutlass_operators import CutlassOperators, records
from cutlass_aot.generators.cutlass_operators.worker import operators_of
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.kernels.dtypes import DTYPES

PROFILE = load_profile("b200")


def main() -> None:
    requested = json.load(sys.stdin)
    kinds = [kind for record, target in requested["kinds"] for kind in operators(record, target)]
    json.dump(
        {
            "kernels": [to_plain(records.record(operator, target, PROFILE)) for operator, target in kinds],
            "operands": [
                [accepts(operator, target, operands) for operator, target in kinds]
                for operands in requested["operands"]
            ],
            "enumerated": [
                enumerated(from_plain(Problem, record, "a problem"), target)
                for record, target in requested["problems"]
            ],
        },
        sys.stdout,
    )


def operators(record: Any, target: str) -> list[tuple[Any, str]]:
    """One of the package's operators of each family for a problem."""
    by_family: dict[str, Any] = {}
    for operator in operators_of(from_plain(Problem, record, "a problem"), target).values():
        by_family.setdefault(records.family(operator), operator)
    return [(operator, target) for operator in by_family.values()]


def accepts(operator: Any, target: str, operands: list[Any]) -> bool:
    """Whether the package says that an operator takes a, b and out, of these types, shapes and strides."""
    tensors = [
        torch.empty_strided(shape, strides, dtype=getattr(torch, DTYPES[dtype].torch), device="meta")
        for dtype, shape, strides in operands
    ]
    try:
        arguments = GemmArguments(*tensors, accumulator_type=operator.metadata.operands.accumulator_type)
        return bool(operator.supports(arguments, target_sm=target.removeprefix("sm_")))
    except ValueError:  # Shapes that do not go together, or no contiguous mode.
        return False


def enumerated(problem: Any, target: str) -> list[Any]:
    """Number of kernels, of different ones, of groups, and the first record."""
    kernels = list(CutlassOperators().enumerate(problem, target, PROFILE))
    return [
        len(kernels),
        len({kernel.digest for kernel in kernels}),
        len({kernel.group for kernel in kernels}),
        to_plain(kernels[0]) if kernels else None,
    ]


if __name__ == "__main__":
    main()
