"""Hold every GEMM of a bundle, with its epilogue, against torch in f32 on a GPU.

    python -m tools.check.sm90_gemm BUNDLE [--family Sm90ClusterGemm Sm90PingPongGemm Sm90ExactGemm]

Operands are random and padded; outputs are NaN before each launch, and reductions what changes nothing. Each
kernel is launched twice, and has to give the same bits, but for sums of blocks. Exit status 1 says that
something is wrong, and what. Scales of blocks, and outputs of half as many columns, are checked by
tests/gpu/test_sm90_quantized.py alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cutlass_aot
from cutlass_aot.generators.epilogue_functions import torch_functions
from cutlass_aot.generators.sm90_gemm.generator import EXACT_FAMILY, FAMILY, epilogue_of
from cutlass_aot.schema.kernels.accumulation import FAST
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import COLUMN, ELEMENT, ROW, STRIDED_ROW
from cutlass_aot.schema.kernels.formula import ACCUMULATOR, OUT, evaluate
from cutlass_aot.schema.kernels.kernel import Kernel

CHECKED = (
    (1, 1, 8, 8), (1, 1, 576, 7168), (1, 3, 24, 40), (3, 65, 200, 72), (2, 7, 576, 1008), (1, 130, 584, 144),
    (1, 257, 2112, 528), (5, 33, 64, 4096), (1, 1000, 328, 2048), (2, 513, 1168, 264), (1, 16, 4096, 4096),
    (1, 3000, 2312, 136),
)  # fmt: skip
"""Batch, m, n, k: single rows and elements, tails along each extent, batches, slices of K that are empty;
at the end more tiles than a persistent kernel launches clusters."""

BOUNDS = {
    "bf16": 4e-3, "f16": 5e-4, "f32": 1e-4, "f8e4m3": 4e-2, "f8e5m2": 8e-2, "i32": 2e-2, "i8": 2e-2,
    "u8": 2e-2, "bool": 2e-2,
}  # fmt: skip
"""Largest relative error (Frobenius norm) by element type of the output; rounding to bf16 alone is 1.7e-3, to
f8e4m3 2.6e-2. An integer differs by 1 where the sum's last bits say on which side of it a number is."""

REDUCED = {ROW: (0, 1), COLUMN: (0, 2), ELEMENT: (0, 1, 2)}
"""Modes of (L, M, N) that a reduction with these extents is over."""

NEUTRAL = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}
"""What each reduction is begun with."""

FP8_BOUND = 2e-2
"""The same for FP8 operands, of which tensor cores keep fewer bits while they add up."""

EXACT_FP8_BOUND = 4e-4
"""The same where they add up 128 products alone."""


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
                elif case.reduction(name) != "sum" and not torch.equal(first[name], second[name]):
                    wrong.append(f"{kernel.name}: {extents}: {name}: two launches gave different bits")
    print(f"{sum(checks.values())} checks of {len(checks)} kernels")
    return wrong + [f"{name}: supports none of the problems" for name, count in checks.items() if not count]


class Case:
    """Operands of a kernel on one problem, padded where they may be, and what should come out."""

    def __init__(self, torch: Any, kernel: Kernel, extents: tuple[int, int, int, int]) -> None:
        self._torch = torch
        self._kernel = kernel
        self._epilogue = epilogue_of(kernel)
        self._statements = {s.name: s for s in self._epilogue.statements} if self._epilogue else {}
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
        lying = torch.randn(padded, device="cuda")
        if not DTYPES[operand.dtype].is_float:
            # Of masks, about half; of integers, small ones.
            lying = lying > 0 if operand.dtype == "bool" else (lying * 4).abs().round()
        lying = lying.to(getattr(torch, DTYPES[operand.dtype].torch))
        lying = lying[tuple(slice(size) for size in memory)]
        return lying.transpose(-1, -2) if operand.contiguous == -2 else lying

    def launched(self, kernel: Any) -> dict[str, Any]:
        """The outputs of a launch in f32; what it does not write is NaN, or 99 of integers."""
        written = [operand for operand in self._kernel.operands if operand.written]
        for operand in written:
            other = float("nan") if DTYPES[operand.dtype].is_float else 99
            self._by_name[operand.name].fill_(NEUTRAL.get(self.reduction(operand.name), other))
        kernel.launch(*self.operands)
        return {operand.name: self._by_name[operand.name].float() for operand in written}

    def reduction(self, name: str) -> str:
        """The reduction that an output is of, ``""`` if of none."""
        return self._statements[name].reduction if name in self._statements else ""

    def expected(self) -> dict[str, Any]:
        """The outputs by name, computed by torch in f32."""
        torch, values = self._torch, self._by_name
        total = torch.bmm(values["a"].float(), values["b"].float())
        if self._epilogue is None:
            return {"out": total}
        known = {ACCUMULATOR: total}
        for operand in self._kernel.operands[3:]:
            given = values[operand.name]
            if not operand.written:
                known[operand.name] = torch.full_like(total, given) if operand.is_number else given.float()
                if operand.extents == COLUMN:
                    known[operand.name] = known[operand.name][:, None]
                elif operand.extents == STRIDED_ROW:
                    known[operand.name] = known[operand.name].T
        functions = torch_functions(torch)
        results = {}
        for name, statement in self._statements.items():
            value = evaluate(
                statement.expression, known, functions, lambda number: torch.full_like(total, number)
            )
            results[name] = self._stored(name, value.expand_as(total))
        results["out"] = results.pop(OUT)
        return results

    def _stored(self, name: str, value: Any) -> Any:
        """What an output has of an expression's values, as the formula's language says."""
        operands = {operand.name: operand for operand in self._kernel.operands}
        operand = operands["out" if name == OUT else name]
        reduction = self.reduction(name)
        if reduction:
            modes = REDUCED[operand.extents]
            reduced = value.sum(modes) if reduction == "sum" else getattr(value, f"a{reduction}")(modes)
            return reduced.reshape(-1)
        if operand.dtype == "bool":
            return (value != 0).float()
        if operand.dtype.startswith("f8"):
            most = self._torch.finfo(getattr(self._torch, DTYPES[operand.dtype].torch)).max
            return value.clamp(-most, most)
        return value if DTYPES[operand.dtype].is_float else value.trunc()

    def bound(self, name: str) -> float:
        """How far an output may be off."""
        dtypes = {operand.name: operand.dtype for operand in self._kernel.operands}
        own = BOUNDS[dtypes[name]]
        if not dtypes["a"].startswith("f8"):
            return own
        return max(own, FP8_BOUND if self._kernel.accumulation == FAST else EXACT_FP8_BOUND)


def _is_checked(kernel: Kernel) -> bool:
    epilogue = epilogue_of(kernel)
    return epilogue is None or (epilogue.block == 1 and not epilogue.halves)


def main(words: Sequence[str] | None = None) -> int:
    """Check what the command line names; 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--family", nargs="+", default=[FAMILY, "Sm90PingPongGemm", EXACT_FAMILY])
    arguments = parser.parse_args(words)
    import torch

    kernels = cutlass_aot.open(arguments.bundle).kernels(operation="gemm", family=arguments.family)
    wrong = check(torch, [kernel for kernel in kernels if _is_checked(kernel.kernel)])
    print(f"{len(wrong)} wrong results", *wrong, sep="\n  ")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
