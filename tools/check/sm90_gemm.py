"""Hold every GEMM of a bundle, with its epilogue, against torch in f32 on a GPU.

    python -m tools.check.sm90_gemm BUNDLE [--family Sm90ClusterGemm]

Operands are random and padded; outputs are NaN before each launch; each kernel is launched twice, and has to
give the same bits. Exit status 1 says that something is wrong, and what.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cutlass_aot
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import COLUMN
from cutlass_aot.schema.kernels.formula import ACCUMULATOR, evaluate, parse_formula
from cutlass_aot.schema.kernels.kernel import Kernel

CHECKED = (
    (1, 1, 8, 8), (1, 1, 576, 7168), (1, 3, 24, 40), (3, 65, 200, 72), (2, 7, 576, 1008), (1, 130, 584, 144),
    (1, 257, 2112, 528), (5, 33, 64, 4096), (1, 1000, 328, 2048), (2, 513, 1168, 264), (1, 16, 4096, 4096),
    (1, 3000, 2312, 136),
)  # fmt: skip
"""Batch, m, n, k: single rows and elements, tails along each extent, batches, slices of K that are empty;
at the end more tiles than a persistent kernel launches clusters."""

BOUNDS = {"bf16": 4e-3, "f16": 5e-4, "f32": 1e-4}
"""Largest relative error (Frobenius norm) by element type of the output; rounding to bf16 alone is 1.7e-3."""

FP8_BOUND = 2e-2
"""The same for FP8 operands, of which tensor cores keep fewer bits while they add up."""


def check(torch: Any, kernels: Sequence[Any]) -> list[str]:
    """Hold every kernel against torch in f32 on :data:`CHECKED`, on padded operands; what is wrong."""
    wrong = []
    checks = dict.fromkeys((kernel.name for kernel in kernels), 0)
    for extents in CHECKED:
        for kernel in kernels:
            # A kernel that hangs is the last one named.
            print(f"checking {extents} {kernel.name}", file=sys.stderr, flush=True)
            torch.manual_seed(7)
            case = Case(torch, kernel.kernel, extents)
            if not kernel.supports(*case.operands):
                continue
            checks[kernel.name] += 1
            first, second = case.launched(kernel), case.launched(kernel)
            for name, expected in case.expected().items():
                error = float((first[name] - expected).norm() / expected.norm())
                if not error <= case.bound(name):
                    wrong.append(f"{kernel.name}: {extents}: {name}: relative error {error:.2e}")
                elif not torch.equal(first[name], second[name]):
                    wrong.append(f"{kernel.name}: {extents}: {name}: two launches gave different bits")
    print(f"{sum(checks.values())} checks of {len(checks)} kernels")
    return wrong + [f"{name}: supports none of the problems" for name, count in checks.items() if not count]


class Case:
    """Operands of a kernel on one problem, padded where they may be, and what should come out."""

    def __init__(self, torch: Any, kernel: Kernel, extents: tuple[int, int, int, int]) -> None:
        self._torch = torch
        self._kernel = kernel
        self._sizes = dict(zip("LMNK", extents, strict=True))
        self._by_name = {operand.name: self._operand(operand) for operand in kernel.operands}
        self.operands = list(self._by_name.values())

    def _operand(self, operand: OperandConstraint) -> Any:
        torch = self._torch
        if operand.is_number:
            return 0.75
        shape = [self._sizes.get(str(extent), 1) for extent in operand.extents]
        memory = list(shape)
        if operand.contiguous == -2:
            memory[-1], memory[-2] = memory[-2], memory[-1]
        # Padding along every mode but the first that has room for it.
        padded = [memory[0], *(size + 16 for size in memory[1:])] if len(memory) > 1 else memory
        lying = torch.randn(padded, device="cuda").to(getattr(torch, DTYPES[operand.dtype].torch))
        lying = lying[tuple(slice(size) for size in memory)]
        return lying.transpose(-1, -2) if operand.contiguous == -2 else lying

    def launched(self, kernel: Any) -> dict[str, Any]:
        """The outputs of a launch in f32; what it does not write is NaN."""
        written = [operand.name for operand in self._kernel.operands if operand.written]
        for name in written:
            self._by_name[name].fill_(float("nan"))
        kernel.launch(*self.operands)
        return {name: self._by_name[name].float() for name in written}

    def expected(self) -> dict[str, Any]:
        """The outputs by name, computed by torch in f32."""
        torch, values = self._torch, self._by_name
        total = torch.bmm(values["a"].float(), values["b"].float())
        if not self._kernel.epilogue:
            return {"out": total}
        known = {ACCUMULATOR: total}
        for operand in self._kernel.operands[3:]:
            given = values[operand.name]
            if not operand.written:
                known[operand.name] = given if operand.is_number else given.float()
            if operand.extents == COLUMN:
                known[operand.name] = known[operand.name][:, None]
        outputs = [operand.name for operand in self._kernel.operands[3:] if operand.written]
        results = {
            statement.name: evaluate(statement.expression, known, functions(torch))
            for statement in parse_formula(self._kernel.epilogue, outputs)
        }
        results["out"] = results.pop("D")
        return results

    def bound(self, name: str) -> float:
        """How far an output may be off."""
        dtypes = {operand.name: operand.dtype for operand in self._kernel.operands}
        return FP8_BOUND if dtypes["a"].startswith("f8") else BOUNDS[dtypes[name]]


def functions(torch: Any) -> dict[str, Any]:
    """What an epilogue's functions are, in torch."""
    own = torch.nn.functional
    return {
        "exp": torch.exp,
        "gelu": lambda x: own.gelu(x, approximate="tanh"),
        "hardswish": own.hardswish,
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "relu": own.relu,
        "sigmoid": torch.sigmoid,
        "silu": own.silu,
        "tanh": torch.tanh,
    }


def main(words: Sequence[str] | None = None) -> int:
    """Check what the command line names; 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--family", default="Sm90ClusterGemm")
    arguments = parser.parse_args(words)
    import torch

    kernels = cutlass_aot.open(arguments.bundle).kernels(operation="gemm", family=arguments.family)
    wrong = check(torch, kernels)
    print(f"{len(wrong)} wrong results", *wrong, sep="\n  ")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
